"""Files of rows as records: lines, JSON lines, CSV with a heading, Arrow, Parquet.

A row's value is the whole row as JSON (the line itself for JSON lines, so that no number is
written anew), or one column. Errors name the input and the line. `read` writes files of which
`produce` makes the same records (docs/cli.md).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import BinaryIO, Final, TypeAlias, cast

from tidelog.cli.input_rows import (
    ROW_READERS,
    EpochMs,
    InputRow,
    Wanted,
    file_lines,
    no_column,
    to_json,
)
from tidelog.cli.options import Encoding, InputFormat
from tidelog.cli.output import CHARACTERS_SHOWN, encoder
from tidelog.cli.surroundings import Refused, UsageProblem
from tidelog.errors import InvalidTime, InvalidTimestamp, SerdeError
from tidelog.types import Header, NewRecord, check_time

# As `read` calls its columns of epoch ms: their numbers are not looked at for their unit.
_MS: Final = "_ms"
_WHOLE: Final = re.compile(r"\d{1,19}", re.ASCII)


_BY_SUFFIX: Final = {
    ".json": InputFormat.JSON,
    ".jsonl": InputFormat.JSON,
    ".ndjson": InputFormat.JSON,
    ".csv": InputFormat.CSV,
    ".arrow": InputFormat.ARROW,
    ".arrows": InputFormat.ARROW,
    ".feather": InputFormat.ARROW,
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
        key: The record's key. Null, which is an empty cell in CSV, is "no key".
        time: Its create time, in the grammar of docs/time.md; null is the log's clock.
        value: Its value alone; the whole row where None.
        headers: An object of header names and values.
        key_as: What the key's cell becomes; text and JSON by what the cell is where `auto`.
        value_as: What the value's cell becomes, or a line of a file of lines.
        headers_as: What the values of headers become.
    """

    key: str | None = None
    time: str | None = None
    value: str | None = None
    headers: str | None = None
    key_as: Encoding = Encoding.AUTO
    value_as: Encoding = Encoding.AUTO
    headers_as: Encoding = Encoding.AUTO

    def __bool__(self) -> bool:
        return any((self.key, self.time, self.value, self.headers))

    @property
    def wanted(self) -> Wanted:
        """The columns that are read: all, where the value is the whole row."""
        named = (self.key, self.time, self.value, self.headers)
        names = None if self.value is None else frozenset(name for name in named if name)
        return Wanted(names, self.time)

    def ensure_consistent(self, kind: InputFormat) -> None:
        """Raise UsageProblem for encodings of what is not there."""
        if self.key is None and self.key_as is not Encoding.AUTO:
            raise UsageProblem(f"--key-as {self.key_as} needs the column of the key: --key COL")
        if self.headers is None and self.headers_as is not Encoding.AUTO:
            raise UsageProblem(
                f"--headers-as {self.headers_as} needs the column of headers: --headers COL"
            )
        is_row = self.value is None and kind is not InputFormat.LINES
        if is_row and self.value_as not in (Encoding.AUTO, Encoding.JSON):
            raise UsageProblem(
                f"--value-as {self.value_as}: a whole row is JSON; give its column: --value COL"
            )


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
            raise UsageProblem("lines have no columns; say --format json, csv, arrow or parquet")
        return _line_records(source, name, columns.value_as)
    rows = ROW_READERS[kind](source, name, columns.wanted)
    to_record = _RecordMaker(columns, parse_time, text_only=kind is InputFormat.CSV)
    return map(to_record.record, rows)


def _line_records(source: BinaryIO, name: str, value_as: Encoding) -> Iterator[NewRecord]:
    if value_as is Encoding.AUTO:
        yield from (NewRecord(value=line) for line in file_lines(source))
        return
    encode = encoder(value_as, text_only=True)
    for number, line in enumerate(file_lines(source), 1):
        place = f"{name} line {number}"
        try:
            yield NewRecord(value=encode(line.decode()))
        except (SerdeError, UnicodeDecodeError) as error:
            raise Refused(f"{place}: {error}") from error


