"""The table layer: rows under columns, written as a table, JSON lines or CSV.

A command declares its `columns` and gives rows to `print_rows`, or to a `writer` as they come: rows
are written at once, and a table's widths grow with later ones. `live` draws a table over itself.
A time is one cell in a table and two fields for scripts: `NAME` in ISO 8601 with its zone, and
`NAME_ms`. Keys and values as cells are `cells`'; pages are made by `jobs.session` and
`tidelog.report`.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from tidelog.cli.options import Format
from tidelog.cli.surroundings import Surroundings, printable
from tidelog.timespec import format_ms
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.remote.view import Count

Cell: TypeAlias = "str | int | float | bool | Sequence[Cell] | dict[str, Cell] | None"
# A row's cells: values that JSON has, each as its column holds them.
Row: TypeAlias = Sequence[object]

# Number of rows by which widths are chosen first; later rows may widen the columns.
ROWS_AT_ONCE: Final = 500
_GAP: Final = "  "
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
_BOLD: Final = "\x1b[1m{}\x1b[0m"


class Kind(Enum):
    """Type of a column's cells, which decides how they are written."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in all formats, and the type of its cells (times are in ms)."""

    name: str
    kind: Kind = Kind.TEXT

    @property
    def heading(self) -> str:
        """Its name over a table."""
        return self.name.replace("_", " ").upper()


Columns: TypeAlias = tuple[Column, ...]


def columns(*parts: str | Columns) -> Columns:
    """The columns of a table; a name alone is one of text, or of anything that JSON has."""
    return tuple(
        column for part in parts for column in ((Column(part),) if isinstance(part, str) else part)
    )


def number(*names: str) -> Columns:
    """Columns of numbers."""
    return tuple(Column(name, Kind.NUMBER) for name in names)


def time(*names: str) -> Columns:
    """Columns of times in ms."""
    return tuple(Column(name, Kind.TIME) for name in names)


class Writer:
    """Takes rows, each as long as the columns, until it is closed; this one writes JSON lines."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        self._surroundings = surroundings
        self._stdout = surroundings.stdout
        self._columns = columns
        self._zone = zone

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            print_object(self._surroundings, fields(self._columns, row, self._zone))
        self._stdout.flush()

    def close(self) -> None:
        """Write the heading if there were no rows."""


def writer(
    surroundings: Surroundings,
    columns: Sequence[Column],
    kind: Format,
    *,
    zone: str | None = None,
) -> Writer:
    """Return a writer of rows to stdout."""
    make = {Format.TABLE: _Table, Format.CSV: _Csv}.get(kind, Writer)
    return make(surroundings, columns, zone)


def print_rows(
    surroundings: Surroundings,
    columns: Sequence[Column],
    rows: Iterable[Row],
    kind: Format,
    *,
    zone: str | None = None,
) -> None:
    """Write a whole table to stdout."""
    out = writer(surroundings, columns, kind, zone=zone)
    out.write(rows)
    out.close()


def print_summary(
    surroundings: Surroundings,
    columns: Sequence[Column],
    row: Row,
    kind: Format,
    *,
    zone: str | None = None,
) -> None:
    """Write one row: in a table with a line for each column, else in the normal form."""
    if kind is Format.TABLE:
        row = [cell_text(column, cell, zone) for column, cell in zip(columns, row, strict=True)]
        pairs = zip((column.name for column in columns), row, strict=True)
        print_rows(surroundings, (Column("what"), Column("value")), pairs, kind)
    else:
        print_rows(surroundings, columns, [row], kind, zone=zone)


@contextmanager
def live(
    surroundings: Surroundings, columns: Sequence[Column]
) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Show a table that redraws itself; cut lines that are wider than the terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def show(rows: Iterable[Row]) -> None:
        page = io.StringIO()
        print_rows(replace(surroundings, stdout=page), columns, rows, Format.TABLE)
        drawn = Text(page.getvalue().rstrip(), no_wrap=True, overflow="crop")
        screen.update(drawn, refresh=True)

    console = Console(file=surroundings.stdout, no_color=not surroundings.wants_colour)
    with Live(console=console, auto_refresh=False) as screen:
        yield show


def print_object(surroundings: Surroundings, content: dict[str, Cell]) -> None:
    """Write a JSON object on one line of stdout."""
    surroundings.stdout.write(f"{json.dumps(content, ensure_ascii=False)}\n")


def fields(columns: Sequence[Column], row: Row, zone: str | None = None) -> dict[str, Cell]:
    """A row as scripts get it: a field for each column, two for a time."""
    content: dict[str, Cell] = {}
    for column, cell in zip(columns, row, strict=True):
        if column.kind is Kind.TIME:
            content |= time_fields(column.name, cell, zone)
        else:
            content[column.name] = cast("Cell", cell)
    return content


def time_fields(name: str, ms: object, zone: str | None = None) -> dict[str, Cell]:
    """Return a time's fields for scripts: NAME in ISO 8601 and NAME_ms in ms; or nulls."""
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return {name: None, f"{name}_ms": None}
    return {name: iso(ms, zone), f"{name}_ms": ms}


