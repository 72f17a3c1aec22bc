"""Records that come in columns reduced to one row for each key, as `fold` reduces others."""

from typing import NamedTuple

from tidelog.record.kernels.compiler import kernel
from tidelog.record.kernels.fold import (
    END_OFFSET,
    WAITING,
    WINDOW_ROWS,
    KeyRows,
    take_record,
    take_window,
)
from tidelog.record.kernels.layout import FULL
from tidelog.record.kernels.memory import Bytes, Ints, Longs


class Cells(NamedTuple):
    """A binary column, as Arrow has it.

    Shape:
        ends: int32[n + 1], places in `data`, ascending.
        data: uint8[>= ends[n]].
        is_null: uint8[n], 1 for null.
    """

    ends: Ints
    data: Bytes
    is_null: Bytes


class Incoming(NamedTuple):
    """Records, in the order of offsets.

    Shape:
        offsets: int64[n].
        times: int64[n], create times in ms, -1 unknown.
    """

    keys: Cells
    values: Cells
    offsets: Longs
    times: Longs


@kernel
def fold_columns(records: Incoming, start: int, into: KeyRows) -> int:
    """Take records from columns, from `start` on.

    Returns:
        How many of them are taken; where that is not all of them, the caller makes room in the
        table and takes the spans away, and calls again.
    """
    keys, values = records.keys, records.values
    for at in range(start, records.offsets.size):
        if into.state[WAITING] == WINDOW_ROWS and take_window(into) == FULL:
            return at
        key_at, value_at = int(keys.ends[at]), int(values.ends[at])
        key_size = -1 if keys.is_null[at] != 0 else int(keys.ends[at + 1]) - key_at
        value_size = -1 if values.is_null[at] != 0 else int(values.ends[at + 1]) - value_at
        offset, time = int(records.offsets[at]), int(records.times[at])
        if not take_record(
            keys.data, key_at, key_size, values.data, value_at, value_size, offset, time, into
        ):
            return at
        into.state[END_OFFSET] = offset + 1
    return int(records.offsets.size)
