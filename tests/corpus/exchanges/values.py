"""Values of messages as trees, and as readable text: one line a field."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

Value: TypeAlias = "bool | int | float | str | bytes | UUID | list[Value] | dict[str, Value] | None"
Tree: TypeAlias = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a message in one version of the API.

    Attributes:
        name: Its name, from kio if kio has the version.
        kind: The field's type in Kafka's protocol, or `struct`.
        is_array: Whether the field is an array of values of that kind.
        nullable: Whether a field of kind `struct` may be null.
        tag: The number of a tagged field.
        fields: Fields of a struct.
        default: The value that is sent if a request gives no value for the field.
    """

    name: str
    kind: str
    is_array: bool = False
    nullable: bool = False
    tag: int | None = None
    fields: "tuple[Field, ...]" = ()
    default: Value = None


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of a request or a response, and whether its encoding is compact (KIP-482)."""

    fields: tuple[Field, ...]
    flexible: bool


def lines(value: Value, path: str = "") -> Iterator[str]:
    """Yield each field with its value, by its path."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from lines(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from lines(each, f"{path}[{number}]")
    else:
        yield f"{path}: {shown(value)}"


def shown(value: Value) -> str:
    """Return a single value as text."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"{len(value)} bytes {value.hex()}".rstrip()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return "[]"
    return str(value)


def at(tree: Value, *path: str | int) -> Value:
    """Return the value at a path of names and positions."""
    for step in path:
        if isinstance(step, str):
            assert isinstance(tree, dict), (step, tree)
            tree = tree[step]
        else:
            assert isinstance(tree, list), (step, tree)
            tree = tree[step]
    return tree


def number(tree: Value, *path: str | int) -> int:
    """Return a whole number at a path."""
    found = at(tree, *path)
    assert isinstance(found, int), (path, found)
    return found


def text(tree: Value, *path: str | int) -> str:
    """Return a string at a path."""
    found = at(tree, *path)
    assert isinstance(found, str), (path, found)
    return found


def data(tree: Value, *path: str | int) -> bytes:
    """Return bytes at a path; empty if they are null."""
    found = at(tree, *path)
    assert found is None or isinstance(found, bytes), (path, found)
    return found or b""


def uuid(tree: Value, *path: str | int) -> UUID:
    """Return a UUID at a path."""
    found = at(tree, *path)
    assert isinstance(found, UUID), (path, found)
    return found


def listed(tree: Value, *path: str | int) -> list[Value]:
    """Return a list at a path."""
    found = at(tree, *path)
    assert isinstance(found, list), (path, found)
    return found


def merged(first: Mapping[str, Value], second: Mapping[str, Value]) -> Tree:
    """Merge two trees; if both have a name, the value of the second tree counts."""
    return {**first, **second}