def shown(ms: object, zone: str | None = None) -> str:
    """Format a time for a table, `2013-02-08T17:00:00.000Z 1360342800000`; `-` without a time."""
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return "-"
    return f"{iso(ms, zone)} {ms}"


def iso(ms: int, zone: str | None = None) -> str:
    """Format a time in ISO 8601 with its zone; a time outside the calendar stays a number."""
    try:
        return format_ms(ms, zone)
    except (ValueError, OverflowError, OSError):
        return str(ms)


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units: `2h5m`, `3.2s`."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    whole = int(seconds)
    for index, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            smaller, name = _UNITS[index + 1] if index + 1 < len(_UNITS) else (1, "s")
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{name}" if rest else f"{whole // size}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def count_text(count: "Count") -> str | int:
    """Return a count for a table; `<=` marks an upper bound."""
    return count.records if count.is_exact else f"<={count.records}"


def cell_text(column: Column, cell: object, zone: str | None = None) -> str:
    """A cell of a summary or a page: numbers with commas, lists as text."""
    if column.kind is Kind.TIME:
        return shown(cell, zone)
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,}"
    if isinstance(cell, list | tuple):
        return "; ".join(str(one) for one in cell) or "-"
    return str(cell)


class _Csv(Writer):
    """Writes CSV with a heading: an empty cell is null, `""` is empty text."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        super().__init__(surroundings, columns, zone)
        self._stdout.write(_csv_line(fields(columns, [None] * len(columns), zone)))

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            self._stdout.write(_csv_line(fields(self._columns, row, self._zone).values()))
        self._stdout.flush()


def _csv_line(cells: Iterable[object]) -> str:
    return f"{','.join(map(_csv_cell, cells))}\n"


def _csv_cell(cell: object) -> str:
    """Return a cell, quoted if needed. Python's writer does not quote a carriage return."""
    if cell is None:
        return ""
    text = _json_or_text(cell)
    if text and not any(c in text for c in ',"\r\n'):
        return text
    quoted = text.replace('"', '""')
    return f'"{quoted}"'


class _Table(Writer):
    """Writes aligned columns under a heading, numbers to the right."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        super().__init__(surroundings, columns, zone)
        self._widths = [len(column.heading) for column in columns]
        self._has_heading = False

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        source = iter(rows)
        while chunk := list(islice(source, ROWS_AT_ONCE)):
            self._write_chunk([self._cells(row) for row in chunk])
        self._stdout.flush()

    def close(self) -> None:
        """Write the heading, where there were no rows."""
        if not self._has_heading:
            self._write_chunk([])

    def _cells(self, row: Row) -> list[str]:
        return [
            shown(cell, self._zone) if column.kind is Kind.TIME else _plain(cell)
            for column, cell in zip(self._columns, row, strict=True)
        ]

    def _write_chunk(self, chunk: list[list[str]]) -> None:
        for cells in chunk:
            self._widths = list(map(max, self._widths, map(len, cells)))
        if not self._has_heading:
            self._has_heading = True
            heading = self._line([column.heading for column in self._columns])
            if self._surroundings.wants_colour:
                heading = _BOLD.format(heading)
            self._stdout.write(f"{heading}\n")
        self._stdout.writelines(f"{self._line(cells)}\n" for cells in chunk)

    def _line(self, cells: list[str]) -> str:
        return _GAP.join(
            cell.rjust(width) if column.kind is Kind.NUMBER else cell.ljust(width)
            for cell, width, column in zip(cells, self._widths, self._columns, strict=True)
        ).rstrip()


def _plain(cell: object) -> str:
    """A cell of a table: `-` for none, one line of text, JSON for what is no text."""
    return "-" if cell is None else printable(_json_or_text(cell))


def _json_or_text(cell: object) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
