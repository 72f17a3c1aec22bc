"""Keys, values and headers as cells: by a deserializer's name, or as text where they are text."""

import json
from base64 import b64encode
from collections.abc import Callable

from tidelog.cli.choices import Encoding
from tidelog.cli.output import Cell
from tidelog.errors import SerdeError
from tidelog.record.serde import deserializer
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
