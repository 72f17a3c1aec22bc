"""The file `BASE.appendtime`: when the log received each record of a segment.

A row (ms, offset) gives the append time of the row's run: the records from the row's offset up to
the next row's offset, exclusive. A time of -1 means unknown. The times of offsets before the first
row are unknown. Offsets increase strictly. Exception: a row with a known time can have the same
offset as a preceding row with an unknown time. Known times never decrease. A row with a known time
also has the fingerprint of the batch that starts at the row's offset, so that the row can be
compared with the log (`tidelog.storage.segment.append_time_trust`).

**No time is ever guessed:**
- The valid part ends before the first row that has a wrong checksum or breaks a rule. Later rows
  are not used, even if they are right: if they were used, records of the invalid row would get the
  previous row's time.
- In a damaged file the last valid row is used only for its own offset, because only the next row
  would show where the run ends, and rows of later appends may be missing.
- A closed file ends with a row of time -1, which ends the last run. So a closed file whose last row
  has a known time has lost rows, and counts as damaged. Records that another program appends after
  the close have unknown times.
- Each row's checksum continues the previous row's checksum. The first row's checksum continues the
  header's checksum, which covers topic id and base offset. So two kinds of rows are invalid: rows
  of another file, and old rows that reappear after newer rows because a truncation was lost.

The file is primary data, which can't be rebuilt. This module does no I/O: the caller writes the
returned bytes.

Header, 28 bytes: magic `TLAT`, int16 version, int16 row size, 16 bytes topic id, uint32 CRC-32C.
Row, 20 bytes: int64 ms, int32 offset relative to the base offset, uint32 fingerprint of the batch
that starts at this offset (if the time is unknown: of the batch that ends at this offset, or 0),
uint32 CRC-32C. All numbers are big-endian.

Source: docs/format.md#append-times.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, Self, overload
from uuid import UUID

from tidelog.record.coding import crc32c
from tidelog.types import INT32_MAX, INT64_MAX, UNKNOWN_MS, Buffer

# Minimum number of rows for which columns are extracted by byte slices. From this number on, slices
# are ten times faster than unpacking row by row.
_MANY_ROWS: Final = 64

_TOPIC_ID_AT: Final = slice(8, 24)
_NO_TOPIC_ID: Final = UUID(int=0)


class AppendTimeRow(NamedTuple):
    """One row: offset of the first record, append time in ms or -1, fingerprint of a batch."""

    offset: int
    append_ms: int
    batch_crc: int


class AppendTimeRows(Sequence[AppendTimeRow]):
    """The rows of an `AppendTimes`, oldest first; a row's object is created on access."""

    def __init__(self, base_offset: int, *columns: Sequence[int]) -> None:
        self._base_offset = base_offset
        self._columns = columns

    @property
    def columns(self) -> tuple[Sequence[int], ...]:
        """The three columns, not copied: relative offsets, append times, fingerprints.

        The offsets are relative to the segment's base offset.
        """
        return self._columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, slot: int) -> AppendTimeRow: ...
    @overload
    def __getitem__(self, slot: slice) -> list[AppendTimeRow]: ...
    def __getitem__(self, slot: int | slice) -> AppendTimeRow | list[AppendTimeRow]:
        if isinstance(slot, slice):
            return list(map(self._row, *(column[slot] for column in self._columns)))
        return self._row(*(column[slot] for column in self._columns))

    def _row(self, relative: int, append_ms: int, batch_crc: int) -> AppendTimeRow:
        return AppendTimeRow(self._base_offset + relative, append_ms, batch_crc)


def unpack_columns(row: Struct, data: bytes) -> tuple[Sequence[int], ...]:
    """Unpack one or more rows of big-endian numbers without padding; return the columns."""
    count = len(data) // row.size
    if count < _MANY_ROWS:
        return tuple(zip(*row.iter_unpack(data), strict=True))
    columns, at = [], 0
    for code in row.format[1:]:
        column = array(code)
        size = column.itemsize
        swapped = bytearray(count * size)
        for byte in range(size):
            target = size - 1 - byte if sys.byteorder == "little" else byte
            swapped[target::size] = data[at + byte :: row.size]
        column.frombytes(swapped)
        columns.append(column)
        at += size
    return tuple(columns)


