"""Resolves a requested range of a partition to offsets of the log, and reports lost offsets.

Reads records only to look up times. Source: KIP-79 for the offsets of times.
"""

from enum import StrEnum
from typing import Protocol

from tidelog.errors import InvalidRequest, LostOffsets, OffsetsGone
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.split import RequestedRange
from tidelog.storage.log.log_reader import LogView, unknown_times_note
from tidelog.timespec import time_text
from tidelog.types import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TopicPartition,
)


class PartitionView(Protocol):
    """Offsets of a partition: a `LogView`, or offsets that brokers reported."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        ...

    @property
    def log_start_offset(self) -> int:
        """First readable offset, inclusive."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Offset after the last record."""
        ...

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Return the offset after the last record that a reader with that isolation level sees."""
        ...

    def offset_for_time(
        self, timestamp_ms: int, *, clock: ClockName, steps_over_losses: bool = False
    ) -> OffsetAndTimestamp | None:
        """Return offset and time of the first record at `timestamp_ms` or later, or None.

        Args:
            timestamp_ms: Time in ms, 0 or more.
            clock: Clock of that time.
            steps_over_losses: Whether the search skips lost offsets and continues after them.

        Raises:
            OffsetsGone: Offsets before the match are lost, and `steps_over_losses` is false.
        """
        ...


class TimeMode(StrEnum):
    """Meaning of a time bound.

    `EXACT`: only records whose time is in the range are read, wherever they are in the log.
    `POSITIONS`: a time bound stands for the offset of the first record at that time or later. All
        records from the start offset (inclusive) to the end offset (exclusive) are read, even
        records whose time is outside the range. Spark's Kafka connector has this rule.
    """

    EXACT = "exact"
    POSITIONS = "positions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Parameters of a plan that are the same for every partition.

    Attributes:
        clock: Clock of the times.
        times: How time bounds select records; see `TimeMode`.
        isolation: Whether records of open and aborted transactions are read.
        needs_match: Whether it is an error if no record is at or after the start time.
    """

    clock: ClockName = ClockName.RECORD
    times: TimeMode = TimeMode.EXACT
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    needs_match: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """Result of `resolve`: offsets inside the log, and the times by which records are filtered.

    Offsets are [start, end). The time range is [a, b) in ms, None for all records. `lost` has the
    offsets that were requested but are not in the log. For `timestamps` see `RequestedRange`.
    """

    start: int
    end: int
    time_range: tuple[int, int] | None
    lost: tuple[LostOffsets, ...] = ()
    timestamps: tuple[int, int] | None = None


def resolve(
    reader: PartitionView, requested_range: RequestedRange, question: Question, *, slack_ms: int = 0
) -> Bounds:
    """Resolve a requested range to offsets inside the log, and report lost offsets.

    Args:
        reader: The partition.
        requested_range: The requested offsets and times.
        question: Clock and meaning of the times, isolation, and whether a match is required.
        slack_ms: Maximum number of ms by which a record may have been appended later than its
            stored append time. With `EXACT`, a range of append times begins earlier by this number,
            so that no record is missed.

    Raises:
        InvalidRequest: Offsets or times are invalid; the end is before the start; or a match is
            required, but there is none. The message names the partition.
    """
    _check(reader.topic_partition, requested_range)
    visible = reader.end_offset(question.isolation)
    start, end, lost = _offsets(reader, requested_range, visible)
    time_range = requested_range.times
    if time_range is not None:
        if question.times is TimeMode.POSITIONS:
            needs_match = question.needs_match
            loss: list[LostOffsets] = []
            first = _position(reader, requested_range.start_ms, question.clock, loss, needs_match)
            last = _position(reader, requested_range.end_ms, question.clock, [])
            # The search for the end adds no lost offsets here: the read itself reports lost offsets
            # between start and end.
            lost += [one for one in loss if one.end > start]
            start = start if first is None else max(start, first)
            end = end if last is None else min(end, last)
            time_range = None
        else:
            if question.needs_match:
                _position(reader, requested_range.start_ms, question.clock, [], needs_match=True)
            if question.clock is ClockName.APPEND and requested_range.start_ms is not None:
                time_range = (requested_range.start_ms - slack_ms, time_range[1])
    if requested_range.least_offset is not None:
        start = max(start, requested_range.least_offset)
    if requested_range.limit_offset is not None:
        end = min(end, requested_range.limit_offset)
    time_range = overlap(time_range, requested_range.filter_ms)
    return Bounds(start, max(start, end), time_range, tuple(lost), requested_range.timestamps)


