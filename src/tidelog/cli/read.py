"""`tidelog read`: prints records of a topic by offset and by time, once or as they arrive.

Reads a directory or a running cluster. `--table` is in `keyed`.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import click
from click.core import ParameterSource

from tidelog.amounts import offsets_text, plural
from tidelog.cli import times
from tidelog.cli.damage import NO_RECORDS, UNREADABLE, Damage
from tidelog.cli.missing import Limits, note_missing
from tidelog.cli.options import ReadFormat, examples, refuse_typed, with_options
from tidelog.cli.output import ROWS_AT_ONCE, Cell, Writer
from tidelog.cli.places import absent_files, chosen, open_topics, with_files
from tidelog.cli.records import (
    TERMINAL_RECORDS,
    Order,
    ReadOptions,
    RowMaker,
    batch_of,
    column_batches,
    columns_of,
    ends_early,
    has_arrow,
    records_of,
    refuse_terminal,
    say_untimed,
    schema_of,
    write_columns,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.cli.typed_columns import TypedColumns
from tidelog.errors import TidelogError
from tidelog.scan.record_filter import RecordFilter
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.scan.time_order import WINDOW_LEAST, Timed, TimeOrder, clipped, offset_from_end
from tidelog.timespec import zoned_text
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.directory import Directory
    from tidelog.record.record import Record
    from tidelog.scan.plain_reads import PlainReads
    from tidelog.scan.source import RecordSource


_OFFSETS: Final = re.compile(r"(-?\d{1,19})?\.\.(-?\d{1,19})?", re.ASCII)

# Up to this number of records, a plain read takes less time than loading Arrow and the kernels.
_PLAIN_RECORDS: Final = 10_000
# Number of offsets in the first window of a read by columns in order of time. Such a read makes a
# plan for each window, so its windows are larger than those of a plain read.
_COLUMN_WINDOW: Final = 10_000


@click.command(
    "read",
    epilog=examples(
        "tidelog read flights --during '2013-02-08 America/New_York'",
        "tidelog read flights --during '2013-02-08 12:00..13:00 America/New_York'",
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
def read(surroundings: Surroundings, options: ReadOptions) -> ExitCode:
    """Print records by time, offset or key, or the last ones.

    Prints exactly the records in the range, ordered by partition and offset. With --order time or
    --tail, prints the records of all partitions ordered by time. With --table, prints the latest
    committed record of each key, as of the time --at (inclusive).

    On a terminal, a table of all records of a topic or partition ends after 100 records. Other
    output, and a read with a range, a condition or a limit, is always complete.

    --clock append --during A --timestamps B selects on both clocks: the records that arrived in A
    and were created in B.

    A damaged partition is printed up to the damage, the other partitions completely. With --table,
    no row of a damaged partition is printed, because its other records may be older than the lost
    ones. The exit code is then 1.
    """
    if options.is_table:
        from tidelog.cli import keyed

        reason = "does not apply with --table, which reads only committed records; leave it out"
        refuse_typed(("isolation",), reason)
        return keyed.read_table(surroundings, options)
    refuse_typed(("at",), "applies only with --table; --from TIME reads records from a time on")
    refuse_typed(("inexact",), "applies only with --table")
    _refuse_contradictions(options)
    is_cut = ends_early(surroundings, options)
    if is_cut:
        options = replace(options, limit=TERMINAL_RECORDS)
    if options.kind.is_columns:
        refuse_terminal(surroundings, options.kind)
    requested, offsets = _requested_times(surroundings, options), _offsets(options.offset)
    conditions = options.record_filter()
    with open_topics(surroundings, options.place, runs_on=options.follow) as directory:
        topic = options.topic
        partitions = chosen(topic, directory.partitions(topic), options.number)
        absent = absent_files(directory, topic, options.number, options.place.access)
        partitions = with_files(directory, partitions, options.place.access)
        source = directory.source
        damage = Damage(surroundings, partitions, absent=absent)
        if options.place.access is None:
            partitions = _openable(cast("Directory", directory), partitions, damage)
        with source.plain_reads(partitions, options.clock, options.isolation) as reads:
            ranges = _resolved(reads, partitions, requested, offsets, damage)
            reading = _Reading(surroundings, source, reads, ranges, options, conditions, damage)
            reading.is_cut = is_cut
            limits = {
                name: Limits(one.start_ms, one.end_ms, one.start_offset, one.end_offset)
                for name, one in ranges.items()
            }
            if options.follow:  # a read with --follow does not end by itself
                note_missing(surroundings, directory, limits, options.clock, options.zone)
            code = reading.run()
            if not options.follow:
                note_missing(surroundings, directory, limits, options.clock, options.zone)
            return code


def _openable(
    directory: "Directory", partitions: list[TopicPartition], damage: Damage
) -> list[TopicPartition]:
    """Return the partitions that can be opened; add the others to `damage`.

    Raises the error of the first partition if none can be opened.
    """
    errors: dict[TopicPartition, TidelogError] = {}
    for name in partitions:
        try:
            directory.partition(name.topic, name.partition)
        except UNREADABLE as error:
            errors[name] = error
            damage.add(name, error, NO_RECORDS)
    if errors and len(errors) == len(partitions):
        raise next(iter(errors.values()))
    return [name for name in partitions if name not in errors]


def _refuse_contradictions(options: ReadOptions) -> None:
    if options.tail is not None and options.limit is not None:
        raise UsageProblem("--tail and --limit both give a number of records; leave one out")
    if options.tail is not None:
        order_source = click.get_current_context().get_parameter_source("order")
        if options.order is Order.OFFSET and order_source is ParameterSource.COMMANDLINE:
            raise UsageProblem("--tail prints records in order of time; leave --order offset out")
    elif options.follow and options.order is Order.TIME:
        raise UsageProblem("--follow prints records in order of arrival; leave --order time out")
    if options.contains == "":
        raise UsageProblem("--contains '': every record contains it; leave it out")


def _requested_times(surroundings: Surroundings, options: ReadOptions) -> RequestedRange:
    if options.follow and (options.end or options.during) is not None:
        raise UsageProblem("--follow has no end; leave --to and --during out")
    if options.follow and options.kind.is_columns:
        raise UsageProblem("--follow supports only the formats table, json and csv")
    start_ms, end_ms = times.read_bounds(
        surroundings, options.start, options.end, options.zone, during=options.during
    )
    if options.follow and end_ms is not None:
        raise UsageProblem(f"--from {options.start}: --follow has no end; leave the end out")
    timestamps = times.read_timestamps(
        surroundings, options.timestamps, options.zone, options.clock, (start_ms, end_ms)
    )
    return RequestedRange(start_ms=start_ms, end_ms=end_ms, timestamps=timestamps)


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A..B` to offsets [A, B); a single number means that offset.

    A negative number counts records from the end of the partition.
    """
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), int(text) + 1
    match = _OFFSETS.fullmatch(text)
    if match is None and re.search(r"\d{20}", text):
        raise UsageProblem(f"--offset {text}: an offset has at most 19 digits")
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
    reads: "PlainReads",
    partitions: list[TopicPartition],
    requested: RequestedRange,
    offsets: tuple[int | None, int | None],
    damage: Damage,
) -> dict[TopicPartition, RequestedRange]:
    """Return the range of each partition, which combines the requested times and offsets.

    Negative offsets, which count records from the end, are converted. A partition whose records
    can't be counted is added to `damage` and left out of the result.
    """
    if all(offset is None or offset >= 0 for offset in offsets):
        one = replace(requested, start_offset=offsets[0], end_offset=offsets[1])
        return dict.fromkeys(partitions, one)
    ranges = {}
    for name, bounds in reads.bounds().items():
        try:
            start, end = (
                offset
                if offset is None or offset >= 0
                else offset_from_end(reads.read, name, bounds, -offset)
                for offset in offsets
            )
        except UNREADABLE as error:
            damage.add(name, error)
            continue
        if start is not None and end is not None:
            end = max(start, end)
        ranges[name] = replace(requested, start_offset=start, end_offset=end)
    return ranges