class _RecordMaker:
    """Makes records of rows."""

    def __init__(
        self, columns: Columns, parse_time: Callable[[str], int], *, text_only: bool
    ) -> None:
        self._columns = columns
        self._parse_time = parse_time
        self._key = _encode(columns.key_as, text_only=text_only)
        self._value = _encode(columns.value_as, text_only=text_only)
        # Headers are JSON also where cells are text, and so are their values.
        self._header = _encode(columns.headers_as, text_only=False)

    def record(self, row: InputRow) -> NewRecord:
        """Return a row's record; raises Refused, which names the row."""
        key, time, value, headers = (
            self._columns.key,
            self._columns.time,
            self._columns.value,
            self._columns.headers,
        )
        timestamp = None if time is None else _time(row, time, self._parse_time)
        return NewRecord(
            key=None if key is None else _encoded(row, key, self._key),
            value=row.raw if value is None else _encoded(row, value, self._value),
            timestamp=timestamp,
            headers=() if headers is None else _headers(row, headers, self._header),
        )


_Encode: TypeAlias = Callable[[object], bytes | None]


def _encode(encoding: Encoding, *, text_only: bool) -> _Encode:
    return _bytes if encoding is Encoding.AUTO else encoder(encoding, text_only=text_only)


def _field(row: InputRow, name: str) -> object:
    if name not in row.fields:
        raise Refused(no_column(row.place, name, row.fields))
    return row.fields[name]


def _encoded(row: InputRow, name: str, encode: _Encode) -> bytes | None:
    """Return a cell as bytes."""
    content = _field(row, name)
    try:
        return encode(content)
    except (SerdeError, UnicodeEncodeError) as error:
        raise Refused(f"{row.place}: {name}: {error}") from error


def _bytes(content: object) -> bytes | None:
    """Return a cell as bytes: text as UTF-8, null as null, anything else as JSON."""
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode()
    return content if isinstance(content, bytes) else to_json(content)


def _time(row: InputRow, name: str, parse_time: Callable[[str], int]) -> int | None:
    content = _field(row, name)
    if content is None or content == "":
        return None
    try:
        if isinstance(content, EpochMs) or (name.endswith(_MS) and _is_whole(content)):
            return check_time(int(cast("int | str", content)))
    except InvalidTimestamp as error:
        raise Refused(f"{row.place}: {name}: {error}") from error
    if isinstance(content, bool) or not isinstance(content, str | int | float | datetime):
        raise Refused(f"{row.place}: {name} is {str(content)[:CHARACTERS_SHOWN]!r}, no time")
    if isinstance(content, float):
        if not content.is_integer():
            raise Refused(f"{row.place}: {name} is {content!r}, whole epoch ms expected")
        content = int(content)
    shown = content.isoformat() if isinstance(content, datetime) else str(content)
    try:
        return parse_time(shown)
    except InvalidTime as error:
        raise Refused(f"{row.place}: {name}: {error}") from error


def _is_whole(content: object) -> bool:
    if isinstance(content, str):
        return _WHOLE.fullmatch(content) is not None
    return isinstance(content, int) and not isinstance(content, bool) and content >= 0


def _headers(row: InputRow, name: str, encode: _Encode) -> tuple[Header, ...]:
    content = _field(row, name)
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Refused(f"{row.place}: {name}: not JSON: {error}") from error
    pairs = _pairs(content)
    if pairs is None:
        raise Refused(
            f"{row.place}: {name}: an object of header names and values expected, "
            "or a list of [name, value]"
        )
    try:
        return tuple(Header(key, encode(value)) for key, value in pairs)
    except (SerdeError, UnicodeEncodeError) as error:
        raise Refused(f"{row.place}: {name}: {error}") from error


def _pairs(content: object) -> list[tuple[str, object]] | None:
    """Names and values of an object, or of a list of pairs as Parquet's maps come out."""
    if isinstance(content, dict):
        return list(content.items())
    if not isinstance(content, list):
        return None
    pairs: list[tuple[str, object]] = []
    for item in content:
        if isinstance(item, dict):
            key, value = item.get("key"), item.get("value")
        elif isinstance(item, tuple | list) and len(item) == 2:
            key, value = item
        else:
            return None
        if not isinstance(key, str):
            return None
        pairs.append((key, value))
    return pairs
