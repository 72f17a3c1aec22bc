"""`tidelog read`: records of a topic by offset and by time, once or as they come.

Of a directory or of a running cluster. `--table` is table.py's.
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
from tidelog.cli.output import (
    ROWS_AT_ONCE,
    Cell,
    RowMaker,
    Writer,
    chosen,
    say_untimed,
)
from tidelog.cli.places import Access, open_directory, open_remote
from tidelog.cli.selection import ReadOptions, Selection, Untimed, select
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.directory import Directory
from tidelog.error_codes import ErrorCode
from tidelog.errors import OffsetOutOfRange
from tidelog.remote import client as codes
from tidelog.remote.cluster import as_record, decoded, partition_of
from tidelog.remote.time_lookup import plan_remote
from tidelog.scan.split import Split, Wanted
from tidelog.storage.log.log_reader import LogView
from tidelog.timespec import OPEN_END, OPEN_START
from tidelog.types import NO_TIMESTAMP, ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.record.record import Record
    from tidelog.remote.remote_directory import RemoteDirectory


# How long a follower waits between two looks; appends of another process ring no bell.
FOLLOW_SECONDS: Final = 0.2


_OFFSETS: Final = re.compile(r"(\d{1,19})?\.\.(\d{1,19})?", re.ASCII)


@click.command(
    "read",
    epilog=examples(
        "tidelog read flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
        "tidelog read flights --from -1h --clock append --follow",
        "tidelog read flights --from -1h --follow --bootstrap broker:9092",
        "tidelog read flights --offset 100..110 --partition 2 -o json",
        "tidelog read flights --from 2013-02-08..+1d --zone UTC -o arrow > flights.arrow",
        "tidelog read flights --table --at '2013-02-08 12:00 America/New_York'",
    ),
)
@with_options(ReadOptions)
def read(surroundings: Surroundings, options: ReadOptions) -> None:
    """Print records by time and by offset.

    Exactly those in the range, partition by partition, in the order of their offsets. With --table
    the record that stands for each key, of committed records up to and with a time.
    """
    if options.is_table:
        from tidelog.cli import table

        refuse_typed(("isolation",), "--table shows committed records alone")
        table.read_table(surroundings, options)
        return
    refuse_typed(("at", "inexact"), "it goes with --table")
    wanted = _selection(surroundings, options)
    if options.place.access is not None:
        read_remote(surroundings, options.place.access, options, wanted)
        return
    with open_directory(surroundings, options.place.data) as directory:
        partitions = _partitions(directory, options.topic, options.partition)
        if options.kind.is_columns:
            from tidelog.cli.output import write_arrow

            count = write_arrow(
                surroundings, directory.path, partitions, wanted, options.limit, options.kind
            )
            say_untimed(surroundings, count, options.clock)
            return
        logs = [directory.partition(p.topic, p.partition) for p in partitions]
        _Reading(surroundings, _LogSource(surroundings, logs), options).run(wanted)


def _partitions(directory: Directory, topic: str, number: int | None) -> list[TopicPartition]:
    return chosen(topic, directory.log_dir.partitions(topic), number)


def _selection(surroundings: Surroundings, options: ReadOptions) -> Selection:
    if options.follow and options.end is not None:
        raise UsageProblem("--follow has no end; leave --to out")
    if options.follow and options.kind.is_columns:
        raise UsageProblem("--follow writes table, json or csv")
    start_ms, end_ms = times.read_bounds(surroundings, options.start, options.end, options.zone)
    if options.follow and end_ms != OPEN_END:
        raise UsageProblem(f"--from {options.start}: --follow has no end; leave the end out")
    start, end = _offsets(options.offset)
    return Selection(
        start_ms=start_ms,
        end_ms=end_ms,
        clock=options.clock,
        start_offset=start,
        end_offset=end,
        isolation=options.isolation,
    )


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    """The offsets of `A..B`; one number alone is that record."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), int(text) + 1
    found = _OFFSETS.fullmatch(text)
    if found is None:
        raise UsageProblem(f"--offset {text!r}: write A..B (B is not included), A.., ..B or A")
    start, end = (None if side is None else int(side) for side in found.groups())
    if start is not None and end is not None and start > end:
        raise UsageProblem(f"--offset {text}: the end lies before the start")
    return start, end


_Timed: TypeAlias = "tuple[Record, int | None]"
_Parts: TypeAlias = "Generator[tuple[TopicPartition, Iterator[_Timed]], None, None]"


