"""From create time to append time, exactly, out of the batches of LogAppendTime topics.

A broker that stamps a batch writes the append time into its header and leaves the producer's times
in the records. Clients hide them, but they come along; so what a broker has taken in the past can
be measured without waiting. Not for records that a conversion or a compaction wrote anew: where all
create times of a batch equal its stamp, they are taken for lost.

Batches are fetched as a follower does, without encryption and without a password.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from tidelog.cluster import codes
from tidelog.cluster.follow_leader import FetchLimits, Leader, Position
from tidelog.cluster.follow_transport import Connect, connect_socket
from tidelog.errors import ClusterFailure, UnknownTopic
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch import RecordBatch
from tidelog.record.offset_order import in_order
from tidelog.record.views import walk
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, TimestampType, TopicPartition

# A topic of more records is measured by its first so many within the period.
_RECORDS_MAX: Final = 1_000_000
_LIMITS: Final = FetchLimits(max_wait_ms=100, partition_max_bytes=4 * 1024 * 1024)


class StampedRecord(NamedTuple):
    """A record's two times in ms."""

    offset: int
    append_ms: int
    create_ms: int


class StampedLog(Protocol):
    """Reads both times of records that a broker stamped."""

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterable[StampedRecord]:
        """Those with both times, at offsets in [start, end)."""
        ...


class BrokerLog:
    """A `StampedLog` of a cluster. One owner. records* -> close."""

    def __init__(self, bootstrap: str, connect: Connect = connect_socket) -> None:
        """Nothing is connected before it is asked.

        Args:
            bootstrap: `host:port[,host:port]`, of which the first is asked.
            connect: How to connect.
        """
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._bootstrap = bootstrap
        self._leader = Leader(host.strip("[]"), int(port), connect)

    def records(self, partition: TopicPartition, start: int, end: int) -> Iterator[StampedRecord]:
        """Those with both times, at offsets in [start, end); at most a million.

        Raises:
            UnknownTopic: There is no such partition.
            ClusterFailure: The broker can't be reached, or refuses.
            CorruptData: What came is no sound batch.
        """
        node_id, position = self._place(partition, start)
        given = 0
        while position.offset < end and given < _RECORDS_MAX:
            data = self._fetch(node_id, position)
            next_offset = position.offset
            floor = 0 if position.offset == start else position.offset
            batches = ((batch.at, batch) for batch in walk(data.batches))
            for _, batch in in_order(batches, floor, INT64_MAX, f"{partition}"):
                next_offset = batch.next_offset
                if isinstance(batch, RecordBatch):
                    for record in _stamped(batch):
                        if position.offset <= record.offset < end:
                            given += 1
                            yield record
            if next_offset == position.offset:
                return
            position = _at(position, next_offset)

    def _place(self, partition: TopicPartition, start: int) -> tuple[int, Position]:
        topic = self._leader.refresh().get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            raise UnknownTopic(f"{self._bootstrap} has no partition {partition}")
        position = Position(
            name=partition,
            topic_id=topic.topic_id,
            offset=start,
            last_epoch=NO_LEADER_EPOCH,
            leader_epoch=NO_LEADER_EPOCH,
        )
        return topic.partitions[partition.partition].leader_id, position

    def _fetch(self, node_id: int, position: Position) -> PartitionData:
        self._leader.send_fetch(node_id, [position], _LIMITS)
        for _partition, data in self._leader.receive_fetch(node_id, [position]):
            if data.error_code:
                raise ClusterFailure(
                    self._bootstrap,
                    f"read batches of {position.name}",
                    codes.named(data.error_code),
                    error_code=data.error_code,
                )
            return data
        raise ClusterFailure(self._bootstrap, f"read batches of {position.name}", "no answer")

    def close(self) -> None:
        """Close the connections."""
        self._leader.close()


def _at(position: Position, offset: int) -> Position:
    return Position(
        name=position.name,
        topic_id=position.topic_id,
        offset=offset,
        last_epoch=position.last_epoch,
        leader_epoch=position.leader_epoch,
    )


def _stamped(batch: RecordBatch) -> Iterator[StampedRecord]:
    if batch.is_control or batch.timestamp_type is not TimestampType.LOG_APPEND_TIME:
        return
    batch.ensure_valid()
    for record in batch.records():
        if record.create_timestamp is not None and record.create_timestamp >= 0:
            yield StampedRecord(record.offset, record.timestamp, record.create_timestamp)
