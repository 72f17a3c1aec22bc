"""The offset index of a segment, `BASE.index`: from offsets to places in the log file.

An entry (offset, position) says: the batch that starts at `position` has `offset` as its LAST
offset. It promises nothing about batches between two entries. Offsets and positions grow strictly.
No checksum; a doubtful index is rebuilt from the log.

Entry, 8 bytes, big-endian: int32 offset relative to the base offset, int32 position.

Source: Kafka 4.x OffsetIndex, KAFKA-806; docs/format.md#offset-index.
"""

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest
from tidelog.storage import index_arrays
from tidelog.storage.index import Index
from tidelog.types import INT32_MAX

_ENTRY: Final = Struct(">ii")
_RELATIVE: Final = Struct(">i")
_POSITION: Final = Struct(">4xi")
ENTRY_SIZE: Final = 8
assert _ENTRY.size == ENTRY_SIZE


class OffsetIndex(Index):
    """Offset index entries of one segment: append* -> truncate or close; or opened for search."""

    ENTRY_SIZE = ENTRY_SIZE
    _KEY = _RELATIVE
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """Whether the next append would raise `IndexFull`; a full index rolls the segment."""
        return self.size_bytes >= self.full_bytes

    @property
    def last_offset(self) -> int:
        """The newest entry's offset, the base offset where there is none."""
        return self.entry(self.entry_count - 1)[0] if self.size_bytes else self.base_offset

    def append(self, offset: int, position: int) -> bytes:
        """Add an entry; its bytes, which belong at the end of the file.

        Args:
            offset: Last offset of the batch.
            position: Place in the log file, in bytes, where that batch starts.

        Raises:
            IndexFull: No room is left.
            OffsetOverflow: The offset does not fit; nothing was changed.
            InvalidRequest: Offset or position does not follow the last entry's.
        """
        size_bytes = self.size_bytes
        if size_bytes >= self.full_bytes:
            raise IndexFull(f"offset index {self.base_offset} is full: {self.entry_count} entries")
        relative, data = offset - self.base_offset, self._data
        if not 0 <= relative <= INT32_MAX:
            raise self._overflow(offset)
        if size_bytes:
            last, last_position = _ENTRY.unpack_from(data, size_bytes - ENTRY_SIZE)
            if relative <= last or position <= last_position:
                raise InvalidRequest(
                    f"offset index entry ({offset}, {position}) does not follow "
                    f"({self.base_offset + last}, {last_position})"
                )
        assert 0 <= position <= INT32_MAX
        return self._put(_ENTRY.pack(relative, position))

    def lookup(self, target: int) -> tuple[int, int]:
        """The greatest entry with offset <= `target` as (offset, position), else (base, 0).

        Keys are last offsets, so a batch that holds `target` starts at or after that position, and
        one scans on for the first batch whose last offset is >= `target`.
        """
        slot = self._floor(target - self.base_offset)
        if slot < 0:
            return self.base_offset, 0
        found, position = _ENTRY.unpack_from(self._data, slot * ENTRY_SIZE)
        return self.base_offset + found, position

    def slot_at_or_after(self, offset: int) -> int:
        """The first slot whose offset is >= `offset`, the entry count where there is none."""
        return self._floor(offset - self.base_offset - 1) + 1

    def slot_at_or_before_position(self, position: int) -> int:
        """The last slot whose position is <= `position`, -1 where there is none."""
        return self._floor(position, _POSITION)

    def entry(self, slot: int) -> tuple[int, int]:
        """The entry at `slot` as (offset, position); raises InvalidRequest outside the entries."""
        relative, position = _ENTRY.unpack_from(self._data, self._at(slot))
        return self.base_offset + relative, position

    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries as (offset, position), oldest first."""
        for relative, position in _ENTRY.iter_unpack(self.encoded):
            yield self.base_offset + relative, position

    def truncate_to(self, offset: int) -> int:
        """Drop entries with an offset >= `offset`; the size in bytes that is left."""
        data = self._data

        def relative_at(at: int) -> int:
            found: int = _RELATIVE.unpack_from(data, at)[0]
            return found

        places = range(0, self.size_bytes, ENTRY_SIZE)
        return self._keep(bisect_left(places, offset - self.base_offset, key=relative_at))

    def check(self, log_size: int, *, allow_tail: bool = False) -> None:
        """Make sure that every entry can be right for a log file of `log_size` bytes.

        Args:
            log_size: Bytes of the log file; each position must lie below.
            allow_tail: Pass over a zero tail, as an index has while Kafka writes it.

        Raises:
            CorruptIndex: A tail, or an entry that does not follow the one before or the base
                offset, or lies beyond the log.
        """
        if not allow_tail:
            self._check_tail()
        if index_arrays.are_loaded() and index_arrays.are_offsets_sound(self.encoded, log_size):
            return
        last_relative, last_position = -1, -1
        for slot, (relative, position) in enumerate(_ENTRY.iter_unpack(self.encoded)):
            if relative <= last_relative or position <= last_position or position >= log_size:
                reason = (
                    f"entry ({relative}, {position}) does not follow ({last_relative}, "
                    f"{last_position}) or is beyond the log's {log_size} bytes"
                )
                raise CorruptIndex(reason, at=slot * ENTRY_SIZE)
            last_relative, last_position = relative, position
