"""Conditions under which an append begins a new segment."""

import random
from dataclasses import replace

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import new_log, put, reopen

from tidelog.config.topic import TopicConfig
from tidelog.storage.segment.roll import RollFacts, RollReason, draw_jitter_ms, should_roll
from tidelog.types import INT32_MAX

CONFIG = TopicConfig(internal_segment_bytes=1000, segment_ms=500)

FACTS = RollFacts(
    base_offset=100,
    size_bytes=900,
    first_timestamp=10_000,
    created_ms=0,
    jitter_ms=0,
    offset_index_full=False,
    time_index_full=False,
    append_bytes=100,
    append_last_offset=200,
    append_max_timestamp=10_500,
    now_ms=10**9,
)


def test_a_segment_with_room_accepts_the_append() -> None:
    assert should_roll(FACTS, CONFIG) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(FACTS, append_bytes=101), RollReason.SIZE),
        (replace(FACTS, append_max_timestamp=10_501), RollReason.TIME),
        (replace(FACTS, append_max_timestamp=10_500, jitter_ms=1), RollReason.TIME),
        (replace(FACTS, append_max_timestamp=10_501, size_bytes=0), None),
        (replace(FACTS, append_max_timestamp=5), None),
        (replace(FACTS, append_max_timestamp=-1), None),
        (replace(FACTS, first_timestamp=-1, now_ms=500), None),
        (replace(FACTS, first_timestamp=-1, now_ms=501), RollReason.TIME),
        (replace(FACTS, first_timestamp=0, append_max_timestamp=501), RollReason.TIME),
        (replace(FACTS, offset_index_full=True), RollReason.OFFSET_INDEX_FULL),
        (replace(FACTS, time_index_full=True), RollReason.TIME_INDEX_FULL),
        (replace(FACTS, append_last_offset=100 + INT32_MAX), None),
        (replace(FACTS, append_last_offset=101 + INT32_MAX), RollReason.OFFSET_OVERFLOW),
        (replace(FACTS, append_last_offset=99), RollReason.OFFSET_OVERFLOW),
    ],
)
def test_reasons(facts: RollFacts, reason: RollReason | None) -> None:
    assert should_roll(facts, CONFIG) == reason


def test_an_empty_segment_rolls_for_an_append_that_is_too_large() -> None:
    facts = replace(FACTS, size_bytes=0, append_bytes=1001)
    assert should_roll(facts, CONFIG) is RollReason.SIZE


def test_jitter_stays_below_both_limits() -> None:
    source = random.Random(5)
    assert draw_jitter_ms(CONFIG, source) == 0
    near = replace(CONFIG, segment_jitter_ms=10, segment_ms=4)
    assert {draw_jitter_ms(near, source) for _ in range(99)} == {0, 1, 2, 3}
    wide = replace(CONFIG, segment_jitter_ms=3)
    assert max(draw_jitter_ms(wide, source) for _ in range(99)) == 2


def spans_of(
    config: dict[str, str], count: int = 3_000, *, is_configured: bool = False
) -> list[int]:
    """Return for each segment the ms from its first to its last record; records are 1 ms apart.

    If `is_configured` is true, the settings are applied again before each record.
    """
    env, _, log = new_log({"segment.ms": "100", **config})
    for n in range(count):
        if is_configured:
            log.configure(log.context.config)
        put(log, START_MS + n)
    assert env.clock.now_ms() == START_MS, "wall time has no part in it"
    closed = log.segments[:-1]
    return [segment.end_offset - segment.base_offset - 1 for segment in closed]


def test_segments_roll_by_message_time_alone() -> None:
    assert set(spans_of({})) == {100}


def test_jitter_shortens_each_segment_by_another_part() -> None:
    spans = spans_of({"segment.jitter.ms": "40"})
    assert len(set(spans)) > 10
    assert all(100 - 39 <= span <= 100 for span in spans)


def test_a_changed_setting_draws_no_new_jitter_for_the_active_segment() -> None:
    config = {"segment.jitter.ms": "99"}
    assert spans_of(config, 500, is_configured=True) == spans_of(config, 500)


def test_without_timestamps_the_wall_clock_since_the_segment_was_opened_counts() -> None:
    env, directory, log = new_log({"segment.ms": "100"})
    for wait_ms, bases in ((0, [0]), (100, [0]), (1, [0, 2])):
        env.clock.advance(wait_ms)
        put(log, -1)
        assert [segment.base_offset for segment in log.segments] == bases
    env.clock.advance(90)
    directory.close()
    _, log = reopen(env)
    env.clock.advance(90)
    put(log, -1)
    assert len(log.segments) == 2, "a restart begins anew, as in Kafka"
    env.clock.advance(11)
    put(log, -1)
    assert len(log.segments) == 3


def test_no_segment_rolls_without_an_append() -> None:
    env, _, log = new_log({"segment.ms": "100"})
    put(log, START_MS)
    env.clock.advance(10_000)
    log.flush()
    log.apply_retention()
    assert len(log.segments) == 1


def test_a_topics_settings_will_do() -> None:
    config = TopicConfig()
    assert should_roll(FACTS, config) is None
    week_ms = 7 * 24 * 3600 * 1000
    late = replace(FACTS, append_max_timestamp=10_001 + week_ms)
    assert should_roll(late, config) is RollReason.TIME
