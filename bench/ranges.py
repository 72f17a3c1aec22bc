"""Cases of time ranges for `bench/lookup.py`: exact reads, counts and plans with zone maps.

Two topics have 150-record batches of about 16 KB, appended evenly over ten days, in 16 finished
segments with zone maps and an empty active segment. In the first topic a record's create time is
its append time minus an exponential delay, whose mean is 0.05 % of the span. In the second topic
create times are uniform over the whole span, so that no zone can be skipped. A separate partition
has very many segments, each of one batch. The page cache is warm.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.harness import Case
from tidelog.env import Env, ManualClock, os_env
from tidelog.record.batch_walk import view_batch
from tidelog.record.builder import build_batch
from tidelog.record.header import BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT, seal
from tidelog.scan import COLUMNS, RequestedRange, ScanStats, count, plan, to_reader
from tidelog.storage import log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import BUILT
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint, fingerprint
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.types import ClockName, NewRecord

START_MS = 1_700_000_000_000
SPAN_MS = 10 * 24 * 3_600_000
DELAY_MS = SPAN_MS / 2_000
RECORD_BYTES = 100
BATCH_RECORDS = 150
SEGMENTS = 16
TEMPLATES = 64
TOPIC = "times"
CONFIG = {
    "retention.ms": "-1",
    "segment.ms": str(2**62),
    "internal.segment.bytes": str(2**31 - 1),
    "message.timestamp.after.max.ms": str(2**62),
}

Longs = npt.NDArray[np.int64]


class Batches:
    """Makes batches of records whose times are relative to the time of the batch."""

    def __init__(self, distances: Longs) -> None:
        """`distances` is int64[TEMPLATES, BATCH_RECORDS]: timestamp minus batch time in ms."""
        source = np.random.default_rng(3)
        values = [source.bytes(RECORD_BYTES // 2) * 2 for _ in range(BATCH_RECORDS)]
        self._distances = distances
        self._bytes = [self._build(row, values) for row in distances]

    @staticmethod
    def _build(row: Longs, values: list[bytes]) -> bytes:
        # SPAN_MS is added to the times, so that none is negative; `at` subtracts it again.
        records = [
            NewRecord(value=value, timestamp=int(ms) + SPAN_MS)
            for ms, value in zip(row, values, strict=True)
        ]
        return bytes(build_batch(records))

    @property
    def size_bytes(self) -> int:
        """Approximate size of a batch."""
        return len(self._bytes[0])

    def at(self, number: int, time_ms: int) -> bytearray:
        """Return batch `number` with its timestamps shifted to the batch time `time_ms`."""
        batch = bytearray(self._bytes[number % TEMPLATES])
        for place in (BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT):
            before = int.from_bytes(batch[place : place + 8], "big")
            batch[place : place + 8] = (before - SPAN_MS + time_ms).to_bytes(8, "big")
        seal(batch, 0)
        return batch

    def count(self, times: list[int], start_ms: int, end_ms: int) -> int:
        """Return the exact number of records with times in [start, end)."""
        found = 0
        for number, time_ms in enumerate(times):
            row = self._distances[number % TEMPLATES] + time_ms
            found += int(((row >= start_ms) & (row < end_ms)).sum())
        return found


class Topic:
    """A directory with one partition of `size` bytes, all in finished segments."""

    def __init__(self, size: int, distances: Longs, *, at_append: bool) -> None:
        self.path = tempfile.mkdtemp(prefix="tidelog-bench-")
        self.batches = Batches(distances)
        total = max(size // self.batches.size_bytes, SEGMENTS)
        self.append_times = [START_MS + number * SPAN_MS // total for number in range(total)]
        self.batch_times = self.append_times if at_append else [START_MS] * total
        self._fill(total)

    def _fill(self, total: int) -> None:
        clock = ManualClock(START_MS)
        options = LogDirOptions(create=True)
        with LogDir.open(self.path, env=Env(clock=clock), options=options) as directory:
            directory.create_topic(TOPIC, config=CONFIG)
            log = directory.log(TOPIC, 0)
            log.use_kernels()
            for number, time_ms in enumerate(self.append_times):
                clock.set(time_ms)
                batch = self.batches.at(number, self.batch_times[number])
                log.append_batches(batch, BUILT)
                if (number + 1) * SEGMENTS // total != number * SEGMENTS // total:
                    log.roll()
            zone_map_files.build_missing(log.segments)

    def read(self, wanted: RequestedRange, stats: ScanStats | None = None) -> int:
        """Read a range with the default columns; return the number of rows."""
        splits = plan(self.path, TOPIC, requested_range=wanted, columns=COLUMNS)
        rows = sum(batch.num_rows for batch in to_reader(splits, stats=stats))
        if stats is not None:
            stats.sidecar_bytes += splits.sidecar_bytes
        return rows

    def log_bytes(self) -> int:
        """Return the size of the log in bytes."""
        return plan(self.path, TOPIC).log_bytes

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path)


def delays() -> Longs:
    drawn = np.random.default_rng(1).exponential(DELAY_MS, (TEMPLATES, BATCH_RECORDS))
    return -drawn.astype(np.int64)


def _anywhere() -> Longs:
    return np.random.default_rng(2).integers(0, SPAN_MS, (TEMPLATES, BATCH_RECORDS), np.int64)


def part(share: float) -> RequestedRange:
    """Return a time range that covers the fraction `share` of the log's time span (`SPAN_MS`)."""
    start = START_MS + int(SPAN_MS * min(0.3, (1 - share) / 2))
    return RequestedRange(start_ms=start, end_ms=start + int(SPAN_MS * share))


