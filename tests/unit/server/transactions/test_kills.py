"""A broker is killed, or loses power, at any moment; its state is checked at the next start.

Each transaction has a separate topic, whose markers show the outcome. All markers of a transaction
are commits, or all are aborts. After a successful response, all markers have the outcome that was
requested.
"""

import asyncio
import errno
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pytest
from tests.core import one_in, thinned
from tests.faults import CrashState, DamageFileSystem, Keep, reopen
from tests.unit.server.transactions.worlds import START_MS, TIMEOUT_MS, Marker, World, world
from tests.worlds.waiting import Patience

from tidelog.env import File, ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.server.transactions.coordinator import ProducerAnswer
from tidelog.types import TopicPartition

PARTITIONS: Final = 3
# Time in ms that is longer than any transaction timeout plus the interval of timeout checks.
LONG_MS: Final = TIMEOUT_MS + 60_000
IDS: Final = ("one", "two")
PLACE: Final = "/data"
# Errors for a producer whose transaction was aborted before its request.
TOO_LATE: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_TXN_STATE,
    }
)


class Known(NamedTuple):
    """The outcomes that clients know after the first `calls` calls of the file system."""

    calls: int
    decided: dict[str, bool]


@dataclass
class Story:
    """A history of transactions, and the outcomes that clients know.

    `known` begins with an entry for 0 calls, because calls of other threads may be recorded before
    the history begins.
    """

    world: World
    known: list[Known] = field(default_factory=lambda: [Known(0, {})])
    decided: dict[str, bool] = field(default_factory=dict)

    def note(self) -> None:
        files = self.world.node.env.files
        assert isinstance(files, DamageFileSystem)
        self.known.append(Known(len(files.journal), dict(self.decided)))

    def known_at(self, calls: int) -> Known:
        return next(each for each in reversed(self.known) if each.calls <= calls)

    async def transact(
        self, name: str, transactional_id: str, *, end: bool | None, version: int
    ) -> None:
        """Run one transaction in a separate topic; if `end` is None, it stays open."""
        it = self.world
        producer = await it.begun(transactional_id)
        await self.go_on(name, transactional_id, producer, end=end, version=version)

    async def go_on(
        self,
        name: str,
        transactional_id: str,
        producer: ProducerAnswer,
        *,
        end: bool | None,
        version: int,
    ) -> ProducerAnswer:
        it = self.world
        for number in range(PARTITIONS):
            place = TopicPartition(name, number)
            added = await it.add(
                producer, place, version=version, transactional_id=transactional_id
            )
            assert added is ErrorCode.NONE
        if end is None:
            return producer
        said = await it.end(
            producer, commit=end, version=version, transactional_id=transactional_id
        )
        assert said.code is ErrorCode.NONE
        self.decided[name] = end
        self.note()
        await it.ended(transactional_id)
        return said


def outcomes(markers: Iterable[Marker]) -> dict[str, set[tuple[bool, int]]]:
    """Return each topic's markers: whether the marker is a commit, and its partition's index."""
    found: dict[str, set[tuple[bool, int]]] = defaultdict(set)
    for place, _, _, commit in markers:
        found[place.topic].add((commit, place.partition))
    return found


def check_whole(markers: Iterable[Marker], decided: dict[str, bool]) -> None:
    found = outcomes(markers)
    for topic, seen in found.items():
        commits = {commit for commit, _ in seen}
        assert len(commits) == 1, f"{topic} is half committed: {sorted(seen)}"
        assert {number for _, number in seen} == set(range(PARTITIONS)) or not commits.pop()
    for topic, commit in decided.items():
        assert found[topic] == {(commit, number) for number in range(PARTITIONS)}, topic


async def revive(
    state: CrashState, known: Known, topics: Mapping[str, int], durability: str
) -> None:
    """Restart after a crash, let all transactions end, check them, and run one more for each id."""
    clock = ManualClock(START_MS)
    files = reopen(state, clock=clock)
    async with world(
        PLACE, clock=clock, files=files, topics=topics, tidelog_durability=durability
    ) as it:
        await all_ended(it)
        check_whole(it.markers(), known.decided)
        for name in IDS:
            producer = await it.begun(name)
            place = TopicPartition("later", 0)
            assert await it.add(producer, place, transactional_id=name) is ErrorCode.NONE
            said = await it.end(producer, commit=True, transactional_id=name)
            assert said.code is ErrorCode.NONE


async def all_ended(it: World) -> None:
    """Advance the clock until no transaction is open."""
    await it.pass_time(LONG_MS)
    patience = Patience()
    while not all(each.is_ended for each in it.table):
        patience.check("some transaction has no end")
        await it.pass_time(LONG_MS)


async def tell(
    story: Callable[[Story], Awaitable[None]], durability: str = "page-cache"
) -> tuple[DamageFileSystem, Story]:
    """Run a history; return the disk and the history."""
    clock = ManualClock(START_MS)
    files = DamageFileSystem(clock=clock)
    async with world(
        PLACE, clock=clock, files=files, topics=topics_of(story), tidelog_durability=durability
    ) as it:
        files.settle()
        told = Story(it)
        await story(told)
        check_whole(it.markers(), told.decided)
    return files, told


async def check_kills(story: Callable[[Story], Awaitable[None]]) -> int:
    """Kill the process at file system calls of a history, and check the broker after each restart.

    Return how many different states were checked.
    """
    files, told = await tell(story)
    count, former = 0, None
    for state in thinned(files.prefixes(Keep.EVERYTHING)):
        known = told.known_at(state.prefix)
        if (current := (state.fingerprint(), known)) != former:
            await revive(state, known, topics_of(story), "page-cache")
            former = current
            count += 1
    return count


