"""State of a share group after a restart, a kill or a loss of power.

Acknowledgements and delivery counts are kept. Acquired records become available again.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.faults import CrashState, DamageFileSystem, Keep, reopen
from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import (
    GROUP,
    LOCK_MS,
    START_MS,
    World,
    acquired,
    said,
    world,
)
from tests.worlds.brokers.running import share_states
from tests.worlds.waiting import turn_until

from tidelog.env import ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.server.shares import state_topic
from tidelog.server.shares.record_runs import AckType

ACCEPT, RELEASE, REJECT = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT
PLACE: Final = "/data"


@on_a_loop
async def test_acknowledged_records_stay_acknowledged(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await one.say(said(0, 2, ACCEPT), said(3, 3, REJECT), said(4, 5, RELEASE))
        await one.say(said(7, 7, ACCEPT))
    async with world(path) as it:
        assert acquired(await it.member().fetch(0)) == [(4, 5, 2), (6, 6, 1), (8, 9, 1)]


@on_a_loop
async def test_locks_that_ran_out_are_counted(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        await it.member().fetch(0)
        await it.pass_time(LOCK_MS)
    async with world(path) as it:
        assert acquired(await it.member().fetch(0)) == [(0, 9, 2)]


@on_a_loop
async def test_a_reset_offset_survives_a_restart(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await one.say(said(0, 9, ACCEPT))
        assert await it.node.shares.reset(it.key(), 3) is ErrorCode.NONE
        assert await one.say(said(0, 9, ACCEPT)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with world(path) as it:
        assert await it.node.shares.is_ready(it.key())
        kept = it.node.shares.states.find(it.key())
        assert kept is not None
        assert (kept.start, kept.state_epoch) == (3, 1)
        assert acquired(await it.member().fetch(0)) == [(3, 9, 1)]


@on_a_loop
async def test_a_deleted_state_stays_deleted(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await one.say(said(0, 9, ACCEPT))
        assert await it.node.shares.change_now(it.key(), None) is ErrorCode.NONE
    async with world(path) as it:
        assert await it.node.shares.is_ready(it.key())
        assert share_states(it.node, GROUP) == []
        assert acquired(await it.member().fetch(0)) == [(0, 9, 1)]


@on_a_loop
async def test_a_snapshot_is_written_after_a_number_of_changes(path: Path) -> None:
    async with world(path, often=5) as it:
        it.produce(40)
        one = it.member()
        await one.fetch(0)
        for offset in range(0, 40, 2):
            assert await one.say(said(offset, offset, ACCEPT)) == 0
        kept = it.node.shares.states.find(it.key())
        assert kept is not None
        assert kept.snapshot_epoch >= 3
        assert kept.update_count < 5
    async with world(path, often=5) as it:
        assert await it.node.shares.is_ready(it.key())
        assert it.node.shares.states.find(it.key()) == kept
        found = acquired(await it.member().fetch(0))
        assert [(first, last) for first, last, _ in found] == [
            (offset, offset) for offset in range(1, 40, 2)
        ]


@on_a_loop
async def test_superseded_records_are_removed_from_the_start_of_the_log(path: Path) -> None:
    async with world(path, often=5) as it:
        it.produce(10, partition=1)
        cold = it.member()
        await cold.fetch(1)
        await cold.acknowledge(1, [said(0, 4, ACCEPT)])
        it.produce(100)
        one = it.member()
        await one.fetch(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_topic, "USELESS_MAX", 20)
            for offset in range(1, 100):
                assert await one.say(said(offset, offset, ACCEPT)) == 0
        log = it.node.partitions.get("__share_group_state", 0).log
        assert log.log_end_offset - log.log_start_offset < 60
        assert log.log_start_offset > 30
    async with world(path) as it:
        one = it.member()
        await one.fetch(0, 1)
        assert acquired(await one.fetch(), 1) == [(5, 9, 1)]
        assert acquired(await it.member().fetch(0)) == []


@on_a_loop
async def test_the_log_of_created_and_deleted_groups_is_truncated_at_its_start(path: Path) -> None:
    await come_and_go(path, "page-cache")


@on_a_loop
async def test_the_log_start_moves_once_the_replacing_records_are_synced(path: Path) -> None:
    """With fsync, records that replace deleted ones are synced before the log start is raised."""
    await come_and_go(path, "fsync")


async def come_and_go(path: Path, durability: str) -> None:
    async with world(path, tidelog_durability=durability) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await one.say(said(0, 4, ACCEPT))
        shares = it.node.shares
        log = it.node.partitions.get("__share_group_state", 0).log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_topic, "USELESS_MAX", 20)
            for number in range(100):
                key = it.key(group=f"short {number}")
                assert await shares.reset(key, 3) is ErrorCode.NONE
                assert await shares.change_now(key, None) is ErrorCode.NONE
        assert log.log_start_offset > 150
        assert log.log_end_offset - log.log_start_offset < 60
        assert await shares.change_now(it.key(), None) is ErrorCode.NONE
    async with world(path) as it:
        assert await it.node.shares.is_ready(it.key())
        assert share_states(it.node, GROUP) == []


@on_a_loop
async def test_the_log_start_also_moves_if_all_groups_are_deleted(path: Path) -> None:
    async with world(path) as it:
        assert await it.node.shares.reset(it.key(), 3) is ErrorCode.NONE
        log = it.node.partitions.get("__share_group_state", 0).log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_topic, "USELESS_MAX", 20)
            for _ in range(20):
                assert await it.node.shares.change_now(it.key(), None) is ErrorCode.NONE
                assert await it.node.shares.reset(it.key(), 3) is ErrorCode.NONE
            for _ in range(30):
                assert await it.node.shares.change_now(it.key(), None) is ErrorCode.NONE
        assert log.log_start_offset > 40
    async with world(path) as it:
        assert await it.node.shares.is_ready(it.key())
        assert it.node.shares.states.find(it.key()) is None


@on_a_loop
async def test_a_topic_that_cannot_be_written_accepts_no_acknowledgement(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await one.say(said(0, 1, ACCEPT))
        partition = it.node.partitions.get("__share_group_state", 0)
        partition.close()
        partition.log.detach()()
        code = await one.say(said(2, 3, ACCEPT))
        assert code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


# -- kills ---------------------------------------------------------------------------------------


@dataclass
class Story:
    """Acknowledged offsets of a run.

    `accepted` has the offsets that are acknowledged now. `known` has pairs: a number of file system
    calls, and the offsets that were acknowledged after these calls.
    """

    files: DamageFileSystem
    accepted: set[int] = field(default_factory=set)
    known: list[tuple[int, set[int]]] = field(default_factory=list)

    def note(self) -> None:
        self.known.append((len(self.files.journal), set(self.accepted)))

    def at(self, calls: int) -> tuple[set[int], set[int]]:
        """Return which offsets must be acknowledged after `calls` calls, and which may be."""
        before = [accepted for count, accepted in self.known if count <= calls]
        behind = [accepted for count, accepted in self.known if count > calls]
        sure = before[-1] if before else set()
        return sure, behind[0] if behind else sure


async def tell(durability: str) -> tuple[DamageFileSystem, Story]:
    clock = ManualClock(START_MS)
    files = DamageFileSystem(clock=clock)
    async with world(PLACE, clock=clock, files=files, often=3, tidelog_durability=durability) as it:
        await until_shown(it)
        it.produce(30)
        await until_shown(it)
        await it.node.partitions.get("jobs", 0).flushed()
        files.settle()
        story = Story(files)
        story.note()
        one = it.member()
        await one.fetch(0)
        for first, last, kind in (
            (0, 4, ACCEPT),
            (10, 12, ACCEPT),
            (5, 6, RELEASE),
            (20, 24, REJECT),
            (7, 9, ACCEPT),
            (25, 29, ACCEPT),
        ):
            assert await one.say(said(first, last, kind)) == 0
            if kind is not RELEASE:
                story.accepted |= set(range(first, last + 1))
            story.note()
    return files, story


async def until_shown(it: World) -> None:
    partition = it.node.partitions.get("jobs", 0)
    await turn_until(lambda: partition.high_watermark == partition.log.log_end_offset)


async def revive(state: CrashState, story: Story, durability: str) -> None:
    """Restart; check that acknowledged records stay acknowledged, and others can be acquired."""
    sure, perhaps = story.at(state.prefix)
    clock = ManualClock(START_MS)
    files = reopen(state, clock=clock)
    async with world(PLACE, clock=clock, files=files, tidelog_durability=durability) as it:
        await until_shown(it)
        one = it.member()
        found = {
            offset: count
            for first, last, count in acquired(await one.fetch(0))
            for offset in range(first, last + 1)
        }
        done = set(range(30)) - set(found)
        assert sure <= done <= perhaps
        for offset in found:
            assert await one.say(said(offset, offset, ACCEPT)) == 0
        assert acquired(await one.fetch()) == []


async def check(states: Iterable[CrashState], story: Story, durability: str) -> int:
    count = 0
    for state in states:
        await revive(state, story, durability)
        count += 1
    return count


def test_share_groups_survive_a_kill_at_each_call() -> None:
    async def whole() -> int:
        files, story = await tell("page-cache")
        return await check(files.prefixes(Keep.EVERYTHING), story, "page-cache")

    assert asyncio.run(whole()) > 10


def test_synced_share_groups_survive_a_loss_of_power() -> None:
    async def whole() -> None:
        files, story = await tell("fsync")
        await check(files.crash_states(range(15)), story, "fsync")

    asyncio.run(whole())
