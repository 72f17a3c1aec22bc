"""Parts of requested ranges from which compaction may have removed records."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.config import CLEANUP_COMPACT
from tidelog.errors import CorruptFile, TidelogError
from tidelog.scan.split import RequestedRange
from tidelog.storage import files, text_files
from tidelog.storage.segment.compaction_history import load_history
from tidelog.storage.segment.log_end import has_copied_gaps
from tidelog.storage.segment.slices import checked_records
from tidelog.types import NO_TIMESTAMP, ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.log.log_reader import LogView


# Maximum number of records that are read to find the first gap in a range of offsets.
_READ_MAX: Final = 100


class CompactedPart(NamedTuple):
    """Offsets of segments that overlap a range and from which compaction may have removed records.

    Attributes:
        start_offset: First of these offsets, inclusive.
        end_offset: End of these offsets, exclusive.
        records: Number of remaining records, without transaction markers; None if unknown.
        next_offset: Next offset with a record, if the range begins with an offset that has neither
            a record nor a marker; None in all other cases.
        markers: Number of remaining transaction markers; 0 if `records` is None.
    """

    start_offset: int
    end_offset: int
    records: int | None = None
    next_offset: int | None = None
    markers: int = 0


def compacted_parts(
    log_dir: "LogDir", ranges: Mapping[TopicPartition, RequestedRange], clock: ClockName
) -> dict[TopicPartition, CompactedPart]:
    """Return the compacted parts of ranges; reads at most a few records.

    A range has no compacted part if zone maps show that its segments still have all their records,
    or if its start time is after all times of the compacted segments.
    """
    path = f"{log_dir.path}/{files.CLEANER_CHECKPOINT_FILE}"
    cleaned: Mapping[TopicPartition, int] = {}
    # A damaged checkpoint file counts as empty. The next compaction rewrites it.
    with suppress(CorruptFile, FileNotFoundError):
        cleaned = text_files.read_offset_checkpoint(log_dir.env.files, path)
    parts: dict[TopicPartition, CompactedPart] = {}
    for name, requested in ranges.items():
        end = cleaned.get(name, 0)
        if CLEANUP_COMPACT in log_dir.topic(name.topic).config.cleanup_policy:
            # Before tidelog's cleaner removes a record, it stores the end offset of the cleaning in
            # the history. Topics that are not compacted have a history only after `tidelog erase`.
            folder = f"{log_dir.path}/{files.partition_dir_name(name)}"
            with suppress(CorruptFile):
                history = load_history(log_dir.env.files, folder)
                end = max(end, 0 if history is None else history.end_offset)
            if has_copied_gaps(log_dir.env.files, folder):
                end = log_dir.reader(name.topic, name.partition).log_end_offset
        log = log_dir.reader(name.topic, name.partition) if end else None
        if log is not None and not _begins_after(log, requested.start_ms, end, clock):
            part = _part_of(log, requested, end)
            if part is not None:
                parts[name] = part
    return parts


def _part_of(log: "LogView", requested: RequestedRange, cleaned_end: int) -> CompactedPart | None:
    """Return the compacted part of a range of offsets; None if no record is missing in it."""
    start = max(log.log_start_offset, requested.start_offset or 0)
    end = cleaned_end
    if requested.end_offset is not None:
        end = min(end, requested.end_offset)
    segments = [one for one in log.segments if one.base_offset < end and one.end_offset > start]
    if start >= end or not segments:
        return None
    maps = [None if one.is_tiered or one.is_active else one.zones for one in segments]
    totals = [one.total for one in maps if one is not None]
    part = CompactedPart(segments[0].base_offset, segments[-1].end_offset)
    if len(totals) == len(maps):
        records = sum(one.data_records for one in totals)
        markers = sum(one.control_records for one in totals)
        if records + markers == part.end_offset - part.start_offset:
            return None
        # A zone map also counts records below the log start, so its counts don't apply to a part
        # that begins below the log start.
        if part.start_offset >= log.log_start_offset:
            part = part._replace(records=records, markers=markers)
    if (requested.start_offset, requested.end_offset) == (None, None):
        return part
    return _of_first_gap(log, start, end, part)


def _of_first_gap(
    log: "LogView", start: int, end: int, part: CompactedPart
) -> CompactedPart | None:
    """Return the part, with the gap at `start` if there is one; None if no record is missing."""
    expected, has_gap = start, False
    try:
        for offset, is_marker in islice(_offsets_from(log, start), _READ_MAX):
            has_gap = has_gap or offset > expected == start
            if has_gap and not is_marker:
                return part._replace(start_offset=start, next_offset=offset)
            if offset != expected and not has_gap:
                break
            expected = offset + 1
            if expected >= end and not has_gap:
                return None
    except (TidelogError, OSError):
        return part  # the read itself reports damage
    return part


def _offsets_from(log: "LogView", start: int) -> Iterator[tuple[int, bool]]:
    """Yield offsets of records and markers from `start` on, each with a flag for markers."""
    for part in log.slices(start, log.log_end_offset):
        for position, batch in part.batches():
            for record in checked_records(part.segment, position, batch):
                if record.offset >= start:
                    yield record.offset, batch.is_control


def _begins_after(log: "LogView", start_ms: int | None, cleaned_end: int, clock: ClockName) -> bool:
    """Return whether `start_ms` is after all times of the segments below `cleaned_end`."""
    if start_ms is None:
        return False
    if clock is ClockName.APPEND:
        latest_ms = log.appended_by_ms(cleaned_end - 1)
        return latest_ms is not None and start_ms > latest_ms
    largest = (one.largest_timestamp for one in log.segments if one.base_offset < cleaned_end)
    return start_ms > max(largest, default=NO_TIMESTAMP)
