"""Table output: formatters, and tables that fit the terminal."""

import importlib
import io
import json
import pkgutil

import pytest
from rich.cells import cell_len
from tests.worlds.command_line import Cli

import tidelog.cli
from tidelog.cli import output
from tidelog.cli.options import Format
from tidelog.cli.output import Columns, Kind, Row
from tidelog.cli.output.column import Column
from tidelog.cli.surroundings import Surroundings
from tidelog.remote.view import Count

STORM_MS = 1_360_342_800_000  # 2013-02-08T17:00Z
NEW_YORK = "America/New_York"


def printed(
    columns: Columns,
    rows: list[Row],
    kind: Format = Format.TABLE,
    *,
    width: int | None = None,
    is_wide: bool = False,
    zone: str | None = None,
    total: int | None = None,
) -> list[str]:
    out = io.StringIO()
    variables = {} if width is None else {"COLUMNS": f"{width}"}
    surroundings = Surroundings(stdout=out, variables=variables, is_wide=is_wide)
    output.print_rows(surroundings, columns, rows, kind, zone=zone, total=total)
    return out.getvalue().splitlines()


# -- formatters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.005, "5ms"),
        (0.9994, "999ms"),
        (0.9996, "1s"),
        (3.21, "3.2s"),
        (59.94, "59.9s"),
        (59.96, "1m"),
        (125, "2m5s"),
        (7_199.7, "2h"),
        (77_700, "21h35m"),
        (86_399.9, "1d"),
        (435_456_000, "5040d"),
        (-119.808, "-2m"),
        (float("inf"), "forever"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert output.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (124_827_582, "125 MB"),
        (3 << 40, "3.3 TB"),
        (-5_000, "-5 kB"),
    ],
)
def test_bytes_have_three_digits(size: int, text: str) -> None:
    assert output.bytes_text(size) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.21834097441622918, "22%"),
        (0.05, "5.0%"),
        (0.000123, "0.012%"),
        (0.9996, "99.960%"),
        (0.015625, "1.6%"),
    ],
)
def test_shares_have_two_digits_and_never_hide_a_rest(share: float, text: str) -> None:
    assert output.share_text(share) == text


def test_counts_have_separators_and_upper_bounds_a_mark() -> None:
    assert output.count_text(336_776) == "336,776"
    assert output.count_text(Count(1_200, is_exact=True)) == "1,200"
    assert output.count_text(Count(1_200, is_exact=False)) == "<=1,200"
    assert output.plural(1, "record") == "1 record"
    assert output.plural(1_939, "record") == "1,939 records"


@pytest.mark.parametrize(
    ("ms", "zone", "text"),
    [
        (STORM_MS, None, "2013-02-08 17:00:00"),
        (STORM_MS + 7, None, "2013-02-08 17:00:00.007"),
        (STORM_MS, NEW_YORK, "2013-02-08 12:00:00"),
        (STORM_MS, "+05:30", "2013-02-08 22:30:00"),
        # The clock shows 01:30 twice on this day, because daylight saving time ends.
        (1_383_456_600_000, NEW_YORK, "2013-11-03 01:30:00-04:00"),
        (1_383_460_200_000, NEW_YORK, "2013-11-03 01:30:00-05:00"),
        (1_383_463_800_000, NEW_YORK, "2013-11-03 02:30:00"),
        (None, None, "-"),
        (-1, None, "-"),
        (-5, None, "-5 ms"),
        (1 << 62, None, f"{1 << 62} ms"),
    ],
)
def test_times_stand_without_their_zone(ms: int | None, zone: str | None, text: str) -> None:
    assert output.time_text(ms, zone) == text


def test_null_and_empty_differ_from_texts_that_look_like_them() -> None:
    column = output.key("key")[0]
    cells = [None, "", "(null)", '"(null)"', "(empty)", "a", {"base64": "AQ=="}, "\x1b[2J"]
    shown = [output.cell_text(column, cell) for cell in cells]
    assert shown == [
        *("(null)", "(empty)", '"(null)"', '""(null)""', '"(empty)"', "a"),
        *('{"base64": "AQ=="}', "\\x1b[2J"),
    ]


# -- tables --------------------------------------------------------------------------------------

