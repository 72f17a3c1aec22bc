"""The broker counts a connection's memory once, and releases all of it."""

from tidelog.env import ManualClock
from tidelog.server.net.clients import ConnectionMemory, MemoryBudget

NOW_MS = 1_700_000_000_000


class Side:
    """One connection's memory, and the number of its notifications about free memory."""

    def __init__(self, in_flight: MemoryBudget, clock: ManualClock) -> None:
        self.told = 0
        self.memory = ConnectionMemory(in_flight, clock.monotonic_ms, self.tell)

    def tell(self) -> None:
        self.told += 1


def answers(memory: ConnectionMemory) -> tuple[int, int | None]:
    """Return the size of unread responses in bytes, and since when they are unread."""
    return memory.response_bytes, memory.unread_since_ms


def test_a_request_is_counted_by_its_received_bytes_and_then_as_a_whole() -> None:
    clock, in_flight = ManualClock(NOW_MS), MemoryBudget(100)
    memory = Side(in_flight, clock).memory
    began_ms = clock.monotonic_ms()
    memory.read(10)
    clock.advance(5)
    memory.read(10)
    memory.read(30)
    assert (memory.request_bytes, in_flight.used_bytes) == (30, 30)
    assert [memory.sending_since_ms] == [began_ms]
    memory.end_read()
    memory.work_on(50)
    assert [memory.sending_since_ms] == [None]
    assert in_flight.used_bytes == 50
    memory.release_request()
    memory.release_request()
    assert in_flight.used_bytes == 0


def test_at_the_bound_the_rest_waits_until_there_is_room() -> None:
    clock, in_flight = ManualClock(NOW_MS), MemoryBudget(100)
    first, second = Side(in_flight, clock), Side(in_flight, clock)
    first.memory.read(100)
    second.memory.read(1)
    assert (first.memory.is_waiting, second.memory.is_waiting) == (False, True)
    clock.advance(7)
    first.memory.end_read()
    first.memory.release_request()
    assert not second.memory.is_waiting
    assert (first.told, second.told) == (0, 1)
    assert second.memory.sending_since_ms == clock.monotonic_ms()


def test_responses_are_counted_from_the_first_waiting_one() -> None:
    clock, in_flight = ManualClock(NOW_MS), MemoryBudget(100)
    memory = Side(in_flight, clock).memory
    began_ms = clock.monotonic_ms()
    memory.hold(queued_bytes=40)
    clock.advance(3)
    memory.hold(unsent_bytes=20)
    memory.hold(queued_bytes=5)
    assert in_flight.used_bytes == 25
    assert answers(memory) == (25, began_ms)
    memory.hold(unsent_bytes=0)
    memory.hold(queued_bytes=0)
    assert in_flight.used_bytes == 0
    assert answers(memory) == (0, None)


def test_a_disconnected_client_frees_its_memory_for_others() -> None:
    clock, in_flight = ManualClock(NOW_MS), MemoryBudget(100)
    gone, other = Side(in_flight, clock), Side(in_flight, clock)
    gone.memory.read(60)
    gone.memory.hold(unsent_bytes=30, queued_bytes=20)
    other.memory.read(1)
    assert other.memory.is_waiting
    gone.memory.drop()
    assert (other.told, in_flight.used_bytes) == (1, 1)
