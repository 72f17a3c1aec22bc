"""Work that a log does later, and files that wait to be deleted.

What a log may leave for later: the syncs, snapshots and maps of a roll, a flush, an unlinking.

A log hands out work with what is to follow it. `AtOnce`, the default, does both on the spot, so
that a roll is durable when it returns. A server gives each log a `Deferral` of its own, which does
the work beside the loop and calls back on the owner's thread. Work of one log is done in the order
in which it was handed out: what was deferred later rests on what came before it.

Deleting segments as Kafka does: renamed at once, unlinked later.

Owns the list of what waits to be unlinked. What a crash leaves as `.deleted` is removed at the
next opening.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from tidelog.storage import files
from tidelog.storage.segment.segment import SegmentContext

Work: TypeAlias = Callable[[], None]


# Called with what the work raised, None where all went well.
Done: TypeAlias = Callable[[Exception | None], None]


class Deferral(Protocol):
    """Does one log's work, one thing after the other."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        ...

    def defer(self, work: Work, done: Done) -> None:
        """Do `work`, in whatever thread, then call `done` on the owner's thread.

        Raises:
            OSError: What the work raised, where it was done at once; `done` is not called then.
        """
        ...

    def settle(self) -> None:
        """Return when nothing waits or runs any more; each `done` was called."""
        ...

    def give_up(self) -> Callable[[], None]:
        """Forget what waits. Nothing is called back any more.

        Returns:
            What returns when that which runs has ended; for any thread.
        """
        ...


class AtOnce:
    """Does everything at once."""

    is_idle: Final = True

    def defer(self, work: Work, done: Done) -> None:
        """See `Deferral`."""
        work()
        done(None)

    def settle(self) -> None:
        """Nothing ever waits."""

    def give_up(self) -> Callable[[], None]:
        """Nothing ever waits."""
        return self.settle


AT_ONCE: Final = AtOnce()


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
