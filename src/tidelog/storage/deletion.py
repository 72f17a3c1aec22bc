"""Deleting segments as Kafka does: renamed at once, unlinked later.

Owns the list of what waits to be unlinked. What a crash leaves as `.deleted` is removed at the
next opening.
"""

from typing import Final

from tidelog.storage import files
from tidelog.storage.segment import SegmentContext

_SIDE_FILES: Final = tuple(s for s in files.SEGMENT_SUFFIXES if s != files.LOG_SUFFIX)


class Bin:
    """Files of one partition that are renamed to `.deleted` and wait for their time."""

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        self._waiting: list[tuple[int, str]] = []

    def put(self, base_offset: int, due_ms: int) -> None:
        """Rename a segment's files, the log first: without it the others are orphans."""
        fs = self._context.env.files
        for suffix in (files.LOG_SUFFIX, *_SIDE_FILES, files.SNAPSHOT_SUFFIX):
            path = self._context.path(base_offset, suffix)
            if not fs.exists(path):
                continue
            self._context.pool.forget(path)
            self._context.maps.forget(path)
            fs.rename(path, path + files.DELETED_SUFFIX)
            self._waiting.append((due_ms, path + files.DELETED_SUFFIX))

    def empty(self, now_ms: int | None = None) -> None:
        """Unlink what is due, everything where no time is given."""
        staying = []
        for due_ms, path in self._waiting:
            if now_ms is not None and due_ms > now_ms:
                staying.append((due_ms, path))
            elif self._context.env.files.exists(path):
                self._context.env.files.remove(path)
        self._waiting = staying
