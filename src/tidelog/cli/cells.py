"""Converts keys, values and headers to cells of output, and cells and typed text to bytes.

The form of a column is an `Encoding`: a serializer's name, `auto` (text) or `bytes` (base64).
Invariant: `encoder` converts a cell of `exact_decoder` back to the same bytes. Exception: for JSON,
`encoder` restores the content, but not the spacing.
"""

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias, cast
from uuid import UUID

from tidelog.cli.options import Encoding, ReadFormat
from tidelog.cli.output import Cell
from tidelog.errors import SerdeError
from tidelog.record.exact_json import ExactNumber, members_of, parse, text_of
from tidelog.record.serde import deserializer, serializer
from tidelog.types import Header

Decode: TypeAlias = Callable[[bytes | None], Cell]


def decoder(encoding: Encoding) -> Decode:
    """Return a function that converts bytes to a cell of a printed table.

    `auto` returns text if the bytes are UTF-8, else `{"base64": ...}`. Bytes that are invalid in
    the encoding become `{"base64": ...}` too. So the other records are shown even if one record is
    invalid.
    """
    read = exact_decoder(encoding)

    def decode(data: bytes | None) -> Cell:
        try:
            return read(data)
        except SerdeError:
            return _base64(data)

    return decode


def decoders(kind: ReadFormat) -> Callable[[Encoding], Decode]:
    """Return `exact_decoder` for a format that programs read, `decoder` for tables."""
    if kind is ReadFormat.TABLE:
        return decoder
    return partial(exact_decoder, text_only=kind is ReadFormat.CSV)


def exact_decoder(encoding: Encoding, *, text_only: bool = False) -> Decode:
    """Return a function that converts bytes to a cell for programs; `encoder` restores the bytes.

    All cells of a column have the same form: text for `auto`, `{"base64": ...}` for `bytes`. A cell
    is None only if the bytes are None. For JSON, `encoder` restores the content, but not its
    spacing. The function raises SerdeError for bytes that the form can't represent.

    Args:
        encoding: The form.
        text_only: Whether all cells are text, as in CSV. If true, a JSON value is returned as JSON
            text.
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
                f"{_excerpt(data)} is null as {name}, which this output format can't distinguish"
                " from a missing value"
            )
        if write(content) != data and not is_json:
            raise SerdeError(
                f"{_excerpt(data)} written as {name} would not convert back to the same bytes"
            )
        if is_json and text_only:
            return text_of(content)
        is_finite = not isinstance(content, float) or math.isfinite(content)
        if not is_finite and not isinstance(content, ExactNumber):
            return str(content)  # JSON has no number for infinity or NaN
        return content if isinstance(content, str | int | float | list | dict) else str(content)

    return decode


def unreadable(error: SerdeError, name: str, where: str) -> SerdeError:
    """Return the error of a decoder, with the place of the bytes and what to do.

    Args:
        error: The error.
        name: `key`, `value` or `headers`; the option `--NAME-as` gives the form.
        where: The record, or the topic.
    """
    step = f"--{name}-as bytes writes the {name} of every record as base64"
    return SerdeError(f"{where}: {name}: {error}; {step}")


def decoded(decode: Decode, data: bytes | None, name: str, where: str) -> Cell:
    """Decode bytes; raises the error of `unreadable`."""
    try:
        return decode(data)
    except SerdeError as error:
        raise unreadable(error, name, where) from error


def _excerpt(data: bytes) -> str:
    return f"{data[:CHARACTERS_SHOWN]!r}{'...' if len(data) > CHARACTERS_SHOWN else ''}"


def _base64(data: bytes | None) -> Cell:
    return None if data is None else {_BASE64: b64encode(data).decode("ascii")}


def is_base64(cell: Cell) -> bool:
    """Whether a cell has the form of bytes that are not text: `{"base64": ...}`."""
    return isinstance(cell, dict) and [*cell] == [_BASE64]


def headers_cell(headers: tuple[Header, ...], decode: Decode) -> Cell:
    """Return headers as a list of [name, value], because names may repeat."""
    return [[header.key, decode(header.value)] for header in headers]


def encoder(encoding: Encoding, *, text_only: bool = False) -> Callable[[object], bytes | None]:
    """Return a function that converts a file's cell, or text typed by a user, to bytes.

    The encoding decides how text is parsed: `int64` parses a number, and `bytes` parses base64 or
    the form `{"base64": ...}` that `exact_decoder` returns. The bytes are None only if the cell is
    None. The function raises SerdeError for a cell that it can't convert.

    Args:
        encoding: Any encoding except `auto`, because the form of `auto` depends on the cell's type.
        text_only: Whether JSON values are cells of text, as in CSV and Arrow. If true, `json`
            parses text as JSON; otherwise it writes text as a JSON string.
    """
    assert encoding is not Encoding.AUTO
    write = serializer(encoding)
    parse = _json_text if text_only and encoding is Encoding.JSON else _PARSERS.get(encoding)

    def encode(cell: object) -> bytes | None:
        if encoding is Encoding.BYTES and isinstance(cell, dict):
            cell = text_of(cell)
        if parse is None or not isinstance(cell, str):
            return write(cell)
        try:
            return write(parse(cell))
        except (ValueError, RecursionError) as error:
            raise SerdeError(
                f"{cell[:CHARACTERS_SHOWN]!r} can't be read as {encoding}: {error}"
            ) from error

    return encode


def _base64_bytes(text: str) -> bytes:
    if text.startswith("{"):
        members = members_of(cast("dict[str, object]", parse(text)))
        data = dict(members).get(_BASE64)
        if len(members) != 1 or not isinstance(data, str):
            raise ValueError(f'must be base64, or an object whose only member is "{_BASE64}"')
        text = data
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ValueError("must be base64, such as AAEC") from None


def _parser(parse: Callable[[str], object], allowed: str) -> Callable[[str], object]:
    """Return a parser of text whose ValueError states the allowed texts."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError:
            raise ValueError(f"must be {allowed}") from None

    return parsed


