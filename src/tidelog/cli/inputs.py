"""Reads files of rows as records: lines, JSON lines, CSV with a heading, Arrow, Parquet.

A record's value is one of three: the whole row as JSON, one column, or a line. For a file of JSON
lines, the whole row is the line itself, so that numbers keep their form. Errors name the input and
the line or row. `tidelog produce` reads from a file the same records that `tidelog read` wrote to
it (docs/cli.md).
"""

import csv
import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import DEFAULT_BUFFER_SIZE, BufferedReader, RawIOBase, TextIOWrapper
from pathlib import PurePath
from select import select
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from tidelog.amounts import plural
from tidelog.cli.cells import CHARACTERS_SHOWN, argument_bytes, encoder
from tidelog.cli.options import Encoding, InputFormat
from tidelog.cli.surroundings import InvalidInput, UsageProblem
from tidelog.env import Clock
from tidelog.errors import InvalidTime, InvalidTimestamp, MissingDependency, SerdeError
from tidelog.lazy_dataclass import dataclass
from tidelog.record.exact_json import (
    COMPACT,
    ExactNumber,
    ExactObject,
    members_of,
    parse,
    text_of,
    utf8_bytes,
)
from tidelog.types import Header, NewRecord, check_time

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa
    from _typeshed import WriteableBuffer

# -- input that arrives while it is read ----------------------------------------------------------


class _Pipe(RawIOBase):
    """File descriptor to read, and the bytes that were read ahead of the reader."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.ahead = bytearray()
        self.has_ended = False
        self.is_probed = False  # while `is_probed` is true, a read takes no bytes and returns None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        if self.is_probed:
            return None
        view = memoryview(buffer)
        if not self.ahead and not self.has_ended:
            self.read_ahead()
        data = self.ahead[: len(view)]
        del self.ahead[: len(view)]
        view[: len(data)] = data
        return len(data)

    def read_ahead(self) -> bytes:
        """Wait for bytes, add them to `ahead` and return them; empty at the end of the input."""
        # Another process may have made the descriptor non-blocking, so wait before the read.
        select([self.descriptor], [], [])
        data = os.read(self.descriptor, DEFAULT_BUFFER_SIZE)
        self.has_ended = not data
        self.ahead += data
        return data


class LiveInput(BufferedReader):
    """A pipe or terminal that is read line by line; `pauses` reports that no line has arrived yet.

    Closing it leaves the file descriptor open.

    Attributes:
        skips_blank_lines: Whether the reader skips lines that have only whitespace.
    """

    def __init__(self, descriptor: int) -> None:
        self._pipe = _Pipe(descriptor)
        super().__init__(self._pipe)
        self.skips_blank_lines = False

    def pauses(self, clock: Clock, until_ms: int) -> bool:
        """Wait for a complete line; return True if there is none at `until_ms`.

        A line that the reader skips does not count. The end of the input counts as a line.

        Args:
            clock: Clock of the monotonic time.
            until_ms: Monotonic time in ms.
        """
        pipe = self._pipe
        if pipe.has_ended:
            return False
        data, has_text, is_due = self._buffered() + pipe.ahead, False, False
        while True:
            lines, newline, rest = data.rpartition(b"\n")
            if newline and (has_text or not self.skips_blank_lines or lines.strip()):
                return False
            has_text = has_text or bool(rest.strip())
            wait_ms = max(until_ms - clock.monotonic_ms(), 0)
            # The bytes of a long line may keep arriving without its end. So arriving bytes must not
            # prolong the wait beyond `until_ms`.
            if is_due or not select([pipe.descriptor], [], [], wait_ms / 1_000)[0]:
                return True
            is_due = not wait_ms
            data = pipe.read_ahead()
            if not data:
                return False

    def _buffered(self) -> bytes:
        self._pipe.is_probed = True
        try:
            return self.peek()
        finally:
            self._pipe.is_probed = False


def live_input(source: BinaryIO) -> BinaryIO:
    """Return a stream as `LiveInput`; a stream without file descriptor is returned unchanged.

    Nothing may have been read from `source` before, because bytes in its buffer would be lost.
    """
    try:
        return LiveInput(source.fileno())
    except OSError:
        return source


# -- rows of files ------------------------------------------------------------------------------

# Maximum number of characters of a cell in CSV. Python's default is 131,072, but records may be
# longer. If a cell has more characters, a quote is probably missing.
_CSV_CELL_MAX: Final = 1 << 27
_ROWS_AT_ONCE: Final = 8_192
# Maximum number of columns that an error message names.
_NAMES_MAX: Final = 60
_ARROW_FILE: Final = b"A"
# Maps the unit of an Arrow time to (n, m): n of these units are m ms.
_UNITS_MS: Final = {"s": (1, 1_000), "ms": (1, 1), "us": (1_000, 1), "ns": (1_000_000, 1)}


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Columns to read from an input.

    Attributes:
        columns: Names of the columns; None for all.
        time: Name of the column with times; None if there is none.
        infers: Whether CSV cells that are JSON numbers become numbers in the row's JSON. If false,
            they become text.
        numbers: List that receives the location of the first CSV cell that is a number but becomes
            text. None if the location is not needed.
    """

    columns: frozenset[str] | None
    time: str | None
    infers: bool = False
    numbers: list[str] | None = None


