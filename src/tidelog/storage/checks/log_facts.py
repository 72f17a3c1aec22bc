"""What the checks of a segment's sidecars ask of its log file: one row for each sound batch.

Columns of machine words, some 40 bytes a batch, so that a segment of small batches fits.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from tidelog.record.views import Batch
from tidelog.storage.txn_index import AbortedTxn
from tidelog.types import NO_TIMESTAMP


@dataclass(slots=True)
class LogFacts:
    """The sound batches of one log file, in order.

    Attributes:
        path: The log file.
        base_offset: The segment's base offset.
        size_bytes: Size of the file.
        is_last: Whether it is the partition's last segment, which may still grow.
        is_whole: Whether every byte of the file belongs to a sound batch.
        has_gaps: Whether offsets are missing between its batches or inside one, as compaction
            leaves them: what was derived before it can't be compared exactly.
        next_offset: Offset behind the last sound batch, the base offset where there is none.
        positions: Place of each batch in the file.
        first_offsets: First offset of each batch.
        last_offsets: Last offset of each batch, inclusive.
        timestamps: Largest timestamp in each batch's header, -1 for none.
        fingerprints: `trust.fingerprint` of each batch.
        aborted: The entries that the index of aborted transactions should have.
        markers: Producer id of each abort marker by its offset.
        rises: For each new largest timestamp: the slot of the first batch that has it.
        largest_batch_bytes: Size of the largest batch.
    """

    path: str
    base_offset: int
    size_bytes: int
    is_last: bool
    is_whole: bool = True
    has_gaps: bool = False
    next_offset: int = 0
    largest_batch_bytes: int = 0
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    first_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    last_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    fingerprints: "array[int]" = field(default_factory=lambda: array("I"))
    aborted: list[AbortedTxn] = field(default_factory=list)
    markers: dict[int, int] = field(default_factory=dict)
    rises: "array[int]" = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.next_offset = self.base_offset

    def take(self, position: int, batch: Batch, fingerprint: int) -> None:
        """Note a sound batch."""
        if batch.max_timestamp > self.largest_timestamp:
            self.rises.append(len(self.positions))
        first, last, count = batch.base_offset, batch.last_offset, batch.record_count
        self.has_gaps |= first > self.next_offset or (count is not None and count <= last - first)
        self.positions.append(position)
        self.first_offsets.append(first)
        self.last_offsets.append(last)
        self.timestamps.append(batch.max_timestamp)
        self.fingerprints.append(fingerprint)
        self.next_offset = last + 1
        self.largest_batch_bytes = max(self.largest_batch_bytes, batch.size_bytes)

    def drop_last(self, next_offset: int) -> None:
        """Take the last batch back; the log goes on at `next_offset`."""
        slot = len(self.positions) - 1
        if self.rises and self.rises[-1] == slot:
            self.rises.pop()
        for column in (self.positions, self.first_offsets, self.last_offsets, self.timestamps):
            column.pop()
        self.fingerprints.pop()
        self.next_offset = next_offset

    @property
    def largest_timestamp(self) -> int:
        """Largest timestamp so far, -1 where no batch has one."""
        return self.timestamps[self.rises[-1]] if self.rises else NO_TIMESTAMP

    def slot_at_position(self, position: int) -> int | None:
        """The batch that starts at a position."""
        return _find(self.positions, position)

    def positions_in(self, start: int, end: int) -> "array[int]":
        """Positions of the batches that begin in [start, end) of the file."""
        return self.positions[bisect_left(self.positions, start) : bisect_left(self.positions, end)]

    def slot_ending_with(self, offset: int) -> int | None:
        """The batch whose last offset is the one given."""
        return _find(self.last_offsets, offset)

    def slot_starting_with(self, offset: int) -> int | None:
        """The batch whose first offset is the one given."""
        return _find(self.first_offsets, offset)

    def rise_at(self, slot: int) -> bool:
        """Whether a batch is the first with a timestamp above all before it."""
        return _find(self.rises, slot) is not None

    def largest_up_to(self, slot: int) -> int:
        """Largest timestamp of the batches up to and with `slot`."""
        rise = bisect_left(self.rises, slot + 1) - 1
        return NO_TIMESTAMP if rise < 0 else self.timestamps[self.rises[rise]]


def _find(column: "array[int]", value: int) -> int | None:
    slot = bisect_left(column, value)
    return slot if slot < len(column) and column[slot] == value else None
