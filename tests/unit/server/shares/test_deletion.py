"""A share group or its topic is deleted during other requests for the group."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults.hooked import FailingDisk
from tests.unit.server.groups.test_shards import fail
from tests.unit.server.loops import on_a_loop, turns
from tests.unit.server.shares.share_worlds import GROUP, TOPIC, World, acquired, said, world
from tests.worlds.brokers.running import share_states
from tests.worlds.waiting import PATIENCE_S

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_GROUPS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from tidelog.protocol.messages.classic_groups import DeleteGroupsRequest
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tidelog.server.api.classic_groups import delete_groups
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo
from tidelog.server.api.share_offsets import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    describe_share_group_offsets,
)
from tidelog.server.groups.requests import HeartbeatRequest
from tidelog.server.shares.record_runs import AckType
from tidelog.server.shares.share_partitions import LOAD_MS


async def delete(it: World) -> int:
    context = RequestContext(it.node, DELETE_GROUPS, 2, "test", ClientInfo(9, "127.0.0.1"))
    told = await delete_groups(context, DeleteGroupsRequest(groups_names=[GROUP]))
    return told.results[0].error_code


async def forget(it: World) -> int:
    facts = ClientInfo(9, "127.0.0.1")
    context = RequestContext(it.node, DELETE_SHARE_GROUP_OFFSETS, 0, "test", facts)
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)]
    request = DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=topics)
    return (await delete_share_group_offsets(context, request)).error_code


async def describe(it: World) -> int:
    facts = ClientInfo(9, "127.0.0.1")
    context = RequestContext(it.node, DESCRIBE_SHARE_GROUP_OFFSETS, 1, "test", facts)
    topics = [DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[0])]
    groups = [DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=topics)]
    request = DescribeShareGroupOffsetsRequest(groups=groups)
    told = await describe_share_group_offsets(context, request)
    return told.groups[0].topics[0].partitions[0].error_code


async def alter(it: World) -> int:
    facts = ClientInfo(9, "127.0.0.1")
    context = RequestContext(it.node, ALTER_SHARE_GROUP_OFFSETS, 0, "test", facts)
    partitions = [AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)]
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)]
    request = AlterShareGroupOffsetsRequest(group_id=GROUP, topics=topics)
    told = await alter_share_group_offsets(context, request)
    return told.responses[0].partitions[0].error_code


async def join(it: World) -> None:
    asked = HeartbeatRequest(
        group_id=GROUP,
        member_id="A",
        epoch=0,
        rack_id=None,
        topics=frozenset({TOPIC}),
        client_id="test",
        client_host="/127.0.0.1",
    )
    assert (await it.node.groups.shares.heartbeat(asked)).code is ErrorCode.NONE


async def read_some(it: World) -> None:
    it.produce(10)
    one = it.member()
    await one.fetch(0)
    assert await one.say(said(0, 4, AckType.ACCEPT)) == 0
    one.epoch = -1
    await one.fetch()


@asynccontextmanager
async def held(it: World, disk: FailingDisk) -> AsyncIterator[None]:
    """Make the partition of `__share_group_state` fail; block its reload until the context ends."""
    partition, gate = it.node.partitions.get("__share_group_state", 0), threading.Event()
    fail(partition, disk)
    log, fail_writes = it.node.log_dir.reopen("__share_group_state", 0), disk.hook

    def wait(call: str, path: str) -> None:
        if call in {"pread", "map"} and path == log.active.log_path:
            assert gate.wait(PATIENCE_S)
        fail_writes(call, path)

    disk.hook = wait
    try:
        partition.use(log)
        await turns()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert it.node.shares.states.error_for(it.key()) is loading
        yield
        await turns()
        assert it.node.shares.states.error_for(it.key()) is loading
    finally:
        gate.set()
        disk.hook = fail_writes


@on_a_loop
async def test_a_join_during_the_deletion_of_its_group_keeps_the_state(path: Path) -> None:
    disk = FailingDisk()
    async with world(path, files=disk) as it:
        await read_some(it)
        async with held(it, disk):
            deletion = asyncio.ensure_future(delete(it))
            await turns()
            await join(it)
        assert await deletion == ErrorCode.NON_EMPTY_GROUP
        kept = it.node.shares.states.find(it.key())
        assert kept is not None
        assert kept.start == 5
        assert acquired(await it.member().fetch(0)) == [(5, 9, 2)]


@on_a_loop
async def test_a_join_while_a_topic_is_removed_from_the_group_keeps_the_state(path: Path) -> None:
    disk = FailingDisk()
    async with world(path, files=disk) as it:
        await read_some(it)
        async with held(it, disk):
            forgetting = asyncio.ensure_future(forget(it))
            await turns()
            await join(it)
        assert await forgetting == ErrorCode.NON_EMPTY_GROUP
        assert acquired(await it.member().fetch(0)) == [(5, 9, 2)]


@on_a_loop
async def test_a_group_that_is_deleted_while_it_forgets_does_not_return(path: Path) -> None:
    disk = FailingDisk()
    async with world(path, files=disk) as it:
        await read_some(it)
        async with held(it, disk):
            forgetting = asyncio.ensure_future(forget(it))
            await turns()
            it.node.groups.commits.delete_group(GROUP)
        assert await forgetting == ErrorCode.GROUP_ID_NOT_FOUND
        assert it.node.groups.find(GROUP) is None


@on_a_loop
async def test_a_deleted_group_loses_its_state_and_starts_again(path: Path) -> None:
    async with world(path) as it:
        await read_some(it)
        assert await delete(it) == 0
        assert it.node.groups.find(GROUP) is None
        assert share_states(it.node, GROUP) == []
        await join(it)
        assert acquired(await it.member().fetch(0)) == [(0, 9, 1)]


@on_a_loop
async def test_requests_end_if_the_state_is_not_loaded_in_time(path: Path) -> None:
    disk = FailingDisk()
    async with world(path, files=disk) as it:
        await read_some(it)
        async with held(it, disk):
            requests = [delete(it), forget(it), describe(it), alter(it)]
            running = [asyncio.ensure_future(each) for each in requests]
            await it.pass_time(LOAD_MS - 1)
            assert not any(task.done() for task in running)
            await it.pass_time(1)
            assert {await task for task in running} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert it.node.groups.find(GROUP) is not None
        assert acquired(await it.member().fetch(0)) == [(5, 9, 2)]
