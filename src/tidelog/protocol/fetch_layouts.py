"""How requests and answers of Fetch lie in bytes, for those that ask and say nothing unusual.

Only what mostly stands there is read and written here: rows of partitions without tagged fields,
and answers without errors. Whoever goes by this proves it by the message's own codec
(`repeated_fetches`).

Source: `protocol.messages.fetch`; KIP-482.
"""

from collections.abc import Sequence
from functools import cache
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from tidelog.errors import CorruptMessage
from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.wire import read_varint, varint_bytes
from tidelog.types import NO_LEADER_EPOCH, Buffer

# Before it rows have another form, and few ask so.
FIRST_VERSION: Final = 9


FLEXIBLE_SINCE: Final = 12


BY_ID_SINCE: Final = 13


# Since then an answer's rows name a replica that is preferred: none.
_PREFERRED_SINCE: Final = 11


REPLICA_STATE_SINCE: Final = 15  # a tagged field at the end


# API, version, correlation id, length of the client's name.
_REQUEST_HEAD_BYTES: Final = 10


# Replica, longest wait, least and most bytes, isolation, session and its epoch.
_REPLICA_BYTES: Final = 4


_SETTINGS_BYTES: Final = _REPLICA_BYTES + 3 * 4 + 1 + 2 * 4


_NO_REPLICA: Final = b"\xff\xff\xff\xff"


# The correlation id.
_HEADER_BYTES: Final = 4


_UUID_BYTES: Final = 16


_INT16: Final = Struct(">H")


_INT32: Final = Struct(">i")


# Partition, leader epoch, offset, last epoch, (log start,) most bytes, number of tagged fields.
_ROW: Final = Struct(">iiqi8xiB")


# The same without last epoch and tagged fields.
_OLD_ROW: Final = Struct(">iiq8xi")


# Of an answer's row: partition, error, high watermark, last stable offset, log start.
_FACTS: Final = Struct(">ihqqq")


# Length, correlation id, (no tagged fields,) throttle time, error, session.
_HEAD: Final = Struct(">iixihi")


_OLD_HEAD: Final = Struct(">iiihi")


# Of a partition that is asked for: number, leader epoch, offset, last epoch, most bytes, tags.
AskedRow: TypeAlias = tuple[int, int, int, int, int, int]


# Of a partition that is answered: number, high watermark, last stable offset, log start, records;
# None for no records.
SaidRow: TypeAlias = tuple[int, int, int, int, Buffer | None]


class AskedTopic(NamedTuple):
    """A topic of a request: its name or id as it stands there, and its rows."""

    key: bytes
    rows: Sequence[AskedRow]


