"""The kernels of `compaction.generations.sampling` in plain Python."""

from collections.abc import Iterator

from tidelog.env import File
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.coding import read_varint
from tidelog.record.header import DELETE_HORIZON_BIT
from tidelog.record.key_hash import halves, siphash
from tidelog.record.legacy import LegacyBatch
from tidelog.record.offset_order import in_order
from tidelog.record.record import Record, encode_record
from tidelog.storage.compaction.generations.estimates import KeySamples
from tidelog.storage.compaction.generations.sampling import (
    CHUNK_BYTES,
    NO_HORIZON,
    SegmentSample,
)
from tidelog.storage.open_files import walk_file
from tidelog.types import INT64_MAX, Buffer


def sample_plain(file: File, path: str, seed: bytes, samples: KeySamples) -> SegmentSample:
    """Sample a segment as `sample_segment` does."""
    found = SegmentSample()
    batches = walk_file(file, path, 0, file.size(), chunk_bytes=CHUNK_BYTES)
    for _, batch in in_order(batches, 0, INT64_MAX, path):
        found.due_ms = max(found.due_ms, horizon_of(batch))
        if not batch.is_control:
            samples.add(_look(batch, seed, found))
    return found


def _look(batch: Batch, seed: bytes, found: SegmentSample) -> Iterator[tuple[int, int, int]]:
    """Count all records; for each with a key, yield hash, offset and size, negative if null."""
    for record, size in zip(batch.records(check_crc=False), _sizes(batch), strict=True):
        found.records += 1
        found.record_bytes += size
        if record.key is not None:
            yield hash_of(seed, record.key), record.offset, size if record.has_value else -size


def hash_of(seed: bytes, key: bytes) -> int:
    """Return a key's hash for sampling: the first half of its SipHash; 1 if both halves are 0."""
    low, high = halves(siphash(seed, key))
    return low if low or high else 1


def horizon_of(batch: Batch) -> int:
    """Return a batch's delete horizon in ms, -1 without one."""
    if isinstance(batch, LegacyBatch) or not batch.attributes & DELETE_HORIZON_BIT:
        return NO_HORIZON
    horizon_ms = batch.delete_horizon_ms
    return NO_HORIZON if horizon_ms is None else horizon_ms


def _sizes(batch: Batch) -> Iterator[int]:
    """Yield the bytes that each record takes when written in format 2, with the length prefix."""
    if isinstance(batch, RecordBatch):
        yield from _body_sizes(batch.body(), batch.record_count)
        return
    for record in batch.records(check_crc=False):
        yield legacy_size(record)


def _body_sizes(body: Buffer, count: int) -> Iterator[int]:
    at = 0
    for _ in range(count):
        size, start = read_varint(body, at, len(body))
        yield start + size - at
        at = start + size


def legacy_size(record: Record) -> int:
    """Return the size of an old format's record if it is the only record of a batch in format 2."""
    body = bytearray()
    encode_record(body, record, timestamp_delta=record.timestamp, offset_delta=0)
    return len(body)
