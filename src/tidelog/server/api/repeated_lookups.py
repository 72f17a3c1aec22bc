"""ListOffsets for one partition, which clients ask again and again with nothing new but the time.

Of such a request only the time is read, and of its answer only what was found is written: the rest
of both is the same bytes each time. What a frame means was found out once by the message's own
codec, as was where the time stands in it and where an answer has its facts. So this takes other
ways than `dispatch` through the bytes, never through the lookup itself.
"""

from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from tidelog.errors import TidelogError
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
)
from tidelog.protocol.requests import ReceivedRequest, read_request, write_response
from tidelog.server.api.context import RequestContext, may_topic
from tidelog.server.api.list_offsets import find_row, response_of
from tidelog.server.security.operations import Operation
from tidelog.types import ISOLATION_LEVELS, NO_LEADER_EPOCH, Buffer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.server.api.node import ConnectionFacts, Node


DESCRIBE: Final = Operation.DESCRIBE


# How many questions are remembered, and of which size: half a megabyte at most.
KNOWN_MAX: Final = 1024


FRAME_BYTES_MAX: Final = 512


FRAME_BYTES_MIN: Final = 32


# Behind the time stand the tagged fields of partition, topic and request, later a time-out, too.
_BEHIND_TIME: Final = (*(0,) * 6, *(3,) * 4, *(7,) * 2)


_TIME: Final = Struct(">q")


_CORRELATION_ID: Final = slice(4, 8)


_ANSWERED_ID: Final = slice(4, 8)  # behind the length


# Error, timestamp, offset, and since version 4 the leader epoch.
_FACTS_OLD: Final = Struct(">hqq")


_FACTS: Final = Struct(">hqqi")


_EPOCHS_SINCE: Final = 4


# Found again in an answer; no UTF-8 has such bytes.
_MARKS: Final = (-0x0102, -0x0103_0405_0607_0809, -0x0A0B_0C0D_0E0F_1011, -0x1213_1415)


class _Known:
    """A question without its time, and its answer without what was found."""

    __slots__ = ("answer", "asked", "facts", "facts_at", "message", "received", "topic")

    def __init__(self, received: ReceivedRequest, message: ListOffsetsRequest) -> None:
        self.received = received
        self.message = message
        self.topic = message.topics[0].name
        self.asked: ListOffsetsPartition = message.topics[0].partitions[0]
        self.facts = _FACTS if received.version >= _EPOCHS_SINCE else _FACTS_OLD
        self.answer = b""
        self.facts_at = -1

    def learn_answer(self) -> bool:
        """Note the answer's bytes, and where its facts stand; whether that can be said."""
        error, timestamp, offset, epoch = _MARKS
        found = ListOffsetsPartitionResponse(
            partition_index=self.asked.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )
        marks = self.facts.pack(*_MARKS[: 4 if self.facts is _FACTS else 3])
        response = response_of([(self.topic, [found])])
        self.answer = b"".join(write_response(self.received, response))
        self.facts_at = self.answer.find(marks)
        return self.answer.count(marks) == 1

    def said(self, facts: tuple[int, int, int, int], correlation_id: bytes) -> bytearray:
        """The answer's frame, its length included: error, timestamp, offset, leader epoch."""
        out = bytearray(self.answer)
        out[_ANSWERED_ID] = correlation_id
        if self.facts is _FACTS:
            _FACTS.pack_into(out, self.facts_at, *facts)
        else:
            _FACTS_OLD.pack_into(out, self.facts_at, *facts[:3])
        return out

    def throttled(
        self, facts: tuple[int, int, int, int], correlation_id: bytes, throttle_ms: int
    ) -> list[Buffer]:
        """The answer's pieces for a client that is over its quota."""
        error, timestamp, offset, epoch = facts
        found = ListOffsetsPartitionResponse(
            partition_index=self.asked.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch if self.facts is _FACTS else NO_LEADER_EPOCH,
        )
        response = response_of([(self.topic, [found])])
        response.throttle_time_ms = throttle_ms
        number = int.from_bytes(correlation_id, "big", signed=True)
        return write_response(replace(self.received, correlation_id=number), response)


