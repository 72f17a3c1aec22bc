"""`tidelog read --table`: each key's last record as of a time. `tidelog diff`: changed keys."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from operator import eq
from typing import TYPE_CHECKING, Final, TypedDict, cast

import click

from tidelog.amounts import plural, verb
from tidelog.arguments import Inexact
from tidelog.cli import cells, output, times
from tidelog.cli.damage import NO_ROWS, UNREADABLE, Damage
from tidelog.cli.options import (
    Encoding,
    Format,
    ReadFormat,
    clock_option,
    declared_by,
    examples,
    inexact_option,
    key_column_option,
    option,
    read_format_option,
    target_argument,
    value_column_option,
    with_options,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import Place, open_topics, parse_choice, parse_target, place_options
from tidelog.cli.records import (
    TERMINAL_RECORDS,
    Order,
    ReadOptions,
    RowMaker,
    columns_of,
    ends_early,
    left_out_text,
    plain_rows,
    records_of,
    write_columns,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.cli.typed_columns import ColumnForm, TypedColumns
from tidelog.lazy_dataclass import dataclass
from tidelog.record.exact_json import ExactObject, parse, text_of
from tidelog.timespec import TIME_HELP, in_zone
from tidelog.types import ClockName

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.directory import Directory
    from tidelog.keyed import Diff, Table
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.scan.keyed_table import TableStats
    from tidelog.scan.table_rules import Doubt


_DIFF_COLUMNS: Final = output.columns(
    output.detail("topic"),
    "change",
    output.minor(output.number("partition")),
    output.key("key"),
    output.value("before", "after"),
    output.minor(output.number("before_offset", "after_offset")),
    output.minor(
        output.titled(
            before_timestamp=output.time("before_time"), after_timestamp=output.time("after_time")
        )
    ),
)

# Columns of the fields of one key's records.
_FIELD_COLUMNS: Final = output.columns(
    output.minor(output.number("partition")), "field", output.value("before", "after")
)
# Column of a single value, which decides how the value is formatted.
_VALUE: Final = output.value("value")[0]
# Text for a field that one of the two compared values lacks.
_MISSING: Final = "(missing)"
# Maximum depth of inner objects whose fields are compared separately.
_DEPTH_MAX: Final = 20

_CHANGES: Final = ("added", "changed", "deleted")
# Number of equal characters that a table shows before the first difference between two values.
_KEPT_EQUAL: Final = 10


class _DiffRow(TypedDict):
    """A row of a diff. Times are in ms."""

    change: str
    partition: int
    key: bytes
    before: bytes | None
    after: bytes | None
    beforeOffset: int | None
    afterOffset: int
    beforeTimestamp: int | None
    afterTimestamp: int | None


def read_table(surroundings: Surroundings, options: ReadOptions) -> ExitCode:
    """Print the last record of each key, as of a time.

    If a partition is damaged, its rows are left out, and the result is ExitCode.ERROR.

    Raises:
        UsageProblem: An option such as `--from` applies only to reads without `--table`.
        InexactTable: Records of the table may be missing, and `--inexact` is `refuse`.
    """
    _refuse_ranges(options)
    is_cut = ends_early(surroundings, options)
    if is_cut:
        options = replace(options, limit=TERMINAL_RECORDS)
    at_ms = None if options.at is None else times.read_point(surroundings, options.at, options.zone)
    with open_topics(surroundings, options.place) as directory:
        table = directory.table(
            parse_choice(options.target, options.partition),
            at=at_ms,
            clock=options.clock,
            columns=columns_of(directory.source),
            inexact=options.inexact,
        )
        stats, count, has_more = _new_stats(), 0, False
        damage, batches = _sound_rows(surroundings, table, stats)
        if options.kind.is_columns:
            rows = map(options.record_filter().rows, batches)
            typed = TypedColumns(table.schema, options.topic, options.forms)
            write_columns(surroundings, typed, rows, options.limit, options.kind)
        else:
            count, has_more = _print_table(surroundings, batches, options, looks_further=is_cut)
            if not count and options.limit != 0 and not damage:
                surroundings.say(_empty_text(options, at_ms))
        damage.say()
        _note_rule(surroundings, directory, options.topic)
        _note_doubts(surroundings, _doubts(table, damage), options.zone)
        _say(surroundings, table, stats, whole=not has_more if is_cut else options.limit is None)
        if is_cut and has_more:
            shown = plural(count, "key")
            surroundings.note(f"a terminal shows only the first {shown}; more follow")
            surroundings.hint("`| less` or `> FILE` gets all keys; --limit N chooses how many")
    return ExitCode.ERROR if damage else ExitCode.OK


def _sound_rows(
    surroundings: Surroundings, question: "Table | Diff", stats: "TableStats"
) -> "tuple[Damage, Iterator[pa.RecordBatch]]":
    """Return the rows of all undamaged partitions, and the damage, which is found while reading.

    Raises InexactTable immediately, if `Table.to_arrow` does so.
    """
    names = question.source.partitions(question.topic)
    damage = Damage(surroundings, names)
    try:
        planned = question.plan()
    except UNREADABLE:
        planned = {}
        for name in names:  # each is planned separately, so that its own damage is found
            try:
                planned |= replace(question, topic=name).plan()
            except UNREADABLE as error:
                damage.add(name, error, NO_ROWS)
    return damage, chain.from_iterable(
        damage.rows(name, question.rows_of(name, splits, stats)) for name, splits in planned.items()
    )


def _doubts(question: "Table | Diff", damage: Damage) -> "list[Doubt]":
    """Return the doubts about all partitions, except damaged ones, whose rows are left out."""
    names = question.source.partitions(question.topic)
    if not any(map(damage.has, names)):
        return question.doubts()
    sound = [name for name in names if not damage.has(name)]
    return [doubt for name in sound for doubt in replace(question, topic=name).doubts()]


def _refuse_ranges(options: ReadOptions) -> None:
    times_given = {
        "--from": options.start,
        "--to": options.end,
        "--during": options.during,
        "--timestamps": options.timestamps,
    }
    for name, value in times_given.items():
        if value is not None:
            raise UsageProblem(
                f"{name} does not apply with --table; give the time of the table by --at TIME"
            )
    others = {
        "--offset": options.offset is not None,
        "--follow": options.follow,
        "--tail": options.tail is not None,
        "--order time": options.order is Order.TIME,
    }
    for name, is_given in others.items():
        if is_given:
            raise UsageProblem(f"{name} does not apply with --table; leave it out")


def _new_stats() -> "TableStats":
    from tidelog.frames import needs_arrow

    needs_arrow()
    from tidelog.scan.keyed_table import TableStats

    return TableStats()


def _print_table(
    surroundings: Surroundings,
    batches: "Iterable[pa.RecordBatch]",
    options: ReadOptions,
    *,
    looks_further: bool,
) -> tuple[int, bool]:
    """Print the rows of a table; return their number, and whether more rows follow.

    With `looks_further` false, nothing is read only to find out whether more rows follow the limit.
    """
    maker = RowMaker(options)
    out, count, has_more = maker.writer(surroundings), 0, False
    limit, conditions = options.limit, options.record_filter()
    for batch in batches:
        met = conditions.rows(batch)
        chosen = met if limit is None else met.slice(0, min(limit, met.num_rows))
        out.write(maker.row(*one) for one in records_of(chosen))
        count += chosen.num_rows
        limit = None if limit is None else limit - chosen.num_rows
        has_more = met.num_rows > chosen.num_rows
        if limit == 0 and (has_more or not looks_further):
            break
    out.close()
    return count, has_more


def _empty_text(options: ReadOptions, at_ms: int | None) -> str:
    """Return a sentence on a table without rows."""
    when = ""
    if at_ms is not None:
        time = output.time_text(at_ms, options.zone)
        when = f" as of {time} ({options.zone or 'UTC'}, {options.clock} clock)"
    target = options.topic if options.number is None else f"{options.topic}:{options.number}"
    table = f"the table of {target}{when}"
    if options.key is None and options.contains is None and not options.match:
        return f"0 keys; {table} is empty"
    return f"0 keys; no record in {table} meets the conditions"


def _note_rule(
    surroundings: Surroundings, directory: "Directory | RemoteDirectory", topic: str
) -> None:
    """Print a note if the topic's compaction rule is unknown.

    The rule is unknown if the user has no right to read the topic's settings.
    """
    if not directory.source.knows_compaction and not directory.topic(topic).settings:
        surroundings.note(
            f"the record with a key's highest offset counts; whether {topic} has another"
            " compaction rule is unknown, because its settings can't be read"
        )


def _note_doubts(
    surroundings: Surroundings, doubts: "Sequence[Doubt]", zone: str | None, when: str = ""
) -> None:
    """Print why the result may be inexact, with times in `zone`.

    `when` is a condition under which the result is inexact, such as ` if key N1 was ever outside
    partition 0`.
    """
    from tidelog.scan.table_rules import by_reason

    times_ms = [doubt.exact_since_ms for doubt in doubts]
    for text in by_reason(doubts):
        surroundings.note(f"not exact{when}: {in_zone(text, times_ms, zone)}")


def _say(
    surroundings: Surroundings,
    result: "Table | Diff",
    stats: "TableStats",
    *,
    whole: bool,
    effect: tuple[str, str] | None = (
        "has no key and was left out",
        "have no key and were left out",
    ),
) -> None:
    """Print how many records have no time or no key; print nothing if `whole` is false.

    Args:
        surroundings: Its stderr gets the notes.
        result: The table or the difference.
        stats: Statistics of the whole read.
        whole: Whether all records were read.
        effect: The end of a sentence about records without a key, which says which records they are
            and what happened to them. The first text is for one record, the second for several. If
            None, records without a key are not mentioned.
    """
    if not whole:
        return
    if stats.without_time:
        surroundings.note(f"not exact: {left_out_text(stats.without_time, result.clock)}")
    if stats.without_key and effect is not None:
        count = stats.without_key
        surroundings.note(f"{plural(count, 'record')} {verb(count, *effect)}")


# -- diff ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """Options of `tidelog diff`."""

    target: str = declared_by(target_argument)
    place: Place = declared_by(place_options)
    start: str | None = option(
        "--from",
        metavar="TIME",
        help=f"Earlier time (inclusive). Required without --during. {TIME_HELP}.",
    )
    end: str | None = option(
        "--to", metavar="TIME", help="Later time (inclusive). Default: all records."
    )
    during: str | None = option(
        "--during",
        metavar="RANGE",
        help="Instead of --from and --to: show what the records of a range changed, such as a whole"
        " day or month in a zone (2013-02-08Z, 2013-02Z, 'yesterday UTC') or a range A..B (B is not"
        " included). Default: compare the tables of --from and --to.",
    )
    clock: ClockName = declared_by(clock_option)
    key: str | None = option(
        "--key",
        metavar="KEY",
        help="Only this key, interpreted according to --key-as. Default: all.",
    )
    partition: int | None = option(
        "--partition", type=int, metavar="N", help="Only this partition. Default: all."
    )
    inexact: Inexact = declared_by(inexact_option)
    limit: int | None = option(
        "--limit",
        "-n",
        type=click.IntRange(min=0),
        metavar="N",
        help="Maximum number of keys to print; 0 prints only how many keys were added, changed and"
        " deleted. Default: all.",
    )
    kind: ReadFormat = declared_by(read_format_option("How rows are written."))
    key_as: Encoding = declared_by(key_column_option)
    value_as: Encoding = declared_by(value_column_option)
    zone: str | None = declared_by(zone_option)

    @property
    def forms(self) -> dict[str, ColumnForm]:
        """Forms of the binary columns of Arrow and Parquet."""
        return {
            "key": ColumnForm(encoding=self.key_as, option="key", offset="afterOffset"),
            "before": ColumnForm(encoding=self.value_as, option="value", offset="beforeOffset"),
            "after": ColumnForm(encoding=self.value_as, option="value", offset="afterOffset"),
        }


@click.command(
    "diff",
    epilog=examples(
        "tidelog diff flights --from -1d",
        "tidelog diff flights --during 2013-02-08 --zone America/New_York -o json",
        "tidelog diff flights --from 2013-03-01Z --to 2013-04-01Z --limit 0",
        "tidelog diff flights --from 2013-03-01Z --to 2013-04-01Z --key N14228",
        "tidelog diff flights --from -1h --clock append --bootstrap broker:9092",
    ),
)
@with_options(DiffOptions)
def diff(surroundings: Surroundings, options: DiffOptions) -> ExitCode:
    """Show keys added, changed and deleted between two times.

    Compares the topic's tables as of both times (see `tidelog read --table`). A table has the
    last record of each key up to and including the table's time. --during 2013-02-08Z compares
    the tables before the beginning and before the end of this day of UTC, and so shows what changed
    on the 8th.

    Compaction removes superseded records, so past days of a compacted topic are normally no longer
    known. diff then fails; --inexact mark compares the remaining records.

    If both values are JSON objects, a printed table shows their changed fields. If two other values
    begin with the same long text, the table leaves out this text. With --key, a printed table has a
    line for each part of the key's record that has changed. A value that is a JSON object gets a
    line for each changed field. --wide shows whole records.

    A damaged partition is left out, the other partitions are compared completely. The exit code is
    then 1.
    """
    key = None if options.key is None else cells.typed_bytes(options.key, options.key_as)
    before_ms, after_ms = _read_cuts(surroundings, options)
    with open_topics(surroundings, options.place) as directory:
        difference = directory.diff(
            parse_choice(options.target, options.partition),
            before_ms,
            after_ms,
            key=key,
            clock=options.clock,
            inexact=options.inexact,
        )
        stats = _new_stats()
        damage, batches = _sound_rows(surroundings, difference, stats)
        _note_rule(surroundings, directory, parse_target(options.target)[0])
        # With `refuse`, doubts about the key's own partition have already raised an error. So the
        # remaining doubts are about other partitions.
        is_elsewhere = difference.home is not None and options.inexact is Inexact.REFUSE
        if options.kind.is_columns:
            topic, _ = parse_target(options.target)
            typed = TypedColumns(difference.schema, topic, options.forms)
            write_columns(surroundings, typed, batches, options.limit, options.kind)
        else:
            changes = _print_changes(surroundings, batches, options)
            doubts = _doubts(difference, damage)
            gap = "" if is_elsewhere or not doubts else "records are missing"
            if stats.without_time and not is_elsewhere and not gap:
                gap = f"records have no {options.clock.known_time_name}"
            if not damage.is_total:
                gap = damage.left_out_text or gap
                verdict = _diff_verdict(changes, options, (before_ms, after_ms), gap)
                if options.limit == 0:
                    output.print_verdict(surroundings, verdict, Format(options.kind))
                else:
                    surroundings.say(verdict)
            is_short = _is_short(surroundings, options) and options.limit != 0
            if is_short and options.key is None and changes["changed"]:
                surroundings.hint(
                    "`--key KEY` shows the changed fields of one key; `--wide` shows whole values"
                )
        damage.say()
        effect = (
            "up to the later time has no key and is not compared",
            "up to the later time have no key and are not compared",
        )
        when = f" if key {options.key} was ever outside {difference.home}" if is_elsewhere else ""
        _note_doubts(surroundings, _doubts(difference, damage), options.zone, when)
        effects = effect if key is None else None
        is_whole = options.limit is None or not options.kind.is_columns
        _say(surroundings, difference, stats, whole=is_whole, effect=effects)
    return ExitCode.ERROR if damage else ExitCode.OK


def _is_short(surroundings: Surroundings, options: DiffOptions) -> bool:
    return options.kind is ReadFormat.TABLE and not surroundings.is_wide


def _read_cuts(surroundings: Surroundings, options: DiffOptions) -> tuple[int, int | None]:
    """Return the times of both tables in ms, inclusive; a later time of None means all records."""
    start, end, during = options.start, options.end, options.during
    if during is not None:
        start_ms, end_ms = times.read_bounds(surroundings, start, end, options.zone, during=during)
        if start_ms is None:
            raise UsageProblem(
                f"--during {during} has no start; write START..END to compare the table at START"
                " with the table at END"
            )
        # A table as of T includes the records at T, but the range's start belongs to the changes,
        # and its end is exclusive. So both tables are as of 1 ms earlier.
        return start_ms - 1, None if end_ms is None else end_ms - 1
    if start is None:
        raise UsageProblem("give the earlier time with --from, or both times with --during")
    before_ms = times.read_point(surroundings, start, options.zone)
    return before_ms, None if end is None else times.read_point(surroundings, end, options.zone)


def _print_changes(
    surroundings: Surroundings, batches: "Iterable[pa.RecordBatch]", options: DiffOptions
) -> Counter[str]:
    """Print the rows of a diff, at most `--limit`; return the number of keys by kind of change."""
    kind = Format(options.kind)
    changes: Counter[str] = Counter()
    is_short = _is_short(surroundings, options)
    is_by_field = is_short and options.key is not None
    columns = _FIELD_COLUMNS if is_by_field else _DIFF_COLUMNS
    out = output.writer(surroundings, columns, kind, zone=options.zone)
    left = options.limit
    for batch in batches:
        changes.update(cast("list[str]", batch["change"].to_pylist()))
        shown = batch if left is None else batch.slice(0, left)
        left = None if left is None else left - shown.num_rows
        if is_by_field:
            out.write(_field_rows(shown, options))
        else:
            out.write(_diff_rows(shown, options, is_short=is_short))
    if (changes and options.limit != 0) or kind is not Format.TABLE:
        out.close(None if is_by_field else changes.total())
    return changes


def _diff_verdict(
    changes: Counter[str],
    options: DiffOptions,
    times_ms: tuple[int, int | None],
    gap: str,
) -> str:
    """Return a sentence: how many keys were added, changed and deleted, and between which tables.

    `gap` is the reason why the tables are not exact; empty if they are.
    """
    parts = (f"{output.count_text(changes[one])} {one}" for one in _CHANGES)
    keys = f"{plural(changes.total(), 'key')} of {options.target}: {', '.join(parts)}"
    if changes and gap:
        keys += f"; not exact, because {gap}"
    elif gap:
        of = "of keys" if options.key is None else f"of key {options.key}"
        keys = f"0 known differences {of} of {options.target}, but {gap}"
    elif not changes and options.key is None:
        keys = f"0 differences: no key of {options.target} was added, changed or deleted"
    elif not changes:
        same = "has the same value in both tables, or is in neither"
        keys = f"0 differences: key {options.key} of {options.target} {same}"
    is_range = options.during is not None
    before, after = (
        "all records"
        if ms is None
        else f"the table {'before' if is_range else 'as of'}"
        f" {output.time_text(ms + is_range, options.zone)}"
        for ms in times_ms
    )
    return (
        f"{keys}; from {before} to {after} ({options.zone or 'UTC'}, {options.clock} clock, times"
        f" {'exclusive' if is_range else 'inclusive'})"
    )


def _diff_rows(
    batch: "pa.RecordBatch", options: DiffOptions, *, is_short: bool
) -> Iterator[list[Cell]]:
    maker, (topic, _) = cells.decoders(options.kind), parse_target(options.target)
    key, value = maker(options.key_as), maker(options.value_as)
    for row in cast("list[_DiffRow]", plain_rows(batch)):
        old, new = (
            f"{topic}-{row['partition']} offset {offset}"
            for offset in (row["beforeOffset"], row["afterOffset"])
        )
        before = cells.decoded(value, row["before"], "value", old)
        after = cells.decoded(value, row["after"], "value", new)
        if is_short:
            before, after = _short_values(before, after)
        yield [
            topic,
            row["change"],
            row["partition"],
            cells.decoded(key, row["key"], "key", new),
            before,
            after,
            row["beforeOffset"],
            row["afterOffset"],
            row["beforeTimestamp"],
            row["afterTimestamp"],
        ]


def _field_rows(batch: "pa.RecordBatch", options: DiffOptions) -> Iterator[list[Cell]]:
    """Yield a row for each changed field of each record of one key."""
    value, zone = cells.decoders(options.kind)(options.value_as), options.zone
    for row in cast("list[_DiffRow]", plain_rows(batch)):
        offsets = [row["beforeOffset"], row["afterOffset"]]
        before, after = ("-" if one is None else one for one in offsets)
        times_ms = (row["beforeTimestamp"], row["afterTimestamp"])
        first, last = (output.time_text(ms, zone) for ms in times_ms)
        fields: list[tuple[str, Cell, Cell]] = [
            ("offset", before, after),
            (f"timestamp ({zone or 'UTC'})", first, last),
            *_changed_fields("value", value(row["before"]), value(row["after"])),
        ]
        for field, old, new in fields:
            yield [row["partition"], field, old, new]


def _changed_fields(name: str, before: Cell, after: Cell) -> list[tuple[str, Cell, Cell]]:
    """Return name, earlier and later content of each changed field of two JSON objects.

    The name of a field is the name of its object, a dot, and its own name. A value that is not an
    object, or that is an object at the maximum depth, is compared as a whole, as one field. Values
    that are nested almost as deeply as Python can parse are also compared as a whole.
    """
    try:
        return [*_fields_of(name, before, after)]
    except RecursionError:
        return [(name, *_without_equal_start(before, after))]


def _fields_of(
    name: str, before: Cell, after: Cell, depth: int = 0
) -> Iterator[tuple[str, Cell, Cell]]:
    """Yield the result of `_changed_fields` for objects at this depth."""
    first, last = _json_object(before), _json_object(after)
    if first is None or last is None or first == last or depth == _DEPTH_MAX:
        yield name, *_without_equal_start(*_told_apart(before, after))
        return
    for field in {**first, **last}:
        old, new = first.get(field, _MISSING), last.get(field, _MISSING)
        if field in first and field in last and _json_text(old) == _json_text(new):
            continue
        full = f"{name}.{field}"
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            yield from _fields_of(full, old, new, depth + 1)
        else:
            yield full, *_told_apart(old, new)


def _json_text(value: Cell) -> str:
    """Return a value as JSON with sorted fields.

    The texts of true, 1 and 1.0 differ, although these values are equal in Python. The texts of
    numbers that are equal only after rounding to floats differ, too.
    """
    return text_of(value, sort_names=True)


def _told_apart(before: Cell, after: Cell) -> tuple[Cell, Cell]:
    """Return two different values as JSON if their texts are equal, such as `5` and `"5"`."""
    is_same = before == after and _MISSING is not before and _MISSING is not after
    texts = (output.cell_text(_VALUE, one) for one in (before, after))
    if is_same or next(texts) != next(texts):
        return before, after
    # The mark for a missing field is not quoted, so it differs from a value with the same text.
    old, new = (one if one is _MISSING else _json_text(one) for one in (before, after))
    return old, new


def _json_object(value: Cell) -> dict[str, Cell] | None:
    """Return a value that is a JSON object, or whose text is one, as a dict; else None.

    Bytes that a table shows as `{"base64": ...}` are no object. An object with repeated names is
    none either, because its members can't be compared by name.
    """
    content: object = value
    if cells.is_base64(value):
        return None
    if isinstance(value, str):
        try:
            content = parse(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(content, ExactObject):
        return None
    return content if isinstance(content, dict) else None


def _short_values(before: Cell, after: Cell) -> tuple[Cell, Cell]:
    """Return an earlier and a later value for a printed table.

    Two JSON objects are replaced by their changed fields, `delay 118, dest MIA`. Other values lose
    a long common prefix.
    """
    fields = _changed_fields("", before, after)
    if not fields:
        return _without_equal_start(before, after)
    if not fields[0][0]:  # the values are compared as a whole
        _, before, after = fields[0]
        return before, after
    olds: list[str] = []
    news: list[str] = []
    for name, old, new in fields:
        for texts, one in zip((olds, news), _without_equal_start(old, new), strict=True):
            texts.append(f"{name[1:]} {output.cell_text(_VALUE, one)}")
    return ", ".join(olds), ", ".join(news)


def _without_equal_start(before: Cell, after: Cell) -> tuple[Cell, Cell]:
    """Replace a long common prefix by an ellipsis, so that cut cells show the first difference."""
    if not isinstance(before, str) or not isinstance(after, str) or before == after:
        return before, after
    size = sum(takewhile(bool, map(eq, before, after))) - _KEPT_EQUAL
    if size <= _KEPT_EQUAL:
        return before, after
    return f"…{before[size:]}", f"…{after[size:]}"