@dataclass(frozen=True, slots=True)
class InputRow:
    """Row of an input: the cells by column, the row as JSON, and the row's location for errors."""

    fields: Mapping[str, object]
    raw: bytes
    location: str


def file_lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without their line endings."""
    for line in source:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _json_rows(source: BinaryIO, name: str, choice: ColumnChoice) -> Iterator[InputRow]:
    for number, text in enumerate(file_lines(source), 1):
        # joined files can have a byte order mark on any line
        line = text.removeprefix(BOM_UTF8)
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            fields = parse(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{where}: not JSON: {error}; give one object on each line"
            ) from error
        if not isinstance(fields, dict):
            raise InvalidInput(
                f"{where}: {_json_kind(fields)}, but each line must be a JSON object"
            )
        if choice.columns is not None and isinstance(fields, ExactObject):
            repeated = sorted(fields.repeated_names() & choice.columns)
            if repeated:
                raise InvalidInput(f"{where}: {repeated[0]!r} occurs more than once")
        yield InputRow(fields, line.strip(), where)


def _json_kind(content: object) -> str:
    """Return the kind of a JSON value other than an object, with its article."""
    if content is None:
        return "null"
    if isinstance(content, bool):
        return "true" if content else "false"
    return (
        "a list"
        if isinstance(content, list)
        else "text"
        if isinstance(content, str)
        else "a number"
    )


def _csv_rows(source: BinaryIO, name: str, chosen: ColumnChoice) -> Iterator[InputRow]:
    csv.field_size_limit(_CSV_CELL_MAX)
    text = TextIOWrapper(source, encoding="utf-8-sig", newline="")
    lines = _RowLines(text)
    try:
        reader = csv.reader(lines, strict=True)
        names = next(reader, [])
        _refuse_repeated(names, name, chosen.columns)
        lines.take()
        for cells in reader:
            raw = lines.take()
            if not cells:
                continue
            where = f"{name} line {reader.line_num}"
            if len(cells) != len(names):
                raise InvalidInput(
                    f"{where}: {plural(len(cells), 'cell')}, but the heading has"
                    f" {plural(len(names), 'column')}"
                )
            fields = dict(zip(names, _with_nulls(cells, raw), strict=True))
            if chosen.numbers == [] and (numeric := _first_number(fields)) is not None:
                chosen.numbers.append(f"{where}, column {numeric}")
            raw_json = _inferred_json(fields) if chosen.infers else to_json(fields)
            yield InputRow(fields, raw_json, where)
    except csv.Error as error:
        raise InvalidInput(f"{name} line {lines.row_start}: not CSV: {error}") from error
    except UnicodeDecodeError as error:
        # The decoded bytes begin in the line after the last whole line.
        before = len(_LINE_END.findall(error.object[: error.start]))
        where = f"{name} line {lines.count + before + 1}"
        byte = error.object[error.start]
        raise InvalidInput(f"{where}: not UTF-8: byte 0x{byte:02x}; convert the file") from error
    finally:
        if not source.closed:
            text.detach()  # otherwise TextIOWrapper would close the caller's source


def _refuse_repeated(names: Sequence[str], where: str, columns: frozenset[str] | None) -> None:
    """Raise InvalidInput if a column that is read occurs more than once.

    Args:
        names: Names of the input's columns.
        where: Name of the input.
        columns: Columns that are read; None for all.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen and (columns is None or name in columns):
            raise InvalidInput(
                f"{where}: column {name!r} occurs more than once; rename one of these columns"
            )
        seen.add(name)