class RepeatedLookups:
    """Questions that were asked before, of all connections. Belongs to the loop's thread."""

    def __init__(self, node: "Node", served: "Mapping[int, tuple[int, int]]") -> None:
        """None yet.

        Args:
            node: Who is asked.
            served: The versions of each API that are served, both inclusive.
        """
        self._node = node
        self._served = served
        self._known: dict[bytes, _Known | None] = {}

    def answer(
        self, connection: "ConnectionFacts", frame: Buffer, began_ns: int | None
    ) -> list[Buffer] | None:
        """What to send for a frame of ListOffsets; None where it is to be answered as any other.

        Raises nothing that is due to the frame: what is wrong with one is said on the other way.

        Args:
            connection: Who asks.
            frame: The request.
            began_ns: When work on it began; None without quotas.
        """
        if not FRAME_BYTES_MIN <= len(frame) <= FRAME_BYTES_MAX:
            return None
        data = bytes(frame)
        version = data[2] << 8 | data[3]
        if version >= len(_BEHIND_TIME):
            return None
        time_at = len(data) - _BEHIND_TIME[version] - _TIME.size
        # Of equal length and equal version, so that the parts were cut at the same places.
        rest = data[:4] + data[8:time_at] + data[time_at + _TIME.size :]
        try:
            known = self._known[rest]
        except KeyError:
            known = self._learn(rest, data, time_at)
        if known is None or not may_topic(self._node, connection, DESCRIBE, known.topic):
            return None
        return self._look_up(known, connection, data, (time_at, began_ns))

    def _look_up(
        self, known: _Known, connection: "ConnectionFacts", data: bytes, at: tuple[int, int | None]
    ) -> list[Buffer] | None:
        asked, (time_at, began_ns) = known.asked, at
        place = self._node.partitions.find_used(known.topic, asked.partition_index)
        if place is None:
            return None
        (asked.timestamp,) = _TIME.unpack_from(data, time_at)
        facts = find_row(
            self._node,
            known.received.version,
            known.message,
            place,
            asked.current_leader_epoch,
            asked.timestamp,
        )
        # What has to be waited for is asked on the other way, which keeps the question.
        if type(facts) is not tuple:
            return None
        if began_ns is not None:
            throttle_ms = self._charge(known, connection, len(data), began_ns)
            if throttle_ms:
                return known.throttled(facts, data[_CORRELATION_ID], throttle_ms)
        return [known.said(facts, data[_CORRELATION_ID])]

    def _charge(
        self, known: _Known, connection: "ConnectionFacts", size_bytes: int, began_ns: int
    ) -> int:
        from tidelog.server.api.charges import charges_of  # few have quotas

        received = known.received
        context = RequestContext(
            self._node, received.api, received.version, received.client_id, connection
        )
        charges = charges_of(context, size_bytes, began_ns)
        return 0 if charges is None else charges.finish()

    def _learn(self, rest: bytes, data: bytes, time_at: int) -> _Known | None:
        """Remember what a frame means that was not met before; None for one of another kind."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        try:
            known = self._read(data, time_at)
        except TidelogError:
            known = None
        self._known[rest] = known
        return known

    def _read(self, data: bytes, time_at: int) -> _Known | None:
        received = read_request(data, self._served)
        message = received.message
        assert isinstance(message, ListOffsetsRequest)
        if received.version == 0 or len(message.topics) != 1:
            return None
        if message.isolation_level not in ISOLATION_LEVELS:
            return None
        if len(message.topics[0].partitions) != 1:
            return None
        known = _Known(received, message)
        return known if self._proves_time(known, data, time_at) and known.learn_answer() else None

    def _proves_time(self, known: _Known, data: bytes, time_at: int) -> bool:
        """Whether other bytes in the time's place say another time, and nothing else."""
        behind = time_at + _TIME.size
        (time,) = _TIME.unpack_from(data, time_at)
        other = _TIME.pack(~time)
        changed = read_request(data[:time_at] + other + data[behind:], self._served).message
        assert isinstance(changed, ListOffsetsRequest)
        if known.asked.timestamp != time or changed.topics[0].partitions[0].timestamp != ~time:
            return False
        changed.topics[0].partitions[0].timestamp = time
        return changed == known.message
