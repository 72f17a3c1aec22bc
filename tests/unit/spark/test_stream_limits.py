"""Partitions share a limit, and a batch waits for a minimum."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.env import ManualClock
from tidelog.spark.stream_options import MinimumBatch, share_limit

BACKLOGS = st.dictionaries(st.integers(0, 20), st.integers(0, 2**62), max_size=12)


@given(BACKLOGS, st.integers(1, 2**63 - 1))
def test_shares(backlogs: dict[int, int], limit: int) -> None:
    found = share_limit(backlogs, limit)
    total = sum(backlogs.values())
    assert found.keys() == backlogs.keys()
    for key, size in backlogs.items():
        assert 0 <= found[key] <= size
        # Each partition with a backlog gets at least one offset, so a stream always reaches the
        # end.
        assert (found[key] > 0) == (size > 0)
        if total <= limit:
            assert found[key] == size
        elif found[key] > 1:
            # Shares are in proportion to the backlogs, rounded down.
            assert found[key] * total <= size * limit < (found[key] + 1) * total
    tiny = sum(1 for taken in found.values() if taken == 1)
    assert sum(found.values()) <= limit + tiny


def test_shares_as_the_connector_splits_them() -> None:
    assert share_limit({"a": 100, "b": 10, "c": 1}, 20) == {"a": 18, "b": 1, "c": 1}
    assert share_limit({"a": 3, "b": 2}, 5) == {"a": 3, "b": 2}
    assert share_limit({}, 5) == {}


def test_the_gate_waits_for_the_minimum_but_no_longer_than_its_delay() -> None:
    clock = ManualClock(0)
    gate = MinimumBatch(100, 1000, clock)
    assert gate.passes(1)  # The first batch of a process can have any size.
    assert not gate.passes(99)
    clock.advance(999)
    assert not gate.passes(99)
    clock.advance(1)
    assert gate.passes(1)
    assert not gate.passes(99)
    assert gate.passes(100)
    clock.advance(999)
    assert not gate.passes(1)


def test_gate_without_a_minimum_is_open() -> None:
    gate = MinimumBatch(None, 1000, ManualClock(0))
    assert gate.passes(1)
    assert gate.passes(1)
