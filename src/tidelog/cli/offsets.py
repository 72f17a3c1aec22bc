"""`tidelog offsets` and `tidelog count`: look up offsets by time, and count records in a range."""

from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeVar, cast

import click

from tidelog.amounts import plural, verb
from tidelog.arguments import KEYS_SHOWN, KeyOrder
from tidelog.cli import output, times
from tidelog.cli.count_keys import print_by_key, print_repeated
from tidelog.cli.damage import UNREADABLE
from tidelog.cli.missing import Limits, missing_notes
from tidelog.cli.options import (
    Encoding,
    Format,
    declared_by,
    examples,
    format_option,
    isolation_option,
    key_as_option,
    one_of,
    option,
    option_of,
    refuse_typed,
    target_argument,
    with_options,
    zone_cache_option,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import (
    Place,
    absent_files,
    chosen,
    note_absent,
    open_topics,
    parse_choice,
    parse_target,
    place_options,
    with_files,
)
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.config.values import EARLIEST, LATEST
from tidelog.errors import InvalidRequest
from tidelog.jobs.options import CLOCK, isolation
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import TIME_HELP
from tidelog.timespec.calendar import CalendarUnit
from tidelog.types import (
    INT64_MAX,
    NO_TIMESTAMP,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TopicPartition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tidelog.directory import Directory
    from tidelog.frames import Scan
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.scan.count import Count
    from tidelog.scan.count_by_time import CountsByTime
    from tidelog.scan.key_counts import KeyCounts, RepeatedRecords


MAX: Final = "max"

_Row = TypeVar("_Row")
_Result = TypeVar("_Result")

_isolation_option: Final = option_of(
    "isolation",
    IsolationLevel,
    isolation(
        IsolationLevel.READ_UNCOMMITTED,
        "With --at latest: read_committed leaves out open transactions.",
    ),
)


class LookupClock(StrEnum):
    """Clock of `tidelog offsets` and `tidelog count`."""

    RECORD = "record"
    APPEND = "append"
    BOTH = "both"

    @property
    def clocks(self) -> tuple[ClockName, ...]:
        """The clocks in the order of a partition's rows."""
        return tuple(ClockName) if self is LookupClock.BOTH else (ClockName(self),)


_lookup_clock_option: Final = option_of(
    "clock",
    LookupClock,
    replace(
        CLOCK,
        text=f"{CLOCK.text.removesuffix('.')}; both: a row for each.",
        default=LookupClock.RECORD,
        choices=LookupClock,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsOptions:
    """Options of `tidelog offsets`."""

    target: str = declared_by(target_argument)
    at: str = option(
        "--at", required=True, metavar="TIME", help=f"{TIME_HELP}; or earliest, latest, max."
    )
    place: Place = declared_by(place_options)
    clock: LookupClock = declared_by(_lookup_clock_option)
    isolation: IsolationLevel = declared_by(_isolation_option)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "offsets",
    epilog=examples(
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York'",
        "tidelog offsets flights --at -6h --clock both",
        "tidelog offsets flights --at -6h --clock append -o json",
        "tidelog offsets flights --at earliest --clock both",
        "tidelog offsets flights:0 --at latest --isolation read_committed",
        "tidelog offsets flights --at -6h --bootstrap broker:9092",
    ),
)
@with_options(OffsetsOptions)
def offsets(surroundings: Surroundings, options: OffsetsOptions) -> None:
    """Find offsets by time, in each partition.

    The result is the first offset whose record has the time of --at or a later one, and the time of
    that record. --at earliest finds the first offset, --at max the record with the largest time.
    --at latest is the offset after the last record, so it has no time. `tidelog describe TOPIC`
    shows the first and the last time of all partitions on both clocks. `tidelog read --during`
    prints the records in a time range.
    """
    topic, number = parse_target(options.target)
    if options.isolation is IsolationLevel.READ_COMMITTED and options.at not in (EARLIEST, LATEST):
        raise UsageProblem(
            "--isolation read_committed is only for --at latest, because a lookup by time also"
            " finds records of open and aborted transactions; `tidelog read TOPIC:P --from TIME"
            " --isolation read_committed --limit 1` prints the first committed record"
        )
    with open_topics(surroundings, options.place) as directory:
        names = chosen(topic, directory.partitions(topic), number)
        note_absent(surroundings, directory, topic, number, options.place.access)
        names = with_files(directory, names, options.place.access)
        time_ms = None
        if options.at not in (EARLIEST, LATEST, MAX):
            time_ms = times.read_point(surroundings, options.at, options.zone)
        matches, notes = _on_known_clocks(
            options.clock,
            "offsets",
            lambda clock: _matches(directory, names, time_ms, options, clock),
        )
        ranges = dict.fromkeys(names, Limits(start_ms=time_ms))
        _print_matches(surroundings, options, directory, matches)
        for clock in matches:
            notes += missing_notes(directory, ranges, clock, options.zone)
    for note in dict.fromkeys(notes):
        surroundings.note(note)


def _on_known_clocks(
    clock: LookupClock, results: str, evaluate: "Callable[[ClockName], _Result]"
) -> tuple[dict[ClockName, _Result], list[str]]:
    """Return a result for each clock, and notes on clocks without a result.

    If brokers don't know append times, `--clock both` has a result for the record clock only.

    Args:
        clock: The requested clock, or both.
        results: Plural noun for the results in a note.
        evaluate: Returns the result on a clock.

    Raises:
        InvalidRequest: The first clock has no result.
    """
    found: dict[ClockName, _Result] = {}
    notes: list[str] = []
    for one in clock.clocks:
        try:
            found[one] = evaluate(one)
        except InvalidRequest as error:  # the brokers don't know append times
            if not found:
                raise
            notes.append(f"no {results} on the {one} clock: {error}")
    return found, notes


def _print_matches(
    surroundings: Surroundings,
    options: OffsetsOptions,
    directory: "Directory | RemoteDirectory",
    matches: dict[ClockName, dict[TopicPartition, TimeMatch]],
) -> None:
    """Print a row for each partition and clock, and notes on records whose time is unknown."""
    is_single = len(options.clock.clocks) == 1
    time_name = next(iter(matches)).time_name if is_single else "time"
    columns = output.columns(
        output.detail("topic"),
        output.number("partition"),
        *(() if is_single else ("clock",)),
        output.number("offset"),
        output.titled(**{time_name: output.time("time")}),
        output.detail(output.number("leader_epoch")),
    )
    for clock, by_partition in matches.items():
        missing = sum(match.hit is None for match in by_partition.values())
        if missing:
            partitions = f"{missing} of {plural(len(by_partition), 'partition')}"
            verdict = (
                f"{partitions} {verb(missing, 'has', 'have')} no record at or after {options.at}"
                f"{'' if is_single else f' on the {clock} clock'}"
            )
            output.print_verdict(surroundings, verdict, options.kind)
    every = [(name, clock) for name in next(iter(matches.values())) for clock in matches]
    rows = [
        _row(name, () if is_single else (clock,), matches[clock][name].hit) for name, clock in every
    ]
    if options.kind is Format.TABLE and surroundings.is_wide and options.place.access is None:
        columns += output.columns("segment_file")
        for (name, clock), row in zip(every, rows, strict=True):
            hit = matches[clock][name].hit
            offset = None if hit is None else hit.offset
            row.append(_segment_file(cast("Directory", directory), name, offset))
    # One number for each partition: how many records before the result have no known append time.
    # If the partition has no result, all of its records are counted. The number is None if brokers
    # don't report it.
    unknown: list[int | None] = []
    if ClockName.APPEND in options.clock.clocks and options.at not in (EARLIEST, LATEST):
        unknown = [match.without_time for match in matches.get(ClockName.APPEND, {}).values()]
        if options.kind is not Format.TABLE or surroundings.is_wide or any(unknown):
            columns += output.titled(without_append_time=output.count("without_time"))
            for (name, clock), row in zip(every, rows, strict=True):
                is_append = clock is ClockName.APPEND
                row.append(matches[clock][name].without_time if is_append else None)
    output.print_rows(surroundings, columns, rows, options.kind, zone=options.zone)
    total = sum(count or 0 for count in unknown)
    on_clock = "" if is_single else f" on the {ClockName.APPEND} clock"
    if total:
        surroundings.note(
            f"the append time of {plural(total, 'record')} before these offsets{on_clock} is"
            f" unknown; {verb(total, 'this record', 'any of these records')} may match"
        )
    if None in unknown:
        surroundings.note(
            f"brokers don't report how many records before these offsets{on_clock} have no known"
            " append time; any of these records may match"
        )


def _segment_file(directory: "Directory", name: TopicPartition, offset: Cell) -> str | None:
    """Return the path of the log file that contains an offset; `in the tier` for a tiered segment.

    Return None for the log end offset, and if there is no offset.
    """
    log = directory.log_dir.reader(name.topic, name.partition)
    segment = log.segment_of(offset) if isinstance(offset, int) else None
    if segment is None:
        return None
    return "in the tier" if segment.is_tiered else segment.log_path


def _matches(
    directory: "Directory | RemoteDirectory",
    partitions: list[TopicPartition],
    time_ms: int | None,
    options: OffsetsOptions,
    clock: ClockName,
) -> dict[TopicPartition, TimeMatch]:
    """Return the result for each partition; `time_ms` is None if `--at` is not a time."""
    if options.at == EARLIEST:
        return _first_records(directory, partitions, clock)
    if options.at == LATEST:
        ends = directory.end_offsets(partitions, isolation=options.isolation)
        return {p: _bound(ends[p]) for p in partitions}
    if time_ms is None and clock is ClockName.APPEND and partitions:
        return _last_appended(directory, partitions)
    if time_ms is None:
        largest = directory.max_timestamps(partitions)
        return {p: TimeMatch(largest[p], 0) for p in partitions}
    matches = directory.search_times(dict.fromkeys(partitions, time_ms), clock)
    return {p: matches[p] for p in partitions}


def _first_records(
    directory: "Directory | RemoteDirectory", partitions: list[TopicPartition], clock: ClockName
) -> dict[TopicPartition, TimeMatch]:
    """Return each partition's first offset, with the time of the record that has this offset.

    Without such a record, or if it can't be read or its time is unknown, there is no time.
    """
    starts = directory.beginning_offsets(partitions)
    firsts: dict[TopicPartition, OffsetAndTimestamp | None] = dict.fromkeys(partitions)
    with suppress(*UNREADABLE):
        matches = directory.search_times(dict.fromkeys(partitions, 0), clock)
        firsts = {name: match.hit for name, match in matches.items()}
    both = {name: (starts[name], firsts[name]) for name in partitions}
    return {
        name: TimeMatch(first, 0) if first and first.offset == start else _bound(start)
        for name, (start, first) in both.items()
    }


def _last_appended(
    directory: "Directory | RemoteDirectory", partitions: list[TopicPartition]
) -> dict[TopicPartition, TimeMatch]:
    """Return the first record with the largest append time of each partition of a topic."""
    topic, last_ms = partitions[0].topic, dict.fromkeys(partitions, INT64_MAX)
    for name, span in directory.time_spans(topic, clock=ClockName.APPEND).items():
        if name in last_ms and span.last_ms is not None:
            last_ms[name] = span.last_ms
    matches = directory.search_times(last_ms, ClockName.APPEND)
    return {name: matches[name] for name in partitions}


def _bound(offset: int) -> TimeMatch:
    return TimeMatch(OffsetAndTimestamp(offset, NO_TIMESTAMP), 0)


def _row(
    name: TopicPartition, clock: "Sequence[Cell]", answer: OffsetAndTimestamp | None
) -> list[Cell]:
    start: list[Cell] = [name.topic, name.partition, *clock]
    if answer is None:
        return [*start, None, None, None]
    return [*start, answer.offset, answer.timestamp, answer.leader_epoch]


class CountBy(StrEnum):
    """Groups of records that `tidelog count` counts: by time, or by key."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOptions:
    """Options of `tidelog count`."""

    target: str = declared_by(target_argument)
    start: str | None = declared_by(times.from_option)
    end: str | None = declared_by(times.to_option)
    during: str | None = declared_by(times.during_option)
    place: Place = declared_by(place_options)
    clock: LookupClock = declared_by(_lookup_clock_option)
    timestamps: str | None = declared_by(times.timestamps_option)
    by: CountBy | None = declared_by(
        one_of(
            "--by",
            kind=CountBy,
            default=None,
            text="Count each hour, day, week (from Monday) or month of --zone, including those"
            " without records; or the largest keys. Reads all records in the range. Default: one"
            " count of the range.",
        )
    )
    is_repeated: bool = option(
        "--repeated",
        is_flag=True,
        help="Find records that occur more than once: same key, value and create time. Reads all"
        " records in the range, usually twice.",
    )
    any_time: bool = option(
        "--any-time",
        is_flag=True,
        help="With --repeated: the create times may differ. Default: they must be equal.",
    )
    order: KeyOrder | None = declared_by(
        one_of(
            "--order",
            kind=KeyOrder,
            default=None,
            text="With --by key: the keys with most bytes or most records first. Default: bytes.",
        )
    )
    limit: int | None = option(
        "--limit",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --by key or --repeated: maximum number of keys or records. Records without a key"
        f" have a line of their own. Default: {KEYS_SHOWN}.",
    )
    key_as: Encoding = declared_by(key_as_option)
    isolation: IsolationLevel = declared_by(isolation_option)
    zone_cache: str | None = declared_by(zone_cache_option)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "count",
    epilog=examples(
        "tidelog count flights --during '2013-02-08 12:00..13:00 America/New_York'",
        "tidelog count flights --during 2013-02-08..+7d --zone America/New_York",
        "tidelog count flights --by day --during 2013-02 --zone America/New_York",
        "tidelog count flights:0 --from -6h --clock append -o json",
        "tidelog count flights --from -1h --clock append --timestamps ..-1h",
        "tidelog count flights --from -6h --clock both",
        "tidelog count flights --by hour --during 'yesterday UTC' --clock both",
        "tidelog count flights:2 --by key",
        "tidelog count flights --by key --order records -n 20 -o csv",
        "tidelog count flights --repeated --from -1d",
        "tidelog count flights --isolation read_committed",
        "tidelog count flights --from -6h --bootstrap broker:9092",
    ),
)
@with_options(CountOptions)
def count(surroundings: Surroundings, options: CountOptions) -> None:
    """Count the records in a time range, also by hour, day or key.

    The counts are exact. In a directory, most records are counted from zone maps. Records are read
    only where zone maps are not enough: in segments without a zone map, in zones that are partly in
    the range, and, with read_committed, in zones with transactions. --wide shows how much was read.
    Damage in records that are not read is not found; `tidelog doctor` finds it. --by reads all
    records in the range and prints a line for each hour, day, week or month; the first and the last
    line count only the records in the range.

    --clock append --during A --timestamps B counts on both clocks: the records that arrived in A
    and were created in B. --clock both counts the records of one range by timestamp, and by append
    time; with --by hour, day, week or month, each line has both counts. `tidelog latency TOPIC
    --late --by day` counts the records that were created on one day and appended on another.

    --by key shows why a partition is the largest: the keys with most bytes. A byte count is the
    sum of the sizes of keys and values, without headers and before compression. --repeated shows
    whether records came twice.
    """
    _refuse_contradictions(options)
    if options.by is not None and options.zone_cache is not None:
        raise UsageProblem(
            "--by reads the records, so --zone-cache has no use; leave out --by or --zone-cache"
        )
    if options.place.access is not None and options.zone_cache is not None:
        raise UsageProblem("--zone-cache applies to a directory's files; leave it out for a broker")
    start_ms, end_ms = times.read_bounds(
        surroundings, options.start, options.end, options.zone, during=options.during
    )
    timestamps = times.read_timestamps(
        surroundings, options.timestamps, options.zone, options.clock, (start_ms, end_ms)
    )
    choice, (topic, number) = parse_choice(options.target), parse_target(options.target)
    with open_topics(surroundings, options.place) as directory:
        if error := absent_files(directory, topic, number, options.place.access):
            raise error

        def scan(clock: ClockName) -> "Scan":
            return directory.scan(
                choice,
                start=start_ms,
                end=end_ms,
                clock=clock,
                timestamps=timestamps,
                isolation=options.isolation,
            )

        clocks, notes = _print_counted(surroundings, options, scan)
        limits = Limits(start_ms=start_ms, end_ms=end_ms)
        ranges = dict.fromkeys(directory.source.partitions(choice), limits)
        for clock in clocks:
            notes += missing_notes(directory, ranges, clock, options.zone)
    for note in dict.fromkeys(notes):
        surroundings.note(note)


def _print_counted(
    surroundings: Surroundings, options: CountOptions, scan: "Callable[[ClockName], Scan]"
) -> "tuple[Iterable[ClockName], list[str]]":
    """Print the counts; return their clocks, and notes on requested clocks without counts."""
    if options.is_repeated or options.by is CountBy.KEY:
        _print_keys(surroundings, options, scan(ClockName(options.clock)))
        return options.clock.clocks, []
    if options.by is not None:
        unit = options.by.value
        by_time, notes = _on_known_clocks(
            options.clock, "counts", lambda clock: scan(clock).counts_by(unit, zone=options.zone)
        )
        _print_by_time(surroundings, options, by_time)
        return by_time, notes
    counts, notes = _on_known_clocks(
        options.clock, "counts", lambda clock: scan(clock).counts(zone_cache=options.zone_cache)
    )
    _print_whole(surroundings, options, counts)
    return counts, notes


def _refuse_contradictions(options: CountOptions) -> None:
    is_by_key = options.by is CountBy.KEY
    if not (is_by_key or options.is_repeated):
        refuse_typed(("key_as",), "is only for --by key and --repeated; add one of these")
    if options.is_repeated and options.by is not None:
        raise UsageProblem("--repeated lists records; leave out --by or --repeated")
    if options.any_time and not options.is_repeated:
        raise UsageProblem("--any-time is only for --repeated; add --repeated")
    if options.order is not None and not is_by_key:
        raise UsageProblem("--order is only for --by key; add --by key")
    if options.limit is not None and not (is_by_key or options.is_repeated):
        raise UsageProblem("--limit is only for --by key and --repeated; add one of these")
    if options.clock is LookupClock.BOTH:
        if options.is_repeated or options.by is CountBy.KEY:
            name = "--repeated" if options.is_repeated else f"--by {options.by}"
            raise UsageProblem(
                f"--clock both gives two counts of a range; leave {name} out, or choose one clock"
            )
        if not _has_range(options):
            raise UsageProblem("--clock both gives two counts of a range; add --during RANGE")
    if options.is_repeated and options.zone_cache is not None:
        raise UsageProblem("--repeated reads the records, so --zone-cache has no use; leave it out")


def _print_keys(surroundings: Surroundings, options: CountOptions, scan: "Scan") -> None:
    """Print the largest keys, or the records that occur more than once."""
    limit, form = options.limit or KEYS_SHOWN, (options.kind, options.key_as)
    counts: KeyCounts | RepeatedRecords
    if options.is_repeated:
        counts = scan.repeated(limit=limit, with_times=not options.any_time)
        counted = _counted(options, counts.records)
        print_repeated(surroundings, counts, counted, options.target, form, options.zone)
        if not counts.repeated and not options.any_time and counts.records:
            surroundings.note(
                "records with the same key and value but other create times are not compared;"
                " --any-time compares them, too"
            )
    else:
        order = options.order or KeyOrder.BYTES
        counts = scan.counts_by_key(limit=limit, order_by=order)
        counted = _counted(options, counts.records)
        print_by_key(surroundings, counts, order, counted, options.target, form)
    at_least = "at least " if counts.is_least else ""
    _say_untimed(surroundings, ClockName(options.clock), counts.without_time, at_least)
    _say_untimed(surroundings, ClockName.RECORD, counts.without_timestamp, "at least ")


def _print_whole(
    surroundings: Surroundings, options: CountOptions, counts: "dict[ClockName, Count]"
) -> None:
    """Print the count of the whole range on each clock, and a row for each partition."""
    output.print_verdict(surroundings, count_verdict(options, counts), options.kind)
    _print_counts(surroundings, options, counts)
    for line in dict.fromkeys(line for one in counts.values() for line in one.reports):
        surroundings.report(line)
    for clock, one in counts.items():
        is_unknown = any(part.without_time is None for part in one.partitions.values())
        at_least = "at least " if one.is_least else ""
        _say_untimed(surroundings, clock, None if is_unknown else one.without_time, at_least)
        _say_untimed(surroundings, ClockName.RECORD, one.without_timestamp, "at least ")


def _say_untimed(
    surroundings: Surroundings, clock: ClockName, number: int | None, at_least: str = ""
) -> None:
    """Print how many records have no time; None means unknown, and 0 prints nothing."""
    if number is None:
        surroundings.say("brokers do not report how many records have no known append time")
    elif number:
        have, are = verb(number, "has", "have"), verb(number, "is", "are")
        surroundings.say(
            f"{at_least}{plural(number, 'record')} {have} no {clock.known_time_name}"
            f" and {are} not counted in any range"
        )


def _print_by_time(
    surroundings: Surroundings, options: CountOptions, counts: "dict[ClockName, CountsByTime]"
) -> None:
    """Print a row for each hour, day, week or month, with the count on each requested clock."""
    assert options.by is not None
    clocks, unit = options.clock.clocks, CalendarUnit(options.by)
    units = _counted_units(counts)
    records = {clock: one.records for clock, one in counts.items()}
    verdict = f"{_counted_on_clocks(options, records)}, in {plural(len(units), unit.value)}"
    output.print_verdict(surroundings, verdict, options.kind)
    names = ["records"]
    if len(clocks) > 1:
        names = [f"records_by_{clock.time_name.replace(' ', '_')}" for clock in clocks]
    columns = output.columns(
        output.detail("topic", output.number("partition")),
        output.time("start"),
        output.detail(output.time("end")),
        output.count(*names),
    )
    target = parse_target(options.target)
    rows: list[list[Cell]] = [
        [*target, start_ms, end_ms, *(by_clock.get(clock) for clock in clocks)]
        for start_ms, end_ms, by_clock in units
    ]
    shown = rows
    if options.kind is Format.TABLE:
        parts = collapsed(rows, unit, lambda row: not any(row[-len(clocks) :]))
        none = [0 if clock in counts else None for clock in clocks]
        shown = [[*target, one, None, *none] if isinstance(one, str) else one for one in parts]
    output.print_rows(surroundings, columns, shown, options.kind, zone=options.zone)
    for clock, of_clock in counts.items():
        at_least = "at least " if of_clock.is_least else ""
        _say_untimed(surroundings, clock, of_clock.without_time, at_least)
        _say_untimed(surroundings, ClockName.RECORD, of_clock.without_timestamp, "at least ")


def _counted_units(
    counts: "dict[ClockName, CountsByTime]",
) -> "list[tuple[int, int, dict[ClockName, int]]]":
    """Return start, end and counts by clock of each unit of time that has a count on any clock.

    Counts on two clocks have a common start or end, because a range is requested. So the units of
    one clock include all units of the other clock, with the same ends. Without a requested start,
    the first unit of a clock may be cut at 1970.
    """
    starts: dict[int, int] = {}
    records: dict[int, dict[ClockName, int]] = {}
    for clock, by_time in counts.items():
        for one in by_time.counts:
            starts[one.end_ms] = min(one.start_ms, starts.get(one.end_ms, one.start_ms))
            records.setdefault(one.end_ms, dict.fromkeys(counts, 0))[clock] = one.records
    return [(starts[end_ms], end_ms, records[end_ms]) for end_ms in sorted(records)]


# Maximum number of consecutive empty rows (rows without records) in a table. A longer series of
# empty rows is replaced by one row.
_ZEROS_MAX: Final = 31


def collapsed(
    rows: "Iterable[_Row]", unit: CalendarUnit, is_empty: "Callable[[_Row], bool]"
) -> "Iterator[_Row | str]":
    """Yield the rows; one text replaces more than `_ZEROS_MAX` consecutive empty rows."""
    for is_zero, run in groupby(rows, is_empty):
        same = list(run)
        if is_zero and len(same) > _ZEROS_MAX:
            yield f"... {plural(len(same), unit.value)} without records"
        else:
            yield from same


def count_verdict(options: CountOptions, counts: "dict[ClockName, Count]") -> str:
    """Return the number of records on each clock in one sentence."""
    number = len(next(iter(counts.values())).partitions)
    partitions = f", in {plural(number, 'partition')}" if number != 1 else ""
    records = {clock: one.records for clock, one in counts.items()}
    return f"{_counted_on_clocks(options, records)}{partitions}"


def _counted_on_clocks(options: CountOptions, records: dict[ClockName, int]) -> str:
    """Return the beginning of a sentence: the number of records on each clock."""
    (clock, first), *others = records.items()
    more = "".join(
        f" and {number:,} in this range of {other.time_name}s" for other, number in others
    )
    return f"{_counted(options, first, clock)}{more}"


def _has_range(options: CountOptions) -> bool:
    return any(side is not None for side in (options.start, options.end, options.during))


def _counted(options: CountOptions, records: int, clock: ClockName | None = None) -> str:
    name = (clock or ClockName(options.clock)).time_name
    range_words = f" in this range of {name}s" if _has_range(options) else ""
    if options.timestamps is not None:
        range_words += f" and this range of {ClockName.RECORD.time_name}s"
    return f"{options.target} has {plural(records, 'record')}{range_words}"


def _print_counts(
    surroundings: Surroundings, options: CountOptions, counts: "dict[ClockName, Count]"
) -> None:
    """Print a row for each partition; if a table has several partitions, also print their sum."""
    is_table, is_single = options.kind is Format.TABLE, len(options.clock.clocks) == 1
    rows: list[list[Cell]] = []
    for clock, one in counts.items():
        own: list[list[Cell]] = [
            [
                name.topic,
                name.partition,
                part.records,
                part.without_time,
                clock,
                part.from_zone_maps,
                part.log_bytes,
                part.sidecar_bytes,
            ]
            for name, part in one.partitions.items()
        ]
        if is_table and len(own) == 1 and not surroundings.is_wide:
            return  # the verdict states the count
        if is_table and len(own) > 1:
            records, without, read, log_bytes, sidecar_bytes = (
                _sum([row[index] for row in own]) for index in (2, 3, 5, 6, 7)
            )
            figures = (read, log_bytes, sidecar_bytes)
            own.append([None, "total", records, without, clock, *figures])
        rows += own
    heading = f"without {next(iter(counts)).time_name if is_single else 'time'}"
    clock_column = output.columns("clock")
    columns = output.columns(
        output.detail("topic"),
        output.number("partition"),
        output.count("records"),
        output.detail(output.titled(**{heading: output.count("without_time")})),
        output.detail(clock_column) if is_single else clock_column,
        output.detail(
            output.count("from_zone_maps"),
            output.size("log_bytes_read", "sidecar_bytes_read"),
        ),
    )
    output.print_rows(surroundings, columns, rows, options.kind)


def _sum(column: "list[Cell]") -> int | None:
    """Return the sum of a column; None if a cell is None, which means unknown."""
    return None if None in column else sum(int(str(cell)) for cell in column)
