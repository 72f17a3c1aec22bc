"""Retention by each clock compared with a model that reads every record.

With zone maps, the log deletes exactly the segments that the model deletes. Without zone maps, the
log may know only a bound of a segment's time. It may then keep the segment longer than the policy
states, never shorter.
"""

from math import gcd
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.faults import START_MS
from tests.worlds.directories.logs import new_log, put

from tidelog.config import RetentionClock
from tidelog.storage.log.log import Log
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.zone_map_files import load_or_build

SPAN_MS = 1_000


class Appended(NamedTuple):
    """One record of the model."""

    timestamp: int
    append_ms: int


# Each step advances the clock by a time, then appends a batch. The batch's timestamps are relative
# to the clock; None means no timestamp.
_TIMES = st.lists(
    st.one_of(st.none(), st.integers(-3 * SPAN_MS, 3 * SPAN_MS)), min_size=1, max_size=3
)
_STEPS = st.lists(st.tuples(st.integers(0, SPAN_MS // 2), _TIMES), min_size=1, max_size=5)
_SEGMENTS = st.lists(_STEPS, min_size=1, max_size=5)


def counted_ms(records: list[Appended], clock: RetentionClock) -> int:
    """Return the time from which the policy measures a segment's age, from all its records."""
    timed = [record for record in records if record.timestamp >= 0]
    last_ms = max(record.append_ms for record in records)
    if clock is RetentionClock.APPEND or not timed:
        return last_ms  # equals the file's modification time
    if clock is RetentionClock.RECORD:
        return max(record.timestamp for record in timed)
    return max(min(record.timestamp, record.append_ms) for record in timed)


def may_be_rounded(records: list[Appended]) -> bool:
    """Whether all append times are multiples of one step, as with a clock of low resolution."""
    times = {record.append_ms for record in records}
    return len(times) > 1 and gcd(*times) > 1


def model_deletes(
    model: list[list[Appended]], clock: RetentionClock, retention_ms: int, now_ms: int
) -> int:
    """Return how many expired segments precede the first segment that is not expired."""
    count = 0
    for records in model:
        if now_ms - counted_ms(records, clock) <= retention_ms:
            break
        count += 1
    return count


def written(
    segments: list[list[tuple[int, list[int | None]]]], clock: RetentionClock, retention_ms: int
) -> tuple[Log, list[list[Appended]]]:
    env, _, log = new_log(
        {"retention.ms": str(retention_ms), "tidelog.retention.clock": clock.value}
    )
    model = []
    for number, steps in enumerate(segments):
        records = []
        for wait_ms, offsets in steps:
            env.clock.advance(wait_ms)
            now = env.clock.now_ms()
            times = [-1 if offset is None else now + offset for offset in offsets]
            put(log, *times)
            records += [Appended(time, now) for time in times]
        model.append(records)
        if number + 1 < len(segments):
            log.roll()
    return log, model


@given(
    _SEGMENTS,
    st.sampled_from(RetentionClock),
    st.integers(0, 2 * SPAN_MS),
    st.lists(st.integers(0, SPAN_MS), min_size=1, max_size=8),
    st.booleans(),
)
def test_retention_deletes_exactly_the_segments_of_the_policy(
    segments: list[list[tuple[int, list[int | None]]]],
    clock: RetentionClock,
    retention_ms: int,
    waits: list[int],
    has_zones: bool,
) -> None:
    log, model = written(segments, clock, retention_ms)
    for segment in log.segments:
        if isinstance(segment, ClosedSegment):
            segment.use_zones(load_or_build(segment) if has_zones else None)
    is_capped = clock is RetentionClock.RECORD_CAPPED
    is_exact = not is_capped or (has_zones and not any(map(may_be_rounded, model)))
    moving = log.context.env.clock
    for wait_ms in waits:
        moving.advance(wait_ms)  # type: ignore[attr-defined] # a clock that the test moves
        went = len(log.apply_retention())
        allowed = model_deletes(model, clock, retention_ms, moving.now_ms())
        assert went <= allowed
        is_active_next = allowed == len(model)
        if is_exact and not is_active_next:
            assert went == allowed
        del model[:went]
        if not model:
            return


@given(_SEGMENTS, st.integers(0, 2 * SPAN_MS))
def test_no_timestamp_keeps_a_log_beyond_its_retention(
    segments: list[list[tuple[int, list[int | None]]]], retention_ms: int
) -> None:
    log, model = written(segments, RetentionClock.RECORD_CAPPED, retention_ms)
    last_ms = model[-1][-1].append_ms
    assert START_MS <= last_ms <= log.context.env.clock.now_ms()
    log.context.env.clock.set(last_ms + retention_ms + 1)  # type: ignore[attr-defined] # as above
    assert len(log.apply_retention()) == len(model)
    assert log.log_start_offset == log.log_end_offset
