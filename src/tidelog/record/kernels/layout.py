"""Columns of the batch table, statuses of kernels, and error texts of the error statuses.

A batch table is `int64[n, BATCH_FIELDS]` with one row per batch; `scan_batches` fills it. The
constants up to `CREATE_STATE` are indices of the table's columns. `POSITION` is a position in the
log's array. `BODY_START` and `BODY_END` are positions in the array with the body: the log's array,
or for a decompressed body another array.
"""

from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptBatch
from tidelog.record.batch_walk import frame_size, view_batch
from tidelog.record.header import HEADERS_MAX, MAGIC_2
from tidelog.record.offset_order import bad_order, jump_problem, order_error
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs


POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
RECORD_COUNT: Final = 4
ATTRIBUTES: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
BASE_SEQUENCE: Final = 10
LEADER_EPOCH: Final = 11
MAGIC: Final = 12
CRC: Final = 13
BODY_START: Final = 14
BODY_END: Final = 15

# State of a batch's create times: `CREATE_LOST` if a cleaner may have overwritten them with the
# append time, else `CREATE_KNOWN`.
CREATE_STATE: Final = 16

BATCH_FIELDS: Final = 17
CREATE_KNOWN: Final = 0
CREATE_LOST: Final = 1

# Statuses. The statuses from BAD_SIZE on are errors; `REASONS` has their texts.
DONE: Final = 0

FULL: Final = 1
PARTIAL: Final = 2
FOUND: Final = 3
NOT_FOUND: Final = 4
NEED_PLAIN: Final = 5
BAD_SIZE: Final = 16
BAD_MAGIC: Final = 17
BAD_OFFSETS: Final = 18
BAD_COUNT: Final = 19
BAD_RECORD: Final = 20
BAD_DELTA: Final = 21
BAD_REST: Final = 22
BAD_INDEX: Final = 23
BAD_SUM: Final = 26
BAD_ORDER: Final = 27

# Error statuses of `encode_batches`.
BAD_COLUMN: Final = 24

TOO_LARGE: Final = 25

REASONS: Final = {
    BAD_SIZE: "a batch length below the minimum for its magic",
    BAD_MAGIC: "a magic other than 0, 1 and 2",
    BAD_OFFSETS: "the batch's offsets are outside of 0..2^63-1",
    BAD_ORDER: "offsets that are not above the last offset of the previous batch",
    BAD_COUNT: "a record count that is negative, or too large for the bytes of the batch",
    BAD_RECORD: (
        "a record whose length does not match its fields, or that has more than"
        f" {HEADERS_MAX} headers"
    ),
    BAD_DELTA: (
        "an offset delta that is not above the previous record's, or is above the batch's last"
        " offset delta"
    ),
    BAD_REST: "bytes are left after the last record",
    BAD_INDEX: "an index entry without a matching batch",
    BAD_SUM: "a CRC-32C that does not match the bytes",
    BAD_COLUMN: "an Arrow column with offsets outside of its data",
    TOO_LARGE: "a record larger than the format's 2147483647 bytes",
}


def scan_error(  # noqa: PLR0913 - the arguments of `scan_batches`, and its results
    log: "Bytes",
    table: "Longs",
    count: int,
    at: int,
    status: int,
    next_offset: int = 0,
    end_offset: int = INT64_MAX,
) -> CorruptBatch:
    """Return the error for a BAD_ status of `scan_batches`, with its position in the bytes.

    Args:
        log: The bytes that `scan_batches` has scanned.
        table: The table that was filled.
        count: Number of sound batches in the table.
        at: Position of the damaged batch.
        status: Status that `scan_batches` returned.
        next_offset: Smallest valid offset of the first batch of the table.
        end_offset: Exclusive upper limit of the offsets.
    """
    if count:
        next_offset = int(table[count - 1, LAST_OFFSET]) + 1
    if status == BAD_OFFSETS:
        batch = view_batch(log.data, at)
        reason = f"{REASONS[status]}: {batch.base_offset} to {batch.last_offset}"
        return CorruptBatch(reason, at=at, offset=next_offset)
    if status != BAD_ORDER:
        try:  # the error of `frame_size` shows the invalid value
            frame_size(log.data, at, log.size)
        except CorruptBatch as error:
            return error
        return CorruptBatch(REASONS[status], at=at)
    row = table[count].tolist()
    last = row[LAST_OFFSET]
    first = last if row[MAGIC] < MAGIC_2 else row[BASE_OFFSET]
    problem = bad_order(first, last, next_offset, end_offset)
    if problem is None:
        behind = at + row[SIZE]
        following = int.from_bytes(log[behind : behind + 8].tobytes(), "big", signed=True)
        problem = jump_problem(first, last, next_offset, following)
    reason = order_error(problem, view_batch(log.data, at), next_offset).reason
    return CorruptBatch(reason, at=at, offset=next_offset)
