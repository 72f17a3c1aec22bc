"""Producer states of a partition (last batches, epochs, open transactions) and their snapshot file.

An idempotent producer numbers its records. The log accepts a batch of a known producer only if the
batch continues the sequence of the producer's last batch, or starts a new epoch with the sequence
zero. The log detects duplicates of the producer's last five batches. The log fences older instances
of the producer, which have a smaller epoch. A transaction is open from its first record until its
marker; readers of committed records stop at the first open transaction (the last stable offset). A
log has no replicas that must copy a marker first, so a marker takes effect when it is written.

Does no I/O. `check` runs before the write. `check` may refuse the batch, but changes nothing.
`update` runs after the write, and `replay` runs when the log is opened. `update` and `replay`
refuse no batch, and raise only for an unreadable marker. Entries are immutable: each batch or
marker of a producer replaces the producer's entry.

Snapshot `OFFSET.snapshot`: producers as they were when the log ended at that offset. Header, 10
bytes, big-endian: int16 version 1, uint32 CRC-32C of everything from byte 6 on, int32 number of
entries. Entry, 46 bytes: int64 producer id, int16 epoch, int32 last sequence, int64 last offset,
int32 offset delta, int64 timestamp, int32 coordinator epoch, int64 first offset of the open
transaction. -1 means that a value is missing; for example, the last offset of a producer without a
batch is -1.

Source: Kafka 4.x ProducerStateManager, ProducerStateEntry, ProducerAppendInfo, BatchMetadata;
KIP-98, KIP-890; docs/format.md#producer-snapshot.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from struct import Struct
from typing import Final, NamedTuple, Self

from tidelog.amounts import plural
from tidelog.errors import (
    CorruptFile,
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
    UnsupportedCompression,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.coding import crc32c
from tidelog.record.header import CODEC_MASK, HEADER_SIZE, TIMESTAMP_TYPE_BIT
from tidelog.record.record import (
    ControlType,
    EndMarker,
    read_control_type,
    read_end_marker,
    unpack_end_marker,
)
from tidelog.storage.log.append_types import AppendOrigin
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import (
    INT32_MAX,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
)

VERSION: Final = 1
_HEADER: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
SNAPSHOT_HEADER_SIZE: Final = 10
ENTRY_SIZE: Final = 46
CRC_START_AT: Final = 6

assert _HEADER.size == SNAPSHOT_HEADER_SIZE
assert _ENTRY.size == ENTRY_SIZE

# Number of buckets with which Java's HashMap starts. A HashMap doubles its number of buckets when
# it has more entries than 3/4 of this number.
_FIRST_BUCKETS: Final = 16

# If less than 1/64 of the buckets are used, the indexes of the used buckets are sorted; if more are
# used, all buckets are visited in order.
_SPARSE: Final = 64


class SnapshotEntry(NamedTuple):
    """One producer as the file stores it; a missing value is -1.

    The module's docstring describes the fields.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """Encode the whole file, with the entries in the given order.

    May run in a worker thread, because no single step blocks the other threads for long.
    """
    out = bytearray(_HEADER.size)
    for entry in entries:
        out += _ENTRY.pack(*entry)
    count = (len(out) - SNAPSHOT_HEADER_SIZE) // ENTRY_SIZE
    _HEADER.pack_into(out, 0, VERSION, 0, count)
    with memoryview(out) as view:
        crc = crc32c(view[CRC_START_AT:])
    _HEADER.pack_into(out, 0, VERSION, crc, count)
    return bytes(out)


def decode_snapshot(data: Buffer) -> list[SnapshotEntry]:
    """Decode the entries of a file.

    Raises:
        CorruptFile: The file is too short, has an unknown version, or has a wrong checksum; or an
            entry is incomplete, repeated, or has a negative producer id.
    """
    view = memoryview(data)
    if len(view) < SNAPSHOT_HEADER_SIZE:
        raise CorruptFile(
            f"snapshot of {len(view)} bytes, at least {SNAPSHOT_HEADER_SIZE} expected", at=0
        )
    version, stored, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise CorruptFile(f"snapshot of version {version}, {VERSION} expected", at=0)
    if stored != (computed := crc32c(view[CRC_START_AT:])):
        raise CorruptFile(f"snapshot checksum {stored:08x}, its bytes give {computed:08x}", at=2)
    if count * ENTRY_SIZE != len(view) - SNAPSHOT_HEADER_SIZE:
        raise CorruptFile(
            f"snapshot of {plural(count, 'entry', 'entries')} has {plural(len(view), 'byte')}",
            at=CRC_START_AT,
        )
    entries = [SnapshotEntry(*row) for row in _ENTRY.iter_unpack(view[SNAPSHOT_HEADER_SIZE:])]
    producer_ids: set[int] = set()
    for slot, entry in enumerate(entries):
        if entry.producer_id < 0 or entry.producer_id in producer_ids:
            at = SNAPSHOT_HEADER_SIZE + slot * ENTRY_SIZE
            raise CorruptFile(f"producer id {entry.producer_id} is negative or repeated", at=at)
        producer_ids.add(entry.producer_id)
    return entries


def in_hash_order(producer_ids: Iterable[int], peak_count: int) -> list[int]:
    """Sort producer ids in the iteration order of a Java HashMap, which is Kafka's file order.

    Args:
        producer_ids: Ids in the order of their insertion, which is their order within a bucket.
        peak_count: Largest number of producers that the map ever had. This maximum determines the
            number of buckets, because a Java HashMap never shrinks.
    """
    buckets = _FIRST_BUCKETS
    while peak_count > buckets * 3 // 4:
        buckets *= 2

    def bucket(producer_id: int) -> int:
        folded = (producer_id ^ (producer_id >> 32)) & 0xFFFF_FFFF
        return (folded ^ (folded >> 16)) & (buckets - 1)

    # Put the ids into buckets one by one, because one sort of a million ids would block other
    # threads.
    by_bucket: dict[int, list[int]] = {}
    for producer_id in producer_ids:
        by_bucket.setdefault(bucket(producer_id), []).append(producer_id)
    is_sparse = len(by_bucket) < buckets // _SPARSE
    order = sorted(by_bucket) if is_sparse else range(buckets)
    return [producer_id for number in order for producer_id in by_bucket.get(number, ())]


# Number of batches that are kept for each producer to detect duplicates. Kafka's producer has at
# most this number of batches in flight.
BATCHES_KEPT: Final = 5

NO_COORDINATOR_EPOCH: Final = -1


class ProducerBatch(NamedTuple):
    """One batch of a producer; last sequence and offset are inclusive, the timestamp is in ms."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Duplicate(NamedTuple):
    """A batch that the log already has; offsets are inclusive, the timestamp is in ms."""

    first_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """State of one producer.

    Attributes:
        producer_id: Id of the producer.
        epoch: Epoch of the producer's newest instance, -1 if the producer has not written yet.
        batches: The producer's last batches of this epoch, oldest first.
        coordinator_epoch: Epoch of the coordinator of the producer's last marker, -1 without a
            marker.
        last_timestamp: Timestamp of the producer's last batch or marker, in ms.
        txn_first_offset: First offset of the producer's open transaction, None if none is open.
        arrival_ms: Arrival time of the producer's last batch or marker, -1 if unknown. Producer
            snapshots don't store arrival times.
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[ProducerBatch, ...] = ()
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    txn_first_offset: int | None = None
    arrival_ms: int = field(default=NO_TIMESTAMP, compare=False)

    @property
    def last_sequence(self) -> int:
        """Sequence of the producer's last record, -1 if it has no record of this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: Batch) -> Duplicate | None:
        """Return the stored batch with the epoch and sequences of `batch`, None if not found."""
        if batch.producer_epoch != self.epoch:
            return None
        sequences = (batch.base_sequence, batch.last_sequence)
        for stored in self.batches:
            if (stored.first_sequence, stored.last_sequence) == sequences:
                return Duplicate(stored.first_offset, stored.last_offset, stored.timestamp)
        return None

    def is_continued_by(self, other: "ProducerEntry") -> bool:
        """Return whether `other` has the same epoch and the same last batch as this entry.

        An `other` for which the result is True may have earlier batches that this entry lacks.
        """
        if other.epoch != self.epoch or not (self.batches and other.batches):
            return False
        return self.batches[-1][:-1] == other.batches[-1][:-1]  # without the timestamp

    def with_batch(self, batch: Batch, arrival_ms: int = NO_TIMESTAMP) -> Self:
        """Return the producer's new entry after a batch of records."""
        last_sequence, delta = batch.last_sequence, batch.last_offset - batch.base_offset
        written = ProducerBatch(
            _sequence_before(last_sequence, delta),
            last_sequence,
            batch.base_offset,
            batch.last_offset,
            batch.max_timestamp,
        )
        opens = self.txn_first_offset is None and batch.is_transactional
        epoch = batch.producer_epoch
        # Every append constructs an entry. Calling the constructor is faster than
        # `dataclasses.replace`, which takes as long as the rest of this method.
        return type(self)(
            self.producer_id,
            epoch,
            (*self._batches_in(epoch), written)[-BATCHES_KEPT:],
            self.coordinator_epoch,
            batch.max_timestamp,
            batch.base_offset if opens else self.txn_first_offset,
            arrival_ms,
        )

    def with_marker(
        self, epoch: int, marker: EndMarker, timestamp: int, arrival_ms: int = NO_TIMESTAMP
    ) -> Self:
        """Return the producer's new entry after the marker that ends its transaction."""
        batches = self._batches_in(epoch)
        coordinator_epoch = marker.coordinator_epoch
        return type(self)(
            self.producer_id, epoch, batches, coordinator_epoch, timestamp, None, arrival_ms
        )

    def _batches_in(self, epoch: int) -> tuple[ProducerBatch, ...]:
        return self.batches if epoch == self.epoch else ()


