"""What a log should hold and answer: a list, scanned from end to end for every question."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.types import ClockName

UNKNOWN = -1


@dataclass(slots=True)
class Entry:
    """One record: its timestamp as a consumer sees it, when it was appended, -1 where unknown."""

    offset: int
    timestamp: int
    append_ms: int
    value: bytes

    def time(self, clock: ClockName) -> int:
        """Its time on a clock in ms, negative where it has none."""
        return self.timestamp if clock is ClockName.RECORD else self.append_ms


@dataclass(frozen=True, slots=True)
class Span:
    """One segment: its offsets [base, end), its bytes, when its file was last changed."""

    base: int
    end: int
    size_bytes: int
    mtime_ms: int


@dataclass
class Model:
    """What the log should hold; entries below the log start are those still on disk.

    Attributes:
        durable_end: Offset below which no crash may take anything.
    """

    entries: list[Entry] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    durable_end: int = 0

    def visible(self) -> list[Entry]:
        """The records that may be read."""
        return [entry for entry in self.entries if entry.offset >= self.log_start]

    def add(self, timestamp: int, append_ms: int, value: bytes) -> None:
        """A record behind the last one."""
        self.entries.append(Entry(self.log_end, timestamp, append_ms, value))
        self.log_end += 1

    def cut(self, end: int) -> None:
        """Nothing is left from `end` on."""
        self.entries = [entry for entry in self.entries if entry.offset < end]
        self.log_end = end
        self.durable_end = min(self.durable_end, end)

    def first_at(self, target: int, clock: ClockName) -> tuple[int, int] | None:
        """The earliest record at or after a time: (offset, its time)."""
        found = (e for e in self.visible() if e.time(clock) >= target)
        entry = next(found, None)
        return None if entry is None else (entry.offset, entry.time(clock))

    def between(self, start_ms: int, end_ms: int, clock: ClockName) -> list[tuple[int, bytes]]:
        """Offset and value of every record with a time in [start_ms, end_ms)."""
        return [(e.offset, e.value) for e in self.visible() if start_ms <= e.time(clock) < end_ms]

    def latest(self) -> tuple[int, int] | None:
        """The first record with the largest timestamp: (offset, timestamp)."""
        timed = [e for e in self.visible() if e.timestamp >= 0]
        found = max(timed, key=lambda e: (e.timestamp, -e.offset), default=None)
        return None if found is None else (found.offset, found.timestamp)

    def largest(self, span: Span) -> int:
        """What retention counts a segment's age from, in ms: Kafka's rule."""
        times = [e.timestamp for e in self.entries if span.base <= e.offset < span.end]
        largest = max(times, default=UNKNOWN)
        return largest if largest >= 0 else span.mtime_ms

    def expired(self, spans: Sequence[Span], retention_ms: int, now_ms: int) -> int:
        """How many of the oldest segments go: below the log start, then by age."""
        going = 0
        while going < len(spans) - 1 and spans[going].end <= self.log_start:
            going += 1
        while going < len(spans) and self._is_old(spans[going], retention_ms, now_ms):
            going += 1
        return going

    def _is_old(self, span: Span, retention_ms: int, now_ms: int) -> bool:
        is_empty = span.size_bytes == 0 and span.end == self.log_end
        return not is_empty and 0 <= retention_ms < now_ms - self.largest(span)

    def drop_before(self, offset: int) -> None:
        """The files of everything before `offset` have gone."""
        self.entries = [entry for entry in self.entries if entry.offset >= offset]
        self.log_start = max(self.log_start, offset)
