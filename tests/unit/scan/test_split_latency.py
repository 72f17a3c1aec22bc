"""The joined results of single splits equal plain sums over all records."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.worlds.constants import interpret, set_constant
from tests.worlds.directories.random_logs import TOPIC, make_log_dir

from tidelog.record.kernels.zones import BUCKET_MAX, BUCKETS
from tidelog.scan import plan
from tidelog.scan.split import decode_split, encode_split
from tidelog.scan.split_latency import (
    Late,
    Mark,
    SplitTimes,
    TimesCounter,
    correct,
    decode_late,
    decode_times,
    encode_late,
    encode_times,
    late_of,
    recount,
    reduce_split,
)
from tidelog.storage.clocks.latency import DELAYS_MS, LatencyByHour, LatencyHistogram, bucket_of
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import HOUR_MS, INT64_MAX, INT64_MIN

DELAYS = (0, 1_000, 100_000, 400_000)


def joined(path: str, split_bytes: int) -> tuple[LatencyByHour, LatencyByHour, Late, int, int]:
    """Join the results of all splits, and return them.

    The results are latencies by append hour, latencies by create hour, lateness, number of records,
    and number of recounted heads. A split's head is its first records, whose lateness depends on
    earlier splits. It is recounted from its records and from its stored create times, and the two
    recounts must give equal results.
    """
    by_append, by_create, late = (
        LatencyByHour(),
        LatencyByHour(),
        Late(lost=dict.fromkeys(DELAYS, 0)),
    )
    records = heads = 0
    largest = dict.fromkeys(range(9), INT64_MIN)
    for planned in plan(path, TOPIC, split_bytes=split_bytes):
        split = decode_split(encode_split(planned))
        assert split == planned
        found = decode_times(*encode_times(reduce_split(split, DELAYS)))
        mine, before = found.late, largest[split.partition]
        end = found.head_end(before)
        if end is not None:
            heads += 1
            alone, behind = recount(split, DELAYS, before, end)
            assert alone == decode_late(*encode_late(alone))
            assert found.recount(before, end) in (None, (alone, behind))
            mine = correct(found, alone, behind, end)
        largest[split.partition] = max(before, found.largest_ms)
        records += found.records
        by_append.merge(found.by_append)
        by_create.merge(found.by_create)
        late.histogram.merge(mine.histogram)
        late.lost = {delay: late.lost[delay] + mine.lost[delay] for delay in DELAYS}
    return by_append, by_create, late, records, heads


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("split_bytes", "kept"), [(400, 2048), (3000, 2), (1 << 20, 2048)])
def test_joined_splits_equal_sums_over_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, split_bytes: int, kept: int
) -> None:
    set_constant(monkeypatch, "HEAD_RECORDS", kept, inside="tidelog.scan")
    path = str(tmp_path)
    make_log_dir(path, seed, steps=50)
    by_append, by_create, late, records, heads = joined(path, split_bytes)
    assert (by_append, by_create, late, records) == plainly(path, partitions=2)
    assert heads or split_bytes > 400  # small splits: some heads are recounted


def plainly(path: str, partitions: int) -> tuple[LatencyByHour, LatencyByHour, Late, int]:
    """Compute the results of `joined` record by record, except its number of recounted heads."""
    by_append, by_create = LatencyByHour(), LatencyByHour()
    late, count = Late(lost=dict.fromkeys(DELAYS, 0)), 0
    for partition in range(partitions):
        with LogDir.open(path) as log_dir:
            reader = log_dir.reader(TOPIC, partition)
            append, create = [], []
            for record in reader.records():
                append_ms = reader.append_time_of(record.offset)
                append.append(-1 if append_ms is None else append_ms)
                create.append(-1 if record.create_timestamp is None else record.create_timestamp)
        mine = sums(append, create)
        by_append.merge(mine[0])
        by_create.merge(mine[1])
        late.histogram.merge(mine[2].histogram)
        late.lost = {delay: late.lost[delay] + mine[2].lost[delay] for delay in DELAYS}
        count += len(create)
    return by_append, by_create, late, count


def test_no_record_is_counted_again_if_times_ascend() -> None:
    found = SplitTimes(smallest_ms=500, marks=[Mark(9, 700, INT64_MAX)])
    assert found.head_end(500) is None
    assert SplitTimes().head_end(INT64_MAX) is None


def test_a_head_longer_than_its_kept_times_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log_dir(str(tmp_path), 1, steps=50)
    split = next(iter(plan(str(tmp_path), TOPIC, split_bytes=1 << 20)))
    whole = reduce_split(split, DELAYS)
    assert whole.recount(INT64_MAX, whole.marks[0].end_offset) is not None
    set_constant(monkeypatch, "HEAD_RECORDS", 1, inside="tidelog.scan")
    found = reduce_split(split, DELAYS)
    assert (found.late, found.by_append, found.largest_ms) == (
        whole.late,
        whole.by_append,
        whole.largest_ms,
    )
    assert len(found.marks) > len(whole.marks)
    end = found.head_end(INT64_MAX)
    assert end == found.marks[-1].end_offset
    assert found.recount(INT64_MAX, end) is None


class TestKernel:
    """The kernel, compiled and interpreted, compared with sums of Python's integers."""

    @pytest.mark.parametrize("interpreted", [False, True])
    @pytest.mark.parametrize("hours", [1, 40, 3000])
    def test_counts_equal_plain_sums(
        self, monkeypatch: pytest.MonkeyPatch, interpreted: bool, hours: int
    ) -> None:
        if interpreted:
            interpret(monkeypatch, "count_times", inside="tidelog.record.kernels")
        draw = random.Random(hours)
        times = [1_360_342_800_000 + draw.randrange(hours * HOUR_MS) for _ in range(1500)]
        create = [draw.choice((t, t, -1, t - 3)) for t in times]
        append = [draw.choice((t + 5, t + 70_000, -1, t - 9)) for t in times]
        counter = TimesCounter(DELAYS)
        for at in range(0, 1500, 400):
            counter.add(array(append[at : at + 400]), array(create[at : at + 400]))
        found = counter.finish()
        by_append, by_create, late = sums(append, create)
        assert found.by_append == by_append
        assert found.by_create == by_create
        assert found.late == late
        assert found.records == 1500
        assert found.timed == sum(c != -1 for c in create)
        assert found.both == sum(c != -1 != a for a, c in zip(append, create, strict=True))
        assert found.smallest_ms == min(c for c in create if c != -1)
        known = np.array([c for c in create if c != -1], np.int64)
        assert late_of(known, DELAYS) == late

    def test_the_widest_differences_stay_in_63_bits(self) -> None:
        counter = TimesCounter((INT64_MAX - 1,))
        counter.add(array([INT64_MAX, 0, 0]), array([INT64_MIN, INT64_MAX, INT64_MIN]))
        found = counter.finish()
        assert found.by_append.total().max_ms == INT64_MAX
        assert found.by_append.total().min_ms == -INT64_MAX
        assert found.late.lost == {INT64_MAX - 1: 1}
        assert BUCKETS == 2 * BUCKET_MAX + 1

    def test_all_delays_are_counted_in_one_pass(self) -> None:
        counter = TimesCounter(DELAYS_MS[::-1])
        counter.add(array([1] * 4), array([10**6, 0, 10**6 - 1, 10**6 - 5000]))
        assert counter.late().lost == {
            0: 3,
            1_000: 2,
            10_000: 1,
            60_000: 1,
            600_000: 1,
            3_600_000: 0,
            86_400_000: 0,
        }


