"""Offset index of a segment: from an offset to a position in the log file.

The file is `BASE.index`. Entry (offset, position): the batch at `position` has `offset` as its LAST
offset; batches between two indexed batches have no entry. Offsets and positions strictly increase.
An entry has 8 bytes, big-endian: int32 offset relative to the base offset, int32 position.

`OffsetIndex.lookup` searches with `SortedIndex._floor` (`sorted_index`). If numpy is already
loaded, the order of entries is checked with arrays, which is a hundred times faster.

Source: Kafka 4.x OffsetIndex; docs/format.md#offset-index.
"""

import sys
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.amounts import plural
from tidelog.errors import CorruptIndex, IndexFull, InvalidRequest
from tidelog.storage.segment.sorted_index import SortedIndex
from tidelog.types import INT32_MAX, Buffer

_OFFSET_ENTRY: Final = Struct(">ii")
_OFFSET_RELATIVE: Final = Struct(">i")
_POSITION: Final = Struct(">4xi")
OFFSET_ENTRY_SIZE: Final = 8
assert _OFFSET_ENTRY.size == OFFSET_ENTRY_SIZE


class OffsetIndex(SortedIndex):
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
