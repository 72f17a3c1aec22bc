"""What a partition asks of a producer's next batch: the epoch, the sequence, the marker.

Rules about one producer and one batch, without state: they raise, or say nothing. What is known of
producers is kept by `producers`.

Source: Kafka 4.x ProducerAppendInfo; KIP-98, KIP-890.
"""

from typing import Final

from tidelog.errors import InvalidProducerEpoch, OutOfOrderSequence, TransactionCoordinatorFenced
from tidelog.record.batch import CODEC_MASK, HEADER_SIZE, TIMESTAMP_TYPE_BIT, RecordBatch
from tidelog.record.record import (
    ControlType,
    EndMarker,
    read_control_type,
    read_end_marker,
    unpack_end_marker,
)
from tidelog.record.views import Batch
from tidelog.storage.producer_entry import ProducerEntry
from tidelog.types import INT32_MAX, NO_PRODUCER_EPOCH, NO_SEQUENCE

# From this version of transactions on, the coordinator raises the epoch with each marker.
EPOCH_BUMP_VERSION: Final = 2


def check_epoch(entry: ProducerEntry, batch: Batch) -> None:
    """No later instance has written; raises InvalidProducerEpoch."""
    if batch.producer_epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"producer {entry.producer_id} with epoch {batch.producer_epoch} was fenced by epoch "
            f"{entry.epoch}"
        )


def check_sequence(entry: ProducerEntry, batch: Batch) -> None:
    """A known producer goes on where it stopped, and starts a new epoch at 0.

    A producer that nobody knows (its records may have been deleted) may start anywhere.

    Raises:
        OutOfOrderSequence: It does not.
    """
    if entry.epoch == NO_PRODUCER_EPOCH:
        return
    last = entry.last_sequence if batch.producer_epoch == entry.epoch else NO_SEQUENCE
    wanted = 0 if last == INT32_MAX else last + 1
    if batch.base_sequence != wanted:
        raise OutOfOrderSequence(
            f"producer {entry.producer_id}, epoch {batch.producer_epoch} (the last was "
            f"{entry.epoch}): sequence {batch.base_sequence} where {wanted} is next"
        )


def check_marker(entry: ProducerEntry, batch: Batch, transaction_version: int) -> None:
    """A marker is of the producer's epoch and of no older coordinator; other records may be.

    Raises:
        InvalidProducerEpoch, TransactionCoordinatorFenced: It is not.
    """
    found = end_marker(batch)
    if found is None:
        return
    if transaction_version < EPOCH_BUMP_VERSION:
        check_epoch(entry, batch)
    else:
        _check_bumped_epoch(entry, batch)
    epoch = found[1].coordinator_epoch
    if epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"marker for producer {entry.producer_id} from coordinator epoch {epoch}, epoch "
            f"{entry.coordinator_epoch} has written since"
        )


def _check_bumped_epoch(entry: ProducerEntry, batch: Batch) -> None:
    """The epoch must be new, or the marker one sent again after its end. Source: KAFKA-19999."""
    is_again = batch.producer_epoch == entry.epoch and entry.txn_first_offset is None
    if batch.producer_epoch <= entry.epoch and not is_again:
        raise InvalidProducerEpoch(
            f"marker for producer {entry.producer_id} with epoch {batch.producer_epoch}, above "
            f"{entry.epoch} expected"
        )


def end_marker(batch: Batch) -> tuple[int, EndMarker] | None:
    """The time of a marker, in ms, and what it says; None for other control records."""
    if isinstance(batch, RecordBatch) and not batch.attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT):
        batch.ensure_valid()
        plain = unpack_end_marker(batch.view[HEADER_SIZE:]) if batch.record_count == 1 else None
        if plain is not None:
            return batch.base_timestamp, plain
    record = next(iter(batch.records()), None)
    if record is None:
        return None
    if read_control_type(record.key) not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return record.timestamp, read_end_marker(record)