def _sequence_before(sequence: int, count: int) -> int:
    """Return the sequence that is `count` before `sequence`; the largest int32 precedes 0."""
    if sequence < count:
        return INT32_MAX - (count - sequence) + 1
    return sequence - count


def to_snapshot(entry: ProducerEntry) -> SnapshotEntry:
    """Return an entry as a snapshot stores it, with only the producer's last batch."""
    last = entry.batches[-1] if entry.batches else None
    return SnapshotEntry(
        producer_id=entry.producer_id,
        epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_offset=last.last_offset if last else NO_OFFSET,
        offset_delta=last.last_offset - last.first_offset if last else 0,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        txn_first_offset=NO_OFFSET if entry.txn_first_offset is None else entry.txn_first_offset,
    )


def from_snapshot(entry: SnapshotEntry) -> ProducerEntry:
    """Return the producer entry for an entry of a snapshot."""
    batches: tuple[ProducerBatch, ...] = ()
    if entry.last_offset >= 0:
        first_sequence = _sequence_before(entry.last_sequence, entry.offset_delta)
        first_offset = entry.last_offset - entry.offset_delta
        sequences, offsets = (
            (first_sequence, entry.last_sequence),
            (first_offset, entry.last_offset),
        )
        batches = (ProducerBatch(*sequences, *offsets, entry.timestamp),)
    return ProducerEntry(
        entry.producer_id,
        entry.epoch,
        batches,
        entry.coordinator_epoch,
        entry.timestamp,
        entry.txn_first_offset if entry.txn_first_offset >= 0 else None,
    )


