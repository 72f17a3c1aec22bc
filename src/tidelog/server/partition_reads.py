"""One partition of a fetch: what is asked, the checks before the read, the answer.

Source: Kafka 4.x ReplicaManager.readFromLog, Partition.readRecords, UnifiedLog.read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tidelog.errors import CorruptData, StorageFailure, TidelogError
from tidelog.protocol.messages.fetch import (
    AbortedTransaction,
    DivergingEpoch,
    FetchPartition,
    FetchRequest,
    PartitionData,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.byte_ranges import ByteRange, Limits, find_range
from tidelog.server.node import Node
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.types import IsolationLevel

UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC: Final = 3
NOT_LEADER: Final = 6
STORAGE_ERROR: Final = 56
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103
UNKNOWN_OFFSET: Final = -1
NO_EPOCH: Final = -1
CONSUMER: Final = -1
# Before this version the first batch comes in part where it is too large. Source: KIP-74.
_WHOLE_FIRST_SINCE: Final = 3
_STORAGE_ERROR_SINCE: Final = 6


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What a fetch asks of all its partitions.

    Attributes:
        version: Of the request.
        isolation: Which records of transactions are seen.
        is_follower: A copy of the log asks: it sees up to the log end.
        min_bytes: How much it waits for.
        max_bytes: How much all partitions give together; the first batch comes whole even so.
    """

    version: int
    isolation: IsolationLevel
    is_follower: bool
    min_bytes: int
    max_bytes: int

    @classmethod
    def of(cls, context: RequestContext, request: FetchRequest) -> "ReadOrder":
        """The order in a request."""
        replica_id = (
            request.replica_id if context.version < 15 else request.replica_state.replica_id
        )
        most = min(request.max_bytes, context.node.config.fetch_max_bytes)
        return cls(
            context.version,
            IsolationLevel(1 if request.isolation_level == 1 else 0),
            replica_id >= 0,
            min(request.min_bytes, most),
            most,
        )


