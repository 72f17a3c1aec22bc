"""Formatters of printed text, one for each kind of cell; shared by tables, sentences and pages."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidelog.amounts import bytes_text, duration_text, share_text
from tidelog.cli.output.column import Cell, Column, Kind
from tidelog.html_cells import visible
from tidelog.record.exact_json import text_of
from tidelog.timespec import time_text

if TYPE_CHECKING:
    from tidelog.remote.view import Count

NULL: Final = "(null)"
EMPTY: Final = "(empty)"
# Text of a cell without a value.
NONE: Final = "-"


def count_text(count: "Count | float") -> str:
    """Format a count, `336,776`; `<=` marks an upper bound. Rates have one decimal."""
    if isinstance(count, int):
        return f"{count:,}"
    if isinstance(count, float):
        return f"{count:,.1f}"
    return f"{count.records:,}" if count.is_exact else f"<={count.records:,}"


def cell_text(column: Column, cell: object, zone: str | None = None) -> str:
    """Format a cell as one line; control characters are escaped, None becomes `-` or `(null)`.

    If a cell in a column of times is text, for example a remark on omitted rows, it is returned
    unchanged.
    """
    if column.kind is Kind.DATA:
        return data_text(cell)
    if column.kind is Kind.TIME and not isinstance(cell, str):
        return time_text(cell, zone)
    if cell is None:
        return NONE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return _number_text(column, cell)
    return visible(_plain(cell))


def headers_text(headers: Iterable[tuple[str, Cell]]) -> str | None:
    """Format headers, `by=ten, run=7`; None for no headers. Values are formatted as in columns."""
    return ", ".join(f"{name}={data_text(cell)}" for name, cell in headers) or None


def _number_text(column: Column, number: float) -> str:
    match column.kind:
        case Kind.SIZE:
            return bytes_text(number)
        case Kind.DURATION:
            return duration_text(number if column.name.endswith("_s") else number / 1000)
        case Kind.SHARE:
            return share_text(number)
        case Kind.COUNT:
            return count_text(number)
        case _:
            return f"{number}"


def _plain(cell: object) -> str:
    if isinstance(cell, list | tuple):
        return "; ".join(map(_plain, cell)) or NONE
    if isinstance(cell, dict):
        return ",".join(f"{name}={_plain(one)}" for name, one in cell.items()) or NONE
    return str(cell)


def data_text(cell: object) -> str:
    """Format a key or value as one line; control characters are escaped.

    Null becomes `(null)`, and empty text becomes `(empty)`. A key or value whose own text is
    `(null)` or `(empty)` is quoted.
    """
    if cell is None:
        return NULL
    if not isinstance(cell, str):
        return visible(text_of(cell))
    if not cell:
        return EMPTY
    return visible(f'"{cell}"' if cell.strip('"') in (NULL, EMPTY) else cell)
