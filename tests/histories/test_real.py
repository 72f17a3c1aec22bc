"""Histories of real clients on a broker that is killed: the checker must find no fault."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.histories.checker import Fault, check
from tests.histories.history import Outcome
from tests.histories.real_members import BOTH_PROTOCOLS, PAIRS, Pair
from tests.histories.real_stories import histories
from tests.worlds.brokers.victims import Nursery

# Number of histories that share a broker and its kills: as many as there are `PAIRS`.
TOGETHER = 5
PLAIN_RUN, SWEEP = 15, 2_000
# Number of seeds at the end of the sweep. In their histories, groups have members of both
# protocols.
BOTH = 400
FAULTY = Path(__file__).with_name("faulty")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Starts the brokers."""
    with Nursery(tmp_path_factory.mktemp("brokers") / "log") as running:
        yield running


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress aiokafka's log line for each attempt to reach a broker that is down."""
    caplog.set_level(logging.CRITICAL, logger="aiokafka")


def _assert_sound(
    nursery: Nursery, folder: Path, first: int, pairs: Sequence[Pair] = PAIRS
) -> None:
    found = histories(nursery, folder, first, TOGETHER, pairs)
    for own, history in enumerate(found):
        assert check(history) == [], f"seed {first + own} of {TOGETHER} from {first}"
    outcomes = {each.outcome for history in found for each in history.transactions}
    assert {Outcome.COMMITTED, Outcome.ABORTED} <= outcomes
    assert "reader" in {poll.process for history in found for poll in history.polls}
    assert any(offset for history in found for _, offset in history.copied.values())


@pytest.mark.parametrize("first", range(0, PLAIN_RUN, TOGETHER))
def test_histories_of_real_clients_are_sound(
    nursery: Nursery, quick_path: Path, first: int
) -> None:
    _assert_sound(nursery, quick_path, first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(PLAIN_RUN, SWEEP - BOTH, TOGETHER))
def test_many_more_histories_of_real_clients_are_sound(
    nursery: Nursery, quick_path: Path, first: int
) -> None:
    _assert_sound(nursery, quick_path, first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SWEEP - BOTH, SWEEP, TOGETHER))
def test_histories_of_groups_of_both_protocols_are_sound(
    nursery: Nursery, quick_path: Path, first: int
) -> None:
    _assert_sound(nursery, quick_path, first, BOTH_PROTOCOLS)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("open_transactions.py", {Fault.DIRTY_READ, Fault.ABORTED_READ}),
        ("forgotten_offsets.py", {Fault.COPIED_WRONG}),
    ],
)
def test_real_clients_find_a_broker_with_a_fault(
    tmp_path: Path, quick_path: Path, broken: str, expected: set[Fault]
) -> None:
    with Nursery(tmp_path / "log", FAULTY / broken) as nursery:
        found = histories(nursery, quick_path, 0, TOGETHER)
    assert expected & {anomaly.fault for history in found for anomaly in check(history)}
