"""Deleting segments as Kafka does: renamed at once, unlinked later.

Owns the list of what waits to be unlinked. What a crash leaves as `.deleted` is removed at the
next opening.
"""

from collections.abc import Callable, Iterable
from typing import Final

from tidelog.storage import files
from tidelog.storage.segment import SegmentContext

_SIDE_FILES: Final = tuple(s for s in files.SEGMENT_SUFFIXES if s != files.LOG_SUFFIX)


def set_aside(context: SegmentContext, base_offset: int) -> list[str]:
    """Rename a segment's files, the log first: without it the others are orphans; their new names.

    May run in any thread; raises OSError.
    """
    fs, renamed = context.env.files, []
    for suffix in (files.LOG_SUFFIX, *_SIDE_FILES, files.SNAPSHOT_SUFFIX):
        path = context.path(base_offset, suffix)
        if fs.exists(path):
            context.pool.forget(path)
            context.maps.forget(path)
            fs.rename(path, path + files.DELETED_SUFFIX)
            renamed.append(path + files.DELETED_SUFFIX)
    return renamed


class Bin:
    """Files of one partition that are renamed to `.deleted` and wait for their time."""

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        self._waiting: list[tuple[int, str]] = []

    def put(self, paths: Iterable[str], due_ms: int) -> None:
        """Files that were set aside, and when they may go."""
        self._waiting.extend((due_ms, path) for path in paths)

    @property
    def next_due_ms(self) -> int | None:
        """When the next of them may go, in ms of wall time; None where none waits."""
        return min((due_ms for due_ms, _ in self._waiting), default=None)

    def take_due(self, now_ms: int | None = None) -> Callable[[], None] | None:
        """What unlinks the files that are due, all where no time is given; None where none is.

        To be called once, in whatever thread; raises OSError.
        """
        due = [path for due_ms, path in self._waiting if now_ms is None or due_ms <= now_ms]
        if not due:
            return None
        if now_ms is None:
            self._waiting = []
        else:
            self._waiting = [waits for waits in self._waiting if waits[0] > now_ms]
        return lambda: self._unlink(due)

    def _unlink(self, paths: Iterable[str]) -> None:
        fs = self._context.env.files
        for path in paths:
            if fs.exists(path):
                fs.remove(path)
