"""The file `compaction-history`: which records compaction may have removed from a partition.

The file has three kinds of data: for each clock, the oldest time as of which the partition's table
can still be computed exactly; the offset up to which segments have been cleaned; and the times from
which remaining tombstones may be removed. The file is primary data, which can't be rebuilt. The
file is written, durably, before the first file of a cleaning is renamed into place. So the file
never states that a table is exact when the table is not.

Another cleaner (Apache Kafka's, on the same directory) does not write the file. Another cleaner is
detected in two ways: a segment below `end_offset` has a size that the file does not list, or the
partition's offset in `cleaner-offset-checkpoint` is missing or above `end_offset`. After the log
was truncated below `end_offset`, the oldest exact times of both clocks are unknown.

The file is text, with one item per line: the version; `END RECORD_MS APPEND_MS RUN_MS`; `horizons`
and times in ms; `segment BASE SIZE` for each size that a segment may have; `crc` and the CRC-32C of
all preceding lines.

Source: docs/format.md#text-files.
"""

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage import files, log_files, text_files
from tidelog.types import UNKNOWN_MS, Buffer, ClockName

if TYPE_CHECKING:
    from tidelog.storage.segment.segment import Segment


HISTORY_FILE: Final = "compaction-history"
HISTORY_VERSION: Final = 0

# Value of the oldest exact time in ms if no record was ever removed: the tables as of all times are
# exact.
ALWAYS_MS: Final = 0

_HEAD_FIELDS: Final = 4
_SEGMENT_FIELDS: Final = 2
_HORIZONS: Final = "horizons"
_SEGMENT: Final = "segment"
_CRC: Final = "crc"


