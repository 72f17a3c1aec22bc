"""`tidelog read`: prints records of a topic by offset and by time, once or as they arrive.

Reads a directory or a running cluster. `--table` is in `keyed`.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import click

from tidelog.cli import times
from tidelog.cli.options import (
    examples,
    refuse_typed,
    with_options,
)
from tidelog.cli.output import ROWS_AT_ONCE, Cell, Writer
from tidelog.cli.places import open_topics
from tidelog.cli.records import ReadOptions, RowMaker, chosen, say_untimed, write_arrow
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.directory import Directory
from tidelog.record.record import Record, stamp_of
from tidelog.remote.cluster import as_record, decoded
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.index_proof import time_floor
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.slices import (
    AbortedFilter,
    LogSlice,
    checked_records,
    is_hidden,
    slice_segment,
)
from tidelog.types import NO_TIMESTAMP, ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.remote.remote_directory import RemoteDirectory


# Interval of a follower's checks: appends of another process can't notify it.
FOLLOW_SECONDS: Final = 0.2

_POLL_S: Final = 0.2

_OFFSETS: Final = re.compile(r"(\d{1,19})?\.\.(\d{1,19})?", re.ASCII)


@click.command(
    "read",
    epilog=examples(
        "tidelog read flights --during '2013-02-08 America/New_York'",
        "tidelog read flights --from -1h --clock append --follow",
        "tidelog read flights --from -1h --follow --bootstrap broker:9092",
        "tidelog read flights --offset 100..110 --partition 2 -o json",
        "tidelog read flights --from 2013-02-08..+1d --zone UTC -o arrow > flights.arrow",
        "tidelog read flights --table --at '2013-02-08 12:00 America/New_York'",
    ),
)
@with_options(ReadOptions)
def read(surroundings: Surroundings, options: ReadOptions) -> None:
    """Print records by time or offset.

    Exactly those in the range, partition by partition, in the order of their offsets. With --table
    the record that stands for each key, of committed records up to and with a time.
    """
    if options.is_table:
        from tidelog.cli import keyed

        refuse_typed(("isolation",), "--table shows committed records alone")
        keyed.read_table(surroundings, options)
        return
    refuse_typed(("at", "inexact"), "it goes with --table")
    wanted = _wanted(surroundings, options)
    with open_topics(surroundings, options.place) as directory:
        partitions = chosen(options.topic, directory.partitions(options.topic), options.partition)
        if options.kind.is_columns:
            count = write_arrow(surroundings, directory.source, partitions, wanted, options)
            say_untimed(surroundings, count, options.clock)
            return
        source: _Source
        if isinstance(directory, Directory):
            logs = [directory.partition(p.topic, p.partition) for p in partitions]
            source = _LogSource(surroundings, logs, wanted, options)
        else:
            source = _ClusterSource(surroundings, directory, partitions, wanted, options)
        _Reading(surroundings, source, options).run()


def _wanted(surroundings: Surroundings, options: ReadOptions) -> RequestedRange:
    if options.follow and (options.end or options.during) is not None:
        raise UsageProblem("--follow has no end; leave --to and --during out")
    if options.follow and options.kind.is_columns:
        raise UsageProblem("--follow writes table, json or csv")
    start_ms, end_ms = times.read_bounds(
        surroundings, options.start, options.end, options.zone, during=options.during
    )
    if options.follow and end_ms is not None:
        raise UsageProblem(f"--from {options.start}: --follow has no end; leave the end out")
    start, end = _offsets(options.offset)
    return RequestedRange(start_ms=start_ms, end_ms=end_ms, start_offset=start, end_offset=end)


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A..B` to offsets [A, B); a single number means that offset."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), int(text) + 1
    match = _OFFSETS.fullmatch(text)
    if match is None:
        raise UsageProblem(f"--offset {text!r}: write A..B (B is not included), A.., ..B or A")
    start, end = (None if side is None else int(side) for side in match.groups())
    if start is not None and end is not None and start > end:
        raise UsageProblem(f"--offset {text}: the end is before the start")
    return start, end


_Timed: TypeAlias = tuple[Record, int | None]
_Parts: TypeAlias = "Generator[tuple[TopicPartition, Iterator[_Timed]], None, None]"


class _Source(Protocol):
    """Records of a topic in a directory or a cluster, chosen by the options."""

    def there(self) -> _Parts:
        """Yield the existing records, by partition and offset, with append times (ms)."""
        ...

    def coming(self) -> _Parts:
        """Yield later records as they are appended, up to the last requested offset."""
        ...

    def untimed(self) -> int | None:
        """Return the number of records without a time on the clock; None if unknown."""
        ...


class _Reading:
    """One run of the command."""

    def __init__(self, surroundings: Surroundings, source: _Source, options: ReadOptions) -> None:
        self._surroundings = surroundings
        self._source = source
        self._options = options
        self._left = options.limit
        self._maker = RowMaker(options)

    def run(self) -> None:
        """Write the existing records and, with `--follow`, those that are appended later."""
        out = self._maker.writer(self._surroundings)
        try:
            self._write(out, self._source.there())
            if self._options.follow:
                with closing(self._source.coming()) as parts:
                    self._write(out, parts)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of `--follow`; otherwise the output is incomplete.
            if not self._options.follow:
                raise
        out.close()
        say_untimed(self._surroundings, self._source.untimed(), self._options.clock)

    def _write(self, out: Writer, parts: _Parts) -> None:
        while self._left != 0:
            part = next(parts, None)
            if part is None:
                return
            name, records = part
            rows = (self._maker.row(name.partition, *timed) for timed in records)
            while self._write_some(out, rows):
                pass

    def _write_some(self, out: Writer, rows: Iterator[list[Cell]]) -> bool:
        """Write the next rows, even if an error follows; return whether there may be more."""
        size = ROWS_AT_ONCE if self._left is None else min(ROWS_AT_ONCE, self._left)
        chunk: list[list[Cell]] = []
        try:
            chunk.extend(islice(rows, size))
        finally:
            out.write(chunk)
        if self._left is not None:
            self._left -= len(chunk)
        return len(chunk) == size and self._left != 0


class _LogSource:
    """Source of a directory's logs."""

    def __init__(
        self,
        surroundings: Surroundings,
        logs: list[LogView],
        wanted: RequestedRange,
        options: ReadOptions,
    ) -> None:
        self._surroundings = surroundings
        self._logs = logs
        self._wanted = wanted
        self._options = options
        self._stats = ScanStats()

    def there(self) -> _Parts:
        """Yield the existing records, see `_Source`."""
        for log in self._logs:
            yield log.topic_partition, self._select(log, self._wanted)

    def coming(self) -> _Parts:
        """Yield later records, see `_Source`."""
        end, first = self._wanted.end_offset, self._wanted.start_offset or 0
        while True:
            nexts = [max(log.end_offset(self._options.isolation), first) for log in self._logs]
            if end is not None and min(nexts) >= end:
                return
            self._surroundings.wait(FOLLOW_SECONDS)
            for log, start in zip(self._logs, nexts, strict=True):
                log.refresh()
                wanted = replace(self._wanted, start_offset=start)
                yield log.topic_partition, self._select(log, wanted)

    def untimed(self) -> int | None:
        """Return the number of records without a time, see `_Source`."""
        return self._stats.without_time

    def _select(self, log: LogView, wanted: RequestedRange) -> Iterator[_Timed]:
        options = self._options
        return select(log, wanted, options.clock, options.isolation, self._stats)


