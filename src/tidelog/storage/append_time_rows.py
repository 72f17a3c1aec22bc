"""The rows of an append clock as a sequence, without making them all."""

from collections.abc import Sequence
from typing import NamedTuple, overload


class AppendTimeRow(NamedTuple):
    """One row: offset of the first record, append time in ms or -1, checksum of its batch."""

    offset: int
    append_ms: int
    batch_crc: int


class AppendTimeRows(Sequence[AppendTimeRow]):
    """The rows of an `AppendTimes`, oldest first; each is made when it is asked for."""

    def __init__(self, *columns: Sequence[int]) -> None:
        self._columns = columns

    @property
    def columns(self) -> tuple[Sequence[int], ...]:
        """Offsets, append times and checksums, for who takes all at once; they are not copied."""
        return self._columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, slot: int) -> AppendTimeRow: ...
    @overload
    def __getitem__(self, slot: slice) -> list[AppendTimeRow]: ...
    def __getitem__(self, slot: int | slice) -> AppendTimeRow | list[AppendTimeRow]:
        if isinstance(slot, slice):
            return list(map(AppendTimeRow, *(column[slot] for column in self._columns)))
        return AppendTimeRow(*(column[slot] for column in self._columns))
