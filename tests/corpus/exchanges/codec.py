"""The corpus's own small codec: encodes and decodes messages, given the fields of each message.

`Line` decodes each message, encodes the result, and asserts that the bytes are equal. So the
recorded fields describe all of the bytes.
"""

import struct
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from tests.corpus.exchanges.values import Field, Message, Tree, Value

# Key of unknown tagged fields in a tree; the value has each field's tag and bytes.
TAGS: Final = "#tags"
_NUMBERS: Final = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
    "bool": ">?",
}


class Writer:
    """Encodes a message; has the bytes that were written so far."""

    def __init__(self, *, flexible: bool) -> None:
        self.made = bytearray()
        self._flexible = flexible

    def fields(self, fields: Iterable[Field], tree: Tree) -> None:
        """Write a struct; missing fields get their defaults, missing tagged fields are left out."""
        tagged = []
        for field in fields:
            if field.tag is None:
                self._field(field, tree.get(field.name, field.default))
            elif field.name in tree:
                tagged.append(field)
        if self._flexible:
            self._tagged(tagged, tree)

    def _tagged(self, tagged: Iterable[Field], tree: Tree) -> None:
        parts: dict[int, bytes] = {}
        for field in tagged:
            inner = Writer(flexible=True)
            inner._field(field, tree[field.name])
            assert field.tag is not None
            parts[field.tag] = bytes(inner.made)
        unknown = tree.get(TAGS, {})
        assert isinstance(unknown, dict)
        for tag, given in unknown.items():
            assert isinstance(given, bytes)
            parts[int(tag)] = given
        self.varint(len(parts))
        for tag_number, part in sorted(parts.items()):
            self.varint(tag_number)
            self.varint(len(part))
            self.made += part

    def varint(self, value: int) -> None:
        """Write an unsigned number of any length."""
        while value >= 0x80:
            self.made.append(value & 0x7F | 0x80)
            value >>= 7
        self.made.append(value)

    def _field(self, field: Field, value: Value) -> None:
        if not field.is_array:
            self._single(field, value)
            return
        if value is None:
            self._length(None, ">i")
            return
        assert isinstance(value, list), (field.name, value)
        self._length(len(value), ">i")
        for each in value:
            self._item(field, each)

    def _item(self, field: Field, value: Value) -> None:
        if field.kind == "struct":
            assert isinstance(value, dict), (field.name, value)
            self.fields(field.fields, value)
        else:
            self._single(field, value)

    def _single(self, field: Field, value: Value) -> None:
        if field.kind == "struct":
            if field.nullable:
                self.made += struct.pack(">b", -1 if value is None else 1)
            if value is not None:
                self._item(field, value)
        elif field.kind in _NUMBERS:
            self.made += struct.pack(_NUMBERS[field.kind], value)
        elif field.kind == "uuid":
            assert isinstance(value, UUID), (field.name, value)
            self.made += value.bytes
        else:
            self._text(field, value)

    def _text(self, field: Field, value: Value) -> None:
        assert value is None or isinstance(value, str | bytes), (field.name, value)
        given = value.encode() if isinstance(value, str) else value
        self._length(None if given is None else len(given), _length_of(field))
        self.made += given or b""

    def _length(self, length: int | None, form: str) -> None:
        if self._flexible:
            self.varint(0 if length is None else length + 1)
        else:
            self.made += struct.pack(form, -1 if length is None else length)


class Reader:
    """A message's bytes, and the position of the reader."""

    def __init__(self, given: bytes, *, flexible: bool) -> None:
        self._given = given
        self._at = 0
        self._flexible = flexible

    @property
    def rest(self) -> bytes:
        """Return the unread bytes."""
        return self._given[self._at :]

    def fields(self, fields: Iterable[Field]) -> Tree:
        """Read the fields of a struct."""
        tree: Tree = {}
        tagged = {}
        for field in fields:
            if field.tag is None:
                tree[field.name] = self._field(field)
            else:
                tagged[field.tag] = field
        if self._flexible:
            self._tagged(tagged, tree)
        return tree

    def _tagged(self, tagged: dict[int, Field], tree: Tree) -> None:
        unknown: Tree = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            part = self.take(size)
            if tag in tagged:
                inner = Reader(part, flexible=True)
                tree[tagged[tag].name] = inner._field(tagged[tag])
                assert not inner.rest, tagged[tag].name
            else:
                unknown[str(tag)] = part
        if unknown:
            tree[TAGS] = unknown

    def varint(self) -> int:
        """Read an unsigned number of any length."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, size: int) -> bytes:
        """Read some bytes."""
        found = self._given[self._at : self._at + size]
        assert len(found) == size, f"{size} bytes at {self._at} of {len(self._given)}"
        self._at += size
        return found

    def _field(self, field: Field) -> Value:
        if not field.is_array:
            return self._single(field)
        length = self._length(">i")
        return None if length is None else [self._item(field) for _ in range(length)]

    def _item(self, field: Field) -> Value:
        return self.fields(field.fields) if field.kind == "struct" else self._single(field)

    def _single(self, field: Field) -> Value:
        if field.kind == "struct":
            if field.nullable and self.take(1) == b"\xff":
                return None
            return self.fields(field.fields)
        if field.kind in _NUMBERS:
            form = _NUMBERS[field.kind]
            (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
            assert isinstance(found, int | float)
            return found
        if field.kind == "uuid":
            return UUID(bytes=self.take(16))
        length = self._length(_length_of(field))
        if length is None:
            return None
        given = self.take(length)
        return given.decode() if field.kind == "string" else given

    def _length(self, form: str) -> int | None:
        if self._flexible:
            length = self.varint() - 1
        else:
            (length,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return None if length < 0 else length


def _length_of(field: Field) -> str:
    return ">h" if field.kind == "string" else ">i"


def encode(message: Message, tree: Tree) -> bytes:
    """Return a message's bytes."""
    writer = Writer(flexible=message.flexible)
    writer.fields(message.fields, tree)
    return bytes(writer.made)


def decode(message: Message, given: bytes) -> Tree:
    """Return a message's values; no bytes may follow the message."""
    reader = Reader(given, flexible=message.flexible)
    tree = reader.fields(message.fields)
    assert not reader.rest, f"{len(reader.rest)} bytes behind the message"
    return tree


def given_names(value: Value) -> set[str]:
    """Return the names of all values in a tree, at any depth, without unknown tagged fields."""
    if isinstance(value, dict):
        inner = (given_names(each) for name, each in value.items() if name != TAGS)
        return ({*value} - {TAGS}).union(*inner)
    if isinstance(value, list):
        return set[str]().union(*map(given_names, value))
    return set()


def names(fields: Iterable[Field]) -> set[str]:
    """Return the names of all fields, at any depth."""
    found = set[str]()
    for field in fields:
        found |= {field.name} | names(field.fields)
    return found
