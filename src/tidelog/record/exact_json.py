"""Parses and writes JSON without changing its content.

Python's `json` rounds a number with more digits than a 64-bit float can hold, and keeps only the
last of several members with the same name. `parse` loses neither digits nor members: it returns
such a number as an `ExactNumber` with its text, and an object with repeated names as an
`ExactObject` with all members. `text_of` writes both unchanged. Other values are parsed as by
`json`.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, ItemsView, Iterator
from decimal import Decimal, InvalidOperation
from typing import Final, NoReturn

# Separators of JSON without spaces.
COMPACT: Final = (",", ":")
_SPACED: Final = (", ", ": ")


class ExactNumber(float):
    """A JSON number that a float can't hold.

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
        ValueError: The text is not JSON. Unlike Python's `json`, `parse` refuses `NaN` and
            `Infinity`.
        RecursionError: The text is nested too deeply.
    """
    content: object = json.loads(
        text, parse_float=_number, parse_constant=_refuse, object_pairs_hook=_object
    )
    return content


def _number(text: str) -> float:
    number = float(text)
    try:
        is_same = math.isfinite(number) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # the exponent has too many digits
        is_same = False
    return number if is_same else ExactNumber(text)


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
) -> str:
    """Return content as JSON text, in which characters outside ASCII are not escaped.

    Args:
        content: A result of `parse`, or other content.
        separators: Text after an element, and after a name.
        default: Converts a value of a type that JSON lacks; None to raise TypeError for it.

    Raises:
        ValueError: A float is infinite or NaN.
        TypeError: JSON can't hold a value.
        RecursionError: The content is nested too deeply.
    """
    if _has_exact(content):
        return "".join(_parts(content, separators, default))
    return json.dumps(
        content, ensure_ascii=False, allow_nan=False, separators=separators, default=default
    )


def members_of(content: dict[str, object]) -> list[tuple[str, object]] | ItemsView[str, object]:
    """Return names and values of an object, with repeated names."""
    return content.members if isinstance(content, ExactObject) else content.items()


def _has_exact(content: object) -> bool:
    rest = [content]  # no recursion, because content may be nested as deeply as `json` allows
    while rest:
        one = rest.pop()
        if isinstance(one, ExactNumber | ExactObject):
            return True
        if isinstance(one, dict):
            rest += one.values()
        elif isinstance(one, list | tuple):
            rest += one
    return False


def _parts(
    content: object,
    separators: tuple[str, str],
    default: Callable[[object], object] | None,
) -> Iterator[str]:
    """Yield the pieces of the text of content that has an exact number or object."""
    if isinstance(content, ExactNumber):
        yield content.text
        return
    if not isinstance(content, dict | list | tuple):
        yield text_of(content, separators=separators, default=default)
        return
    after_element, after_name = separators
    before = ""
    if isinstance(content, dict):
        yield "{"
        for name, value in members_of(content):
            yield f"{before}{json.dumps(name, ensure_ascii=False)}{after_name}"
            yield from _parts(value, separators, default)
            before = after_element
        yield "}"
        return
    yield "["
    for value in content:
        yield before
        yield from _parts(value, separators, default)
        before = after_element
    yield "]"
