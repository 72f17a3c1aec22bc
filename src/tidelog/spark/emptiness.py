"""Why a range of a partition holds nothing: nothing there, deleted already, or not to be seen yet.

Pure: judges by what the backend knows of the log. Said where a plan leaves nothing to read; what
only reading shows (all of it compacted away, or aborted) the plan can't know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tidelog.scan.bounds import Bounds
from tidelog.scan.split import Wanted
from tidelog.types import LATEST_OFFSET, TopicPartition


class WhyEmpty(StrEnum):
    """The kinds of reasons.

    `NEVER_WRITTEN`: no record was ever there. `DELETED`: the log begins behind the range, by
    retention, DeleteRecords or compaction. `NOT_THERE`: the log has no record in the range.
    `NOT_VISIBLE`: records are there, but a transaction is open or they are not flushed.
    `NOT_WANTED`: filters or options leave nothing of it.
    """

    NEVER_WRITTEN = "never written"
    DELETED = "deleted"
    NOT_THERE = "not there"
    NOT_VISIBLE = "not visible"
    NOT_WANTED = "not wanted"


@dataclass(frozen=True, slots=True)
class EmptyRange:
    """A partition that a read finds nothing in.

    Attributes:
        name: The partition.
        start: First offset that would have been read.
        end: Offset behind the last one.
        why: The kind of reason.
        reason: The same in words, with the log's own offsets.
    """

    name: TopicPartition
    start: int
    end: int
    why: WhyEmpty
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: nothing to read in offsets {self.start} to {self.end}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Known facts of a partition.

    Attributes:
        start: Log start offset.
        end: Log end offset (of a broker, the high watermark).
        visible: Offset behind what may be read, by isolation and `readUntil`.
        first_ms: Time of the first record that has one, on the clock asked; None where none has.
        last_ms: The largest record time, None where unknown.
    """

    start: int
    end: int
    visible: int
    first_ms: int | None = None
    last_ms: int | None = None


def in_ms(time_ms: int) -> str:
    """A time as a number."""
    return f"{time_ms} ms"


def explain(
    name: TopicPartition,
    wanted: Wanted,
    bounds: Bounds,
    facts: LogFacts,
    *,
    write: Callable[[int], str] = in_ms,
) -> EmptyRange:
    """Why nothing is read of a partition.

    Args:
        name: The partition.
        wanted: What was asked for.
        bounds: What the log made of it.
        facts: What is known of the log.
        write: A time in ms as text.
    """
    why, reason = _of_log(facts) or _of_offsets(wanted, facts) or _of_times(wanted, facts, write)
    return EmptyRange(name, bounds.start, bounds.end, why, reason)


def may_be_gone(wanted: Wanted, bounds: Bounds) -> bool:
    """Whether a range of time ends somewhere, and the log has lost what it began with."""
    has_end = wanted.end_ms is not None or wanted.filter_ms is not None
    return has_end and bounds.start > 0


def is_doubtful(found: EmptyRange) -> bool:
    """Whether what was explained as empty, though something is read, is so but for stragglers."""
    return found.why is WhyEmpty.DELETED


def _of_log(facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    """The reason where the whole log is empty, or nothing of it may be seen."""
    if facts.end == 0:
        return WhyEmpty.NEVER_WRITTEN, "nothing was ever written to this partition"
    if facts.start >= facts.end:
        reason = (
            f"all records below offset {facts.end} were deleted (retention, DeleteRecords or"
            f" compaction); the log starts and ends at {facts.start}"
        )
        return WhyEmpty.DELETED, reason
    if facts.visible <= facts.start:
        return WhyEmpty.NOT_VISIBLE, _hidden(facts)
    return None


def _hidden(facts: LogFacts) -> str:
    return (
        f"the log ends at {facts.end}, but from {facts.visible} on it may not be read yet (a"
        f" transaction is open there, or it is not flushed)"
    )


def _of_offsets(wanted: Wanted, facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    """The reason where offsets that were given decide."""
    start, end = wanted.start_offset, wanted.end_offset
    if end is not None and 0 <= end <= facts.start and (start or 0) < end:
        return WhyEmpty.DELETED, f"deleted already: the log starts at {facts.start}"
    if start is not None and start >= facts.visible and facts.visible < facts.end:
        return WhyEmpty.NOT_VISIBLE, _hidden(facts)
    if start is not None and (start == LATEST_OFFSET or start >= facts.end):
        return WhyEmpty.NOT_THERE, f"the log ends at {facts.end}"
    if start is not None and end is not None and 0 <= end <= start:
        return WhyEmpty.NOT_WANTED, f"offsets {start} to {end} are none"
    return _of_filters(wanted, facts)


def _of_filters(wanted: Wanted, facts: LogFacts) -> tuple[WhyEmpty, str] | None:
    least, limit = wanted.least_offset or 0, wanted.limit_offset
    if limit is not None and limit <= max(facts.start, least):
        return WhyEmpty.NOT_WANTED, f"filters and readUntil leave offsets {least} to {limit}"
    if least >= facts.visible:
        return WhyEmpty.NOT_WANTED, f"filters leave offsets from {least} on"
    return None


def _of_times(wanted: Wanted, facts: LogFacts, write: Callable[[int], str]) -> tuple[WhyEmpty, str]:
    """The reason where times decide."""
    first, last = wanted.filter_ms or (None, None)
    start_ms = max((ms for ms in (wanted.start_ms, first) if ms is not None), default=None)
    end_ms = min((ms for ms in (wanted.end_ms, last) if ms is not None), default=None)
    why, reason = WhyEmpty.NOT_THERE, "no record has a time in the range"
    if facts.first_ms is None:
        reason = "no record of the log has a time on this clock"
    elif end_ms is not None and end_ms <= facts.first_ms and facts.start > 0:
        why = WhyEmpty.DELETED
        reason = (
            f"deleted already, if it ever was there: the log starts at offset {facts.start} with a"
            f" time of {write(facts.first_ms)}, and the range ends at {write(end_ms)}"
        )
    elif end_ms is not None and end_ms <= facts.first_ms:
        reason = (
            f"the log starts with a time of {write(facts.first_ms)}, and the range ends at"
            f" {write(end_ms)}"
        )
    elif start_ms is not None and facts.last_ms is not None and start_ms > facts.last_ms:
        reason = (
            f"the latest time in the log is {write(facts.last_ms)}, and the range starts at"
            f" {write(start_ms)}"
        )
    return why, reason
