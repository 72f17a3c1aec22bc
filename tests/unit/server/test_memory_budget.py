"""The memory budget of all connections is bounded, and no connection waits forever for memory."""

from collections.abc import Callable

import pytest

from tidelog.server.net.clients import NO_BOUND, MemoryBudget


class Readers:
    """Connections by name, and the names in the order in which they were resumed."""

    def __init__(self) -> None:
        self.went_on = list[str]()
        self._by_name = dict[str, Callable[[], None]]()

    def __getitem__(self, name: str) -> Callable[[], None]:
        return self._by_name.setdefault(name, lambda: self.went_on.append(name))


def test_at_the_bound_only_the_longest_reader_continues() -> None:
    flight, readers = MemoryBudget(100), Readers()
    assert flight.read(60, readers["a"])
    assert not flight.read(60, readers["b"])
    assert not flight.read(1, readers["c"])
    assert flight.read(60, readers["a"])
    assert (readers.went_on, flight.is_full, flight.used_bytes) == ([], True, 181)
    flight.end_read(readers["a"])  # a's request is complete, so b is resumed
    assert readers.went_on == ["b"]
    assert flight.read(10, readers["b"])
    assert not flight.read(10, readers["c"])
    flight.release(120)
    assert (readers.went_on, flight.is_full) == (["b", "c"], False)


def test_an_announced_length_takes_no_memory_of_the_budget() -> None:
    flight, readers = MemoryBudget(100), Readers()
    # Each client has sent twelve bytes of a request. The request's announced length takes no memory
    # of the budget.
    assert all(flight.read(12, readers[str(number)]) for number in range(8))
    assert not flight.is_full


def test_a_request_larger_than_the_bound_is_read_alone() -> None:
    flight, readers = MemoryBudget(100), Readers()
    assert all(flight.read(50, readers["large"]) for _ in range(10))
    assert not flight.read(50, readers["other"])
    flight.end_read(readers["large"])
    assert readers.went_on == ["other"]


def test_a_disconnected_reader_leaves_the_queue_for_memory() -> None:
    flight, readers = MemoryBudget(100), Readers()
    assert flight.read(100, readers["a"])
    assert not flight.read(1, readers["b"])
    assert not flight.read(1, readers["c"])
    flight.end_read(readers["b"])
    flight.end_read(readers["nobody"])
    assert readers.went_on == []
    flight.end_read(readers["a"])
    assert readers.went_on == ["c"]


def test_waiting_readers_resume_in_order_while_memory_is_free() -> None:
    flight, readers = MemoryBudget(100), Readers()
    flight.add(99)
    assert flight.read(1, readers["a"])
    assert not flight.read(1, readers["b"])
    assert not flight.read(1, readers["c"])
    flight.release(1)
    assert readers.went_on == []
    flight.release(2)
    assert readers.went_on == ["b", "c"]


def test_responses_are_counted_without_a_request_for_memory() -> None:
    flight, readers = MemoryBudget(100), Readers()
    flight.add(100)
    # One read is always allowed, because without it no connection could proceed.
    assert flight.read(1, readers["a"])
    assert not flight.read(1, readers["b"])
    flight.release(10)
    assert readers.went_on == ["b"]


def test_no_bound() -> None:
    flight, readers = MemoryBudget(-1), Readers()
    assert all(flight.read(1 << 40, readers[str(number)]) for number in range(3))


@pytest.mark.parametrize(("used", "has_plenty"), [(0, True), (49, True), (50, False), (200, False)])
def test_less_than_half_is_plenty(used: int, has_plenty: bool) -> None:
    for limit, expected in ((100, has_plenty), (NO_BOUND, True)):
        in_flight = MemoryBudget(limit)
        in_flight.add(used)
        assert in_flight.has_plenty is expected
