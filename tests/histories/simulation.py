"""Runs clients with transactions on a broker that is killed, and records their steps and reads.

A history has these topics and clients, and the history's seed decides the clients' steps:

- a topic of two partitions, and a topic for copies;
- three writers, which use either of the two transaction protocols, one of them with a short
  timeout; sometimes a rival fences a writer;
- three readers, two of committed records and one of all records;
- two copiers, which read the topic as members of one group (two classic members, two members of the
  consumer protocol, or one of each); in one transaction, a copier writes copies of the values that
  it has read, and commits the group's offsets.

Many histories share a broker, so that one kill tests a different moment in each history.
"""

import asyncio
from random import Random

from tests.histories.broker_lives import Died, Lives
from tests.histories.history import History, Partition
from tests.histories.members import ClassicMember, ConsumerMember
from tests.histories.processes import RETRIED, SHORT_MS, Names
from tests.histories.readers import Reader, all_in, committed_in, fetch
from tests.histories.writers import Copier, Writer
from tests.worlds.waiting import Patience

MEMBERS = (
    (ClassicMember, ClassicMember),
    (ConsumerMember, ConsumerMember),
    (ClassicMember, ConsumerMember),
)


async def simulate(lives: Lives, seed: int, transactions: int = 3) -> History:
    """Run one history on a broker that other histories use at the same time."""
    names, history, random = Names(seed), History(), Random(seed)
    lives.node.log_dir.create_topic(names.topic, partitions=2, config={})
    lives.node.log_dir.create_topic(names.copy, partitions=2, config={})
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
    copiers = [
        Copier(
            *parts(f"copier-{number}"),
            has_own_epochs=random.random() < 0.6,
            member=kind(*parts(f"member-{number}")),
        )
        for number, kind in enumerate(MEMBERS[seed % len(MEMBERS)])
    ]
    readers = [Reader(*parts(f"reader-{number}"), number < 2) for number in range(3)]
    await asyncio.gather(
        work,
        *(copier.run_copies(is_over) for copier in copiers),
        *(reader.run(is_over) for reader in readers),
    )
    for writer in (*writers, *copiers):
        await writer.init()  # ends the writer's open transaction
    await finish(lives, names, history)
    for source, target in names.copies.items():
        history.copied[source] = (target, await copiers[0].committed(source))
    return history


async def finish(lives: Lives, names: Names, history: History) -> None:
    """Read all partitions into the history; no transaction may be open."""
    for partition in (*names.partitions, *names.copies.values()):
        history.final[partition] = await _read_all(lives, partition, is_committed=True)
        history.stored[partition] = await _read_all(lives, partition, is_committed=False)


async def _read_all(
    lives: Lives, partition: Partition, *, is_committed: bool
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    at, end = 0, 1
    patience = Patience()
    while at < end:
        patience.check(partition)
        await asyncio.sleep(0)
        try:
            data = await fetch(lives, partition, at, is_committed=is_committed)
        except Died:
            continue
        if data.error_code in RETRIED:
            continue
        assert not data.error_code, data
        end = data.high_watermark
        more, at = (committed_in if is_committed else all_in)(data, at)
        found += more
    return found
