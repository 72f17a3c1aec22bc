"""`tidelog read`: prints records of a topic by offset and by time, once or as they arrive.

Reads a directory or a running cluster. `--table` is in `keyed`.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import click
from click.core import ParameterSource

from tidelog.amounts import plural
from tidelog.cli import times
from tidelog.cli.options import examples, refuse_typed, with_options
from tidelog.cli.output import ROWS_AT_ONCE, Cell, Writer
from tidelog.cli.places import open_topics
from tidelog.cli.records import (
    Order,
    ReadOptions,
    RowMaker,
    batch_of,
    chosen,
    column_batches,
    columns_of,
    has_arrow,
    records_of,
    refuse_terminal,
    say_untimed,
    write_columns,
)
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.directory import Directory
from tidelog.remote.cluster import as_record, decoded
from tidelog.scan.plain_reads import select
from tidelog.scan.record_filter import RecordFilter
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.scan.time_order import WINDOW_LEAST, Timed, TimeOrder, clipped, offset_from_end
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import append_span
from tidelog.timespec import format_ms
from tidelog.types import NO_TIMESTAMP, ClockName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.record.record import Record
    from tidelog.remote.remote_directory import RemoteDirectory


# Seconds between two checks of `--follow` for new records: another process that appends sends no
# notification.
FOLLOW_SECONDS: Final = 0.2

_POLL_S: Final = 0.2

_OFFSETS: Final = re.compile(r"(-?\d{1,19})?\.\.(-?\d{1,19})?", re.ASCII)

# Up to this number of records, plain reads are faster than loading Arrow and kernels.
_PLAIN_RECORDS: Final = 10_000
# Offsets in the first window of a read by columns in order of time. Each window costs a plan, so it
# is larger than for plain reads.
_COLUMN_WINDOW: Final = 10_000


@click.command(
    "read",
    epilog=examples(
        "tidelog read flights --during '2013-02-08 America/New_York'",
        "tidelog read flights --tail 5 --key N14228",
        "tidelog read flights --from 2013-02-08Z..+1d --order time -n 10",
        "tidelog read flights --match origin=JFK --contains UA --clock append",
        "tidelog read flights --offset -5.. --partition 2 -o json",
        "tidelog read flights --tail 10 --follow --bootstrap broker:9092",
        "tidelog read flights --from 2013-02-08Z..+1d -o parquet > flights.parquet",
        "tidelog read flights --table --at '2013-02-08 12:00 America/New_York'",
    ),
)
@with_options(ReadOptions)
def read(surroundings: Surroundings, options: ReadOptions) -> None:
    """Print records by time or offset.

    Prints exactly the records in the range, by partition and offset; with --order time or --tail,
    by time over all partitions. With --table, prints the latest committed record of each key, as
    of the time --at (inclusive).
    """
    if options.is_table:
        from tidelog.cli import keyed

        refuse_typed(("isolation",), "--table shows committed records alone")
        keyed.read_table(surroundings, options)
        return
    refuse_typed(("at", "inexact"), "it goes with --table")
    _refuse_contradictions(options)
    if options.kind.is_columns:
        refuse_terminal(surroundings, options.kind)
    wanted, offsets = _wanted(surroundings, options), _offsets(options.offset)
    conditions = options.record_filter()
    with open_topics(surroundings, options.place) as directory:
        partitions = chosen(options.topic, directory.partitions(options.topic), options.partition)
        source: _Source
        if isinstance(directory, Directory):
            logs = [directory.log_dir.reader(p.topic, p.partition) for p in partitions]
            source = _LogSource(surroundings, directory, logs, options)
        else:
            source = _ClusterSource(surroundings, directory, partitions, options)
        source.wanted = _resolved(source, partitions, wanted, offsets)
        _Reading(surroundings, directory, source, options, conditions).run()


def _refuse_contradictions(options: ReadOptions) -> None:
    if options.tail is not None and options.limit is not None:
        raise UsageProblem("--tail and --limit both give a number of records; leave one out")
    if options.tail is not None:
        given = click.get_current_context().get_parameter_source("order")
        if options.order is Order.OFFSET and given is ParameterSource.COMMANDLINE:
            raise UsageProblem("--tail prints records in order of time; leave --order offset out")
    elif options.follow and options.order is Order.TIME:
        raise UsageProblem("--follow prints records as they come; leave --order time out")
    if options.contains == "":
        raise UsageProblem("--contains '': every record contains it; leave it out")


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
    return RequestedRange(start_ms=start_ms, end_ms=end_ms)


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A..B` to offsets [A, B); a single number means that offset.

    A negative number counts records from the end of the partition.
    """
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), int(text) + 1
    match = _OFFSETS.fullmatch(text)
    if match is None:
        raise UsageProblem(
            f"--offset {text!r}: write A..B (B is not included), A.., ..B, A, or -N.. for the last"
            " N records of a partition"
        )
    start, end = (None if side is None else int(side) for side in match.groups())
    is_comparable = start is not None and end is not None and (start < 0) == (end < 0)
    if is_comparable and start is not None and end is not None and start > end:
        raise UsageProblem(f"--offset {text}: the end is before the start")
    return start, end