class CompactionHistory(NamedTuple):
    """Summary of all cleanings of a partition so far.

    Attributes:
        end_offset: Only records below this offset were ever removed. Each removed record was
            superseded by a record below this offset, was an expired tombstone or marker, or
            belonged to an aborted transaction or to an erased key.
        record_exact_ms: Oldest timestamp in ms as of which a table is exact; 0 if no record was
            removed, -1 if unknown.
        append_exact_ms: Oldest append time in ms as of which a table is exact; 0 if no record was
            removed, -1 if unknown.
        run_ms: Wall time of the last cleaning, in ms.
        horizons_ms: Times in ms, ascending, from which remaining tombstones may be removed.
        segments: Pairs (base offset, size) for the log files below `end_offset`. Each log file has
            a pair for each size that it may have, before or after the last swap.
    """

    end_offset: int
    record_exact_ms: int = UNKNOWN_MS
    append_exact_ms: int = UNKNOWN_MS
    run_ms: int = UNKNOWN_MS
    horizons_ms: tuple[int, ...] = ()
    segments: frozenset[tuple[int, int]] = frozenset()

    def exact_since_ms(self, clock: ClockName) -> int | None:
        """Return the oldest time in ms as of which a table is exact; None if unknown.

        A record without a time on the clock counts as older than any time.
        """
        exact_ms = self.record_exact_ms if clock is ClockName.RECORD else self.append_exact_ms
        return None if exact_ms == UNKNOWN_MS else exact_ms

    def encode(self) -> bytes:
        """Encode the file's text."""
        head = (self.end_offset, self.record_exact_ms, self.append_exact_ms, self.run_ms)
        lines = [
            str(HISTORY_VERSION),
            " ".join(map(str, head)),
            " ".join((_HORIZONS, *map(str, self.horizons_ms))),
            *(f"{_SEGMENT} {base} {size}" for base, size in sorted(self.segments)),
        ]
        text = "".join(f"{line}\n" for line in lines)
        return f"{text}{_CRC} {crc32c(text.encode()):08x}\n".encode()

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Decode the result of `encode`.

        Raises:
            CorruptFile: The file has an unknown version, a wrong checksum, or an invalid line.
        """
        text = text_files.decode_text(data)
        body, mark, crc = text.rpartition(f"{_CRC} ")
        if not mark or crc != f"{crc32c(body.encode()):08x}\n":
            raise CorruptFile("the compaction history has a wrong checksum")
        version, head, horizons, *segments = body.removesuffix("\n").split("\n")
        if version != str(HISTORY_VERSION):
            raise CorruptFile(
                f"version {version[:20]!r} of the compaction history, {HISTORY_VERSION} expected"
            )
        end, record_ms, append_ms, run_ms = _numbers(head, _HEAD_FIELDS, "first line")
        word, *times = horizons.split(" ")
        if word != _HORIZONS:
            raise CorruptFile(f"{horizons[:80]!r}: `{_HORIZONS}` and times expected")
        return cls(
            end_offset=end,
            record_exact_ms=record_ms,
            append_exact_ms=append_ms,
            run_ms=run_ms,
            horizons_ms=tuple(text_files.parse_number(time, "delete horizon") for time in times),
            segments=frozenset(map(_segment, segments)),
        )


def _numbers(line: str, count: int, what: str) -> list[int]:
    fields = line.split(" ")
    if len(fields) != count:
        raise CorruptFile(f"{what} {line[:80]!r}: {count} numbers expected")
    return [text_files.parse_number(field, what) for field in fields]


def _segment(line: str) -> tuple[int, int]:
    if not line.startswith(f"{_SEGMENT} "):
        raise CorruptFile(f"{line[:80]!r}: `{_SEGMENT} BASE SIZE` expected")
    base, size = _numbers(line.removeprefix(f"{_SEGMENT} "), _SEGMENT_FIELDS, "segment")
    return base, size


def load_history(fs: FileSystem, directory: str) -> CompactionHistory | None:
    """Read the file without checking that it is still valid; None if there is no file.

    Raises:
        CorruptFile: The file is damaged.
        OSError: The disk failed.
    """
    path = f"{directory}/{HISTORY_FILE}"
    return files.read_decoded(fs, path, CompactionHistory.decode, None)


def read_history(fs: FileSystem, directory: str) -> CompactionHistory | None:
    """Read a partition's compaction history if it is valid; no lock is needed.

    Args:
        fs: Files, local or in an object store.
        directory: The partition's directory, in the directory of topics.

    Returns:
        The history. None if there is no history, if the history is damaged, or if another cleaner
        has removed records since the history was written.

    Raises:
        OSError: The disk failed.
    """
    try:
        history = load_history(fs, directory)
    except CorruptFile:
        return None
    if history is None or not _fits_checkpoint(fs, directory, history):
        return None
    return history if _fits_segments(fs, directory, history) else None


def _fits_checkpoint(fs: FileSystem, directory: str, history: CompactionHistory) -> bool:
    """Return whether the cleaners' checkpoint is not beyond the history's end offset."""
    offset = _checkpoint(fs, directory)
    return offset is not None and offset <= history.end_offset


def _checkpoint(fs: FileSystem, directory: str) -> int | None:
    """Return the partition's offset in the cleaners' checkpoint; None if unknown."""
    root, name = posixpath.split(directory)
    partition = files.parse_partition_dir(name)
    with suppress(CorruptFile):
        offsets = text_files.read_offset_checkpoint(fs, f"{root}/{files.CLEANER_CHECKPOINT_FILE}")
        return None if partition is None else offsets.get(partition)
    return None


def _fits_segments(fs: FileSystem, directory: str, history: CompactionHistory) -> bool:
    """Return whether every log file below the cleaned end has a size that the history lists."""
    for entry in fs.list_dir(directory):
        parsed = None if entry.is_dir else log_files.parse_file_name(entry.name)
        if parsed is None or parsed[1] != log_files.LOG_SUFFIX or parsed[0] >= history.end_offset:
            continue
        with suppress(FileNotFoundError):  # a swap may have just removed the file
            size = fs.stat(f"{directory}/{entry.name}").size
            if (parsed[0], size) not in history.segments:
                return False
    return True


def write_history(fs: FileSystem, directory: str, history: CompactionHistory) -> None:
    """Replace the file, durably.

    After an OSError, the file has the old or the new content.
    """
    files.write_atomically(fs, f"{directory}/{HISTORY_FILE}", history.encode())


def cleaned_end(fs: FileSystem, directory: str) -> int:
    """Return the offset below which a gap may come from compaction.

    All records below this offset were durable when the log was cleaned. The result is the larger of
    two offsets: the end offset in tidelog's history, and the partition's offset in the cleaners'
    checkpoint. Every cleaner writes this checkpoint after its last swap. The result is 0 if the log
    was never cleaned, or if neither file is readable. Raises OSError.
    """
    ends = [_checkpoint(fs, directory) or 0]
    with suppress(CorruptFile):
        history = load_history(fs, directory)
        ends.append(0 if history is None else history.end_offset)
    return max(ends)


def records_left(segment: "Segment") -> int | None:
    """Return how many records a segment has, markers included; None if it has no zone map."""
    zones = None if segment.is_active else segment.zones
    return None if zones is None else zones.total.data_records + zones.total.control_records


def cut_history(fs: FileSystem, directory: str, offset: int) -> None:
    """Lower the history's end offset to `offset` for a truncation, durably.

    A record below `offset` may have been removed because it was superseded by a record that is now
    truncated. Tables would then lack both records. So the oldest times for which tables are exact
    become unknown. A damaged file is not changed, because readers ignore it anyway.
    """
    try:
        history = load_history(fs, directory)
    except CorruptFile:
        return
    if history is None or history.end_offset <= offset:
        return
    cut = history._replace(
        end_offset=offset,
        record_exact_ms=UNKNOWN_MS,
        append_exact_ms=UNKNOWN_MS,
        segments=frozenset(size for size in history.segments if size[0] < offset),
    )
    write_history(fs, directory, cut)
