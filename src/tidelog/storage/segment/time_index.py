"""Time index of a segment: from a timestamp to the offset at which a search starts.

The file is `BASE.timeindex`. Entry (T, O): T is the segment's largest timestamp up to offset O
(inclusive), and O is the last offset of the earliest batch with T. So all records with timestamps
above T are after O. The batch that ends at O contains T, but the record at O itself may have a
smaller timestamp. Records after O may have timestamps <= T. In the entries, timestamps strictly
increase and offsets never decrease. A batch without a timestamp gets no entry. An entry has 12
bytes, big-endian: int64 timestamp in ms, int32 relative offset.

`TimeIndex.lookup` searches with `SortedIndex._floor` (`sorted_index`). If numpy is already loaded,
the order of entries is checked with arrays, which is a hundred times faster than with plain Python.

Source: KIP-33; Kafka 4.x TimeIndex; docs/format.md#time-index.
"""

import sys
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.amounts import plural
from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest
from tidelog.storage.segment.sorted_index import SortedIndex
from tidelog.types import INT32_MAX, NO_TIMESTAMP, Buffer

_TIME_ENTRY: Final = Struct(">qi")
_TIME_RELATIVE: Final = Struct(">8xi")
TIME_ENTRY_SIZE: Final = 12
assert _TIME_ENTRY.size == TIME_ENTRY_SIZE == _TIME_RELATIVE.size


class TimeIndex(SortedIndex):
    """Time index of one segment, for a writer or only for searches."""

    ENTRY_SIZE = TIME_ENTRY_SIZE
    _RESERVED_BYTES = ENTRY_SIZE
    _KEY = Struct(">q")
    _RELATIVE = _TIME_RELATIVE
    __slots__ = ()

    @property
    def last_entry(self) -> tuple[int, int]:
        """Last entry as (timestamp, offset); (-1, base offset) if the index is empty."""
        if not self.size_bytes:
            return NO_TIMESTAMP, self.base_offset
        return self.entry(self.entry_count - 1)

    def maybe_append(self, timestamp: int, offset: int, *, ignore_full: bool = False) -> bytes:
        """Add an entry if `timestamp` is above the last entry's; return the new entry's bytes.

        Args:
            timestamp: Largest timestamp of the segment so far, in ms; for -1, no entry is added.
            offset: Last offset of the earliest batch that has this timestamp.
            ignore_full: Whether the slot reserved for rolls and closes may be used.

        Returns:
            b"" if no entry was added.

        Raises:
            IndexFull: There is no space left.
            OffsetOverflow: The offset does not fit.
            InvalidRequest: Timestamp or offset is below the last entry's. After any of these
                errors, the index is unchanged.
        """
        size_bytes, last_timestamp = self.size_bytes, NO_TIMESTAMP
        if size_bytes >= (self._limit if ignore_full else self.full_bytes):
            raise IndexFull(
                f"the time index of segment {self.base_offset} is full:"
                f" {plural(self.entry_count, 'entry', 'entries')}"
            )
        if size_bytes:
            last_timestamp, last = _TIME_ENTRY.unpack_from(self._data, size_bytes - TIME_ENTRY_SIZE)
            if offset - self.base_offset < last or timestamp < last_timestamp:
                raise InvalidRequest(
                    f"time index entry ({timestamp}, {offset}) is below ({last_timestamp}, "
                    f"{self.base_offset + last})"
                )
        if timestamp <= last_timestamp:
            return b""
        if not 0 <= offset - self.base_offset <= INT32_MAX:
            raise self._overflow(offset)
        return self._put(_TIME_ENTRY.pack(timestamp, offset - self.base_offset))

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return the greatest entry with timestamp <= `timestamp`, else (-1, base offset).

        Returns:
            (timestamp in ms, offset). If the segment has a record with a time >= `timestamp`, the
            first such record is in the batch with the returned offset or in a later batch.
        """
        slot = self._floor(timestamp)
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        entry_timestamp, relative = _TIME_ENTRY.unpack_from(self._data, slot * TIME_ENTRY_SIZE)
        return entry_timestamp, self.base_offset + relative

    def entry(self, slot: int) -> tuple[int, int]:
        """Return the entry at `slot` as (timestamp, offset); InvalidRequest if there is none."""
        timestamp, relative = _TIME_ENTRY.unpack_from(self._data, self._at(slot))
        return timestamp, self.base_offset + relative

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield all entries as (timestamp, offset), oldest first."""
        for timestamp, relative in _TIME_ENTRY.iter_unpack(self.encoded):
            yield timestamp, self.base_offset + relative

    def check(self, *, allow_tail: bool = False) -> None:
        """Verify that every entry follows the previous entry.

        Args:
            allow_tail: Whether to ignore a zero tail, which an index has while Kafka writes it.

        Raises:
            CorruptIndex: There is a tail, a timestamp does not increase or is negative, or an
                offset decreases or is below the base offset.
        """
        if not allow_tail:
            self._check_tail()
        if "numpy" in sys.modules and _are_times_sound(self.encoded):
            return
        last_timestamp, last_relative = NO_TIMESTAMP, 0
        for slot, (timestamp, relative) in enumerate(_TIME_ENTRY.iter_unpack(self.encoded)):
            if timestamp <= last_timestamp or relative < last_relative:
                reason = (
                    f"entry ({timestamp}, {relative}) does not follow ({last_timestamp}, "
                    f"{last_relative})"
                )
                raise CorruptIndex(reason, at=slot * TIME_ENTRY_SIZE)
            last_timestamp, last_relative = timestamp, relative


def _are_times_sound(entries: Buffer) -> bool:
    """Return whether timestamps increase, offsets don't decrease, and no value is negative.

    Args:
        entries: Whole entries of a time index.
    """
    import numpy as np

    rows = np.frombuffer(entries, np.dtype([("timestamp", ">i8"), ("offset", ">i4")]))
    if not len(rows):
        return True
    times, offsets = rows["timestamp"].astype(np.int64), rows["offset"].astype(np.int32)
    is_inside = int(times[0]) >= 0 and int(offsets[0]) >= 0
    rises = bool((times[1:] > times[:-1]).all()) and bool((offsets[1:] >= offsets[:-1]).all())
    return is_inside and rises
