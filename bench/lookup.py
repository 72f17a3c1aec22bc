"""Measures lookups by time, one at a time, and lookups of positions by offset.

The log has 100-byte records in uncompressed batches of about 16 KB; all timestamps are distinct,
and shuffled inside each batch. The lookup times are a random sample of these timestamps, without
repetition. The page cache is warm unless a case states otherwise. Lookups share no decoded batch
and no result. Cases of ranges and plans are in `bench/ranges.py`.
"""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Case
from bench.ranges import plan_cases, range_cases
from tidelog.env import Env, ManualClock
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.header import BASE_TIMESTAMP_AT, HEADER_SIZE, MAX_TIMESTAMP_AT, seal
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import BUILT
from tidelog.types import Codec, NewRecord

if TYPE_CHECKING:
    from tidelog.storage.log.log import Log

START_MS = 1_700_000_000_000
RECORD_BYTES = 100
BATCH_RECORDS = 150
GIGABYTE = 1 << 30


class Fixture:
    """A partition with a given size and number of segments, in a temporary directory."""

    def __init__(
        self, size: int, segments: int, *, codec: Codec = Codec.NONE, batch_records: int
    ) -> None:
        self.path = tempfile.mkdtemp(prefix="tidelog-bench-")
        self.directory = LogDir.open(
            self.path,
            env=Env(clock=ManualClock(START_MS)),
            options=LogDirOptions(create=True),
        )
        config = {
            "retention.ms": "-1",
            "internal.segment.bytes": str(2**31 - 1),
            "max.message.bytes": str(16 << 20),
            "message.timestamp.after.max.ms": str(2**62),
        }
        self.directory.create_topic("times", config=config)
        self.log: Log = self.directory.log("times", 0)
        self.record_count = self._fill(size, segments, codec, batch_records)
        self.log.use_kernels()

    def _fill(self, size: int, segments: int, codec: Codec, batch_records: int) -> int:
        template = _template(codec, batch_records)
        batches = max(size // len(template), segments)
        last = 0
        for number in range(batches):
            batch = bytearray(template)
            _move(batch, START_MS + number * batch_records)
            self.log.append_batches(batch, BUILT)
            if number * segments // batches != last:
                last = number * segments // batches
                self.log.roll()
        self.log.roll()
        return batches * batch_records

    def times(self, count: int) -> list[int]:
        """Return distinct timestamps of records, in random order."""
        source = random.Random(1)
        return [START_MS + t for t in source.sample(range(self.record_count), count)]

    def close(self) -> None:
        """Remove the directory."""
        self.directory.abandon()
        shutil.rmtree(self.path)


def _template(codec: Codec, batch_records: int) -> bytes:
    """Return a batch whose timestamps are 0, 1, 2, ... in shuffled order."""
    deltas = list(range(batch_records))
    random.Random(2).shuffle(deltas)
    source = random.Random(3)
    records = [
        NewRecord(value=source.randbytes(RECORD_BYTES // 2) * 2, timestamp=delta)
        for delta in deltas
    ]
    return bytes(build_batch(records, codec=codec))


def _move(batch: bytearray, shift_ms: int) -> None:
    """Shift all timestamps of a batch; the records' deltas don't change."""
    view = RecordBatch(batch)
    for at, value in (
        (BASE_TIMESTAMP_AT, view.base_timestamp),
        (MAX_TIMESTAMP_AT, view.max_timestamp),
    ):
        batch[at : at + 8] = (value + shift_ms).to_bytes(8, "big")
    seal(batch, 0)
    assert len(batch) > HEADER_SIZE


def _one_by_one(fixture: Fixture, count: int) -> Callable[[], float]:
    times = fixture.times(count)
    find = fixture.log.offset_for_time

    def run() -> float:
        for time_ms in times:
            found = find(time_ms)
            assert found is not None
            assert found.timestamp >= time_ms
        return count

    return run


def _positions_one_by_one(fixture: Fixture, count: int) -> Callable[[], float]:
    offsets = random.Random(4).sample(range(fixture.record_count), count)
    segment_of = fixture.log.segment_of

    def run() -> float:
        for offset in offsets:
            segment = segment_of(offset)
            assert segment is not None
            segment.offset_index.lookup(offset)
        return count

    return run


def _drop_caches(fixture: Fixture) -> Callable[[], object]:
    """Return a function that evicts the log from the page cache and drops tidelog's memory maps."""
    import os

    def run() -> None:
        fixture.log.drop_caches()
        for path in Path(fixture.path).rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    return run


def cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of `./run bench lookup`."""
    yield from _lookup_cases(quick)
    yield from range_cases(quick)
    yield from plan_cases(quick)


def _lookup_cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of offsets by time, positions by offset, and memory of indexes."""
    size = GIGABYTE // 8 if quick else GIGABYTE
    count = 2_000 if quick else 20_000
    note = f"{size >> 20} MB, 64 segments"
    base = Fixture(size, 64, batch_records=BATCH_RECORDS)
    yield Case(
        case="offset of a time, one lookup at a time",
        unit="lookups/s",
        ours=_one_by_one(base, count),
        goal="ours >= 50000",
        note=note,
    )
    yield Case(
        case="position of an offset, one at a time",
        unit="lookups/s",
        ours=_positions_one_by_one(base, count),
        goal="ours >= 100000",
        note=f"{note}; the proposal promised 100,000 lookups/s",
    )
    yield Case(
        case="offset of a time, one lookup at a time, cold page cache",
        unit="lookups/s",
        ours=_one_by_one(base, 200),
        prepare=_drop_caches(base),
        note=f"{note}; the page cache is cleared of the log before each round of 200",
    )
    base.close()
    yield from _segment_count_cases(size, 1_000 if quick else 10_000, count)
    yield from _batch_kind_cases(size)
    yield _memory_case(partitions=350 if quick else 3_500)


def _segment_count_cases(size: int, segments: int, count: int) -> Iterator[Case]:
    """Yield the cases of the same bytes in many segments and in few segments."""
    few = Fixture(size, 10, batch_records=BATCH_RECORDS)
    lots = Fixture(size, segments, batch_records=BATCH_RECORDS)
    yield Case(
        case="offset of a time, one lookup at a time, many segments",
        unit="us",
        ours=_one_by_one(lots, count),
        rival=_one_by_one(few, count),
        rival_name="the same bytes in 10 segments",
        goal="ratio <= 1.5",
        note="both logs have the same total size",
    )
    yield Case(
        case="position of an offset, one at a time, many segments",
        unit="lookups/s",
        ours=_positions_one_by_one(lots, count),
        rival=_positions_one_by_one(few, count),
        rival_name="the same bytes in 10 segments",
        goal="ours >= 100000",
        note="both logs have the same total size",
    )
    few.close()
    lots.close()


def _batch_kind_cases(size: int) -> Iterator[Case]:
    """Yield the cases of larger and of compressed batches."""
    for label, codec, batch_records in (
        ("1 MB batches", Codec.NONE, 9_500),
        ("16 KB batches, lz4", Codec.LZ4, BATCH_RECORDS),
    ):
        other = Fixture(size // 4, 16, codec=codec, batch_records=batch_records)
        yield Case(
            case=f"offset of a time, one lookup at a time, {label}",
            unit="lookups/s",
            ours=_one_by_one(other, 200),
            note=f"{size // 4 >> 20} MB, 16 segments",
        )
        other.close()


def _memory_case(partitions: int) -> Case:
    """Return the case of the memory that indexes use.

    The case opens `partitions` separate readers of the same partition.
    """
    return Case(
        case=f"memory of the indexes of {partitions} open partitions",
        unit="MB",
        ours=lambda: _index_megabytes(partitions),
        note="one partition with a segment of 16 MB, opened and searched this many times",
    )


def _index_megabytes(partitions: int) -> float:
    """Return the MiB of anonymous memory that one lookup in each of `partitions` readers adds."""
    fixture = Fixture(16 << 20, 1, batch_records=30)
    before = _anonymous_kb()
    readers = []
    for _ in range(partitions):
        reader = LogDir.open(fixture.path).reader("times", 0)
        reader.offset_for_time(START_MS + 5)
        readers.append(reader)
    used = (_anonymous_kb() - before) / 1024
    fixture.close()
    return used


def _anonymous_kb() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1])
