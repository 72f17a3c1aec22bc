"""Fetch without a session, which consumers send again and again with other offsets.

What stands before and behind the partitions in such a request is the same bytes each time; what
they mean was found out once by the message's own codec. Rows of partitions are read by their
layout (`fetch_layouts`), which was proven by that codec at the same time, as was the answer's. So
this takes other ways than `dispatch` through the bytes, never around a check: each partition is
asked anew whether it is there, and what it may show. Whatever is not plain is answered on the
other way: errors, waits, cold reads, tiers, aborted transactions, times that are exposed.
"""

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from uuid import UUID

from tidelog.errors import TidelogError
from tidelog.protocol.fetch_layouts import (
    FIRST_VERSION,
    AskedRow,
    AskedTopic,
    Layout,
    SaidRow,
    layout_of,
)
from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import (
    FetchableTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.requests import ReceivedRequest, write_response
from tidelog.server.api.context import RequestContext, may_topic
from tidelog.server.api.fetch import replica_of
from tidelog.server.partitions.fetch import aborted_transactions
from tidelog.server.partitions.fetch_sessions import LAST_EPOCH, NO_SESSION
from tidelog.server.partitions.segment_reads import (
    PIECE_MIN_BYTES,
    FilePiece,
    Limits,
    SegmentBytes,
    find_range,
)
from tidelog.server.security.operations import Operation
from tidelog.storage.segment.segment import ColdRead
from tidelog.types import ISOLATION_LEVELS, NO_LEADER_EPOCH, Buffer, IsolationLevel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.server.api.node import ConnectionFacts, Node
    from tidelog.server.partitions.partition import Partition


FRAME_BYTES_MAX: Final = 64 << 10


# Remembered of one connection, and of each of these topics.
TOPICS_MAX: Final = 100


PARTITIONS_MAX: Final = 10_000


# To learn what a request means costs as much as some that are known save.
CREDIT_MAX: Final = 64


LEARNING_CREDIT: Final = 16


_CORRELATION_ID: Final = slice(4, 8)


class _Unusual(Exception):
    """It is to be answered as any other request."""


class _Known(NamedTuple):
    """What a request means but for its partitions.

    Attributes:
        api_and_version: The first bytes.
        settings: What follows the correlation id, up to the topics.
        behind: What follows the topics.
        layout: Of its version.
        client_id: How the client calls itself.
        is_committed: Whether transactions that are open or were aborted are not wanted.
        max_bytes: How much is wanted of all partitions together.
        min_bytes: How much there is to be before it is answered; 0 where it is not to wait.
    """

    api_and_version: bytes
    settings: bytes
    behind: bytes
    layout: Layout
    client_id: str | None
    is_committed: bool
    max_bytes: int
    min_bytes: int

    def topics(self, data: bytes) -> "list[AskedTopic] | None":
        """The partitions of a request; None where it is another one."""
        at = _CORRELATION_ID.stop + len(self.settings)
        if data[_CORRELATION_ID.stop : at] != self.settings:
            return None
        if not data.startswith(self.api_and_version):
            return None
        found = self.layout.topics(data, at)
        if found is None:
            return None
        topics, end = found
        return topics if data[end:] == self.behind else None


class RepeatedFetches:
    """The last such request of one connection. Belongs to the loop's thread."""

    __slots__ = ("_connection", "_credit", "_known", "_node", "_topics")

    def __init__(self, node: "Node", connection: "ConnectionFacts") -> None:
        """None yet."""
        self._node = node
        self._connection = connection
        self._known: _Known | None = None
        self._topics: dict[bytes, _Topic] = {}
        self._credit = CREDIT_MAX

    def answer(self, frame: Buffer, began_ns: int | None) -> list[Buffer] | None:
        """What to send for a frame of Fetch; None where it is to be answered as any other.

        Raises nothing that is due to the frame: what is wrong with one is said on the other way.
        `began_ns`: when work on it began; None without quotas.
        """
        known = self._known
        if known is None or len(frame) > FRAME_BYTES_MAX:
            return None
        data = bytes(frame)
        topics = known.topics(data)
        if topics is None:
            return None
        self._credit = min(self._credit + 1, CREDIT_MAX)
        try:
            return self._read(known, topics, data, began_ns)
        except (_Unusual, ColdRead, OSError, TidelogError):
            return None

    def _read(
        self, known: _Known, asked: "Sequence[AskedTopic]", data: bytes, began_ns: int | None
    ) -> list[Buffer]:
        most, said = min(known.max_bytes, self._node.config.fetch_max_bytes), []
        context = self._context(known)
        allowed = None if began_ns is None else _most_bytes(context)
        if allowed is not None:
            most = min(most, allowed)
        reading = _Reading(known.is_committed, most)
        if len({key for key, _ in asked}) < len(asked):
            raise _Unusual
        for key, rows in asked:
            if len({row[0] for row in rows}) < len(rows):
                raise _Unusual
            partition_of = self._topic(known, key).partition_of
            said.append((key, [reading.row(partition_of(row[0]), row) for row in rows]))
        if reading.size_bytes < min(known.min_bytes, most):
            raise _Unusual
        pieces = known.layout.answer(
            int.from_bytes(data[_CORRELATION_ID], "big", signed=True),
            said,
            is_committed=known.is_committed,
            copied_below=PIECE_MIN_BYTES,
        )
        if allowed is not None:
            self._charge(context, sum(map(len, pieces)) - known.layout.head_bytes)
        note, metrics = self._connection.fetches.note_one, self._node.metrics
        for partition, offset, size_bytes in reading.done:
            note(metrics, partition, offset, size_bytes)
        if began_ns is not None:
            from tidelog.server.api.charges import charges_of  # few have quotas

            charges = charges_of(context, len(data), began_ns)
            if charges is not None:
                known.layout.set_throttle(pieces, charges.finish())
        return pieces

    @staticmethod
    def _charge(context: RequestContext, size_bytes: int) -> None:
        """Count an answer, unless it is not to be sent: the whole way gives an empty one then."""
        from tidelog.server.api.charges import throttle_bytes_ms  # few have quotas

        if throttle_bytes_ms(context, size_bytes):
            raise _Unusual

    def _context(self, known: _Known) -> RequestContext:
        return RequestContext(
            self._node, FETCH, known.layout.version, known.client_id, self._connection
        )

    def _topic(self, known: _Known, key: bytes) -> "_Topic":
        """A topic by what it is called in a request."""
        topic = self._topics.get(key)
        if topic is None:
            self._make_room()
            topic = self._topics[key] = _Topic(self._node, key, is_by_id=known.layout.is_by_id)
        name = topic.look()
        if not may_topic(self._node, self._connection, Operation.READ, name):
            raise _Unusual
        return topic

    def _make_room(self) -> None:
        """For one more topic: those that were deleted go, and all where there are too many."""
        for key in [key for key, topic in self._topics.items() if topic.is_gone]:
            del self._topics[key]
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()

    # -- learning ----------------------------------------------------------------------------

    def learn(self, frame: Buffer, received: ReceivedRequest, said: FetchResponse) -> None:
        """Remember what a request of Fetch means that was answered as any other.

        Args:
            frame: Its bytes.
            received: What they were read as.
            said: Its answer.
        """
        message = received.message
        assert isinstance(message, FetchRequest)
        if not _is_plain(received.version, message) or len(frame) > FRAME_BYTES_MAX:
            return
        data = bytes(frame)
        if self._known is not None and self._known.topics(data) is not None:
            return
        if self._credit < LEARNING_CREDIT:
            return
        self._credit -= LEARNING_CREDIT
        self._known = _learned(data, received, message, said)
        self._topics.clear()


class _Topic:
    """A topic that was asked for, and its partitions that were."""

    __slots__ = ("_known", "_node", "name", "topic_id")

    def __init__(self, node: "Node", key: bytes, *, is_by_id: bool) -> None:
        """`key`: its name or id as it stands in a request."""
        self._node = node
        self._known: dict[int, Partition] = {}
        self.topic_id: UUID | None = UUID(bytes=key) if is_by_id else None
        self.name: str | None = None if is_by_id else str(key, "utf-8", "replace")

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted: its partitions go together."""
        first = next(iter(self._known.values()), None)
        return first is not None and first.is_gone

    def look(self) -> str:
        """Find its name, which a topic keeps as long as its id; raises `_Unusual` for none."""
        if self.topic_id is not None:
            info = self._node.topics.find_by_id(self.topic_id)
            if info is None:
                raise _Unusual
            self.name = info.name
        assert self.name is not None
        return self.name

    def partition_of(self, number: int) -> "Partition":
        """A partition that is there and open; raises `_Unusual` for any other."""
        known = self._known.get(number)
        if known is not None and not known.is_gone:
            return known
        assert self.name is not None
        found = self._node.partitions.find_used(self.name, number)
        if found is None or found.is_gone:
            raise _Unusual
        if self.topic_id not in (None, found.log.context.topic_id):
            raise _Unusual
        if len(self._known) < PARTITIONS_MAX:
            self._known[number] = found
        return found


class _Reading:
    """One pass over the partitions of a request.

    Attributes:
        size_bytes: Of the records that were found.
        done: Partitions, the offset that was asked for, and the bytes found.
    """

    __slots__ = ("_is_committed", "_left", "_whole_first", "done", "size_bytes")

    def __init__(self, is_committed: bool, most: int) -> None:
        self._is_committed = is_committed
        self._left = most
        self._whole_first = True
        self.size_bytes = 0
        self.done: list[tuple[Partition, int, int]] = []

    def row(self, partition: "Partition", asked: AskedRow) -> SaidRow:
        """What is said of a partition; as `PartitionRead`, where that is plain.

        Raises:
            _Unusual, ColdRead, OSError, TidelogError: It is not.
        """
        number, epoch, offset, last_epoch, max_bytes, tags = asked
        log = partition.log
        start = log.log_start_offset
        if last_epoch != NO_LEADER_EPOCH or tags or max_bytes < 0:
            raise _Unusual
        if epoch != NO_LEADER_EPOCH and epoch != log.leader_epoch:
            raise _Unusual
        if not start <= offset <= log.log_end_offset:
            raise _Unusual
        if log.context.config.tidelog_expose_append_time:
            raise _Unusual
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        end, records, size = stable if self._is_committed else high_watermark, None, 0
        if offset < end:
            records = self._find(partition, offset, end, max_bytes)
        if records is not None:
            size = len(records)
            self._whole_first = False
            self._left = max(self._left - size, 0)
            self.size_bytes += size
        self.done.append((partition, offset, size))
        return number, high_watermark, stable, start, records

    def _find(self, partition: "Partition", offset: int, end: int, max_bytes: int) -> Buffer | None:
        log, ends = partition.log, partition.read_ends
        source = SegmentBytes(log.context.pool, may_block=False, at_hand=ends.at_hand)
        segments = log.segments
        limits = Limits(
            end_offset=end, max_bytes=min(max_bytes, self._left), whole_first=self._whole_first
        )
        found = find_range(segments, offset, limits, source, ends)
        if found is None or not found.size_bytes:
            return None
        if found.segment.is_tiered:
            raise _Unusual
        if self._is_committed and aborted_transactions(segments, offset, found, source):
            raise _Unusual
        return cast("Buffer", source.records(found.segment, found.start, found.end))


def _most_bytes(context: RequestContext) -> int | None:
    from tidelog.server.api.charges import most_bytes  # few have quotas

    return most_bytes(context)


def _is_plain(version: int, message: FetchRequest) -> bool:
    """Whether a consumer asks so, without a session and without our own fields."""
    return (
        version >= FIRST_VERSION
        and replica_of(version, message) < 0
        and message.session_id == NO_SESSION
        and message.session_epoch == LAST_EPOCH
        and not message.with_append_times
        and message.isolation_level in ISOLATION_LEVELS
        and message.max_bytes >= 0
        and bool(message.topics)
    )


# -- what is learned -----------------------------------------------------------------------------


def _learned(
    data: bytes, received: ReceivedRequest, message: FetchRequest, said: FetchResponse
) -> _Known | None:
    """What a request means, where its bytes and its answer's lie as they mostly do."""
    layout = layout_of(received.version)
    at = layout.topics_at(received.client_id)
    read = layout.topics(data, at)
    if read is None or not _is_read_right(read[0], message, layout):
        return None
    if not _is_said_right(received, message, layout, said):
        return None
    return _Known(
        data[: _CORRELATION_ID.start],
        data[_CORRELATION_ID.stop : at],
        data[read[1] :],
        layout,
        received.client_id,
        _is_committed(message),
        message.max_bytes,
        message.min_bytes if message.max_wait_ms > 0 else 0,
    )


def _is_committed(message: FetchRequest) -> bool:
    return message.isolation_level == IsolationLevel.READ_COMMITTED


def _key(topic: FetchTopic | FetchableTopic, layout: Layout) -> bytes:
    """What a topic is called in bytes."""
    return topic.topic_id.bytes if layout.is_by_id else topic.topic.encode()


def _is_read_right(read: "Sequence[AskedTopic]", message: FetchRequest, layout: Layout) -> bool:
    """Whether the layout finds in a request what the codec does."""
    expected = [
        (_key(topic, layout), [_plain_row(asked) for asked in topic.partitions])
        for topic in message.topics
    ]
    return expected == [(key, list(rows)) for key, rows in read]


def _plain_row(asked: FetchPartition) -> AskedRow:
    return (
        asked.partition,
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
        asked.partition_max_bytes,
        0,
    )


def _is_said_right(
    received: ReceivedRequest, message: FetchRequest, layout: Layout, said: FetchResponse
) -> bool:
    """Whether the layout says the same bytes as the codec."""
    topics = [
        (_key(topic, layout), [_said_row(data) for data in topic.partitions])
        for topic in said.responses
    ]
    ours = layout.answer(
        received.correlation_id,
        topics,
        is_committed=_is_committed(message),
        copied_below=PIECE_MIN_BYTES,
    )
    return _joined(ours) == _joined(write_response(received, said))


def _said_row(data: PartitionData) -> SaidRow:
    records = cast("Sequence[Buffer]", data.records)
    return (
        data.partition_index,
        data.high_watermark,
        data.last_stable_offset,
        data.log_start_offset,
        records[0] if records else None,
    )


def _joined(pieces: "Sequence[Buffer]") -> list[object]:
    """Pieces of files as they are, bytes between them in one."""
    found: list[object] = []
    for is_file, group in groupby(pieces, lambda piece: isinstance(piece, FilePiece)):
        same = list(group)
        found += same if is_file else [b"".join(same)]
    return found
