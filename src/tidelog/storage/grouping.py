"""Cuts a run of records into batches of a size."""

from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.errors import InvalidRequest, MessageTooLarge
from tidelog.record.batch import HEADER_SIZE
from tidelog.record.builder import build_batch
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT
from tidelog.types import Codec, NewRecord

# A record takes at most so many times what `record_bytes` says: lengths and deltas of 5 and 10
# bytes where it counts 12 for a record, and 4 for a header of two lengths.
_OVER_MAX: Final = 4


def build_batches(
    records: Iterable[NewRecord],
    codec: Codec,
    batch_bytes: int,
    now_ms: int,
    *,
    level: int | None = None,
) -> Iterator[bytearray]:
    """Batches of records, of about `batch_bytes` before compression.

    Args:
        records: At least one.
        codec: Compression.
        batch_bytes: Where a batch is closed; a larger record gets a batch of its own.
        now_ms: Time of records that have none.
        level: Of the compression; the codec's own where None.

    Raises:
        InvalidRequest: No record, or `batch_bytes` is below 1.
        MessageTooLarge: Records of one batch that nobody would decompress again.
        What `build_batch` raises.
    """
    if batch_bytes < 1:
        raise InvalidRequest(f"batch_bytes={batch_bytes}: at least 1")
    limit = APPEND_DECOMPRESSION_LIMIT
    may_be_long = batch_bytes > limit // _OVER_MAX
    for group in group_records(records, batch_bytes):
        is_long = may_be_long or (len(group) == 1 and record_bytes(group[0]) > limit // _OVER_MAX)
        if is_long and codec is not Codec.NONE:
            size = len(build_batch(group, default_timestamp=now_ms)) - HEADER_SIZE
            if size > limit:
                raise MessageTooLarge(
                    f"{size} bytes of records to compress, at most {limit} are taken"
                )
        yield build_batch(group, codec=codec, level=level, default_timestamp=now_ms)


def group_records(records: Iterable[NewRecord], batch_bytes: int) -> Iterable[list[NewRecord]]:
    """Records in lists of about `batch_bytes` of keys, values and headers."""
    group: list[NewRecord] = []
    size = 0
    for record in records:
        bytes_of = record_bytes(record)
        if group and size + bytes_of > batch_bytes:
            yield group
            group, size = [], 0
        group.append(record)
        size += bytes_of
    if not group:
        raise InvalidRequest("an append needs at least one record")
    yield group


def record_bytes(record: NewRecord) -> int:
    """About how many bytes a record takes in a batch."""
    headers = sum(len(h.key) + len(h.value or b"") + 4 for h in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 12