class Layout:
    """Of one version. Holds nothing but what follows from it."""

    def __init__(self, version: int) -> None:
        """`version`: of the message, at least `FIRST_VERSION`."""
        self.version = version
        self.is_flexible = version >= FLEXIBLE_SINCE
        self.is_by_id = version >= BY_ID_SINCE
        self._row = _ROW if self.is_flexible else _OLD_ROW
        self._preferred = _NO_REPLICA if version >= _PREFERRED_SINCE else b""
        self._tags = b"\0" if self.is_flexible else b""
        self._settings_bytes = _SETTINGS_BYTES
        if version >= REPLICA_STATE_SINCE:
            self._settings_bytes -= _REPLICA_BYTES

    # -- requests ----------------------------------------------------------------------------

    def topics_at(self, client_id: str | None) -> int:
        """Where the topics begin in a request."""
        header = _REQUEST_HEAD_BYTES + len((client_id or "").encode()) + len(self._tags)
        return header + self._settings_bytes

    def topics(self, data: bytes, at: int) -> tuple[list[AskedTopic], int] | None:
        """The topics that stand at a place, and what is behind them; None for anything unusual."""
        try:
            count, at = self._count(data, at)
            if not 0 < count <= len(data) - at:
                return None
            found = []
            for _ in range(count):
                topic, at = self._topic(data, at)
                found.append(topic)
        except (IndexError, ValueError, error, CorruptMessage):
            return None
        return found, at

    def _topic(self, data: bytes, at: int) -> tuple[AskedTopic, int]:
        size = _UUID_BYTES
        if not self.is_by_id:
            size, at = self._text_size(data, at)
            if size < 0:
                raise ValueError
        key, at = data[at : at + size], at + size
        count, at = self._count(data, at)
        end = at + count * self._row.size
        if not 0 < count <= len(data) or end > len(data):
            raise ValueError
        rows: Sequence[AskedRow] = list(self._row.iter_unpack(data[at:end]))
        if not self.is_flexible:
            rows = [(*row[:3], NO_LEADER_EPOCH, row[3], 0) for row in rows]
        elif data[end]:
            raise ValueError  # tagged fields of the topic
        return AskedTopic(key, rows), end + len(self._tags)

    def _count(self, data: bytes, at: int) -> tuple[int, int]:
        if not self.is_flexible:
            return _INT32.unpack_from(data, at)[0], at + _INT32.size
        count, at = read_varint(memoryview(data), at)
        return count - 1, at

    def _text_size(self, data: bytes, at: int) -> tuple[int, int]:
        if not self.is_flexible:
            return _INT16.unpack_from(data, at)[0], at + _INT16.size
        size, at = read_varint(memoryview(data), at)
        return size - 1, at

    # -- answers -----------------------------------------------------------------------------

    def answer(
        self,
        correlation_id: int,
        topics: Sequence[tuple[bytes, Sequence[SaidRow]]],
        *,
        is_committed: bool,
        copied_below: int,
    ) -> list[Buffer]:
        """The pieces of an answer without errors, its length in front.

        Args:
            correlation_id: The request's.
            topics: Names or ids as they stand in a request, and what is said of partitions.
            is_committed: Whether the asker wants to hear of aborted transactions: of none.
            copied_below: Records of fewer bytes go into the piece before them.
        """
        out = bytearray(_HEAD.size if self.is_flexible else _OLD_HEAD.size)
        first, pieces, size = out, [out], 0
        behind_facts = self._list_size(0 if is_committed else -1) + self._preferred
        sized, tags = self._sized, self._tags
        out += self._list_size(len(topics))
        for key, rows in topics:
            out += (key if self.is_by_id else self._text(key)) + self._list_size(len(rows))
            for number, high_watermark, stable, start, records in rows:
                out += _FACTS.pack(number, 0, high_watermark, stable, start) + behind_facts
                if records is None:
                    out += sized(0)
                elif (nbytes := len(records)) < copied_below:
                    out += sized(nbytes)
                    out += records
                else:
                    out += sized(nbytes)
                    out = bytearray()
                    pieces += (records, out)  # type: ignore[arg-type]
                    size += nbytes
                out += tags
            out += tags
        out += tags
        size += sum(len(each) for each in pieces[::2]) - LENGTH_BYTES
        head = _HEAD if self.is_flexible else _OLD_HEAD
        head.pack_into(first, 0, size, correlation_id, 0, 0, 0)
        if not out:
            pieces.pop()
        return pieces  # type: ignore[return-value]

    @property
    def head_bytes(self) -> int:
        """Of an answer's header behind the length: what quotas don't count."""
        return _HEADER_BYTES + len(self._tags)

    def set_throttle(self, pieces: Sequence[Buffer], throttle_ms: int) -> None:
        """Report in an answer how long the client is muted."""
        _INT32.pack_into(pieces[0], LENGTH_BYTES + self.head_bytes, throttle_ms)

    def _text(self, text: bytes) -> bytes:
        if not self.is_flexible:
            return _INT16.pack(len(text)) + text
        return varint_bytes(len(text) + 1) + text

    def _list_size(self, count: int) -> bytes:
        return varint_bytes(count + 1) if self.is_flexible else _INT32.pack(count)

    def _sized(self, size: int) -> bytes:
        """The length of records."""
        if not self.is_flexible:
            return _INT32.pack(size)
        coded = size + 1
        if 1 << 14 <= coded < 1 << 21:  # mostly so
            return bytes((coded & 0x7F | 0x80, coded >> 7 & 0x7F | 0x80, coded >> 14))
        return varint_bytes(coded)


@cache
def layout_of(version: int) -> Layout:
    """That of a version, at least `FIRST_VERSION`."""
    return Layout(version)
