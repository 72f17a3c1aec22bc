"""Making durable what a partition holds beyond its recovery point, before it is believed.

A process that was killed leaves to the system what it had not synced: of a finished segment,
too, where the roll's sync was left for later. Nothing syncs such a segment any more, while flushes,
rolls and a clean close move the recovery point past it, and a note says that all of it is there. So
an opening behind a hard stop syncs what it found; where a sync has failed, a reopening writes files
anew, and so does the next opening by another process: a mark tells it.

Owns no open state. Source: docs/recovery.md, "Opening for writing".
"""

from contextlib import suppress
from typing import Final

from tidelog.errors import StorageFailure
from tidelog.storage import files
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.loading import list_bases
from tidelog.storage.recovery import replace_by_prefix
from tidelog.storage.segment import SegmentContext
from tidelog.types import INT64_MAX

# Empty: the disk has failed, and what was not synced before may not be on it.
UNSYNCED_FILE: Final = "tidelog-unsynced"
# Operations of a partition that sync nothing which holds records, or name such a sync by itself.
_WITHOUT_SYNC: Final = frozenset(
    {"append", "roll", "map zones", "unlink", "delete", "move start", "read"}
)
# Append times first, so that no durable record is without its time. Zone maps are derived, and know
# their own checksums.
_SYNCED: Final = (
    files.APPEND_TIME_SUFFIX,
    files.LOG_SUFFIX,
    files.OFFSET_INDEX_SUFFIX,
    files.TIME_INDEX_SUFFIX,
    files.TXN_INDEX_SUFFIX,
)


def sync_unsynced(context: SegmentContext, recovery_point: int) -> None:
    """Make everything durable that lies in a partition's files now.

    Segments below `recovery_point` are left alone.

    Raises:
        OSError: The disk failed; the partition can't be opened, and a mark tells the next opening.
    """
    try:
        _sync_all(context, recovery_point)
    except OSError:
        mark_unsynced(context)
        raise


def _sync_all(context: SegmentContext, recovery_point: int) -> None:
    fs = context.env.files
    names = {entry.name for entry in fs.list_dir(context.directory)}
    for base in _unsynced(context, recovery_point):
        for suffix in _SYNCED:
            if files.file_name(base, suffix) in names:
                _sync(context, context.path(base, suffix))
    fs.sync_dir(context.directory)


def leaves_doubt(failure: StorageFailure) -> bool:
    """Whether the disk may lack what the system counts for written.

    Not where that which failed was no sync and began none: a write that found no room, above all,
    for which a copy of the segment would find none either.
    """
    return failure.operation not in _WITHOUT_SYNC


def mark_unsynced(context: SegmentContext) -> None:
    """Leave a mark that the disk has failed, for a process that knows nothing of it.

    Not synced: what a power loss takes away is gone from the system's memory too, and the next
    opening sees what the disk has. Where the disk takes no mark either, there is none.
    """
    with suppress(OSError):
        context.env.files.open(_mark(context), write=True, create=True).close()


def rewrite_marked(context: SegmentContext, recovery_point: int) -> StorageFailure | None:
    """Write anew what a marked failure has left in doubt; where there is no mark, nothing.

    Returns:
        Why that could not be done, on a full disk for example: the partition can be read, but must
        take nothing. The mark stays.
    """
    try:
        if context.env.files.exists(_mark(context)):
            rewrite_unsynced(context, recovery_point)
    except OSError as error:
        return as_storage_failure(error, context.directory, "write anew what is not surely on disk")
    return None


def rewrite_unsynced(context: SegmentContext, recovery_point: int) -> None:
    """Write each file anew, durably, that holds records or append times not known to be synced.

    Where a sync has failed the system may count pages as written that never came to the disk: a
    later sync would not write them again. Segments below `recovery_point` are left alone.

    Raises:
        OSError: The disk fails still; every file has its old or its new copy.
    """
    for base in _unsynced(context, recovery_point):
        for suffix in (files.APPEND_TIME_SUFFIX, files.LOG_SUFFIX):
            path = context.path(base, suffix)
            if context.env.files.exists(path):
                _rewrite(context, path)
    with suppress(FileNotFoundError):
        context.env.files.remove(_mark(context))


def _mark(context: SegmentContext) -> str:
    return f"{context.directory}/{UNSYNCED_FILE}"


def _unsynced(context: SegmentContext, recovery_point: int) -> list[int]:
    """Base offsets of the segments that end beyond a recovery point, and that of the last one."""
    bases = list_bases(context)
    ends = [*bases[1:], INT64_MAX]
    return [base for base, end in zip(bases, ends, strict=True) if end > recovery_point]


def _sync(context: SegmentContext, path: str) -> None:
    file = context.env.files.open(path, write=True)
    try:
        file.sync()
    finally:
        file.close()


def _rewrite(context: SegmentContext, path: str) -> None:
    fs = context.env.files
    try:
        replace_by_prefix(context, path, fs.stat(path).size)
    except OSError:
        with suppress(OSError):  # half a copy must not fill what is left of a disk
            fs.remove(path + files.TMP_SUFFIX)
        raise
