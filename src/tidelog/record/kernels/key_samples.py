"""Which keys of magic 2 bodies belong to a sample: those whose hash ends with enough zero bits.

Source: docs/generations.md#the-sample. The rules for records are those of `decode`.
"""

from typing import Final

from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import parse_record
from tidelog.record.kernels.key_hash import Hasher, hash_key
from tidelog.record.kernels.layout import (
    BAD_COUNT,
    BAD_DELTA,
    BAD_RECORD,
    BAD_REST,
    BASE_OFFSET,
    BODY_END,
    BODY_START,
    DONE,
    LAST_OFFSET,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.varints import POISON
from tidelog.record.record import RECORD_SIZE_MIN

# Columns of what is found.
HASH: Final = 0
OFFSET: Final = 1
SIZE: Final = 2
SAMPLE_FIELDS: Final = 3

# Places in `totals`.
RECORDS: Final = 0
RECORD_BYTES: Final = 1
SAMPLED: Final = 2
TOTALS: Final = 3


@kernel
def sample_keys(
    data: Bytes, table: Longs, hasher: Hasher, mask: int, out: Longs, totals: Longs
) -> tuple[int, int]:
    """Count the records of a table's batches, and note those whose key is in the sample.

    Args:
        data: uint8[>= every BODY_END of the table].
        table: int64[batches, BATCH_FIELDS], magic 2, bodies not compressed.
        hasher: How keys are hashed; the first half of a hash counts.
        mask: Bits of it that are 0 for a key of the sample.
        out: int64[>= SAMPLED + records of the table, SAMPLE_FIELDS]; rows from `SAMPLED` on are
            written: hash, offset, bytes of the record, negative for a tombstone.
        totals: int64[TOTALS], added to: records, their bytes, rows of `out`.

    Returns:
        DONE, or a BAD_ status and the record or body concerned.
    """
    for slot in range(table.shape[0]):
        status, at = _sample_batch(data, table[slot], hasher, mask, out, totals)
        if status != DONE:
            return status, at
    return DONE, 0


@inlined
def _sample_batch(
    data: Bytes, batch: Longs, hasher: Hasher, mask: int, out: Longs, totals: Longs
) -> tuple[int, int]:
    at, end, count = batch[BODY_START], batch[BODY_END], batch[RECORD_COUNT]
    base_offset, last_delta = batch[BASE_OFFSET], -1
    delta_max = batch[LAST_OFFSET] - base_offset
    if count < 0 or count * RECORD_SIZE_MIN > end - at:
        return BAD_COUNT, at
    for _ in range(count):
        after, _time, delta, key_at, key_size, _value, value_size, _headers = parse_record(
            data, at, end
        )
        if after == POISON or delta <= last_delta or delta > delta_max:
            return BAD_RECORD if after == POISON else BAD_DELTA, at
        totals[RECORDS] += 1
        totals[RECORD_BYTES] += after - at
        if key_size >= 0:
            low, _high = hash_key(data, key_at, key_size, hasher)
            if low & mask == 0:
                row = totals[SAMPLED]
                out[row, HASH] = low
                out[row, OFFSET] = base_offset + delta
                out[row, SIZE] = after - at if value_size >= 0 else at - after
                totals[SAMPLED] = row + 1
        at, last_delta = after, delta
    return (DONE if at == end else BAD_REST), at
