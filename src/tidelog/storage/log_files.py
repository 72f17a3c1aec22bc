"""The log file and the files next to it: kinds of files (`LOG_FILES`), and their names.

`LOG_FILES` shows which files of a log are primary, and in which order the files are synced and
removed. Three modules also have code for each kind of file: `tier_manager/tier_store.py` copies the
files to a tier, `log/truncation.py` cuts them, and `directory/staging.py` makes them for attached
segments. tests/tidy/test_log_files.py compares these modules with the table. CONTRIBUTING.md ("A
file next to the log") lists the other places.

Source: Kafka 4.x LogFileUtils; docs/format.md.
"""

import re
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.types import INT64_MAX

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
APPEND_TIME_SUFFIX: Final = ".appendtime"
ZONES_SUFFIX: Final = ".zones"

# Suffixes that are appended to a file's whole name, as in `00000000000000000000.timeindex.swap`.
DELETED_SUFFIX: Final = ".deleted"

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
REMOVED_SUFFIX: Final = ".removed"  # for files that `commits.overlay` reports as removed
ASIDE_SUFFIX: Final = ".aside"  # for damaged bytes that a repair moved out of a log


class LogFile(NamedTuple):
    """A kind of file that is named after a base offset: a log or a file beside it.

    Attributes:
        suffix: Suffix of the file's name.
        is_primary: True for a file that can't be rebuilt. All other files can be rebuilt from the
            log.
        sync_rank: Position of the file in the order in which a segment's files are synced. None for
            a file that is never synced, because the file has its own checksum and can be rebuilt.
        is_of_segment: Whether the file exists only together with the segment. False for a producer
            snapshot, which belongs to an offset.
        is_summed: Whether a zone map stores the file's length and checksum.
    """

    suffix: str
    is_primary: bool = False
    sync_rank: int | None = None
    is_of_segment: bool = True
    is_summed: bool = False


# The kinds of files of a log, with the log file first. If files are renamed or removed in this
# order, a crash can leave only files whose log file is gone; recovery drops such files.
LOG_FILES: Final = (
    LogFile(LOG_SUFFIX, is_primary=True, sync_rank=1),
    LogFile(OFFSET_INDEX_SUFFIX, sync_rank=2, is_summed=True),
    LogFile(TIME_INDEX_SUFFIX, sync_rank=3, is_summed=True),
    LogFile(TXN_INDEX_SUFFIX, sync_rank=4, is_summed=True),
    # The append-time file is synced before the log, so that every durable record has its append
    # time.
    LogFile(APPEND_TIME_SUFFIX, is_primary=True, sync_rank=0, is_summed=True),
    LogFile(ZONES_SUFFIX),
    LogFile(SNAPSHOT_SUFFIX, is_of_segment=False),
)

# All suffixes in two orders: `LOG_FIRST` begins with `.log`, and `LOG_LAST` ends with `.log`.
LOG_FIRST: Final = tuple(file.suffix for file in LOG_FILES)

LOG_LAST: Final = (*LOG_FIRST[1:], LOG_FIRST[0])
SEGMENT_SUFFIXES: Final = tuple(file.suffix for file in LOG_FILES if file.is_of_segment)
SUMMED_SUFFIXES: Final = tuple(file.suffix for file in LOG_FILES if file.is_summed)

# Kinds of files that are synced, in the order of syncs.
SYNCED_FILES: Final = sorted(
    (file for file in LOG_FILES if file.sync_rank is not None), key=attrgetter("sync_rank")
)

SYNCED_SUFFIXES: Final = tuple(file.suffix for file in SYNCED_FILES)
PRIMARY_SUFFIXES: Final = tuple(file.suffix for file in SYNCED_FILES if file.is_primary)

# Suffixes of the offset index and the time index, in the order of `(OffsetIndex, TimeIndex)` pairs.
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)

_FILE_NAME: Final = re.compile(r"([0-9]{20})(\.[a-z]+(?:\.[a-z]+)*)", re.ASCII)


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file, e.g. `00000000000000000042.timeindex`."""
    assert 0 <= base_offset <= INT64_MAX
    return f"{base_offset:020d}{suffix}"


def log_file_name(base_offset: int) -> str:
    """Return the name of a segment's log file."""
    return file_name(base_offset, LOG_SUFFIX)


def cleaned_path(directory: str, base_offset: int, suffix: str) -> str:
    """Return the temporary path of a segment's file that a cleaning has written."""
    return f"{directory}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}"


def cleaned_overlay(fs: FileSystem, directory: str, base_offset: int) -> dict[str, str]:
    """Return the names of a segment's `.cleaned` files by their final names.

    The name for a file that is missing ends with `.removed`.

    See `SegmentContext.overlay`.
    """
    return {
        file_name(base_offset, suffix): file_name(base_offset, suffix)
        + (
            CLEANED_SUFFIX
            if fs.exists(cleaned_path(directory, base_offset, suffix))
            else REMOVED_SUFFIX
        )
        for suffix in LOG_FIRST
    }


def parse_file_name(name: str) -> tuple[int, str] | None:
    """Parse a file name into base offset and whole suffix (such as `.index.deleted`).

    Return None for other names.
    """
    match = _FILE_NAME.fullmatch(name)
    if match is None or int(match[1]) > INT64_MAX:
        return None
    return int(match[1]), match[2]


def log_sizes(fs: FileSystem, directory: str) -> list[int]:
    """Return the sizes in bytes of a partition's log files.

    Files that are removed during the call are left out.
    """
    sizes: list[int] = []
    with suppress(FileNotFoundError):
        for entry in fs.list_dir(directory):
            parsed = parse_file_name(entry.name)
            if parsed is not None and parsed[1] == LOG_SUFFIX:
                with suppress(FileNotFoundError):
                    sizes.append(fs.stat(f"{directory}/{entry.name}").size)
    return sizes
