"""Writer of the files of one `.cleaned` segment: log, indexes, append times, zone map.

A kernel writes the batches that remain according to the plan of `rewriting`. Batches that the
kernel had to rebuild are then compressed and get checksums. The log is written in large pieces. The
offset index, the time index, the append times (copied from the sources' files) and the index of
aborted transactions are made while the log is written. `zone_map_files` builds the zone map at the
end. All files are synced. If the cleaning fails, the caller removes the files. This module renames
no file: the holder of the directory's lock swaps the files in.

Imports numpy and numba. Source: Kafka 4.x Cleaner.cleanSegments.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.config import TopicConfig
from tidelog.env import Env, File
from tidelog.errors import CorruptData, MissingFile, OffsetOverflow, UnsupportedCompression
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c, crc32c_spans
from tidelog.record.compression import DEFAULT_DECOMPRESSION_LIMIT, compress
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC,
    CRC_AT,
    HEADER_SIZE,
    LENGTH,
    LENGTH_AT,
    LOG_OVERHEAD,
)
from tidelog.record.kernels import layout, rewrite
from tidelog.record.kernels import rewrite as index_entries
from tidelog.record.kernels.layout import REASONS
from tidelog.storage import files, log_files
from tidelog.storage.clocks import append_time_columns
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.compaction.job import CleaningJob, SourceSegment, Throttle
from tidelog.storage.compaction.source_reader import OpenedBatches, Piece
from tidelog.storage.directory.staging import write_staged
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_loading import INDEX_BYTES_MIN
from tidelog.storage.segment.segment import open_context
from tidelog.storage.segment.txn_index import AbortedTxn, TxnIndex
from tidelog.types import INT32_MAX, NO_TIMESTAMP, UNKNOWN_MS, Buffer, Codec, TopicPartition

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs
    from tidelog.storage.compaction.source_reader import Mask


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches to append to a cleaned log file, without gaps between them.

    Shape:
        rows: int64[batches, WRITTEN_FIELDS]; the column WRITTEN_AT is relative to the first batch.
        crcs: int64[batches], the batches' checksums.
        epochs: int64[batches], leader epochs.

    Attributes:
        buffers: Bytes of the batches, in order.
    """

    rows: "Longs"
    crcs: "Longs"
    epochs: "Longs"
    buffers: list[Buffer]

    @property
    def size_bytes(self) -> int:
        """Size of all batches in bytes."""
        return int(self.rows[:, rewrite.WRITTEN_SIZE].sum())


class SourceTimes:
    """Append times of a source's records; unknown after the trusted part of `.appendtime`."""

    def __init__(self, job: CleaningJob, source: SourceSegment, env: Env) -> None:
        self._offsets, append_ms = _read_times(job, source, env)
        self._append_ms: Longs = np.concatenate(([UNKNOWN_MS], append_ms))

    def at(self, offsets: "Longs") -> "Longs":
        """Return the append time in ms of the record at each offset; -1 if it is unknown."""
        append_ms: Longs = self._append_ms[np.searchsorted(self._offsets, offsets, side="right")]
        return append_ms


