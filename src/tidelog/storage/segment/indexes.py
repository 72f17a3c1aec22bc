"""Offset index and time index of a segment: entries, lookup, append, truncation.

A writer appends entries in memory and writes the same bytes to the file. For a finished segment,
the index is a read-only view of the mapped file and is searched in place. If a writer's buffer is
too small, a larger buffer replaces it. A buffer is never resized, so views stay valid. The bytes
under an existing view change only if entries are appended after a `truncate_to`.

While Kafka writes a segment, the segment's index files are preallocated with zeros; these zeros
remain after a hard stop. `used_size` finds the end of the real entries when an index is opened. If
numpy is already loaded, the order of entries is checked with arrays, which is a hundred times
faster. Indexes have no checksum; a doubtful index is rebuilt from the log (`index_loading`).

- Offset index `BASE.index`. Entry (offset, position): the batch at `position` has `offset` as its
  LAST offset; batches between two indexed batches have no entry. Offsets and positions strictly
  increase. An entry has 8 bytes, big-endian: int32 offset relative to the base offset, int32
  position.
- Time index `BASE.timeindex`. Entry (T, O): T is the segment's largest timestamp up to offset O
  (inclusive), and O is the last offset of the earliest batch with T. So all records with timestamps
  above T are after O. The batch that ends at O contains T, but the record at O itself may have a
  smaller timestamp. Records after O may have timestamps <= T. In the entries, timestamps strictly
  increase and offsets never decrease. A batch without a timestamp gets no entry. An entry has 12
  bytes, big-endian: int64 timestamp in ms, int32 relative offset.

Source: KIP-33; Kafka 4.x AbstractIndex, OffsetIndex, TimeIndex; KAFKA-806, KAFKA-10207, KAFKA-19200
(zero tails); docs/format.md#offset-index, #time-index.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import ClassVar, Final

from tidelog.amounts import plural
from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest, OffsetOverflow
from tidelog.types import INT32_MAX, NO_TIMESTAMP, Buffer

DEFAULT_INDEX_BYTES: Final = 10_485_760
_FIRST_CAPACITY: Final = 4096

# Maximum number of interpolation probes. Offsets and times mostly grow evenly, so interpolation
# usually finds a slot in 2 or 3 probes. If more probes are needed, the search continues by
# bisection, which limits their number.
_PROPORTIONAL_PROBES: Final = 4


def used_size(data: Buffer, entry_size: int) -> int:
    """Return the size of the whole entries in `data`, without a tail of all-zero entries.

    The keys of both indexes strictly increase, so at most the first entry can validly consist of
    zeros. If such an entry is the file's only entry, it is kept. If a tail of zeros follows the
    entry, the entry counts as part of the tail, because an index with only this entry has no more
    information than an empty index. If an entry of zeros is between nonzero entries, the result may
    be the end of any nonzero entry; `check` detects such an index.
    """
    count = len(data) // entry_size
    if count <= 1 or any(data[(count - 1) * entry_size : count * entry_size]):
        return count * entry_size
    zeros = bytes(entry_size)

    def is_zero(at: int) -> bool:
        return data[at : at + entry_size] == zeros

    return bisect_left(range(0, count * entry_size, entry_size), x=True, key=is_zero) * entry_size


class Index:
    """Entries of one size for one segment. One thread may write while other threads search.

    Attributes:
        base_offset: The segment's base offset, to which relative offsets are added.
        size_bytes: Size of all entries.
        full_bytes: Size in bytes at which the index takes no more entries; see `is_full`.
        tail_bytes: Number of bytes after the last entry when the file was opened: zeros of Kafka's
            preallocation, or a torn entry. 0 after the first change.
    """

    ENTRY_SIZE: ClassVar[int]
    _RESERVED_BYTES: ClassVar[int] = 0  # bytes at the end that appends must leave free
    _KEY: ClassVar[Struct]  # the key of searches; the first field of an entry
    _RELATIVE: ClassVar[Struct]  # an entry's offset, relative to the base offset

    __slots__ = ("_data", "_limit", "base_offset", "full_bytes", "size_bytes", "tail_bytes")

    def __init__(
        self, base_offset: int, *, data: Buffer = b"", size_limit: int = DEFAULT_INDEX_BYTES
    ) -> None:
        """Open an index on the bytes of its file, which are never changed in place.

        Args:
            base_offset: The segment's base offset.
            data: The file's bytes. A tail of zeros or a tail that is shorter than an entry is left
                out.
            size_limit: `segment.index.bytes`. The size is rounded down to a multiple of the entry
                size.
        """
        self.base_offset = base_offset
        self.size_bytes = used_size(data, self.ENTRY_SIZE)
        self.tail_bytes = len(data) - self.size_bytes
        self._limit = size_limit // self.ENTRY_SIZE * self.ENTRY_SIZE
        self.full_bytes = self._limit - self._RESERVED_BYTES
        own = isinstance(data, bytearray)
        self._data: Buffer = memoryview(data).toreadonly() if own else data

    @property
    def entry_count(self) -> int:
        """Number of entries."""
        return self.size_bytes // self.ENTRY_SIZE

    @property
    def entry_limit(self) -> int:
        """Number of entries that `segment.index.bytes` allows."""
        return self._limit // self.ENTRY_SIZE

    @property
    def encoded(self) -> memoryview:
        """Read-only view of all entries as the file has them, without copying."""
        return memoryview(self._data)[: self.size_bytes].toreadonly()

    def encoded_from(self, start: int) -> bytes:
        """Return a copy of the entries from position `start` of the file on, usually one entry."""
        return bytes(self._data[start : self.size_bytes])

    @property
    def is_full(self) -> bool:
        """Whether an append would raise `IndexFull`; a full index rolls the segment.

        A time index reserves a slot for the entry that a roll or a close adds.
        """
        return self.size_bytes >= self.full_bytes

    def slot_at_or_after(self, offset: int) -> int:
        """Return the first slot with an offset >= `offset`, the entry count if there is none."""
        return self._floor(offset - self.base_offset - 1, self._RELATIVE) + 1

    def truncate_to(self, offset: int) -> int:
        """Drop entries with an offset >= `offset`; return the remaining size in bytes."""
        self.size_bytes = self.slot_at_or_after(offset) * self.ENTRY_SIZE
        self.tail_bytes = 0
        return self.size_bytes

    def _floor(self, target: int, key: Struct | None = None) -> int:
        """Return the last slot whose key is <= `target`, -1 if there is none.

        Args:
            target: Value to find.
            key: Field to search; None for the default key. The field must increase from entry to
                entry.
        """
        size, read = self.ENTRY_SIZE, (self._KEY if key is None else key).unpack_from
        low, high = 0, self.size_bytes // size - 1
        # `_data` is read after `size_bytes`. A writer stores an entry before it increases
        # `size_bytes`, so all entries within `size_bytes` are valid.
        data = self._data
        if high < 0 or target < (low_key := read(data, 0)[0]):
            return -1
        if target >= (high_key := read(data, high * size)[0]):
            return high
        probes = _PROPORTIONAL_PROBES
        while high - low > 1:  # always: key at low <= target < key at high
            probes -= 1
            if probes >= 0:
                slot = low + (target - low_key) * (high - low) // (high_key - low_key)
            else:
                slot = (low + high) // 2
            slot = max(slot, low + 1)
            if (key_at := read(data, slot * size)[0]) <= target:
                low, low_key = slot, key_at
            else:
                high, high_key = slot, key_at
        return low

    def _overflow(self, offset: int) -> OffsetOverflow:
        return OffsetOverflow(
            f"offset {offset} is below base offset {self.base_offset}, or more than 2^31 - 1 above"
            " it"
        )

    def _put(self, entry: bytes) -> bytes:
        """Append an entry's bytes to the buffer, and return them for the file."""
        size_bytes, data = self.size_bytes, self._data
        end = size_bytes + len(entry)
        if type(data) is not bytearray or end > len(data):
            data = self._grow()
        data[size_bytes:end] = entry
        self.tail_bytes = 0
        self.size_bytes = end  # set last, so that another thread's search sees only whole entries
        return entry

    def _grow(self) -> bytearray:
        """Replace the buffer by a larger copy; the old buffer stays unchanged for its views."""
        data = bytearray(max(_FIRST_CAPACITY, 2 * self.size_bytes))
        data[: self.size_bytes] = memoryview(self._data)[: self.size_bytes]
        self._data = data
        return data

    def _at(self, slot: int) -> int:
        at = slot * self.ENTRY_SIZE
        if not 0 <= at < self.size_bytes:
            raise InvalidRequest(
                f"index slot {slot} is not below the number of entries, {self.entry_count}"
            )
        return at

    def _check_tail(self) -> None:
        if self.tail_bytes:
            reason = (
                f"{self.tail_bytes} bytes after the last entry: preallocated zeros, or an"
                " incomplete entry"
            )
            raise CorruptIndex(reason, at=self.size_bytes)