# Since this transaction version, the coordinator increases the producer's epoch for each marker.
EPOCH_BUMP_VERSION: Final = 2


def check_epoch(entry: ProducerEntry, batch: Batch) -> None:
    """Check that no newer instance of the producer has written; raises InvalidProducerEpoch."""
    if batch.producer_epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"producer {entry.producer_id} with epoch {batch.producer_epoch} was fenced by epoch "
            f"{entry.epoch}"
        )


def check_sequence(entry: ProducerEntry, batch: Batch) -> None:
    """Check that a known producer continues its sequence or starts a new epoch at sequence 0.

    An unknown producer may start with any sequence, because its earlier records may have been
    deleted.

    Raises:
        OutOfOrderSequence: The batch neither continues the sequence nor starts a new epoch at
            sequence 0.
    """
    if entry.epoch == NO_PRODUCER_EPOCH:
        return
    last = entry.last_sequence if batch.producer_epoch == entry.epoch else NO_SEQUENCE
    expected = 0 if last == INT32_MAX else last + 1
    if batch.base_sequence != expected:
        raise OutOfOrderSequence(
            f"producer {entry.producer_id}, epoch {batch.producer_epoch} (the last was "
            f"{entry.epoch}): sequence {batch.base_sequence}, expected {expected}"
        )