COLUMNS = output.columns(
    "topic",
    output.number("partition", "log_start_offset"),
    output.size("log_bytes"),
    output.minor(output.time("first_append"), "topic_id"),
    output.detail("epoch"),
    "remarks",
)
ROW = [
    "flights",
    0,
    1234567,
    124_827_582,
    STORM_MS,
    "h6s1xb0HTz6h",
    7,
    "nothing to see here at all",
]


def test_a_table_that_is_piped_keeps_its_columns() -> None:
    heading, row = printed(COLUMNS, [ROW])
    words = "TOPIC PARTITION LOG START OFFSET LOG FIRST APPEND (UTC) TOPIC ID REMARKS"
    assert heading.split() == words.split()
    assert row.split() == [
        *("flights", "0", "1234567", "125", "MB", "2013-02-08", "17:00:00", "h6s1xb0HTz6h"),
        *("nothing", "to", "see", "here", "at", "all"),
    ]


def test_a_table_fits_by_stacked_headings_shorter_text_and_fewer_columns() -> None:
    stacked = printed(COLUMNS, [ROW, ROW], width=100)
    assert stacked[0].split() == ["LOG", "FIRST"]
    assert stacked[-1].endswith("all")
    shorter = printed(COLUMNS, [ROW, ROW], width=90)
    assert shorter[-2].endswith("…")
    assert shorter[-1].startswith("cut: ")
    assert shorter[-1].endswith("; --wide shows it")
    fewer = printed(COLUMNS, [ROW, ROW], width=80)
    assert fewer[-1] == "not shown: topic id; --wide shows it"
    least = printed(COLUMNS, [ROW, ROW], width=12)
    assert least[0] == "TOPIC"
    assert " ".join(least[3:]).startswith("not shown: partition, log")


TWICE = output.columns(
    output.number("offset"),
    output.time("timestamp"),
    output.minor(output.time("append_time")),
    output.key("key", least=8),
)


def test_a_narrow_table_has_the_day_of_a_rows_times_once() -> None:
    rows: list[Row] = [[0, STORM_MS + 7, STORM_MS + 60_123, "k" * 20], [1, None, STORM_MS, "k"]]
    assert printed(TWICE, rows[:1] * 2, width=55) == [
        "                                 APPEND",
        "        TIMESTAMP                TIME",
        "OFFSET  (UTC)                    (UTC)         KEY",
        *["     0  2013-02-08 17:00:00.007  17:01:00.123  kkkkkkk…"] * 2,
        "cut: key; --wide shows it",
    ]
    next_day: list[Row] = [[0, STORM_MS, STORM_MS + 86_400_000, "k" * 20]] * 2
    lines = printed(TWICE, next_day, width=60)
    assert lines[-2] == "     0  2013-02-08 17:00:00  2013-02-09 17:00:00  kkkkkkkkk…"
    assert printed(TWICE, next_day, width=54)[-1] == "not shown: append time; --wide shows it"
    assert "2013-02-08 17:00:00  k" in printed(TWICE, rows, width=62)[-2]


PAIRS = output.columns(output.number("offset"), output.key("key"), output.value("value"))


def flight(number: int, day: int = 8) -> Row:
    value = {"year": 2013, "month": 2, "day": day, "number": number, "carrier": "United"}
    return [number, "N1", json.dumps(value, separators=(",", ":"))]


def test_rows_whose_values_would_look_alike_show_where_they_differ() -> None:
    rows = [flight(101), flight(205), [3, "N1", None], flight(206)]
    assert printed(PAIRS, rows, width=66) == [
        "OFFSET  KEY  VALUE",
        '   101  N1   …"number":101,"carrier":"United"}',
        '   205  N1   …"number":205,"carrier":"United"}',
        "     3  N1   (null)",
        '   206  N1   …"number":206,"carrier":"United"}',
        '… at the start of value means {"year":2013,"month":2,"day":8,',
    ]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["same" * 20] * 2, ["samesamesamesamesam…"] * 2),
        (["a" + "b" * 40, "c" + "b" * 40], ["a" + "b" * 18 + "…", "c" + "b" * 18 + "…"]),
        (["0" * 30 + "1", "0" * 30 + "2"], ["…1", "…2"]),
        (["{'a': " + "1" * 30, "{'a': " + "1" * 29 + "2"], ["…1", "…2"]),
        (
            ["{'a' : 1}, " + "x" * 18, "{'a' : 1}, " + "x" * 17 + "y"],
            ["…" + "x" * 18, "…" + "x" * 17 + "y"],
        ),
    ],
)
def test_a_start_is_left_out_only_if_rows_differ_after_it(
    values: list[str], shown: list[str]
) -> None:
    lines = printed(PAIRS, [[at, "k", value] for at, value in enumerate(values)], width=40)
    assert [line.split(maxsplit=2)[2] for line in lines[1:3]] == shown


