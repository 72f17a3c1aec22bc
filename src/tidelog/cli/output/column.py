"""Columns of tables: their names in all formats, and the kinds of their cells."""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias, cast

from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import format_ms
from tidelog.types import NO_TIMESTAMP

Cell: TypeAlias = "str | int | float | bool | Sequence[Cell] | dict[str, Cell] | None"
# The cells of a row, one for each column. Each cell has a JSON type, which the column's kind
# determines.
Row: TypeAlias = Sequence[object]

# Display width at which tables cut keys and values.
KEY_WIDTH: Final = 40
VALUE_WIDTH: Final = 60

# Words in column names that stand for a place: A and B are the two places that an audit compares,
# or the two clusters of a failover.
_PLACES: Final = ("a", "b")

# Default of the minimum width of a column whose cells continue on further lines.
_WRAPPED_WIDTH: Final = 30


class Kind(Enum):
    """Kind of a column's cells, which decides how tables write and align them."""

    TEXT = "text"
    PROSE = "prose"  # sentences, which are never cut
    DATA = "data"  # keys and values of records: any text; "" and null must look different
    TIME = "time"
    NUMBER = "number"
    COUNT = "count"
    SIZE = "size"
    DURATION = "duration"
    SHARE = "share"

    @property
    def is_left(self) -> bool:
        """Whether cells are aligned to the left."""
        return self in (Kind.TEXT, Kind.PROSE, Kind.DATA, Kind.TIME)


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: Name of the column in JSON and CSV, with the unit: `behind_ms`. The names in tables
            and sentences are derived from this name.
        kind: Kind of its cells. Times are in ms, durations in ms (in seconds if the name ends with
            `_s`), shares from 0 to 1.
        is_minor: Whether narrow terminals drop the column before other columns.
        is_detail: Whether tables show the column only with `--wide`.
        is_sparse: Whether every table without `--wide`, even in a pipe, omits the column as long as
            no row has a value in it.
        is_wrapped: Whether cells are broken into lines on a narrow terminal, instead of being cut.
        limit: Display width at which tables cut cells, None for whole cells.
        least: Display width to which narrow terminals shorten cells before they drop minor columns;
            None for the default of the column's kind.
        title: Name of the column in tables, if `name` is not clear enough; else empty.
    """

    name: str
    kind: Kind = Kind.TEXT
    is_minor: bool = False
    is_detail: bool = False
    is_sparse: bool = False
    is_wrapped: bool = False
    limit: int | None = None
    least: int | None = None
    title: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether a table that is fitted to a terminal omits the column if no cell has a value.

        Columns of offsets, counts, times and durations are shown even without values, because `-`
        shows the user that the row has no value. Minor and sparse columns without values are
        omitted.
        """
        return self.is_minor or self.is_sparse or self.kind in (Kind.TEXT, Kind.PROSE)

    @property
    def words(self) -> str:
        """Displayed name, without the unit, which the cells show: `behind` for `behind_ms`.

        The places A and B keep their capitals in lowercase names: `A offset`, `position on A`.
        """
        if self.title:
            return self.title
        name = self.name
        if self.kind is Kind.DURATION:
            name = name.replace("_ms", "").removesuffix("_s")
        elif self.kind is Kind.SIZE:
            name = "size" if name == "bytes" else name.removesuffix("_bytes")
        return " ".join(word.upper() if word in _PLACES else word for word in name.split("_"))

    def heading(self, zone: str | None = None) -> str:
        """Return the heading above a table; for times it includes the zone."""
        return self._zoned(self.words.upper(), zone)

    def stacked_heading(self, zone: str | None = None) -> list[str]:
        """Return the heading above a narrow table: one word a line, the zone on the last line."""
        return ["PART" if word == "PARTITION" else word for word in self.heading(zone).split()]

    def words_with(self, zone: str | None) -> str:
        """Return the name before a cell in a block; for times it includes the zone."""
        return self._zoned(self.words, zone)

    def _zoned(self, name: str, zone: str | None) -> str:
        return f"{name} ({zone or 'UTC'})" if self.kind is Kind.TIME else name


