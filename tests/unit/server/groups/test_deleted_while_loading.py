"""Topics are deleted while groups are not loaded, or while groups are partly cleaned up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.faults.hooked import FailingDisk
from tests.unit.server.groups.test_deleted_topics import (
    FIRST,
    LAST,
    NAMES,
    TOPIC,
    Ticking,
    World,
    left_after_restart,
    world,
)
from tests.unit.server.groups.test_shards import fail, running_node, until_loaded
from tests.unit.server.loops import on_a_loop
from tests.worlds.brokers.topics import delete_topic

from tidelog.env import Env
from tidelog.error_codes import ErrorCode
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.modern_group import ShareGroup
from tidelog.server.groups.requests import HeartbeatRequest
from tidelog.types import OFFSETS_TOPIC

LATER_MS = 1_700_003_600_000


@asynccontextmanager
async def starting(path: Path) -> AsyncIterator[World]:
    """Start a broker, which is still loading its groups."""
    clock = Ticking(LATER_MS)
    async with running_node(path, Env(clock=clock)) as node:
        assert node.groups.topic.error_for(LAST) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        yield World(node, clock)


async def loaded(it: World) -> None:
    await until_loaded(it.node.groups)
    it.finish()


@pytest.mark.parametrize("is_new", [True, False])
def test_groups_that_are_loaded_after_a_deletion_have_no_offsets_of_the_topic(
    tmp_path: Path, is_new: bool
) -> None:
    @on_a_loop
    async def story(path: Path) -> None:
        async with world(path) as it:
            it.commit(5, *NAMES[:-1])
            it.commit(6, LAST, topic_id=NO_UUID)
        async with starting(path) as it:
            it.make_anew() if is_new else delete_topic(it.node, TOPIC)
            await loaded(it)
            assert it.left() == {}
        assert await left_after_restart(path) == {}

    story(tmp_path)


@on_a_loop
async def test_an_offset_committed_after_a_load_stays(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.commit(5, *NAMES)
    async with starting(tmp_path) as it:
        it.make_anew()
        await until_loaded(it.node.groups)
        it.commit(42, LAST)
        it.finish()
        assert it.left() == {LAST: 42}
    assert await left_after_restart(tmp_path) == {LAST: 42}


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_pending_before_a_load_restore_no_deleted_offset(
    tmp_path: Path, commit: bool
) -> None:
    left = {LAST: 42} if commit else {}

    @on_a_loop
    async def story(path: Path) -> None:
        async with world(path) as it:
            it.commit(4, *NAMES[:-1])
            await it.begin(5, 7)
        async with starting(path) as it:
            it.make_anew()
            await until_loaded(it.node.groups)
            await it.begin(42, 8)
            await it.end(7, commit=True)
            assert LAST not in it.left()
            await it.end(8, commit=commit)
            it.finish()
            assert it.left() == left
        assert await left_after_restart(path) == left

    story(tmp_path)


@on_a_loop
async def test_groups_lost_before_their_cleanup_are_cleaned_up_after_the_next_load(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with world(tmp_path, disk) as it:
        it.commit(5, *NAMES)
        it.make_anew()
        assert LAST in it.left()
        shards = it.node.groups.topic
        number = shards.number_of(LAST)
        partition = it.node.partitions.get(OFFSETS_TOPIC, number)
        fail(partition, disk)
        it.finish()
        partition.use(it.node.log_dir.reopen(OFFSETS_TOPIC, number))
        assert shards.error_for(LAST) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loaded(it)
        assert it.left() == {}
    assert await left_after_restart(tmp_path) == {}


@on_a_loop
async def test_a_share_group_that_is_loaded_shares_it_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        asked = HeartbeatRequest(group_id=FIRST, member_id="A", epoch=0, topics=frozenset({TOPIC}))
        assert (await it.node.groups.shares.heartbeat(asked)).code is ErrorCode.NONE
    async with starting(tmp_path) as it:
        delete_topic(it.node, TOPIC)
        await loaded(it)
        group = it.node.groups.find(FIRST)
        assert isinstance(group, ShareGroup)
        assert not group.shared
