"""Timers on an injected clock: order, cancellation, due times, removal of cancelled timers."""

import pytest

from tidelog.env import ManualClock
from tidelog.server.runtime.loop import Timers


def test_due_ones_run_in_order() -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)
    timers.after(20, lambda: done.append("later"))
    timers.after(10, lambda: done.append("first"))
    assert timers.next_delay_ms() == 10
    clock.advance(10)
    assert timers.run_due() == 1
    clock.advance(10)
    assert timers.run_due() == 1
    assert done == ["first", "later"]
    assert timers.next_delay_ms() is None


def test_cancelled_one_is_not_run() -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)
    timer = timers.after(5, lambda: done.append("never"))
    timer.cancel()
    clock.advance(5)
    assert timers.run_due() == 0
    assert not done


def test_a_postponed_timer_runs_at_its_new_time() -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)
    timer = timers.after(10, lambda: done.append("put off"))
    timers.after(15, lambda: done.append("other"))
    clock.advance(5)
    assert timers.put_off(timer, 20)
    assert timers.next_delay_ms() == 10
    clock.advance(10)
    assert timers.run_due() == 1
    assert done == ["other"]
    assert timers.next_delay_ms() == 10
    clock.advance(9)
    assert timers.run_due() == 0
    clock.advance(1)
    assert timers.run_due() == 1
    assert done == ["other", "put off"]
    assert timers.next_delay_ms() is None


def test_a_postponed_timer_can_be_cancelled() -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)
    timer = timers.after(10, lambda: done.append("never"))
    assert timers.put_off(timer, 20)
    timer.cancel()
    clock.advance(100)
    assert timers.run_due() == 0
    assert len(timers._heap) == 0


def test_a_timer_that_ran_or_would_run_earlier_is_not_postponed() -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)
    timer = timers.after(10, lambda: done.append("once"))
    assert not timers.put_off(timer, 9)
    assert not timers.put_off(None, 9)
    clock.advance(10)
    assert timers.run_due() == 1
    assert not timers.put_off(timer, 50)
    clock.advance(100)
    assert timers.run_due() == 0
    assert done == ["once"]


def test_a_repeatedly_postponed_timer_is_stored_once() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    timer = timers.after(10, lambda: None)
    for _ in range(10_000):
        clock.advance(1)
        assert timers.put_off(timer, 10)
        assert timers.run_due() == 0
    assert len(timers._heap) == 1


def test_wall_clock_does_not_matter() -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)
    timers.after(5, lambda: done.append("once"))
    clock.jump(10**12)
    assert timers.run_due() == 0


def test_an_earlier_timer_is_reported() -> None:
    timers, told = Timers(ManualClock()), list[int]()
    timers.on_earlier = lambda: told.append(timers.next_delay_ms() or 0)
    timers.after(50, lambda: None)
    timers.after(60, lambda: None)
    timers.after(40, lambda: None)
    assert told == [50, 40]


def test_cancelled_ones_do_not_pile_up() -> None:
    timers = Timers(ManualClock())
    for _ in range(10_000):
        timers.after(30_000, lambda: None).cancel()
    assert len(timers._heap) <= 130


def test_a_failing_timer_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock, done = ManualClock(), list[str]()
    timers = Timers(clock)

    def fail() -> None:
        raise ValueError("a defect")

    timers.after(5, fail)
    timers.after(5, lambda: done.append("other"))
    clock.advance(5)
    assert timers.run_due() == 2
    assert done == ["other"]
    assert "a defect" in caplog.text
