"""Reads in order of time, and reads of the last records, compared with a sort of all records.

Partitions have records in any order of times, records without a time, gaps that compaction left,
and control batches. Retention may have deleted the first records.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidelog.record.record import Record
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.scan.time_order import TimeOrder, clipped, offset_from_end
from tidelog.types import NO_TIMESTAMP, ClockName, TimestampType, TopicPartition

Row = tuple[int, int, int | None]  # offset, timestamp, append time


@dataclass
class Memory:
    """Partitions in memory, read like a source; counts the read rows."""

    partitions: dict[TopicPartition, list[Row]]
    clock: ClockName
    rows_read: int = 0
    most_at_once: int = 0

    def ms_of(self, row: Row) -> int | None:
        ms = row[1] if self.clock is ClockName.RECORD else row[2]
        return None if ms == NO_TIMESTAMP else ms

    def read(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> Iterator[tuple[Record, int | None]]:
        start, end = wanted.start_offset, wanted.end_offset
        assert start is not None
        assert end is not None
        for row in self.partitions[name]:
            if not start <= row[0] < end:
                continue
            self.rows_read += 1
            ms = self.ms_of(row)
            if wanted.times is not None:
                if ms is None:
                    stats.without_time += 1
                    continue
                if not wanted.times[0] <= ms < wanted.times[1]:
                    continue
            yield record_of(row), row[2]

    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        for row in self.partitions[name]:
            time = self.ms_of(row)
            if time is not None and time >= ms:
                return row[0]
        return None

    def order(self, wanted: RequestedRange) -> TimeOrder:
        bounds = {name: bounds_of(rows) for name, rows in self.partitions.items()}
        ranges = clipped(dict.fromkeys(self.partitions, wanted), bounds)
        return TimeOrder(read=self.read, first_at=self.first_at, ranges=ranges, clock=self.clock)

    def model(self, wanted: RequestedRange) -> list[tuple[int, int, int]]:
        """Return (time, partition, offset) of each record in the range, sorted."""
        low, high = wanted.times or (0, 1 << 62)
        first = wanted.start_offset or 0
        end = 1 << 62 if wanted.end_offset is None else wanted.end_offset
        return sorted(
            (ms, name.partition, row[0])
            for name, rows in self.partitions.items()
            for row in rows
            if (ms := self.ms_of(row)) is not None and low <= ms < high and first <= row[0] < end
        )


def record_of(row: Row) -> Record:
    return Record(
        offset=row[0],
        timestamp=row[1],
        timestamp_type=TimestampType.CREATE_TIME,
        key=None,
        value=b"%d" % row[0],
        headers=(),
        create_timestamp=row[1],
    )


def bounds_of(rows: list[Row]) -> tuple[int, int]:
    return (rows[0][0], rows[-1][0] + 3) if rows else (5, 5)  # 3 control records end the log


@st.composite
def partitions(draw: st.DrawFn) -> dict[TopicPartition, list[Row]]:
    return {TopicPartition("t", number): draw(rows()) for number in range(draw(st.integers(1, 4)))}


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Draw rows with gaps in offsets. Append times never decrease; timestamps have no order."""
    offset, append_ms, made = draw(st.integers(0, 50)), 0, []
    for _ in range(draw(st.integers(0, 150))):
        append_ms += draw(st.integers(0, 3))
        known = draw(st.sampled_from([True, True, True, False]))
        record_ms = draw(st.one_of(st.integers(0, 60), st.just(NO_TIMESTAMP)))
        made.append((offset, record_ms, append_ms if known else None))
        offset += draw(st.sampled_from([1, 1, 1, 2, 90]))
    return made


wants = st.builds(
    RequestedRange,
    start_offset=st.none() | st.integers(0, 200),
    end_offset=st.none() | st.integers(0, 500),
    start_ms=st.none() | st.integers(0, 40),
    end_ms=st.none() | st.integers(20, 80),
)


@given(partitions(), st.sampled_from(ClockName), wants, st.integers(0, 40))
def test_the_last_records_are_the_end_of_the_sorted_ones(
    logs: dict[TopicPartition, list[Row]], clock: ClockName, wanted: RequestedRange, count: int
) -> None:
    memory = Memory(logs, clock)
    answer = [one.order_key for one in memory.order(wanted).last(count)]
    model = memory.model(wanted)
    assert answer == model[max(len(model) - count, 0) :]


@given(
    partitions(),
    st.sampled_from(ClockName),
    wants,
    st.none() | st.integers(0, 60),
    st.integers(1, 30),
)
def test_order_by_time_is_exact_in_pages_of_any_size(
    logs: dict[TopicPartition, list[Row]],
    clock: ClockName,
    wanted: RequestedRange,
    limit: int | None,
    page: int,
) -> None:
    memory = Memory(logs, clock)
    order, model = memory.order(wanted), memory.model(wanted)
    answer = [one.order_key for one in order.first(limit, page=page)]
    assert answer == model[:limit]
    if limit:
        later = model[limit:]
        assert order.has_more in (bool(later), None)
        assert order.is_tied == bool(later and later[0][0] == answer[-1][0])


@given(partitions(), st.sampled_from(ClockName))
def test_one_page_counts_the_records_without_a_time(
    logs: dict[TopicPartition, list[Row]], clock: ClockName
) -> None:
    memory = Memory(logs, clock)
    order = memory.order(RequestedRange())
    list(order.first())
    untimed = [row for rows in logs.values() for row in rows if memory.ms_of(row) is None]
    assert order.stats.without_time == len(untimed)


@given(rows(), st.integers(1, 200))
def test_an_offset_from_the_end_counts_records(rows: list[Row], count: int) -> None:
    name = TopicPartition("t", 0)
    memory = Memory({name: rows}, ClockName.RECORD)
    offset = offset_from_end(memory.read, name, bounds_of(rows), count)
    assert offset == (rows[-count][0] if len(rows) >= count else bounds_of(rows)[0])
    assert sum(row[0] >= offset for row in rows) == min(count, len(rows))


def test_the_last_records_of_a_log_in_order_are_read_from_its_end() -> None:
    logs: dict[TopicPartition, list[Row]] = {
        TopicPartition("t", number): [(at, at, at) for at in range(100_000)] for number in range(3)
    }
    memory = Memory(logs, ClockName.RECORD)
    read: list[RequestedRange] = []

    def reading(
        name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> Iterator[tuple[Record, int | None]]:
        read.append(wanted)
        return memory.read(name, wanted, stats)

    bounds = dict.fromkeys(logs, (0, 100000))
    ranges = clipped(dict.fromkeys(logs, RequestedRange()), bounds)
    order = TimeOrder(read=reading, first_at=memory.first_at, ranges=ranges, clock=ClockName.RECORD)
    assert [one.offset for one in order.last(3)] == [99_999] * 3
    windows = [(one.start_offset or 0, one.end_offset or 0) for one in read if one.times is None]
    assert sum(end - start for start, end in windows) <= 3 * 64
    # All other reads search for records whose time is 99,999 or later, so they return none of the
    # older records.
    assert all(one.start_ms == 99_999 for one in read if one.times is not None)
