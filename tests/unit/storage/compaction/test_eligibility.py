"""Eligibility for compaction: each bound of the cleanable range and each trigger at its limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tidelog.config import TopicConfig
from tidelog.storage.compaction.eligibility import (
    CleaningDecision,
    DueReason,
    LogState,
    horizon_of,
    judge,
    waits_since_ms,
)
from tidelog.timespec import time_text

NOW = 1_000_000
CONFIG = TopicConfig(cleanup_policy=("compact",))


@dataclass(frozen=True)
class Segment:
    base_offset: int
    end_offset: int
    size_bytes: int = 100
    youngest_ms: int = 500
    first_timestamp: int = 400
    first_append_ms: int = -1


FOUR = [Segment(n * 10, n * 10 + 10) for n in range(4)]


def state(
    segments: Sequence[Segment] = FOUR,
    *,
    checkpoint: int | None = None,
    stable: int = 45,
    durable: int = 45,
    horizons: tuple[int, ...] = (),
) -> LogState:
    return LogState(
        segments=segments,
        active_base=40,
        log_start=0,
        log_end=45,
        last_stable_offset=stable,
        durable_end=durable,
        checkpoint=checkpoint,
        horizons_ms=horizons,
    )


def told(found: CleaningDecision) -> tuple[int, int, int, int, DueReason | None]:
    return found.first_dirty, found.end, found.clean_bytes, found.dirty_bytes, found.due


def test_a_log_that_was_never_cleaned_is_dirty_up_to_its_active_segment() -> None:
    assert told(judge(state(), CONFIG, NOW)) == (0, 40, 0, 400, DueReason.RATIO)


def test_the_ratio_has_to_be_exceeded() -> None:
    assert judge(state(checkpoint=20), CONFIG, NOW).due is None  # exactly one half
    assert judge(state(checkpoint=10), CONFIG, NOW).due is DueReason.RATIO
    assert judge(state(checkpoint=30), CONFIG, NOW).due is None


def test_enough_dirty_bytes_trigger_a_cleaning_at_any_ratio() -> None:
    config = replace(CONFIG, tidelog_compaction_min_dirty_bytes=100)
    assert judge(state(checkpoint=30), config, NOW).due is DueReason.BYTES
    config = replace(CONFIG, tidelog_compaction_min_dirty_bytes=101)
    assert judge(state(checkpoint=30), config, NOW).due is None


def test_open_transactions_end_the_head_at_a_segments_start() -> None:
    found = judge(state(stable=25), CONFIG, NOW)
    assert told(found) == (0, 20, 0, 200, DueReason.RATIO)
    found = judge(state(checkpoint=20, stable=25), CONFIG, NOW)
    assert (found.dirty_bytes, found.due) == (0, None)
    assert "a transaction is open" in found.reason


def test_unsynced_records_are_not_cleaned() -> None:
    found = judge(state(durable=39), CONFIG, NOW)
    assert (found.end, found.dirty_bytes) == (30, 300)
    found = judge(state(durable=0), CONFIG, NOW)
    assert (found.end, found.due) == (0, None)
    assert "where records are not synced yet" in found.reason


@pytest.mark.parametrize(("lag", "end"), [(0, 40), (99, 40), (100, 40), (101, 20)])
def test_records_younger_than_the_minimum_lag_stay_out(lag: int, end: int) -> None:
    segments = [*FOUR[:2], replace(FOUR[2], youngest_ms=NOW - 100), FOUR[3]]
    config = replace(CONFIG, min_compaction_lag_ms=lag)
    assert judge(state(segments), config, NOW).end == end


def test_the_minimum_lag_ignores_clean_segments() -> None:
    segments = [replace(FOUR[0], youngest_ms=NOW), *FOUR[1:]]
    config = replace(CONFIG, min_compaction_lag_ms=100)
    assert judge(state(segments, checkpoint=10), config, NOW).end == 40
    assert judge(state(segments), config, NOW).end == 0


def test_an_old_record_makes_it_due() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=NOW - 400)
    assert judge(state(checkpoint=30), config, NOW).due is None
    config = replace(CONFIG, max_compaction_lag_ms=NOW - 401)
    found = judge(state(checkpoint=30), config, NOW)
    assert found.due is DueReason.LAG
    assert (
        found.reason == f"a record has been waiting since {time_text(FOUR[3].first_timestamp)} UTC"
    )
    untimed = [*FOUR[:3], replace(FOUR[3], first_timestamp=-1)]
    assert judge(state(untimed, checkpoint=30), config, NOW).due is None


def test_a_backfilled_record_waits_from_its_append_on() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=100)
    filled = [replace(each, first_append_ms=NOW - 100) for each in FOUR]
    assert NOW - FOUR[0].first_timestamp > 100
    assert judge(state(filled, checkpoint=30), config, NOW).due is None
    assert judge(state(filled, checkpoint=30), config, NOW + 1).due is DueReason.LAG


def test_an_idle_log_is_due_when_tombstones_have_had_their_time() -> None:
    found = judge(state(checkpoint=40, horizons=(NOW, NOW + 9)), CONFIG, NOW)
    assert told(found) == (40, 40, 400, 0, DueReason.HORIZON)
    assert found.reason == f"tombstones are removable since {time_text(NOW)} UTC"
    assert judge(state(checkpoint=40, horizons=(NOW + 1,)), CONFIG, NOW).due is None


@pytest.mark.parametrize("checkpoint", [46, -1])
def test_a_checkpoint_outside_the_log_starts_again(checkpoint: int) -> None:
    found = judge(state(checkpoint=checkpoint), CONFIG, NOW)
    assert (found.first_dirty, found.is_reset) == (0, True)


def test_a_requested_cleaning_needs_no_other_trigger() -> None:
    assert judge(state(checkpoint=40), CONFIG, NOW, is_asked=True).due is DueReason.REQUEST
    nothing = replace(state([]), active_base=0)
    assert judge(nothing, CONFIG, NOW, is_asked=True).due is None


def test_a_head_that_begins_in_the_middle_of_a_segment() -> None:
    found = judge(state(checkpoint=15), CONFIG, NOW)
    assert told(found) == (15, 40, 100, 300, DueReason.RATIO)


def test_an_idle_head_is_rolled_when_it_has_waited_too_long() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=100)
    waiting = replace(FOUR[0], first_timestamp=NOW - 101)
    assert waits_since_ms(waiting, config, NOW) == NOW - 101
    assert waits_since_ms(replace(waiting, first_timestamp=NOW - 100), config, NOW) is None
    assert waits_since_ms(replace(waiting, first_timestamp=-1), config, NOW) is None
    assert waits_since_ms(replace(waiting, first_timestamp=1), CONFIG, NOW) is None
    assert waits_since_ms(replace(waiting, first_append_ms=NOW - 101), config, NOW) == NOW - 101
    assert waits_since_ms(replace(waiting, first_append_ms=NOW - 100), config, NOW) is None


@pytest.mark.parametrize("retention", [0, 1, 10, 86_400_000])
def test_a_run_is_due_soon_after_the_horizon_and_not_before(retention: int) -> None:
    due = horizon_of(NOW + 7, retention)
    assert NOW + 7 + retention <= due <= NOW + 7 + retention + retention // 10 + 1