@dataclass(slots=True)
class PartitionRead:
    """One partition of a fetch.

    Attributes:
        topic: Its topic's name; None where only an id was given that nobody knows.
        topic_id: Its topic's id; all zero where the request names topics.
        asked: What the client says of it.
        partition: None where it can't be had; `error_code` says why.
        answer: What the last read gave.
    """

    topic: str | None
    topic_id: UUID
    asked: FetchPartition
    partition: Partition | None
    error_code: int = 0
    answer: PartitionData | None = None
    size_bytes: int = 0

    @classmethod
    def of(
        cls, node: Node, asked: FetchPartition, topic: str | None, topic_id: UUID
    ) -> "PartitionRead":
        """What a request asks of one partition, found in the broker."""
        if topic is None:
            info = node.topics.find_by_id(topic_id)
            if info is None:
                return cls(None, topic_id, asked, None, UNKNOWN_TOPIC_ID)
            topic = info.name
        try:
            return cls(topic, topic_id, asked, node.partitions.get(topic, asked.partition))
        except StorageFailure:
            return cls(topic, topic_id, asked, None, STORAGE_ERROR)
        except TidelogError:
            return cls(topic, topic_id, asked, None, UNKNOWN_TOPIC)

    @property
    def must_answer(self) -> bool:
        """Whether there is something to say that can't wait: an error, or a log that parted."""
        answer = self.answer
        return answer is not None and (answer.error_code != 0 or answer.diverging_epoch.epoch >= 0)

    # -- waiting -----------------------------------------------------------------------------

    def watch(self, watcher: Callable[[], None]) -> None:
        """Be told of every change of what readers may see."""
        if self.partition is not None:
            self.partition.watch(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Be told no more."""
        if self.partition is not None:
            self.partition.unwatch(watcher)

    def available_bytes(self, order: ReadOrder) -> int:
        """About how many bytes a read would give now, more than enough for what must be told."""
        partition = self.partition
        if partition is None:
            return 0
        if partition.is_gone:
            return order.min_bytes
        end = _end_offset(partition, order)
        offset = self.asked.fetch_offset
        if end <= offset:
            return 0 if end == offset else order.min_bytes
        limits = Limits(end_offset=end, max_bytes=self.asked.partition_max_bytes, whole_first=False)
        found = find_range(partition.log.segments, offset, limits)
        return 0 if found is None else found.size_bytes


def read_all(order: ReadOrder, reads: Iterable[PartitionRead]) -> None:
    """Read partitions in order, as much as the limits leave for each."""
    left = order.max_bytes
    is_first = order.version >= _WHOLE_FIRST_SINCE
    for read in reads:
        _read(order, read, left, is_first=is_first)
        if read.size_bytes:
            is_first = False
        left = max(left - read.size_bytes, 0)


def _read(order: ReadOrder, read: PartitionRead, left: int, *, is_first: bool) -> None:
    read.size_bytes = 0
    partition = read.partition
    if partition is None or partition.is_gone:
        read.answer = _refusal(read, read.error_code or UNKNOWN_TOPIC)
        return
    most = min(read.asked.partition_max_bytes, left)
    try:
        code = _problem(read, partition)
        read.answer = (
            _refusal(read, code) if code else _records(order, read, most, is_first=is_first)
        )
    except (OSError, StorageFailure):
        code = STORAGE_ERROR if order.version >= _STORAGE_ERROR_SINCE else NOT_LEADER
        read.answer = _refusal(read, code)
    except CorruptData as error:
        read.answer = _refusal(read, error.code or UNKNOWN_SERVER_ERROR)


def _refusal(read: PartitionRead, code: int) -> PartitionData:
    return PartitionData(
        partition_index=read.asked.partition, error_code=code, high_watermark=-1, records=b""
    )


def _problem(read: PartitionRead, partition: Partition) -> int:
    """The error code of a read that can't be, 0 where it can."""
    asked, log = read.asked, partition.log
    if read.topic_id not in (NO_UUID, log.context.topic_id):
        return INCONSISTENT_TOPIC_ID
    if asked.current_leader_epoch != NO_EPOCH:
        if asked.current_leader_epoch < log.leader_epoch:
            return FENCED_LEADER_EPOCH
        if asked.current_leader_epoch > log.leader_epoch:
            return UNKNOWN_LEADER_EPOCH
    if asked.partition_max_bytes < 0:
        return UNKNOWN_SERVER_ERROR
    if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
        return OFFSET_OUT_OF_RANGE
    return 0


def _end_offset(partition: Partition, order: ReadOrder) -> int:
    return (
        partition.log.log_end_offset if order.is_follower else partition.end_offset(order.isolation)
    )


def _records(order: ReadOrder, read: PartitionRead, most: int, *, is_first: bool) -> PartitionData:
    partition, asked = read.partition, read.asked
    assert partition is not None
    answer = PartitionData(
        partition_index=asked.partition,
        error_code=0,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        records=b"",
    )
    if asked.last_fetched_epoch != NO_EPOCH:
        known, end = partition.log.leader_epochs.end_offset_for(
            asked.last_fetched_epoch, partition.log.log_end_offset
        )
        if known == NO_EPOCH:
            return _refusal(read, OFFSET_OUT_OF_RANGE)
        if known < asked.last_fetched_epoch or end < asked.fetch_offset:
            answer.diverging_epoch = DivergingEpoch(epoch=known, end_offset=end)
            return answer
    limits = Limits(
        end_offset=_end_offset(partition, order),
        max_bytes=most,
        whole_first=is_first,
        may_cut=order.version < _WHOLE_FIRST_SINCE,
    )
    is_committed = order.isolation is IsolationLevel.READ_COMMITTED
    if is_committed:
        answer.aborted_transactions = []
    if asked.fetch_offset >= limits.end_offset:
        return answer
    found = find_range(partition.log.segments, asked.fetch_offset, limits)
    if found is None or not found.size_bytes:
        return answer
    read.size_bytes = found.size_bytes
    answer.records = found.segment.view(found.start, found.end)
    if is_committed:
        answer.aborted_transactions = _aborted(partition, asked.fetch_offset, found)
    return answer


def _aborted(partition: Partition, offset: int, found: ByteRange) -> list[AbortedTransaction]:
    """The aborted transactions among the records, in the order of their markers."""
    aborted: list[AbortedTransaction] = []
    for segment in partition.log.segments:
        if segment.end_offset <= offset:
            continue
        entries, is_complete = segment.txn_index.collect(offset, found.next_offset)
        aborted += (
            AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
            for entry in entries
        )
        if is_complete:
            break
    return aborted
