"""Model of a log, which is a list that every lookup scans from end to end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.config import RetentionClock
from tidelog.types import ClockName

UNKNOWN = -1


@dataclass(slots=True)
class Entry:
    """One record: its timestamp for consumers, and its append time, -1 if unknown."""

    offset: int
    timestamp: int
    append_ms: int
    value: bytes

    def time(self, clock: ClockName) -> int:
        """Return the record's time on a clock in ms, negative if it has none."""
        return self.timestamp if clock is ClockName.RECORD else self.append_ms


@dataclass(frozen=True, slots=True)
class Span:
    """One segment.

    Attributes:
        base: Its base offset.
        end: Its end offset, exclusive.
        size_bytes: Size of its log file.
        mtime_ms: Modification time of that file.
        fallback_ms: The time used for unknown append times.
        is_doubted: Whether rows of append times of existing batches may be lost.
    """

    base: int
    end: int
    size_bytes: int
    mtime_ms: int
    fallback_ms: int
    is_doubted: bool


@dataclass
class Model:
    """Expected content of the log, including entries below the log start that are still on disk.

    Attributes:
        durable_end: Offset below which every record survives a crash.
    """

    entries: list[Entry] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    durable_end: int = 0

    def visible(self) -> list[Entry]:
        """Return the readable records."""
        return [entry for entry in self.entries if entry.offset >= self.log_start]

    def add(self, timestamp: int, append_ms: int, value: bytes) -> None:
        """Append a record."""
        self.entries.append(Entry(self.log_end, timestamp, append_ms, value))
        self.log_end += 1

    def cut(self, end: int) -> None:
        """Remove everything from `end` on."""
        self.entries = [entry for entry in self.entries if entry.offset < end]
        self.log_end = end
        self.durable_end = min(self.durable_end, end)

    def first_at(self, target: int, clock: ClockName) -> tuple[int, int] | None:
        """Return offset and time of the first record, by offset, whose time is `target` or later.

        Returns None if there is no such record.
        """
        found = (e for e in self.visible() if e.time(clock) >= target)
        entry = next(found, None)
        return None if entry is None else (entry.offset, entry.time(clock))

    def between(self, start_ms: int, end_ms: int, clock: ClockName) -> list[tuple[int, bytes]]:
        """Return offset and value of every record with a time in [start_ms, end_ms)."""
        return [(e.offset, e.value) for e in self.visible() if start_ms <= e.time(clock) < end_ms]

    def latest(self) -> tuple[int, int] | None:
        """Return the first record with the largest timestamp: (offset, timestamp)."""
        timed = [e for e in self.visible() if e.timestamp >= 0]
        found = max(timed, key=lambda e: (e.timestamp, -e.offset), default=None)
        return None if found is None else (found.offset, found.timestamp)

    def counted(self, span: Span, clock: RetentionClock) -> tuple[int, int]:
        """Return bounds, in ms, of the time from which retention computes a segment's age.

        The lower and the upper bound are equal except in two cases. If the clock limits a record's
        time to its append time, a log without a zone map may know only an upper bound. If rows of
        append times may be lost, the bounds include the time that stands for unknown append times.
        """
        inside = [e for e in self.entries if span.base <= e.offset < span.end]
        largest = max((e.timestamp for e in inside), default=UNKNOWN)
        if clock is RetentionClock.RECORD:
            exact = largest if largest >= 0 else span.mtime_ms
            return exact, exact
        came = [e.append_ms if e.append_ms != UNKNOWN else span.fallback_ms for e in inside]
        arrival = max(came, default=span.fallback_ms)
        if clock is RetentionClock.APPEND or largest < 0:
            exact = bound = arrival
        else:
            timed = zip(inside, came, strict=True)
            exact = max(min(e.timestamp, arrived) for e, arrived in timed)
            bound = min(largest, arrival)
        if not span.is_doubted:
            return exact, bound
        return min(exact, span.fallback_ms), max(bound, span.fallback_ms)

    def expired(
        self, spans: Sequence[Span], clock: RetentionClock, retention_ms: int, now_ms: int
    ) -> tuple[int, int]:
        """Return bounds of the count of expired segments.

        Segments below the log start always count as expired.
        """
        below = 0
        while below < len(spans) - 1 and spans[below].end <= self.log_start:
            below += 1
        counts = []
        for side in (1, 0):
            going = below
            while going < len(spans):
                span = spans[going]
                is_empty = span.size_bytes == 0 and span.end == self.log_end
                age_ms = now_ms - self.counted(span, clock)[side]
                if is_empty or not 0 <= retention_ms < age_ms:
                    break
                going += 1
            counts.append(going)
        return counts[0], counts[1]

    def drop_before(self, offset: int) -> None:
        """Remove the entries before `offset`, whose files are deleted."""
        self.entries = [entry for entry in self.entries if entry.offset >= offset]
        self.log_start = max(self.log_start, offset)
