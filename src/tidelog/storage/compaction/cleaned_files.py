"""The files of one `.cleaned` segment: written in large pieces, synced, or removed again.

The log comes batch by batch; indexes, append times and the index of aborted transactions are made
on the way, the zone map at the end. Nothing is renamed: the lock's holder swaps.

Imports numpy and numba. Source: Kafka 4.x Cleaner.cleanSegments.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import Env, File
from tidelog.errors import CorruptData, OffsetOverflow, UnsupportedCompression
from tidelog.record.kernels import index_entries, rewrite
from tidelog.storage import files
from tidelog.storage.compaction.cleaned_times import Batches, CleanedTimes, SourceTimes
from tidelog.storage.compaction.job import CleaningJob, SourceSegment, Throttle
from tidelog.storage.index_files import INDEX_BYTES_MIN
from tidelog.storage.staging import write_staged
from tidelog.storage.txn_index import AbortedTxn, TxnIndex
from tidelog.types import INT32_MAX, NO_TIMESTAMP, Buffer

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs

_WRITE_BYTES: Final = 4 << 20
_OFFSET_ENTRY: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class CleanedFiles:
    """One `.cleaned` segment that is being written: write* -> finish, or discard at any time.

    Attributes:
        bytes_written: Into the log file.
        suffixes: Of the files that were made, without `.cleaned`.
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
        """Where one of its files is."""
        name = files.file_name(self._base, suffix)
        return f"{self._job.directory}/{name}{files.CLEANED_SUFFIX}"

    def has_room(self, size_bytes: int, source: SourceSegment, position: int) -> bool:
        """Whether so many bytes fit, and then all that is still ahead of a position as it is."""
        ahead = source.size_bytes - position
        ahead += sum(s.size_bytes for s in self._sources if s.base_offset > source.base_offset)
        return self.bytes_written + size_bytes + ahead <= INT32_MAX

    def write(self, batches: Batches, times: SourceTimes) -> None:
        """Add batches behind those that are there.

        Raises:
            OffsetOverflow: Their offsets are too far from the segment's base.
            OSError: The disk failed.
        """
        if not len(batches.rows):
            return
        last = int(batches.rows[-1, rewrite.WRITTEN_LAST])
        position = self.bytes_written + batches.size_bytes
        if last - self._base > INT32_MAX or position > INT32_MAX:
            raise OffsetOverflow(
                f"{self.path(files.LOG_SUFFIX)}: offset {last} and {position} bytes, a segment's"
                f" indexes hold {INT32_MAX} of both"
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
            self.suffixes.append(files.LOG_SUFFIX)
            self._file = self._env.files.open(self.path(files.LOG_SUFFIX), create=True)
            self._file.truncate(0)
        return self._file

    def finish(self, aborted: list[AbortedTxn]) -> None:
        """Write what lies beside the log, make all durable, and take the sources' file time over.

        Args:
            aborted: What goes into the index of aborted transactions.

        Raises:
            OSError: The disk failed.
        """
        self._flush()
        file = self._open()
        file.sync()
        file.close()
        offset_index, time_index = self._index.finish()
        self._put(files.OFFSET_INDEX_SUFFIX, offset_index)
        self._put(files.TIME_INDEX_SUFFIX, time_index)
        if aborted:
            self._put(files.TXN_INDEX_SUFFIX, TxnIndex(self._base, aborted).encoded)
        if append_times := self._times.finish():
            self._put(files.APPEND_TIME_SUFFIX, append_times)
        modified_ms = self._sources[-1].last_modified_ms
        self._env.files.set_mtime(self.path(files.LOG_SUFFIX), modified_ms)

    def add_zones(self) -> None:
        """Build the zone map, where the records allow it; whoever reads damage is told of it."""
        from tidelog.storage.compaction.cleaned_zones import build_zones

        try:
            data = build_zones(
                self._job, self._base, self._sources[-1].end_offset, self._times.known, self._env
            )
        except (CorruptData, UnsupportedCompression):
            return
        self._put(files.ZONES_SUFFIX, data)

    def _put(self, suffix: str, content: Buffer) -> None:
        self.suffixes.append(suffix)
        write_staged(self._env.files, self.path(suffix), content)

    def close(self) -> None:
        """Let go of the log file; what was written stays."""
        if self._file is not None:
            self._file.close()


class _Indexes:
    """Both indexes, as the bytes of their files."""

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
        """Take batches that begin at a position of the log file."""
        offsets: Longs = np.empty((len(rows), 2), np.int64)
        times: Longs = np.empty((len(rows), 2), np.int64)
        offset_count, time_count = index_entries.index_batches(
            rows, position, self._rules, self._state, offsets, times
        )
        relative = offsets[:offset_count, 0] - self._base
        self._offsets += _pack(_OFFSET_ENTRY, relative, offsets[:offset_count, 1])
        self._times += _pack(_TIME_ENTRY, times[:time_count, 0], times[:time_count, 1] - self._base)

    def finish(self) -> tuple[bytes, bytes]:
        """Both files, the time index with its closing entry."""
        state = self._state
        largest = int(state[index_entries.LARGEST_TIMESTAMP])
        is_later = largest > state[index_entries.ENTRY_TIMESTAMP]
        if is_later and state[index_entries.TIME_ENTRIES] < self._time_limit:
            offset = int(state[index_entries.LARGEST_OFFSET]) - self._base
            closing = np.array([largest]), np.array([offset])
            self._times += _pack(_TIME_ENTRY, *closing)
        return bytes(self._offsets), bytes(self._times)


def _pack(kind: "npt.DTypeLike", *columns: "Longs") -> bytes:
    """Columns as rows of big-endian numbers."""
    row = np.dtype(kind)
    assert row.names is not None
    packed = np.empty(len(columns[0]), row)
    for name, column in zip(row.names, columns, strict=True):
        packed[name] = column
    return packed.tobytes()
