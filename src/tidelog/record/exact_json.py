"""Parses and writes JSON without changing its content.

Python's `json` rounds a number with more digits than a 64-bit float can hold, refuses an integer
with more than 4,300 digits, drops the sign of `-0`, and keeps only the last of several members with
the same name. `parse` loses neither digits nor signs nor members: it returns a number that `json`
would change or refuse as an `ExactNumber` with its text, and an object with repeated names as an
`ExactObject` with all members. `text_of` writes both unchanged. Other values are parsed as by
`json`.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, ItemsView
from decimal import Decimal, InvalidOperation
from operator import itemgetter
from typing import Final, NoReturn

# Separators of JSON without spaces.
COMPACT: Final = (",", ":")
_SPACED: Final = (", ", ": ")
# Text of the error for content that Python's `json` can't parse or write; Python's own text names
# its recursion limit instead of the content.
_TOO_DEEP: Final = "nested too deeply"


class ExactNumber(float):
    """A JSON number that neither a float nor an int can hold.

    As a float it is rounded, and infinite if it is too large.

    Attributes:
        text: The number as it was written.
    """

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> "ExactNumber":
        """Create a number from its JSON text."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text

    @property
    def is_integer_zero(self) -> bool:
        """Whether this is the integer `-0`.

        False for a tiny number such as 1e-400, which as a float is also 0.
        """
        return self.text == "-0"


class ExactObject(dict[str, object]):
    """A JSON object in which a name occurs more than once; as a dict it has each name's last value.

    Attributes:
        members: All names and values, in order.
    """

    __slots__ = ("members",)

    def __init__(self, members: list[tuple[str, object]]) -> None:
        super().__init__(members)
        self.members = members

    def repeated_names(self) -> set[str]:
        """Return the names that occur more than once."""
        counts = Counter(name for name, _ in self.members)
        return {name for name, count in counts.items() if count > 1}


def parse(text: str | bytes) -> object:
    """Parse JSON.

    Raises:
        ValueError: The text is not JSON, or not UTF-8. Unlike Python's `json`, `parse` refuses
            `NaN` and `Infinity`.
        RecursionError: The text is nested too deeply.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()  # Python's `json` would also accept UTF-16 and UTF-32
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start} is not UTF-8") from None
    has_zero = "-0" in text  # possibly the number -0
    try:
        return _parse(text, _integer if has_zero else None)
    except (json.JSONDecodeError, UnicodeError):
        raise
    except ValueError:  # `int` refuses an integer of so many digits, or a constant was refused
        return _parse(text, _integer)


def _parse(text: str, parse_int: Callable[[str], float] | None) -> object:
    try:
        content: object = json.loads(
            text,
            parse_float=_number,
            parse_int=parse_int,
            parse_constant=_refuse,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise RecursionError(_TOO_DEEP) from None
    return content


def utf8_bytes(text: str) -> bytes:
    """Return text as UTF-8.

    Raises ValueError for half of a surrogate pair, which JSON can escape but UTF-8 can't encode.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise ValueError(
            f"character {error.start} is {half}, half of a surrogate pair, which UTF-8 can't encode"
        ) from None


def _number(text: str) -> float:
    number = float(text)
    if repr(number) == text:  # decides most numbers, faster than `Decimal`
        return number
    try:
        is_same = math.isfinite(number) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # the exponent has too many digits
        is_same = False
    return number if is_same else ExactNumber(text)


def _integer(text: str) -> float:
    if text == "-0":
        return ExactNumber(text)
    try:
        return int(text)
    except ValueError:
        return ExactNumber(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    plain = dict(members)
    return plain if len(plain) == len(members) else ExactObject(members)


def text_of(
    content: object,
    *,
    separators: tuple[str, str] = _SPACED,
    default: Callable[[object], object] | None = None,
    sort_names: bool = False,
) -> str:
    """Return content as JSON text, in which characters outside ASCII are not escaped.

    Args:
        content: A result of `parse`, or other content.
        separators: Text after an element, and after a name.
        default: Converts a value of a type that JSON lacks; None to raise TypeError for it.
        sort_names: Whether the members of an object are sorted by name. Members whose names are
            repeated keep their order.

    Raises:
        ValueError: A float is infinite or NaN.
        TypeError: JSON can't hold a value.
        RecursionError: The content is nested too deeply.
    """
    encode = json.JSONEncoder(
        ensure_ascii=False,
        allow_nan=False,
        separators=separators,
        default=default,
        sort_keys=sort_names,
    ).encode
    try:
        if not _has_exact(content):
            return encode(content)
        parts: list[str] = []
        _add_parts(parts, content, separators, encode, sort_names=sort_names)
    except RecursionError:
        raise RecursionError(_TOO_DEEP) from None
    return "".join(parts)


def members_of(content: dict[str, object]) -> list[tuple[str, object]] | ItemsView[str, object]:
    """Return names and values of an object, with repeated names."""
    return content.members if isinstance(content, ExactObject) else content.items()


# Most values have one of these types.
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _has_exact(content: object) -> bool:
    rest = [content]  # no recursion, because content may be nested as deeply as `json` allows
    while rest:
        one = rest.pop()
        if type(one) in _SCALARS:
            continue
        if isinstance(one, ExactNumber | ExactObject):
            return True
        if isinstance(one, dict):
            rest += one.values()
        elif isinstance(one, list | tuple):
            rest += one
    return False


def _add_parts(
    parts: list[str],
    content: object,
    separators: tuple[str, str],
    encode: Callable[[object], str],
    *,
    sort_names: bool,
) -> None:
    """Append the pieces of content's text.

    Args:
        parts: List to append to.
        content: The content.
        separators: Text after an element, and after a name.
        encode: Returns the text of a value that is no object, list or exact number.
        sort_names: Whether the members of an object are sorted by name.
    """
    if isinstance(content, ExactNumber):
        parts.append(content.text)
        return
    if not isinstance(content, dict | list | tuple):
        parts.append(encode(content))
        return
    after_element, after_name = separators
    before = ""
    if isinstance(content, dict):
        parts.append("{")
        members = members_of(content)
        for name, value in sorted(members, key=itemgetter(0)) if sort_names else members:
            parts.append(f"{before}{encode(name)}{after_name}")
            _add_parts(parts, value, separators, encode, sort_names=sort_names)
            before = after_element
        parts.append("}")
        return
    parts.append("[")
    for value in content:
        parts.append(before)
        _add_parts(parts, value, separators, encode, sort_names=sort_names)
        before = after_element
    parts.append("]")
