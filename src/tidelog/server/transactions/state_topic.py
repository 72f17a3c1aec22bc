"""`__transaction_state`: its records, and the transactional ids in memory.

An id changes in one way: the record is written, and once it is durable the state changes, even if
the client has disconnected. The last record of a key counts. Values are written in version 1, as
Kafka does with transactions of version 2, and read in versions 0 and 1. A key of an unknown version
is skipped. A value that can't be read is an error, because its transaction may need completion.

`coordinator.state_topic` loads, fails and reloads partitions; `metadata` decides on steps.

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


# What a log may say: nobody is dead in it (that is a record without a value), or being fenced.
_WRITTEN: Final = frozenset(TransactionState) - {
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
}


@remembers_short(is_short)
def encode_key(transactional_id: str) -> bytes:
    """A record's key."""
    return TRANSACTION_LOG_KEY.write(_KEY, TransactionLogKey(transactional_id=transactional_id))


def encode_value(metadata: TransactionMetadata) -> bytes:
    """A record's value."""
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
    """Numbers of partitions by topic, both in order."""
    numbers: dict[str, list[int]] = {}
    for each in sorted(partitions, key=lambda each: (each.topic, each.partition)):
        numbers.setdefault(each.topic, []).append(each.partition)
    return numbers


def decode_key(key: bytes | None) -> str | None:
    """The transactional id that a record is about; None for a kind that nobody knows.

    Raises:
        CorruptMessage: It breaks a rule.
    """
    if key is None:
        raise CorruptMessage("a record of a transaction without a key", at=0)
    if Reader(key).int16() != _KEY:
        return None
    return TRANSACTION_LOG_KEY.read(key)[1].transactional_id


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """What a record says of a transactional id.

    Raises:
        CorruptMessage: It breaks a rule.
        UnsupportedVersion: A value of a version that nobody knows.
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
    raise CorruptMessage(f"a transaction in state {status}, 0 to 5 are written", at=0)


def _partitions_of(topics: Iterable[PartitionsSchema]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic, number) for topic in topics for number in topic.partition_ids
    )


class TransactionReplay:
    """Collects records in the order of the log; then says what transactional ids there are."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes] = {}

    def take(
        self, slices: Iterable[LogSlice], find_kernels: FindKernels = lambda: None
    ) -> Iterator[int]:
        """Take all batches of a log; as `load_log`."""
        return load_log(slices, self, find_kernels)

    def add(self, batch: Batch) -> None:
        """Take a batch; raises CorruptData where its records can't be read."""
        if batch.is_control or not isinstance(batch, RecordBatch):
            return  # nobody writes such ones there
        for _, key, value in read_pairs(bytes(batch.body()), batch.record_count):
            if key is None:
                raise CorruptMessage("a record of a transaction without a key", at=0)
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def add_latest(self, latest: "Iterable[LatestRecord]") -> None:
        """Take what some batches come to that are no markers."""
        for key, value, _, _ in latest:
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def result(self) -> dict[str, TransactionMetadata]:
        """What is known of each transactional id.

        Raises:
            CorruptMessage: A key or a value breaks a rule, or has a version that nobody knows;
                names the transactional id.
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
        reason = f"what is known of the transactional id {transactional_id!r}: {error}"
        raise CorruptMessage(reason) from error


LoadedIds = Mapping[str, TransactionMetadata]


class TransactionStates:
    """Transactional ids by name. Belongs to the loop's thread.

    Attributes:
        log: Where they are kept.
    """

    def __init__(self, services: Services, on_prepared: Callable[[Transaction], None]) -> None:
        """Nothing is read yet.

        Args:
            services: The broker's.
            on_prepared: Called with each one that was loaded whose end was decided, and is to be
                completed.
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
        self.log: StateTopic[LoadedIds] = StateTopic(services, self, spec)
        self._clock = services.env.clock
        self._partitions = services.partitions
        self._kept: PartitionedMap[Transaction] = PartitionedMap(self.log.number_of)
        self._known: Mapping[str, Transaction] = self._kept.all
        self._on_prepared = on_prepared

    # -- questions ---------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | ErrorCode | None:
        """What is known of an id, None for nothing; or why that can't be said now."""
        code = self.log.error_for(transactional_id)
        return self._known.get(transactional_id) if code is ErrorCode.NONE else code

    def all(self) -> Iterator[Transaction]:
        """All that are loaded, those that come or go meanwhile aside."""
        return iter(tuple(self._known.values()))

    # -- changes -----------------------------------------------------------------------------

    def create(self, transactional_id: str, producer_id: int, timeout_ms: int) -> Transaction:
        """A new id, which is in the log once its first step is."""
        assert transactional_id not in self._known
        made = Transaction(
            TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=producer_id,
                timeout_ms=timeout_ms,
                update_ms=self._clock.now_ms(),
            ),
            self._epoch_of(self.log.number_of(transactional_id)),
        )
        self._kept.put(transactional_id, made)
        return made

    def write(self, transaction: Transaction, step: TransactionMetadata) -> Reply[ErrorCode]:
        """Take a step: write it down, then let it hold; or why it was not taken."""
        assert transaction.pending is None
        assert may_follow(step.state, transaction.metadata.state)
        transaction.pending = step.state
        transactional_id = step.transactional_id
        number = self.log.number_of(transactional_id)
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

        self.log.append_now(number, [record]).then(written)
        return reply

    def remove_expired(self, transaction: Transaction) -> None:
        """Forget an id that nobody has used for long."""
        assert transaction.pending is None
        assert may_follow(TransactionState.DEAD, transaction.metadata.state)
        transaction.pending = TransactionState.DEAD
        transactional_id = transaction.metadata.transactional_id

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if code is ErrorCode.NONE and not transaction.is_unloaded:
                self._kept.remove(transactional_id)
                transaction.is_unloaded = True
            transaction.wake_waiting()

        number = self.log.number_of(transactional_id)
        self.log.append_now(number, [KeyValue(encode_key(transactional_id), None)]).then(written)

    # -- partitions come and go --------------------------------------------------------------

    def replay(self) -> TransactionReplay:
        """A reader for a partition of the topic."""
        return TransactionReplay()

    def install(self, number: int, loaded: LoadedIds) -> None:
        """Serve what a partition says from now on, under the leader epoch that it has."""
        epoch = self._epoch_of(number)
        transactions = {name: Transaction(metadata, epoch) for name, metadata in loaded.items()}
        self._kept.put_all(number, transactions)
        for each in transactions.values():
            # A write that fails loses the partition, and all of these, at once.
            if each.metadata.is_prepared and not each.is_unloaded:
                self._on_prepared(each)

    def unload(self, number: int | None) -> None:
        """Ids of a partition, or of all, can't be served any more."""
        unloaded = self._kept.take_out(number)
        for each in unloaded:
            each.is_unloaded = True
        for each in unloaded:
            each.wake_waiting()

    def _epoch_of(self, number: int) -> int:
        """The leader epoch of a partition, under which its markers are written."""
        return self._partitions.leader_epoch(TRANSACTIONS_TOPIC, number)