class _Source(Protocol):
    """A topic's records wanted, in a directory or in a cluster."""

    def there(self, wanted: Selection) -> _Parts:
        """The records that are there now, by partition and offset, with append times (ms)."""
        ...

    def coming(self, wanted: Selection) -> _Parts:
        """The records behind those, as they are appended, up to the last offset wanted."""
        ...

    def untimed(self, wanted: Selection) -> int | None:
        """How many records have no time on the clock that was asked; None where not known."""
        ...


class _Reading:
    """One run of the command."""

    def __init__(self, surroundings: Surroundings, source: _Source, options: ReadOptions) -> None:
        self._surroundings = surroundings
        self._source = source
        self._options = options
        self._left = options.limit
        self._maker = RowMaker(options)

    def run(self, wanted: Selection) -> None:
        """Write everything wanted, then what comes where that is asked for."""
        out = self._maker.writer(self._surroundings)
        try:
            self._write(out, self._source.there(wanted))
            if self._options.follow:
                with closing(self._source.coming(wanted)) as parts:
                    self._write(out, parts)
        except KeyboardInterrupt:
            # The way to end a follower; anybody else is told that the output is not whole.
            if not self._options.follow:
                raise
        out.close()
        say_untimed(self._surroundings, self._source.untimed(wanted), self._options.clock)

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
        """Write the next rows, also those that came before an error; whether there may be more."""
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
    """Logs of a directory."""

    def __init__(self, surroundings: Surroundings, logs: list[LogView]) -> None:
        self._surroundings = surroundings
        self._logs = logs
        self._untimed = Untimed()

    def there(self, wanted: Selection) -> _Parts:
        """See `_Source`."""
        for log in self._logs:
            yield log.topic_partition, select(log, wanted, self._untimed)

    def coming(self, wanted: Selection) -> _Parts:
        """See `_Source`."""
        while True:
            nexts = [_next_offset(log, wanted) for log in self._logs]
            if wanted.end_offset is not None and min(nexts) >= wanted.end_offset:
                return
            self._surroundings.wait(FOLLOW_SECONDS)
            for log, start in zip(self._logs, nexts, strict=True):
                log.refresh()
                selection = replace(wanted, start_offset=start)
                yield log.topic_partition, select(log, selection, self._untimed)

    def untimed(self, _wanted: Selection) -> int | None:
        """See `_Source`."""
        return self._untimed.count


def _next_offset(log: LogView, wanted: Selection) -> int:
    """Where a follower goes on."""
    seen = log.end_offset(wanted.isolation)
    return seen if wanted.start_offset is None else max(seen, wanted.start_offset)


_POLL_S: Final = 0.2


def read_remote(
    surroundings: Surroundings,
    access: Access,
    options: ReadOptions,
    wanted: Selection,
) -> None:
    """Print the records of a topic that are wanted: partition by partition, by offset."""
    with open_remote(surroundings, access) as cluster:
        partitions = chosen(options.topic, cluster.partitions(options.topic), options.partition)
        if options.kind.is_columns:
            count = _write_arrow(surroundings, cluster, partitions, wanted, options)
            say_untimed(surroundings, count, options.clock)
            return
        source = _ClusterSource(surroundings, cluster, partitions)
        _Reading(surroundings, source, options).run(wanted)


def _splits(
    cluster: "RemoteDirectory", partitions: list[TopicPartition], wanted: Selection
) -> list[Split]:
    """What there is to read now: offsets in which everything wanted lies."""
    times = Wanted(
        start_ms=None if wanted.start_ms == OPEN_START else wanted.start_ms,
        end_ms=None if wanted.end_ms == OPEN_END else wanted.end_ms,
    )
    found = plan_remote(
        cluster.cluster, partitions, times, clock=wanted.clock, isolation=wanted.isolation
    )
    first, end = wanted.start_offset or 0, wanted.end_offset
    cut = (
        replace(
            split,
            start_offset=max(split.start_offset, first),
            end_offset=split.end_offset if end is None else min(split.end_offset, end),
        )
        for split in found
    )
    return [split for split in cut if split.start_offset < split.end_offset]