@pytest.mark.parametrize("kind", [Format.TABLE, Format.JSON, Format.CSV])
def test_only_a_table_that_fits_a_terminal_leaves_out_starts(kind: Format) -> None:
    rows = [flight(101), flight(205)]
    piped = printed(PAIRS, rows, kind)
    assert "2013" in piped[-1]
    assert printed(PAIRS, rows, kind, is_wide=True, width=66)[-1].count("2013") == 1


def test_later_rows_keep_the_start_that_the_first_rows_have() -> None:
    rows = [flight(number) for number in range(100, 600)]
    lines = printed(PAIRS, [*rows, flight(600), flight(601, day=9)], width=66)
    assert lines[502:504] == [
        '   600  N1   …"number":600,"carrier":"United"}',
        '   601  N1   {"year":2013,"month":2,"day":9,"…',
    ]
    assert sum(line.startswith("… at the start") for line in lines) == 1


def test_a_later_heading_leaves_out_a_zone_that_would_widen_its_column() -> None:
    rows: list[Row] = [[0, STORM_MS, STORM_MS + 60_000, "k" * 20]] * 2
    lines = printed(TWICE, rows, width=50, zone=NEW_YORK)
    assert lines[1].split() == ["OFFSET", f"({NEW_YORK})", "TIME", "KEY"]
    assert lines[-2].startswith("     0  2013-02-08 12:00:00  12:01:00  k")


def test_a_row_with_times_of_several_days_keeps_all_of_them() -> None:
    columns = output.columns(output.time("largest", "first", "last"), output.number("end"))
    day = 86_400_000
    rows: list[Row] = [[STORM_MS, STORM_MS - day, STORM_MS, 7]] * 2
    for width in range(40, 80):
        for line in printed(columns, rows, width=width):
            assert " 17:00:00" not in line.replace("2013-02-08 17", "").replace("2013-02-07 17", "")


OPTIONAL = output.columns(
    output.number("partition"),
    output.minor(output.count("segments")),
    output.time("largest"),
    "member",
    output.prose("why"),
)


def test_a_fitted_table_leaves_out_texts_and_minor_columns_without_values() -> None:
    empty: list[Row] = [[0, None, None, None, None], [1, None, None, None, None]]
    assert printed(OPTIONAL, empty, width=30) == [
        "PARTITION  LARGEST (UTC)",
        "        0  -",
        "        1  -",
    ]
    assert "SEGMENTS" in printed(OPTIONAL, empty)[0], "a pipe has all columns"
    assert "SEGMENTS" in printed(OPTIONAL, empty, width=30, is_wide=True)[0]
    assert "SEGMENTS" in "".join(printed(OPTIONAL, [], width=60))
    one = printed(OPTIONAL, [[0, None, None, None, None]], width=12)
    assert len(one) == 2, "a block has no line for them either"
    member: list[Row] = [*empty, [2, None, None, "a", None]]
    assert printed(OPTIONAL, member, width=40)[0].split() == [
        *("PARTITION", "LARGEST", "(UTC)", "MEMBER")
    ]


def test_only_wide_shows_a_sparse_column_without_values() -> None:
    columns = output.columns("topic", output.sparse(output.time("expires")))
    assert printed(columns, [["a", None], ["b", None]]) == ["TOPIC", "a", "b"]
    assert printed(columns, [["a", None]], width=30) == ["TOPIC", "a"]
    assert printed(columns, []) == ["TOPIC"]
    assert printed(columns, [["a", None]], is_wide=True)[0].split() == ["TOPIC", "EXPIRES", "(UTC)"]
    assert printed(columns, [["a", None], ["b", STORM_MS]])[1].split() == ["a", "-"]
    assert printed(columns, [["a", None]], Format.CSV) == ["topic,expires,expires_ms", "a,,"]


