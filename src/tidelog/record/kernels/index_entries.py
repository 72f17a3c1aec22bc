"""Entries of the offset and the time index of a segment that is being written, batch by batch.

The rule is that of `tidelog.storage.index_files.IndexBuilder`, the plain reference.

Source: Kafka 4.x LogSegment.
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.compiler import kernel
from tidelog.record.kernels.memory import Longs
from tidelog.record.kernels.rewrite import WRITTEN_AT, WRITTEN_LAST, WRITTEN_MAX_TIMESTAMP

# Places in the state of `index_batches`.
INDEXED_POSITION: Final = 0
LARGEST_TIMESTAMP: Final = 1
LARGEST_OFFSET: Final = 2
ENTRY_TIMESTAMP: Final = 3  # of the last time index entry
OFFSET_ENTRIES: Final = 4  # in the whole index
TIME_ENTRIES: Final = 5
INDEX_FIELDS: Final = 6


class IndexRules(NamedTuple):
    """When an entry is made.

    Attributes:
        interval_bytes: More than this must lie behind the last indexed position.
        offset_entry_limit: Entries that the offset index may have.
        time_entry_limit: Entries that the time index may have, the closing one left out.
    """

    interval_bytes: int
    offset_entry_limit: int
    time_entry_limit: int


@kernel
def index_batches(
    written: Longs, position: int, rules: IndexRules, state: Longs, offsets: Longs, times: Longs
) -> tuple[int, int]:
    """Index entries of batches that follow each other in a log file.

    Shape:
        written: int64[batches, WRITTEN_FIELDS].
        position: Where the place 0 of WRITTEN_AT lies in the file.
        state: int64[INDEX_FIELDS], of the whole segment.
        offsets: int64[batches, 2], written: last offset and position.
        times: int64[batches, 2], written: timestamp and offset.

    Returns:
        How many entries of each there are.
    """
    offset_count = time_count = 0
    for slot in range(written.shape[0]):
        at, last = position + written[slot, WRITTEN_AT], written[slot, WRITTEN_LAST]
        if written[slot, WRITTEN_MAX_TIMESTAMP] > state[LARGEST_TIMESTAMP]:
            state[LARGEST_TIMESTAMP] = written[slot, WRITTEN_MAX_TIMESTAMP]
            state[LARGEST_OFFSET] = last
        if at - state[INDEXED_POSITION] <= rules.interval_bytes:
            continue
        state[INDEXED_POSITION] = at
        if state[OFFSET_ENTRIES] < rules.offset_entry_limit:
            offsets[offset_count, 0] = last
            offsets[offset_count, 1] = at
            offset_count += 1
            state[OFFSET_ENTRIES] += 1
        is_later = state[LARGEST_TIMESTAMP] > state[ENTRY_TIMESTAMP]
        if is_later and state[TIME_ENTRIES] < rules.time_entry_limit:
            times[time_count, 0] = state[LARGEST_TIMESTAMP]
            times[time_count, 1] = state[LARGEST_OFFSET]
            time_count += 1
            state[ENTRY_TIMESTAMP] = state[LARGEST_TIMESTAMP]
            state[TIME_ENTRIES] += 1
    return offset_count, time_count