def _json_text(text: str) -> object:
    """Parse JSON text; refuses null, which would mean no value."""
    content = parse(text)
    if content is None:
        raise ValueError("null is not a value; leave the cell empty for a null")
    return content


# Python also accepts underscores and digits of other scripts.
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)


def _whole_number(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def _double(text: str) -> float:
    number = float(text)
    is_number = "_" not in text and text.isascii()
    if not is_number or (math.isinf(number) and "inf" not in text.lower()):
        raise ValueError(text)  # too large for a double
    return number


CHARACTERS_SHOWN: Final = 60
_BASE64: Final = "base64"

_PARSERS: Final[dict[Encoding, Callable[[str], object]]] = {
    Encoding.BYTES: _base64_bytes,
    Encoding.INT32: _parser(_whole_number, "a whole number"),
    Encoding.INT64: _parser(_whole_number, "a whole number"),
    Encoding.DOUBLE: _parser(_double, "a number that a double can hold"),
    Encoding.UUID: _parser(UUID, "a UUID, such as 6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
}


def typed_bytes(text: str, encoding: Encoding) -> bytes:
    """Return the bytes of a key typed by a user as `--key`; raises SerdeError.

    With `auto`, the text is encoded as UTF-8. With `json`, it is parsed and written as compact
    JSON.
    """
    if encoding in (Encoding.AUTO, Encoding.STRING):
        return argument_bytes(text)
    try:
        data = encoder(encoding, text_only=True)(text)
    except SerdeError as error:
        raise SerdeError(f"--key: {error}") from error
    assert data is not None
    return data


def argument_bytes(text: str) -> bytes:
    """Return the bytes of a command-line argument, even if they are not valid UTF-8."""
    return text.encode(errors="surrogateescape")
