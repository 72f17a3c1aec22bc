"""Versioned messages in other messages and in records: an int16, then a declared message.

    version, subscription = SUBSCRIPTION.read(data)
    data = OFFSET_COMMIT_VALUE.write(3, OffsetCommitValue(offset=42))

In the key of a record, the int16 is the kind of the record: in `__consumer_offsets`, for example, 0
and 1 mean an offset, and 2 means a group. Outside the keys of records, the int16 is the version of
the message. The messages are declared in `protocol.messages`.

Source: Kafka's guide to the consumer protocol and to `__consumer_offsets`.
"""

from functools import cache
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from tidelog.amounts import plural
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.schema import ANY_VERSION
from tidelog.protocol.wire import Reader, Writer
from tidelog.types import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance


Message = TypeVar("Message", bound="DataclassInstance")
VERSION_BYTES: Final = 2


class DataMessage(NamedTuple, Generic[Message]):
    """A message, with the versions that its declaration knows.

    Attributes:
        kind: Declaration of the message.
        first: Lowest version.
        last: Highest version that the declaration knows, inclusive.
        flexible: First version with compact lengths and tagged fields.
        open_ended: Whether a later version is read as the last known version, without the later
            version's additional fields. An open-ended declaration lets the members of a group read
            messages from members with a later version.
    """

    kind: type[Message]
    first: int
    last: int
    flexible: int = ANY_VERSION + 1
    open_ended: bool = False

    def read(self, data: Buffer) -> tuple[int, Message]:
        """Return the version in the data, and the message.

        Raises:
            UnsupportedVersion: The version is unknown.
            CorruptMessage: The data is invalid.
        """
        reader = Reader(data)
        version = reader.int16()
        read_version = min(version, self.last) if self.open_ended else version
        self._check(read_version)
        message = struct_codec(self.kind, read_version, read_version >= self.flexible).read(reader)
        if reader.left and not self.open_ended:
            raise CorruptMessage(
                f"{self.kind.__name__} v{version}: {plural(reader.left, 'byte')} after the message",
                at=reader.at,
            )
        return version, message

    def write(self, version: int, message: Message) -> bytes:
        """Encode the message in one version.

        Raises:
            UnsupportedVersion: The declaration does not know the version.
            InvalidRequest: A value does not fit into its field.
        """
        self._check(version)
        head, write = _written(self.kind, version, version >= self.flexible)
        writer = Writer()
        writer.add(head)
        write(writer, message)
        whole = writer.whole()
        return b"".join(writer.parts()) if whole is None else whole

    def _check(self, version: int) -> None:
        if not self.first <= version <= self.last:
            raise UnsupportedVersion(
                f"{self.kind.__name__} v{version}: versions {self.first} to {self.last} are known"
            )


@cache
def _written(
    kind: "type[DataclassInstance]", version: int, flexible: bool
) -> "tuple[bytes, Callable[[Writer, DataclassInstance], None]]":
    """Return the encoded version that precedes a message, and the writer of the message itself."""
    return version.to_bytes(VERSION_BYTES, "big"), struct_codec(kind, version, flexible).write
