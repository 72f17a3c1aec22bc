"""Passes over times: the append time of each row, and whether a batch's create times are lost."""

from tidelog.record.header import DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT
from tidelog.record.kernels.arithmetic import add_wrapping
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.decode import parse_record
from tidelog.record.kernels.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BODY_END,
    BODY_START,
    CREATE_LOST,
    CREATE_STATE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.record.kernels.varints import POISON
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP


@kernel
def fill_append_times(offsets: Longs, run_starts: Longs, run_times: Longs, out: Longs) -> int:
    """Fill in the time of the run that each offset lies in, -1 before the first run.

    Shape:
        offsets: int64[rows]; quickest where they ascend.
        run_starts: int64[runs], first offset of each run, ascending.
        run_times: int64[runs], append time in ms, -1 for unknown.
        out: int64[rows].

    Returns:
        How many rows got -1.
    """
    rows, row, missing = offsets.size, 0, 0
    while row < rows:
        run = _count_starts(run_starts, offsets[row])
        start = run_starts[run - 1] if run > 0 else INT64_MIN
        end = run_starts[run] if run < run_starts.size else INT64_MAX
        time = run_times[run - 1] if run > 0 else NO_TIMESTAMP
        first = row
        out[row] = time
        row += 1
        while row < rows and start <= offsets[row] < end:
            out[row] = time
            row += 1
        missing += row - first if time == NO_TIMESTAMP else 0
    return missing


@inlined
def _count_starts(run_starts: Longs, offset: int) -> int:
    """How many runs begin at or before an offset, by binary search."""
    low, high = 0, run_starts.size
    while low < high:
        middle = (low + high) >> 1
        if run_starts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def mark_lost_creates(data: Bytes, table: Longs) -> None:
    """Set `CREATE_STATE` of the batches whose create times a foreign cleaner has overwritten.

    Kafka's cleaner writes the time that readers see into the records of a LogAppendTime batch. A
    batch that a cleaner may have written (gaps, or a delete horizon) and whose create times all
    equal the append time is taken for one of those.

    Shape:
        data, table: as `decode_batches`.
    """
    for slot in range(table.shape[0]):
        if _may_be_rewritten(table, slot) and _all_creates_equal(data, table, slot):
            table[slot, CREATE_STATE] = CREATE_LOST


@inlined
def _may_be_rewritten(table: Longs, slot: int) -> bool:
    attributes = table[slot, ATTRIBUTES]
    if attributes & TIMESTAMP_TYPE_BIT == 0:
        return False
    span = table[slot, LAST_OFFSET] - table[slot, BASE_OFFSET] + 1
    has_horizon = attributes & DELETE_HORIZON_BIT != 0
    return bool(has_horizon or table[slot, RECORD_COUNT] != span)


@inlined
def _all_creates_equal(data: Bytes, table: Longs, slot: int) -> bool:
    """Whether each create time is the append time; False for a damaged body, which fails later."""
    append_time = table[slot, MAX_TIMESTAMP]
    at, end = table[slot, BODY_START], table[slot, BODY_END]
    while at < end:
        at, time_delta, _, _, _, _, _, _ = parse_record(data, at, end)
        if at == POISON or add_wrapping(table[slot, BASE_TIMESTAMP], time_delta) != append_time:
            return False
    return bool(append_time != NO_TIMESTAMP)