def append_time_notes(
    reader: LogView, requested_range: RequestedRange, question: Question, start: int
) -> tuple[str, ...]:
    """Return one note if records before the start offset of a time range have no append time.

    Such records may belong to the time range. The result is empty if there are no such records. It
    is also empty if the clock is the record clock, or the mode is not `TimeMode.POSITIONS`.
    """
    is_position = question.times is TimeMode.POSITIONS and requested_range.start_ms is not None
    if not is_position or question.clock is ClockName.RECORD:
        return ()
    count = reader.without_append_time(start)
    return (unknown_times_note(reader.topic_partition, count),) if count else ()


def overlap(
    times: tuple[int, int] | None, others: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the times in both ranges; None stands for all times."""
    if times is None or others is None:
        return others if times is None else times
    return max(times[0], others[0]), min(times[1], others[1])


def _check(partition: TopicPartition, requested_range: RequestedRange) -> None:
    for name, offset in (
        ("start", requested_range.start_offset),
        ("end", requested_range.end_offset),
    ):
        if offset is not None and offset < EARLIEST_OFFSET:
            raise InvalidRequest(
                f"{partition}: the {name} offset must be 0 or more, -2 (earliest) or -1 (latest),"
                f" got {offset}"
            )
    if requested_range.end_offset == EARLIEST_OFFSET:
        raise InvalidRequest(f"{partition}: the end offset can't be -2 (earliest)")
    pairs = (
        ("offset", requested_range.start_offset, requested_range.end_offset),
        ("time", requested_range.start_ms, requested_range.end_ms),
    )
    for what, first, last in pairs:
        if first is not None and last is not None and first > last >= 0:
            start, end = f"{first}", f"{last}"
            if what == "time":
                start, end = f"{time_text(first)} UTC", f"{time_text(last)} UTC"
            raise InvalidRequest(
                f"{partition}: the {what} range starts at {start}, after its end, {end}"
            )


def _offsets(
    reader: PartitionView, requested_range: RequestedRange, visible: int
) -> tuple[int, int, list[LostOffsets]]:
    """Return start and end inside the log, and the requested offsets outside of it."""
    log_start, log_end = reader.log_start_offset, reader.log_end_offset
    start = _start(requested_range.start_offset, log_start, visible)
    end = (
        visible
        if requested_range.end_offset in (None, LATEST_OFFSET)
        else requested_range.end_offset
    )
    assert end is not None
    lost = []
    if start < log_start and start < end:
        reason = f"deleted, the log starts at offset {log_start}"
        lost.append(_lost(reader, start, min(log_start, end), reason))
    if max(start, end) > log_end:
        reason = f"not in the log, which ends at offset {log_end}"
        first, last = (start, end) if start < end else (log_end, start)
        lost.append(_lost(reader, max(first, log_end), last, reason))
    return min(max(start, log_start), log_end), min(end, visible), lost


def _start(offset: int | None, log_start: int, visible: int) -> int:
    if offset is None or offset == EARLIEST_OFFSET:
        return log_start
    return visible if offset == LATEST_OFFSET else offset


def _lost(reader: PartitionView, start: int, end: int, reason: str) -> LostOffsets:
    name = reader.topic_partition
    return LostOffsets(name.topic, name.partition, start, end, reason)


def _position(
    reader: PartitionView,
    timestamp_ms: int | None,
    clock: ClockName,
    lost: list[LostOffsets],
    needs_match: bool = False,
) -> int | None:
    """Return the offset of the first record at a time or later; the log end if there is none.

    Return None if no time is given.

    If offsets before the result are lost, and their records may have had that time or a later time,
    these offsets are added to `lost`.
    """
    if timestamp_ms is None:
        return None
    if timestamp_ms < 0:
        raise InvalidRequest(f"{reader.topic_partition}: time {timestamp_ms} is negative")
    try:
        match = reader.offset_for_time(timestamp_ms, clock=clock)
    except OffsetsGone as error:
        lost += error.lost
        match = reader.offset_for_time(timestamp_ms, clock=clock, steps_over_losses=True)
    if match is None and needs_match:
        raise InvalidRequest(
            f"{reader.topic_partition}: no record at {time_text(timestamp_ms)} UTC or later; set"
            " startingOffsetsByTimestampStrategy=latest to read nothing from such partitions"
        )
    return reader.log_end_offset if match is None else match.offset