def test_a_later_value_shows_a_column_that_was_left_out() -> None:
    empty: list[Row] = [[0, None, None, None, None]] * 500
    lines = printed(OPTIONAL, [*empty, [1, 7, None, None, None]], width=60)
    assert [line.split()[1] for line in lines if "PARTITION" in line] == ["LARGEST", "SEGMENTS"]


def test_a_column_of_times_keeps_a_day_that_no_other_column_shows() -> None:
    columns = output.columns(output.minor(output.time("timestamp")), output.time("append_time"))
    columns = output.columns(output.number("offset"), columns, output.key("key", least=8))
    rows: list[Row] = [[0, STORM_MS, STORM_MS, "k" * 20]] * 2
    assert printed(columns, rows, width=40)[-3].split()[1:3] == ["2013-02-08", "17:00:00"]


def test_a_wrapped_text_continues_on_further_lines() -> None:
    columns = output.columns(
        "topic", output.minor(output.number("segments")), output.wrapped("reason")
    )
    reason = "nothing is dirty below offset 10, where it begins"
    rows: list[Row] = [["t", 1, reason], ["u", 2, "no"]]
    assert printed(columns, rows, width=50) == [
        "TOPIC  SEGMENTS  REASON",
        "t             1  nothing is dirty below offset 10,",
        "                 where it begins",
        "u             2  no",
    ]
    assert printed(columns, rows, width=40)[-1] == "not shown: segments; --wide shows it"
    assert printed(columns, rows)[1].endswith("where it begins")


def test_keys_are_shortened_before_columns_are_dropped_and_names_take_half_of_the_room() -> None:
    columns = output.columns(
        output.number("partition"), output.minor(output.time("at")), output.key("key"), "note"
    )
    lines = printed(columns, [[0, STORM_MS, "k" * 40, "n" * 40]] * 2, width=60)
    assert lines[1].split() == ["PART", "(UTC)", "KEY", "NOTE"]
    assert lines[2].split()[-1] == "n" * 15 + "…"
    long = output.columns("topic", output.number("end"), "settings")
    cells = printed(long, [["t" * 90, 1, "s" * 90]] * 2, width=80)[-2].split()
    assert [len(cell) for cell in cells] == [40, 1, 33]


def test_wide_shows_all_columns_and_whole_cells() -> None:
    columns = output.columns(COLUMNS, output.value("value"))
    lines = printed(columns, [[*ROW, "v" * 90]] * 2, width=80, is_wide=True)
    assert "EPOCH" in lines[0]
    assert lines[1].endswith("v" * 90)
    assert len(lines) == 3


def test_a_single_row_that_does_not_fit_becomes_a_block() -> None:
    lines = printed(COLUMNS, [ROW], width=40)
    told = dict(line.split("  ", 1) for line in lines)
    assert told["first append (UTC)"] == "2013-02-08 17:00:00"
    assert [line.strip() for line in lines[-2:]] == [
        "remarks             nothing to see here",
        "at all",
    ]
    assert not any(line.startswith("epoch") for line in lines)


def test_sentences_are_never_cut_but_make_blocks() -> None:
    columns = output.columns("file", output.minor(output.number("at")), output.prose("remedy"))
    rows: list[Row] = [
        ["a.log", 7, "restore it from a backup, or live without it"],
        ["b.log", 8, "none"],
    ]
    assert printed(columns, rows, width=54)[-1] == "not shown: at; --wide shows it"
    assert printed(columns, rows, width=40) == [
        "file    a.log",
        "at      7",
        "remedy  restore it from a backup, or",
        "        live without it",
        "",
        "file    b.log",
        "at      8",
        "remedy  none",
    ]


def test_a_block_without_any_value_is_no_error() -> None:
    columns = output.columns(output.prose("remedy"))
    assert printed(columns, [[None]], width=4) == ["…  -"]


def test_long_names_leave_room_for_the_values_of_a_block() -> None:
    columns = output.columns("number of records before", "remarks")
    assert printed(columns, [["1234567890", "see the notes"]], width=24) == [
        "number of r…  1234567890",
        "remarks       see the",
        "              notes",
    ]


def test_wide_characters_are_padded_by_their_width() -> None:
    columns = output.columns("a", "b")
    lines = printed(columns, [["日本語🛫", "x"], ["e\u0301", "x"], ["plain", "x"]])
    assert {cell_len(line) for line in lines} == {11}