class _ClusterSource:
    """Source of a topic's partitions in a cluster."""

    def __init__(
        self,
        surroundings: Surroundings,
        cluster: "RemoteDirectory",
        partitions: list[TopicPartition],
        wanted: RequestedRange,
        options: ReadOptions,
    ) -> None:
        self._surroundings = surroundings
        self._cluster = cluster
        self._partitions = partitions
        self._wanted = wanted
        self._options = options
        self._nexts: dict[TopicPartition, int] = {}
        self._stats = ScanStats()

    def there(self) -> _Parts:
        """Yield the existing records, see `_Source`."""
        cluster, wanted = self._cluster, self._wanted
        clock, level = self._options.clock, self._options.isolation
        ends = cluster.end_offsets(self._partitions, isolation=level)
        first = wanted.start_offset or 0
        self._nexts = {name: max(end, first) for name, end in ends.items()}
        plan = cluster.source.plan(
            self._partitions, wanted, clock=clock, isolation=level, columns=()
        )
        for split in plan:
            name = split.topic_partition
            end = min(split.end_offset, ends[name])
            records = cluster.source.records(name, split.start_offset, end, level)
            if clock is ClockName.APPEND and split.time_range is not None:
                # The broker reports append times: a record without one is in no time range.
                records = (timed for timed in records if timed[1] is not None)
            yield name, self._matches(records)

    def coming(self) -> _Parts:
        """Yield later records, see `_Source`."""
        from confluent_kafka import TopicPartition as Place

        client, nexts, end = self._cluster.cluster, self._nexts, self._wanted.end_offset
        isolation = self._options.isolation
        with (
            closing(client.consumer(isolation_level=isolation.name.lower())) as consumer,
            closing(self._cluster.source.append_time_lookup(isolation)) as append_times,
        ):
            places = [Place(n.topic, n.partition, at) for n, at in nexts.items()]
            with client.typed("read records"):
                consumer.assign(places)
            while end is None or min(nexts.values()) < end:
                with client.typed("read records"):
                    came = consumer.consume(ROWS_AT_ONCE, timeout=_POLL_S)
                for message in came:
                    name = client.partition_of(message)
                    if not client.is_record(message, nexts[name]):
                        # Offsets of transaction markers are passed without a record.
                        nexts[name] = max(nexts[name], message.offset() or 0)
                        continue
                    record = as_record(decoded(message))
                    nexts[name] = record.offset + 1
                    if end is None or record.offset < end:
                        timed = (record, append_times.time_of(name, record))
                        yield name, self._matches([timed])

    def untimed(self) -> int | None:
        """Return the number of records without a time, see `_Source`."""
        return self._cluster.source.without_time(
            self._partitions, self._wanted, self._options.clock, self._stats
        )

    def _matches(self, records: "Iterable[_Timed]") -> "Iterator[_Timed]":
        times = self._wanted.times
        for record, append_ms in records:
            if times is None:
                yield record, append_ms
            elif self._options.clock is ClockName.APPEND:
                # On the append clock the plan's offsets are exactly the range.
                if times[0] <= self._surroundings.env.clock.now_ms():
                    yield record, append_ms
            elif record.timestamp == NO_TIMESTAMP:
                self._stats.without_time += 1
            elif times[0] <= record.timestamp < times[1]:
                yield record, append_ms


