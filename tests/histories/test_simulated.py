"""Histories of clients with transactions, by seed: nothing is found in them that must not be."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from tests.histories.broker_lives import Lives
from tests.histories.checker import Fault, check
from tests.histories.history import History, Outcome
from tests.histories.simulation import simulate
from tests.memory_folder import memory_folder

from tidelog.server.groups.pending import PendingOffsets
from tidelog.server.partitions import Partition

# Histories that share a broker and its kills: they ask it more than 100 things each.
TOGETHER = 20
PLAIN_RUN, SWEEP = 10, 5000
AT_ONCE = 50
ASKED_BEFORE_A_KILL = range(200, 1500)


async def _together(folder: Path, first: int, count: int) -> tuple[list[History], int]:
    lives = Lives(folder, first)
    work = asyncio.gather(*(simulate(lives, first + number) for number in range(count)))
    try:
        next_kill = lives.random.choice(ASKED_BEFORE_A_KILL)
        while not work.done():
            await lives.turn()
            if lives.asked > next_kill:
                lives.kill()
                next_kill = lives.asked + lives.random.choice(ASKED_BEFORE_A_KILL)
        return await work, lives.kills
    finally:
        lives.close()


def histories(first: int, count: int) -> tuple[list[History], int]:
    """Histories by their seeds, on a broker of their own, and how often it was killed."""
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="tidelog-") as folder:
        return asyncio.run(_together(Path(folder), first, count))


def faults(found: list[History]) -> set[Fault]:
    """All kinds that the checker finds."""
    return {anomaly.fault for history in found for anomaly in check(history)}


def _assert_sound(first: int) -> None:
    found, kills = histories(first, TOGETHER)
    for number, history in enumerate(found):
        assert check(history) == [], f"seed {first + number} of {TOGETHER} from {first}"
    outcomes = {each.outcome for history in found for each in history.transactions}
    assert {Outcome.COMMITTED, Outcome.ABORTED} <= outcomes
    assert any(poll.records for history in found for poll in history.polls)
    assert any(target for history in found for target in history.copied.values())
    assert kills


@pytest.mark.parametrize("number", range(PLAIN_RUN))
def test_simulated_histories_are_sound(number: int) -> None:
    _assert_sound(number * TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, SWEEP, AT_ONCE))
def test_many_more_simulated_histories_are_sound(start: int) -> None:
    for number in range(start, start + AT_ONCE):
        _assert_sound(number * TOGETHER)


class TestBrokersThatAreWrong:
    """Seeds that find nothing prove nothing unless they find what is wrong."""

    def test_open_transactions_are_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = property(lambda partition: partition.high_watermark)
        monkeypatch.setattr(Partition, "last_stable_offset", shown)
        found = faults(histories(0, 5)[0])
        assert {Fault.DIRTY_READ, Fault.ABORTED_READ} & found

    def test_offsets_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        take = PendingOffsets.take

        def forget(
            pending: PendingOffsets, number: int, producer_id: int, *, commit: bool
        ) -> list[object]:
            take(pending, number, producer_id, commit=commit)
            return []

        monkeypatch.setattr(PendingOffsets, "take", forget)
        assert Fault.COPIED_WRONG in faults(histories(0, 2)[0])