# Matches a number in JSON's syntax. `007`, `+1` and `1,000` don't match, so they become text.
_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


def _is_number(cell: str | None) -> bool:
    return cell is not None and _JSON_NUMBER.fullmatch(cell) is not None


def _first_number(fields: Mapping[str, str | None]) -> str | None:
    """Return the name of the first column whose cell is a number, or None."""
    return next((name for name, cell in fields.items() if _is_number(cell)), None)


def _inferred_json(fields: Mapping[str, str | None]) -> bytes:
    """Return a row as JSON.

    A cell that is a JSON number is copied unchanged, without quotes. Other cells become strings,
    and None becomes null.
    """
    cells = (
        f"{_json_text(name)}:{cell if _is_number(cell) else _json_text(cell)}"
        for name, cell in fields.items()
    )
    return f"{{{','.join(cells)}}}".encode()


def _json_text(cell: str | None) -> str:
    return json.dumps(cell, ensure_ascii=False)


# Matches an end of a line, as `TextIOWrapper` recognizes it.
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class _RowLines:
    """Iterates over lines, and stores the lines of the current row until `take` returns them.

    Attributes:
        count: Number of lines read so far.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._row: list[str] = []
        self.count = 0

    @property
    def row_start(self) -> int:
        """Number of the first line of the current row; the next line's if none was read."""
        return self.count - len(self._row) + 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._row.append(line)
        self.count += 1
        return line

    def take(self) -> str:
        """Return the text of the lines that were read since the last call of `take`."""
        row = "".join(self._row)
        self._row.clear()
        return row


# Matches a cell of CSV and the separator after the cell. If a cell doesn't begin with a quote, all
# its quotes are text.
_CSV_CELL: Final = re.compile(r'("(?:[^"]|"")*"|[^,]*)(?:,|$)', re.DOTALL)


def _with_nulls(cells: list[str], raw: str) -> list[str | None]:
    """Return the cells of a row; an empty cell becomes null, and `""` becomes empty text.

    Python's reader doesn't distinguish null from empty text, so rows that contain `""` are parsed
    again.
    """
    if "" not in cells:
        return list(cells)
    if '""' not in raw:
        return [cell or None for cell in cells]
    at, cells_or_null = 0, []
    for cell in cells:
        match = _CSV_CELL.match(raw, at)
        is_quoted = match is not None and match[1].startswith('"')
        cells_or_null.append(cell if cell or is_quoted else None)
        at = len(raw) if match is None else match.end()
    return cells_or_null


def _arrow_rows(source: BinaryIO, name: str, chosen: ColumnChoice) -> Iterator[InputRow]:
    """Yield the rows of an Arrow stream, which may come through a pipe, or of an Arrow file."""
    pa = _pyarrow("Arrow")
    try:
        if _is_arrow_file(source):
            reader = pa.ipc.open_file(pa.BufferReader(source.read()))
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(pa.PythonFile(source, "r")))
        yield from _batch_rows(batches, name, chosen)
    except (pa.ArrowException, OSError) as error:
        reason = f"{error}".rstrip(".")
        raise InvalidInput(f"{name}: not Arrow: {reason}") from error


def _parquet_rows(source: BinaryIO, name: str, chosen: ColumnChoice) -> Iterator[InputRow]:
    pa = _pyarrow("Parquet")
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(source)
        yield from _batch_rows(file.iter_batches(batch_size=_ROWS_AT_ONCE), name, chosen)
    except (pa.ArrowException, OSError) as error:
        reason = f"{error}".rstrip(".")
        raise InvalidInput(f"{name}: not Parquet: {reason}") from error


def _pyarrow(what: str) -> "ModuleType":
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependency(f"{what} needs pyarrow; `pip install 'tidelog[arrow]'`") from error
    return pa


