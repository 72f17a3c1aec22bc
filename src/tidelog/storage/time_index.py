"""The time index of a segment, `BASE.timeindex`: from timestamps to offsets.

An entry (T, O) says: up to offset O, T is the largest timestamp of the segment, and O is the last
offset of the earliest batch that has it. So whatever has a timestamp > T lies behind O. It does
not say that the record at O has T (only its batch does), nor that timestamps <= T lie before O.
Timestamps grow strictly, offsets never fall; batches without a timestamp make no entries.

Entry, 12 bytes, big-endian: int64 timestamp in ms, int32 offset relative to the base offset.

Source: KIP-33; Kafka 4.x TimeIndex; docs/format.md#time-index.
"""

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest
from tidelog.storage import index_arrays
from tidelog.storage.index import Index
from tidelog.types import NO_TIMESTAMP

_ENTRY: Final = Struct(">qi")
_RELATIVE: Final = Struct(">8xi")
ENTRY_SIZE: Final = 12
assert _ENTRY.size == ENTRY_SIZE == _RELATIVE.size


class TimeIndex(Index):
    """Time index entries of one segment: append* -> truncate or close; or opened for search."""

    ENTRY_SIZE = ENTRY_SIZE
    _KEPT_SIZE = ENTRY_SIZE
    _KEY = Struct(">q")
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """Whether only the slot is left that is kept for the entry at roll and close."""
        return self.size_bytes >= self.full_bytes

    @property
    def last_entry(self) -> tuple[int, int]:
        """The newest entry as (timestamp, offset), (-1, base offset) where there is none."""
        if not self.size_bytes:
            return NO_TIMESTAMP, self.base_offset
        return self.entry(self.entry_count - 1)

    def maybe_append(self, timestamp: int, offset: int, *, ignore_full: bool = False) -> bytes:
        """Add an entry if `timestamp` is beyond the last one; its bytes for the file's end.

        Args:
            timestamp: Largest timestamp of the segment so far, in ms; -1 never makes an entry.
            offset: Last offset of the earliest batch that has it.
            ignore_full: Use the kept slot: at roll and close.

        Returns:
            b"" where the last entry has this timestamp already.

        Raises:
            IndexFull: No room is left.
            OffsetOverflow: The offset does not fit.
            InvalidRequest: Timestamp or offset is below the last entry's. Nothing was changed in
                any of these cases.
        """
        size_bytes, last_timestamp = self.size_bytes, NO_TIMESTAMP
        if size_bytes >= (self._limit if ignore_full else self.full_bytes):
            raise IndexFull(f"time index {self.base_offset} is full: {self.entry_count} entries")
        if size_bytes:
            last_timestamp, last = _ENTRY.unpack_from(self._data, size_bytes - ENTRY_SIZE)
            if offset - self.base_offset < last or timestamp < last_timestamp:
                raise InvalidRequest(
                    f"time index entry ({timestamp}, {offset}) is below ({last_timestamp}, "
                    f"{self.base_offset + last})"
                )
        if timestamp <= last_timestamp:
            return b""
        return self._put(_ENTRY.pack(timestamp, self._relative(offset)))

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The greatest entry with timestamp <= `timestamp`, else (-1, base offset).

        Returns:
            (timestamp in ms, offset). Where the segment has a record with a time >= `timestamp`,
            the first such record lies in the batch of that offset or behind it.
        """
        slot = self._floor(timestamp)
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        found, relative = _ENTRY.unpack_from(self._data, slot * ENTRY_SIZE)
        return found, self.base_offset + relative

    def entry(self, slot: int) -> tuple[int, int]:
        """The entry at `slot` as (timestamp, offset); raises InvalidRequest outside them."""
        timestamp, relative = _ENTRY.unpack_from(self._data, self._at(slot))
        return timestamp, self.base_offset + relative

    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries as (timestamp, offset), oldest first."""
        for timestamp, relative in _ENTRY.iter_unpack(self.encoded):
            yield timestamp, self.base_offset + relative

    def truncate_to(self, offset: int) -> int:
        """Drop entries with an offset >= `offset`; the size in bytes that is left."""
        data = self._data

        def relative_at(at: int) -> int:
            found: int = _RELATIVE.unpack_from(data, at)[0]
            return found

        places = range(0, self.size_bytes, ENTRY_SIZE)
        return self._keep(bisect_left(places, offset - self.base_offset, key=relative_at))

    def check(self, *, allow_tail: bool = False) -> None:
        """Make sure that every entry follows the one before.

        Args:
            allow_tail: Pass over a zero tail, as an index has while Kafka writes it.

        Raises:
            CorruptIndex: A tail, a timestamp that does not grow or is negative, an offset that
                falls or lies below the base offset.
        """
        if not allow_tail:
            self._check_tail()
        if index_arrays.are_loaded() and index_arrays.are_times_sound(self.encoded):
            return
        last_timestamp, last_relative = NO_TIMESTAMP, 0
        for slot, (timestamp, relative) in enumerate(_ENTRY.iter_unpack(self.encoded)):
            if timestamp <= last_timestamp or relative < last_relative:
                reason = (
                    f"entry ({timestamp}, {relative}) does not follow ({last_timestamp}, "
                    f"{last_relative})"
                )
                raise CorruptIndex(reason, at=slot * ENTRY_SIZE)
            last_timestamp, last_relative = timestamp, relative
