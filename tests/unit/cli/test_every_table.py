"""Rules for the columns of all tables that commands print."""

from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Final

import pytest

import tidelog.cli
from tidelog.cli.output.column import Column, Columns, Kind
from tidelog.cli.output.layout import plan

# Columns that are only in JSON and CSV, which programs read; no table shows these columns.
FOR_PROGRAMS: Final = {"lag._FIELDS", "latency.HOURS", "records._FIELDS", "retention._CSV"}
# Tables that don't fit in 80 columns, each with the width of all its columns that are not minor.
WIDE: Final = {
    "dump._BATCH_COLUMNS": 85,
    "jobs.audit.TOPICS": 107,
    "jobs.lag.PARTITIONS": 85,
    "jobs.latency.HOURS": 96,
    "jobs.replay.COLUMNS": 143,
    "topics._PARTITION_COLUMNS": 144,
}
# Names with several meanings: `start` and `end` are offsets or times, `partitions` and `offsets`
# are numbers or lists, and a table of records shows the topic only if there are several topics.
SEVERAL_MEANINGS: Final = {"end", "offsets", "partitions", "start", "topic", "value"}
# Tables of a file's contents, with numbers as the file has them.
OF_FILES: Final = {"dump._BATCH_COLUMNS", "dump._RECORD_COLUMNS"}
# Width of a usual cell.
CELL: Final = {
    Kind.TEXT: 8,
    Kind.PROSE: 8,
    Kind.DATA: 12,
    Kind.TIME: 23,
    Kind.NUMBER: 5,
    Kind.COUNT: 5,
    Kind.SIZE: 8,
    Kind.DURATION: 6,
    Kind.SHARE: 5,
}
TIME_OF_DAY: Final = 12
# The kind that the last words of a name require.
KINDS: Final = {
    "_ms": Kind.DURATION,
    "_ms_max": Kind.DURATION,
    "_bytes": Kind.SIZE,
    "_share": Kind.SHARE,
    "append_time": Kind.TIME,
    "record_time": Kind.TIME,
    "_offset": Kind.NUMBER,
    "_keys": Kind.COUNT,
    "_records": Kind.COUNT,
    "_segments": Kind.COUNT,
}


def _tables() -> Iterator[tuple[str, Columns]]:
    for module in walk_packages(tidelog.cli.__path__, f"{tidelog.cli.__name__}."):
        name = module.name.removeprefix("tidelog.cli.")
        for variable, value in vars(import_module(module.name)).items():
            is_table = isinstance(value, tuple) and all(isinstance(one, Column) for one in value)
            if is_table and len(value) > 1:
                yield f"{name}.{variable}", value


TABLES: Final = {name: table for name, table in _tables() if name not in FOR_PROGRAMS}


def _left_out(table: Columns, width: int) -> set[str]:
    """Return the columns that are neither minor nor details, and that a terminal does not show."""
    shown = [column for column in table if not column.is_detail]
    cells = [CELL[column.kind] for column in shown]
    shorts = [TIME_OF_DAY if column.kind is Kind.TIME else CELL[column.kind] for column in shown]
    layout = plan(shown, "UTC", cells, shorts, width)
    assert layout is not None
    lacks = [column for at, column in enumerate(shown) if at not in layout.shown]
    return {column.name for column in lacks if not column.is_minor}


@pytest.mark.parametrize("name", TABLES)
def test_a_terminal_of_80_columns_shows_all_but_minor_columns(name: str) -> None:
    assert _left_out(TABLES[name], WIDE.get(name, 80)) == set()


def test_the_unit_in_a_name_is_that_of_the_cells() -> None:
    for name, table in TABLES.items():
        for column in table:
            for suffix, kind in KINDS.items():
                if column.name.endswith(suffix):
                    assert column.kind is kind, (name, column.name)


def test_equal_names_have_equal_kinds() -> None:
    found = defaultdict[str, dict[Kind, str]](dict)
    for name, table in TABLES.items():
        for column in table:
            if column.name not in SEVERAL_MEANINGS and name not in OF_FILES:
                found[column.name][column.kind] = name
    assert {name: of for name, of in found.items() if len(of) > 1} == {}


def test_what_one_table_shows_only_with_wide_no_narrow_table_has_to_show() -> None:
    details = {column.name for table in TABLES.values() for column in table if column.is_detail}
    for name, table in TABLES.items():
        for column in table:
            if column.name in details - SEVERAL_MEANINGS:
                assert column.is_detail or column.is_minor, (name, column.name)
