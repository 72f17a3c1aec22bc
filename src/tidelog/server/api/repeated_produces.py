"""Produce of one batch to one partition, which a producer sends again and again with other records.

What stands before the records in such a request is the same bytes each time, but for the
correlation id, and what stands before and behind the offsets in its answer, too. What those bytes
mean was found out once by the message's own codec, and proven by a second reading with other
records. So this takes other ways than `dispatch` through the bytes, never around a check: the
records go through the same call as those of any request.
"""

from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.errors import CorruptMessage, TidelogError
from tidelog.protocol.framing import LENGTH
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.requests import ReceivedRequest, read_request, write_response
from tidelog.protocol.wire import read_varint, varint_bytes
from tidelog.record.header import ATTRIBUTES_AT, TRANSACTIONAL_BIT
from tidelog.server.api.context import RequestContext, may_topic
from tidelog.server.api.produce import (
    TOPIC_IDS_FIRST_VERSION,
    Request,
    Said,
    append,
    is_one_batch,
    said_once_shown,
)
from tidelog.server.security.operations import Operation
from tidelog.types import Buffer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.server.api.charges import Charges
    from tidelog.server.api.node import ConnectionFacts, Node


# Before it an answer lacks the log's start.
FIRST_VERSION: Final = 5


HEAD_BYTES_MAX: Final = 1024


# To learn what a request means costs as much as some twenty that are known save.
CREDIT_MAX: Final = 64


LEARNING_CREDIT: Final = 32


# Tagged fields of partition, topic and request: none.
_NO_TAGS: Final = bytes(3)


_CORRELATION_ID: Final = slice(4, 8)  # of a request, and of an answer behind its length


# Error, base offset, append time, log start.
_FACTS: Final = Struct(">hqqq")


# Found again in an answer; no UTF-8 has such bytes.
_MARKS: Final = (-0x0102, -0x0103_0405_0607_0809, -0x0A0B_0C0D_0E0F_1011, -0x1213_1415_1617_1819)


_OTHER_RECORDS: Final = b"\xc0\xc1\xf5"


# Bytes to send; or what `dispatch` has to write, now or later.
Told: TypeAlias = "list[Buffer] | tuple[ReceivedRequest, Said, Charges | None]"


class _Known(NamedTuple):
    """What a request means up to its records, and its answer without what was appended.

    Attributes:
        received: Such a request, without records.
        message: What it says.
        api_and_version: The first bytes.
        rest: What follows the correlation id, up to the length of the records.
        is_flexible: Whether that length is a varint, and tagged fields end the request.
        answer: An answer's frame, its length included.
        facts_at: Where in it the facts stand.
    """

    received: ReceivedRequest
    message: ProduceRequest
    api_and_version: bytes
    rest: bytes
    is_flexible: bool
    answer: bytes
    facts_at: int


class RepeatedProduces:
    """The last such request of one connection. Belongs to the loop's thread."""

    __slots__ = ("_connection", "_credit", "_known", "_node")

    def __init__(self, node: "Node", connection: "ConnectionFacts") -> None:
        """None yet."""
        self._node = node
        self._connection = connection
        self._known: _Known | None = None
        self._credit = CREDIT_MAX

    def answer(self, frame: Buffer, began_ns: int | None) -> "Told | None":
        """What to say to a frame of Produce; None where it is to be answered as any other.

        `began_ns`: when work on it began; None without quotas.
        """
        known = self._known
        if known is None:
            return None
        at = len(known.rest) + _CORRELATION_ID.stop
        head = bytes(frame[:at])
        if head[_CORRELATION_ID.stop :] != known.rest or not head.startswith(known.api_and_version):
            return None
        records = _records_at(frame, at, is_flexible=known.is_flexible)
        if records is None:
            return None
        self._credit = min(self._credit + 1, CREDIT_MAX)
        return self._append(known, head[_CORRELATION_ID], records, (len(frame), began_ns))

    def _append(
        self,
        known: _Known,
        correlation_id: bytes,
        records: Buffer,
        cost: tuple[int, int | None],
    ) -> "Told | None":
        node, received = self._node, known.received
        topic = known.message.topic_data[0]
        name = topic.name
        if received.version >= TOPIC_IDS_FIRST_VERSION:
            info = node.topics.find_by_id(topic.topic_id)
            if info is None:
                return None
            name = info.name
        index = topic.partition_data[0].index
        partitions = node.partitions
        if partitions.holds or partitions.find_used(name, index) is None:
            return None
        if not may_topic(node, self._connection, Operation.WRITE, name):
            return None
        context = RequestContext(
            node, received.api, received.version, received.client_id, self._connection
        )
        common = Request(context, known.message.acks, [], None, [])
        said = append(common, name, PartitionProduceData(index=index, records=records))
        charges = _charges_of(context, *cost)
        is_plain = not (said.error_code or common.waiting or common.long)
        throttle_ms = charges.finish() if is_plain and charges is not None else 0
        if not is_plain or throttle_ms:
            number = int.from_bytes(correlation_id, "big", signed=True)
            request = ReceivedRequest(
                received.api, received.version, number, received.client_id, known.message
            )
            responses = [_topic_response(known.message, said)]
            if is_plain:
                response = ProduceResponse(responses=responses, throttle_time_ms=throttle_ms)
                return request, response, None
            answer = said_once_shown(common, known.message, responses)
            if charges is not None:
                charges.worked(answer)
            return request, answer, charges
        out = bytearray(known.answer)
        out[_CORRELATION_ID] = correlation_id
        _FACTS.pack_into(
            out, known.facts_at, 0, said.base_offset, said.log_append_time_ms, said.log_start_offset
        )
        return [out]

    def learn(
        self, frame: Buffer, received: ReceivedRequest, served: "Mapping[int, tuple[int, int]]"
    ) -> None:
        """Remember what a request of Produce means that was answered as any other.

        Args:
            frame: Its bytes.
            received: What they were read as.
            served: The versions of each API that are served, both inclusive.
        """
        if self._credit < LEARNING_CREDIT or received.version < FIRST_VERSION:
            return
        message = received.message
        assert isinstance(message, ProduceRequest)
        if message.acks == 0 or len(message.topic_data) != 1:
            return
        if len(message.topic_data[0].partition_data) != 1:
            return
        self._credit -= LEARNING_CREDIT
        try:
            self._known = _learned(frame, received, message, served)
        except TidelogError:
            self._known = None