def _are_offsets_sound(entries: Buffer, log_size: int) -> bool:
    """Return whether offsets and positions increase, are >= 0, and positions are < `log_size`.

    Args:
        entries: Whole entries of an offset index.
        log_size: Size of the log file in bytes.
    """
    import numpy as np

    numbers = np.frombuffer(entries, ">i4").astype(np.int32).reshape(-1, 2)
    if not len(numbers):
        return True
    is_inside = bool((numbers[0] >= 0).all()) and int(numbers[-1, 1]) < log_size
    return is_inside and bool((numbers[1:] > numbers[:-1]).all())


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


_OFFSET_ENTRY: Final = Struct(">ii")
_OFFSET_RELATIVE: Final = Struct(">i")
_POSITION: Final = Struct(">4xi")
OFFSET_ENTRY_SIZE: Final = 8
assert _OFFSET_ENTRY.size == OFFSET_ENTRY_SIZE


class OffsetIndex(Index):
    """Offset index of one segment, for a writer or only for searches."""

    ENTRY_SIZE = OFFSET_ENTRY_SIZE
    _KEY = _RELATIVE = _OFFSET_RELATIVE
    __slots__ = ()

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset if the index is empty."""
        return self.entry(self.entry_count - 1)[0] if self.size_bytes else self.base_offset

    def append(self, offset: int, position: int) -> bytes:
        """Add an entry; return its bytes, to be written at the end of the file.

        Args:
            offset: Last offset of the batch.
            position: Position in the log file, in bytes, at which the batch starts.

        Raises:
            IndexFull: There is no space left.
            OffsetOverflow: The offset does not fit; nothing was changed.
            InvalidRequest: The last entry's offset or position is not below the new entry's.
        """
        size_bytes = self.size_bytes
        if size_bytes >= self.full_bytes:
            raise IndexFull(
                f"the offset index of segment {self.base_offset} is full:"
                f" {plural(self.entry_count, 'entry', 'entries')}"
            )
        relative, data = offset - self.base_offset, self._data
        if not 0 <= relative <= INT32_MAX:
            raise self._overflow(offset)
        if size_bytes:
            last, last_position = _OFFSET_ENTRY.unpack_from(data, size_bytes - OFFSET_ENTRY_SIZE)
            if relative <= last or position <= last_position:
                raise InvalidRequest(
                    f"offset index entry ({offset}, {position}) does not follow "
                    f"({self.base_offset + last}, {last_position})"
                )
        assert 0 <= position <= INT32_MAX
        return self._put(_OFFSET_ENTRY.pack(relative, position))

    def lookup(self, target: int) -> tuple[int, int]:
        """Return the greatest entry with offset <= `target` as (offset, position), else (base, 0).

        Keys are last offsets, so a batch that contains `target` starts at or after the returned
        position. To find this batch, scan from the position for the first batch whose last offset
        is >= `target`.
        """
        slot = self._floor(target - self.base_offset)
        if slot < 0:
            return self.base_offset, 0
        relative, position = _OFFSET_ENTRY.unpack_from(self._data, slot * OFFSET_ENTRY_SIZE)
        return self.base_offset + relative, position

    def slot_at_or_before_position(self, position: int) -> int:
        """Return the last slot whose position is <= `position`, -1 if there is none."""
        return self._floor(position, _POSITION)

    def entry(self, slot: int) -> tuple[int, int]:
        """Return the entry at `slot` as (offset, position); InvalidRequest if there is none."""
        relative, position = _OFFSET_ENTRY.unpack_from(self._data, self._at(slot))
        return self.base_offset + relative, position

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield all entries as (offset, position), oldest first."""
        for relative, position in _OFFSET_ENTRY.iter_unpack(self.encoded):
            yield self.base_offset + relative, position

    def check(self, log_size: int, *, allow_tail: bool = False) -> None:
        """Verify that every entry can be right for a log file of `log_size` bytes.

        Args:
            log_size: Size of the log file in bytes; each position must be below it.
            allow_tail: Whether to ignore a zero tail, which an index has while Kafka writes it.

        Raises:
            CorruptIndex: There is a tail, an entry is not above the previous entry or is below the
                base offset, or a position is beyond the log.
        """
        if not allow_tail:
            self._check_tail()
        if "numpy" in sys.modules and _are_offsets_sound(self.encoded, log_size):
            return
        last_relative, last_position = -1, -1
        for slot, (relative, position) in enumerate(_OFFSET_ENTRY.iter_unpack(self.encoded)):
            if relative <= last_relative or position <= last_position or position >= log_size:
                reason = (
                    f"entry ({relative}, {position}) does not follow ({last_relative}, "
                    f"{last_position}) or is beyond the log's {log_size} bytes"
                )
                raise CorruptIndex(reason, at=slot * OFFSET_ENTRY_SIZE)
            last_relative, last_position = relative, position


_TIME_ENTRY: Final = Struct(">qi")
_TIME_RELATIVE: Final = Struct(">8xi")
TIME_ENTRY_SIZE: Final = 12
assert _TIME_ENTRY.size == TIME_ENTRY_SIZE == _TIME_RELATIVE.size


class TimeIndex(Index):
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