def check_marker(entry: ProducerEntry, batch: Batch, transaction_version: int) -> None:
    """Check that neither the epoch nor the coordinator of a marker is outdated.

    The check accepts all control records that are not transaction markers.

    Raises:
        InvalidProducerEpoch: The marker's epoch is older than the producer's; or, from transaction
            version 2 on, both epochs are equal and the marker is not a retry.
        TransactionCoordinatorFenced: A coordinator with a later epoch has written a marker for the
            producer.
        CorruptData: The marker is unreadable.
    """
    end = end_marker(batch)
    if end is None:
        return
    if transaction_version < EPOCH_BUMP_VERSION:
        check_epoch(entry, batch)
    else:
        _check_bumped_epoch(entry, batch)
    epoch = end[1].coordinator_epoch
    if epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"marker for producer {entry.producer_id} from coordinator epoch {epoch}, but"
            f" a coordinator with the later epoch {entry.coordinator_epoch} has already written a"
            " marker"
        )


def _check_bumped_epoch(entry: ProducerEntry, batch: Batch) -> None:
    """Check that the marker's epoch is above the producer's, or that the marker is a retry.

    Source: KAFKA-19999.
    """
    is_again = batch.producer_epoch == entry.epoch and entry.txn_first_offset is None
    if batch.producer_epoch <= entry.epoch and not is_again:
        raise InvalidProducerEpoch(
            f"marker for producer {entry.producer_id} with epoch {batch.producer_epoch}, expected "
            f"more than {entry.epoch}"
        )


def end_marker(batch: Batch) -> tuple[int, EndMarker] | None:
    """Return the time in ms and the content of a transaction marker.

    Return None for other control records.

    Raises:
        CorruptData: The marker can't be read, e.g. because its codec is unknown.
    """
    if isinstance(batch, RecordBatch) and not batch.attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT):
        batch.ensure_valid()
        plain = unpack_end_marker(batch.view[HEADER_SIZE:]) if batch.record_count == 1 else None
        if plain is not None:
            return batch.base_timestamp, plain
    try:
        record = next(iter(batch.records()), None)
    except UnsupportedCompression as error:
        raise CorruptRecord(f"a transaction marker that can't be read: {error}") from error
    if record is None:
        return None
    if read_control_type(record.key) not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return record.timestamp, read_end_marker(record)


def is_abort_marker(batch: Batch) -> bool:
    """Return whether a batch is the marker of an abort; raises CorruptData like `end_marker`."""
    end = end_marker(batch) if batch.is_control and batch.has_producer_id else None
    return end is not None and not end[1].is_commit


# Kafka's default of `producer.id.expiration.ms`, the idle time after which a producer is dropped.
PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000


