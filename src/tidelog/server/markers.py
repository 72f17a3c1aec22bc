"""Markers: the end of transactions, written into the logs of the partitions in them.

Source: Kafka 4.3's KafkaApis.handleWriteTxnMarkersRequest; KIP-98, KIP-1228.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.server.arrivals import arrival
from tidelog.server.groups.reply import Reply
from tidelog.server.open_transactions import TransactionEnd
from tidelog.server.partitions import ALL_REPLICAS
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.server.transactional_writes import end_transaction
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import asyncio

    from tidelog.server.groups.coordinator import GroupCoordinator
    from tidelog.server.partitions import Partitions
    from tidelog.server.topics import Topics
    from tidelog.server.work import Work

# Of a partition of groups that is not served now: who asks comes again.
_NOT_SERVED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


# Known, or known once the marker is safe: of a partition, or of one of groups.
_Ended: TypeAlias = "ErrorCode | asyncio.Future[int] | Reply[ErrorCode]"


class Host(Protocol):
    """A broker, as far as markers go; a `Node` is one."""

    @property
    def partitions(self) -> "Partitions":
        """Open logs."""
        ...

    @property
    def topics(self) -> "Topics":
        """Topics by name."""
        ...

    @property
    def groups(self) -> "GroupCoordinator":
        """Consumer groups."""
        ...

    @property
    def work(self) -> "Work":
        """Threads for what blocks."""
        ...


class PartitionMarkers:
    """Writes markers. Belongs to the loop's thread."""

    def __init__(self, node: Host) -> None:
        self._node = node

    async def write(
        self,
        partitions: Sequence[TopicPartition],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """End a producer's transaction in these partitions; see `seam.Markers`."""
        end = TransactionEnd(
            producer_id, producer_epoch, coordinator_epoch, commit, transaction_version
        )
        opened = self._node.partitions
        missing = opened.unopened((each.topic, each.partition) for each in partitions)
        if missing:
            await opened.open_beside(missing, self._node.work)
        topics = list({each.topic for each in partitions})
        while opened.holds and opened.holds.stops_appends(topics):
            await opened.holds.wait(topics)
        # All are written before any is waited for: they become safe together.
        written = [(place, self._end(place, end)) for place in partitions]
        return {place: await _told(ended) for place, ended in written}

    def _end(self, place: TopicPartition, end: TransactionEnd) -> _Ended:
        if place.topic == OFFSETS_TOPIC:
            return self._end_offsets(place, end)
        try:
            partition = self._node.partitions.get(place.topic, place.partition)
            result = end_transaction(partition, end)
        except TidelogError as error:
            return ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else ErrorCode(error.code)
        if not partition.must_wait(result, ALL_REPLICAS):
            return ErrorCode.NONE
        return partition.when_shown(result.last_offset + 1)

    def _end_offsets(self, place: TopicPartition, end: TransactionEnd) -> _Ended:
        info = self._node.topics.find(OFFSETS_TOPIC)
        if info is None or not 0 <= place.partition < info.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._node.groups.shards.end_transaction(place.partition, end)


def _of_group(code: ErrorCode) -> ErrorCode:
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_SERVED else code


async def _told(ended: _Ended) -> ErrorCode:
    """The code, once the marker is safe."""
    if isinstance(ended, ErrorCode):
        return ended
    return _of_group(await arrival(ended)) if isinstance(ended, Reply) else ErrorCode(await ended)
