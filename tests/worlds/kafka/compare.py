"""Compares the batches that tidelog and Kafka read in the same bytes, field by field."""

from collections.abc import Sequence
from pathlib import Path

from tests.worlds.kafka.oracle import KafkaBatch, KafkaRecord

from tidelog.record.batch_walk import Batch, walk
from tidelog.record.record import ControlType, Record, read_control_type, read_end_marker
from tidelog.types import Buffer


def our_fields(batch: Batch) -> dict[str, object]:
    """Return the header's fields and facts about the batch, by the names in `KafkaBatch.fields`."""
    return {
        "magic": batch.magic,
        "size_bytes": batch.size_bytes,
        "is_valid": batch.is_valid(),
        "crc": batch.crc,
        "codec": batch.codec.config_name,
        "timestamp_type": batch.timestamp_type.config_name,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "next_offset": batch.next_offset,
        "max_timestamp": batch.max_timestamp,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        # For old messages, Kafka reports no record count. tidelog returns 1 for a message without a
        # wrapper.
        "record_count": batch.record_count if batch.magic == 2 else None,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
        "delete_horizon_ms": batch.delete_horizon_ms,
    }


def as_kafka_tells(record: Record, *, control: bool = False) -> KafkaRecord:
    """Return a record of tidelog in the oracle's form."""
    kind = read_control_type(record.key) if control else None
    marker = kind in (ControlType.ABORT, ControlType.COMMIT)
    return KafkaRecord(
        offset=record.offset,
        timestamp=record.timestamp,
        sequence=record.sequence,
        key=record.key,
        value=record.value,
        headers=tuple((header.key, header.value) for header in record.headers),
        control_type=None if kind is None else kind.name,
        coordinator_epoch=read_end_marker(record).coordinator_epoch if marker else None,
    )


def assert_reads_equal(data: Buffer, told: Sequence[KafkaBatch]) -> list[Record]:
    """Assert that we read the batches and records in `data` as Kafka does; return our records."""
    batches = list(walk(data))
    assert [our_fields(batch) for batch in batches] == [batch.fields for batch in told]
    assert [batch.error for batch in told] == [None] * len(told)
    found: list[Record] = []
    for batch, answer in zip(batches, told, strict=True):
        records = list(batch.records())
        ours = [as_kafka_tells(record, control=batch.is_control) for record in records]
        assert ours == answer.records
        found += records
    return found


def batches_in(directory: Path) -> list[bytes]:
    """Return every batch of a partition, in order, from all segments."""
    logs = sorted(directory.glob("*.log"))
    return [bytes(batch.view) for log in logs for batch in walk(log.read_bytes())]
