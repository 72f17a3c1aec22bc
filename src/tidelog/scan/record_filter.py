"""Filter of records by key and content, on single records and on columns.

The filter of single records and the filter of columns give the same result. Only `rows` needs
Arrow, and imports it.
"""

import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, cast

from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NO_NUMBER: Final = Decimal("NaN")  # equals nothing, not even itself


@dataclass(frozen=True, slots=True)
class FieldMatch:
    """Condition on a field of JSON values.

    A string in the field is compared with `text`. For a number, `true`, `false` or `null` in the
    field, `text` is parsed as JSON and the two values are compared: 15 equals 15.0. Objects,
    arrays, numbers with an exponent of more than 18 digits, and values that are not JSON never
    match.

    Attributes:
        path: Names of nested fields; a name that is a whole number is also an index of an array.
        text: Text to compare the field with.
    """

    path: tuple[str, ...]
    text: str

    @classmethod
    def parse(cls, condition: str) -> "FieldMatch":
        """Parse the condition `PATH=VALUE`, with dots between names; raises InvalidRequest."""
        path, equals, text = condition.partition("=")
        names = tuple(path.split("."))
        if not equals or not all(names):
            raise InvalidRequest(
                f"{condition!r} is not PATH=VALUE, such as delay=15 or plane.id=N1"
            )
        return cls(names, text)

    def is_met(self, value: bytes | None) -> bool:
        """Return whether a record's value meets the condition."""
        try:
            content = _parsed(value or b"")
        except (ValueError, RecursionError):
            return False
        for name in self.path:
            if isinstance(content, dict) and name in content:
                content = content[name]
            elif isinstance(content, list) and _WHOLE.fullmatch(name) and int(name) < len(content):
                content = content[int(name)]
            else:
                return False
        if isinstance(content, str):
            return content == self.text
        try:
            expected = _parsed(self.text)
        except (ValueError, RecursionError):
            return False
        is_scalar = content is None or isinstance(content, bool | Decimal)
        is_same_kind = isinstance(content, bool) == isinstance(expected, bool)
        return is_scalar and is_same_kind and content == expected


def _parsed(text: bytes | str) -> object:
    """Parse JSON with exact numbers; raises ValueError or RecursionError."""
    if isinstance(text, bytes):
        text = text.decode()  # Python's `json` would also accept UTF-16 and UTF-32
    content: object = json.loads(
        text, parse_int=_number, parse_float=_number, parse_constant=_refused
    )
    return content


def _number(digits: str) -> Decimal:
    """Return a number of any length; Python's `int` parses at most 4300 digits by default."""
    try:
        return Decimal(digits)
    except InvalidOperation:  # the exponent is too large
        return _NO_NUMBER


def _refused(word: str) -> object:
    raise ValueError(f"{word} is not valid JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Conditions on a record, which must meet all of them.

    Attributes:
        key: Key that a record must have; None for any key.
        content: Bytes that the key or the value must contain; None for any content.
        fields: Conditions on the value as JSON.
    """

    key: bytes | None = None
    content: bytes | None = None
    fields: tuple[FieldMatch, ...] = ()

    def __bool__(self) -> bool:
        return self.key is not None or self.content is not None or bool(self.fields)

    def is_met(self, key: bytes | None, value: bytes | None) -> bool:
        """Return whether a record with this key and value meets the conditions."""
        if self.key is not None and key != self.key:
            return False
        if self.content is not None and not any(
            part is not None and self.content in part for part in (key, value)
        ):
            return False
        return all(field.is_met(value) for field in self.fields)

    def rows(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the rows of a batch with columns `key` and `value` that meet the conditions."""
        import pyarrow as pa
        from pyarrow import compute as pc

        if self.key is not None:
            batch = batch.filter(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())))
        if self.content is not None:
            pattern = cast("str", self.content)  # a binary column needs a pattern of bytes
            key = pc.match_substring(batch.column("key"), pattern)
            value = pc.match_substring(batch.column("value"), pattern)
            batch = batch.filter(pc.or_kleene(key, value))  # leaves out null, too
        if self.fields and batch.num_rows:
            values = batch.column("value").to_pylist()
            met = [all(field.is_met(value) for field in self.fields) for value in values]
            batch = batch.filter(pa.array(met, pa.bool_()))
        return batch