async def check_power(story: Callable[[Story], Awaitable[None]], seeds: Iterable[int]) -> None:
    """Cut the power at some moments of a history, and check the broker after each restart.

    Unsynced data is lost, kept or torn.
    """
    files, told = await tell(story, "fsync")
    for state in files.crash_states(seeds):
        await revive(state, told.known_at(state.prefix), topics_of(story), "fsync")


async def classic(it: Story) -> None:
    await it.transact("committed", "one", end=True, version=0)
    await it.transact("aborted", "one", end=False, version=0)
    await it.transact("fenced", "one", end=None, version=0)
    await it.transact("behind", "one", end=True, version=0)


async def bumping(it: Story) -> None:
    producer = await it.world.begun("one")
    for name, end in (("first", True), ("second", False), ("third", True)):
        producer = await it.go_on(name, "one", producer, end=end, version=2)
    await it.go_on("open", "one", producer, end=None, version=2)
    await it.world.pass_time(LONG_MS)


async def two_at_a_time(it: Story) -> None:
    await asyncio.gather(
        it.transact("left", "one", end=True, version=0),
        it.transact("right", "two", end=False, version=2),
    )


STORIES: Final = [classic, bumping, two_at_a_time]
# One topic for each transaction.
TOPICS: Final[Mapping[Callable[[Story], Awaitable[None]], tuple[str, ...]]] = {
    classic: ("committed", "aborted", "fenced", "behind"),
    bumping: ("first", "second", "third", "open"),
    two_at_a_time: ("left", "right"),
}


def topics_of(story: Callable[[Story], Awaitable[None]]) -> dict[str, int]:
    """Return partition counts by topic, for a history's topics and one for later transactions."""
    return dict.fromkeys(TOPICS[story], PARTITIONS) | {"later": 1}


@pytest.mark.parametrize("story", STORIES)
def test_transactions_survive_a_kill_at_each_call(
    story: Callable[[Story], Awaitable[None]],
) -> None:
    assert asyncio.run(check_kills(story)) > 20 // one_in()


@pytest.mark.parametrize("story", STORIES)
def test_synced_transactions_survive_a_loss_of_power(
    story: Callable[[Story], Awaitable[None]],
) -> None:
    asyncio.run(check_power(story, thinned(range(25))))


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_synced_transactions_survive_many_losses_of_power(
    story: Callable[[Story], Awaitable[None]],
) -> None:
    asyncio.run(check_power(story, range(1000, 6000)))


def test_the_check_finds_half_committed_transactions() -> None:
    half = [
        Marker(TopicPartition("a", 0), 1, 0, commit=True),
        Marker(TopicPartition("a", 1), 1, 0, commit=False),
    ]
    with pytest.raises(AssertionError, match="half committed"):
        check_whole(half, {})
    with pytest.raises(AssertionError):
        check_whole(half[1:], {"a": True})


class Spoiled(DamageFileSystem):
    """Disk that can't open one partition.

    Attributes:
        bad: That partition.
    """

    bad = TopicPartition("none", 0)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if f"/{self.bad.topic}-{self.bad.partition}/" in path:
            raise OSError(errno.EIO, "the disk can't be read")
        return super().open(path, write=write, create=create)


async def wander(seed: int, steps: int) -> None:
    """Run clients, timeouts, failing partitions and kills in a random order."""
    chance = random.Random(seed)
    clock = ManualClock(START_MS)
    files = Spoiled(clock=clock)
    decided: dict[str, bool] = {}
    epochs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    number = 0
    for _ in range(4):
        async with world(PLACE, clock=clock, files=files, topics={}) as it:
            for _ in range(steps):
                number += 1
                name, topic = chance.choice(IDS), f"topic-{number}"
                bad = TopicPartition(topic, chance.randrange(PARTITIONS))
                it.node.log_dir.create_topic(topic, partitions=PARTITIONS)
                if chance.random() < 0.3:
                    files.bad = bad
                await step(it, chance, name, topic, decided, epochs[name])
            files.bad = Spoiled.bad
    async with world(PLACE, clock=clock, files=files, topics={}) as it:
        await all_ended(it)
        check_whole(it.markers(), decided)
    for given in epochs.values():
        assert len(set(given)) == len(given), "an epoch was given to two"


async def step(
    it: World,
    chance: random.Random,
    name: str,
    topic: str,
    decided: dict[str, bool],
    epochs: list[tuple[int, int]],
) -> None:
    said = await it.init(transactional_id=name)
    if said.code is not ErrorCode.NONE:
        assert said.code is ErrorCode.CONCURRENT_TRANSACTIONS
        await it.pass_time(chance.choice([0, 100, 20_000]))
        return
    epochs.append((said.producer_id, said.producer_epoch))
    version = chance.choice([0, 2])
    for partition in range(PARTITIONS):
        place = TopicPartition(topic, partition)
        await it.add(said, place, version=version, transactional_id=name)
    if chance.random() < 0.2:
        await it.pass_time(chance.choice([1000, LONG_MS]))
    if chance.random() < 0.8:
        commit = chance.random() < 0.5
        ended = await it.end(said, commit=commit, version=version, transactional_id=name)
        if ended.code is ErrorCode.NONE:
            decided[topic] = commit
        else:
            assert ended.code in TOO_LATE


@pytest.mark.parametrize("seed", range(12))
def test_no_transaction_is_partial_or_blocked_after_any_events(seed: int) -> None:
    asyncio.run(wander(seed, 12))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_no_transaction_is_partial_or_blocked_in_longer_runs(seed: int) -> None:
    asyncio.run(wander(seed, 60))
