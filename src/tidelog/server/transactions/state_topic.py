"""`__transaction_state`: its records, and the transactional ids in memory.

A transition takes effect once its record is durable, even if the client has disconnected. When the
log is loaded, only the last record of each key is used. Values are written in version 1, as Kafka
does with transaction version 2, and read in versions 0 and 1. A key of an unknown version is
skipped. A value that can't be decoded is an error, because its transaction may need completion.

`coordinator.state_topic` loads partitions, and reloads them after a failure. `metadata` plans
transitions.

Source: Kafka 4.3's TransactionStateManager, its loader and its records in that topic; KIP-915
(later fields are tagged).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.messages.state_records import (
    TRANSACTION_LOG_KEY,
    TRANSACTION_LOG_VALUE,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from tidelog.protocol.wire import Reader
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.record import read_pairs
from tidelog.server.coordinator.log_loader import FindKernels, load_log
from tidelog.server.coordinator.state_topic import KeyValue, PartitionedMap, StateTopic, TopicSpec
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.name_cache import is_short, remembers_short
from tidelog.server.runtime.reply import Reply
from tidelog.server.transactions.metadata import (
    LOGGER,
    Transaction,
    TransactionMetadata,
    TransactionState,
    may_follow,
)
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import TRANSACTIONS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidelog.record.columns.decode import LatestRecord


_KEY: Final = 0
_VALUE: Final = 1

_NO_KEY: Final = "a record without a key; every record of a transaction's state has a key"

# States that appear in a log. DEAD is a tombstone, and PREPARE_EPOCH_FENCE is never written.
_WRITTEN: Final = frozenset(TransactionState) - {
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
}


@remembers_short(is_short)
def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    return TRANSACTION_LOG_KEY.write(_KEY, TransactionLogKey(transactional_id=transactional_id))


def encode_value(metadata: TransactionMetadata) -> bytes:
    """Encode the value of a transactional id."""
    assert metadata.state in _WRITTEN
    is_empty = metadata.state is TransactionState.EMPTY
    assert not (is_empty and metadata.partitions)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if is_empty else _by_topic(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )
    return TRANSACTION_LOG_VALUE.write(_VALUE, value)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics = by_topic(partitions)
    return [PartitionsSchema(topic=name, partition_ids=topics[name]) for name in topics]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers by topic, both sorted."""
    numbers: dict[str, list[int]] = {}
    for each in sorted(partitions, key=lambda each: (each.topic, each.partition)):
        numbers.setdefault(each.topic, []).append(each.partition)
    return numbers


def decode_key(key: bytes | None) -> str | None:
    """Return the transactional id of a key; None if the key's version is unknown.

    Raises:
        CorruptMessage: The key is missing or invalid.
    """
    if key is None:
        raise CorruptMessage(_NO_KEY, at=0)
    if Reader(key).int16() != _KEY:
        return None
    return TRANSACTION_LOG_KEY.read(key)[1].transactional_id


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Decode the state of a transactional id.

    Raises:
        CorruptMessage: The value is invalid.
        UnsupportedVersion: The value has an unknown version.
    """
    written = TRANSACTION_LOG_VALUE.read(value)[1]
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=written.producer_id,
        previous_producer_id=written.previous_producer_id,
        next_producer_id=written.next_producer_id,
        producer_epoch=written.producer_epoch,
        timeout_ms=written.transaction_timeout_ms,
        state=_state_of(written.transaction_status),
        partitions=_partitions_of(written.transaction_partitions or ()),
        start_ms=written.transaction_start_timestamp_ms,
        update_ms=written.transaction_last_update_timestamp_ms,
        client_version=written.client_transaction_version,
    )


def _state_of(status: int) -> TransactionState:
    for state in _WRITTEN:
        if state == status:
            return state
    raise CorruptMessage(f"transaction in unknown state {status} (valid: 0 to 5)", at=0)


def _partitions_of(topics: Iterable[PartitionsSchema]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic, number) for topic in topics for number in topic.partition_ids
    )


class TransactionReplay:
    """Collects records in the order of the log, then decodes the transactional ids."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes] = {}

    def take(
        self, slices: Iterable[LogSlice], find_kernels: FindKernels = lambda: None
    ) -> Iterator[int]:
        """Read all batches of a log in pieces; yield each piece's size in bytes after the piece."""
        return load_log(slices, self, find_kernels)

    def add(self, batch: Batch) -> None:
        """Add a batch; raises CorruptData if its records can't be read."""
        if batch.is_control or not isinstance(batch, RecordBatch):
            return  # such batches are never written to this topic
        for _, key, value in read_pairs(bytes(batch.body()), batch.record_count):
            if key is None:
                raise CorruptMessage(_NO_KEY, at=0)
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def add_latest(self, latest: "Iterable[LatestRecord]") -> None:
        """Add the last record of each key in batches that are neither control nor transactional."""
        for key, value, _, _ in latest:
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def result(self) -> dict[str, TransactionMetadata]:
        """Return the state of each transactional id.

        Raises:
            CorruptMessage: A key is invalid, or a value is invalid or has an unknown version. If a
                value is invalid, the error's text has the transactional id.
        """
        loaded = {}
        for key, value in self._latest.items():
            transactional_id = decode_key(key)
            if transactional_id is not None:
                loaded[transactional_id] = _read(transactional_id, value)
        return loaded


