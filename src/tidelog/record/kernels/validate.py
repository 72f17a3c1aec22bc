"""The leader's pass over a body: the structure of every record, its times, keys and deltas.

The rules and the answer are those of `tidelog.storage.body_check`, the plain reference; storage
takes `check_body` in its place.
"""

import numpy as np

from tidelog.errors import CorruptRecord
from tidelog.record.kernels.arithmetic import add_wrapping
from tidelog.record.kernels.compiler import kernel
from tidelog.record.kernels.decode import parse_record
from tidelog.record.kernels.layout import BAD_COUNT, BAD_RECORD, BAD_REST, DONE
from tidelog.record.kernels.memory import Bytes
from tidelog.record.kernels.reasons import REASONS
from tidelog.record.kernels.varints import POISON
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Buffer


@kernel
def validate_batch_body(
    body: Bytes, record_count: int, base_timestamp: int
) -> tuple[int, int, int, int, bool, bool]:
    """Check the `record_count` records that should fill `body` exactly.

    Returns:
        A status (DONE, BAD_COUNT, BAD_RECORD, BAD_REST) and the place concerned; the largest
        timestamp in ms, -1 where none is larger; the smallest other than -1, 2^63-1 where there is
        none; whether any record has no key; whether the offset deltas are 0, 1, 2, ... What comes
        after the place means nothing unless the status is DONE.
    """
    largest, smallest = NO_TIMESTAMP, INT64_MAX
    has_null_key, in_order = False, True
    at, end = 0, body.size
    if record_count < 0 or record_count * RECORD_SIZE_MIN > end:
        return BAD_COUNT, 0, largest, smallest, has_null_key, in_order
    for number in range(record_count):
        after, time_delta, delta, _, key_size, _, _, _ = parse_record(body, at, end)
        if after == POISON:
            return BAD_RECORD, at, largest, smallest, has_null_key, in_order
        at = after
        timestamp = add_wrapping(base_timestamp, time_delta)
        largest = max(largest, timestamp)
        if timestamp != NO_TIMESTAMP:
            smallest = min(smallest, timestamp)
        has_null_key |= key_size < 0
        in_order &= delta == number
    return DONE if at == end else BAD_REST, at, largest, smallest, has_null_key, in_order


def check_body(
    body: Buffer, record_count: int, base_timestamp: int, /
) -> tuple[int, int, bool, bool]:
    """The facts of the records that fill `body`, in the order of `body_check.BodyFacts`.

    Args:
        body: An uncompressed records section.
        record_count: As the batch declares.
        base_timestamp: In ms; timestamps are base + delta, wrapped to 64 bits.

    Raises:
        CorruptRecord: A record breaks its format; `at` counts from the body's first byte.
    """
    data = np.frombuffer(body, np.uint8)
    data.flags.writeable = False
    status, at, largest, smallest, has_null_key, in_order = validate_batch_body(
        data, record_count, base_timestamp
    )
    if status != DONE:
        raise CorruptRecord(REASONS[status], at=at)
    return largest, smallest, has_null_key, in_order
