"""Output of commands: tables for people, JSON lines or CSV for scripts.

A time column is one cell in a table and two fields for scripts: `NAME`, in ISO 8601 with its zone,
and `NAME_ms`. Rows are written as they arrive; no output waits for the last row. Keys, values and
headers become cells, and cells become bytes, by a serializer's name or as text.
"""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from tidelog.cli import times
from tidelog.cli.options import Encoding, Format, ReadFormat
from tidelog.cli.surroundings import Surroundings, printable
from tidelog.errors import SerdeError
from tidelog.record.serde import deserializer, serializer
from tidelog.types import NO_TIMESTAMP, Header

Cell: TypeAlias = "str | int | float | bool | Sequence[Cell] | dict[str, Cell] | None"


Row: TypeAlias = Sequence[Cell]


# Number of rows by which widths are chosen first; later rows may widen the columns.
ROWS_AT_ONCE: Final = 500


_GAP: Final = "  "


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


class Writer(Protocol):
    """Writes rows until it is closed."""

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows, each as long as the columns."""
        ...

    def close(self) -> None:
        """Write the heading if there were no rows."""
        ...


def text(name: str) -> Column:
    """Return a column of text, or of any JSON value."""
    return Column(name, Kind.TEXT)


def number(name: str) -> Column:
    """Return a column of numbers."""
    return Column(name, Kind.NUMBER)


def time(name: str) -> Column:
    """Return a column of times in ms."""
    return Column(name, Kind.TIME)


def writer(
    surroundings: Surroundings,
    columns: Sequence[Column],
    kind: Format,
    *,
    zone: str | None = None,
) -> Writer:
    """Return a writer of rows to stdout."""
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
    """Write a whole table to stdout."""
    out = writer(surroundings, columns, kind, zone=zone)
    out.write(rows)
    out.close()


def print_object(surroundings: Surroundings, content: dict[str, Cell]) -> None:
    """Write a JSON object on one line of stdout."""
    surroundings.stdout.write(f"{json.dumps(content, ensure_ascii=False)}\n")


def time_fields(name: str, ms: Cell, zone: str | None = None) -> dict[str, Cell]:
    """Return a time's fields for scripts: NAME in ISO 8601 and NAME_ms in ms; or nulls."""
    if not isinstance(ms, int) or ms == NO_TIMESTAMP:
        return {name: None, f"{name}_ms": None}
    return {name: times.iso(ms, zone), f"{name}_ms": ms}


class _JsonLines:
    """Writes a JSON object on a line for each row."""

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
    """Writes CSV with a heading: an empty cell is null, `""` is empty text."""

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
    """Return a cell, quoted if needed. Python's writer does not quote a carriage return."""
    if cell is None:
        return ""
    text = _plain(cell)
    if text and not any(c in text for c in ',"\r\n'):
        return text
    quoted = text.replace('"', '""')
    return f'"{quoted}"'


class _Table:
    """Writes aligned columns under a heading, numbers to the right."""

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
            for index, cell in enumerate(cells):
                self._widths[index] = max(self._widths[index], len(cell))
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
    """Return a cell as text; other types as JSON."""
    if isinstance(cell, str):
        return cell
    return json.dumps(cell, ensure_ascii=False)


Decode: TypeAlias = Callable[[bytes | None], Cell]


def decoder(encoding: Encoding) -> Decode:
    """Return a function that converts bytes to a cell for people.

    `auto` returns text if the bytes are UTF-8, else `{"base64": ...}`. Bytes that the encoding
    can't decode become `{"base64": ...}` too, so that one invalid record does not hide the others.
    """
    read = exact_decoder(encoding)

    def decode(data: bytes | None) -> Cell:
        try:
            return read(data)
        except SerdeError:
            return _base64(data)

    return decode


def decoders(kind: ReadFormat) -> Callable[[Encoding], Decode]:
    """Return the decoder factory for a format: exact decoders for formats that programs read."""
    if kind is ReadFormat.TABLE:
        return decoder
    return partial(exact_decoder, text_only=kind is ReadFormat.CSV)