def _charges_of(context: RequestContext, size_bytes: int, began_ns: int | None) -> "Charges | None":
    if began_ns is None:
        return None
    from tidelog.server.api.charges import charges_of  # few have quotas

    return charges_of(context, size_bytes, began_ns)


def _records_at(frame: Buffer, at: int, *, is_flexible: bool) -> Buffer | None:
    """The one plain batch that stands there and ends the request, None for anything else."""
    end = len(frame)
    try:
        if is_flexible:
            size, at = read_varint(memoryview(frame), at)
            size -= 1
            end -= len(_NO_TAGS)
            if bytes(frame[end:]) != _NO_TAGS:
                return None
        else:
            (size,) = LENGTH.unpack_from(frame, at)
            at += LENGTH.size
    except (IndexError, error, CorruptMessage):
        return None
    if size <= 0 or at + size != end:
        return None
    records = frame[at:end]
    if not is_one_batch(records) or records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT:
        return None
    return records


def _topic_response(
    message: ProduceRequest, said: PartitionProduceResponse
) -> TopicProduceResponse:
    topic = message.topic_data[0]
    return TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=[said]
    )


def _learned(
    frame: Buffer,
    received: ReceivedRequest,
    message: ProduceRequest,
    served: "Mapping[int, tuple[int, int]]",
) -> _Known | None:
    """What stands before the records of a frame, where that can be told for sure.

    Raises:
        TidelogError: It can't be read with other records.
    """
    data = message.topic_data[0].partition_data[0]
    if not data.records:
        return None
    is_flexible = received.api.is_flexible(received.version)
    tail = _NO_TAGS if is_flexible else b""
    length = _length_of(len(data.records), is_flexible=is_flexible)
    at = len(frame) - len(tail) - len(data.records) - len(length)
    head = bytes(frame[: max(at, 0)])
    if not _CORRELATION_ID.stop < at <= HEAD_BYTES_MAX:
        return None
    other = _length_of(len(_OTHER_RECORDS), is_flexible=is_flexible) + _OTHER_RECORDS
    # What is kept is this one: it looks at no buffer that is to serve again.
    kept = read_request(memoryview(head + other + tail), served)
    same = kept.message
    assert isinstance(same, ProduceRequest)
    if kept.client_id != received.client_id or not _differs_in_records(same, message):
        return None
    answer, facts_at = _answer_of(kept, same)
    if facts_at < 0:
        return None
    rest = head[_CORRELATION_ID.stop :]
    return _Known(kept, same, head[:4], rest, is_flexible, answer, facts_at)


def _length_of(size: int, *, is_flexible: bool) -> bytes:
    return varint_bytes(size + 1) if is_flexible else LENGTH.pack(size)


def _differs_in_records(found: ProduceRequest, message: ProduceRequest) -> bool:
    """Whether one says the same as the other but for its records, which are those put in; they go.

    Args:
        found: Read with other records; it has none after this.
        message: For one partition.
    """
    if len(found.topic_data) != 1 or len(found.topic_data[0].partition_data) != 1:
        return False
    data = found.topic_data[0].partition_data[0]
    if data.records != _OTHER_RECORDS:
        return False
    data.records = message.topic_data[0].partition_data[0].records
    is_same = found == message
    data.records = None
    return is_same


def _answer_of(received: ReceivedRequest, message: ProduceRequest) -> tuple[bytes, int]:
    """An answer's bytes, and where its facts stand; -1 where that can't be said."""
    error_code, base_offset, append_ms, start = _MARKS
    said = PartitionProduceResponse(
        index=message.topic_data[0].partition_data[0].index,
        error_code=error_code,
        base_offset=base_offset,
        log_append_time_ms=append_ms,
        log_start_offset=start,
    )
    response = ProduceResponse(responses=[_topic_response(message, said)])
    answer = b"".join(write_response(received, response))
    marks = _FACTS.pack(*_MARKS)
    return answer, answer.find(marks) if answer.count(marks) == 1 else -1
