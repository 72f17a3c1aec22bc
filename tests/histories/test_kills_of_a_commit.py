"""A broker is killed at each call of a transaction's end: the transaction is complete or absent.

The transaction copies two partitions and commits a group's offsets: it writes records, markers in
three topics and both records of the coordinator. The test runs a whole broker.
"""

import asyncio
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import pytest
from tests.histories.broker_lives import Lives
from tests.histories.checker import check
from tests.histories.history import History, Outcome, Transaction
from tests.histories.members import ClassicMember
from tests.histories.processes import Names
from tests.histories.simulation import finish
from tests.histories.writers import Copier, Writer
from tests.worlds.memory_folder import memory_folder
from tests.worlds.waiting import Patience

CALLS_MAX = 200


class Once(Copier):
    """Copies one value of each partition in one transaction."""

    async def copy_once(self, lives: Lives, calls: int, *, commit: bool, stubborn: bool) -> None:
        """Run a transaction; kill the broker after `calls` file-changing calls of its end."""

        async def body(transaction: Transaction) -> bool:
            for source, value in zip(self.names.partitions, (1, 2), strict=True):
                await self.write(transaction, self.names.copies[source], [-value])
                await self._commit_offset(source, 1)
            self.is_stubborn = stubborn
            lives.doom(calls)
            return commit

        await self.transact(body)


async def _story(lives: Lives, calls: int, *, newer: bool, commit: bool, stubborn: bool) -> History:
    names, history = Names(0), History()
    lives.node.log_dir.create_topic(names.topic, partitions=2, config={})
    lives.node.log_dir.create_topic(names.copy, partitions=2, config={})

    def parts(name: str) -> tuple[Lives, Names, History, Random, str]:
        return lives, names, history, Random(calls), name

    writer = Writer(*parts("writer"))
    await writer.init()

    async def body(transaction: Transaction) -> bool:
        for partition, value in zip(names.partitions, (1, 2), strict=True):
            await writer.write(transaction, partition, [value])
        return True

    await writer.transact(body)
    # The copier's member never joins, so its offsets are those of a group without members.
    copier = Once(*parts("copier"), has_own_epochs=newer, member=ClassicMember(*parts("member")))
    await copier.init()
    await copier.committed(names.partitions[0])  # creates the topic of group offsets
    await copier.copy_once(lives, calls, commit=commit, stubborn=stubborn)
    await copier.init()
    await finish(lives, names, history)
    for source, target in names.copies.items():
        history.copied[source] = (target, await copier.committed(source))
    return history


async def _lives(folder: Path, calls: int, **story: bool) -> tuple[History, Lives]:
    lives = Lives(folder, calls)
    patience = Patience()
    work = asyncio.ensure_future(_story(lives, calls, **story))
    try:
        while not work.done():
            patience.check("all clients are done")
            await lives.turn()
            if lives.is_dead:
                lives.kill()
        return await work, lives
    finally:
        lives.close()


@pytest.mark.parametrize(("commit", "stubborn"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("newer", [False, True])
def test_a_transaction_is_complete_or_absent_after_a_kill_at_any_call_of_its_end(
    *, newer: bool, commit: bool, stubborn: bool
) -> None:
    ends, outcomes = Counter[str](), set[Outcome]()
    for calls in count():
        assert calls < CALLS_MAX
        with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="tidelog-") as folder:
            history, lives = asyncio.run(
                _lives(Path(folder), calls, newer=newer, commit=commit, stubborn=stubborn)
            )
        assert check(history) == [], calls
        outcomes.add(history.transactions[-1].outcome)
        if not lives.kills:
            break
        ends += lives.ends
    assert ends["out"] >= 2  # a kill at each partition's marker
    assert ends["__consumer_offsets"]
    assert ends["__transaction_state"] >= 2  # a kill at the decision, and at the end
    assert outcomes <= ({Outcome.COMMITTED, Outcome.UNKNOWN} if commit else {Outcome.ABORTED})
