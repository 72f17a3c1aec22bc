"""Clients with transactions on a broker that is killed now and again; what they did and saw.

A seed is a history: two topics, three writers (both protocols, one with a short time-out), two
readers of committed records, and a copier that reads, writes and commits its offsets in one
transaction. Many seeds share a broker, so that a kill meets each of them at another moment.
"""

import asyncio
from random import Random

from tests.histories.broker_lives import Died, Lives
from tests.histories.history import History
from tests.histories.processes import RETRIED, SHORT_MS, Names
from tests.histories.readers import Reader, committed_in, fetch
from tests.histories.writers import Copier, Writer


async def simulate(lives: Lives, seed: int, transactions: int = 3) -> History:
    """One history on a broker that others use as well."""
    names, history, random = Names(seed), History(), Random(seed)
    lives.node.topics.create(names.topic, 2, {})
    lives.node.topics.create(names.copy, 1, {})
    given = iter(range(1, 1_000_000))

    def values() -> int:
        return next(given)

    def parts(name: str) -> tuple[Lives, Names, History, Random, str]:
        return lives, names, history, Random(random.random()), name

    writers = [
        Writer(*parts("classic")),
        Writer(*parts("newer"), has_own_epochs=True),
        Writer(*parts("slow"), has_own_epochs=seed % 2 == 0, timeout_ms=SHORT_MS),
    ]
    work = asyncio.gather(*(writer.run(transactions, values) for writer in writers))
    is_over = work.done
    copier = Copier(*parts("copier"), has_own_epochs=seed % 3 != 0)
    readers = [Reader(*parts(f"reader-{number}")) for number in range(2)]
    await asyncio.gather(
        work, copier.run_copies(is_over), *(reader.run(is_over) for reader in readers)
    )
    for writer in (*writers, copier):
        await writer.init()  # which ends what it has left open
    await _finish(lives, names, history)
    history.copied[copier.source] = ((names.copy, 0), await copier.committed())
    return history


async def _finish(lives: Lives, names: Names, history: History) -> None:
    """Read everything once no transaction is open."""
    for place in (*names.places, (names.copy, 0)):
        found: list[tuple[int, int]] = []
        at, end = 0, 1
        while at < end:
            try:
                data = await fetch(lives, place, at)
            except Died:
                continue
            if data.error_code in RETRIED:
                continue
            assert not data.error_code, data
            end = data.high_watermark
            more, at = committed_in(data, at)
            found += more
            await asyncio.sleep(0)
        history.final[place] = found