Columns: TypeAlias = tuple[Column, ...]


def columns(*parts: str | Columns) -> Columns:
    """Return the columns of a table; a plain name becomes a column of text or other JSON values."""
    return tuple(
        column for part in parts for column in ((Column(part),) if isinstance(part, str) else part)
    )


def titled(**parts: Columns) -> Columns:
    """Return columns whose titles are the argument names, with spaces instead of `_`."""
    return tuple(
        replace(column, title=title.replace("_", " "))
        for title, part in parts.items()
        for column in part
    )


def prose(*names: str) -> Columns:
    """Return columns of sentences, which are never cut.

    If such a column is too wide for the table, each row is written as a block.
    """
    return tuple(Column(name, Kind.PROSE) for name in names)


def wrapped(*names: str, least: int = _WRAPPED_WIDTH) -> Columns:
    """Return columns whose text is broken into several lines if the terminal is narrow.

    `Column` describes `least`.
    """
    return tuple(Column(name, is_wrapped=True, least=least) for name in names)


def minor(*parts: str | Columns) -> Columns:
    """Mark columns that a table drops first, from the right, if the terminal is narrow."""
    return tuple(replace(column, is_minor=True) for column in columns(*parts))


def detail(*parts: str | Columns) -> Columns:
    """Mark columns for scripts, which tables have only with `--wide`."""
    return tuple(replace(column, is_detail=True) for column in columns(*parts))


def sparse(*parts: str | Columns) -> Columns:
    """Mark columns that tables without `--wide` omit as long as no row has a value in them.

    A table in a pipe omits them too, unlike other columns without values.
    """
    return tuple(replace(column, is_sparse=True) for column in columns(*parts))


def number(*names: str) -> Columns:
    """Return columns of identifiers and offsets, written as users type them: 1234567."""
    return tuple(Column(name, Kind.NUMBER) for name in names)


def count(*names: str) -> Columns:
    """Return columns of counts and rates, written as 1,234,567."""
    return tuple(Column(name, Kind.COUNT) for name in names)


def size(*names: str) -> Columns:
    """Return columns of bytes, written as 125 MB."""
    return tuple(Column(name, Kind.SIZE) for name in names)


def duration(*names: str) -> Columns:
    """Return columns of durations in ms (`NAME_ms`) or seconds (`NAME_s`), written as 21h35m."""
    return tuple(Column(name, Kind.DURATION) for name in names)


def share(*names: str) -> Columns:
    """Return columns of shares from 0 to 1, written in percent."""
    return tuple(Column(name, Kind.SHARE) for name in names)


def time(*names: str) -> Columns:
    """Return columns of times in ms since the epoch."""
    return tuple(Column(name, Kind.TIME) for name in names)


def key(*names: str, least: int | None = None) -> Columns:
    """Return columns of records' keys; `Column` describes `least`."""
    return tuple(Column(name, Kind.DATA, limit=KEY_WIDTH, least=least) for name in names)


def value(*names: str, least: int | None = None) -> Columns:
    """Return columns of records' values; `Column` describes `least`."""
    return tuple(Column(name, Kind.DATA, limit=VALUE_WIDTH, least=least) for name in names)


def headers(*names: str) -> Columns:
    """Return columns of records' headers: `headers_text`, or None for a record without headers."""
    return tuple(Column(name, is_sparse=True, limit=VALUE_WIDTH) for name in names)


def fields(columns: Sequence[Column], row: Row, zone: str | None = None) -> dict[str, Cell]:
    """Return a row as an object for scripts: a field for each column, two fields for a time."""
    content: dict[str, Cell] = {}
    for column, cell in zip(columns, row, strict=True):
        if column.kind is Kind.TIME:
            content |= time_fields(column.name, cell, zone)
        else:
            content[column.name] = cast("Cell", cell)
    return content


def time_fields(name: str, ms: object, zone: str | None = None) -> dict[str, Cell]:
    """Return a time's fields for scripts: NAME in ISO 8601, NAME_ms in ms; None without a time."""
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return {name: None, f"{name}_ms": None}
    return {name: format_ms(ms, zone), f"{name}_ms": ms}
