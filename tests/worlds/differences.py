"""Explains a failed comparison of large values by the first difference.

In CI, pytest shows a complete diff of the two values. For values of some thousand bytes or items
the diff takes minutes, so the test seems to hang. tests/conftest.py registers this module's hook
for all tests.
"""

import dataclasses
import os
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from typing import Final

import pytest

# If the sizes of two values (bytes, characters and items) add up to more than this, only the first
# difference is shown.
SIZE_MAX: Final = 2_000
# Maximum length of a shown value.
SHOWN: Final = 200
# Number of bytes or characters that are shown from the first different one on.
SHOWN_BYTES: Final = 16
# If one of these variables is set, pytest shows complete diffs.
_CI: Final = ("CI", "BUILD_NUMBER")


@pytest.hookimpl(wrapper=True)
def pytest_assertrepr_compare(
    op: str, left: object, right: object
) -> Generator[None, list[list[str]], list[list[str]]]:
    """Name the first difference of two large values, and let pytest leave out its diff."""
    if op != "==" or size_of(left) + size_of(right) <= SIZE_MAX:
        return (yield)
    kept = {name: os.environ.pop(name) for name in _CI if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
    return [["the values differ", first_difference(left, right)]]


def size_of(value: object) -> int:
    """Return the number of bytes, characters and items of a value; stop beyond `SIZE_MAX`."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value)
    size = 1
    for item in _items(value):
        size += size_of(item)
        if size > SIZE_MAX:
            break
    return size


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, Sequence | Set):
        return value
    return _fields(value).values()


def _fields(value: object) -> dict[object, object]:
    """Return the fields that an instance of a dataclass compares; {} for another value."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    fields = dataclasses.fields(value)
    return {each.name: getattr(value, each.name) for each in fields if each.compare}


def first_difference(left: object, right: object, at: str = "") -> str:
    """Return one line: the first place where the values differ, and what each has there."""
    where = at or "values"
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        pairs = enumerate(zip(left, right, strict=False))
        start = next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))
        end = start + SHOWN_BYTES
        sizes = "" if len(left) == len(right) else f" (lengths {len(left)} and {len(right)})"
        return f"{where} from {start}: {left[start:end]!r} != {right[start:end]!r}{sizes}"
    if isinstance(left, Set) and isinstance(right, Set):
        return f"{where}: only left {_shown(left - right)}, only right {_shown(right - left)}"
    one, other = _parts(left), _parts(right)
    if one is None or other is None or type(left) is not type(right):
        return f"{where}: {_shown(left)} != {_shown(right)}"
    for key, part in one.items():
        if key in other and part != other[key]:
            return first_difference(part, other[key], f"{at}[{key!r}]")
    return f"{where}: only left {_first(one, other)}, only right {_first(other, one)}"


def _parts(value: object) -> Mapping[object, object] | None:
    """Return the parts of a value by name or position; None if the value has no parts."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return _fields(value) or None


def _first(parts: Mapping[object, object], other: Mapping[object, object]) -> str:
    return next((f"[{key!r}]" for key in parts if key not in other), "nothing")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
