"""What a connection makes the broker hold is counted once, and given back to the last byte."""

from tidelog.env import ManualClock
from tidelog.server.net.clients import Footprint, InFlight

NOW_MS = 1_700_000_000_000


class Side:
    """One connection's footprint, and how often it was told that there is room."""

    def __init__(self, in_flight: InFlight, clock: ManualClock) -> None:
        self.told = 0
        self.footprint = Footprint(in_flight, clock.monotonic_ms, self.tell)

    def tell(self) -> None:
        self.told += 1


def answers(footprint: Footprint) -> tuple[int, int | None]:
    """How much of them waits, and since when."""
    return footprint.held_bytes, footprint.taking_since_ms


def test_a_request_counts_as_far_as_it_has_come_then_as_a_whole() -> None:
    clock, in_flight = ManualClock(NOW_MS), InFlight(100)
    footprint = Side(in_flight, clock).footprint
    began_ms = clock.monotonic_ms()
    footprint.read(10)
    clock.advance(5)
    footprint.read(10)
    footprint.read(30)
    assert (footprint.request_bytes, in_flight.used_bytes) == (30, 30)
    assert [footprint.sending_since_ms] == [began_ms]
    footprint.end_read()
    footprint.work_on(50)
    assert [footprint.sending_since_ms] == [None]
    assert in_flight.used_bytes == 50
    footprint.release_request()
    footprint.release_request()
    assert in_flight.used_bytes == 0


def test_at_the_bound_the_rest_waits_until_there_is_room() -> None:
    clock, in_flight = ManualClock(NOW_MS), InFlight(100)
    first, second = Side(in_flight, clock), Side(in_flight, clock)
    first.footprint.read(100)
    second.footprint.read(1)
    assert (first.footprint.is_waiting, second.footprint.is_waiting) == (False, True)
    clock.advance(7)
    first.footprint.end_read()
    first.footprint.release_request()
    assert not second.footprint.is_waiting
    assert (first.told, second.told) == (0, 1)
    assert second.footprint.sending_since_ms == clock.monotonic_ms()


def test_answers_count_from_when_the_first_of_them_waits() -> None:
    clock, in_flight = ManualClock(NOW_MS), InFlight(100)
    footprint = Side(in_flight, clock).footprint
    began_ms = clock.monotonic_ms()
    footprint.hold(queued_bytes=40)
    clock.advance(3)
    footprint.hold(unsent_bytes=20)
    footprint.hold(queued_bytes=5)
    assert in_flight.used_bytes == 25
    assert answers(footprint) == (25, began_ms)
    footprint.hold(unsent_bytes=0)
    footprint.hold(queued_bytes=0)
    assert in_flight.used_bytes == 0
    assert answers(footprint) == (0, None)


def test_who_has_gone_holds_nothing_and_lets_others_go_on() -> None:
    clock, in_flight = ManualClock(NOW_MS), InFlight(100)
    gone, other = Side(in_flight, clock), Side(in_flight, clock)
    gone.footprint.read(60)
    gone.footprint.hold(unsent_bytes=30, queued_bytes=20)
    other.footprint.read(1)
    assert other.footprint.is_waiting
    gone.footprint.drop()
    assert (other.told, in_flight.used_bytes) == (1, 1)