def _resolved(
    source: "_Source",
    partitions: list[TopicPartition],
    wanted: RequestedRange,
    offsets: tuple[int | None, int | None],
) -> dict[TopicPartition, RequestedRange]:
    """Return the range of each partition: the times of `wanted` and the offsets.

    Negative offsets, which count records from the end, are converted.
    """
    if all(offset is None or offset >= 0 for offset in offsets):
        one = replace(wanted, start_offset=offsets[0], end_offset=offsets[1])
        return dict.fromkeys(partitions, one)
    ranges = {}
    for name, bounds in source.bounds().items():
        start, end = (
            offset
            if offset is None or offset >= 0
            else offset_from_end(source.read, name, bounds, -offset)
            for offset in offsets
        )
        if start is not None and end is not None:
            end = max(start, end)
        ranges[name] = replace(wanted, start_offset=start, end_offset=end)
    return ranges


_Parts: TypeAlias = "Generator[tuple[TopicPartition, Iterator[Timed]], None, None]"
_Rows: TypeAlias = "Iterator[tuple[int, Record, int | None]]"


class _Source(Protocol):
    """Records of a topic in a directory or a cluster, chosen by the options.

    Attributes:
        wanted: Range of each partition.
    """

    wanted: "Mapping[TopicPartition, RequestedRange]"

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return each partition's first offset, and the offset after its last visible record."""
        ...

    def read(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        """Yield the records of a range of a partition, in order of offsets."""
        ...

    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        """Return the first offset at or after a time on the clock, None if there is none."""
        ...

    def newest_ms(self) -> int | None:
        """Return the largest time on the clock; None if no record has a known time."""
        ...

    def there(self) -> _Parts:
        """Yield the existing records, by partition and offset, with append times (ms)."""
        ...

    def coming(self) -> _Parts:
        """Yield later records as they are appended, up to the last requested offset."""
        ...

    def untimed(self, stats: ScanStats) -> int | None:
        """Return the number of records without a time on the clock; None if unknown.

        Args:
            stats: Statistics of the reads by columns or in order of time.
        """
        ...


class _Reading:
    """One run of the command."""

    def __init__(
        self,
        surroundings: Surroundings,
        directory: "Directory | RemoteDirectory",
        source: _Source,
        options: ReadOptions,
        conditions: RecordFilter,
    ) -> None:
        self._surroundings = surroundings
        self._directory = directory
        self._source = source
        self._options = options
        self._conditions = conditions
        self._left = options.limit
        self._maker = RowMaker(options)
        self._stats = ScanStats()
        self._count = 0

    def run(self) -> None:
        """Write the existing records and, with `--follow`, those that are appended later."""
        if self._options.kind.is_columns:
            self._write_columns()
        else:
            self._write_rows()
        say_untimed(self._surroundings, self._source.untimed(self._stats), self._options.clock)
        wants_none = self._options.tail == 0 or self._options.limit == 0
        if not self._count and not wants_none and not self._options.follow:
            self._say_none()

    def _say_none(self) -> None:
        """Print that no record matches, and likely reasons: the newest time, deleted offsets."""
        options, bounds = self._options, self._source.bounds()
        target = (
            options.topic if options.partition is None else f"{options.topic}:{options.partition}"
        )
        if all(first >= end for first, end in bounds.values()):
            self._surroundings.say(f"0 records; {target} is empty")
        elif (newest_ms := self._source.newest_ms()) is None:
            self._surroundings.say(f"0 records; none has a known time on the {options.clock} clock")
        else:
            newest = format_ms(newest_ms, options.zone)
            self._surroundings.say(
                f"0 records; the newest of {target} is {newest} ({options.clock} clock)"
            )
        starts = [f"{name} starts at {first}" for name, (first, _) in bounds.items() if first > 0]
        if starts:
            others = f" (in {plural(len(starts), 'partition')})" if len(starts) > 1 else ""
            self._surroundings.note(
                f"retention or delete-records took earlier offsets{others}: {starts[0]}"
            )
        conditions = options.key is not None or options.contains is not None or options.match
        if options.offset is not None and "-" in options.offset and conditions:
            self._surroundings.note(
                f"--offset {options.offset} counts all records of a partition, whether they match"
                " or not; --tail N counts those that match"
            )

    def _write_rows(self) -> None:
        out = self._maker.writer(self._surroundings)
        try:
            with closing(self._existing()) as parts:
                self._write(out, parts)
            if self._options.follow:
                with closing(self._source.coming()) as parts:
                    self._write(out, (self._met(*part) for part in parts))
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of `--follow`; otherwise the output is incomplete.
            if not self._options.follow:
                raise
        out.close()

    def _write_columns(self) -> None:
        """Write the existing records as Arrow or Parquet."""
        columns = columns_of(self._directory.source)
        schema, batches = self._column_batches(self._source.wanted)
        if self._options.is_ordered:
            rows = self._ordered()
            pages = iter(lambda: list(islice(rows, ROWS_AT_ONCE)), [])
            batches = (batch_of(self._options.topic, page, schema) for page in pages)
        assert schema.names == list(columns)
        limit = self._options.limit
        counted = self._counted(batches)
        write_columns(self._surroundings, schema, counted, limit, self._options.kind)

    def _counted(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            self._count += batch.num_rows
            yield batch

    def _column_batches(
        self, wanted: "Mapping[TopicPartition, RequestedRange]", stats: ScanStats | None = None
    ) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
        return column_batches(
            self._directory.source,
            wanted,
            self._options,
            self._conditions,
            self._stats if stats is None else stats,
            columns_of(self._directory.source),
        )

    def _existing(self) -> "Generator[_Rows, None, None]":
        """Yield the rows of the existing records, in parts."""
        if self._options.is_ordered:
            yield self._ordered()
        elif self._conditions and has_arrow():
            _, batches = self._column_batches(self._source.wanted)
            for batch in batches:
                yield records_of(batch)
        else:
            for part in self._source.there():
                yield self._met(*part)

    def _met(self, name: TopicPartition, records: "Iterable[Timed]") -> _Rows:
        """Yield the records of a partition that meet the conditions."""
        is_met = self._conditions.is_met
        for record, append_ms in records:
            if is_met(record.key, record.value):
                yield name.partition, record, append_ms

    def _ordered(self) -> _Rows:
        """Yield the records in order of time."""
        options = self._options
        is_columns = self._reads_columns()
        order = TimeOrder(
            read=self._read_by_columns if is_columns else self._read_plain,
            first_at=self._source.first_at,
            wanted=clipped(self._source.wanted, self._source.bounds()),
            clock=options.clock,
            window=_COLUMN_WINDOW if is_columns else WINDOW_LEAST,
            stats=self._stats,
        )
        count = options.tail
        for one in order.first(options.limit) if count is None else order.last(count):
            yield one.partition, one.record, one.append_ms

    def _reads_columns(self) -> bool:
        """Whether to read by columns: faster for many records, but needs optional packages."""
        number = self._options.limit if self._options.tail is None else self._options.tail
        is_small = number is not None and number <= _PLAIN_RECORDS and not self._conditions
        return not is_small and has_arrow()

    def _read_plain(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        for _, record, append_ms in self._met(name, self._source.read(name, wanted, stats)):
            yield record, append_ms

    def _read_by_columns(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        _, batches = self._column_batches({name: wanted}, stats)
        for batch in batches:
            for _, record, append_ms in records_of(batch):
                yield record, append_ms

    def _write(self, out: Writer, parts: "Iterator[_Rows]") -> None:
        while self._left != 0:
            part = next(parts, None)
            if part is None:
                return
            rows = (self._maker.row(*one) for one in part)
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
        self._count += len(chunk)
        if self._left is not None:
            self._left -= len(chunk)
        return len(chunk) == size and self._left != 0


class _LogSource:
    """Source of a directory's logs."""

    def __init__(
        self,
        surroundings: Surroundings,
        directory: Directory,
        logs: list[LogView],
        options: ReadOptions,
    ) -> None:
        self._surroundings = surroundings
        self._directory = directory
        self._logs = {log.topic_partition: log for log in logs}
        self._options = options
        self._stats = ScanStats()
        self.wanted: Mapping[TopicPartition, RequestedRange] = {}

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return offsets, see `_Source`."""
        isolation = self._options.isolation
        return {
            name: (log.log_start_offset, log.end_offset(isolation))
            for name, log in self._logs.items()
        }

    def read(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        """Yield records, see `_Source`; for a time range, zone maps exclude parts of the log."""
        if wanted.times is None:
            yield from self._select(name, wanted, stats)
            return
        options = self._options
        plan = self._directory.source.plan(
            [name],
            wanted,
            clock=options.clock,
            isolation=options.isolation,
            columns=(),
            fail_on_data_loss=False,
        )
        for piece in (piece for split in plan for piece in split.pieces):
            stats.without_time += piece.without_time
            if piece.size_bytes:
                part = replace(wanted, start_offset=piece.start_offset, end_offset=piece.end_offset)
                yield from self._select(name, part, stats)

    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        """Return an offset, see `_Source`."""
        first = self._logs[name].offset_for_time(ms, clock=self._options.clock)
        return None if first is None else first.offset

    def newest_ms(self) -> int | None:
        """Return a time, see `_Source`."""
        if self._options.clock is ClockName.APPEND:
            return _latest(append_span(log).last_ms for log in self._logs.values())
        newest = (log.max_timestamp(steps_over_losses=True) for log in self._logs.values())
        return _latest(None if one is None else one.timestamp for one in newest)

    def there(self) -> _Parts:
        """Yield the existing records, see `_Source`."""
        for name, wanted in self.wanted.items():
            yield name, self._select(name, wanted, self._stats)

    def coming(self) -> _Parts:
        """Yield later records, see `_Source`."""
        isolation = self._options.isolation
        while True:
            nexts = {
                name: max(self._logs[name].end_offset(isolation), one.start_offset or 0)
                for name, one in self.wanted.items()
            }
            if _is_over(nexts, self.wanted):
                return
            self._surroundings.wait(FOLLOW_SECONDS)
            for name, start in nexts.items():
                self._logs[name].refresh()
                wanted = replace(self.wanted[name], start_offset=start)
                yield name, self._select(name, wanted, self._stats)

    def untimed(self, stats: ScanStats) -> int | None:
        """Return the number of records without a time, see `_Source`."""
        return self._stats.without_time + stats.without_time

    def _select(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        options = self._options
        return select(self._logs[name], wanted, options.clock, options.isolation, stats)


def _is_over(
    nexts: "Mapping[TopicPartition, int]", wanted: "Mapping[TopicPartition, RequestedRange]"
) -> bool:
    """Return whether no partition has a requested offset left."""
    ends = ((at, wanted[name].end_offset) for name, at in nexts.items())
    return all(end is not None and at >= end for at, end in ends)


def _latest(times: "Iterable[int | None]") -> int | None:
    """Return the largest known time, None if there is none."""
    known = [ms for ms in times if ms is not None and ms != NO_TIMESTAMP]
    return max(known, default=None)


class _ClusterSource:
    """Source of a topic's partitions in a cluster."""

    def __init__(
        self,
        surroundings: Surroundings,
        cluster: "RemoteDirectory",
        partitions: list[TopicPartition],
        options: ReadOptions,
    ) -> None:
        self._surroundings = surroundings
        self._cluster = cluster
        self._partitions = partitions
        self._options = options
        self._ends: dict[TopicPartition, int] | None = None
        self._stats = ScanStats()
        self.wanted: Mapping[TopicPartition, RequestedRange] = {}

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return offsets, see `_Source`."""
        starts = self._cluster.beginning_offsets(self._partitions)
        return {name: (starts[name], end) for name, end in self._visible_ends().items()}

    def _visible_ends(self) -> dict[TopicPartition, int]:
        """Return the current end of each partition's visible records."""
        if self._ends is None:
            isolation = self._options.isolation
            self._ends = self._cluster.end_offsets(self._partitions, isolation=isolation)
        return self._ends

    def read(
        self, name: TopicPartition, wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        """Yield records, see `_Source`."""
        cluster, level = self._cluster, self._options.isolation
        clock = self._options.clock
        plan = cluster.source.plan([name], wanted, clock=clock, isolation=level, columns=())
        for split in plan:
            end = min(split.end_offset, self._visible_ends()[name])
            records = cluster.source.records(name, split.start_offset, end, level)
            if clock is ClockName.APPEND and split.time_range is not None:
                # Leave out records without an append time, which are in no time range.
                records = (timed for timed in records if timed[1] is not None)
            yield from self._matches(records, wanted, stats)

    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        """Return an offset, see `_Source`."""
        first = self._cluster.offsets_for_times({name: ms}, clock=self._options.clock)[name]
        return None if first is None else first.offset

    def newest_ms(self) -> int | None:
        """Return a time, see `_Source`."""
        if self._options.clock is ClockName.APPEND:
            spans = self._cluster.time_spans(self._options.topic, clock=ClockName.APPEND)
            return _latest(spans[name].last_ms for name in self._partitions)
        newest = self._cluster.cluster.max_timestamps(self._partitions).values()
        return _latest(None if one is None else one.timestamp for one in newest)

    def there(self) -> _Parts:
        """Yield the existing records, see `_Source`."""
        self._visible_ends()
        for name, wanted in self.wanted.items():
            yield name, self.read(name, wanted, self._stats)

    def coming(self) -> _Parts:
        """Yield later records, see `_Source`."""
        from confluent_kafka import TopicPartition as Place

        client, wanted = self._cluster.cluster, self.wanted
        isolation = self._options.isolation
        nexts = {
            name: max(self._visible_ends()[name], one.start_offset or 0)
            for name, one in wanted.items()
        }
        with (
            closing(client.consumer(isolation_level=isolation.name.lower())) as consumer,
            closing(self._cluster.source.append_time_lookup(isolation)) as append_times,
        ):
            places = [Place(n.topic, n.partition, at) for n, at in nexts.items()]
            with client.typed("read records"):
                consumer.assign(places)
            while not _is_over(nexts, wanted):
                with client.typed("read records"):
                    came = consumer.consume(ROWS_AT_ONCE, timeout=_POLL_S)
                for message in came:
                    name = client.partition_of(message)
                    if not client.is_record(message, nexts[name]):
                        # No record is returned for the offsets of transaction markers.
                        nexts[name] = max(nexts[name], message.offset() or 0)
                        continue
                    record = as_record(decoded(message))
                    nexts[name] = record.offset + 1
                    end = wanted[name].end_offset
                    if end is None or record.offset < end:
                        timed = (record, append_times.time_of(name, record))
                        yield name, self._matches([timed], wanted[name], self._stats)

    def untimed(self, stats: ScanStats) -> int | None:
        """Return the number of records without a time, see `_Source`."""
        stats = ScanStats.total((self._stats, stats))
        wanted = next(iter(self.wanted.values()), RequestedRange())
        source = self._cluster.source
        return source.without_time(self._partitions, wanted, self._options.clock, stats)

    def _matches(
        self, records: "Iterable[Timed]", wanted: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        times = wanted.times
        for record, append_ms in records:
            if times is None:
                yield record, append_ms
            elif self._options.clock is ClockName.APPEND:
                # On the append clock the offsets of the plan are exactly the time range.
                if times[0] <= self._surroundings.env.clock.now_ms():
                    yield record, append_ms
            elif record.timestamp == NO_TIMESTAMP:
                stats.without_time += 1
            elif times[0] <= record.timestamp < times[1]:
                yield record, append_ms
