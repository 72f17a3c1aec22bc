"""Files of rows as records: lines, JSON lines, CSV with a heading, Parquet.

A row's value is the whole row as JSON (the line itself for JSON lines, so that no number is
written anew), or one column. Errors name the input and the line.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import TextIOWrapper
from pathlib import PurePath
from typing import BinaryIO, Final
from uuid import UUID

from tidelog.cli.choices import Encoding, InputFormat
from tidelog.cli.fields import encoder
from tidelog.cli.problems import Refused, UsageProblem
from tidelog.errors import InvalidTime, MissingDependency, SerdeError
from tidelog.types import Header, NewRecord

# Python's own limit is 128 KiB, and records may be longer. More than a batch holds is a lost quote.
_CSV_CELL_MAX: Final = 1 << 27
_PARQUET_ROWS: Final = 8_192
_SHOWN: Final = 60


_BY_SUFFIX: Final = {
    ".json": InputFormat.JSON,
    ".jsonl": InputFormat.JSON,
    ".ndjson": InputFormat.JSON,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
    ".pq": InputFormat.PARQUET,
}


def format_of(name: str) -> InputFormat:
    """The format that a file's name tells; lines for any other, and for `-`."""
    return _BY_SUFFIX.get(PurePath(name).suffix.lower(), InputFormat.LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a row are what; None where there is no such column.

    Attributes:
        key: The record's key; null or an empty CSV cell is "no key".
        time: Its create time, in the grammar of docs/time.md; null is the log's clock.
        value: Its value alone; the whole row where None.
        headers: An object of header names and values.
        key_as: What the key's cell becomes; text and JSON by what the cell is where `auto`.
        value_as: What the value's cell becomes, or a line of a file of lines.
    """

    key: str | None = None
    time: str | None = None
    value: str | None = None
    headers: str | None = None
    key_as: Encoding = Encoding.AUTO
    value_as: Encoding = Encoding.AUTO

    def __bool__(self) -> bool:
        return any((self.key, self.time, self.value, self.headers))

    def ensure_consistent(self, kind: InputFormat) -> None:
        """Raise UsageProblem for encodings of what is not there."""
        if self.key is None and self.key_as is not Encoding.AUTO:
            raise UsageProblem(f"--key-as {self.key_as} needs the column of the key: --key COL")
        is_row = self.value is None and kind is not InputFormat.LINES
        if is_row and self.value_as not in (Encoding.AUTO, Encoding.JSON):
            raise UsageProblem(
                f"--value-as {self.value_as}: a whole row is JSON; give its column: --value COL"
            )


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row: its columns, its own bytes, and how errors call it."""

    fields: Mapping[str, object]
    raw: bytes
    place: str


def read_records(
    source: BinaryIO,
    name: str,
    kind: InputFormat,
    columns: Columns,
    parse_time: Callable[[str], int],
) -> Iterator[NewRecord]:
    """The records in an open file, in its order.

    Args:
        source: The file; Parquet needs one that can be sought in.
        name: For errors.
        kind: How it is read.
        columns: What is what.
        parse_time: From text in the grammar of times to ms.

    Raises:
        UsageProblem: Columns of a file that has none.
        Refused: A row that can't be read, or lacks a column; it names the line.
        MissingDependency: Parquet without pyarrow.
    """
    columns.ensure_consistent(kind)
    if kind is InputFormat.LINES:
        if columns:
            raise UsageProblem("lines have no columns; say --format json, csv or parquet")
        return _line_records(source, name, columns.value_as)
    rows = _READERS[kind](source, name)
    return (_record(row, columns, parse_time) for row in rows)


def _lines(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _line_records(source: BinaryIO, name: str, value_as: Encoding) -> Iterator[NewRecord]:
    if value_as is Encoding.AUTO:
        yield from (NewRecord(value=line) for line in _lines(source))
        return
    encode = encoder(value_as)
    for number, line in enumerate(_lines(source), 1):
        place = f"{name} line {number}"
        try:
            yield NewRecord(value=encode(line.decode()))
        except (SerdeError, UnicodeDecodeError) as error:
            raise Refused(f"{place}: {error}") from error


def _json_rows(source: BinaryIO, name: str) -> Iterator[InputRow]:
    for number, line in enumerate(_lines(source), 1):
        if not line.strip():
            continue
        place = f"{name} line {number}"
        try:
            fields: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Refused(f"{place}: not JSON: {error}; one object on each line") from error
        if not isinstance(fields, dict):
            raise Refused(f"{place}: {type(fields).__name__}, a JSON object expected")
        yield InputRow(fields, line.strip(), place)


def _csv_rows(source: BinaryIO, name: str) -> Iterator[InputRow]:
    csv.field_size_limit(_CSV_CELL_MAX)
    text = TextIOWrapper(source, encoding="utf-8-sig", newline="")
    try:
        reader = csv.DictReader(text, strict=True)
        for fields in reader:
            place = f"{name} line {reader.line_num}"
            if None in fields or None in fields.values():
                count = len(reader.fieldnames or ())
                raise Refused(f"{place}: not {count} columns as the heading has")
            yield InputRow(fields, _to_json(fields), place)
    except (csv.Error, UnicodeDecodeError) as error:
        raise Refused(f"{name}: not CSV in UTF-8: {error}") from error
    finally:
        if not source.closed:
            text.detach()  # or it would close the source, which isn't ours


def _parquet_rows(source: BinaryIO, name: str) -> Iterator[InputRow]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise MissingDependency("Parquet needs pyarrow; `pip install 'tidelog[arrow]'`") from error
    try:
        file = parquet.ParquetFile(source)
    except (ArrowInvalid, OSError) as error:
        raise Refused(f"{name}: not Parquet: {error}") from error
    number = 0
    for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
        for fields in batch.to_pylist():
            number += 1
            yield InputRow(fields, _to_json(fields), f"{name} row {number}")


_READERS: Final[Mapping[InputFormat, Callable[[BinaryIO, str], Iterable[InputRow]]]] = {
    InputFormat.JSON: _json_rows,
    InputFormat.CSV: _csv_rows,
    InputFormat.PARQUET: _parquet_rows,
}


def _record(row: InputRow, columns: Columns, parse_time: Callable[[str], int]) -> NewRecord:
    key, value = columns.key, columns.value
    return NewRecord(
        key=None if key is None else _encoded(row, key, columns.key_as, empty=None),
        value=row.raw if value is None else _encoded(row, value, columns.value_as),
        timestamp=None if columns.time is None else _time(row, columns.time, parse_time),
        headers=() if columns.headers is None else _headers(row, columns.headers),
    )


def _field(row: InputRow, name: str) -> object:
    if name not in row.fields:
        known = ", ".join(list(row.fields)[:_SHOWN])
        raise Refused(f"{row.place}: no column {name!r}; there are {known}")
    return row.fields[name]


def _encoded(
    row: InputRow, name: str, encoding: Encoding, *, empty: bytes | None = b""
) -> bytes | None:
    """A cell as bytes, by the encoding that was asked for."""
    content = _field(row, name)
    if encoding is Encoding.AUTO or (content == "" and empty is None):
        return _bytes(content, empty=empty)
    try:
        return encoder(encoding)(content)
    except SerdeError as error:
        raise Refused(f"{row.place}: {name}: {error}") from error


def _bytes(content: object, *, empty: bytes | None = b"") -> bytes | None:
    """A cell as bytes: text as UTF-8, null as null, anything else as JSON."""
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode() if content else empty
    return content if isinstance(content, bytes) else _to_json(content)


def _time(row: InputRow, name: str, parse_time: Callable[[str], int]) -> int | None:
    content = _field(row, name)
    if content is None or content == "":
        return None
    if isinstance(content, bool) or not isinstance(content, str | int | float | datetime):
        raise Refused(f"{row.place}: {name} is {str(content)[:_SHOWN]!r}, no time")
    if isinstance(content, float):
        if not content.is_integer():
            raise Refused(f"{row.place}: {name} is {content!r}, whole epoch ms expected")
        content = int(content)
    shown = content.isoformat() if isinstance(content, datetime) else str(content)
    try:
        return parse_time(shown)
    except InvalidTime as error:
        raise Refused(f"{row.place}: {name}: {error}") from error


def _headers(row: InputRow, name: str) -> tuple[Header, ...]:
    content = _field(row, name)
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError as error:
            raise Refused(f"{row.place}: {name}: not JSON: {error}") from error
    pairs = _pairs(content)
    if pairs is None:
        raise Refused(f"{row.place}: {name}: an object of header names and values expected")
    return tuple(Header(key, _bytes(value)) for key, value in pairs)


def _pairs(content: object) -> list[tuple[str, object]] | None:
    """Names and values of an object, or of a list of pairs as Parquet's maps come out."""
    if isinstance(content, dict):
        return [(str(key), value) for key, value in content.items()]
    if not isinstance(content, list):
        return None
    pairs = []
    for item in content:
        if isinstance(item, dict) and "key" in item and "value" in item:
            pairs.append((str(item["key"]), item["value"]))
        elif isinstance(item, tuple | list) and len(item) == 2:
            pairs.append((str(item[0]), item[1]))
        else:
            return None
    return pairs


def _to_json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_special).encode()


def _special(content: object) -> object:
    """What JSON has no word for: times as ISO 8601, numbers and ids as text, bytes as base64."""
    if isinstance(content, datetime | date | time):
        return content.isoformat()
    if isinstance(content, timedelta):
        return content.total_seconds()
    if isinstance(content, Decimal | UUID):
        return str(content)
    if isinstance(content, bytes):
        from base64 import b64encode

        return b64encode(content).decode("ascii")
    raise TypeError(f"JSON can't hold {type(content).__name__}")
