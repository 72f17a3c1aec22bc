"""`tidelog read`: records of a topic by offset and by time, once or as they come.

Of a directory or of a running cluster. `--table` is table.py's.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

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
        _Reading(surroundings, directory, partitions, options).run(wanted)


def _partitions(directory: Directory, topic: str, number: int | None) -> list[TopicPartition]:
    return chosen(topic, directory.log_dir.partitions(topic), number)


def _selection(surroundings: Surroundings, options: ReadOptions) -> Selection:
    if options.follow and options.end is not None:
        raise UsageProblem("--follow has no end; leave --to out")
    if options.follow and options.kind.is_columns:
        raise UsageProblem("--follow writes table, json or csv")
    start_ms, end_ms = times.read_bounds(surroundings, options.start, options.end, options.zone)
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


class _Reading:
    """One run of the command."""

    def __init__(
        self,
        surroundings: Surroundings,
        directory: Directory,
        partitions: list[TopicPartition],
        options: ReadOptions,
    ) -> None:
        self._surroundings = surroundings
        self._logs = [directory.partition(p.topic, p.partition) for p in partitions]
        self._options = options
        self._left = options.limit
        self._untimed = Untimed()
        self._maker = RowMaker(options)

    def run(self, wanted: Selection) -> None:
        """Write everything wanted, then what comes where that is asked for."""
        out = self._maker.writer(self._surroundings)
        try:
            self._run(out, wanted)
        except KeyboardInterrupt:
            # The way to end a follower; anybody else is told that the output is not whole.
            if not self._options.follow:
                raise
        out.close()
        say_untimed(self._surroundings, self._untimed.count, self._options.clock)

    def _run(self, out: Writer, wanted: Selection) -> None:
        selections = [wanted] * len(self._logs)
        while True:
            nexts = []
            for number, log in enumerate(self._logs):
                self._write(out, log, selections[number])
                nexts.append(_next_offset(log, wanted))
                selections[number] = replace(wanted, start_offset=nexts[-1])
            is_over = wanted.end_offset is not None and min(nexts) >= wanted.end_offset
            if not self._options.follow or self._left == 0 or is_over:
                return
            self._surroundings.wait(FOLLOW_SECONDS)
            for log in self._logs:
                log.refresh()

    def _write(self, out: Writer, log: LogView, wanted: Selection) -> None:
        rows = self._rows(log, wanted)
        if self._left is not None:
            rows = islice(rows, self._left)
        while self._write_some(out, rows):
            pass

    def _write_some(self, out: Writer, rows: Iterator[list[Cell]]) -> int:
        """Write the next rows, also those that came before an error; how many there were."""
        chunk: list[list[Cell]] = []
        try:
            chunk.extend(islice(rows, ROWS_AT_ONCE))
        finally:
            out.write(chunk)
        if self._left is not None:
            self._left -= len(chunk)
        return len(chunk)

    def _rows(self, log: LogView, wanted: Selection) -> Iterator[list[Cell]]:
        number = log.topic_partition.partition
        for record, append_ms in select(log, wanted, self._untimed):
            yield self._maker.row(number, record, append_ms)


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
        _RemoteReading(surroundings, cluster, partitions, options).run(wanted)


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
    cut = (
        replace(
            split,
            start_offset=max(split.start_offset, wanted.start_offset or 0),
            end_offset=min(split.end_offset, wanted.end_offset or split.end_offset),
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


class _RemoteReading:
    """One run of the command."""

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
        self._left = options.limit
        self._untimed = Untimed()
        self._maker = RowMaker(options)

    def run(self, wanted: Selection) -> None:
        """Write everything wanted, then what comes where that is asked for."""
        out = self._maker.writer(self._surroundings)
        try:
            nexts = self._write_there(out, wanted)
            if self._options.follow and self._left != 0:
                self._follow(out, wanted, nexts)
        except KeyboardInterrupt:
            # The way to end a follower; anybody else is told that the output is not whole.
            if not self._options.follow:
                raise
        out.close()
        count = _untimed(self._cluster, self._partitions, wanted, self._untimed.count)
        say_untimed(self._surroundings, count, self._options.clock)

    def _write_there(self, out: Writer, wanted: Selection) -> dict[TopicPartition, int]:
        """Write what is there now; the offset behind it in each partition."""
        cluster, level = self._cluster, wanted.isolation
        ends = cluster.end_offsets(self._partitions, isolation=level)
        for split in _splits(cluster, self._partitions, wanted):
            name = split.topic_partition
            end = min(split.end_offset, ends[name])
            records = cluster.reading.records(name, split.start_offset, end, level)
            if wanted.clock is ClockName.APPEND and split.time_range is not None:
                # The broker tells append times: a record without one lies in no range.
                records = (timed for timed in records if timed[1] is not None)
            self._write(out, name, records, wanted)
        first = wanted.start_offset or 0
        return {name: max(end, first) for name, end in ends.items()}

    def _write(
        self,
        out: Writer,
        name: TopicPartition,
        records: "Iterable[tuple[Record, int | None]]",
        wanted: Selection,
    ) -> None:
        rows = self._rows(name, records, wanted)
        while self._left != 0:
            size = ROWS_AT_ONCE if self._left is None else min(ROWS_AT_ONCE, self._left)
            chunk: list[list[Cell]] = []
            try:
                chunk.extend(islice(rows, size))
            finally:
                out.write(chunk)
            if self._left is not None:
                self._left -= len(chunk)
            if len(chunk) < size:
                return

    def _rows(
        self,
        name: TopicPartition,
        records: "Iterable[tuple[Record, int | None]]",
        wanted: Selection,
    ) -> Iterator[list[Cell]]:
        for record, append_ms in records:
            if self._is_wanted(record, wanted):
                yield self._maker.row(name.partition, record, append_ms)
            elif record.timestamp == NO_TIMESTAMP:
                self._untimed.count += 1

    def _is_wanted(self, record: "Record", wanted: Selection) -> bool:
        """Whether a record is in the range of time; by append times the plan's offsets are that."""
        if not wanted.has_times:
            return True
        if wanted.clock is ClockName.APPEND:
            return wanted.start_ms <= self._surroundings.env.clock.now_ms()
        return wanted.holds(record.timestamp)

    # -- following ---------------------------------------------------------------------------

    def _follow(self, out: Writer, wanted: Selection, nexts: dict[TopicPartition, int]) -> None:
        """Write what comes, until the limit is reached or somebody interrupts."""
        from confluent_kafka import TopicPartition as Place

        client = self._cluster.cluster
        level = IsolationLevel(wanted.isolation).name.lower()
        with (
            closing(client.consumer(isolation_level=level)) as consumer,
            closing(self._cluster.reading.told_times(wanted.isolation)) as told,
        ):
            places = [Place(n.topic, n.partition, at) for n, at in nexts.items()]
            with client.typed("read records"):
                consumer.assign(places)
            while self._left != 0 and not self._is_over(wanted, nexts):
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
                            self._write(out, name, [timed], wanted)
                    elif error.code() in (codes.AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE):
                        mark = client.watermarks([name])[name]
                        raise OffsetOutOfRange(nexts[name], mark.start, mark.end, where=str(name))
                    elif error.code() != codes.PARTITION_EOF:
                        raise client.failure(f"read records of {name}", error)

    @staticmethod
    def _is_over(wanted: Selection, nexts: dict[TopicPartition, int]) -> bool:
        """Whether every partition has come to the last offset wanted."""
        return wanted.end_offset is not None and min(nexts.values()) >= wanted.end_offset