def array(values: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    found = np.array(values, np.int64)
    found.flags.writeable = False
    return found


def sums(append: list[int], create: list[int]) -> tuple[LatencyByHour, LatencyByHour, Late]:
    by_append, by_create = LatencyByHour(), LatencyByHour()
    late, largest = Late(LatencyHistogram(), dict.fromkeys(DELAYS, 0)), INT64_MIN
    for append_ms, create_ms in zip(append, create, strict=True):
        if create_ms == -1:
            continue
        if append_ms != -1:
            by_append.add(append_ms, append_ms - create_ms)
            by_create.add(create_ms, append_ms - create_ms)
        if create_ms < largest:
            late.histogram.add(largest - create_ms)
            for delay in DELAYS:
                late.lost[delay] += largest - create_ms > delay
        largest = max(largest, create_ms)
    assert all(bucket == bucket_of(bucket) for bucket in (0, 63, -63))
    return by_append, by_create, late


@pytest.mark.parametrize("count", [1, (1 << 16) - 1, 1 << 16, (1 << 32) - 1, 1 << 32])
def test_counts_of_any_size_travel_as_they_are(count: int) -> None:
    by_hour = LatencyByHour()
    by_hour.add(5 * HOUR_MS, 250, count)
    by_hour.add(7 * HOUR_MS, 30_000)
    found = decode_times(*encode_times(SplitTimes(by_append=by_hour)))
    assert found.by_append == by_hour
    assert found.by_append.total().count == count + 1


def test_a_description_is_plain_json(tmp_path: Path) -> None:
    make_log_dir(str(tmp_path), 3, steps=10)
    text = encode_split(next(iter(plan(str(tmp_path), TOPIC, split_bytes=500))))
    assert json.loads(text)["topic"] == TOPIC