def _write_arrow(
    surroundings: Surroundings,
    cluster: "RemoteDirectory",
    partitions: list[TopicPartition],
    wanted: Selection,
    options: ReadOptions,
) -> int | None:
    """Write the records wanted by columns; return how many have no time on the asked clock."""
    from tidelog.cli.output import COLUMNS, write_columns
    from tidelog.frames import needs_arrow

    needs_arrow()
    from tidelog.scan import ScanStats, schema

    stats = ScanStats()
    batches = (
        batch
        for split in _splits(cluster, partitions, wanted)
        for batch in cluster.reading.batches(split, COLUMNS, stats)
    )
    write_columns(surroundings, schema(COLUMNS), batches, options.limit, options.kind)
    return _untimed(cluster, partitions, wanted, stats.without_time)


def _untimed(
    cluster: "RemoteDirectory", partitions: list[TopicPartition], wanted: Selection, met: int
) -> int | None:
    """How many records have no time on the clock: those met, or by append time all there are."""
    if wanted.clock is ClockName.RECORD or not wanted.has_times:
        return met
    counts = [cluster.without_append_time(name) for name in partitions]
    return None if None in counts else sum(count or 0 for count in counts)


class _ClusterSource:
    """Partitions of a topic of a cluster."""

    def __init__(
        self,
        surroundings: Surroundings,
        cluster: "RemoteDirectory",
        partitions: list[TopicPartition],
    ) -> None:
        self._surroundings = surroundings
        self._cluster = cluster
        self._partitions = partitions
        self._nexts: dict[TopicPartition, int] = {}
        self._met = 0

    def there(self, wanted: Selection) -> _Parts:
        """See `_Source`."""
        cluster, level = self._cluster, wanted.isolation
        ends = cluster.end_offsets(self._partitions, isolation=level)
        first = wanted.start_offset or 0
        self._nexts = {name: max(end, first) for name, end in ends.items()}
        for split in _splits(cluster, self._partitions, wanted):
            name = split.topic_partition
            end = min(split.end_offset, ends[name])
            records = cluster.reading.records(name, split.start_offset, end, level)
            if wanted.clock is ClockName.APPEND and split.time_range is not None:
                # The broker tells append times: a record without one lies in no range.
                records = (timed for timed in records if timed[1] is not None)
            yield name, self._matches(records, wanted)

    def coming(self, wanted: Selection) -> _Parts:
        """See `_Source`."""
        from confluent_kafka import TopicPartition as Place

        client, nexts = self._cluster.cluster, self._nexts
        level = IsolationLevel(wanted.isolation).name.lower()
        with (
            closing(client.consumer(isolation_level=level)) as consumer,
            closing(self._cluster.reading.told_times(wanted.isolation)) as told,
        ):
            places = [Place(n.topic, n.partition, at) for n, at in nexts.items()]
            with client.typed("read records"):
                consumer.assign(places)
            while wanted.end_offset is None or min(nexts.values()) < wanted.end_offset:
                with client.typed("read records"):
                    came = consumer.consume(ROWS_AT_ONCE, timeout=_POLL_S)
                for message in came:
                    error = message.error()
                    name = partition_of(message)
                    if error is None:
                        record = as_record(decoded(message))
                        nexts[name] = record.offset + 1
                        if wanted.end_offset is None or record.offset < wanted.end_offset:
                            timed = (record, told.time_of(name, record))
                            yield name, self._matches([timed], wanted)
                    elif error.code() in (codes.AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE):
                        mark = client.watermarks([name])[name]
                        raise OffsetOutOfRange(nexts[name], mark.start, mark.end, where=str(name))
                    elif error.code() == codes.PARTITION_EOF:
                        # Offsets of transaction markers are passed without a record.
                        nexts[name] = max(nexts[name], message.offset() or 0)
                    else:
                        raise client.failure(f"read records of {name}", error)

    def untimed(self, wanted: Selection) -> int | None:
        """See `_Source`."""
        return _untimed(self._cluster, self._partitions, wanted, self._met)

    def _matches(self, records: "Iterable[_Timed]", wanted: Selection) -> "Iterator[_Timed]":
        for record, append_ms in records:
            if self._is_wanted(record, wanted):
                yield record, append_ms
            elif record.timestamp == NO_TIMESTAMP:
                self._met += 1

    def _is_wanted(self, record: "Record", wanted: Selection) -> bool:
        """Whether a record is in the range of time; by append times the plan's offsets are that."""
        if not wanted.has_times:
            return True
        if wanted.clock is ClockName.APPEND:
            return wanted.start_ms <= self._surroundings.env.clock.now_ms()
        return wanted.holds(record.timestamp)
