"""The append clock: the later of the last time and now, or an error after a clock jump."""

import re

import pytest

from tidelog.env import ManualClock
from tidelog.errors import ClockJump
from tidelog.storage.clocks.append_clock import NEVER, AppendClock, ClockWatch, Moment
from tidelog.timespec import zoned_text

HOUR = 3_600_000
NOW = 10 * HOUR


def clocks(last_ms: int = NEVER) -> tuple[ManualClock, AppendClock]:
    clock = ManualClock(NOW)
    return clock, AppendClock(ClockWatch(clock), last_ms=last_ms, limit_ms=HOUR)


class TestWatch:
    def test_time_that_passes_is_never_a_jump(self) -> None:
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        clock.advance(100 * HOUR)
        assert watch.now_ms() == 110 * HOUR

    def test_the_limit_is_inclusive(self) -> None:
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        clock.jump(NOW + HOUR)
        assert watch.now_ms() == NOW + HOUR
        clock.jump(NOW + 2 * HOUR + 1)
        with pytest.raises(ClockJump):
            watch.now_ms()

    def test_counts_from_the_last_look_not_from_the_start(self) -> None:
        """A clock that runs slightly too fast is no jump, even if it is hours off in total."""
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        for _ in range(10):
            clock.advance(HOUR)
            clock.jump(clock.now_ms() + HOUR // 2)
            watch.now_ms()

    def test_stays_refused_until_accepted_even_if_the_clock_is_put_right(self) -> None:
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        clock.jump(NOW + 5 * HOUR)
        for _ in range(2):
            with pytest.raises(ClockJump, match="advanced 5h more than the monotonic"):
                watch.now_ms()
        clock.jump(NOW)
        with pytest.raises(ClockJump):
            watch.now_ms()
        watch.accept()
        assert watch.now_ms() == NOW

    def test_backwards_is_no_jump(self) -> None:
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        clock.jump(NOW - 5 * HOUR)
        assert watch.now_ms() == NOW - 5 * HOUR

    def test_a_jump_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        clock.jump(NOW + 5 * HOUR)
        for _ in range(3):
            with pytest.raises(ClockJump):
                watch.now_ms()
        assert len(caplog.records) == 1


class TestAppendClock:
    def test_append_times_never_decrease(self) -> None:
        clock, append = clocks()
        assert append.next_ms() == NOW
        clock.jump(NOW - HOUR)
        assert append.next_ms() == NOW
        clock.jump(NOW - HOUR + 1)
        assert append.next_ms() == NOW
        clock.advance(2 * HOUR)
        assert append.next_ms() == NOW + HOUR + 1

    def test_append_times_never_decrease_after_a_restart_on_a_slower_clock(self) -> None:
        clock, append = clocks(last_ms=NOW + HOUR)
        assert append.next_ms() == NOW + HOUR
        clock.advance(HOUR + 5)
        assert append.next_ms() == NOW + HOUR + 5

    def test_a_last_time_far_ahead_waits_until_it_is_accepted(self) -> None:
        _, append = clocks(last_ms=NOW + HOUR + 1)
        last, now = zoned_text(NOW + HOUR + 1), zoned_text(NOW)
        text = f"the last append time on disk, {last}, is 1h ahead of the clock ({now}), so"
        for _ in range(2):
            with pytest.raises(ClockJump, match=re.escape(text)):
                append.next_ms()
        append._watch.accept(append.last_ms)
        assert append.next_ms() == NOW + HOUR + 1

    def test_a_last_time_far_ahead_is_no_matter_once_the_clock_is_right(self) -> None:
        clock, append = clocks(last_ms=NOW + 3 * HOUR)
        with pytest.raises(ClockJump):
            append.next_ms()
        clock.advance(2 * HOUR)
        assert append.next_ms() == NOW + 3 * HOUR

    def test_the_clock_is_set_back_only_with_the_records(self) -> None:
        clock, append = clocks()
        append.next_ms()
        append.rewind(NOW - 7)
        assert append.last_ms == NOW - 7
        clock.jump(NOW - 5)
        assert append.next_ms() == NOW - 5

    def test_one_watch_stops_every_partition(self) -> None:
        clock = ManualClock(NOW)
        watch = ClockWatch(clock)
        both = [AppendClock(watch, last_ms=NEVER, limit_ms=HOUR) for _ in range(2)]
        clock.jump(NOW + 2 * HOUR)
        for append in both:
            with pytest.raises(ClockJump):
                append.next_ms()
        watch.accept()
        assert both[1].next_ms() == NOW + 2 * HOUR


def test_the_topics_own_limit_counts() -> None:
    """A topic's `tidelog.max.clock.jump.ms` applies if it is lower than the limit of the watch."""
    clock = ManualClock(1_000_000)
    strict = AppendClock(ClockWatch(clock), last_ms=-1, limit_ms=5_000)
    assert strict.next_ms() == 1_000_000
    clock.jump(1_000_000 + 5_000)
    assert strict.next_ms() == 1_005_000
    clock.jump(1_005_000 + 5_001)
    with pytest.raises(ClockJump):
        strict.next_ms()


def test_clocks_that_are_read_at_one_moment_have_the_same_time() -> None:
    """For one `Moment`, the wall clock is read once.

    If the log's last time is later than the clock's time, the log's last time is used.
    """
    clock = ManualClock(NOW)
    watch, moment = ClockWatch(clock), Moment()
    first, ahead = (AppendClock(watch, last_ms=ms, limit_ms=HOUR) for ms in (NEVER, NOW + 5))
    assert first.next_and_now_ms(moment) == (NOW, NOW)
    clock.advance(3)
    assert ahead.next_and_now_ms(moment) == (NOW + 5, NOW)
    assert first.next_and_now_ms(moment) == (NOW, NOW)
    assert first.next_and_now_ms(Moment()) == (NOW + 3, NOW + 3)


def test_another_limit_is_another_question_at_a_moment() -> None:
    clock, moment = ManualClock(NOW), Moment()
    watch = ClockWatch(clock)
    wide, strict = (AppendClock(watch, last_ms=NEVER, limit_ms=ms) for ms in (HOUR, 5))
    clock.jump(NOW + 6)
    with pytest.raises(ClockJump):
        strict.next_and_now_ms(moment)
    with pytest.raises(ClockJump):
        wide.next_and_now_ms(moment)
    watch.accept()
    assert wide.next_and_now_ms(moment) == (NOW + 6, NOW + 6)
