"""Tables with any cells have no line wider than the terminal; JSON output omits nothing."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tidelog.cli import output
from tidelog.cli.options import Format
from tidelog.cli.output import Column, Kind, Row
from tidelog.cli.surroundings import Surroundings

TEXTS = st.one_of(
    st.none(),
    st.text(max_size=90),
    st.text(alphabet="日本語🛫é\u0301\ufe0f❤\u200dab \n\x1b", max_size=60),
)
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.just("<=12"))
FLOATS = st.floats(-1e18, 1e18)
CELLS = {
    Kind.TEXT: st.one_of(TEXTS, st.booleans(), st.lists(st.text(max_size=5), max_size=3)),
    Kind.PROSE: TEXTS,
    Kind.DATA: st.one_of(TEXTS, st.just({"base64": "AQ=="})),
    Kind.TIME: NUMBERS.filter(lambda cell: not isinstance(cell, str)),
    Kind.SHARE: st.one_of(st.none(), st.floats(0, 1)),
    Kind.DURATION: st.one_of(NUMBERS, FLOATS),
    Kind.COUNT: st.one_of(NUMBERS, FLOATS),
    Kind.SIZE: NUMBERS,
    Kind.NUMBER: NUMBERS,
}
KINDS = st.lists(
    st.tuples(
        st.sampled_from(Kind),
        st.sampled_from(["x", "log_start_offset", "behind_ms", "a_name_without_end_" * 3]),
        st.booleans(),
        st.integers(0, 3).map(lambda one: one == 0),
    ),
    min_size=1,
    max_size=9,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(f"{name}{at}", kind, minor, detail and at > 0)
        for at, (kind, name, minor, detail) in enumerate(draw(KINDS))
    ]
    row = st.tuples(*(CELLS[column.kind] for column in columns))
    return columns, list(draw(st.lists(row, max_size=25)))


def printed(table: tuple[list[Column], list[Row]], kind: Format, **surroundings: object) -> str:
    out = io.StringIO()
    given_width = {"COLUMNS": f"{surroundings['width']}"} if "width" in surroundings else {}
    output.print_rows(Surroundings(stdout=out, variables=given_width), *table, kind)
    return out.getvalue()


@given(table=tables(), width=st.integers(1, 140))
def test_no_line_is_wider_than_the_terminal(
    table: tuple[list[Column], list[Row]], width: int
) -> None:
    text = printed(table, Format.TABLE, width=width)
    assert max(map(cell_len, text.splitlines()), default=0) <= width


@given(table=tables())
def test_a_piped_table_has_a_line_for_each_row(table: tuple[list[Column], list[Row]]) -> None:
    assert printed(table, Format.TABLE).count("\n") == len(table[1]) + 1


@given(table=tables(), width=st.integers(1, 140))
def test_json_has_every_cell(table: tuple[list[Column], list[Row]], width: int) -> None:
    columns, rows = table
    lines = printed(table, Format.JSON, width=width).split("\n")[:-1]
    for row, line in zip(rows, lines, strict=True):
        told = json.loads(line)
        for column, cell in zip(columns, row, strict=True):
            if column.kind is not Kind.TIME:
                assert told[column.name] == cell
            elif cell is not None and cell != -1:
                assert told[f"{column.name}_ms"] == cell
