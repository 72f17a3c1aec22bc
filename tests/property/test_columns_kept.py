"""Of the sets of columns that fit into a narrow table, `plan` chooses the best one."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Final

from hypothesis import event, given
from hypothesis import strategies as st

from tidelog.cli.output import Column, Kind
from tidelog.cli.output.layout import GAP, plan

KINDS: Final = (Kind.TEXT, Kind.DATA, Kind.TIME, Kind.COUNT, Kind.NUMBER)
COLUMNS: Final = st.builds(
    Column,
    st.sampled_from(["x", "offset", "log_start_offset"]),
    st.sampled_from(KINDS),
    is_minor=st.booleans(),
    is_wrapped=st.booleans(),
    least=st.one_of(st.none(), st.just(8)),
)
TABLES: Final = st.lists(st.tuples(COLUMNS, st.integers(0, 40)), min_size=2, max_size=8)


def every_set(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all sets of these columns, the best one first: the first column has most weight."""
    sets = chain.from_iterable(combinations(numbers, size) for size in range(len(numbers) + 1))
    yield from sorted(sets, key=lambda some: [i not in some for i in numbers])


def sizes(
    columns: Sequence[Column], cells: Sequence[int], room: int, *, is_least: bool
) -> tuple[list[int], list[int]]:
    """Return the width of each column under a stacked heading, and its minimum width."""
    texts = [i for i, one in enumerate(columns) if one.kind in (Kind.TEXT, Kind.DATA)]
    widths, floors = [], []
    for i, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        words = max(map(len, column.stacked_heading("UTC")))
        width = floor = max(words, cell)
        if i in texts:
            usual = 16 if i == texts[-1] else 12 if is_data(column) else 10
            least = usual if is_least and column.is_wrapped else column.least or usual
            most = room if column.is_wrapped else room // 2
            width = min(width, max(words, least, most))
            floor = min(width, max(words, least))
        widths.append(width)
        floors.append(floor)
    return widths, floors


def is_data(column: Column) -> bool:
    return column.kind is Kind.DATA or column.is_wrapped


def best(columns: Sequence[Column], cells: Sequence[int], room: int) -> tuple[int, ...]:
    """Return the columns that a table should show if not all of them fit."""
    texts = [i for i, one in enumerate(columns) if one.kind in (Kind.TEXT, Kind.DATA)]
    data = [i for i in texts if i == texts[-1] or is_data(columns[i])]

    def fits(shown: tuple[int, ...], *, is_least: bool) -> bool:
        widths, floors = sizes(columns, cells, room, is_least=is_least)
        flexible = texts if is_least else data
        width = sum(floors[i] if i in flexible else widths[i] for i in shown)
        return width + len(GAP) * (len(shown) - 1) <= room

    minors = [i for i, one in enumerate(columns) if i and one.is_minor]
    others = [i for i, one in enumerate(columns) if i and not one.is_minor]
    majors = (0, *others)
    if not fits(majors, is_least=False) and not fits(majors, is_least=True):
        sets = ((0, *some) for some in every_set(others))
        majors = next((some for some in sets if fits(some, is_least=True)), (0,))
    wider = (tuple(sorted((*majors, *some))) for some in every_set(minors))
    return next((some for some in wider if fits(some, is_least=False)), majors)


@given(table=TABLES, room=st.integers(1, 100))
def test_no_set_of_columns_that_fits_is_better_than_the_shown_one(
    table: list[tuple[Column, int]], room: int
) -> None:
    columns, cells = [one for one, _ in table], [cell for _, cell in table]
    layout = plan(columns, "UTC", cells, cells, room)
    assert layout is not None
    event(f"{len(columns) - len(layout.shown)} dropped")
    is_whole = len(layout.shown) == len(columns)
    assert is_whole or layout.shown == best(columns, cells, room)
    if layout.shown != (0,):
        assert sum(layout.widths) + len(GAP) * (len(layout.shown) - 1) <= room


def test_a_narrow_column_right_of_a_wide_dropped_one_is_shown() -> None:
    columns = [
        Column("topic"),
        Column("size", Kind.COUNT),
        Column("created", Kind.TIME, is_minor=True),
        Column("lag", Kind.COUNT, is_minor=True),
    ]
    layout = plan(columns, "UTC", [20, 10, 30, 5], [20, 10, 30, 5], 50)
    assert layout is not None
    assert layout.shown == (0, 1, 3)
    layout = plan([Column("topic"), *columns[2:]], "UTC", [20, 30, 5], [20, 30, 5], 40)
    assert layout is not None
    assert layout.shown == (0, 2)