def _read(transactional_id: str, value: bytes) -> TransactionMetadata:
    try:
        return decode_value(transactional_id, value)
    except (CorruptMessage, UnsupportedVersion) as error:
        reason = f"stored state of transactional id {transactional_id!r}: {error}"
        raise CorruptMessage(reason) from error


LoadedIds = Mapping[str, TransactionMetadata]


class TransactionStates:
    """Transactional ids by name. Used only in the event loop's thread.

    Attributes:
        topic: Topic in which the ids are stored.
    """

    def __init__(self, services: Services, on_prepared: Callable[[Transaction], None]) -> None:
        """Create an instance that has loaded nothing yet.

        Args:
            services: Services of the broker.
            on_prepared: Called for each loaded transaction that is decided and must be completed.
        """
        config = services.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        }
        spec = TopicSpec(
            TRANSACTIONS_TOPIC,
            LOGGER,
            partitions=config.transaction_state_log_num_partitions,
            settings=settings,
        )
        self.topic: StateTopic[LoadedIds] = StateTopic(services, self, spec)
        self._clock = services.env.clock
        self._partitions = services.partitions
        self._transactions: PartitionedMap[Transaction] = PartitionedMap(self.topic.number_of)
        self._on_prepared = on_prepared

    # -- queries -----------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | ErrorCode | None:
        """Return the transaction of an id, None for an unknown id, or an error code."""
        code = self.topic.error_for(transactional_id)
        return self._transactions.get(transactional_id) if code is ErrorCode.NONE else code

    def all(self) -> Iterator[Transaction]:
        """Iterate over all transactions that are loaded at the time of the call."""
        return iter(tuple(self._transactions.all.values()))

    # -- changes -----------------------------------------------------------------------------

    def create(self, transactional_id: str, producer_id: int, timeout_ms: int) -> Transaction:
        """Create the state of a new id. The first transition writes the state to the log."""
        assert self._transactions.get(transactional_id) is None
        transaction = Transaction(
            TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=producer_id,
                timeout_ms=timeout_ms,
                update_ms=self._clock.now_ms(),
            ),
            self._epoch_of(self.topic.number_of(transactional_id)),
        )
        self._transactions.put(transactional_id, transaction)
        return transaction

    def write(self, transaction: Transaction, step: TransactionMetadata) -> Reply[ErrorCode]:
        """Write a transition and then apply it. The reply has the error if the write failed."""
        assert transaction.pending is None
        assert may_follow(step.state, transaction.metadata.state)
        transaction.pending = step.state
        transactional_id = step.transactional_id
        number = self.topic.number_of(transactional_id)
        record = KeyValue(encode_key(transactional_id), encode_value(step))
        reply: Reply[ErrorCode] = Reply()

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if transaction.is_unloaded:
                code = ErrorCode.NOT_COORDINATOR
            elif code is ErrorCode.NONE:
                transaction.metadata = step
            reply.complete(code)
            transaction.wake_waiting()

        self.topic.append_now(number, [record]).then(written)
        return reply

    def remove_expired(self, transaction: Transaction) -> None:
        """Delete an id that has expired."""
        assert transaction.pending is None
        assert may_follow(TransactionState.DEAD, transaction.metadata.state)
        transaction.pending = TransactionState.DEAD
        transactional_id = transaction.metadata.transactional_id

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if code is ErrorCode.NONE and not transaction.is_unloaded:
                self._transactions.remove(transactional_id)
                transaction.is_unloaded = True
            transaction.wake_waiting()

        number = self.topic.number_of(transactional_id)
        self.topic.append_now(number, [KeyValue(encode_key(transactional_id), None)]).then(written)

    # -- loading and unloading ---------------------------------------------------------------

    def replay(self) -> TransactionReplay:
        """Create a reader for one partition of the topic."""
        return TransactionReplay()

    def install(self, number: int, loaded: LoadedIds) -> None:
        """Serve the ids of a loaded partition, under the partition's current leader epoch."""
        epoch = self._epoch_of(number)
        transactions = {name: Transaction(metadata, epoch) for name, metadata in loaded.items()}
        self._transactions.put_all(number, transactions)
        for each in transactions.values():
            # A failed write unloads the partition with all its transactions.
            if each.metadata.is_prepared and not each.is_unloaded:
                self._on_prepared(each)

    def unload(self, number: int | None) -> None:
        """Unload the ids of partition `number`, or all ids if `number` is None."""
        unloaded = self._transactions.take_out(number)
        for each in unloaded:
            each.is_unloaded = True
        for each in unloaded:
            each.wake_waiting()

    def _epoch_of(self, number: int) -> int:
        """Return a partition's leader epoch, which markers contain as the coordinator epoch."""
        return self._partitions.leader_epoch(TRANSACTIONS_TOPIC, number)
