"""Metrics count each record's latency in the exact bucket, for both timestamp types."""

import random
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.directories.logs import new_log
from tests.worlds.records.kernel_logs import records as any_record

from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.kernels.layout import DONE
from tidelog.record.kernels.times import count_latencies
from tidelog.server.metrics.latency_counts import BOUNDS_MS, Span, count_span, count_times
from tidelog.server.runtime.counters import LATENCY_BUCKETS_S
from tidelog.storage.log.log import Log
from tidelog.types import INT64_MAX, Codec, NewRecord

EDGES = [ms + side for ms in BOUNDS_MS for side in (-1, 0, 1)]


def expected(late_ms: list[int]) -> tuple[list[int], int]:
    counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
    for ms in late_ms:
        counts[bisect_left(LATENCY_BUCKETS_S, ms / 1000)] += 1
    return counts, sum(late_ms)


def append(log: Log, late_ms: list[int], codec: Codec) -> None:
    now_ms = log.context.env.clock.now_ms()
    log.append([NewRecord(value=b"v", timestamp=now_ms - ms) for ms in late_ms], codec=codec)


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_each_record_counts_in_its_bucket(
    by_kernel: bool, kind: str, enabled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.kernels.are_loaded", lambda: by_kernel)
    env, _, log = new_log(
        {"message.timestamp.type": kind, "tidelog.append.time.enable": enabled}
        | {"internal.segment.bytes": "900"}
    )
    dice, late = random.Random(1), []
    append(log, [5, 5], Codec.NONE)  # these records are before the offset at which counting begins
    start = log.log_end_offset
    for codec in (Codec.NONE, Codec.LZ4, Codec.GZIP):
        for _ in range(4):
            chosen = dice.choices([*EDGES, -3, 2_000, 3_600_000], k=7)
            append(log, chosen, codec)
            late += chosen
            env.clock.advance(10)
    log.append([NewRecord(value=b"v", timestamp=-1)])
    found = Span(start)
    while found.end < log.log_end_offset:
        span = count_span(log.segments, found.end, log.log_end_offset)
        assert span.end > found.end
        found.add(span.counts, span.total_ms)
        found.end = span.end
    if kind == "CreateTime" and enabled == "false":
        late = []  # without append times there are no latencies
    assert (found.counts, found.total_ms) == expected(late)


def test_so_much_is_counted_at_a_time() -> None:
    _, _, log = new_log({"max.message.bytes": "4000000"})
    for late_ms in (5, 100, 2000):
        now_ms = log.context.env.clock.now_ms()
        log.append([NewRecord(value=bytes(3 << 20), timestamp=now_ms - late_ms)])
    first = count_span(log.segments, 0, 3)
    assert (first.end, first.counts) == (2, expected([5, 100])[0])
    assert count_span(log.segments, 2, 3).counts == expected([2000])[0]


@given(
    records=st.lists(any_record, min_size=1, max_size=5),
    append_ms=st.integers(0, 10**13) | st.just(INT64_MAX),
)
def test_the_kernel_counts_as_the_plain_code(records: list[NewRecord], append_ms: int) -> None:
    batch = RecordBatch(memoryview(bytes(build_batch(records))))
    times = [record.timestamp for record in batch.records()]
    body = np.frombuffer(bytes(batch.body(1 << 20)), np.uint8)
    bounds = np.array(BOUNDS_MS, np.int64)
    for count in (count_latencies, count_latencies.py_func):
        counts = np.zeros(len(BOUNDS_MS) + 1, np.int64)
        arguments = body, batch.record_count, batch.base_timestamp, append_ms, bounds, counts
        status, _, total = count(*arguments)
        assert status == DONE
        assert (counts.tolist(), total) == count_times(times, append_ms)
