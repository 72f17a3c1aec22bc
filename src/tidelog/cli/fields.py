"""Keys, values and headers as cells, and cells as bytes: by a serializer's name, or as text."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final
from uuid import UUID

from tidelog.cli.choices import Encoding
from tidelog.cli.output import Cell
from tidelog.errors import SerdeError
from tidelog.record.serde import deserializer, serializer
from tidelog.types import Header


def decoder(encoding: Encoding) -> Callable[[bytes | None], Cell]:
    """From bytes to a cell.

    `auto` gives text where the bytes are UTF-8, else `{"base64": ...}`; so do bytes that are not
    what the encoding says, since one odd record must not hide the others.
    """
    if encoding is Encoding.AUTO:
        return _text
    if encoding is Encoding.BYTES:
        return _base64
    read = deserializer(encoding)

    def decode(data: bytes | None) -> Cell:
        try:
            found = read(data)
        except SerdeError:
            return _base64(data)
        if found is None or isinstance(found, str | int | float | list | dict):
            return found
        return str(found)

    return decode


def _text(data: bytes | None) -> Cell:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _base64(data)


def _base64(data: bytes | None) -> Cell:
    return None if data is None else {"base64": b64encode(data).decode("ascii")}


def headers_cell(headers: tuple[Header, ...]) -> Cell:
    """Headers as a list of [name, value], since names may repeat."""
    return [[header.key, _text(header.value)] for header in headers]


def shortened(cell: Cell, limit: int) -> Cell:
    """A cell for a table: long text is cut, with the number of characters that it has."""
    if cell is None or isinstance(cell, bool | int | float):
        return cell
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def encoder(encoding: Encoding) -> Callable[[object], bytes | None]:
    """From a cell of a file, or from text that somebody typed, to bytes.

    Text is read as what the encoding says: `42` is a number for `int64`, base64 for `bytes`. None
    and, but for strings and JSON, empty text are null. The function raises SerdeError.

    Args:
        encoding: Any but `auto`, which is for who knows more of the cell.
    """
    assert encoding is not Encoding.AUTO
    write = serializer(encoding)
    parse = _PARSERS.get(encoding)

    def encode(cell: object) -> bytes | None:
        if parse is None or not isinstance(cell, str):
            return write(cell)
        if not cell:
            return None
        try:
            return write(parse(cell))
        except ValueError as error:
            raise SerdeError(f"{cell[:_SHOWN]!r} is no {encoding}: {error}") from error

    return encode


def _base64_bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


_SHOWN: Final = 60
_PARSERS: Final[dict[Encoding, Callable[[str], object]]] = {
    Encoding.BYTES: _base64_bytes,
    Encoding.INT32: int,
    Encoding.INT64: int,
    Encoding.DOUBLE: float,
    Encoding.UUID: UUID,
}


def typed_bytes(text: str, encoding: Encoding) -> bytes:
    """The bytes of a key that somebody typed; raises SerdeError.

    For `auto` its UTF-8, for `json` the JSON that the text is, written compactly.
    """
    if encoding is Encoding.AUTO:
        return text.encode()
    cell: object = text
    if encoding is Encoding.JSON:
        try:
            cell = json.loads(text)
        except ValueError as error:
            raise SerdeError(f"{text[:_SHOWN]!r} is no JSON: {error}") from error
    found = encoder(encoding)(cell)
    if found is None:
        raise SerdeError(f"{text[:_SHOWN]!r} as {encoding} is null, which is no key")
    return found