def test_later_rows_may_drop_columns_under_a_new_heading() -> None:
    columns = output.columns("a", output.minor(output.number("b")))
    short: list[Row] = [["x", 1]] * 500
    lines = printed(columns, [*short, ["x", 10**18]], width=12)
    assert lines[0] == "A  B"
    assert lines[501:] == ["A", "x", "501 rows", "not shown:", "B; --wide", "shows it"]


def test_long_tables_end_with_their_number_of_rows() -> None:
    columns = output.columns(output.number("n"))
    rows: list[Row] = [[n] for n in range(1_939)]
    assert printed(columns, rows, width=80)[-1] == "1,939 rows"
    assert printed(columns, rows[:40], width=80, total=1_939)[-1] == "40 of 1,939 rows"
    assert printed(columns, rows)[-1] == "1938"
    assert printed(columns, rows[:5], width=80)[-1] == "4"


def test_json_has_all_fields_in_full_precision() -> None:
    columns = output.columns(
        COLUMNS, output.share("lost_share"), output.duration("behind_ms"), output.key("key")
    )
    row = [*ROW, 0.21834097441622918, 77_700_123, ""]
    (line,) = printed(columns, [row], Format.JSON, width=20)
    told = json.loads(line)
    assert told["first_append_ms"] == STORM_MS
    assert told["first_append"] == "2013-02-08T17:00:00.000Z"
    assert (told["lost_share"], told["behind_ms"]) == (0.21834097441622918, 77_700_123)
    assert (told["log_bytes"], told["epoch"], told["key"]) == (124_827_582, 7, "")


def test_a_heading_names_the_zone_and_no_unit() -> None:
    columns = output.columns(
        output.time("at"), output.duration("behind_ms", "catch_up_s"), output.size("log_bytes")
    )
    (heading, row) = printed(columns, [[STORM_MS, 77_700_000, 90.0, 1_000]], zone=NEW_YORK)
    assert heading == "AT (America/New_York)  BEHIND  CATCH UP   LOG"
    assert row == "2013-02-08 12:00:00    21h35m     1m30s  1 kB"


def test_names_of_places_are_capital_letters_in_every_layout() -> None:
    (offset,) = output.number("position_on_a")
    assert offset.words == "position on A"
    assert output.columns("b_keys")[0].words == "B keys"
    assert output.columns("bytes_beside")[0].words == "bytes beside"


def test_a_live_table_fits_and_stays_once_when_interrupted() -> None:
    out = io.StringIO()
    columns = output.columns("topic", output.minor(output.number("partition")), "state")
    surroundings = Surroundings(stdout=out, variables={"COLUMNS": "14"})

    def watch() -> None:
        with output.live(surroundings, columns) as show:
            show([["flights", 3, "a"]] * 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch()
    last = out.getvalue().rpartition("TOPIC")[2].splitlines()
    assert last[1:3] == ["flights  a"] * 2


def test_every_kind_is_aligned() -> None:
    lefts = {kind for kind in Kind if kind.is_left}
    assert lefts == {Kind.TEXT, Kind.PROSE, Kind.DATA, Kind.TIME}


def test_columns_of_the_terminal_or_of_the_environment() -> None:
    assert Surroundings(stdout=io.StringIO(), variables={}).width is None
    assert Surroundings(stdout=io.StringIO(), variables={"COLUMNS": "x"}).width is None
    given = Surroundings(stdout=io.StringIO(), variables={"COLUMNS": "120"})
    assert given.width == 120


def test_wide_is_an_option_of_commands_with_tables(flights: Cli) -> None:
    flights.variables["COLUMNS"] = "60"
    lines = flights.ok("topics").lines
    assert all(cell_len(line) <= 60 for line in lines)
    assert "topic id" in flights.ok("topics").out
    assert "TOPIC ID" in flights.ok("topics", "--wide").lines[0]


def test_no_table_has_two_columns_with_the_same_heading() -> None:
    tables = [
        (module.__name__, name, columns)
        for found in pkgutil.walk_packages(tidelog.cli.__path__, "tidelog.cli.")
        for module in [importlib.import_module(found.name)]
        for name, columns in vars(module).items()
        if isinstance(columns, tuple) and columns and isinstance(columns[0], Column)
    ]
    assert len(tables) > 20
    for module_name, name, columns in tables:
        headings = [column.heading() for column in columns]
        assert len(set(headings)) == len(headings), f"{module_name}.{name}: {headings}"
