"""What is known of one producer: a value that each of its batches and markers replaces.

Source: Kafka 4.x ProducerStateEntry, BatchMetadata.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from tidelog.record.record import EndMarker
from tidelog.record.views import Batch
from tidelog.storage.producer_snapshot import SnapshotEntry
from tidelog.types import (
    INT32_MAX,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)

# How many batches a producer may have in flight, so how many repetitions are known.
BATCHES_KEPT: Final = 5
NO_COORDINATOR_EPOCH: Final = -1


class ProducerBatch(NamedTuple):
    """One batch that a producer wrote; sequences and offsets are inclusive, timestamp in ms."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Duplicate(NamedTuple):
    """A batch that is in the log already: its offsets, inclusive, and its timestamp in ms."""

    first_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """What is known of one producer.

    Attributes:
        producer_id: Who it is.
        epoch: Its newest instance, -1 where it has not written yet.
        batches: Its last batches of that epoch, oldest first.
        coordinator_epoch: Epoch of the coordinator of its last marker, -1 for none.
        last_timestamp: Of its last batch or marker, in ms.
        txn_first_offset: Where its open transaction begins, None where none is open.
        arrival_ms: When its last batch or marker came, as far as that is known; -1 for not at all.
            No snapshot has it.
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
        """Sequence of its last record, -1 where it wrote none in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: Batch) -> Duplicate | None:
        """The batch in the log that `batch` repeats: same epoch, same sequences."""
        if batch.producer_epoch != self.epoch:
            return None
        sequences = (batch.base_sequence, batch.last_sequence)
        for known in self.batches:
            if (known.first_sequence, known.last_sequence) == sequences:
                return Duplicate(known.first_offset, known.last_offset, known.timestamp)
        return None

    def is_continued_by(self, other: "ProducerEntry") -> bool:
        """Whether `other` ends with the same batch of the same epoch, so may know earlier ones."""
        if other.epoch != self.epoch or not (self.batches and other.batches):
            return False
        return self.batches[-1][:-1] == other.batches[-1][:-1]  # all but the timestamp

    def with_batch(self, batch: Batch, arrival_ms: int = NO_TIMESTAMP) -> Self:
        """The entry after a batch of records."""
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
        # Each append makes one: `dataclasses.replace` would take as long as all of the above.
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
        """The entry after the marker that ends its transaction."""
        batches = self._batches_in(epoch)
        coordinator_epoch = marker.coordinator_epoch
        return type(self)(
            self.producer_id, epoch, batches, coordinator_epoch, timestamp, None, arrival_ms
        )

    def _batches_in(self, epoch: int) -> tuple[ProducerBatch, ...]:
        return self.batches if epoch == self.epoch else ()


def _sequence_before(sequence: int, count: int) -> int:
    """`count` sequences earlier; sequences wrap from 0 to the largest int32."""
    if sequence < count:
        return INT32_MAX - (count - sequence) + 1
    return sequence - count


def to_snapshot(entry: ProducerEntry) -> SnapshotEntry:
    """What a snapshot keeps of an entry: its last batch only."""
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
    """The entry that a snapshot kept."""
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
