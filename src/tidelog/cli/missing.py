"""Prints notes on records of a requested range that are no longer in the log."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.amounts import plural
from tidelog.cli.surroundings import Surroundings
from tidelog.errors import TidelogError
from tidelog.timespec import zoned_text
from tidelog.types import ClockName, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.scan.compacted import CompactedPart


# Maximum number of partitions that a note names.
_NAMED_MAX: Final = 3


class Limits(NamedTuple):
    """Limits [start, end) of a requested range of times (ms) and of offsets; None for no limit.

    Importing this class does not import the scan planner, unlike `tidelog.scan.RequestedRange`.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None


def note_missing(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    ranges: Mapping[TopicPartition, Limits],
    clock: ClockName,
    zone: str | None,
) -> None:
    """Print the notes of `missing_notes`."""
    for note in missing_notes(directory, ranges, clock, zone):
        surroundings.note(note)


def missing_notes(
    directory: "Directory | RemoteDirectory",
    ranges: Mapping[TopicPartition, Limits],
    clock: ClockName,
    zone: str | None,
) -> Iterator[str]:
    """Yield notes if records of the requested ranges may have been removed from the log.

    A range without any limit means the current log, so none of its records is missing.
    """
    bounded = {name: one for name, one in ranges.items() if any(side is not None for side in one)}
    if not bounded:
        return
    starts = directory.beginning_offsets(list(bounded))
    yield from _deleted_note(directory, bounded, starts, clock, zone)
    topics, unreadable = _compacted_topics(directory, {name.topic for name in bounded})
    yield from _compacted_note(_compacted_parts(directory, bounded, topics, clock))
    if unreadable:
        yield (
            "whether compaction removed records of this range is unknown, because the settings of"
            f" {', '.join(unreadable)} can't be read"
        )


def _deleted_note(
    directory: "Directory | RemoteDirectory",
    ranges: Mapping[TopicPartition, Limits],
    starts: Mapping[TopicPartition, int],
    clock: ClockName,
    zone: str | None,
) -> Iterator[str]:
    """Yield a note on the partitions whose range begins before the first remaining record."""
    deleted = {name: start for name, start in starts.items() if start > 0}
    if not deleted:
        return
    firsts: Mapping[TopicPartition, OffsetAndTimestamp | None]
    try:
        matches = directory.search_times(dict.fromkeys(deleted, 0), clock)
        firsts = {name: match.hit for name, match in matches.items()}
    except TidelogError:
        firsts = dict.fromkeys(deleted)  # then the note is printed without times
    cut = [
        f"{name} starts at offset {start}{_time_text(start, firsts[name], clock, zone)}"
        for name, start in deleted.items()
        if _begins_before(ranges[name], start, firsts[name])
    ]
    if cut:
        # `why` reads the files that a source needs to know what was compacted.
        has_files, topic = directory.source.knows_compaction, next(iter(deleted)).topic
        which = f" (`tidelog why {topic}` shows which)" if has_files else ""
        yield f"earlier offsets were deleted by retention or delete-records{which}: {_listed(cut)}"


def _compacted_topics(
    directory: "Directory | RemoteDirectory", topics: set[str]
) -> tuple[set[str], list[str]]:
    """Return the topics that may have been compacted, and the topics whose settings are unknown.

    If the source doesn't report which partitions were compacted, the topic's setting
    `cleanup.policy` decides.
    """
    from tidelog.config import CLEANUP_COMPACT

    if directory.source.knows_compaction:
        return topics, []
    settings = {topic: directory.topic(topic).settings for topic in sorted(topics)}
    compacted = {
        topic
        for topic, values in settings.items()
        if CLEANUP_COMPACT in values.get("cleanup.policy", "")
    }
    return compacted, [topic for topic, values in settings.items() if not values]


def _compacted_parts(
    directory: "Directory | RemoteDirectory",
    ranges: Mapping[TopicPartition, Limits],
    topics: set[str],
    clock: ClockName,
) -> "Mapping[TopicPartition, CompactedPart]":
    """Return the parts of the topics' ranges from which compaction may have removed records."""
    from tidelog.scan.split import RequestedRange

    requested = {
        name: RequestedRange(**limits._asdict())
        for name, limits in ranges.items()
        if name.topic in topics
    }
    return directory.source.compacted_parts(requested, clock) if requested else {}


def _compacted_note(parts: "Mapping[TopicPartition, CompactedPart]") -> Iterator[str]:
    """Yield a note on the partitions from which compaction may have removed records of a range."""
    if not parts:
        return
    is_certain = all(part.next_offset is not None for part in parts.values())
    texts = _listed(_part_text(name, part) for name, part in parts.items())
    may_have = "" if is_certain else "may have "
    yield f"compaction {may_have}removed records of this range: {texts}"


def _part_text(name: TopicPartition, part: "CompactedPart") -> str:
    if part.next_offset is not None:
        return (
            f"{name} has no records from offset {part.start_offset} up to its next record at"
            f" offset {part.next_offset}"
        )
    if part.records is None:
        return f"{name} below offset {part.end_offset}"
    left = plural(part.records, "record")
    if part.markers:
        left += f" and {plural(part.markers, 'transaction marker')}"
    return f"{name} has {left} left of {plural(part.end_offset - part.start_offset, 'offset')}"


def _begins_before(requested: Limits, log_start: int, first: OffsetAndTimestamp | None) -> bool:
    """Return whether deleted records may have been in a range.

    Args:
        requested: The range.
        log_start: First remaining offset.
        first: First remaining record with a time on the clock; None if unknown.
    """
    first_ms = None if first is None else first.timestamp
    start_ms, end_ms = requested.start_ms, requested.end_ms
    has_offsets = (requested.start_offset or 0) < log_start
    # Deleted records may have had the same time as the first remaining record, so a range that
    # starts at this time may have lost records, too.
    has_times = first_ms is None or start_ms is None or start_ms <= first_ms
    # A range without a start begins at the log start, so none of its records were deleted, unless
    # the range ends at or before the log start.
    is_limited = (
        requested.start_offset is not None
        or start_ms is not None
        or (requested.end_offset is not None and requested.end_offset <= log_start)
        or (end_ms is not None and first_ms is not None and end_ms <= first_ms)
    )
    return has_offsets and has_times and is_limited


def _time_text(
    start: int, first: OffsetAndTimestamp | None, clock: ClockName, zone: str | None
) -> str:
    """Return words for the time of the record at the log start; empty if the time is unknown."""
    if first is None or first.offset != start:
        return ""
    return f", whose {clock.time_name} is {zoned_text(first.timestamp, zone)}"


def _listed(texts: Iterable[str]) -> str:
    """Return texts about partitions as one list; only the first `_NAMED_MAX` texts are included."""
    every = list(texts)
    more = len(every) - _NAMED_MAX
    rest = [f"and {plural(more, 'more partition')}"] if more > 0 else []
    return "; ".join([*every[:_NAMED_MAX], *rest])