def _read_times(job: CleaningJob, source: SourceSegment, env: Env) -> "tuple[Longs, Longs]":
    """Return offsets and times in ms of the trusted rows in a source's `.appendtime` file.

    Raises:
        CorruptFile, MissingFile: The file can't be read, or the object differs from the manifest.
    """
    if source.append_end <= source.base_offset:
        return np.empty(0, np.int64), np.empty(0, np.int64)  # no row is trusted
    name = log_files.file_name(source.base_offset, log_files.APPEND_TIME_SUFFIX)
    limit = max(source.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
    try:
        data = files.read_file(env.files, f"{job.directory}/{name}", limit=limit)
    except MissingFile:
        raise  # the tier's manifest lists this object, so the object is lost
    except FileNotFoundError:
        data = b""
    is_whole = source.append_end >= source.end_offset
    if is_whole and (
        rows := append_time_columns.sound_rows(data, source.base_offset, job.topic_id)
    ):
        return rows
    times, _ = AppendTimes.decode(data, source.base_offset, job.topic_id, open_end=True)
    if not is_whole:
        times.truncate_to(source.append_end)
        times.mark_unknown(source.append_end)
    return append_time_columns.offsets_and_times(times)


class CleanedTimes:
    """The append times of one cleaned segment. Call `write` any number of times, then `finish`.

    Attributes:
        append_times: Append times of the batches that were written so far.
    """

    def __init__(self, job: CleaningJob, base_offset: int) -> None:
        self.append_times = AppendTimes(base_offset, job.topic_id)
        self._next_offset = base_offset
        self._last_named = 0
        self._last_ms = UNKNOWN_MS

    def write(self, batches: Batches, times: SourceTimes) -> None:
        """Add the append times of batches: a row for each batch at which the time changes.

        `times` has the append times of the source that the batches come from.
        """
        bases = batches.rows[:, rewrite.WRITTEN_BASE]
        append_ms = times.at(bases)
        before = np.concatenate(([self._last_ms], append_ms[:-1]))
        rows = np.flatnonzero(append_ms != before)
        names = append_time_columns.fingerprints(batches.crcs, batches.epochs, bases)
        last_ms = self.append_times.last_known_ms
        is_growing = bool((append_ms[rows] > before[rows]).all())
        if is_growing and (last_ms is None or not len(rows) or append_ms[rows[0]] > last_ms):
            append_time_columns.add_rows(
                self.append_times, bases[rows], append_ms[rows], names[rows]
            )
        else:
            self._note_one_by_one(batches, rows, append_ms, names)
        self._last_ms, self._last_named = int(append_ms[-1]), int(names[-1])
        self._next_offset = int(batches.rows[-1, rewrite.WRITTEN_LAST]) + 1

    def _note_one_by_one(
        self, batches: Batches, rows: "npt.NDArray[np.intp]", times_ms: "Longs", names: "Longs"
    ) -> None:
        """Add the batches in `rows` one by one.

        This is necessary if an append time is unknown or earlier than an append time of an earlier
        source.
        """
        for row in rows.tolist():
            append_ms, last_ms = int(times_ms[row]), self.append_times.last_known_ms
            if append_ms == UNKNOWN_MS or (last_ms is not None and append_ms < last_ms):
                self._note_unknown(batches, row, names)
            else:
                base = int(batches.rows[row, rewrite.WRITTEN_BASE])
                self.append_times.note(base, append_ms, int(names[row]))

    def _note_unknown(self, batches: Batches, row: int, names: "Longs") -> None:
        """Mark the append time of the batch in `row` as unknown."""
        if row == 0:
            self.append_times.mark_unknown(self._next_offset, self._last_named)
            return
        end = int(batches.rows[row - 1, rewrite.WRITTEN_LAST]) + 1
        self.append_times.mark_unknown(end, int(names[row - 1]))

    def finish(self) -> bytes:
        """Return the bytes of the `.appendtime` file; empty if no append time is known."""
        self.append_times.close(self._next_offset, self._last_named)
        return append_time_columns.encode(self.append_times) if self.append_times.row_count else b""


_WRITE_BYTES: Final = 4 << 20
_OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class CleanedFiles:
    """One `.cleaned` segment: call `write` any number of times, then `finish`, then `add_zones`.

    After a failure call `close`.

    Attributes:
        bytes_written: Size of the log file in bytes, including batches that are still buffered.
        suffixes: Suffixes of the files that were made, without `.cleaned`.
    """

    def __init__(
        self, job: CleaningJob, sources: list[SourceSegment], env: Env, throttle: Throttle | None
    ) -> None:
        self._job = job
        self._base = sources[0].base_offset
        self._sources = sources
        self._env = env
        self._throttle = throttle
        self.bytes_written = 0
        self.suffixes: list[str] = []
        self._file: File | None = None
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._index = _Indexes(job, self._base)
        self._times = CleanedTimes(job, self._base)

    def path(self, suffix: str) -> str:
        """Return the path of the segment's `.cleaned` file with this suffix."""
        return log_files.cleaned_path(self._job.directory, self._base, suffix)

    def has_room(self, size_bytes: int, source: SourceSegment, position: int) -> bool:
        """Return whether the log file has room for `size_bytes` and the remaining source data.

        The remaining data begins at `position` in the log file of `source`.
        """
        ahead = source.size_bytes - position
        ahead += sum(s.size_bytes for s in self._sources if s.base_offset > source.base_offset)
        return self.bytes_written + size_bytes + ahead <= INT32_MAX

    def write(self, batches: Batches, times: SourceTimes) -> None:
        """Append batches to the log file.

        Raises:
            OffsetOverflow: An offset is too far from the segment's base, or the log file would
                become too large.
            OSError: The disk failed.
        """
        if not len(batches.rows):
            return
        last = int(batches.rows[-1, rewrite.WRITTEN_LAST])
        position = self.bytes_written + batches.size_bytes
        if last - self._base > INT32_MAX or position > INT32_MAX:
            raise OffsetOverflow(
                f"{self.path(log_files.LOG_SUFFIX)}: a batch up to offset {last} would end"
                f" at position {position}; the offsets of a segment must be at most"
                f" {self._base + INT32_MAX} (base offset + {INT32_MAX}), its positions at most"
                f" {INT32_MAX}"
            )
        self._index.add(batches.rows, self.bytes_written)
        self._times.write(batches, times)
        self._pending += batches.buffers
        self._pending_bytes += batches.size_bytes
        self.bytes_written = position
        if self._pending_bytes >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._throttle is not None and self._pending_bytes:
            self._throttle.take(self._pending_bytes)
        position = self.bytes_written - self._pending_bytes
        files.writev_fully(self._open(), self._pending, position)
        self._pending, self._pending_bytes = [], 0

    def _open(self) -> File:
        if self._file is None:
            self.suffixes.append(log_files.LOG_SUFFIX)
            self._file = self._env.files.open(self.path(log_files.LOG_SUFFIX), create=True)
            self._file.truncate(0)
        return self._file

    def finish(self, aborted: list[AbortedTxn]) -> None:
        """Complete and sync the log file, and write the files beside it except the zone map.

        The log file gets the modification time of the last source.

        Args:
            aborted: Entries of the index of aborted transactions.

        Raises:
            OSError: The disk failed.
        """
        self._flush()
        file = self._open()
        file.sync()
        file.close()
        offset_index, time_index = self._index.finish()
        self._put(log_files.OFFSET_INDEX_SUFFIX, offset_index)
        self._put(log_files.TIME_INDEX_SUFFIX, time_index)
        if aborted:
            self._put(log_files.TXN_INDEX_SUFFIX, TxnIndex(self._base, aborted).encoded)
        if append_times := self._times.finish():
            self._put(log_files.APPEND_TIME_SUFFIX, append_times)
        modified_ms = self._sources[-1].last_modified_ms
        self._env.files.set_mtime(self.path(log_files.LOG_SUFFIX), modified_ms)

    def add_zones(self) -> None:
        """Write the zone map, unless a record is damaged or a batch's codec is undefined."""
        try:
            data = build_zones(
                self._job,
                self._base,
                self._sources[-1].end_offset,
                self._times.append_times,
                self._env,
            )
        except (CorruptData, UnsupportedCompression):
            return
        self._put(log_files.ZONES_SUFFIX, data)

    def _put(self, suffix: str, content: Buffer) -> None:
        self.suffixes.append(suffix)
        write_staged(self._env.files, self.path(suffix), content)

    def close(self) -> None:
        """Close the log file; the written data is kept."""
        if self._file is not None:
            self._file.close()


class _Indexes:
    """Builder of the bytes of a segment's offset index and time index."""

    def __init__(self, job: CleaningJob, base_offset: int) -> None:
        limit = max(job.rules.segment_index_bytes, INDEX_BYTES_MIN)
        self._base = base_offset
        self._time_limit = limit // _TIME_ENTRY.itemsize
        self._rules = index_entries.IndexRules(
            job.rules.index_interval_bytes, limit // _OFFSET_ENTRY.itemsize, self._time_limit - 1
        )
        self._state: Longs = np.zeros(index_entries.INDEX_FIELDS, np.int64)
        self._state[index_entries.LARGEST_TIMESTAMP] = NO_TIMESTAMP
        self._state[index_entries.ENTRY_TIMESTAMP] = NO_TIMESTAMP
        self._state[index_entries.LARGEST_OFFSET] = base_offset
        self._offsets = bytearray()
        self._times = bytearray()

    def add(self, rows: "Longs", position: int) -> None:
        """Add batches; the first one begins at `position` in the log file."""
        offsets: Longs = np.empty((len(rows), 2), np.int64)
        times: Longs = np.empty((len(rows), 2), np.int64)
        offset_count, time_count = index_entries.index_batches(
            rows, position, self._rules, self._state, offsets, times
        )
        relative = offsets[:offset_count, 0] - self._base
        self._offsets += _pack(_OFFSET_ENTRY, relative, offsets[:offset_count, 1])
        self._times += _pack(_TIME_ENTRY, times[:time_count, 0], times[:time_count, 1] - self._base)

    def finish(self) -> tuple[bytes, bytes]:
        """Return the bytes of the offset index and the bytes of the time index.

        If the largest timestamp has no entry in the time index yet, and the index is not full, an
        entry for this timestamp is added.
        """
        state = self._state
        largest = int(state[index_entries.LARGEST_TIMESTAMP])
        is_later = largest > state[index_entries.ENTRY_TIMESTAMP]
        if is_later and state[index_entries.TIME_ENTRIES] < self._time_limit:
            offset = int(state[index_entries.LARGEST_OFFSET]) - self._base
            closing = np.array([largest]), np.array([offset])
            self._times += _pack(_TIME_ENTRY, *closing)
        return bytes(self._offsets), bytes(self._times)


def _pack(kind: "npt.DTypeLike", *columns: "Longs") -> bytes:
    """Encode columns as rows of big-endian numbers."""
    row = np.dtype(kind)
    assert row.names is not None
    packed = np.empty(len(columns[0]), row)
    for name, column in zip(row.names, columns, strict=True):
        packed[name] = column
    return packed.tobytes()


_CRC_SIZE: Final = 4


def write_group(piece: Piece, opened: OpenedBatches, plan: "Longs", lost: "Bytes") -> Batches:
    """Return the batches that have to be written according to a plan.

    Args:
        piece: The batches as they are in the source segment.
        opened: The same batches; a batch whose action in the plan is FILTER has an uncompressed
            body.
        plan: A plan of `kernels.rewrite`.
        lost: One bit for each record; the bit is set if the record is superseded.

    Raises:
        CorruptBatch: A batch's records differ from the records that the plan was made for; the
            error contains the position of the batch.
    """
    table = opened.table
    if (plan[:, rewrite.ACTION] == rewrite.COPY).all():
        return _copy_all(piece, table)
    out: Bytes = np.empty(_capacity(table, plan), np.uint8)
    written: Longs = np.empty((len(table), rewrite.WRITTEN_FIELDS), np.int64)
    facts: Longs = np.empty(rewrite.FACT_FIELDS, np.int64)
    sources = rewrite.Sources(piece.data, opened.bodies, table, plan, lost)
    status, number = rewrite.write_batches(sources, out, written, facts)
    if status == layout.BAD_RECORD:
        raise piece.corrupt(number, REASONS[status])
    assert status == layout.DONE
    rows = written[:number]
    slots = rows[:, rewrite.WRITTEN_SLOT]
    crcs = table[slots, layout.CRC]
    codecs = table[slots, layout.ATTRIBUTES] & CODEC_MASK
    is_new = rows[:, rewrite.IS_NEW] == 1
    is_packed = is_new & (codecs != 0) & (rows[:, rewrite.WRITTEN_RECORDS] > 0)
    is_packed &= ~_leave_plain(out, rows, is_packed)
    _seal(out, rows, np.flatnonzero(is_new & ~is_packed), crcs)
    buffers = _buffers(out, rows, crcs, codecs, np.flatnonzero(is_packed))
    return Batches(rows, crcs, table[slots, layout.LEADER_EPOCH], buffers)


def _capacity(table: "Longs", plan: "Longs") -> int:
    """Return the maximum number of bytes that the kernel may write."""
    action, size = plan[:, rewrite.ACTION], table[:, layout.SIZE]
    body = table[:, layout.BODY_END] - table[:, layout.BODY_START]
    filtered = HEADER_SIZE + body + rewrite.GROWTH_MAX * table[:, layout.RECORD_COUNT]
    room = np.where(action == rewrite.FILTER, np.maximum(size, filtered), HEADER_SIZE)
    room = np.where(action == rewrite.COPY, size, room)
    return int(np.where(action == rewrite.DROP, 0, room).sum())


def _copy_all(piece: Piece, table: "Longs") -> Batches:
    """Return all batches as they are in the piece, without gaps between them."""
    rows: Longs = np.zeros((len(table), rewrite.WRITTEN_FIELDS), np.int64)
    start = int(table[0, layout.POSITION])
    rows[:, rewrite.WRITTEN_AT] = table[:, layout.POSITION] - start
    rows[:, rewrite.WRITTEN_SIZE] = table[:, layout.SIZE]
    rows[:, rewrite.WRITTEN_BASE] = table[:, layout.BASE_OFFSET]
    rows[:, rewrite.WRITTEN_LAST] = table[:, layout.LAST_OFFSET]
    rows[:, rewrite.WRITTEN_MAX_TIMESTAMP] = table[:, layout.MAX_TIMESTAMP]
    rows[:, rewrite.WRITTEN_SLOT] = np.arange(len(table))
    rows[:, rewrite.WRITTEN_RECORDS] = table[:, layout.RECORD_COUNT]
    data = piece.data.data[start : start + int(table[:, layout.SIZE].sum())]
    return Batches(rows, table[:, layout.CRC].copy(), table[:, layout.LEADER_EPOCH].copy(), [data])


def _leave_plain(out: "Bytes", rows: "Longs", is_packed: "Mask") -> "Mask":
    """Mark batches as uncompressed if they are too long for readers to decompress; return a mask.

    The mask selects the marked batches. tidelog never writes batches of this length, but other
    brokers may.
    """
    sizes = rows[:, rewrite.WRITTEN_SIZE] - HEADER_SIZE
    too_long: Mask = is_packed & (sizes > DEFAULT_DECOMPRESSION_LIMIT)
    out[rows[too_long, rewrite.WRITTEN_AT] + ATTRIBUTES_AT + 1] &= 0xFF & ~CODEC_MASK
    return too_long


def _seal(out: "Bytes", rows: "Longs", slots: "npt.NDArray[np.intp]", crcs: "Longs") -> None:
    """Write the checksums of the new batches in `slots`, which stay uncompressed."""
    if not len(slots):
        return
    starts = rows[slots, rewrite.WRITTEN_AT]
    ends = starts + rows[slots, rewrite.WRITTEN_SIZE]
    checksums = crc32c_spans(out.data, (starts + ATTRIBUTES_AT).tolist(), ends.tolist())
    crcs[slots] = checksums
    for byte in range(_CRC_SIZE):
        out[starts + CRC_AT + byte] = crcs[slots] >> (8 * (_CRC_SIZE - 1 - byte)) & 0xFF


def _buffers(
    out: "Bytes",
    rows: "Longs",
    crcs: "Longs",
    codecs: "Longs",
    packed: "npt.NDArray[np.intp]",
) -> list[Buffer]:
    """Compress the batches in `packed`, update `rows` and `crcs`; return the bytes to write."""
    if not len(rows):
        return []
    buffers: list[Buffer] = []
    done = 0
    for slot in packed.tolist():
        at, size = int(rows[slot, rewrite.WRITTEN_AT]), int(rows[slot, rewrite.WRITTEN_SIZE])
        batch = _compress(out[at : at + size].data, Codec(int(codecs[slot])))
        (crcs[slot],) = CRC.unpack_from(batch, CRC_AT)
        rows[slot, rewrite.WRITTEN_SIZE] = len(batch)
        if done < at:
            buffers.append(out[done:at].tobytes())
        buffers.append(batch)
        done = at + size
    end = int(rows[-1, rewrite.WRITTEN_AT] + rows[-1, rewrite.WRITTEN_SIZE])
    if not len(packed):
        # If less than half of the buffer is used, the used part is copied, so that the whole buffer
        # can be freed before the part is written.
        buffers.append(out[:end].data if 2 * end >= out.size else out[:end].tobytes())
        return buffers
    if packed[-1] != len(rows) - 1:
        buffers.append(out[done:end].tobytes())
    sizes = rows[:, rewrite.WRITTEN_SIZE]
    rows[:, rewrite.WRITTEN_AT] = np.cumsum(sizes) - sizes
    return buffers


def _compress(batch: memoryview, codec: Codec) -> bytearray:
    """Compress an uncompressed batch; return the new batch with its checksum."""
    packed = bytearray(batch[:HEADER_SIZE])
    packed += compress(codec, batch[HEADER_SIZE:])
    LENGTH.pack_into(packed, LENGTH_AT, len(packed) - LOG_OVERHEAD)
    crc = crc32c(memoryview(packed)[ATTRIBUTES_AT:])
    packed[CRC_AT : CRC_AT + _CRC_SIZE] = crc.to_bytes(_CRC_SIZE, "big")
    return packed


def build_zones(
    job: CleaningJob, base_offset: int, end_offset: int, times: AppendTimes, env: Env
) -> bytes:
    """Return the bytes of a cleaned segment's zone map.

    Args:
        job: The job that the segment belongs to.
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset.
        times: Append times of the segment.
        env: Access to the segment's files. All files except the zone map have been written.

    Raises:
        CorruptData: A record is damaged.
        UnsupportedCompression: The codec number is undefined.
        OSError: The disk failed.
    """
    name = TopicPartition(job.topic, job.partition)
    overlay = log_files.cleaned_overlay(env.files, job.directory, base_offset)
    with open_context(
        env, job.directory, name, job.topic_id, TopicConfig(), overlay=overlay
    ) as context:
        segment = ClosedSegment(context, base_offset, end_offset)
        segment.set_append_times(times)
        try:
            # No checksum has to be verified: each batch was checked when it was read, or has just
            # been written.
            return zone_map_files.build(segment, check_crc=False)
        finally:
            segment.unload()
