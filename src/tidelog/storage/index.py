"""What the offset index and the time index share: sorted entries of one size in one buffer.

A writer appends to memory and hands the same bytes to the file; a closed segment brings a
read-only view of its mapped file, which is searched in place and never copied. The buffer of a
writer is never resized but replaced by a larger one, so views handed out stay valid; only
`truncate_to` with later appends changes bytes under them.

While Kafka writes a segment, its index files are preallocated with zeros, and a hard stop leaves
the zeros behind. `used_size` finds where the real entries end; the indexes apply it when they are
opened.

Source: Kafka 4.x AbstractIndex; KAFKA-10207, KAFKA-19200 (zero tails taken for entries).
"""

from bisect import bisect_left
from struct import Struct
from typing import ClassVar, Final

from tidelog.errors import CorruptIndex, InvalidRequest, OffsetOverflow
from tidelog.types import INT32_MAX, Buffer

DEFAULT_INDEX_BYTES: Final = 10_485_760
_FIRST_CAPACITY: Final = 4096
# Offsets and times mostly grow evenly, so that proportion finds a slot in 2 or 3 probes; where it
# has not by then, halving bounds the rest.
_PROPORTIONAL_PROBES: Final = 4


def used_size(data: Buffer, entry_size: int) -> int:
    """Bytes of `data` before a tail of all-zero entries, a whole number of entries.

    Both indexes grow strictly, so only the first entry can be all zeros and still mean something;
    in a file of one entry it does, before a zero tail it is counted as tail: it would say no more
    than an empty index does. Where a zero entry stands between others, the answer may be any place
    behind an entry that is not zero; `check` finds that.
    """
    count = len(data) // entry_size
    if count <= 1 or any(data[(count - 1) * entry_size : count * entry_size]):
        return count * entry_size
    zeros = bytes(entry_size)

    def is_zero(at: int) -> bool:
        return data[at : at + entry_size] == zeros

    return bisect_left(range(0, count * entry_size, entry_size), x=True, key=is_zero) * entry_size


class Index:
    """Entries of one size for one segment. One thread may write while others search.

    Attributes:
        base_offset: The segment's base offset, which relative offsets count from.
        size_bytes: Bytes of all entries.
        full_bytes: With so many it takes no more; see `is_full` of either.
        tail_bytes: Bytes that the opened file had behind its last entry: zeros of Kafka's
            preallocation, or a torn entry. 0 after the first change.
    """

    ENTRY_SIZE: ClassVar[int]
    _KEPT_SIZE: ClassVar[int] = 0  # what appends leave free
    _KEY: ClassVar[Struct]  # what the entries are searched by; the first field of an entry

    __slots__ = ("_data", "_limit", "base_offset", "full_bytes", "size_bytes", "tail_bytes")

    def __init__(
        self, base_offset: int, *, data: Buffer = b"", size_limit: int = DEFAULT_INDEX_BYTES
    ) -> None:
        """Open an index on the bytes of its file, which are never changed in place.

        Args:
            base_offset: The segment's base offset.
            data: The file's bytes. A zero tail, or a tail that makes no entry, is left out.
            size_limit: `segment.index.bytes`; what does not fit an entry is not used.
        """
        self.base_offset = base_offset
        self.size_bytes = used_size(data, self.ENTRY_SIZE)
        self.tail_bytes = len(data) - self.size_bytes
        self._limit = size_limit // self.ENTRY_SIZE * self.ENTRY_SIZE
        self.full_bytes = self._limit - self._KEPT_SIZE
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
        """A read-only view of all entries as the file has them, without copying."""
        return memoryview(self._data)[: self.size_bytes].toreadonly()

    def encoded_from(self, start: int) -> bytes:
        """A copy of the entries from a place on; mostly of one."""
        return bytes(self._data[start : self.size_bytes])

    def clear(self) -> None:
        """Drop all entries, as before a rebuild."""
        self.size_bytes = self.tail_bytes = 0

    def _floor(self, target: int, key: Struct | None = None) -> int:
        """The last slot whose key is <= `target`, -1 where there is none.

        Args:
            target: What to find.
            key: Another field of an entry that grows, in place of the one it is searched by.
        """
        size, read = self.ENTRY_SIZE, (self._KEY if key is None else key).unpack_from
        low, high = 0, self.size_bytes // size - 1
        data = self._data  # after the size: a writer puts entries in place before it counts them
        if high < 0 or target < (low_key := read(data, 0)[0]):
            return -1
        if target >= (high_key := read(data, high * size)[0]):
            return high
        probes = _PROPORTIONAL_PROBES
        while high - low > 1:  # key at low <= target < key at high
            probes -= 1
            if probes >= 0:
                slot = low + (target - low_key) * (high - low) // (high_key - low_key)
            else:
                slot = (low + high) // 2
            slot = max(slot, low + 1)
            if (found := read(data, slot * size)[0]) <= target:
                low, low_key = slot, found
            else:
                high, high_key = slot, found
        return low

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= INT32_MAX:
            raise self._overflow(offset)
        return relative

    def _overflow(self, offset: int) -> OffsetOverflow:
        return OffsetOverflow(
            f"offset {offset} is not within 2^31 - 1 of base offset {self.base_offset}"
        )

    def _put(self, entry: bytes) -> bytes:
        """Append an entry's bytes to the buffer, and hand them back for the file."""
        size_bytes, data = self.size_bytes, self._data
        end = size_bytes + len(entry)
        if type(data) is not bytearray or end > len(data):
            data = self._grow()
        data[size_bytes:end] = entry
        self.tail_bytes = 0
        self.size_bytes = end  # last, so that a search in another thread sees whole entries only
        return entry

    def _grow(self) -> bytearray:
        """A larger copy; the old buffer stays as it is for those who have a view of it."""
        data = bytearray(max(_FIRST_CAPACITY, 2 * self.size_bytes))
        data[: self.size_bytes] = memoryview(self._data)[: self.size_bytes]
        self._data = data
        return data

    def _keep(self, entry_count: int) -> int:
        """Drop all but the first entries; the size in bytes that is left."""
        self.size_bytes = entry_count * self.ENTRY_SIZE
        self.tail_bytes = 0
        return self.size_bytes

    def _at(self, slot: int) -> int:
        at = slot * self.ENTRY_SIZE
        if not 0 <= at < self.size_bytes:
            raise InvalidRequest(f"index slot {slot} of {self.entry_count}")
        return at

    def _check_tail(self) -> None:
        if self.tail_bytes:
            reason = (
                f"{self.tail_bytes} bytes behind the last entry: zeros that were preallocated, "
                f"or an entry that is not whole"
            )
            raise CorruptIndex(reason, at=self.size_bytes)