def select(
    log: LogView,
    wanted: RequestedRange,
    clock: ClockName,
    isolation: IsolationLevel,
    stats: ScanStats,
) -> Iterator[_Timed]:
    """Yield records of a log by offset, with append times if known (ms).

    For numbers of records that people read, without Arrow; `tidelog.scan` does the same at scale.
    Segments that can't hold a match are not opened, and their records without a time are not
    counted.

    Args:
        log: The partition.
        wanted: Offsets and times.
        clock: Clock of the times.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        stats: `without_time` counts the records read that have no time on the clock.

    Raises:
        CorruptData: A batch is damaged.
    """
    times = wanted.times
    if clock is ClockName.APPEND and wanted.start_ms is not None and times is not None:
        # Append times are rounded down: a record with an earlier append time may be in the range.
        times = max(wanted.start_ms - log.append_slack_ms, 0), times[1]
    visible = log.end_offset(isolation)
    start = max(wanted.start_offset or 0, log.log_start_offset)
    end = visible if wanted.end_offset is None else min(wanted.end_offset, visible)
    aborted = log.aborted_filter(isolation, start, end)
    for segment in log.segments:
        offsets = max(start, segment.base_offset), min(end, segment.end_offset)
        for first, last in _ranges(log, segment, offsets, times, clock):
            part = slice_segment(segment, first, last)
            if part is not None:
                yield from _matches(log, part, aborted, times, clock, stats)


def _ranges(
    log: LogView,
    segment: Segment,
    offsets: tuple[int, int],
    times: tuple[int, int] | None,
    clock: ClockName,
) -> list[tuple[int, int]]:
    """Return ranges of a segment's offsets that may hold matches or records without a time."""
    first, last = offsets
    if first >= last:
        return []
    if times is None:
        return [offsets]
    if clock is ClockName.APPEND:
        append_times = log.append_times_of(segment)
        timed = append_times.ranges(*times, first, last)
        return sorted(timed + append_times.unknown_in(first, last))
    if NO_TIMESTAMP < segment.largest_timestamp < times[0]:
        return []
    # No record up to an entry's offset has a larger timestamp than the entry.
    floor_ms, offset = time_floor(segment, times[0] - 1)
    first = first if floor_ms == NO_TIMESTAMP else max(first, offset + 1)
    return [(first, last)] if first < last else []


def _matches(
    log: LogView,
    part: LogSlice,
    aborted: AbortedFilter,
    times: tuple[int, int] | None,
    clock: ClockName,
    stats: ScanStats,
) -> Iterator[_Timed]:
    for record, append_ms in _timed_records(log, part, aborted):
        ms = record.timestamp if clock is ClockName.RECORD else append_ms
        if times is None:
            yield record, append_ms
        elif ms is None or ms == NO_TIMESTAMP:
            stats.without_time += 1
        elif times[0] <= ms < times[1]:
            yield record, append_ms


def _timed_records(
    log: LogView, part: LogSlice, aborted: AbortedFilter
) -> Iterator[tuple["Record", int | None]]:
    """Yield the data records of a slice with their append times."""
    times = log.append_times_of(part.segment)
    for position, batch in part.batches():
        if is_hidden(part.segment, position, batch, aborted):
            continue
        for record in checked_records(part.segment, position, batch):
            if part.start_offset <= record.offset < part.end_offset:
                append_ms = times.time_at(record.offset)
                yield record, stamp_of(record) if append_ms is None else append_ms
