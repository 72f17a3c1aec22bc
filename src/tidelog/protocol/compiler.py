"""Codecs of declarations: made once for each message and version, at their first use.

A declaration becomes Python, compiled as people's own modules are; `read_code` and `write_code`
make the lines. See docs/protocol.md.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from tidelog.protocol.read_code import make_reader, make_sliced_reader, struct_least_bytes
from tidelog.protocol.wire import Reader, Writer
from tidelog.protocol.write_code import make_sliced_writer, make_writer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Message = TypeVar("Message", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Message]):
    """How one message is read and written in one version. Either way is made when first asked for.

    Attributes:
        kind: The declaration.
        version: The version.
        flexible: Whether lengths are compact and structs have tagged fields.
    """

    kind: type[Message]
    version: int
    flexible: bool

    @property
    def read(self) -> Callable[[Reader], Message]:
        """Takes a message from where a reader stands; raises CorruptMessage."""
        made = _reader(self.kind, self.version, self.flexible)
        return cast("Callable[[Reader], Message]", made)

    @property
    def write(self) -> Callable[[Writer, Message], None]:
        """Puts a message into a writer; raises InvalidRequest for values that don't fit."""
        made = _writer(self.kind, self.version, self.flexible)
        return cast("Callable[[Writer, Message], None]", made)

    @property
    def read_sliced(self) -> Callable[[Reader], Generator[None, None, Message]]:
        """`read` as a generator that stops after every few list elements."""
        made = _sliced_reader(self.kind, self.version, self.flexible)
        return cast("Callable[[Reader], Generator[None, None, Message]]", made)

    @property
    def write_sliced(self) -> Callable[[Writer, Message], Generator[None, None, None]]:
        """`write` as a generator that stops after every few list elements."""
        made = _sliced_writer(self.kind, self.version, self.flexible)
        return cast("Callable[[Writer, Message], Generator[None, None, None]]", made)

    def write_around(self, written: str) -> Callable[[Writer, Message], None]:
        """`write` for a message whose list of that name is `WrittenItems`."""
        made = _writer_around(self.kind, self.version, self.flexible, written)
        return cast("Callable[[Writer, Message], None]", made)

    @property
    def min_bytes(self) -> int:
        """What the shortest message takes, at least 1."""
        return struct_least_bytes(self.kind, self.version, flexible=self.flexible)


def struct_codec(kind: type[Message], version: int, flexible: bool) -> Codec[Message]:
    """The codec of a declaration in one version."""
    return cast("Codec[Message]", _codec(kind, version, flexible))


@cache
def _codec(kind: "type[DataclassInstance]", version: int, flexible: bool) -> object:
    return Codec(kind, version, flexible)


@cache
def _reader(kind: "type[DataclassInstance]", version: int, flexible: bool) -> object:
    return make_reader(kind, version, flexible=flexible)


@cache
def _writer(kind: "type[DataclassInstance]", version: int, flexible: bool) -> object:
    return make_writer(kind, version, flexible=flexible)


@cache
def _sliced_reader(kind: "type[DataclassInstance]", version: int, flexible: bool) -> object:
    return make_sliced_reader(kind, version, flexible=flexible)


@cache
def _sliced_writer(kind: "type[DataclassInstance]", version: int, flexible: bool) -> object:
    return make_sliced_writer(kind, version, flexible=flexible)


@cache
def _writer_around(
    kind: "type[DataclassInstance]", version: int, flexible: bool, written: str
) -> object:
    return make_writer(kind, version, flexible=flexible, written=written)
