"""Common base of the offset index and the time index: binary search, buffer of entries, truncation.

`SortedIndex._floor` is the search of both indexes (`OffsetIndex.lookup`, `TimeIndex.lookup`): a
binary search in which the first probes are interpolated.

A writer appends entries in memory and writes the same bytes to the file. For a finished segment,
the index is a read-only view of the mapped file and is searched in place. If a writer's buffer is
too small, a larger buffer replaces it. A buffer is never resized, so views stay valid. The bytes
under an existing view change only if entries are appended after a `truncate_to`.

While Kafka writes a segment, the segment's index files are preallocated with zeros; these zeros
remain after a hard stop. `used_size` finds the end of the real entries when an index is opened.
Indexes have no checksum; a doubtful index is rebuilt from the log (`index_loading`).

Source: KIP-33; Kafka 4.x AbstractIndex; KAFKA-806, KAFKA-10207, KAFKA-19200 (zero tails).
"""

from bisect import bisect_left
from struct import Struct
from typing import ClassVar, Final

from tidelog.errors import CorruptIndex, InvalidRequest, OffsetOverflow
from tidelog.types import Buffer

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


class SortedIndex:
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