def _unknown_slots_of(rows: bytes) -> list[int]:
    """Return the indexes of the rows with the time -1.

    The only valid time whose first byte is 0xff is -1.
    """
    firsts = rows[::ROW_SIZE]
    slots, slot = [], firsts.find(0xFF)
    while slot >= 0:
        slots.append(slot)
        slot = firsts.find(0xFF, slot + 1)
    return slots


def gaps(spans: list[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that are not in the sorted `spans`, as [start, end) pairs."""
    for span_start, span_end in spans:
        if start < span_start:
            yield start, span_start
        start = span_end
    if start < end:
        yield start, end


def owner_of(data: Buffer, topic_id: UUID) -> UUID:
    """Return the topic id that the header of this topic's file must have.

    A file that was written before the topic got its id has zeros in its header. For such a file,
    the result is the all-zero id.
    """
    is_without = bytes(data[_TOPIC_ID_AT]) == _NO_TOPIC_ID.bytes
    return _NO_TOPIC_ID if is_without else topic_id


MAGIC: Final = b"TLAT"
VERSION: Final = 1
_HEADER: Final = Struct(">4shh16sI")
_ROW: Final = Struct(">qiII")
_ROW_FACTS: Final = Struct(">qiI")
_BASE_OFFSET: Final = Struct(">q")
HEADER_SIZE: Final = 28
ROW_SIZE: Final = 20
_FACTS_SIZE: Final = 16
CRC_SIZE: Final = ROW_SIZE - _FACTS_SIZE

assert (_HEADER.size, _ROW.size, _ROW_FACTS.size) == (HEADER_SIZE, ROW_SIZE, _FACTS_SIZE)


@lru_cache(maxsize=8)
def encode_header(base_offset: int, topic_id: UUID) -> bytes:
    """Encode the header of a segment's file; its checksum also covers the base offset."""
    head = _HEADER.pack(MAGIC, VERSION, ROW_SIZE, topic_id.bytes, 0)[:-4]
    return head + crc32c(_BASE_OFFSET.pack(base_offset), crc32c(head)).to_bytes(4, "big")


class AppendTimes:
    """Append times of one segment. One thread may change the times while other threads read them.

    Attributes:
        base_offset: The segment's base offset.
        topic_id: The topic's id. A file with another id is not used.
        granularity_ms: Times are rounded down to a multiple of this value, but not below the
            previous row's time or `floor_ms`. So for a row's `ms`: ms <= append time < ms +
            granularity. The value may be changed between two appends.
        floor_ms: Minimum time of a new row in ms; -1 for no minimum.
    """

    __slots__ = (
        "_batch_crcs",
        "_crc",
        "_floors",
        "_owner",
        "_relatives",
        "_times",
        "_unknown_slots",
        "base_offset",
        "floor_ms",
        "granularity_ms",
        "topic_id",
    )

    def __init__(
        self,
        base_offset: int,
        topic_id: UUID,
        *,
        granularity_ms: int = 1,
        floor_ms: int = -1,
        owner: UUID | None = None,
    ) -> None:
        assert granularity_ms >= 1
        self.base_offset = base_offset
        self.topic_id = topic_id
        self._owner = topic_id if owner is None else owner  # topic id in the header
        self.granularity_ms = granularity_ms
        self.floor_ms = floor_ms
        self._relatives = array("i")  # offsets, relative to the base offset
        self._times = array("q")
        self._floors = array("q")  # the last known time at each row, for binary search
        self._batch_crcs = array("I")
        # Checksum of the last row, or of the header if there are no rows.
        self._crc = self._header_crc()
        self._unknown_slots: list[int] = []

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self._relatives)

    @property
    def size_bytes(self) -> int:
        """Size in bytes of the file with all rows."""
        return HEADER_SIZE + ROW_SIZE * self.row_count

    @property
    def last_known_ms(self) -> int | None:
        """Largest append time of the segment in ms, None if no append time is known."""
        return self._floors[-1] if self._floors else None

    @property
    def digest(self) -> tuple[int, int]:
        """Number of rows, and a checksum of all rows; equal digests mean equal rows."""
        return self.row_count, self._crc

    @property
    def is_open(self) -> bool:
        """Whether the last row has a known time, so that its run has no end yet."""
        return bool(self._times) and self._times[-1] != UNKNOWN_MS

    def ends_at(self, offset: int) -> bool:
        """Return whether the last row ends a run at `offset` and has a fingerprint (not 0)."""
        if not self._times or self._times[-1] != UNKNOWN_MS or not self._batch_crcs[-1]:
            return False
        return self._offset_at(-1) == offset

    def rows(self) -> AppendTimeRows:
        """Return a view of all rows, oldest first; the view shows later changes."""
        return AppendTimeRows(self.base_offset, self._relatives, self._times, self._batch_crcs)

    def note(self, offset: int, append_ms: int, batch_crc: int) -> bytes:
        """Add the append time of records from `offset` on; return the bytes to append to the file.

        If storing the records in the log then fails, revert the change with `truncate_to`.

        Args:
            offset: First offset of the append. Above the last row's offset, or equal to the last
                row's offset if that row's time is unknown.
            append_ms: Append time in ms, not below the last known time or `floor_ms`.
            batch_crc: Fingerprint of the record batch at `offset`.

        Returns:
            The bytes; b"" if the rounded time is unchanged, so that the last run continues.
        """
        floors, floor_ms = self._floors, self.floor_ms
        last_ms = floors[-1] if floors and floors[-1] > floor_ms else floor_ms
        assert last_ms <= append_ms >= 0
        append_ms = max(append_ms - append_ms % self.granularity_ms, last_ms)
        if last_ms == append_ms and self.goes_on_at(append_ms):
            assert offset > self._offset_at(-1)
            return b""
        return self._append(append_ms, offset, batch_crc)

    def goes_on_at(self, append_ms: int) -> bool:
        """Return whether the last row has exactly this time; if so, `note` adds no row."""
        return bool(self._times) and self._times[-1] == append_ms

    def extend(self, rows: AppendTimeRows, crc: int) -> None:
        """Append rows, at least one, as `note` would create them; `crc` is the last checksum."""
        relatives, times, batch_crcs = rows.columns
        assert relatives[0] >= (self._relatives[-1] + self.is_open if self._relatives else 0)
        assert times[0] >= max(self._floors[-1] if self._floors else 0, self.floor_ms)
        self._floors.extend(times)
        self._times.extend(times)
        self._batch_crcs.extend(batch_crcs)
        # Added last, because a search in another thread reads this column first.
        self._relatives.extend(relatives)
        self._crc = crc

    def mark_unknown(self, offset: int, batch_crc: int = 0) -> bytes:
        """Mark times from `offset` on as unknown; return the bytes to append to the file.

        Args:
            offset: First offset with an unknown time. If the last row's time is known, this must be
                above the last row's offset.
            batch_crc: Fingerprint of the record batch that ends at `offset`, as a later proof that
                the last run ended there; 0 to store no proof.

        Returns:
            The bytes; b"" if the times from `offset` on were already unknown, or if the segment
            can't have this offset.
        """
        if not self.is_open or offset - self.base_offset > INT32_MAX:
            return b""
        return self._append(UNKNOWN_MS, offset, batch_crc)

    def close(self, end_offset: int, last_batch_crc: int = 0) -> bytes:
        """End the last run at the log end, exclusive; return the bytes to append to the file."""
        return self.mark_unknown(end_offset, last_batch_crc)

    def truncate_to(self, offset: int) -> int:
        """Drop rows from `offset` on; return the size in bytes to truncate the file to.

        If the last remaining row has a known time, `is_open` is true again. The truncation must be
        durable before records are appended to the log. Otherwise rows of removed records could be
        mistaken for rows of new records.
        """
        count = bisect_left(self._relatives, offset - self.base_offset)
        if count < len(self._relatives):
            for column in (self._relatives, self._times, self._floors, self._batch_crcs):
                del column[count:]
            del self._unknown_slots[bisect_left(self._unknown_slots, count) :]
            self._crc = self._header_crc()
            for _, crc in self._sealed_rows():
                self._crc = crc
        return self.size_bytes

    def time_at(self, offset: int) -> int | None:
        """Return when the record at `offset` was appended, in ms; None if unknown.

        The result is valid only for offsets in the log, because an open last run would include any
        later offset.
        """
        slot = bisect_right(self._relatives, offset - self.base_offset) - 1
        if slot < 0 or self._times[slot] == UNKNOWN_MS:
            return None
        return self._times[slot]

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last known append time in ms of offsets [start, end), or None."""
        first = max(bisect_right(self._relatives, start - self.base_offset) - 1, 0)
        last = bisect_left(self._relatives, end - self.base_offset) - 1
        # Two neighboring rows are never both unknown.
        if first <= last and self._times[first] == UNKNOWN_MS:
            first += 1
        if first <= last and self._times[last] == UNKNOWN_MS:
            last -= 1
        if first > last or start >= end:
            return None
        return self._times[first], self._times[last]

    def known_times(self, limit: int | None = None) -> Sequence[int]:
        """Return the known times of the first `limit` rows, or of all rows, in ms."""
        times = self._times[:limit]
        for slot in reversed(self._unknown_slots[: bisect_left(self._unknown_slots, len(times))]):
            del times[slot]
        return times

    def runs(self, start: int, end: int) -> list[tuple[int, int, int | None]]:
        """Split the offsets [start, end) into runs: (start, end, append time in ms or None)."""
        runs: list[tuple[int, int, int | None]] = []
        for run_start, run_end, ms in self._runs_from(start):
            if run_start >= end:
                break
            clipped, append_ms = max(run_start, start), None if ms == UNKNOWN_MS else ms
            if runs and runs[-1][2] == append_ms:
                runs[-1] = (runs[-1][0], min(run_end, end), append_ms)
            elif clipped < min(run_end, end):
                runs.append((clipped, min(run_end, end), append_ms))
        return runs

    def ranges(self, a: int, b: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of offsets [start, end) whose known append time in ms is in [a, b)."""
        first = bisect_left(self._floors, a)
        last = min(bisect_left(self._floors, b), len(self._relatives))
        if first >= last:
            return []
        start = max(start, self._offset_at(first))
        end = min(end, self._end_of(last - 1))
        return list(gaps(self.unknown_in(start, end), start, end))

    def unknown_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return ranges of offsets in [start, end) whose append time is unknown."""
        first_known = self._offset_at(0) if self._relatives else INT64_MAX
        spans = [(start, min(end, first_known))]
        from_slot = bisect_right(self._relatives, start - self.base_offset) - 1
        at = bisect_left(self._unknown_slots, from_slot)
        for slot in self._unknown_slots[at:]:
            if slot >= len(self._relatives) or self._offset_at(slot) >= end:
                break
            spans.append((max(start, self._offset_at(slot)), min(end, self._end_of(slot))))
        return [span for span in spans if span[0] < span[1]]

    def encode_header(self) -> bytes:
        """Encode the header of the file."""
        return encode_header(self.base_offset, self._owner)

    def encode(self) -> bytes:
        """Encode the whole file: header and rows."""
        rows = (facts + crc.to_bytes(4, "big") for facts, crc in self._sealed_rows())
        return b"".join((self.encode_header(), *rows))

    @classmethod
    def decode(
        cls,
        data: Buffer,
        base_offset: int,
        topic_id: UUID,
        *,
        open_end: bool = False,
        proven: tuple[int, int] | None = None,
    ) -> tuple[Self, str | None]:
        """Decode the trusted part of a file.

        Args:
            data: The file's bytes.
            base_offset: The segment's base offset. A file of another segment is not used.
            topic_id: The topic's id. A file of another topic is not used (see `owner_of`).
            open_end: Whether it is certain that no row is missing at the file's end. It is certain
                if a writer has the log open and the caller read the log end offset before it read
                this file. If False, a file without an end row counts as damaged, because a hard
                stop may have lost rows.
            proven: Number of rows and checksum of the last row, from an earlier check of rows. The
                file is known to begin with these rows. If the file has exactly this number of rows
                and this last checksum, the rows are not checked again. None if no earlier check is
                known.

        Returns:
            The trusted times and a description of the damage. The description is None for a sound
            file. A damaged file must be replaced by the result of `encode` before rows are added.
        """
        times = cls(base_offset, topic_id, owner=owner_of(data, topic_id))
        damage = times._header_damage(data)
        if damage is not None:
            return times, damage
        damage = times._read_rows(bytes(data[HEADER_SIZE:]), proven)
        if damage is None and times.is_open and not open_end:
            damage = f"no end row after row {times.row_count - 1}: later rows may be lost"
        if damage is not None and times.is_open:
            # The last row is certain only for its own offset, because rows after it may be missing.
            times.mark_unknown(times._offset_at(-1) + 1)
        return times, damage

    def _append(self, ms: int, offset: int, batch_crc: int) -> bytes:
        relative, relatives, times = offset - self.base_offset, self._relatives, self._times
        assert 0 <= relative <= INT32_MAX
        assert not relatives or relative >= relatives[-1] + (times[-1] != UNKNOWN_MS)
        self._crc = crc = crc32c(_ROW_FACTS.pack(ms, relative, batch_crc), self._crc)
        if ms == UNKNOWN_MS:
            self._unknown_slots.append(len(times))
        self._floors.append(self._floors[-1] if ms == UNKNOWN_MS else ms)
        times.append(ms)
        self._batch_crcs.append(batch_crc)
        relatives.append(relative)  # added last: a search in another thread reads this column first
        return _ROW.pack(ms, relative, batch_crc, crc)

    def _header_crc(self) -> int:
        return int.from_bytes(self.encode_header()[-4:], "big")

    def _sealed_rows(self) -> Iterator[tuple[bytes, int]]:
        """Yield each row without its checksum, and the checksum of header and rows so far."""
        crc = self._header_crc()
        for row in zip(self._times, self._relatives, self._batch_crcs, strict=True):
            facts = _ROW_FACTS.pack(*row)
            crc = crc32c(facts, crc)
            yield facts, crc

    def _header_damage(self, data: Buffer) -> str | None:
        if bytes(data[:HEADER_SIZE]) == self.encode_header():
            return None
        if len(data) < HEADER_SIZE:
            return f"header of {len(data)} bytes, {HEADER_SIZE} expected"
        magic, version, row_size, topic, _ = _HEADER.unpack_from(data)
        if magic != MAGIC:
            return f"magic {magic!r}, {MAGIC!r} expected"
        if (version, row_size) != (VERSION, ROW_SIZE):
            return f"version {version} with rows of {row_size} bytes is not known"
        if topic != self.topic_id.bytes:
            return f"topic id {UUID(bytes=topic)}, {self.topic_id} expected"
        return f"header checksum is wrong for base offset {self.base_offset}"

    def _read_rows(self, data: bytes, proven: tuple[int, int] | None) -> str | None:
        """Add the rows before the first invalid row; return its problem, None if all are valid."""
        count, rest = divmod(len(data), ROW_SIZE)
        valid, damage = count, None
        if proven != (count, int.from_bytes(data[-CRC_SIZE:], "big")) or rest:
            valid, damage = self._count_valid(data[: count * ROW_SIZE])
        if valid:
            times, relatives, batch_crcs, crcs = unpack_columns(_ROW, data[: valid * ROW_SIZE])
            self._times = array("q", times)
            self._batch_crcs = array("I", batch_crcs)
            self._relatives = array("i", relatives)
            self._unknown_slots = _unknown_slots_of(data[: valid * ROW_SIZE])
            # Known times never decrease, so the floor at a row with a known time is this time.
            self._floors = self._times[:]
            for slot in self._unknown_slots:
                self._floors[slot] = self._floors[slot - 1]
            self._crc = crcs[-1]
        if damage is None and rest:
            return f"row {count}: only {rest} of {ROW_SIZE} bytes"
        return damage

    def _count_valid(self, data: bytes) -> tuple[int, str | None]:
        """Return the number of valid rows, and the problem of the next row, or None."""
        crc, last, floor_ms, is_open = self._crc, 0, 0, False
        for slot, (ms, relative, _, stored) in enumerate(_ROW.iter_unpack(data)):
            at = slot * ROW_SIZE
            crc = crc32c(data[at : at + _FACTS_SIZE], crc)
            if stored != crc:
                return slot, f"row {slot}: wrong checksum"
            is_end = ms == UNKNOWN_MS and is_open
            if relative < last + is_open or not (is_end or ms >= floor_ms):
                return slot, f"row {slot}: time {ms}, offset {relative} can't follow the row before"
            last, is_open, floor_ms = relative, not is_end, floor_ms if is_end else ms
        return len(data) // ROW_SIZE, None

    def _offset_at(self, slot: int) -> int:
        return self.base_offset + self._relatives[slot]

    def _end_of(self, slot: int) -> int:
        return self._offset_at(slot + 1) if slot + 1 < len(self._relatives) else INT64_MAX

    def _runs_from(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield the run that contains `start` and all later runs: first offset, end offset, time.

        If `start` is below the first row, the first run begins at `start` and has an unknown time.
        """
        slot = bisect_right(self._relatives, start - self.base_offset) - 1
        if slot < 0:
            yield start, self._offset_at(0) if self._relatives else INT64_MAX, UNKNOWN_MS
        for row in range(max(slot, 0), len(self._relatives)):
            yield self._offset_at(row), self._end_of(row), self._times[row]
