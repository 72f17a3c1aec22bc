"""Histories of clients with transactions, by seed: the checker must find no fault."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.histories.broker_lives import Lives
from tests.histories.checker import Fault, check
from tests.histories.history import History, Outcome
from tests.histories.simulation import simulate
from tests.worlds.memory_folder import memory_folder
from tests.worlds.waiting import Patience

# Number of histories that share a broker and its kills. More histories send more requests (800 per
# history), which allows more kills, but they also have more topics, which slow down each start.
TOGETHER = 10
PLAIN_RUN, SWEEP = 300, 100_000
# Number of seeds of one test.
AT_ONCE = 100
ASKED_BEFORE_A_KILL = range(100, 1000)


async def _together(folder: Path, first: int, count: int) -> tuple[list[History], Lives]:
    lives, patience = Lives(folder, first), Patience()
    work = asyncio.gather(*(simulate(lives, first + number) for number in range(count)))
    try:
        next_kill = lives.random.choice(ASKED_BEFORE_A_KILL)
        while not work.done():
            patience.check("all clients are done")
            await lives.turn()
            if lives.asked > next_kill:
                lives.doom()
                next_kill = lives.asked + lives.random.choice(ASKED_BEFORE_A_KILL)
            if lives.is_dead:
                lives.kill()
        return await work, lives
    finally:
        lives.close()


def histories(first: int, count: int) -> tuple[list[History], Counter[str]]:
    """Run histories on a separate broker; return them, and the broker's kills by topic."""
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="tidelog-") as folder:
        found, lives = asyncio.run(_together(Path(folder), first, count))
        return found, lives.ends


def faults(found: list[History]) -> set[Fault]:
    """Return all kinds of faults that the checker finds."""
    return {anomaly.fault for history in found for anomaly in check(history)}


def _assert_sound(first: int) -> None:
    ends, all_found = Counter[str](), list[History]()
    for group in range(first, first + AT_ONCE, TOGETHER):
        found, at = histories(group, TOGETHER)
        ends += at
        for number, history in enumerate(found):
            assert check(history) == [], f"seed {group + number} of {TOGETHER} from {group}"
        all_found += found
    _assert_rich(all_found)
    # test_kills_of_a_commit.py kills the broker at each step of a commit.
    assert ends.total() > AT_ONCE // TOGETHER, ends


def _assert_rich(found: list[History]) -> None:
    outcomes = Counter(each.outcome for history in found for each in history.transactions)
    assert outcomes[Outcome.COMMITTED] > len(found)
    assert outcomes[Outcome.ABORTED] > len(found)
    assert any(each.fenced for history in found for each in history.transactions)
    for is_committed in (True, False):
        polls = (poll for history in found for poll in history.polls)
        assert any(poll.records for poll in polls if poll.is_committed is is_committed)
    assert any(offset for history in found for _, offset in history.copied.values())


@pytest.mark.parametrize("first", range(0, PLAIN_RUN, AT_ONCE))
def test_simulated_histories_are_sound(first: int) -> None:
    _assert_sound(first)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the sweep its seeds: all seeds, or the range in `--seeds`."""
    if "first_of_many" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--seeds") or f"{PLAIN_RUN}:{SWEEP}"
        metafunc.parametrize("first_of_many", seeds_of(asked)[::AT_ONCE])


def seeds_of(text: str) -> range:
    """Return the seeds of the text `FROM:TO`, TO exclusive.

    Raises:
        pytest.UsageError: The range splits a test's seeds, which share a broker.
    """
    ends = [int(part) if part.isdecimal() else -1 for part in text.split(":")]
    if len(ends) != 2 or not 0 <= ends[0] < ends[1] or any(end % AT_ONCE for end in ends):
        raise pytest.UsageError(f"--seeds {text}: FROM:TO are hundreds, e.g. {PLAIN_RUN}:{SWEEP}")
    return range(*ends)


@pytest.mark.slow
def test_many_more_simulated_histories_are_sound(first_of_many: int) -> None:
    _assert_sound(first_of_many)


def test_ranges_of_seeds_add_up() -> None:
    parts = [seeds_of("300:30000"), seeds_of("30000:100000")]
    assert [seed for part in parts for seed in part] == list(range(PLAIN_RUN, SWEEP))


@pytest.mark.parametrize("text", ["", "2000", "2000:", "0:0", "0:150", "-100:0", "0:1:2", "a:b"])
def test_an_invalid_range_of_seeds_is_a_usage_error(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="FROM:TO"):
        seeds_of(text)
