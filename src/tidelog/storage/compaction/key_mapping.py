"""The first pass of a cleaning: maps the keys of the head, and marks superseded records.

This module owns, for one job:

- The offset map, of at most `log.cleaner.dedupe.buffer.size` bytes. A slot has 24 bytes: 16 for the
  hash, and 8 for the index of the record's bit (see the next item). In Kafka, a slot has 24 bytes,
  too, but the last 8 are for the record's offset. If the strategy compares versions, a slot has 8
  more bytes for the version. If keys are verified, half of the memory is for keys, and a slot has 8
  more bytes for the position of the key.
- One bit for each mapped record (whether it is superseded), and notes on each batch (size, records,
  tombstones). With these bits and notes, the second pass usually reads little more than the batches
  with remaining records. The second pass decompresses only batches that lost some records but not
  all. Bits and notes together take at most `NOTES_BYTES_MAX`. When the map or the notes are full,
  mapping stops, and another pass continues. Each pass maps at least one record.
- Batches that are kept as empty batches if no record remains. These are the last data batch of each
  active producer (for the last sequence number), and the batch at the end of the job's offsets (so
  that the log end is not lost). If the log has no data batch of an active producer, the markers
  with the producer's newest epoch are kept instead (for the epoch).
- Transactions: aborted data is dropped, and a marker is dropped when it is no longer needed. As
  long as a batch of the transaction exists, even an empty one, the marker is kept. If the marker is
  an abort, the transaction's entry is copied to the new index of aborted transactions. When no
  batch of the transaction exists any more, the marker gets a delete horizon, and a cleaning after
  the horizon removes the marker. One pass over the batches in the order of offsets
  (`TransactionWalk`) decides which markers are needed. If this pass has not visited everything
  before a marker (`sees_all` is false), a batch of the transaction may still exist, so the marker
  is kept. If such a batch remained without its marker, a reader from the log's start would treat
  the transaction as open forever.

Imports numpy and numba. Source: Kafka 4.x Cleaner.buildOffsetMap, SkimpyOffsetMap,
CleanedTransactionMetadata; KAFKA-5490; KIP-98, KIP-534; the keyed messages proposal.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.errors import CleaningFailed
from tidelog.lazy_dataclass import dataclass
from tidelog.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from tidelog.record.kernels import key_map, layout
from tidelog.record.kernels.checksums import NO_SHIFTS, shifts
from tidelog.record.kernels.hashes import MD5, SIPHASH, make_hasher
from tidelog.record.kernels.key_map import WINDOW_SIZE, Marks, map_batches
from tidelog.record.kernels.layout import REASONS
from tidelog.record.kernels.rewrite import count_remaining
from tidelog.record.record import ControlType
from tidelog.storage.compaction import job as words
from tidelog.storage.compaction.job import CleaningJob, CompactionRules, SourceSegment
from tidelog.storage.compaction.source_reader import (
    OpenedBatches,
    Piece,
    SourceReader,
    check_counts,
    check_sums,
    lies_plainly,
    opened_groups,
)
from tidelog.storage.segment.txn_index import AbortedTxn

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Ints, Longs
    from tidelog.storage.compaction.source_reader import Mask


# Maximum memory of the bits of mapped records and the notes on their batches, together.
NOTES_BYTES_MAX: Final = 64 << 20

_FIRST_BITS_BYTES: Final = 1 << 16

# If few offsets are mapped, the map has at least this number of slots for each offset, plus
# `_SLOTS_MIN` slots.
_SLOTS_PER_KEY: Final = 2

_SLOTS_MIN: Final = 16
_WORD_BYTES: Final = 8
_HASH_BYTES: Final = 16

_STRATEGIES: Final = {
    words.OFFSET_STRATEGY: key_map.BY_OFFSET,
    words.TIMESTAMP_STRATEGY: key_map.BY_TIMESTAMP,
    words.HEADER_STRATEGY: key_map.BY_HEADER,
}


class OffsetMap:
    """The offset map of one cleaning. Not thread-safe.

    Attributes:
        keys: Arrays of the map, in the form that kernels take as an argument.
        lost: One bit for each mapped record; the bit is set if the record is superseded.
    """

    def __init__(
        self,
        rules: CompactionRules,
        seed: bytes,
        *,
        hash_mask: tuple[int, int] = (-1, -1),
        offset_count: int | None = None,
    ) -> None:
        """Create an empty map.

        Args:
            rules: Settings that determine the map's size and strategy.
            seed: 16 secret bytes.
            hash_mask: Masks of the used bits in the two halves of a hash. Tests force collisions
                with these masks.
            offset_count: Number of offsets to map, None if unknown. It limits the number of slots,
                because slots that these offsets can't fill would only make the map slower.
        """
        arena_bytes = rules.dedupe_buffer_bytes // 2 if rules.verify_keys else 0
        slots = (rules.dedupe_buffer_bytes - arena_bytes) // slot_bytes(rules)
        if offset_count is not None:
            needed = offset_count * max(_SLOTS_PER_KEY, 1 / rules.load_factor)
            slots = min(slots, int(needed) + _SLOTS_MIN)
        algorithm = MD5 if rules.hash_name == words.MD5 else SIPHASH
        self.strategy: int = _STRATEGIES[rules.strategy]
        self.header: Bytes = np.frombuffer(rules.header.encode(), np.uint8)
        self.keys = key_map.KeyMap(
            hashes=np.zeros(2 * slots, np.int64),
            numbers=np.zeros(slots, np.int64),
            versions=np.zeros(slots if rules.has_versions else 0, np.int64),
            key_positions=np.zeros(slots if rules.verify_keys else 0, np.int64),
            arena=np.zeros(arena_bytes, np.uint8),
            state=np.zeros(key_map.STATE_FIELDS, np.int64),
            window=np.zeros(WINDOW_SIZE, np.int64),
            key_limit=max(int(slots * rules.load_factor), 1),
            hasher=make_hasher(algorithm, seed, *hash_mask),
        )
        self.lost: Bytes = np.zeros(_FIRST_BITS_BYTES, np.uint8)
        self._notes_bytes = 0

    @property
    def key_count(self) -> int:
        """Number of different keys in the map."""
        return int(self.keys.state[key_map.KEYS])

    @property
    def stop_offset(self) -> int:
        """Offset of the first record that did not fit; valid only if the map is full."""
        return int(self.keys.state[key_map.STOP_OFFSET])

    @property
    def bad_slot(self) -> int:
        """Table row of the damaged batch; valid only after a kernel reported damage."""
        return int(self.keys.state[key_map.BAD_SLOT])

    def check_keys(self) -> None:
        """Raise an error if a key is larger than the memory for keys.

        Without the error, the cleaning would have to keep all records of such a key. A later
        cleaning could not know that older records of the key remain, so no tombstone of the key
        could ever be dropped.

        Raises:
            CleaningFailed: A key is larger than all the memory for keys.
        """
        if self.keys.state[key_map.TOO_LONG]:
            raise CleaningFailed(
                f"a key is larger than the {self.keys.arena.size} bytes of memory for keys"
                " (tidelog.cleaner.verify.keys); raise log.cleaner.dedupe.buffer.size: half of it"
                " is for keys"
            )

    def release(self) -> None:
        """Free the map's memory; the map can't be used afterwards."""
        none: Longs = np.zeros(0, np.int64)
        self.keys = self.keys._replace(
            hashes=none,
            numbers=none,
            versions=none,
            key_positions=none,
            arena=np.zeros(0, np.uint8),
        )
        self.lost = np.zeros(0, np.uint8)

    def make_room(self, record_count: int, notes_bytes: int) -> bool:
        """Reserve memory for bits and notes; return False if it would exceed `NOTES_BYTES_MAX`.

        The first call always reserves the memory, so that at least one record can be mapped.

        Args:
            record_count: Number of records mapped so far, plus the records to be mapped next.
            notes_bytes: Size of the notes on the next batches to be mapped, in bytes.
        """
        needed = record_count // 8 + 1
        is_first = self._notes_bytes == 0
        self._notes_bytes += notes_bytes
        if not is_first and needed + self._notes_bytes > NOTES_BYTES_MAX:
            return False
        if needed > self.lost.size:
            grown: Bytes = np.zeros(max(needed, 2 * self.lost.size), np.uint8)
            grown[: self.lost.size] = self.lost
            self.lost = grown
        return True

    def key_rules(
        self, offset_start: int, offset_end: int, log_start: int, *, is_look_up: bool
    ) -> key_map.KeyRules:
        """Return a kernel's arguments for the records at offsets [offset_start, offset_end).

        If `is_look_up` is true, the kernel looks the records up; otherwise it adds them to the map.
        """
        return key_map.KeyRules(
            self.strategy,
            self.header,
            offset_start,
            offset_end,
            log_start,
            int(is_look_up),
            NO_SHIFTS,
        )


def slot_bytes(rules: CompactionRules) -> int:
    """Return the size of one slot of the offset map in bytes."""
    extras = int(rules.has_versions) + int(rules.verify_keys)
    return _HASH_BYTES + _WORD_BYTES + _WORD_BYTES * extras


class Retention:
    """Determines which batches of a job must be kept, at least as empty batches."""

    def __init__(self, job: CleaningJob) -> None:
        self._last_offset = job.upper_bound_offset - 1
        self._producers = dict(job.active_producers)
        self._producer_ids = np.array(list(self._producers), np.int64)

    def retained_if_empty(self, piece: Piece) -> "Mask":
        """Return a mask of the batches in a piece that are kept at least as empty batches."""
        table = piece.table
        is_kept: Mask = table[:, layout.LAST_OFFSET] == self._last_offset
        if len(self._producer_ids):
            candidates = np.isin(table[:, layout.PRODUCER_ID], self._producer_ids)
            for slot in np.flatnonzero(candidates & ~is_kept).tolist():
                is_kept[slot] = self._is_last(piece, slot)
        return is_kept

    def _is_last(self, piece: Piece, slot: int) -> bool:
        row = piece.table[slot]
        last_offset, epoch = self._producers[int(row[layout.PRODUCER_ID])]
        if last_offset >= 0:
            return bool(row[layout.LAST_OFFSET] == last_offset)
        return bool(piece.is_control[slot] and row[layout.PRODUCER_EPOCH] == epoch)


class AbortedSpans:
    """Offset ranges of aborted transactions, to find the batches inside them."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """Create the ranges of aborted transactions, which can be in any order."""
        self._of: dict[int, list[AbortedTxn]] = {}
        for txn in sorted(set(aborted), key=lambda txn: txn.last_offset):
            self._of.setdefault(txn.producer_id, []).append(txn)

    @property
    def producer_ids(self) -> list[int]:
        """Producer ids that have aborted transactions."""
        return list(self._of)

    def holding(self, producer_id: int, offset: int) -> AbortedTxn | None:
        """Return the producer's aborted transaction that contains an offset, or None.

        The last offset of a transaction is the offset of its marker.
        """
        txns = self._of.get(producer_id, [])
        slot = bisect_left(txns, offset, key=lambda txn: txn.last_offset)
        if slot == len(txns) or txns[slot].first_offset > offset:
            return None
        return txns[slot]


class TransactionWalk:
    """State of one pass over the batches of a job's sources, in the order of offsets."""

    def __init__(self, spans: AbortedSpans, log_start_offset: int) -> None:
        self._spans = spans
        self._end_offset = log_start_offset  # all batches below this offset were visited
        self._met: set[AbortedTxn] = set()
        self._open: set[int] = set()
        self._retained: list[AbortedTxn] = []

    def begin(self, source: SourceSegment) -> bool:
        """Begin a source; return whether all batches of the log before the source were visited."""
        if source.base_offset > self._end_offset:
            return False
        self._end_offset = max(self._end_offset, source.end_offset)
        return True

    def on_data(self, producer_id: int, base_offset: int) -> bool:
        """Visit a data batch of a transaction; return whether the transaction was aborted."""
        txn = self._spans.holding(producer_id, base_offset)
        if txn is None:
            self._open.add(producer_id)
            return False
        self._met.add(txn)
        return True

    def on_marker(
        self, kind: ControlType, producer_id: int, offset: int, *, sees_all: bool
    ) -> bool:
        """Visit the control batch of a marker; return whether the marker is no longer needed."""
        match kind:
            case ControlType.ABORT:
                return self._on_abort(producer_id, offset, sees_all=sees_all)
            case ControlType.COMMIT:
                is_open = producer_id in self._open
                self._open.discard(producer_id)
                return sees_all and not is_open
            case _:
                return False

    def _on_abort(self, producer_id: int, offset: int, *, sees_all: bool) -> bool:
        txn = self._spans.holding(producer_id, offset)
        if txn is None or (sees_all and txn not in self._met):
            return sees_all
        self._met.discard(txn)
        self._retained.append(txn)
        return False

    def take_retained(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers were kept since the last call, in order."""
        transactions, self._retained = self._retained, []
        return transactions


# Value that `MappedRun.counts` has for a batch that was not mapped.
LEFT_OUT: Final = -1

# Bytes of the notes on a batch, and bytes of the notes on a run of batches.
_BATCH_NOTE_BYTES: Final = 12

_RUN_NOTE_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class MappedRun:
    """Consecutive batches of a segment that were mapped together.

    Shape:
        sizes: int32[batches], in bytes.
        counts: int32[batches], number of records of each batch; LEFT_OUT for control batches and
            batches of aborted transactions.
        tombstones: int32[batches], number of tombstones of each batch.

    Attributes:
        start: Position of the first batch.
        first_number: Index, in `OffsetMap.lost`, of the bit of the run's first record.
        is_special: Whether at least one batch has to be processed even if no record of it remains.
        straddles: Whether the first batch begins before the first mapped offset and ends at or
            after that offset.
    """

    start: int
    first_number: int
    sizes: "Ints"
    counts: "Ints"
    tombstones: "Ints"
    is_special: bool
    straddles: bool

    @property
    def end(self) -> int:
        """Position after the last batch."""
        return self.start + int(self.sizes.sum(dtype=np.int64))

    def numbers(self) -> "Longs":
        """Return, for each batch, the index of its first record's bit in `OffsetMap.lost`.

        The index is -1 for a batch that was left out.
        """
        counts = np.maximum(self.counts, 0).astype(np.int64)
        numbers = self.first_number + np.cumsum(counts) - counts
        numbers[self.counts == LEFT_OUT] = -1
        return numbers

    def left(self, offset_map: OffsetMap) -> "Longs":
        """Return how many records of each batch remain; 0 for a batch that was left out."""
        counts = np.maximum(self.counts, 0).astype(np.int64)
        out: Longs = np.empty(len(counts), np.int64)
        count_remaining(counts, self.numbers(), offset_map.lost, out)
        return out


def joined(runs: Sequence[MappedRun]) -> list[MappedRun]:
    """Merge consecutive runs of a segment that are processed in the same way.

    Each run has a fixed cost, so fewer runs cost less. There must be no gap between the runs: each
    run begins at the position, and at the index of `OffsetMap.lost`, where the previous run ends.
    """
    alike_runs: list[list[MappedRun]] = []
    for run in runs:
        is_like = (
            alike_runs and alike_runs[-1][-1].is_special == run.is_special and not run.straddles
        )
        if is_like:
            alike_runs[-1].append(run)
        else:
            alike_runs.append([run])
    return [_join(alike) for alike in alike_runs]


def _join(runs: Sequence[MappedRun]) -> MappedRun:
    return replace(
        runs[0],
        sizes=np.concatenate([run.sizes for run in runs]),
        counts=np.concatenate([run.counts for run in runs]),
        tombstones=np.concatenate([run.tombstones for run in runs]),
    )


@dataclass(slots=True)
class MappingResult:
    """Result of the first pass.

    Attributes:
        mapped_to: End of the mapped offsets, exclusive.
        runs: Mapped runs of each segment, in order of their positions, by the segment's base
            offset.
    """

    mapped_to: int
    runs: dict[int, list[MappedRun]] = field(default_factory=dict)


class Mapper:
    """The first pass over the sources of a job."""

    def __init__(
        self,
        job: CleaningJob,
        reader: SourceReader,
        offset_map: OffsetMap,
        retention: Retention,
        spans: AbortedSpans,
    ) -> None:
        self._job = job
        self._reader = reader
        self._map = offset_map
        self._retention = retention
        self._spans = spans
        self._next_number = 0
        self._mapped = MappingResult(job.map_to)

    def run(self) -> MappingResult:
        """Map all dirty sources, or as many offsets as fit into the map.

        Raises:
            CorruptData: A batch or a record is damaged; the error has the position of the damage.
            UnsupportedCompression: The codec number is undefined.
            CleaningFailed: A key is larger than the memory for keys.
            OSError: The disk failed.
        """
        start, end = self._job.map_from, self._job.map_to
        for source in self._job.sources:
            if source.end_offset > start and source.base_offset < end and not self._run(source):
                break
        return self._mapped

    def _run(self, source: SourceSegment) -> bool:
        """Map one segment; return False if the map is full."""
        runs = self._mapped.runs.setdefault(source.base_offset, [])
        # Batches before and after the mapped part are checked when the second pass reads them.
        for piece in self._reader.pieces(source, check=True, sums=False):
            last = piece.table[:, layout.LAST_OFFSET]
            start = int(np.searchsorted(last, self._job.map_from))
            # A batch that begins before `map_to` is included, even if it ends after `map_to`.
            before = np.concatenate(([-1], last[:-1]))
            end = int(np.searchsorted(before, self._job.map_to - 1))
            if start < end and not self._take(piece.part(start, end), runs):
                return False
            if end < len(piece.table):
                return True
        return True

    def _take(self, piece: Piece, runs: list[MappedRun]) -> bool:
        is_mapped = ~piece.is_control & ~aborted_batches(piece, self._spans)
        special = self._retention.retained_if_empty(piece) | is_transactional(piece)
        if not lies_plainly(piece):
            check_sums(piece)
            piece = replace(piece, is_checked=True)
        for start, end, opened in opened_groups(piece, is_mapped, self._reader.arena):
            part = piece.part(start, end)
            if not self._map_group(part, opened, is_mapped[start:end], special[start:end], runs):
                return False
        return True

    def _map_group(
        self,
        piece: Piece,
        opened: OpenedBatches,
        is_mapped: "Mask",
        special: "Mask",
        runs: list[MappedRun],
    ) -> bool:
        """Map a group's records, store notes on its batches; return False if the map is full."""
        table = opened.table
        check_counts(piece, opened, is_mapped)  # a wrong count would reserve too much memory
        counts = np.where(is_mapped, table[:, layout.RECORD_COUNT], LEFT_OUT)
        run = MappedRun(
            start=piece.start,
            first_number=self._next_number,
            sizes=table[:, layout.SIZE].astype(np.int32),
            counts=counts.astype(np.int32),
            tombstones=np.zeros(len(table), np.int32),
            is_special=bool(special.any()),
            straddles=bool(table[0, layout.BASE_OFFSET] < self._job.map_from),
        )
        next_number = self._next_number + int(np.maximum(counts, 0).sum())
        notes_bytes = _RUN_NOTE_BYTES + _BATCH_NOTE_BYTES * len(table)
        if not self._map.make_room(next_number, notes_bytes):
            self._mapped.mapped_to = max(int(table[0, layout.BASE_OFFSET]), self._job.map_from)
            return False
        marks = Marks(self._map.lost, self._map.lost, run.tombstones)
        rules = self._map.key_rules(
            self._job.map_from, self._job.map_to, self._job.log_start_offset, is_look_up=False
        )
        numbers = run.numbers()
        if not piece.is_checked:
            rules = rules._replace(shifts=shifts())
        status = map_batches(opened.bodies, table, numbers, rules, self._map.keys, marks)
        if status == layout.BAD_SUM:
            check_sums(piece)
        if status not in (layout.DONE, layout.FULL):
            raise piece.corrupt(self._map.bad_slot, REASONS[status])
        self._map.check_keys()
        self._next_number = next_number
        if status == layout.DONE:
            runs.append(run)
            return True
        self._mapped.mapped_to = self._map.stop_offset
        rows = int(np.searchsorted(table[:, layout.LAST_OFFSET], self._map.stop_offset)) + 1
        runs.append(
            replace(
                run,
                sizes=run.sizes[:rows],
                counts=run.counts[:rows],
                tombstones=run.tombstones[:rows],
            )
        )
        return False


def records_in(table: "Longs") -> int:
    """Return the number of records in all batches of a table, according to their headers."""
    return int(np.maximum(table[:, layout.RECORD_COUNT], 0).sum())


def is_transactional(piece: Piece) -> "Mask":
    """Return a mask of batches that belong to transactions or are markers."""
    bits = TRANSACTIONAL_BIT | CONTROL_BIT
    mask: Mask = piece.table[:, layout.ATTRIBUTES] & bits != 0
    return mask


def aborted_batches(piece: Piece, spans: AbortedSpans) -> "Mask":
    """Return a mask of data batches that belong to aborted transactions."""
    attributes = piece.table[:, layout.ATTRIBUTES]
    is_data = attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
    is_aborted: Mask = is_data & np.isin(piece.table[:, layout.PRODUCER_ID], spans.producer_ids)
    for slot in np.flatnonzero(is_aborted).tolist():
        producer_id = int(piece.table[slot, layout.PRODUCER_ID])
        offset = int(piece.table[slot, layout.BASE_OFFSET])
        is_aborted[slot] = spans.holding(producer_id, offset) is not None
    return is_aborted
