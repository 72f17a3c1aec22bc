"""The rows of an append clock as a sequence, without making them all."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, overload
from uuid import UUID

from tidelog.types import Buffer

# From so many rows on, columns are cut out of them byte by byte of a row: a tenth of the work.
_MANY_ROWS: Final = 64
_TOPIC_ID_AT: Final = slice(8, 24)
_NO_TOPIC_ID: Final = UUID(int=0)


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


def unpack_columns(row: Struct, data: bytes) -> tuple[Sequence[int], ...]:
    """The columns of big-endian rows, at least one of them, without padding between numbers."""
    count = len(data) // row.size
    if count < _MANY_ROWS:
        return tuple(zip(*row.iter_unpack(data), strict=True))
    columns, at = [], 0
    for code in row.format[1:]:
        column = array(code)
        size = column.itemsize
        swapped = bytearray(count * size)
        for place in range(size):
            target = size - 1 - place if sys.byteorder == "little" else place
            swapped[target::size] = data[at + place :: row.size]
        column.frombytes(swapped)
        columns.append(column)
        at += size
    return tuple(columns)


def gaps(spans: list[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """What the sorted `spans` leave of [start, end), as ranges of that kind."""
    for span_start, span_end in spans:
        if start < span_start:
            yield start, span_start
        start = span_end
    if start < end:
        yield start, end


def owner_of(data: Buffer, topic_id: UUID) -> UUID:
    """Return the topic id that a file of this topic has in its header.

    A file written before the topic got its id has zeros there. They count as this topic's id; any
    other id is refused by the caller.
    """
    is_without = bytes(data[_TOPIC_ID_AT]) == _NO_TOPIC_ID.bytes
    return _NO_TOPIC_ID if is_without else topic_id
