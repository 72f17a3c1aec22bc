"""What connections hold together has a bound, and nobody waits for ever at it."""

from tidelog.server.in_flight import InFlight


def never() -> None:
    raise AssertionError("let in though it had not to wait")


def test_requests_wait_at_the_bound_in_their_order() -> None:
    flight, let_in = InFlight(100), list[str]()
    assert flight.admit(60, never)
    assert flight.admit(60, never)  # there was room when it came
    assert not flight.admit(10, lambda: let_in.append("first"))
    assert not flight.admit(10, lambda: let_in.append("second"))
    flight.release(10)
    assert (let_in, flight.used_bytes) == ([], 110)
    flight.release(15)
    assert (let_in, flight.used_bytes) == (["first"], 105)
    flight.release(105)
    assert (let_in, flight.used_bytes) == (["first", "second"], 10)


def test_one_larger_than_the_bound_goes_alone() -> None:
    flight, let_in = InFlight(100), list[int]()
    assert flight.admit(500, never)
    assert not flight.admit(500, lambda: let_in.append(flight.used_bytes))
    flight.release(500)
    assert let_in == [500]


def test_who_has_gone_waits_no_more() -> None:
    flight, let_in = InFlight(100), list[str]()

    def first() -> None:
        let_in.append("first")

    assert flight.admit(100, never)
    assert not flight.admit(1, first)
    assert not flight.admit(1, lambda: let_in.append("second"))
    flight.forget(first)
    flight.release(100)
    assert let_in == ["second"]


def test_answers_count_without_asking() -> None:
    flight, let_in = InFlight(100), list[str]()
    flight.add(100)
    assert not flight.admit(1, lambda: let_in.append("in"))
    flight.release(1)
    assert let_in == ["in"]


def test_no_bound() -> None:
    flight = InFlight(-1)
    assert all(flight.admit(1 << 40, never) for _ in range(3))
