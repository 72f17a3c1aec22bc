"""Retention: three passes, each from the oldest segment to the first segment that it keeps."""

from dataclasses import replace

import pytest

from tidelog.config import RetentionClock, TopicConfig
from tidelog.storage.segment.retention import (
    RetentionRule,
    SegmentFacts,
    SegmentTimes,
    counted_time,
    deletes_all,
    plan_retention,
)

NOW = 1_000_000

CONFIG = TopicConfig(
    retention_ms=-1, retention_bytes=-1, tidelog_retention_clock=RetentionClock.RECORD
)


def segment(base: int, size: int = 100, timestamp: int = NOW, mtime: int = 0) -> SegmentFacts:
    times = SegmentTimes(largest_timestamp=timestamp, mtime_ms=mtime, now_ms=NOW)
    return SegmentFacts(base_offset=base, size_bytes=size, times=lambda: times)


def plan(
    segments: list[SegmentFacts],
    config: TopicConfig,
    *,
    log_start: int = 0,
    log_end: int = 40,
    high_watermark: int | None = None,
) -> list[tuple[int, RetentionRule]]:
    found = plan_retention(
        segments,
        config=config,
        log_start=log_start,
        log_end=log_end,
        high_watermark=log_end if high_watermark is None else high_watermark,
        now_ms=NOW,
    )
    assert all(deletion.reason for deletion in found)
    return [(deletion.base_offset, deletion.rule) for deletion in found]


FOUR = [segment(0), segment(10), segment(20), segment(30)]


def test_without_limits_no_segment_is_deleted() -> None:
    assert plan(FOUR, CONFIG) == []
    assert plan([], replace(CONFIG, retention_ms=0, retention_bytes=0)) == []


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [(0, []), (9, []), (10, [0]), (25, [0, 10]), (30, [0, 10, 20]), (40, [0, 10, 20])],
)
def test_segments_below_the_log_start_are_deleted_except_the_active_one(
    log_start: int, expected: list[int]
) -> None:
    for policy in (("delete",), ("compact",), ()):
        config = replace(CONFIG, cleanup_policy=policy)
        found = plan(FOUR, config, log_start=log_start)
        assert found == [(base, RetentionRule.LOG_START) for base in expected]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (-1, []),
        (500, []),
        (400, []),
        (301, []),
        (300, [0]),
        (299, [0]),
        (200, [0, 10]),
        (1, [0, 10, 20]),
        (0, [0, 10, 20, 30]),
    ],
)
def test_by_size_the_log_stays_at_or_above_the_limit(limit: int, expected: list[int]) -> None:
    found = plan(FOUR, replace(CONFIG, retention_bytes=limit))
    assert found == [(base, RetentionRule.SIZE) for base in expected]


def test_by_size_a_large_segment_keeps_later_smaller_ones() -> None:
    segments = [segment(0, 300), segment(10, 10), segment(20, 10)]
    assert plan(segments, replace(CONFIG, retention_bytes=30), log_end=30) == []


@pytest.mark.parametrize(
    ("retention_ms", "expected"), [(-1, []), (100, []), (99, [0]), (49, [0, 10]), (0, [0, 10, 20])]
)
def test_by_time_the_difference_must_be_above_the_limit(
    retention_ms: int, expected: list[int]
) -> None:
    segments = [
        segment(0, timestamp=NOW - 100),
        segment(10, timestamp=NOW - 50),
        segment(20, timestamp=NOW - 1),
        segment(30, timestamp=NOW),
    ]
    found = plan(segments, replace(CONFIG, retention_ms=retention_ms))
    assert found == [(base, RetentionRule.TIME) for base in expected]


def test_a_future_timestamp_keeps_all_later_segments() -> None:
    """Source: KAFKA-18929."""
    segments = [
        segment(0, timestamp=0),
        segment(10, timestamp=NOW + 1),
        segment(20, timestamp=0),
        segment(30, timestamp=0),
    ]
    assert plan(segments, replace(CONFIG, retention_ms=5)) == [(0, RetentionRule.TIME)]


def test_the_modification_time_counts_only_without_timestamps() -> None:
    segments = [
        segment(0, timestamp=-1, mtime=NOW - 100),
        segment(10, timestamp=0, mtime=NOW),
        segment(20, timestamp=-1, mtime=NOW),
    ]
    counted = [counted_time(each.times(), RetentionClock.RECORD).ms for each in segments]
    assert counted == [NOW - 100, 0, NOW]
    found = plan(segments, replace(CONFIG, retention_ms=50), log_end=30)
    assert [base for base, _ in found] == [0, 10]


def test_no_segment_at_or_above_the_high_watermark_is_deleted() -> None:
    config = replace(CONFIG, retention_bytes=0, retention_ms=0)
    old = [segment(base, timestamp=0) for base in (0, 10, 20, 30)]
    assert [base for base, _ in plan(old, config, high_watermark=19)] == [0]
    assert [base for base, _ in plan(old, config, high_watermark=20)] == [0, 10]
    assert plan(old, config, log_start=20, high_watermark=5) == []


def test_an_idle_topic_becomes_empty_by_time() -> None:
    old = [segment(0, timestamp=0), segment(10, timestamp=0)]
    found = plan_retention(
        old,
        config=replace(CONFIG, retention_ms=1),
        log_start=0,
        log_end=20,
        high_watermark=20,
        now_ms=NOW,
    )
    assert [deletion.base_offset for deletion in found] == [0, 10]
    assert deletes_all(old, found)
    assert not deletes_all(old, found[:1])
    assert not deletes_all([], [])


def test_an_empty_active_segment_is_never_deleted() -> None:
    segments = [segment(0, timestamp=0), segment(10, size=0, timestamp=-1)]
    config = replace(CONFIG, retention_ms=1, retention_bytes=0)
    assert [base for base, _ in plan(segments, config, log_end=10)] == [0]


def test_each_pass_of_retention_starts_from_the_result_of_the_previous_one() -> None:
    segments = [
        segment(base, timestamp=NOW - age)
        for base, age in zip((0, 10, 20, 30), (9, 9, 9, 0), strict=True)
    ]
    found = plan(segments, replace(CONFIG, retention_bytes=250, retention_ms=5), log_start=10)
    assert found == [
        (0, RetentionRule.LOG_START),
        (10, RetentionRule.TIME),
        (20, RetentionRule.TIME),
    ]
    found = plan(segments, replace(CONFIG, retention_bytes=200, retention_ms=5), log_start=10)
    assert found == [
        (0, RetentionRule.LOG_START),
        (10, RetentionRule.SIZE),
        (20, RetentionRule.TIME),
    ]


def test_compacted_topics_that_also_delete_run_all_passes() -> None:
    config = replace(CONFIG, retention_bytes=0, cleanup_policy=("delete", "compact"))
    assert len(plan(FOUR, config)) == 4
