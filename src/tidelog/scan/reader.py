"""Reads splits to Arrow record batches.

The pieces of a split are read one after another: `Ranges` returns the bytes, and the column decoder
makes rows of them and filters the rows exactly. If a file was deleted, replaced or truncated since
the plan, the rest of the split is planned again. If offsets are no longer in the log, OffsetsGone
is raised or, if `ReadOptions.fail_on_data_loss` is false, the offsets are reported. At the end of a
piece the reader checks for trailing bytes that are no batch, and for offsets that no segment
contains.

Only one thread may use an iterator; several iterators are independent.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidelog.arguments import reads_arguments
from tidelog.env import Env
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    InvalidRequest,
    LostOffsets,
    MissingFile,
    OffsetsGone,
    StorageFailure,
    UnknownTopic,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.objects import env_for
from tidelog.record.columns.batch_table import DecodeStats, Selection
from tidelog.record.columns.decode import ROWS, decode, fold, tally
from tidelog.record.offset_order import cut_problem
from tidelog.scan.batch_filters import AbortedBatches, piece_filter
from tidelog.scan.byte_sources import Ranges, RangeSource, all_ranges
from tidelog.scan.plan import replan, with_directory
from tidelog.scan.rows import COLUMNS, AppendRuns, RowMaker
from tidelog.scan.rows import schema as rows_schema
from tidelog.scan.split import (
    Piece,
    ScanStats,
    Split,
    count_without_timestamp,
    ensure_times,
)
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment.closed_segment import as_closed
from tidelog.storage.segment.gaps import is_gap_loss, lost_gap
from tidelog.types import INT64_MAX, Buffer, ClockName

if TYPE_CHECKING:
    from tidelog.record.columns.batch_table import DropBatch
    from tidelog.record.columns.decode import Fold


@dataclass(slots=True)
class PieceSummary:
    """Summary of the batches of a piece that were decoded so far.

    Attributes:
        next_offset: Offset after the last decoded batch; if no batch was decoded, the smallest
            offset that the first batch may have.
        first_offset: Base offset of the first decoded batch, -1 if no batch was decoded.
        records: Number of records according to the batches' headers.
        has_legacy: Whether legacy messages were decoded, whose headers have no number of records.
    """

    next_offset: int
    first_offset: int = -1
    records: int = 0
    has_legacy: bool = False

    def add(self, decoded: DecodeStats) -> None:
        """Add the statistics of the next decoded part of the piece."""
        if decoded.first_offset >= 0:
            self.next_offset = decoded.next_offset
            self.records += decoded.records
            self.has_legacy |= decoded.has_legacy
            if self.first_offset < 0:
                self.first_offset = decoded.first_offset

    @property
    def is_dense(self) -> bool:
        """Whether each offset in [`first_offset`, `next_offset`) has a record."""
        return self.first_offset >= 0 and self.records == self.next_offset - self.first_offset


def check_end(piece: Piece, position: int, next_offset: int) -> None:
    """Raise CorruptBatch if a batch should begin at `position`, but none does.

    A torn batch at the end is allowed if the batches before it reach the end offset of the piece.
    """
    problem = cut_problem(piece.end_position - position, next_offset, piece.end_offset)
    if problem is not None:
        error = CorruptBatch(problem, at=0, offset=next_offset)
        raise error.located(piece.path, position)


def lost_behind(
    split: Split, piece: Piece, walked: PieceSummary, env: Env
) -> tuple[LostOffsets, ...]:
    """Return the lost offsets after the last batch of a finished piece; empty if none are lost.

    See `storage.segment.gaps`.
    """
    start = max(walked.next_offset, piece.start_offset)
    end = min(piece.limit_offset, piece.end_offset)
    has_bytes = piece.size_bytes > 0
    is_dense = walked.is_dense or not has_bytes
    if not piece.is_closed or start >= end or not (is_dense or walked.has_legacy):
        return ()

    def look(log_dir: LogDir) -> bool:
        reader = log_dir.reader(split.topic, split.partition)
        segment = reader.segment_of(start)
        closed = None if segment is None else as_closed(segment)
        if closed is None or (closed.size_bytes > 0) != has_bytes:
            return False
        if not is_gap_loss(reader.context, closed):
            return False
        return is_dense or closed.is_tiered or closed.is_dense

    is_loss = with_directory(split.directory, env, look)
    return (lost_gap(split.topic_partition, start, end),) if is_loss else ()


# Maximum number of attempts to read a split. Compaction or deletion may interrupt a reader several
# times, but it is unlikely that they interrupt each attempt.
_REPLANS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options for reading splits.

    Attributes:
        rows: Maximum number of rows in an Arrow record batch.
        check_crc: Check every batch's checksum.
        strict: Raise if a record that is read has no time on the chosen clock. The plan must be
            `strict` as well. With a plan that is not `strict`, batches may be skipped although they
            have records without a time, so no error is raised for these records.
        fail_on_data_loss: Raise if offsets are missing; otherwise report them in `ScanStats.lost`.
        env: Files and clock for `ranges` and for planning again. Default: the machine's files, or
            the object store if the split's directory is a URL.
        ranges: Source of bytes; the directory's files if None.
        views: Return keys and values as `binary_view`: views of the log's bytes instead of copies.
            With views, the file stays mapped as long as the rows exist.
        counts_only: Return no rows; `ScanStats.rows` has their number.
        fold: Return no rows; pass the records to this fold. The split's time range, if any, must be
            on the record clock.
        store_options: Settings of the directory's object store (docs/objects.md).
    """

    rows: int = ROWS
    check_crc: bool = True
    strict: bool = False
    fail_on_data_loss: bool = True
    env: Env | None = None
    ranges: Ranges | None = None
    views: bool = False
    counts_only: bool = False
    fold: "Fold | None" = None
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@reads_arguments()
def read(
    split: Split,
    columns: Sequence[str] = COLUMNS,
    *,
    options: ReadOptions | None = None,
    stats: ScanStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the split's records in order of offsets, in batches of at most `options.rows` rows.

    Args:
        split: The split.
        columns: Names from `ALL_COLUMNS`, in the order of the result.
        options: How to read.
        stats: Updated while reading.

    Raises:
        InvalidRequest: A column is unknown or listed twice; raised at once.
        OffsetsGone: With `fail_on_data_loss`: offsets of the split are no longer in the log.
        MissingTimestamps: With `strict`: a record that was read has no time on the chosen clock.
        CorruptData: A batch is damaged; everything before it was yielded.
        MissingFile: A file or an object of a tier is still missing after the split was planned
            again several times.
        StorageFailure: The disk or store failed, or files were removed repeatedly.
    """
    rows_schema(columns)
    reader = _SplitReader(split, columns, options or ReadOptions(), stats or ScanStats())
    return reader.batches()


@reads_arguments()
def to_reader(
    splits: Iterable[Split],
    columns: Sequence[str] = COLUMNS,
    *,
    options: ReadOptions | None = None,
    stats: ScanStats | None = None,
) -> pa.RecordBatchReader:
    """Return an Arrow reader of splits (or a whole plan), in order; raises the errors of `read`."""
    total = stats or ScanStats()
    batches = (
        batch for split in splits for batch in read(split, columns, options=options, stats=total)
    )
    kind = rows_schema(columns, views=options is not None and options.views)
    return pa.RecordBatchReader.from_batches(kind, batches)


@reads_arguments()
def to_table(
    splits: Iterable[Split],
    columns: Sequence[str] = COLUMNS,
    *,
    options: ReadOptions | None = None,
    stats: ScanStats | None = None,
) -> pa.Table:
    """Read splits (or a whole plan) into memory; raises the errors of `read`."""
    return to_reader(splits, columns, options=options, stats=stats).read_all()


class _SegmentReplaced(Exception):
    """Raised if a piece's file was deleted, replaced or truncated since the plan."""


@dataclass(slots=True)
class _SplitReader:
    """One pass over one split."""

    split: Split
    columns: Sequence[str]
    options: ReadOptions
    stats: ScanStats
    _env: Env = field(init=False)
    _ranges: Ranges = field(init=False)
    _maker: RowMaker = field(init=False)
    _next_offset: int = field(init=False)  # offset after the last returned record
    # First offset of a damaged batch that is read a second time; some of its records may already
    # have been returned.
    _looks_again_at: int = field(init=False, default=INT64_MAX)

    def __post_init__(self) -> None:
        directory = self.split.directory
        self._env = env_for(directory, self.options.env, self.options.store_options)
        self._ranges = self.options.ranges or all_ranges(self._env, directory)
        self._maker = RowMaker(self.split, self.columns, views=self.options.views)
        self._next_offset = self.split.start_offset

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. If files have changed, plan the rest of the split again."""
        self.stats.splits += 1
        split = self.split
        was_corrupt = False
        missing: MissingFile | None = None
        for _ in range(_REPLANS_MAX):
            try:
                yield from self._read(split)
            except _SegmentReplaced as stale:
                # A file that was truncated and rewritten looks damaged at the planned positions, so
                # the read is retried once.
                cause = stale.__cause__
                missing = cause if isinstance(cause, MissingFile) else None
                if isinstance(cause, CorruptData):
                    if was_corrupt:
                        raise cause from None
                    was_corrupt = True
                    if cause.offset is not None:
                        self._looks_again_at = cause.offset
                split = self._replan(split)
            else:
                return
        if missing is not None:
            raise missing
        raise StorageFailure(
            split.directory,
            "read",
            f"files of {split.topic} were removed during each attempt to read them; repeat the"
            " read",
        )

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        aborted = AbortedBatches(split.aborted)
        for piece in split.pieces:
            if piece.end_offset <= self._first_unread:
                continue
            self._next_offset = max(self._next_offset, piece.start_offset)
            if piece.size_bytes:
                yield from self._read_piece(split, piece, aborted)
            elif piece.may_be_lost:
                self._lose(lost_behind(split, piece, PieceSummary(piece.floor_offset), self._env))
            self.stats.without_time += piece.without_time
            self.stats.counted += piece.records
            self._next_offset = max(self._next_offset, piece.end_offset)
            if self.options.strict:
                ensure_times(
                    self.stats,
                    split.topic_partition,
                    split.clock,
                    piece.start_offset,
                    piece.end_offset,
                )

    def _read_piece(
        self, split: Split, piece: Piece, aborted: AbortedBatches
    ) -> Iterator[pa.RecordBatch]:
        drop, unstamped = piece_filter(split, piece, aborted)
        try:
            source = self._ranges.open(piece)
            runs = self._append_runs(split, piece)
        except FileNotFoundError as error:
            raise _SegmentReplaced from error
        try:
            for batch in self._decode(piece, source, drop, runs):
                self._next_offset = self._maker.last_offset(batch) + 1
                rows = self._maker.rows(batch)
                self.stats.rows += rows.num_rows
                yield rows
        except (CorruptData, FileNotFoundError) as error:
            raise _SegmentReplaced from error
        finally:
            source.close()
            if unstamped is not None:
                self.stats.without_time += unstamped.without_time

    def _append_runs(self, split: Split, piece: Piece) -> AppendRuns | None:
        if not self._maker.needs_append_times or piece.times_path is None:
            return None
        data = self._ranges.read_small(piece.times_path)
        self.stats.sidecar_bytes += len(data)
        return AppendRuns.decode(data, piece, split.topic_id)

    def _decode(
        self,
        piece: Piece,
        source: RangeSource,
        drop: "DropBatch | None",
        runs: AppendRuns | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece, part by part. Each part ends at the end of a batch."""
        position, size = piece.start_position, source.read_bytes
        walked = PieceSummary(piece.floor_offset)
        while position < piece.end_position:
            size_bytes = min(size, piece.end_position - position)
            data = source.read(position, size_bytes)
            decoded = DecodeStats()
            try:
                choice = self._selection(piece, drop, (walked.next_offset, piece.limit_offset))
                yield from self._rows(data, choice, runs, decoded)
            except CorruptData as error:
                raise error.located(piece.path, position) from error
            finally:
                self._count(decoded)
            position += decoded.end_at
            walked.add(decoded)
            if len(data) < size_bytes:
                raise _SegmentReplaced
            if not decoded.end_at:
                if position + size_bytes >= piece.end_position:
                    check_end(piece, position, max(walked.next_offset, piece.start_offset))
                    break
                size = size_bytes * 2
        self._lose(lost_behind(self.split, piece, walked, self._env))

    def _lose(self, lost: tuple[LostOffsets, ...]) -> None:
        """Raise OffsetsGone for lost offsets, or add them to the statistics."""
        if lost and self.options.fail_on_data_loss:
            raise OffsetsGone(lost)
        self.stats.lost += lost

    def _rows(
        self, data: Buffer, selection: Selection, runs: AppendRuns | None, decoded: DecodeStats
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of a piece; no rows if records are only counted or folded."""
        if self.options.counts_only:
            self._tally(data, selection, decoded)
        elif self.options.fold is not None:
            self._fold(self.options.fold, data, selection, decoded)
        else:
            yield from decode(
                data,
                selection,
                columns=self._maker.decoded,
                append_times=None if runs is None else runs.arrays,
                rows=self.options.rows,
                views=self.options.views,
                check_crc=self.options.check_crc,
                stats=decoded,
            )

    def _selection(
        self, piece: Piece, drop: "DropBatch | None", between: tuple[int, int]
    ) -> Selection:
        return Selection(
            offset_start=max(piece.start_offset, self._next_offset),
            offset_end=piece.end_offset,
            record_time=self.split.timestamp_range,
            opens_all=piece.opens_all,
            drop_batch=drop,
            opens_from=max(piece.start_offset, self._first_unread),
            between=between,
        )

    def _tally(self, data: Buffer, selection: Selection, decoded: DecodeStats) -> None:
        """Count the records of a part.

        The records of a damaged part are not counted; the part is read again from its start.
        """
        try:
            tally(data, decoded, selection, check_crc=self.options.check_crc)
        except CorruptData:
            decoded.without_time = 0
            raise
        # The last batch may extend beyond the piece. In this case the next piece begins inside that
        # batch.
        behind = min(decoded.next_offset, selection.offset_end)
        self._next_offset = max(self._next_offset, behind)
        self.stats.rows += decoded.rows

    def _fold(self, into: "Fold", data: Buffer, selection: Selection, decoded: DecodeStats) -> None:
        """Fold a part. A damaged part is read again, beginning after the last folded record."""
        assert self.split.time_range is None or self.split.clock is ClockName.RECORD
        try:
            fold(data, into, decoded, selection, check_crc=self.options.check_crc)
        finally:
            self._next_offset = max(self._next_offset, into.end_offset)
            self.stats.rows += decoded.rows

    @property
    def _first_unread(self) -> int:
        """Offset to read next. A damaged batch is opened again even if part of it was returned."""
        return min(self._next_offset, self._looks_again_at)

    def _count(self, decoded: DecodeStats) -> None:
        self.stats.log_bytes += decoded.end_at
        self.stats.batches += decoded.batches
        self.stats.batches_opened += decoded.batches_opened
        count_without_timestamp(self.stats, decoded.without_time, self.split.clock)

    def _replan(self, split: Split) -> Split:
        """Plan the rest of the split again with the current files, and report lost offsets."""
        self.stats.replanned += 1
        try:
            start = max(self._first_unread, self.split.start_offset)
            again, lost = replan(split, start, self._env, strict=self.options.strict)
        except (UnknownTopic, InvalidRequest) as error:
            loss = LostOffsets(
                split.topic, split.partition, self._next_offset, split.end_offset, str(error)
            )
            raise OffsetsGone((loss,)) from error
        lost = _needed(lost, split, self._next_offset)
        self._lose(lost)
        return again


def _needed(lost: Iterable[LostOffsets], split: Split, next_offset: int) -> tuple[LostOffsets, ...]:
    """Return the lost offsets that the split would have read. Pruned offsets don't count."""
    clipped = (
        dataclasses.replace(
            one,
            start=max(one.start, piece.start_offset, next_offset),
            end=min(one.end, piece.end_offset),
        )
        for one in lost
        for piece in split.pieces
        if piece.size_bytes
    )
    needed: list[LostOffsets] = []
    for one in clipped:
        if one.start >= one.end:
            continue
        if needed and needed[-1] == dataclasses.replace(one, start=needed[-1].start, end=one.start):
            needed[-1] = dataclasses.replace(one, start=needed[-1].start)
        else:
            needed.append(one)
    return tuple(needed)