def _reads(topic: Topic, wanted: RequestedRange) -> Callable[[], float]:
    start, end = wanted.start_ms, wanted.end_ms
    expected = len(topic.batch_times) * BATCH_RECORDS
    if start is not None and end is not None:
        expected = topic.batches.count(topic.batch_times, start, end)

    def run() -> float:
        assert topic.read(wanted) == expected
        return 1

    return run


def _counts(topic: Topic, wanted: RequestedRange) -> Callable[[], float]:
    start, end = wanted.start_ms, wanted.end_ms
    assert start is not None
    assert end is not None
    expected = topic.batches.count(topic.batch_times, start, end)

    def run() -> float:
        assert count(topic.path, TOPIC, requested_range=wanted).records == expected
        return 1

    return run


def _offsets_of(topic: Topic, wanted: RequestedRange) -> Callable[[], float]:
    """Return a function that reads only the offsets of a time range, and checks their number."""
    start, end = wanted.start_ms, wanted.end_ms
    assert start is not None
    assert end is not None
    expected = topic.batches.count(topic.batch_times, start, end)

    def run() -> float:
        splits = plan(topic.path, TOPIC, requested_range=wanted, columns=["offset"])
        assert sum(batch.num_rows for batch in to_reader(splits, ["offset"])) == expected
        return 1

    return run


def _share(topic: Topic, wanted: RequestedRange, *, of_sidecars: bool) -> float:
    """Return the bytes read from the log, or from sidecars, as a percentage of the log's size."""
    stats = ScanStats()
    topic.read(wanted, stats)
    used = stats.sidecar_bytes if of_sidecars else stats.log_bytes
    return 100 * used / topic.log_bytes()


