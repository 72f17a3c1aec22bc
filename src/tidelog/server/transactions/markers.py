"""Completes decided transactions: writes their markers, then records the completion in the log.

A decided transaction is always completed: a marker that can't be written is retried, and the next
start of the broker resumes incomplete transactions. In two cases a partition needs no marker: its
topic is deleted, or a later epoch of the producer or coordinator has written to the partition, so
that the transaction is no longer open in this partition.

Source: Kafka 4.3's TransactionMarkerChannelManager, KafkaApis.handleWriteTxnMarkersRequest; KIP-98,
KIP-1228.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.server.partitions.partition import (
    ALL_REPLICAS,
    TransactionEnd,
    end_transaction,
)
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.errors import NOT_SERVED, code_of
from tidelog.server.runtime.loop import Timers
from tidelog.server.runtime.reply import Reply
from tidelog.server.transactions.metadata import LOGGER, Transaction, TransactionState
from tidelog.server.transactions.state_topic import TransactionStates
from tidelog.types import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidelog.server.groups.coordinator import GroupCoordinator


# Initial and maximum delay in ms before a marker that could not be written is retried.
RETRY_MS: Final = 100

RETRY_MS_MAX: Final = 10_000

_LATER_ONE: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)

_DONE: Final = _LATER_ONE | {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class TransactionCompleter:
    """Completes decided transactions. Used only in the event loop's thread.

    It writes a transaction's markers by `PartitionMarkers`, and retries each marker that could not
    be written. After all markers, it writes the completion to the coordinator's log.
    """

    def __init__(
        self, table: TransactionStates, markers: "PartitionMarkers", timers: Timers, clock: Clock
    ) -> None:
        self._table = table
        self._markers = markers
        self._timers = timers
        self._clock = clock
        self._running = set[asyncio.Task[None]]()

    def begin(self, transaction: Transaction) -> None:
        """Complete a transaction in the background.

        No other transition of the transactional id is possible before the completion.
        """
        metadata = transaction.metadata
        assert metadata.is_prepared
        assert transaction.pending is None
        transaction.pending = metadata.completed_state
        if not metadata.partitions:
            self._finish(transaction)
            return
        task = asyncio.get_running_loop().create_task(self._end(transaction))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Stop. The next start of the broker resumes the incomplete transactions."""
        for task in tuple(self._running):
            task.cancel()

    async def _end(self, transaction: Transaction) -> None:
        remaining = sorted(
            transaction.metadata.partitions, key=lambda each: (each.topic, each.partition)
        )
        delay_ms = RETRY_MS
        while not transaction.is_unloaded:
            codes = await self._write(transaction, remaining)
            remaining = [each for each in remaining if codes.get(each) not in _DONE]
            if not remaining:
                self._finish(transaction)
                return
            await self._timers.pause(delay_ms)
            delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    async def _write(
        self, transaction: Transaction, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        metadata = transaction.metadata
        try:
            end = TransactionEnd(
                metadata.producer_id,
                metadata.producer_epoch,
                transaction.coordinator_epoch,
                metadata.state is TransactionState.PREPARE_COMMIT,
                metadata.client_version,
            )
            codes = await self._markers.write(partitions, end)
        except Exception:  # noqa: BLE001 - retried: the decision is final
            LOGGER.exception("markers of %s can't be written", metadata.transactional_id)
            return {}
        for partition, code in codes.items():
            if code is not ErrorCode.NONE:
                name = metadata.transactional_id
                LOGGER.warning("%s: marker of %s: %s", partition, name, code.name)
        return codes

    def _finish(self, transaction: Transaction) -> None:
        """Write the completion after all markers; if the write fails, retry it later."""
        transaction.pending = None
        if transaction.is_unloaded:
            return
        step = transaction.metadata.completed(self._clock.now_ms())

        def written(code: ErrorCode) -> None:
            if code is ErrorCode.NONE or transaction.is_unloaded:
                return
            transaction.pending = step.state
            self._timers.after(RETRY_MS_MAX, lambda: self._finish(transaction))

        self._table.write(transaction, step).then(written)


# Result of the write of one marker: its error code, or a reply that completes with the code.
_Ended: TypeAlias = ErrorCode | Reply[ErrorCode]


class PartitionMarkers:
    """Writes markers to the broker's partitions and groups.

    Used only in the event loop's thread.
    """

    def __init__(self, services: Services, groups: "Callable[[], GroupCoordinator]") -> None:
        """Use the broker's partitions. `groups` returns the broker's group coordinator."""
        self._services = services
        self._groups = groups

    async def write(
        self, partitions: Sequence[TopicPartition], end: TransactionEnd
    ) -> Mapping[TopicPartition, ErrorCode]:
        """End a producer's transaction in partitions, and return when each marker is durable.

        In `__consumer_offsets` the group offsets of the transaction are also committed or dropped.
        A marker may be written twice. A second marker for the same transaction causes no error, and
        ends no other transaction.

        Args:
            partitions: Partitions of the transaction, each once.
            end: Producer, commit or abort, and coordinator epoch. A log that has seen a later
                coordinator epoch refuses the marker.

        Returns:
            A code for each partition. A partition is finished if its code is NONE,
            UNKNOWN_TOPIC_OR_PARTITION (the partition is deleted), INVALID_PRODUCER_EPOCH (a later
            epoch of the producer has written to the partition) or TRANSACTION_COORDINATOR_FENCED (a
            later epoch of the coordinator has written to the partition). For any other code, the
            coordinator writes the partition's marker again later.
        """
        opened = self._services.partitions
        await opened.ensure_open((each.topic, each.partition) for each in partitions)
        topics = list({each.topic for each in partitions})
        while opened.holds and opened.holds.stops_appends(topics):
            await opened.holds.wait(topics)
        # Write all markers before waiting for the first marker, so that they become durable
        # together.
        written = [(partition, self._end(partition, end)) for partition in partitions]
        return {
            partition: await ended if isinstance(ended, Reply) else ended
            for partition, ended in written
        }

    def _end(self, topic_partition: TopicPartition, end: TransactionEnd) -> _Ended:
        if topic_partition.topic == OFFSETS_TOPIC:
            return self._end_offsets(topic_partition, end)
        try:
            partition = self._services.partitions.get(
                topic_partition.topic, topic_partition.partition
            )
            result = end_transaction(partition, end)
        except TidelogError as error:
            return code_of(error)
        if not partition.must_wait(result, ALL_REPLICAS):
            return ErrorCode.NONE
        return partition.visible(result.last_offset + 1)

    def _end_offsets(self, topic_partition: TopicPartition, end: TransactionEnd) -> _Ended:
        info = self._services.topics.find(OFFSETS_TOPIC)
        if info is None or not 0 <= topic_partition.partition < info.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ended = self._groups().end_transaction(topic_partition.partition, end)
        return ended.map(_of_group)


def _of_group(code: ErrorCode) -> ErrorCode:
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in NOT_SERVED else code
