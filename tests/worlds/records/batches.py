"""Batches as clients send them."""

from typing import TypedDict, Unpack

from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord


class BatchFields(TypedDict, total=False):
    """Arguments of `build_batch` for the fields that a client sets."""

    codec: Codec
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


def batch(
    *values: bytes,
    key: bytes | None = None,
    timestamp: int | None = None,
    **fields: Unpack[BatchFields],
) -> bytes:
    """Return a batch with a record for each value, or one record with the value `v`."""
    records = [NewRecord(key=key, value=value, timestamp=timestamp) for value in values or (b"v",)]
    return bytes(build_batch(records, **fields))
