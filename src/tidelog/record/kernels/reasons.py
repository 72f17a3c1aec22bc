"""Words for the statuses that mean damage, for the errors that the kernels' callers raise."""

from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptBatch
from tidelog.record.header import HEADERS_MAX, MAGIC_2
from tidelog.record.kernels import layout
from tidelog.record.offset_order import bad_order, jump_problem
from tidelog.record.views import frame_size, view_batch
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs

REASONS: Final = {
    layout.BAD_SIZE: "a batch length below the smallest that its magic allows",
    layout.BAD_MAGIC: "a magic other than 0, 1 and 2",
    layout.BAD_OFFSETS: "the batch's offsets leave the range of 0..2^63-1",
    layout.BAD_ORDER: "offsets that don't lie behind those of the batch before it",
    layout.BAD_COUNT: "a record count that the batch has no room for",
    layout.BAD_RECORD: (
        "a record whose fields don't end where its length says, or with more than"
        f" {HEADERS_MAX} headers"
    ),
    layout.BAD_DELTA: "an offset delta that is not above the last one, or above the batch's last",
    layout.BAD_REST: "bytes are left after the last record",
    layout.BAD_INDEX: "an index entry that leads to no batch that it can mean",
    layout.BAD_SUM: "a CRC-32C that is not that of the bytes",
    layout.BAD_COLUMN: "an Arrow column whose offsets lead out of its data",
    layout.TOO_LARGE: "a record larger than the format's 2147483647 bytes",
}


def scan_error(  # noqa: PLR0913 - the arguments of `scan_batches`, and what came back
    log: "Bytes",
    table: "Longs",
    count: int,
    at: int,
    status: int,
    next_offset: int = 0,
    end_offset: int = INT64_MAX,
) -> CorruptBatch:
    """The error for a BAD_ status of `scan_batches`, with its place in the bytes.

    Args:
        log: The bytes.
        table: The table that was to be filled.
        count: The number of sound batches in it.
        at: Place of the damaged batch.
        status: What came back.
        next_offset: Smallest offset that the first batch of the table might have.
        end_offset: Offset that no batch might reach.
    """
    if count:
        next_offset = int(table[count - 1, layout.LAST_OFFSET]) + 1
    if status == layout.BAD_OFFSETS:
        batch = view_batch(log.data, at)
        reason = f"{REASONS[status]}: {batch.base_offset} to {batch.last_offset}"
        return CorruptBatch(reason, at=at, offset=next_offset)
    if status != layout.BAD_ORDER:
        try:  # the plain walk says which value is wrong
            frame_size(log.data, at, log.size)
        except CorruptBatch as error:
            return error
        return CorruptBatch(REASONS[status], at=at)
    row = table[count].tolist()
    last = row[layout.LAST_OFFSET]
    first = last if row[layout.MAGIC] < MAGIC_2 else row[layout.BASE_OFFSET]
    problem = bad_order(first, last, next_offset, end_offset)
    if problem is None:
        behind = at + row[layout.SIZE]
        following = int.from_bytes(log[behind : behind + 8].tobytes(), "big", signed=True)
        problem = jump_problem(first, last, next_offset, following)
    return CorruptBatch(problem, at=at, offset=next_offset)