def _is_arrow_file(source: BinaryIO) -> bool:
    """Return whether the source is an Arrow file; the first byte of an Arrow stream is 0xFF."""
    if source.seekable():
        start = source.tell()
        first = source.read(1)
        source.seek(start)
    else:
        assert isinstance(source, BufferedReader)
        first = source.peek(1)[:1]
    return first == _ARROW_FILE


def _batch_rows(
    batches: "Iterable[pa.RecordBatch]", name: str, choice: ColumnChoice
) -> Iterator[InputRow]:
    """Yield rows of the chosen columns.

    Other columns are not converted, because they may have values outside Python's range.
    """
    number = 0
    for whole in batches:
        chosen = _chosen(whole, name, choice.columns)
        times = _times_ms(chosen, choice.time)
        if times is not None and choice.columns is not None:
            assert choice.time is not None
            chosen = _in_numbers(chosen, choice.time)
        elif choice.columns is not None:
            chosen = _in_us(chosen, choice.time)
        try:
            rows = _in_python_units(chosen).to_pylist()
        except (ValueError, OverflowError) as error:  # some times are outside Python's range
            raise _unreadable_cell(chosen, name, number, error) from error
        for at, fields in enumerate(rows):
            number += 1
            raw = b"" if choice.columns is not None else _row_json(fields, f"{name} row {number}")
            if times is not None:
                assert choice.time is not None
                fields[choice.time] = times[at]
            yield InputRow(fields, raw, f"{name} row {number}")


def _unreadable_cell(
    batch: "pa.RecordBatch", name: str, rows_before: int, error: Exception
) -> InvalidInput:
    """Return the error for the first cell that Python can't represent, such as a year above 9999.

    Args:
        batch: Rows of which at least one has such a cell.
        name: The file.
        rows_before: Number of the file's rows before the batch.
        error: The error of the whole batch, for a cell that can be converted alone.
    """
    import pyarrow as pa

    for at in range(batch.num_rows):
        for column, cells in zip(batch.schema.names, batch.columns, strict=True):
            try:
                _in_python_units(batch.slice(at, 1).select([column])).to_pylist()
            except (ValueError, OverflowError) as reason:
                number = f" {cells[at].value}" if pa.types.is_temporal(cells.type) else ""
                where = f"{name} row {rows_before + at + 1}: {column}"
                return InvalidInput(f"{where}: {cells.type}{number} can't be read: {reason}")
    return InvalidInput(f"{name} row {rows_before + 1} or a later one: {error}")


def _row_json(fields: Mapping[str, object], where: str) -> bytes:
    try:
        return to_json(fields)
    except _NOT_JSON as error:
        raise InvalidInput(f"{where}: {error}; name a column of values with --value") from error


def _chosen(batch: "pa.RecordBatch", name: str, columns: frozenset[str] | None) -> "pa.RecordBatch":
    names = batch.schema.names
    _refuse_repeated(names, name, columns)
    if columns is None:
        return batch
    if lacking := sorted(columns.difference(names)):
        raise InvalidInput(no_column(name, lacking[0], names))
    return batch.select([one for one in names if one in columns])


class EpochMs(int):
    """A time that is known to be in ms. For a plain `int`, the unit must be guessed."""


