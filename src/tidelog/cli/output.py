"""Rows on stdout, as a table for people or as JSON lines or CSV for scripts.

A time column is one cell in a table and two fields for scripts: `NAME`, in ISO 8601 with its zone,
and `NAME_ms`. Rows are written as they come; nothing waits for the last one.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, Protocol, TypeAlias

from tidelog.cli import times
from tidelog.cli.choices import Format
from tidelog.cli.surroundings import Surroundings, printable
from tidelog.types import NO_TIMESTAMP

Cell: TypeAlias = "str | int | float | bool | Sequence[Cell] | dict[str, Cell] | None"
Row: TypeAlias = Sequence[Cell]

# Widths are chosen from the rows of the first write, and grow with later ones.
ROWS_AT_ONCE: Final = 500
_GAP: Final = "  "
_BOLD: Final = "\x1b[1m{}\x1b[0m"


class Kind(Enum):
    """What a column holds, which decides how it is written."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name in all formats, and what it holds (times in ms)."""

    name: str
    kind: Kind = Kind.TEXT


class Writer(Protocol):
    """Takes rows until it is closed."""

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows, each as long as the columns."""
        ...

    def close(self) -> None:
        """Write what stands at the end."""
        ...


def text(name: str) -> Column:
    """A column of text, or of anything that JSON has."""
    return Column(name, Kind.TEXT)


def number(name: str) -> Column:
    """A column of numbers."""
    return Column(name, Kind.NUMBER)


def time(name: str) -> Column:
    """A column of times in ms."""
    return Column(name, Kind.TIME)


def writer(
    surroundings: Surroundings,
    columns: Sequence[Column],
    kind: Format,
    *,
    zone: str | None = None,
) -> Writer:
    """A writer of rows to stdout."""
    if kind is Format.JSON:
        return _JsonLines(surroundings, columns, zone)
    if kind is Format.CSV:
        return _Csv(surroundings, columns, zone)
    return _Table(surroundings, columns, zone)


def print_rows(
    surroundings: Surroundings,
    columns: Sequence[Column],
    rows: Iterable[Row],
    kind: Format,
    *,
    zone: str | None = None,
) -> None:
    """Write rows to stdout, from the heading to the end."""
    out = writer(surroundings, columns, kind, zone=zone)
    out.write(rows)
    out.close()


def print_object(surroundings: Surroundings, content: dict[str, Cell]) -> None:
    """One JSON object on a line of stdout."""
    surroundings.stdout.write(f"{json.dumps(content, ensure_ascii=False)}\n")


def time_fields(name: str, ms: Cell, zone: str | None = None) -> dict[str, Cell]:
    """A time as scripts get it: `name` in ISO 8601, `name_ms` as a number; null for none."""
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return {name: None, f"{name}_ms": None}
    return {name: times.iso(ms, zone), f"{name}_ms": ms}


class _JsonLines:
    """One object for each row, one row a line."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        self._surroundings = surroundings
        self._columns = columns
        self._zone = zone

    def write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            print_object(self._surroundings, _fields(self._columns, row, self._zone))
        self._surroundings.stdout.flush()

    def close(self) -> None:
        pass


def _fields(columns: Sequence[Column], row: Row, zone: str | None) -> dict[str, Cell]:
    content: dict[str, Cell] = {}
    for column, cell in zip(columns, row, strict=True):
        if column.kind is Kind.TIME:
            content |= time_fields(column.name, cell, zone)
        else:
            content[column.name] = cell
    return content


class _Csv:
    """A heading and comma separated rows: an empty cell is null, `""` is empty text."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        self._columns = columns
        self._zone = zone
        self._stdout = surroundings.stdout
        names = _fields(columns, [None] * len(columns), zone)
        self._stdout.write(_csv_line(names))

    def write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            fields = _fields(self._columns, row, self._zone).values()
            self._stdout.write(_csv_line(fields))
        self._stdout.flush()

    def close(self) -> None:
        pass


def _csv_line(cells: Iterable[Cell]) -> str:
    return f"{','.join(map(_csv_cell, cells))}\n"


def _csv_cell(cell: Cell) -> str:
    """Return a cell, quoted where it must be. Python's writer leaves a carriage return bare."""
    if cell is None:
        return ""
    text = _plain(cell)
    if text and not any(c in text for c in ',"\r\n'):
        return text
    quoted = text.replace('"', '""')
    return f'"{quoted}"'


class _Table:
    """Columns under a heading, numbers to the right."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        self._surroundings = surroundings
        self._columns = columns
        self._zone = zone
        self._widths = [len(_heading(column)) for column in columns]
        self._has_heading = False

    def write(self, rows: Iterable[Row]) -> None:
        source = iter(rows)
        while chunk := list(islice(source, ROWS_AT_ONCE)):
            self._write_chunk([self._cells(row) for row in chunk])
        self._surroundings.stdout.flush()

    def close(self) -> None:
        if not self._has_heading:
            self._write_chunk([])

    def _cells(self, row: Row) -> list[str]:
        return [self._shown(column, cell) for column, cell in zip(self._columns, row, strict=True)]

    def _shown(self, column: Column, cell: Cell) -> str:
        if column.kind is Kind.TIME:
            return times.shown(cell if isinstance(cell, int) else None, self._zone)
        return "-" if cell is None else printable(_plain(cell))

    def _write_chunk(self, chunk: list[list[str]]) -> None:
        for cells in chunk:
            for place, cell in enumerate(cells):
                self._widths[place] = max(self._widths[place], len(cell))
        if not self._has_heading:
            self._has_heading = True
            heading = self._line([_heading(column) for column in self._columns])
            shown = _BOLD.format(heading) if self._surroundings.wants_colour else heading
            self._surroundings.stdout.write(f"{shown}\n")
        self._surroundings.stdout.writelines(f"{self._line(cells)}\n" for cells in chunk)

    def _line(self, cells: list[str]) -> str:
        return _GAP.join(
            cell.rjust(width) if column.kind is Kind.NUMBER else cell.ljust(width)
            for cell, width, column in zip(cells, self._widths, self._columns, strict=True)
        ).rstrip()


def _heading(column: Column) -> str:
    return column.name.replace("_", " ").upper()


def _plain(cell: Cell) -> str:
    """A cell as text; what is neither text nor number as JSON."""
    if isinstance(cell, str):
        return cell
    return json.dumps(cell, ensure_ascii=False)
