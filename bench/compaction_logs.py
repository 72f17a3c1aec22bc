"""Writes the head of a keyed log for `bench compaction`: the same bytes for both cleaners.

The head of a log is its part that was never cleaned. Records have 200 bytes, and batches have 16
KB. Keys are uniform over the key space. The create time increases by 1 ms every 80 records.
"""

from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidelog.env import Env
from tidelog.record.columns.encode import encode_table
from tidelog.record.header import HEADER, HEADER_SIZE, assign_offset
from tidelog.storage import log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.compaction.job import CleaningJob, CompactionRules, Group, SourceSegment
from tidelog.storage.segment.append_time_trust import fingerprint_of
from tidelog.types import Codec

TOPIC_ID: Final = UUID(int=9)
START_MS: Final = 1_700_000_000_000
# A record has 200 bytes: 14 for lengths, deltas and times, 16 for the key, and 170 for the value.
KEY_SIZE: Final = 16
VALUE_SIZE: Final = 170
SEGMENT_BYTES: Final = 256 << 20
_TABLE_ROWS: Final = 250_000


def write_head(folder: Path, records: int, keys: int, codec: Codec) -> list[SourceSegment]:
    """Write segments with append times into a partition's directory; return them as sources."""
    from tidelog.env import os_env

    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    writer = _Writer(folder, os_env())
    for start in range(0, records, _TABLE_ROWS):
        count = min(_TABLE_ROWS, records - start)
        table = _table(rng, start, count, keys)
        for batch in encode_table(table, now_ms=0, codec=codec):
            writer.add(batch)
    writer.close()
    return writer.sources


def _table(rng: np.random.Generator, start: int, count: int, keys: int) -> pa.Table:
    numbers = rng.integers(0, keys, count)
    names = np.char.zfill(numbers.astype("U16"), KEY_SIZE).astype(f"S{KEY_SIZE}")
    key = pa.Array.from_buffers(
        pa.binary(), count, [None, _ends(count, KEY_SIZE), pa.py_buffer(names.tobytes())]
    )
    # Half of a value is repetitive text, as in JSON. So a codec compresses the value to half its
    # size or less.
    noise = rng.integers(0, 64, (count, VALUE_SIZE), dtype=np.uint8) + 48
    noise[:, : VALUE_SIZE // 2] = np.frombuffer(b'{"field": "value"}' * 10, np.uint8)[
        : VALUE_SIZE // 2
    ]
    value = pa.Array.from_buffers(
        pa.binary(), count, [None, _ends(count, VALUE_SIZE), pa.py_buffer(noise.tobytes())]
    )
    times = pa.array(START_MS + (start + np.arange(count)) // 80)
    return pa.table({"key": key, "value": value, "timestamp": times})


def _ends(count: int, size: int) -> pa.Buffer:
    return pa.py_buffer((np.arange(count + 1) * size).astype(np.int32).tobytes())


class _Writer:
    """Writes segments of up to `SEGMENT_BYTES`, one after the other."""

    def __init__(self, folder: Path, env: Env) -> None:
        self._folder = folder
        self._env = env
        self.sources: list[SourceSegment] = []
        self._batches: list[bytes] = []
        self._base = self._next = self._size = 0
        self._times = AppendTimes(0, TOPIC_ID)

    def add(self, batch: bytearray) -> None:
        if self._size + len(batch) > SEGMENT_BYTES:
            self._finish()
        assign_offset(batch, 0, self._next, 0)
        fields = HEADER.unpack_from(batch)
        self._times.note(self._next, fields[8], fingerprint_of(fields[4], 0, self._next))
        self._next += fields[6] + 1
        self._size += len(batch)
        self._batches.append(bytes(batch))

    def _finish(self) -> None:
        name = log_files.log_file_name(self._base)
        (self._folder / name).write_bytes(b"".join(self._batches))
        self._times.close(self._next)
        times = log_files.file_name(self._base, log_files.APPEND_TIME_SUFFIX)
        (self._folder / times).write_bytes(self._times.encode())
        self.sources.append(
            SourceSegment(
                base_offset=self._base,
                end_offset=self._next,
                size_bytes=self._size,
                last_modified_ms=START_MS,
                append_end=self._next,
            )
        )
        self._batches, self._base, self._size = [], self._next, 0
        self._times = AppendTimes(self._base, TOPIC_ID)

    def close(self) -> None:
        """Finish the last segment."""
        if self._batches:
            self._finish()


def job_of(folder: Path, sources: list[SourceSegment], rules: CompactionRules) -> CleaningJob:
    """Return a job that cleans all segments, in groups of up to a segment's size."""
    end = sources[-1].end_offset
    return CleaningJob(
        directory=str(folder),
        topic=folder.name.rpartition("-")[0],
        partition=0,
        topic_id=TOPIC_ID,
        sources=tuple(sources),
        groups=tuple(_groups(sources)),
        map_from=0,
        map_to=end,
        log_start_offset=0,
        upper_bound_offset=end,
        now_ms=START_MS + 86_400_000,
        rules=rules,
        seed=bytes(range(16)),
    )


def _groups(sources: list[SourceSegment]) -> list[Group]:
    """Return groups as Kafka forms them: as many consecutive segments as fit into one segment."""
    found: list[list[int]] = []
    size = SEGMENT_BYTES
    for source in sources:
        if size + source.size_bytes > SEGMENT_BYTES:
            found.append([])
            size = 0
        found[-1].append(source.base_offset)
        size += source.size_bytes
    return [Group(bases=tuple(bases), drop_expired=True) for bases in found]


assert HEADER.size == HEADER_SIZE