def exact_decoder(encoding: Encoding, *, text_only: bool = False) -> Decode:
    """Return a function that converts bytes to a cell for programs; `encoder` restores the bytes.

    All cells of a column have one form: text for `auto`, `{"base64": ...}` for `bytes`. Only None
    becomes None. JSON keeps its content, but its text may differ. The function raises SerdeError
    for bytes that the form can't represent.

    Args:
        encoding: The form.
        text_only: Whether cells have no types of their own, as in CSV: JSON becomes its text.
    """
    if encoding is Encoding.BYTES:
        return _base64
    is_json = encoding is Encoding.JSON
    name = "string" if encoding is Encoding.AUTO else str(encoding)
    read, write = deserializer(name), serializer(name)

    def decode(data: bytes | None) -> Cell:
        if data is None:
            return None
        content = read(data)
        if content is None:
            raise SerdeError(
                f"the {name} {_excerpt(data)} can't be distinguished from an absent value"
            )
        if write(content) != data and not is_json:
            raise SerdeError(f"{_excerpt(data)} as {name} would become other bytes")
        if is_json and text_only:
            return json.dumps(content, ensure_ascii=False)
        if isinstance(content, float) and not math.isfinite(content):
            return str(content)  # JSON has no infinity and no NaN
        return content if isinstance(content, str | int | float | list | dict) else str(content)

    return decode


def _excerpt(data: bytes) -> str:
    return f"{data[:CHARACTERS_SHOWN]!r}{'...' if len(data) > CHARACTERS_SHOWN else ''}"


def _base64(data: bytes | None) -> Cell:
    return None if data is None else {_BASE64: b64encode(data).decode("ascii")}


def headers_cell(headers: tuple[Header, ...], decode: Decode) -> Cell:
    """Return headers as a list of [name, value], since names may repeat."""
    return [[header.key, decode(header.value)] for header in headers]


def shortened(cell: Cell, limit: int) -> Cell:
    """Return a cell for a table; text is cut to `limit` characters, the last one an ellipsis."""
    if cell is None or isinstance(cell, bool | int | float):
        return cell
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def encoder(encoding: Encoding, *, text_only: bool = False) -> Callable[[object], bytes | None]:
    """Return a function that converts a cell of a file, or text typed by a user, to bytes.

    The encoding decides how text is parsed: a number for `int64`, base64 for `bytes`, which also
    accepts `{"base64": ...}` of `exact_decoder`. Only None becomes null. The function raises
    SerdeError.

    Args:
        encoding: Any but `auto`, whose form depends on the cell's type.
        text_only: Whether cells have no types of their own, as in CSV: `json` parses them as JSON.
    """
    assert encoding is not Encoding.AUTO
    write = serializer(encoding)
    parse = _json_text if text_only and encoding is Encoding.JSON else _PARSERS.get(encoding)

    def encode(cell: object) -> bytes | None:
        if encoding is Encoding.BYTES and isinstance(cell, dict):
            cell = json.dumps(cell)
        if parse is None or not isinstance(cell, str):
            return write(cell)
        try:
            return write(parse(cell))
        except (ValueError, RecursionError) as error:
            raise SerdeError(f"{cell[:CHARACTERS_SHOWN]!r} is no {encoding}: {error}") from error

    return encode


def _base64_bytes(text: str) -> bytes:
    if text.startswith("{"):
        content = json.loads(text)
        text = content.get(_BASE64)
        if len(content) != 1 or not isinstance(text, str):
            raise ValueError(f'expected base64, or an object with "{_BASE64}" alone')
    return b64decode(text, validate=True)


def _json_text(text: str) -> object:
    """Parse JSON text; refuses null, which would mean no value."""
    content: object = json.loads(text)
    if content is None:
        raise ValueError("null is no value; an empty cell stands for that")
    return content


CHARACTERS_SHOWN: Final = 60


_BASE64: Final = "base64"


_PARSERS: Final[dict[Encoding, Callable[[str], object]]] = {
    Encoding.BYTES: _base64_bytes,
    Encoding.INT32: int,
    Encoding.INT64: int,
    Encoding.DOUBLE: float,
    Encoding.UUID: UUID,
}


def typed_bytes(text: str, encoding: Encoding) -> bytes:
    """Return the bytes of a key typed by a user; raises SerdeError.

    `auto` encodes the text as UTF-8, `json` parses it and writes compact JSON.
    """
    if encoding is Encoding.AUTO:
        return text.encode()
    data = encoder(encoding, text_only=True)(text)
    assert data is not None
    return data