def range_cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of reads and counts of a time range."""
    size = (1 << 28) if quick else (2 << 30)
    note = f"{size >> 20} MB, {SEGMENTS} segments"
    everything, hundredth, half, most = RequestedRange(), part(0.01), part(0.5), part(0.9)
    late = Topic(size, delays(), at_append=True)
    yield Case(
        case="read 1 % of the time, create times late by 0.05 %",
        unit="ms",
        ours=_reads(late, hundredth),
        rival=_reads(late, everything),
        rival_name="reading the whole log",
        goal="ratio <= 0.0333",
        note=f"{note}; planning is part of both",
    )
    yield Case(
        case="log bytes read for 1 % of the time, create times late by 0.05 %",
        unit="% of the log",
        ours=lambda: _share(late, hundredth, of_sidecars=False),
        goal="ours <= 1.5",
        note=note,
    )
    yield Case(
        case="sidecar bytes read for 1 % of the time, create times late by 0.05 %",
        unit="% of the log",
        ours=lambda: _share(late, hundredth, of_sidecars=True),
        goal="ours <= 0.3",
        note=f"{note}; sidecars are the zone maps",
    )
    yield Case(
        case="count nine tenths of the time range",
        unit="ms",
        ours=_counts(late, most),
        rival=_reads(late, most),
        rival_name="reading the counted records",
        goal="ratio <= 0.02",
        note=f"{note}; 0.8 % of the log is in zones that contain an end of the range, for a range"
        " of any length",
    )
    yield Case(
        case="count half of the time range",
        unit="ms",
        ours=_counts(late, half),
        rival=_reads(late, half),
        rival_name="reading the counted records",
        goal="ratio <= 0.02",
        note=f"{note}; the zones that contain an end of the range have the same total size as for a"
        " longer range",
    )
    yield Case(
        case="count half of the time range, compared with reading one column",
        unit="ms",
        ours=_counts(late, half),
        rival=_offsets_of(late, half),
        rival_name="reading only the offsets of the counted records",
        note=f"{note}; no other read of the records is cheaper",
    )
    late.close()
    mixed = Topic(size, _anywhere(), at_append=False)
    yield Case(
        case="read 1 % of the time, fully shuffled",
        unit="ms",
        ours=_reads(mixed, hundredth),
        rival=_reads(mixed, everything),
        rival_name="reading the whole log",
        goal="ratio <= 1.2",
        note=f"{note}; every zone may hold a match",
    )
    mixed.close()


class ManySegments:
    """A partition of very many finished segments, each with sidecars and a two-record batch."""

    def __init__(self, segments: int) -> None:
        self.path = tempfile.mkdtemp(prefix="tidelog-bench-")
        self.segments = segments
        with LogDir.open(self.path, options=LogDirOptions(create=True)) as directory:
            self._topic_id = directory.create_topic(TOPIC, config=CONFIG)[0].topic_id
        self._directory = Path(self.path) / f"{TOPIC}-0"
        template = build_batch([NewRecord(value=b"v", timestamp=t) for t in (0, 1)])
        last = 0
        for number in range(segments):
            last = self._write(bytearray(template), number)
        self._finish(last)
        self._add_zones()

    def _write(self, batch: bytearray, number: int) -> int:
        """Write a segment; return the fingerprint of its batch.

        The times of a segment are 10 ms after the times of the segment before it.
        """
        base, time_ms = 2 * number, START_MS + 10 * number
        batch[:8] = base.to_bytes(8, "big")
        for place, value in ((BASE_TIMESTAMP_AT, time_ms), (MAX_TIMESTAMP_AT, time_ms + 1)):
            batch[place : place + 8] = value.to_bytes(8, "big")
        seal(batch, 0)
        mark = fingerprint(view_batch(memoryview(batch), 0))
        assert self._topic_id is not None
        appended = AppendTimes(base, self._topic_id)
        appended.note(base, time_ms + 5, mark)
        appended.close(base + 2, mark)
        times = TimeIndex(base)
        times.maybe_append(time_ms + 1, base + 1)
        contents: dict[str, bytes | bytearray] = {
            log_files.LOG_SUFFIX: batch,
            log_files.OFFSET_INDEX_SUFFIX: b"",
            log_files.TIME_INDEX_SUFFIX: bytes(times.encoded),
            log_files.APPEND_TIME_SUFFIX: appended.encode(),
        }
        for suffix, data in contents.items():
            (self._directory / log_files.file_name(base, suffix)).write_bytes(data)
        return mark

    def _finish(self, mark: int) -> None:
        """Write the files that a clean stop leaves: empty active segment, snapshot, checkpoint."""
        end = 2 * self.segments
        for suffix in (
            log_files.LOG_SUFFIX,
            log_files.OFFSET_INDEX_SUFFIX,
            log_files.TIME_INDEX_SUFFIX,
        ):
            (self._directory / log_files.file_name(end, suffix)).touch()
        snapshot = log_files.file_name(end, log_files.SNAPSHOT_SUFFIX)
        (self._directory / snapshot).write_bytes(ProducerStates().encode_snapshot())
        checkpoint = AppendTimeCheckpoint(end, end - 2, mark)
        checkpoint.write(os_env().files, str(self._directory))

    def _add_zones(self) -> None:
        with LogDir.open(self.path) as directory:
            log = directory.reader(TOPIC, 0)
            log.trusted_end()
            for segment in log.segments:
                if isinstance(segment, ClosedSegment):
                    name = log_files.file_name(segment.base_offset, log_files.ZONES_SUFFIX)
                    (self._directory / name).write_bytes(zone_map_files.build(segment))

    def plans(self, clock: ClockName) -> Callable[[], float]:
        """Return a function that plans a read of 1 % of the log's time range."""
        start = START_MS + 10 * (self.segments // 2)
        wanted = RequestedRange(start_ms=start, end_ms=start + self.segments // 10)

        def run() -> float:
            found = plan(self.path, TOPIC, requested_range=wanted, clock=clock)
            assert sum(len(split.pieces) for split in found) == self.segments // 100
            return 1

        return run

    def plans_all(self) -> float:
        """Plan a read of the whole log, including append times."""
        found = plan(self.path, TOPIC)
        assert sum(len(split.pieces) for split in found) == self.segments
        return 1

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path)


def plan_cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of plans over very many segments."""
    segments = 10_000 if quick else 100_000
    many = ManySegments(segments)
    note = "one batch per segment, zone maps, append times; the range is 1 % of the time"
    for clock in ClockName:
        yield Case(
            case=f"plan over {segments} segments, {clock} clock",
            unit="s",
            ours=many.plans(clock),
            goal="ours <= 10",
            note=note,
        )
    yield Case(
        case=f"plan over {segments} segments, the whole log",
        unit="s",
        ours=many.plans_all,
        goal="ours <= 10",
        note="one batch per segment; the plan includes append times",
    )
    many.close()