_Item = TypeVar("_Item")
_Rows: TypeAlias = "Iterator[tuple[int, Record, int | None]]"


class _Reading:
    """One run of `tidelog read` without `--table`."""

    def __init__(  # noqa: PLR0913 - what one run works on
        self,
        surroundings: Surroundings,
        source: "RecordSource",
        reads: "PlainReads",
        ranges: "Mapping[TopicPartition, RequestedRange]",
        options: ReadOptions,
        conditions: RecordFilter,
        damage: Damage,
    ) -> None:
        self._surroundings = surroundings
        self._source = source
        self._reads = reads
        self._ranges = ranges
        self._options = options
        self._conditions = conditions
        self._damage = damage
        self._left = options.limit
        self._maker = RowMaker(options)
        self._stats = ScanStats()
        self._count = 0
        self._last_row: list[Cell] = []
        self._order: TimeOrder | None = None
        # Whether a record follows the shown ones; None if unknown. Set only if `is_cut`.
        self._has_more: bool | None = None
        self.is_cut = False

    def run(self) -> ExitCode:
        """Write the existing records and, with `--follow`, the records that are appended later."""
        if self._options.kind.is_columns:
            self._write_columns()
        else:
            self._write_rows()
        clock = self._options.clock
        one = next(iter(self._ranges.values()), RequestedRange())
        untimed = self._source.without_time(list(self._ranges), one, clock, self._stats)
        say_untimed(self._surroundings, untimed, clock, self._stats.without_timestamp)
        wants_none = self._options.tail == 0 or self._options.limit == 0
        self._damage.say()
        if self.is_cut:
            self._note_cut()
        if self._damage:
            return ExitCode.ERROR
        if not self._count and not wants_none and not self._options.follow:
            self._say_none()
        is_limited = self._options.kind is ReadFormat.TABLE and self._left == 0
        if is_limited and self._count and not self.is_cut:
            self._note_limit()
        return ExitCode.OK

    def _note_cut(self) -> None:
        """Print that a table on a terminal does not show all records, and how to get them.

        The number of further records is at most the number of offsets after the last shown record.
        It is less if offsets have no record, for example because of compaction.
        """
        has_more = self._has_more if self._order is None else self._order.has_more
        if self._left or has_more is False:
            return
        bounds = self._reads.bounds()
        if self._options.is_ordered:
            rest = sum(end - start for start, end in bounds.values()) - self._count
        else:
            _, number, offset, *_ = self._last_row
            spans = {name.partition: span for name, span in bounds.items()}
            names = [name.partition for name in self._ranges]
            later = names[names.index(cast("int", number)) + 1 :]
            rest = spans[cast("int", number)][1] - 1 - cast("int", offset)
            rest += sum(spans[one][1] - spans[one][0] for one in later)
        if rest > 0:
            more = "more follow" if has_more else "more may follow"
            self._surroundings.note(
                f"a terminal shows only the first {plural(self._count, 'record')}; {more}, at most"
                f" {rest:,}"
            )
            self._surroundings.hint(
                "`| less` or `> FILE` gets all records; --limit N and --tail N choose how many"
            )

    def _note_limit(self) -> None:
        """Print that --limit ended the read, unless it is known that no record follows."""
        if self._options.is_ordered:
            order = self._order
            if order is None or order.has_more is False:
                return
            more = "more follow" if order.has_more else "more may follow"
            if order.is_tied:
                more += ", some with the same time as the last shown record"
        else:
            name = list(self._ranges)[-1]
            _, end = self._reads.bounds()[name]
            last_end = self._ranges[name].end_offset
            at_end = end - 1 if last_end is None else min(last_end, end) - 1
            if self._last_row[1:3] == [name.partition, at_end]:
                return
            more = "more may follow"
        shown = plural(self._count, "record")
        self._surroundings.note(f"--limit ended the reading after {shown}; {more}")
        order_source = click.get_current_context().get_parameter_source("order")
        is_chosen = self._options.is_ordered or order_source is ParameterSource.COMMANDLINE
        if len(self._ranges) > 1 and not is_chosen and not self._options.follow:
            self._surroundings.hint(
                "the records are in order of partition; --order time reads all partitions in order"
                " of time"
            )

    def _say_none(self) -> None:
        """Print that no record matches. With a range, also print the newest time in the partitions.

        If the newest time is before the range, it explains why no record matches.
        """
        options, bounds = self._options, self._reads.bounds()
        target = options.topic if options.number is None else f"{options.topic}:{options.number}"
        is_timed = (options.start, options.end, options.during) != (None,) * 3
        bounded = is_timed or options.offset is not None
        named = {"--key": options.key, "--contains": options.contains}
        conditions = [f"{name} {text}" for name, text in named.items() if text is not None]
        conditions += (f"--match {text}" for text in options.match)
        if all(first >= end for first, end in bounds.values()):
            self._surroundings.say(f"0 records; {target} is empty")
            if options.place.access is None and any(end for _, end in bounds.values()):
                self._surroundings.hint(f"`tidelog why {target}` shows why its records are gone")
        elif conditions and not bounded:
            self._surroundings.say(f"0 records of {target} match {' and '.join(conditions)}")
        elif options.offset is not None and len(bounds) == 1 and not conditions and not is_timed:
            ((first, end),) = bounds.values()
            self._surroundings.say(f"0 records; {target} has {offsets_text(first, end - 1)}")
        else:
            self._surroundings.say(f"0 records; {self._newest(target)}")
        if options.offset is not None and "-" in options.offset and conditions:
            self._surroundings.note(
                f"--offset {options.offset} counts all records of a partition, whether they match"
                " or not; --tail N counts those that match"
            )

    def _newest(self, target: str) -> str:
        """Return words about the largest known time in the requested partitions."""
        clock = self._options.clock
        try:
            newest_ms = self._reads.newest_ms()
        except TidelogError as error:
            # the read itself has succeeded, so the command does not fail
            return f"the time of the newest record of {target} is unknown: {error}"
        if newest_ms is None:
            return f"no record of {target} has a {clock.known_time_name}"
        time = zoned_text(newest_ms, self._options.zone)
        return f"the newest record of {target} is of {time} ({clock} clock)"

    def _write_rows(self) -> None:
        out = self._maker.writer(self._surroundings)
        try:
            with closing(self._existing()) as parts:
                self._write(out, parts)
            self._damage.say()
            if self._options.follow:
                wait = self._surroundings.wait
                with closing(self._reads.later_records(self._ranges, self._stats, wait)) as parts:
                    self._write(out, (self._coming(*part) for part in parts))
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of `--follow`; otherwise the output is incomplete.
            if not self._options.follow:
                raise
        out.close()

    def _write_columns(self) -> None:
        """Write the existing records as Arrow or Parquet."""
        schema, batches = schema_of(columns_of(self._source)), self._columns()
        if self._options.is_ordered:
            rows = self._ordered()
            pages = iter(lambda: list(islice(rows, ROWS_AT_ONCE)), [])
            batches = (batch_of(self._options.topic, page, schema) for page in pages)
        limit = self._options.limit
        counted = self._counted(batches)
        typed = TypedColumns(schema, self._options.topic, self._options.forms)
        write_columns(self._surroundings, typed, counted, limit, self._options.kind)

    def _counted(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            self._count += batch.num_rows
            yield batch

    def _columns(self) -> "Iterator[pa.RecordBatch]":
        """Yield the existing records by columns."""
        for name, requested in self._ranges.items():
            yield from self._damage.until(name, self._columns_of(name, requested, self._stats))

    def _columns_of(
        self, name: TopicPartition, requested: RequestedRange, stats: ScanStats
    ) -> "Iterator[pa.RecordBatch]":
        return column_batches(self._source, name, requested, self._options, self._conditions, stats)

    def _existing(self) -> "Generator[_Rows, None, None]":
        """Yield iterators over the rows of the existing records."""
        if self._options.is_ordered:
            yield self._ordered()
        elif self._conditions and has_arrow():
            yield from map(records_of, self._columns())
        else:
            for name, records in self._reads.existing_records(self._ranges, self._stats):
                yield self._met(name, self._damage.until(name, records))

    def _coming(self, name: TopicPartition, records: "Iterable[Timed]") -> _Rows:
        """Yield the new records of a partition that meet the conditions, and print damage."""
        yield from self._met(name, self._damage.until(name, records))
        self._damage.say()

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
        order = self._order = TimeOrder(
            read=self._read_by_columns if is_columns else self._read_plain,
            first_at=self._first_at,
            ranges=clipped(self._ranges, self._reads.bounds()),
            clock=options.clock,
            window=_COLUMN_WINDOW if is_columns else WINDOW_LEAST,
            stats=self._stats,
        )
        tail = options.tail
        for one in order.first(options.limit) if tail is None else order.last(tail):
            yield one.partition, one.record, one.append_ms

    def _reads_columns(self) -> bool:
        """Whether to read the records by columns instead of one by one.

        Reading by columns is faster for many records, but needs optional packages.
        """
        number = self._options.limit if self._options.tail is None else self._options.tail
        is_small = number is not None and number <= _PLAIN_RECORDS and not self._conditions
        return not is_small and has_arrow()

    def _read_plain(
        self, name: TopicPartition, requested: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        records = self._damage.until(name, self._reads.read(name, requested, stats))
        for _, record, append_ms in self._met(name, records):
            yield record, append_ms

    def _read_by_columns(
        self, name: TopicPartition, requested: RequestedRange, stats: ScanStats
    ) -> "Iterator[Timed]":
        for batch in self._damage.until(name, self._columns_of(name, requested, stats)):
            for _, record, append_ms in records_of(batch):
                yield record, append_ms

    def _first_at(self, name: TopicPartition, ms: int) -> int | None:
        try:
            return self._reads.first_at(name, ms)
        except UNREADABLE as error:
            self._damage.add(name, error)
            return None

    def _write(self, out: Writer, parts: "Iterator[_Rows]") -> None:
        while self._left != 0:
            part = next(parts, None)
            if part is None:
                return
            rows = (self._maker.row(*one) for one in part)
            while self._write_some(out, rows):
                pass
            if self.is_cut and self._left == 0 and not self._options.is_ordered:
                self._look_further(chain(part, chain.from_iterable(parts)))

    def _look_further(self, rows: _Rows) -> None:
        """Find out whether a record follows the shown records."""
        try:
            self._has_more = any(True for _ in rows)
        except TidelogError:
            self._has_more = None  # the read itself has succeeded, so the command does not fail

    def _write_some(self, out: Writer, rows: Iterator[list[Cell]]) -> bool:
        """Write the next rows; return whether more rows may follow.

        If reading fails, the rows that were read before the error are still written.
        """
        size = ROWS_AT_ONCE if self._left is None else min(ROWS_AT_ONCE, self._left)
        chunk: list[list[Cell]] = []
        try:
            chunk.extend(islice(rows, size))
        finally:
            out.write(chunk)
        self._count += len(chunk)
        self._last_row = chunk[-1] if chunk else self._last_row
        if self._left is not None:
            self._left -= len(chunk)
        return len(chunk) == size and self._left != 0