def _times_ms(batch: "pa.RecordBatch", name: str | None) -> list[EpochMs | None] | None:
    """Return a column's times as epoch ms.

    Return None if the column does not exist, or does not have timestamps with a zone.
    """
    import pyarrow as pa

    if name is None or name not in batch.schema.names:
        return None
    column = batch.column(name)
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return None
    units, each = _UNITS_MS[column.type.unit]
    numbers = column.cast(pa.int64()).to_pylist()
    return [None if one is None else EpochMs(one * each // units) for one in numbers]


def _in_numbers(batch: "pa.RecordBatch", name: str) -> "pa.RecordBatch":
    """Convert the column of times to integers, because Python has no time after the year 9999."""
    import pyarrow as pa

    at = batch.schema.names.index(name)
    return batch.set_column(at, name, batch.column(at).cast(pa.int64()))


def _in_us(batch: "pa.RecordBatch", name: str | None) -> "pa.RecordBatch":
    """Round the column of times down to microseconds, the finest unit of Python."""
    import pyarrow as pa
    from pyarrow import compute as pc

    if name is None or name not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index(name)
    kind = batch.schema.field(at).type
    if not pa.types.is_timestamp(kind) or kind.unit != "ns":
        return batch
    times = batch.column(at)
    if kind.tz is None:
        times = pc.floor_temporal(times, unit="microsecond")
    times = times.cast(pa.timestamp("us", kind.tz), safe=False)
    columns = [*batch.columns[:at], times, *batch.columns[at + 1 :]]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _in_python_units(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Convert times of day and durations in ns to microseconds, the finest unit of Python.

    Raises ArrowInvalid, a ValueError, if a digit would be lost.
    """
    import pyarrow as pa

    units: dict[object, pa.DataType] = {
        pa.time64("ns"): pa.time64("us"),
        pa.duration("ns"): pa.duration("us"),
    }
    if not any(field.type in units for field in batch.schema):
        return batch
    columns = [
        column.cast(units[column.type]) if column.type in units else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def no_column(where: str, name: str, names: Iterable[str]) -> str:
    """Return the error text for a missing column."""
    import difflib  # imported here, because the import takes 3 ms and only this error needs it

    known = list(names)
    words = difflib.get_close_matches(name, known, n=1)
    near = f"did you mean {words[0]}? " if words else ""
    columns = ", ".join(known[:_NAMES_MAX])
    return f"{where}: no column {name!r}; {near}the columns are {columns}"


ROW_READERS: Final[
    Mapping[InputFormat, Callable[[BinaryIO, str, ColumnChoice], Iterable[InputRow]]]
] = {
    InputFormat.JSON: _json_rows,
    InputFormat.CSV: _csv_rows,
    InputFormat.ARROW: _arrow_rows,
    InputFormat.PARQUET: _parquet_rows,
}


# Errors of `to_json`.
_NOT_JSON: Final = (TypeError, ValueError, RecursionError)


def to_json(content: object) -> bytes:
    """Return compact JSON; `_special` converts types that JSON lacks.

    Raises ValueError for NaN and infinity, which JSON lacks, TypeError for a type that can't be
    converted, and RecursionError for content that is nested too deeply.
    """
    return utf8_bytes(text_of(content, separators=COMPACT, default=_special))


def _special(content: object) -> object:
    """Convert types that JSON lacks; raises TypeError for a type that can't be converted.

    Dates and times become ISO 8601 text, durations become seconds, decimals and UUIDs become text,
    and bytes become base64.
    """
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


# -- records of rows ------------------------------------------------------------------------------

# `tidelog read` gives this suffix to columns of epoch ms, so whole numbers in a column with this
# suffix are ms.
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
    """Return the format for a file's suffix; LINES for an unknown suffix, and for `-` (stdin)."""
    return _BY_SUFFIX.get(PurePath(name).suffix.lower(), InputFormat.LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of the columns with a record's key, value and so on; None if there is no such column.

    Attributes:
        key: The record's key. Null, which is an empty cell in CSV, means that the record has no
            key.
        key_separator: In a file of lines, the text between the key and the value of a line.
        time: The record's create time, in the grammar of docs/time.md; null becomes the current
            time when the record is appended.
        value: The record's value; the whole row if None.
        headers: The record's headers: an object of header names and values, or a list of [name,
            value].
        infer: Whether CSV cells that are JSON numbers become numbers in the row's JSON. If false,
            they become text.
        key_as: Encoding of the key; with `auto`, the cell's type decides whether it is text or
            JSON.
        value_as: Encoding of the value, or of a line in a file of lines.
        headers_as: Encoding of the values of headers.
    """

    key: str | None = None
    key_separator: str | None = None
    time: str | None = None
    value: str | None = None
    headers: str | None = None
    infer: bool = False
    key_as: Encoding = Encoding.AUTO
    value_as: Encoding = Encoding.AUTO
    headers_as: Encoding = Encoding.AUTO

    def __bool__(self) -> bool:
        parts = (self.key, self.time, self.value, self.headers)
        return any(part is not None for part in parts)

    def choice(self, numbers: list[str]) -> ColumnChoice:
        """Return the columns to read: all columns if the value is the whole row."""
        named = (self.key, self.time, self.value, self.headers)
        if self.value is not None:
            return ColumnChoice(frozenset(name for name in named if name is not None), self.time)
        return ColumnChoice(None, self.time, self.infer, None if self.infer else numbers)

    def ensure_consistent(self, kind: InputFormat) -> None:
        """Raise UsageProblem for an option that the format lacks, or that needs another option."""
        is_lines = kind is InputFormat.LINES
        if self.key_separator is not None and not is_lines:
            raise UsageProblem(f"--key-separator applies only to lines; for {kind} give --key COL")
        if self.infer and (kind is not InputFormat.CSV or self.value is not None):
            raise UsageProblem(
                "--infer applies only to CSV whose whole rows are the values; leave it out"
            )
        has_key = self.key is not None or self.key_separator is not None
        if not has_key and self.key_as is not Encoding.AUTO:
            raise UsageProblem(f"--key-as {self.key_as} needs the column of the key: --key COL")
        if self.headers is None and self.headers_as is not Encoding.AUTO:
            raise UsageProblem(
                f"--headers-as {self.headers_as} needs the column of headers: --headers COL"
            )
        is_row = self.value is None and not is_lines
        if is_row and self.value_as not in (Encoding.AUTO, Encoding.JSON):
            raise UsageProblem(
                f"--value-as {self.value_as} needs a column of values, because a row is JSON:"
                " --value COL"
            )


class InputRecord(NamedTuple):
    """A record of an input, and the location of its row or line, for errors."""

    record: NewRecord
    location: str


def read_records(
    source: BinaryIO,
    name: str,
    kind: InputFormat,
    columns: Columns,
    parse_time: Callable[[str], int],
    numbers: list[str],
) -> Iterator[InputRecord]:
    """Return the records in an open file, in the file's order.

    Args:
        source: The file. A Parquet file must be seekable.
        name: Name for errors.
        kind: Format of the file.
        columns: Names of the columns with a record's key, value and so on.
        parse_time: Parses a time given as text (docs/time.md); returns ms.
        numbers: List that receives the location of the first CSV cell that is a number but becomes
            text.

    Raises:
        UsageProblem: An option does not apply to the format, or needs another option.
        InvalidInput: A row can't be read, or lacks a column; the text names the line or row.
        MissingDependency: Arrow or Parquet needs pyarrow.
    """
    columns.ensure_consistent(kind)
    if kind is InputFormat.LINES:
        if columns:
            raise UsageProblem(
                "lines have no columns; give --format json, csv, arrow or parquet,"
                " or --key-separator SEP for lines of KEY SEP VALUE"
            )
        return _line_records(source, name, columns, parse_time)
    rows = ROW_READERS[kind](source, name, columns.choice(numbers))
    to_record = _RecordMaker(columns, parse_time, text_only=kind is not InputFormat.JSON)
    return map(to_record.record, rows)


def typed_records(
    source: BinaryIO, typed: Columns, parse_time: Callable[[str], int]
) -> Iterator[InputRecord]:
    """Return the record given as arguments, or one record for each line of a pipe.

    Args:
        source: The pipe. Its lines are read only if no value is typed.
        typed: The texts typed for the record's key, value, time and headers. The fields of `typed`
            contain these texts instead of names of columns.
        parse_time: Parses a time given as text (docs/time.md); returns ms.

    Raises:
        UsageProblem: The key separator is empty, or is given together with a key or value; an
            option does not apply; or an option needs another option.
        InvalidInput: A text is invalid in its encoding, or a line lacks the key separator.
    """
    if typed.key_separator is not None and (typed.key is not None or typed.value is not None):
        option_name = "--value" if typed.key is None else "--key"
        raise UsageProblem(f"--key-separator applies only to lines; leave it or {option_name} out")
    typed.ensure_consistent(InputFormat.LINES)
    if typed.value is None:
        return _line_records(source, "stdin", typed, parse_time)
    maker = _RecordMaker(_named(typed), parse_time, text_only=True)
    return iter((maker.record(InputRow(_texts(typed), b"", "arguments")),))


# Maps a part of a typed record to its option. Errors about a typed record name this option; errors
# about a row of a file name a column.
_TYPED: Final = {"key": "--key", "value": "--value", "time": "--time", "headers": "--headers"}


def _texts(typed: Columns) -> dict[str, object]:
    """Return the typed texts by option; a text that is not valid UTF-8 becomes bytes."""
    return {option: _text_or_bytes(getattr(typed, part)) for part, option in _TYPED.items()}


def _text_or_bytes(text: str | None) -> str | bytes | None:
    if text is None:
        return None
    data = argument_bytes(text)
    return text if data == text.encode(errors="replace") else data


def _named(typed: Columns) -> Columns:
    """Return a copy of `typed` in which each text is replaced by its option's name.

    The names are then used as names of columns.
    """
    return replace(
        typed,
        key=None if typed.key is None and typed.key_separator is None else _TYPED["key"],
        value=_TYPED["value"],
        time=None if typed.time is None else _TYPED["time"],
        headers=None if typed.headers is None else _TYPED["headers"],
    )


def _line_records(
    source: BinaryIO, name: str, typed: Columns, parse_time: Callable[[str], int]
) -> Iterator[InputRecord]:
    """Yield a record for each line; `typed` has the typed texts, which all records share."""
    separator = None if typed.key_separator is None else argument_bytes(typed.key_separator)
    if separator == b"":
        raise UsageProblem("--key-separator must have at least one character")
    if not typed and separator is None and typed.value_as is Encoding.AUTO:
        for number, line in enumerate(file_lines(source), 1):
            yield InputRecord(NewRecord(value=line), f"{name} line {number}")
        return
    maker = _RecordMaker(_named(typed), parse_time, text_only=True)
    shared = _texts(typed)
    for number, line in enumerate(file_lines(source), 1):
        where = f"{name} line {number}"
        fields, value = dict(shared), line
        if separator is not None:
            key, mark, value = line.partition(separator)
            if not mark:
                raise InvalidInput(f"{where}: no {typed.key_separator!r} after the key")
            fields[_TYPED["key"]] = _line_cell(key, typed.key_as, where)
        fields[_TYPED["value"]] = _line_cell(value, typed.value_as, where)
        yield maker.record(InputRow(fields, b"", where))


def _line_cell(data: bytes, encoding: Encoding, where: str) -> bytes | str:
    """Return a key or value from a line as a cell: bytes if the encoding is `auto`, else text."""
    if encoding is Encoding.AUTO:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}: {error}") from error


class _RecordMaker:
    """Converts rows to records."""

    def __init__(
        self, columns: Columns, parse_time: Callable[[str], int], *, text_only: bool
    ) -> None:
        """Create a converter.

        Args:
            columns: Names of the columns.
            parse_time: Parses a time given as text; returns ms.
            text_only: Whether JSON values are cells of text. False for JSON lines, whose cells are
                JSON values.
        """
        self._columns = columns
        self._parse_time = parse_time
        self._key = _encode(columns.key_as, text_only=text_only)
        self._value = _encode(columns.value_as, text_only=text_only)
        self._header = _encode(columns.headers_as, text_only=text_only)
        # Headers in a cell of text are JSON, so that their values are JSON values.
        self._header_in_text = _encode(columns.headers_as, text_only=False)

    def record(self, row: InputRow) -> InputRecord:
        """Return a row's record with its location; raises InvalidInput, which names the row."""
        key, time, value, headers = (
            self._columns.key,
            self._columns.time,
            self._columns.value,
            self._columns.headers,
        )
        timestamp = None if time is None else _time(row, time, self._parse_time)
        record = NewRecord(
            key=None if key is None else _encoded(row, key, self._key),
            value=row.raw if value is None else _encoded(row, value, self._value),
            timestamp=timestamp,
            headers=() if headers is None else self._headers(row, headers),
        )
        return InputRecord(record, row.location)

    def _headers(self, row: InputRow, name: str) -> tuple[Header, ...]:
        is_text = isinstance(_field(row, name), str)
        return _headers(row, name, self._header_in_text if is_text else self._header)


_Encode: TypeAlias = Callable[[object], bytes | None]


def _encode(encoding: Encoding, *, text_only: bool) -> _Encode:
    return _bytes if encoding is Encoding.AUTO else encoder(encoding, text_only=text_only)


def _field(row: InputRow, name: str) -> object:
    if name not in row.fields:
        raise InvalidInput(no_column(row.location, name, row.fields))
    return row.fields[name]


def _encoded(row: InputRow, name: str, encode: _Encode) -> bytes | None:
    """Return a cell as bytes."""
    content = _field(row, name)
    try:
        return encode(content)
    except (SerdeError, *_NOT_JSON) as error:
        raise InvalidInput(f"{row.location}: {name}: {error}") from error


def _bytes(content: object) -> bytes | None:
    """Return a cell as bytes: text as UTF-8, null as None, any other content as JSON."""
    if content is None:
        return None
    if isinstance(content, str):
        return utf8_bytes(content)
    return content if isinstance(content, bytes) else to_json(content)


def _time(row: InputRow, name: str, parse_time: Callable[[str], int]) -> int | None:
    content = _field(row, name)
    if content is None or content == "":
        return None
    try:
        if isinstance(content, EpochMs) or (name.endswith(_MS) and _is_whole(content)):
            return check_time(int(cast("int | str", content)))
    except InvalidTimestamp as error:
        raise InvalidInput(f"{row.location}: {name}: {error}") from error
    if isinstance(content, bool) or not isinstance(content, str | int | float | datetime):
        raise InvalidInput(
            f"{row.location}: {name} is {str(content)[:CHARACTERS_SHOWN]!r}, which is not a time"
        )
    if isinstance(content, float):
        is_rounded = isinstance(content, ExactNumber) and not content.is_integer_zero
        if is_rounded or not content.is_integer():
            raise InvalidInput(
                f"{row.location}: {name} is {content!r}, must be a whole number of ms since 1970"
            )
        content = int(content)
    text = content.isoformat() if isinstance(content, datetime) else str(content)
    try:
        return parse_time(text)
    except InvalidTime as error:
        raise InvalidInput(f"{row.location}: {name}: {error}") from error


def _is_whole(content: object) -> bool:
    if isinstance(content, str):
        return _WHOLE.fullmatch(content) is not None
    return isinstance(content, int) and not isinstance(content, bool) and content >= 0


# Headers of a record, as `produce` reads them.
HEADERS_EXAMPLE: Final = '{"by": "ten"}'


def _headers_example(name: str) -> str:
    """Return an example of headers, with `name` before it if `name` is the option for headers."""
    is_typed = name == _TYPED["headers"]
    return f"{name} '{HEADERS_EXAMPLE}'" if is_typed else HEADERS_EXAMPLE


def _headers(row: InputRow, name: str, encode: _Encode) -> tuple[Header, ...]:
    content = _field(row, name)
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        try:
            parsed = parse(content)
        except (ValueError, RecursionError) as error:
            text = content[:CHARACTERS_SHOWN]
            is_other = isinstance(error, json.JSONDecodeError) and error.pos == 0
            reason = "" if is_other else f" ({error})"
            raise InvalidInput(
                f"{row.location}: {name}: {text!r} is not JSON{reason}; give an object"
                f" of header names and values, such as {_headers_example(name)}"
            ) from error
        content = parsed
    pairs = _pairs(content)
    if pairs is None:
        raise InvalidInput(
            f"{row.location}: {name}: must be an object of header names and values,"
            f" or a list of [name, value]; an example: {_headers_example(name)}"
        )
    try:
        return tuple(Header(key, encode(value)) for key, value in pairs)
    except (SerdeError, *_NOT_JSON) as error:
        raise InvalidInput(f"{row.location}: {name}: {error}") from error


_HEADER_NAMES: Final = ["key", "value"]


def _pairs(content: object) -> list[tuple[str, object]] | None:
    """Return names and values of an object or a list of pairs; None for other content.

    A map column of Parquet is read as a list of pairs.
    """
    if isinstance(content, dict):
        return list(members_of(content))
    if not isinstance(content, list):
        return None
    pairs: list[tuple[str, object]] = []
    for item in content:
        if isinstance(item, dict) and sorted(name for name, _ in members_of(item)) == _HEADER_NAMES:
            key, value = item["key"], item["value"]
        elif isinstance(item, tuple | list) and len(item) == 2:
            key, value = item
        else:
            return None
        if not isinstance(key, str):
            return None
        pairs.append((key, value))
    return pairs
