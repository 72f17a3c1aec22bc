"""Serializers and deserializers for keys and values, by name, with Kafka's encodings.

Null stays null: None is encoded as None, and decoded as None. Numbers are big-endian, UUIDs are
text of 36 characters, and strings are UTF-8. JSON is UTF-8 without spaces; numbers of any length
and repeated names stay as they are. JSON's `null` is written only inside other JSON values, because
the value None is encoded as Kafka's null.

Source: the keyed messages proposal; org.apache.kafka.common.serialization.
"""

import math
import struct
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from tidelog.amounts import plural
from tidelog.errors import SerdeError
from tidelog.lazy_dataclass import dataclass
from tidelog.record import exact_json

T = TypeVar("T")

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_DOUBLE: Final = struct.Struct(">d")
# The bytes that Java writes for every NaN.
_NAN: Final = bytes.fromhex("7ff8000000000000")
_UUID_SIZE: Final = 36
# Sizes in bytes of encoded numbers, by the encoding's name.
_SIZES: Final = {"int32": _INT32.size, "int64": _INT64.size, "double": _DOUBLE.size}


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """Serializer and deserializer of one encoding. Immutable, safe to share.

    Attributes:
        name: Name of the encoding in options and configs, e.g. `int64`.
        encode: Returns the bytes of a value other than None. For a value that can't be encoded,
            `encode` raises TypeError, ValueError or a similar error.
        decode: Returns the value of encoded bytes; callers never pass None. For invalid bytes,
            `decode` raises ValueError or a similar error.
    """

    name: str
    encode: Callable[[object], bytes]
    decode: Callable[[bytes], T]

    def serialize(self, value: object) -> bytes | None:
        """Return the bytes of `value`, None for None.

        Raises:
            SerdeError: The value can't be encoded.
        """
        if value is None:
            return None
        try:
            return self.encode(value)
        except (TypeError, ValueError, OverflowError, struct.error, RecursionError) as error:
            kind = type(value).__name__
            raise SerdeError(
                f"a value of type {kind} can't be written as {self.name}: {error}"
            ) from error

    def deserialize(self, data: bytes | None) -> T | None:
        """Return the value that `data` encodes, None for None.

        Raises:
            SerdeError: The bytes are not valid in this encoding.
        """
        if data is None:
            return None
        try:
            return self.decode(data)
        except (ValueError, struct.error, RecursionError) as error:
            size = plural(len(data), "byte")
            reason = f"{error}"
            if isinstance(error, struct.error):
                reason = f"must be {_SIZES[self.name]} bytes"
            elif isinstance(error, UnicodeDecodeError):
                reason = f"byte {error.start} is not {error.encoding.upper()}"
            raise SerdeError(f"{size} can't be read as {self.name}: {reason}") from error


def _of_type(value: object, kind: type[T]) -> T:
    """Return `value` if it has the given type, else raise TypeError.

    A bool is accepted only for `bool`, not as a number.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {kind.__name__}")
    return value


def _encode_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("expected bytes")
    return bytes(value)


def _encode_double(value: object) -> bytes:
    number = float(_of_type(value, int)) if isinstance(value, int) else _of_type(value, float)
    if isinstance(value, exact_json.ExactNumber) and math.isinf(number):
        raise ValueError(f"{value!r} is too large")
    return _NAN if math.isnan(number) else _DOUBLE.pack(number)


def _encode_integer(form: struct.Struct, value: object) -> bytes:
    if isinstance(value, exact_json.ExactNumber) and value.is_integer_zero:
        value = 0
    try:
        return form.pack(_of_type(value, int))
    except struct.error:
        limit = 1 << (8 * form.size - 1)
        raise ValueError(f"must be from {-limit} to {limit - 1}") from None


def _decode_int32(data: bytes) -> int:
    number: int
    (number,) = _INT32.unpack(data)
    return number


def _decode_int64(data: bytes) -> int:
    number: int
    (number,) = _INT64.unpack(data)
    return number


def _decode_double(data: bytes) -> float:
    number: float
    (number,) = _DOUBLE.unpack(data)
    return number


def _decode_uuid(data: bytes) -> uuid.UUID:
    text = data.decode("ascii")
    value = uuid.UUID(text)
    if len(text) != _UUID_SIZE or str(value) != text.lower():
        raise ValueError("expected the 36 characters of a UUID")
    return value


def _encode_json(value: object) -> bytes:
    return exact_json.utf8_bytes(exact_json.text_of(value, separators=exact_json.COMPACT))


def _decode_json(data: bytes) -> object:
    return exact_json.parse(data.decode())


BYTES: Final = Serde("bytes", _encode_bytes, bytes)
STRING: Final = Serde(
    "string", lambda value: exact_json.utf8_bytes(_of_type(value, str)), bytes.decode
)
INT32: Final = Serde("int32", partial(_encode_integer, _INT32), _decode_int32)
INT64: Final = Serde("int64", partial(_encode_integer, _INT64), _decode_int64)
DOUBLE: Final = Serde("double", _encode_double, _decode_double)
UUID: Final = Serde("uuid", lambda value: str(_of_type(value, uuid.UUID)).encode(), _decode_uuid)
JSON: Final = Serde("json", _encode_json, _decode_json)

_SERDES: Final[dict[str, Serde[object]]] = {
    serde.name: Serde(serde.name, serde.encode, serde.decode)
    for serde in (BYTES, STRING, INT32, INT64, DOUBLE, UUID, JSON)
}
SERDE_NAMES: Final = tuple(_SERDES)


def serde(name: str) -> Serde[object]:
    """Return the encoding called `name`, one of `SERDE_NAMES`.

    Raises:
        SerdeError: No encoding has that name.
    """
    try:
        return _SERDES[name]
    except KeyError:
        allowed = ", ".join(SERDE_NAMES)
        raise SerdeError(f"no serializer {name!r}; there are: {allowed}") from None


def serializer(name: str) -> Callable[[object], bytes | None]:
    """Return the serializer called `name`: a function from values to bytes.

    Raises SerdeError for an unknown name.
    """
    return serde(name).serialize


def deserializer(name: str) -> Callable[[bytes | None], object]:
    """Return the deserializer called `name`: a function from bytes to values.

    Raises SerdeError for an unknown name.
    """
    return serde(name).deserialize
