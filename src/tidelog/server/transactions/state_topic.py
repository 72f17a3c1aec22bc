"""`__transaction_state`: ids in memory, records, load, write-then-apply.

The partitions of `__transaction_state`: what is read of them, and written.

How a partition is loaded, lost and loaded again is `internal_topic`'s.

Source: Kafka 4.3's TransactionStateManager.

What the coordinator leaves in `__transaction_state`: the last record of a key is what is so.

Values are written in version 1, as Kafka does where transactions of version 2 are finalized; both
versions are read. A key of another version is of a kind that nobody knows, and stepped over. A
value that can't be read is an error: what it says may have to be completed.

Source: Kafka 4.3's own records in that topic; KIP-915 (later fields are tagged).

What one partition of `__transaction_state` says, read from its first record to its last.

Only the last record of a key counts, so the others are not decoded.

Source: Kafka 4.3's loader of that topic.

All transactional ids in memory, and the one way in which they change: a record, then the state.

Belongs to the loop's thread. A step is applied when its record is safe, whoever asked for it may
have gone by then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.messages.group_records import TRANSACTION_LOG_KEY, TRANSACTION_LOG_VALUE
from tidelog.protocol.messages.state_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from tidelog.protocol.wire import Reader
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.builder import build_batch
from tidelog.record.record import read_pairs
from tidelog.server.coordinator.host import Host
from tidelog.server.coordinator.log_loader import FindKernels, KernelsOf, take_log
from tidelog.server.coordinator.state_topic import ByPartition, InternalTopic
from tidelog.server.runtime.name_cache import is_short, remembers_short
from tidelog.server.runtime.reply import Reply
from tidelog.server.transactions.metadata import (
    LOGGER,
    Transaction,
    TransactionHost,
    TransactionMetadata,
    TransactionState,
    may_follow,
)
from tidelog.storage.log.log import Log
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import TRANSACTIONS_TOPIC, NewRecord, TopicPartition

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


def encode_value(known: TransactionMetadata) -> bytes:
    """A record's value."""
    assert known.state in _WRITTEN
    is_empty = known.state is TransactionState.EMPTY
    assert not (is_empty and known.partitions)
    value = TransactionLogValue(
        producer_id=known.producer_id,
        previous_producer_id=known.previous_producer_id,
        next_producer_id=known.next_producer_id,
        producer_epoch=known.producer_epoch,
        transaction_timeout_ms=known.timeout_ms,
        transaction_status=known.state,
        transaction_partitions=None if is_empty else _by_topic(known.partitions),
        transaction_last_update_timestamp_ms=known.update_ms,
        transaction_start_timestamp_ms=known.start_ms,
        client_transaction_version=known.client_version,
    )
    return TRANSACTION_LOG_VALUE.write(_VALUE, value)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics = by_topic(partitions)
    return [PartitionsSchema(topic=name, partition_ids=topics[name]) for name in topics]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Numbers of partitions by topic, both in order."""
    found: dict[str, list[int]] = {}
    for each in sorted(partitions, key=lambda each: (each.topic, each.partition)):
        found.setdefault(each.topic, []).append(each.partition)
    return found


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
    found = TRANSACTION_LOG_VALUE.read(value)[1]
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=found.producer_id,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=_state_of(found.transaction_status),
        partitions=_partitions_of(found.transaction_partitions or ()),
        start_ms=found.transaction_start_timestamp_ms,
        update_ms=found.transaction_last_update_timestamp_ms,
        client_version=found.client_transaction_version,
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
        """Take all batches of a log; as `take_log`."""
        return take_log(slices, self, find_kernels)

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

    def add_latest(self, found: "Iterable[LatestRecord]") -> None:
        """Take what some batches come to that are no markers."""
        for key, value, _, _ in found:
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def found(self) -> dict[str, TransactionMetadata]:
        """What is known of each transactional id.

        Raises:
            CorruptMessage: A key or a value breaks a rule, or has a version that nobody knows;
                names the transactional id.
        """
        found = {}
        for key, value in self._latest.items():
            transactional_id = decode_key(key)
            if transactional_id is not None:
                found[transactional_id] = _read(transactional_id, value)
        return found


def _read(transactional_id: str, value: bytes) -> TransactionMetadata:
    try:
        return decode_value(transactional_id, value)
    except (CorruptMessage, UnsupportedVersion) as error:
        reason = f"what is known of the transactional id {transactional_id!r}: {error}"
        raise CorruptMessage(reason) from error


# A key, and its value or, to forget what the key names, None.
KeyValue = tuple[bytes, bytes | None]


LoadedIds = Mapping[str, TransactionMetadata]


class TransactionLog:
    """All partitions of the topic. Belongs to the loop's thread."""

    def __init__(
        self,
        host: Host,
        on_loaded: Callable[[int, LoadedIds, int], None],
        on_lost: Callable[[int | None], None],
    ) -> None:
        """Nothing is read yet.

        Args:
            host: The broker.
            on_loaded: Called with a partition's number, what it says, and the leader epoch that it
                is loaded under.
            on_lost: Called with the number of a partition that can't be served any more, None for
                all.
        """
        self._host = host
        config = host.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        }
        self._topic: InternalTopic[LoadedIds] = InternalTopic(
            host,
            TRANSACTIONS_TOPIC,
            LOGGER,
            partitions=config.transaction_state_log_num_partitions,
            settings=settings,
        )
        self._topic.read, self._topic.take = self._read, self._take
        self._topic.on_lost = on_lost
        self._on_loaded = on_loaded

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        self._topic.resume()

    # -- questions ---------------------------------------------------------------------------

    def number_of(self, transactional_id: str) -> int:
        """An id's partition; there must be some."""
        return self._topic.number_of(transactional_id)

    def code_for(self, transactional_id: str) -> ErrorCode:
        """Why an id can't be served now, `NONE` where it can."""
        return self._topic.code_for(transactional_id)

    @property
    def has_topic(self) -> bool:
        """Whether the topic is there."""
        return self._topic.is_there

    @property
    def is_loading(self) -> bool:
        """Whether some partition waits to be loaded."""
        return self._topic.is_loading

    async def loaded(self, transactional_id: str | None, *, wait_s: float) -> None:
        """Return when an id (all where None) is loaded, well or not, or after some seconds."""
        await self._topic.loaded(transactional_id, wait_s=wait_s)

    def epoch_of(self, number: int) -> int:
        """The leader epoch of a partition, under which its markers are written."""
        return self._host.partitions.leader_epoch(TRANSACTIONS_TOPIC, number)

    # -- the topic ---------------------------------------------------------------------------

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        return await self._topic.ensure()

    def forget_topic(self) -> None:
        """The topic was deleted: there are no transactional ids any more."""
        self._topic.forget()

    def try_again(self) -> None:
        """Read what was lost where its log works again, whether somebody asks for it or not."""
        self._topic.try_again()

    # -- writing and reading -----------------------------------------------------------------

    def append(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records in one batch; when they are safe, or why they were not written."""
        now_ms = self._host.env.clock.now_ms()
        made = build_batch(
            [NewRecord(key=key, value=value, timestamp=now_ms) for key, value in records]
        )
        return self._topic.append(number, made)

    async def _read(self, log: Log) -> LoadedIds:
        """What a partition's records say."""
        if log.log_end_offset <= log.log_start_offset:
            return {}
        replay, work = TransactionReplay(), self._host.work
        pieces = replay.take(log.slices(), KernelsOf(self._host))
        while await work.run(next, pieces, None) is not None:
            pass
        return await work.run(replay.found)

    def _take(self, number: int, found: LoadedIds) -> None:
        self._on_loaded(number, found, self.epoch_of(number))


class TransactionTable:
    """Transactional ids by name.

    Attributes:
        log: Where they are kept.
        on_prepared: Called with each one whose end was decided, and is to be completed.
    """

    def __init__(self, host: TransactionHost) -> None:
        self.log = TransactionLog(host, self._take_loaded, self._let_go)
        self._clock = host.env.clock
        self._kept: ByPartition[Transaction] = ByPartition(self.log.number_of)
        self._known: Mapping[str, Transaction] = self._kept.all
        self.on_prepared: Callable[[Transaction], None] = lambda _transaction: None

    # -- questions ---------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | ErrorCode | None:
        """What is known of an id, None for nothing; or why that can't be said now."""
        code = self.log.code_for(transactional_id)
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
            self.log.epoch_of(self.log.number_of(transactional_id)),
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
        record = encode_key(transactional_id), encode_value(step)
        said: Reply[ErrorCode] = Reply()

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if transaction.is_gone:
                code = ErrorCode.NOT_COORDINATOR
            elif code is ErrorCode.NONE:
                transaction.metadata = step
            said.complete(code)
            transaction.settle()

        self.log.append(number, [record]).then(written)
        return said

    def bury(self, transaction: Transaction) -> None:
        """Forget an id that nobody has used for long."""
        assert transaction.pending is None
        assert may_follow(TransactionState.DEAD, transaction.metadata.state)
        transaction.pending = TransactionState.DEAD
        transactional_id = transaction.metadata.transactional_id

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if code is ErrorCode.NONE and not transaction.is_gone:
                self._kept.remove(transactional_id)
                transaction.is_gone = True
            transaction.settle()

        number = self.log.number_of(transactional_id)
        self.log.append(number, [(encode_key(transactional_id), None)]).then(written)

    # -- partitions come and go --------------------------------------------------------------

    def _take_loaded(
        self, number: int, found: Mapping[str, TransactionMetadata], epoch: int
    ) -> None:
        loaded = {name: Transaction(metadata, epoch) for name, metadata in found.items()}
        self._kept.put_all(number, loaded)
        for each in loaded.values():
            # A write that fails loses the partition, and all of these, at once.
            if each.metadata.is_prepared and not each.is_gone:
                self.on_prepared(each)

    def _let_go(self, number: int | None) -> None:
        gone = self._kept.take_out(number)
        for each in gone:
            each.is_gone = True
        for each in gone:
            each.settle()