class CompletedTxn(NamedTuple):
    """A transaction whose marker was written at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerStates:
    """All producers of a partition and its open transactions. Not thread-safe."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.replace(entries)

    def replace(self, entries: Iterable[ProducerEntry]) -> None:
        """Replace all producers and their open transactions, after a truncation."""
        self._producers = {entry.producer_id: entry for entry in entries}
        self._peak_count = len(self._producers)
        open_txns = (
            (entry.txn_first_offset, entry.producer_id)
            for entry in self._producers.values()
            if entry.txn_first_offset is not None
        )
        self._open = dict(sorted(open_txns))  # producer id by first offset, in order of offsets

    def hide_from(self, offset: int) -> None:
        """Treat the offsets from `offset` on as unstable until `replace` is called.

        A truncation calls this method first. The truncation may remove an aborted transaction's
        marker and index entry before it replaces the producers. In between, readers of committed
        records must not see the transaction's records.
        """
        self._open = {offset: NO_PRODUCER_ID}

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """All producers by id, as a copy."""
        return dict(self._producers)

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Copy of the open transactions: producer id by first offset, in the order of offsets."""
        return dict(self._open)

    def find(self, producer_id: int) -> ProducerEntry | None:
        """Return one producer, None if it is unknown."""
        return self._producers.get(producer_id)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer's instance with this epoch has an open transaction."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.txn_first_offset is not None and entry.epoch == epoch

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest open transaction, None if none is open."""
        return next(iter(self._open), None)

    def last_stable_offset(self, log_end: int) -> int:
        """Return the offset below which no transaction is open, the log end if none is open."""
        return next(iter(self._open), log_end)

    def check(
        self, batch: Batch, *, origin: AppendOrigin, transaction_version: int = 0
    ) -> Duplicate | None:
        """Check whether the log may take a batch with a producer id; change nothing.

        Args:
            batch: The batch with its final offsets.
            origin: Origin of the append. Sequences and duplicates are checked only for the origin
                CLIENT. Batches of the origin REPLICATION are never refused, because the leader has
                already checked them.
            transaction_version: Transaction version of the request to write a marker. From version
                2 on, the marker's epoch must be above the producer's epoch, unless the marker is a
                retry.

        Returns:
            None if `batch` is new. If the log already has the batch, the stored batch; then the
            caller must not write `batch`.

        Raises:
            InvalidProducerEpoch: A newer instance of the producer has written; or, with
                `transaction_version` 2 or more, the batch is a marker that has the producer's epoch
                and is not a retry.
            OutOfOrderSequence: The batch does not continue the sequence of the producer's last
                batch.
            InvalidTxnState: The batch is not transactional, but the producer has an open
                transaction.
            TransactionCoordinatorFenced: The marker is from an older coordinator.
            CorruptData: The batch is an unreadable marker.
        """
        entry = self._entry(batch)
        if origin is AppendOrigin.REPLICATION:
            return None
        if batch.is_control:
            check_marker(entry, batch, transaction_version)
            return None
        if origin is AppendOrigin.CLIENT:
            duplicate = entry.find_duplicate(batch)
            if duplicate is not None:
                return duplicate
        check_epoch(entry, batch)
        if origin is AppendOrigin.CLIENT:
            check_sequence(entry, batch)
        if entry.txn_first_offset is not None and not batch.is_transactional:
            raise InvalidTxnState(
                f"producer {entry.producer_id} has a transaction open since offset "
                f"{entry.txn_first_offset}, but its batch at {batch.base_offset} is outside it"
            )
        return None

    def __len__(self) -> int:
        """Return the number of known producers."""
        return len(self._producers)

    @property
    def open_count(self) -> int:
        """Number of open transactions."""
        return len(self._open)

    def update(self, batch: Batch, arrival_ms: int = NO_TIMESTAMP) -> CompletedTxn | None:
        """Update the states for a written batch; return the transaction that the batch ended.

        Return None if the batch ended no transaction. Two kinds of control batches change nothing:
        an empty batch, whose transaction was removed by a compaction, and a batch whose record is
        not a transaction marker.

        Args:
            batch: The batch as it was written.
            arrival_ms: Arrival time by the wall clock; -1 if unknown.

        Raises:
            CorruptData: The batch is an unreadable marker; nothing was changed.
        """
        entry = self._entry(batch)
        if not batch.is_control:
            self._put(entry.with_batch(batch, arrival_ms))
            if entry.txn_first_offset is None and batch.is_transactional:
                self._open[batch.base_offset] = entry.producer_id
            return None
        end = end_marker(batch)
        if end is None:
            return None
        timestamp, marker = end
        self._put(entry.with_marker(batch.producer_epoch, marker, timestamp, arrival_ms))
        if entry.txn_first_offset is None:
            return None
        self._open.pop(entry.txn_first_offset, None)
        aborted = not marker.is_commit
        return CompletedTxn(entry.producer_id, entry.txn_first_offset, batch.base_offset, aborted)

    def replay(self, batch: Batch) -> CompletedTxn | None:
        """Run `update` for a batch that was read from the log."""
        return self.update(batch)

    def aborted_entry(self, completed: CompletedTxn) -> AbortedTxn:
        """Return the `.txnindex` entry of a transaction that was just aborted."""
        others = (first for first, owner in self._open.items() if owner != completed.producer_id)
        last_stable = next(others, completed.last_offset + 1)
        return AbortedTxn(
            completed.producer_id, completed.first_offset, completed.last_offset, last_stable
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers that wrote nothing for `expiration_ms`; return how many were dropped.

        Producers with an open transaction are kept. A producer that writes old timestamps is not
        idle, because the later of timestamp and arrival time counts. Apache Kafka uses only the
        timestamp: at each check, Kafka drops a producer that writes old timestamps, and then
        accepts the producer's duplicates.

        Source: Kafka's setting `producer.id.expiration.ms`.
        """
        silent = self._silent(now_ms - expiration_ms)
        for entry in silent:
            del self._producers[entry.producer_id]
        return len(silent)

    def set_arrival_times(self, since_ms: int, appended_by_ms: Callable[[int], int | None]) -> None:
        """Set the arrival times of producers whose last timestamp is `since_ms` or earlier.

        Args:
            since_ms: Time in ms. Producers with a later timestamp or an open transaction need no
                arrival time.
            appended_by_ms: Returns an upper bound of the append time at an offset, in ms; None if
                there is no bound.
        """
        for entry in self._silent(since_ms):
            arrival_ms = appended_by_ms(entry.batches[-1].last_offset) if entry.batches else None
            if arrival_ms is not None:
                self._producers[entry.producer_id] = replace(entry, arrival_ms=arrival_ms)

    def _silent(self, since_ms: int) -> list[ProducerEntry]:
        return [
            entry
            for entry in self._producers.values()
            if entry.txn_first_offset is None
            and max(entry.last_timestamp, entry.arrival_ms) <= since_ms
        ]

    def end_silent(self, offset: int) -> list[int]:
        """End the open transactions whose records are all below `offset`.

        Returns:
            Ids of the producers whose transactions were ended.
        """
        ended = []
        for first, producer_id in self.open_transactions.items():
            entry = self._producers[producer_id]
            last = entry.batches[-1].last_offset if entry.batches else first
            if max(first, last) < offset:
                self._end(first)
                ended.append(producer_id)
        return ended

    def end_of(self, next_firsts: Mapping[int, int], log_end: int) -> list[int]:
        """End open transactions of producers that have begun a later transaction.

        Args:
            next_firsts: First offset of the next transaction, by producer id.
            log_end: Log end. A next transaction that begins below the log end becomes its
                producer's open transaction.

        Returns:
            Ids of the producers of the ended transactions.
        """
        ended = [(first, each) for first, each in self._open.items() if each in next_firsts]
        for first, producer_id in ended:
            self._end(first)
            if next_firsts[producer_id] < log_end:
                self._begin(next_firsts[producer_id], producer_id)
        return [producer_id for _, producer_id in ended]

    def reopen(self, completed: CompletedTxn) -> None:
        """Treat an ended transaction as open again, because its marker is possibly not durable."""
        self._begin(completed.first_offset, completed.producer_id)

    def _begin(self, first: int, producer_id: int) -> None:
        entry = self._producers[producer_id]
        self._producers[producer_id] = replace(entry, txn_first_offset=first)
        self._open = dict(sorted({**self._open, first: producer_id}.items()))

    def take_ends(self, snapshot: "ProducerStates") -> None:
        """End each open transaction, unless a snapshot has it open with the same first offset.

        If an ended transaction's producer has a later open transaction in the snapshot, that later
        transaction is open after the call.
        """
        later = {each: first for first, each in snapshot.open_transactions.items()}
        for first, producer_id in self.open_transactions.items():
            if later.get(producer_id) != first:
                self._end(first)
                if producer_id in later:
                    self._begin(later[producer_id], producer_id)

    def _end(self, first: int) -> None:
        producer_id = self._open.pop(first)
        self._producers[producer_id] = replace(self._producers[producer_id], txn_first_offset=None)

    def ending_from(self, offset: int) -> list[ProducerEntry]:
        """Return producers whose last batch ends at or after `offset`."""
        return [
            entry
            for entry in self._producers.values()
            if entry.batches and entry.batches[-1].last_offset >= offset
        ]

    def recall(self, recalled: ProducerEntry) -> None:
        """Copy a producer's earlier batches from `recalled`.

        Do nothing if `recalled` does not end with the producer's last known batch.
        """
        entry = self._producers[recalled.producer_id]
        if entry.is_continued_by(recalled):
            self._producers[entry.producer_id] = replace(entry, batches=recalled.batches)

    def encode_snapshot(self) -> bytes:
        """Encode `OFFSET.snapshot`, with producers in the order in which Kafka would write them.

        Only the last batch of each producer is stored.
        """
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """Copy the current state of all producers; this is quick even for a million producers.

        Returns:
            A function for any thread. The function returns what `encode_snapshot` would return for
            the copied state.
        """
        producers, peak_count = self._producers.copy(), self._peak_count

        def encode() -> bytes:
            producer_ids = in_hash_order(producers, peak_count)
            return encode_snapshot(to_snapshot(producers[each]) for each in producer_ids)

        return encode

    @classmethod
    def decode_snapshot(cls, data: Buffer) -> Self:
        """Decode the producers in a snapshot, including idle producers, which `expire` drops.

        Raises:
            CorruptFile: The bytes are invalid; the caller can use an older snapshot, or none.
        """
        return cls(map(from_snapshot, decode_snapshot(data)))

    def _entry(self, batch: Batch) -> ProducerEntry:
        producer_id = batch.producer_id
        assert producer_id >= 0
        return self._producers.get(producer_id) or ProducerEntry(producer_id)

    def _put(self, entry: ProducerEntry) -> None:
        self._producers[entry.producer_id] = entry
        self._peak_count = max(self._peak_count, len(self._producers))
