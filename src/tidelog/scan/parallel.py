"""Reads splits in several threads and returns their batches in order, in bounded memory.

Decoding releases the GIL, so threads use several cores. Each thread reads the next unread split.
Decoded batches are buffered until the splits before them are returned. If the buffer has reached
`buffer_bytes`, only one thread continues, one batch at a time: the thread of the split whose
batches are returned now. So a full buffer never stops the reader. Dropping the reader or closing
its generator stops the threads after their current batch.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from tidelog.errors import InvalidRequest
from tidelog.scan.reader import ReadOptions, read
from tidelog.scan.rows import COLUMNS
from tidelog.scan.rows import schema as rows_schema
from tidelog.scan.split import ScanStats, Split

# Limit in bytes for decoded batches that are not returned yet.
BUFFER_BYTES: Final = 64 << 20
# Number of rows in a record batch. Some Python code runs under the GIL for each batch, so batches
# are large.
ROWS: Final = 65_536
THREADS_MAX: Final = 32


def thread_count() -> int:
    """Return the number of cores that the process may use, at most `THREADS_MAX`."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS has no CPU affinity
        cores = os.cpu_count() or 1
    return min(cores, THREADS_MAX)


def to_parallel_reader(
    splits: Iterable[Split],
    columns: Sequence[str] = COLUMNS,
    *,
    options: ReadOptions | None = None,
    stats: ScanStats | None = None,
    threads: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
) -> pa.RecordBatchReader:
    """Return an Arrow reader of splits (or a whole plan), decoded by several threads.

    Args:
        splits: The splits, in the order of the result. Many small splits balance the load best.
        columns: Names from `tidelog.scan.ALL_COLUMNS`.
        options: How to read.
        stats: Updated after each split.
        threads: Number of threads; `thread_count()` if None.
        buffer_bytes: Approximate limit for decoded batches that are not returned yet; each thread
            may exceed it by one batch.

    Returns:
        The same rows as `to_reader`, in the same order; batches may begin at other rows. Threads
        start when the first batch is requested, and end with the reader.

    Raises:
        InvalidRequest: A column is unknown or listed twice, `threads` is below 1, or `buffer_bytes`
            is negative.
        The errors of `tidelog.scan.read`: Raised while reading, after all rows before the error.
    """
    how = options or ReadOptions(rows=ROWS)
    schema = rows_schema(columns, views=how.views)
    count = thread_count() if threads is None else threads
    if count < 1 or buffer_bytes < 0:
        raise InvalidRequest(
            "threads must be 1 or more and buffer_bytes 0 or more,"
            f" got {threads} and {buffer_bytes}"
        )
    pool = _Pool(tuple(splits), tuple(columns), how, buffer_bytes)
    return pa.RecordBatchReader.from_batches(schema, pool.batches(count, stats or ScanStats()))


class _Lane:
    """State of one split: decoded batches that wait to be returned, and whether it is finished."""

    __slots__ = ("error", "is_done", "stats", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[pa.RecordBatch] = deque()
        self.is_done = False
        self.error: BaseException | None = None
        self.stats = ScanStats()


class _Stop(Exception):
    """Raised to end a thread whose result is no longer needed."""


class _Pool:
    """Threads of one reader and their shared state, guarded by `_changed`."""

    def __init__(
        self,
        splits: tuple[Split, ...],
        columns: tuple[str, ...],
        options: ReadOptions,
        buffer_bytes: int,
    ) -> None:
        self._splits = splits
        self._columns = columns
        self._options = options
        self._limit = buffer_bytes
        self._changed = threading.Condition()
        self._lanes: dict[int, _Lane] = {}
        self._next = 0  # index of the next split to read
        self._turn = 0  # index of the split whose batches are returned now
        self._buffered_bytes = 0
        self._is_stopped = False

    def batches(self, threads: int, stats: ScanStats) -> Iterator[pa.RecordBatch]:
        """Yield all batches in order. The threads end with this generator."""
        workers = [
            threading.Thread(target=self._work, name=f"tidelog-read-{number}", daemon=True)
            for number in range(min(threads, len(self._splits)))
        ]
        started = []
        try:
            for worker in workers:
                worker.start()
                started.append(worker)
            for number in range(len(self._splits)):
                yield from self._hand_out(number, stats)
        finally:
            self._stop()
            for worker in started:
                # The current thread may be one of the workers, because garbage collection may close
                # a dropped reader in any thread.
                if worker is not threading.current_thread():
                    worker.join()

    def _hand_out(self, number: int, stats: ScanStats) -> Iterator[pa.RecordBatch]:
        with self._changed:
            self._turn = number
            self._changed.notify_all()
        while (batch := self._take(number)) is not None:
            yield batch
        with self._changed:
            lane = self._lanes.pop(number)
        stats.add(lane.stats)
        if lane.error is not None:
            raise lane.error

    def _take(self, number: int) -> pa.RecordBatch | None:
        """Wait for the current split's next batch and return it; None after the last batch."""
        with self._changed:
            while True:
                lane = self._lanes.get(number)
                if lane is not None and lane.waiting:
                    batch = lane.waiting.popleft()
                    self._buffered_bytes -= batch.nbytes
                    self._changed.notify_all()
                    return batch
                if lane is not None and lane.is_done:
                    return None
                self._changed.wait()

    def _stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    # -- in the threads ----------------------------------------------------------------------

    def _work(self) -> None:
        while (numbered_lane := self._take_split()) is not None:
            number, lane = numbered_lane
            try:
                self._read(number, lane)
            except _Stop:
                return
            except BaseException as error:  # noqa: BLE001 - raised again in the reading thread
                lane.error = error
            self._finish(lane)

    def _take_split(self) -> tuple[int, _Lane] | None:
        with self._changed:
            if self._is_stopped or self._next == len(self._splits):
                return None
            number, self._next = self._next, self._next + 1
            lane = self._lanes[number] = _Lane()
            return number, lane

    def _read(self, number: int, lane: _Lane) -> None:
        split, columns = self._splits[number], self._columns
        for batch in read(split, columns, options=self._options, stats=lane.stats):
            self._put(number, lane, batch)

    def _put(self, number: int, lane: _Lane, batch: pa.RecordBatch) -> None:
        with self._changed:
            while not self._is_stopped and not self._has_room(number, lane):
                self._changed.wait()
            if self._is_stopped:
                raise _Stop
            lane.waiting.append(batch)
            self._buffered_bytes += batch.nbytes
            if number == self._turn:
                self._changed.notify_all()

    def _has_room(self, number: int, lane: _Lane) -> bool:
        return self._buffered_bytes < self._limit or (number == self._turn and not lane.waiting)

    def _finish(self, lane: _Lane) -> None:
        """Mark a split as finished. After an error, no thread begins another split."""
        with self._changed:
            lane.is_done = True
            if lane.error is not None:
                self._next = len(self._splits)
            self._changed.notify_all()
