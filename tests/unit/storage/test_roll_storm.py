"""Roll storms are detected from the last rolls, and reported with the limits to change."""

import logging

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import DAY_MS, new_log, put

from tidelog.storage.segment.roll import STORM_ROLLS, Roll, RollReason, find_storm

MIB = 1 << 20


def rolls(reason: RollReason, *, gap_ms: int = 10, size: int = 100, ahead: int = -5) -> list[Roll]:
    return [
        Roll(reason, START_MS + gap_ms * n, size, START_MS + gap_ms * n + ahead)
        for n in range(STORM_ROLLS)
    ]


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        (RollReason.SIZE, "segment.bytes"),
        (RollReason.TIME, "segment.ms"),
        (RollReason.OFFSET_INDEX_FULL, "segment.index.bytes"),
        (RollReason.TIME_INDEX_FULL, "segment.index.bytes"),
    ],
)
def test_the_limit_to_set_is_named(reason: RollReason, first: str) -> None:
    storm = find_storm(rolls(reason), segment_bytes=MIB)
    assert storm is not None
    assert storm.reason is reason
    assert storm.settings[0] == first
    assert first in str(storm)


def test_times_ahead_of_the_clock_name_their_own_limit() -> None:
    storm = find_storm(rolls(RollReason.TIME, ahead=DAY_MS), segment_bytes=MIB)
    assert storm is not None
    assert storm.is_ahead
    assert storm.settings[0] == "message.timestamp.after.max.ms"


@pytest.mark.parametrize(
    "calm",
    [
        [],
        rolls(RollReason.TIME, gap_ms=DAY_MS),
        rolls(RollReason.TIME, size=MIB),
        rolls(RollReason.SIZE, gap_ms=60_000),
        rolls(RollReason.SIZE, size=64 * MIB),
        rolls(RollReason.REQUEST),
        rolls(RollReason.ATTACH),
        rolls(RollReason.TIME)[:5] + rolls(RollReason.REQUEST)[:5],
    ],
)
def test_no_storm(calm: list[Roll]) -> None:
    assert find_storm(calm, segment_bytes=MIB) is None


def test_tiny_segments_of_other_programs_are_detected() -> None:
    unknown = [Roll(RollReason.UNKNOWN, -1, 100, START_MS)] * STORM_ROLLS
    storm = find_storm(unknown, segment_bytes=MIB)
    assert storm is not None
    assert "segment.ms" in storm.settings
    assert storm.span_ms == -1


def test_a_backfill_that_runs_through_the_days_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each append is 1 ms after the previous one, but its timestamp is two days later."""
    env, _, log = new_log({"segment.ms": str(DAY_MS)})
    with caplog.at_level(logging.WARNING, "tidelog.storage.segment.segment_notes"):
        for turn in range(30):
            put(log, START_MS - (100 - 2 * turn) * DAY_MS)
            env.clock.advance(1)
    assert len(log.segments) == 30
    warnings = [r.getMessage() for r in caplog.records if "many small segments" in r.getMessage()]
    assert len(warnings) == 1
    assert "segment.ms" in warnings[0]
    assert "message.timestamp.before.max.ms" in warnings[0]


def test_times_that_alternate_roll_once_and_are_no_storm() -> None:
    """The second segment begins with the later time, so no further append exceeds `segment.ms`."""
    _, _, log = new_log({"segment.ms": str(DAY_MS)})
    for turn in range(60):
        put(log, START_MS - (7 * DAY_MS if turn % 2 == 0 else 0))
    assert len(log.segments) == 2
