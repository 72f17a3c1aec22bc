"""Partitions of the offsets topic fail while no request writes to them, and are reopened."""

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path

from tests.faults.hooked import FailingDisk
from tests.unit.server.groups.test_shards import (
    GROUP,
    commit,
    committed,
    fail,
    running_node,
    until_loaded,
)
from tests.unit.server.loops import on_a_loop
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.env import Env
from tidelog.error_codes import ErrorCode
from tidelog.errors import Closed
from tidelog.protocol.messages import OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tidelog.server.api.context import RequestContext
from tidelog.server.api.group_offsets import offset_fetch
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.partitions.partition import Partition
from tidelog.types import OFFSETS_TOPIC


def partition_of(node: Node) -> Partition:
    return node.partitions.get(OFFSETS_TOPIC, node.groups.topic.number_of(GROUP))


def reopen(node: Node) -> None:
    partition = partition_of(node)
    partition.use(node.log_dir.reopen(OFFSETS_TOPIC, partition.name.partition))


@on_a_loop
async def test_offsets_missing_from_a_reopened_log_are_forgotten(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        await node.groups.topic.ensure_topic()
        assert await commit(node.groups, 1) == [ErrorCode.NONE]
        partition = partition_of(node)
        partition.log.flush()
        synced_bytes = partition.log.active.size_bytes
        assert await commit(node.groups, 2) == [ErrorCode.NONE]
        fail(partition, disk)
        assert node.groups.find(GROUP) is None
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        # Cut the unsynced bytes, as if they had never reached the disk.
        os.truncate(partition.log.active.log_path, synced_bytes)
        reopen(node)
        await until_loaded(node.groups)  # no request triggers the load
        assert committed(node.groups) == 1
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NONE
        assert await commit(node.groups, 3) == [ErrorCode.NONE]
        fail(partition_of(node), disk)  # the new log is monitored, too
        assert node.groups.find(GROUP) is None
        reopen(node)


@on_a_loop
async def test_log_that_fails_while_it_is_read_is_not_served(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        assert await commit(node.groups, 1) == [ErrorCode.NONE]
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        shards = node.groups.topic
        partition = partition_of(node)  # opens the log, before the load reads it
        reading, may_read, fail_writes = threading.Event(), threading.Event(), disk.hook

        def read_slowly(call: str, path: str) -> None:
            if call in {"pread", "map"} and path == partition.log.active.log_path:
                reading.set()
                assert may_read.wait(PATIENCE_S)
            fail_writes(call, path)

        disk.hook = read_slowly
        node.groups.resume()
        await turn_until(reading.is_set)
        fail(partition, disk)
        disk.hook = fail_writes
        assert shards.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        reopen(node)
        assert shards.error_for(GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert node.groups.find(GROUP) is None
        may_read.set()
        await until_loaded(node.groups)
        assert shards.error_for(GROUP) is ErrorCode.NONE
        assert committed(node.groups) == 1


@on_a_loop
async def test_log_that_is_offline_from_the_start_is_not_served(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        assert await commit(node.groups, 1) == [ErrorCode.NONE]
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        groups = node.groups  # loading begins only after other tasks have run
        fail(node.partitions.get(OFFSETS_TOPIC, groups.topic.number_of(GROUP)), disk)
        await until_loaded(node.groups)
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        reopen(node)
        await until_loaded(node.groups)
        assert committed(node.groups) == 1


@on_a_loop
async def test_unfinished_writes_to_a_lost_log_do_not_succeed(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk), tidelog_durability="fsync") as node:
        await node.groups.topic.ensure_topic()
        first = commit(node.groups, 0)
        await turn_until(lambda: first.is_done)
        disk.failing, disk.is_failing = frozenset({"sync"}), True
        replies = [commit(node.groups, offset) for offset in range(1, 4)]
        await turn_until(lambda: all(reply.is_done for reply in replies))
        disk.is_failing = False
        assert {code for reply in replies for code in reply.value} == {ErrorCode.NOT_COORDINATOR}
        assert node.groups.find(GROUP) is None
        reopen(node)
        await until_loaded(node.groups)
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NONE


@on_a_loop
async def test_offsets_lost_while_a_client_waits_are_not_reported_as_absent(tmp_path: Path) -> None:
    disk, may_sync = FailingDisk(), threading.Event()
    async with running_node(tmp_path, Env(files=disk), tidelog_durability="fsync") as node:
        await node.groups.topic.ensure_topic()
        partition, fail_writes = partition_of(node), disk.hook

        def sync_slowly(call: str, path: str) -> None:
            if call == "sync" and path == partition.log.active.log_path:
                assert may_sync.wait(PATIENCE_S)
            fail_writes(call, path)

        disk.hook = sync_slowly
        written = commit(node.groups, 7)
        asked = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=GROUP)])
        context = RequestContext(node, OFFSET_FETCH, 9, "test", ClientInfo(1, "here"))
        telling = asyncio.ensure_future(offset_fetch(context, asked))
        await asyncio.sleep(0)
        assert not written.is_done
        # Lose the partition when the commit is durable, but before the client's task runs.
        loop = asyncio.get_running_loop()

        def lose(_codes: list[ErrorCode]) -> None:
            loop.call_soon(fail, partition, disk)

        written.then(lose)
        may_sync.set()
        said = await telling
        assert isinstance(said, OffsetFetchResponse)
        assert written.value == [ErrorCode.NONE]
        assert said.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        reopen(node)


@on_a_loop
async def test_a_deleted_topic_has_no_watchers(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        commit(node.groups, 1)
        partition = partition_of(node)
        assert len(partition._watchers) == 1
        delete_topic(node, OFFSETS_TOPIC)
        assert len(partition._watchers) == 0
        with suppress(Closed):
            partition.log.flush()
        assert await node.groups.topic.ensure_topic() is ErrorCode.NONE
        assert await commit(node.groups, 2) == [ErrorCode.NONE]
        assert committed(node.groups) == 2
