"""Logs of the offsets topic that fail while nobody writes to them, and are opened anew."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.server.groups.test_shards import (
    GROUP,
    FailingDisk,
    commit,
    committed,
    running_node,
    until_loaded,
)
from tests.unit.server.held_syncs import hold_syncs
from tests.unit.server.loops import on_a_loop
from tests.worlds.waiting import turn_until

from tidelog.env import Env
from tidelog.errors import Closed, StorageFailure
from tidelog.protocol.messages import OFFSET_FETCH
from tidelog.protocol.messages.groups import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tidelog.server.groups.codes import Code
from tidelog.server.groups.replay import LoadedShard
from tidelog.server.handlers.offset_fetch import offset_fetch
from tidelog.server.handlers.waiting import arrival
from tidelog.server.node import ConnectionFacts, Node
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.storage.log import Log


def partition_of(node: Node) -> Partition:
    return node.partitions.get(OFFSETS_TOPIC, node.groups.shards.number_of(GROUP))


def fail(partition: Partition, disk: FailingDisk) -> None:
    """Let a sync fail that nobody waits for, as the broker's own rounds have them."""
    disk.is_failing = True
    with pytest.raises(StorageFailure):
        partition.log.flush()
    disk.is_failing = False


def reopen(node: Node) -> None:
    partition = partition_of(node)
    partition.use(node.log_dir.reopen(OFFSETS_TOPIC, partition.name.partition))


@on_a_loop
async def test_what_a_reopened_log_has_not_is_not_remembered(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        await node.groups.shards.ensure_topic()
        assert await arrival(commit(node.groups, 1)) == [Code.NONE]
        partition = partition_of(node)
        partition.log.flush()
        synced_bytes = partition.log.active.size_bytes
        assert await arrival(commit(node.groups, 2)) == [Code.NONE]
        fail(partition, disk)
        assert node.groups.find(GROUP) is None
        assert node.groups.shards.code_for(GROUP) is Code.NOT_COORDINATOR
        os.truncate(partition.log.active.log_path, synced_bytes)  # pages that never got there
        reopen(node)
        await until_loaded(node.groups)  # though nobody has asked
        assert committed(node.groups) == 1
        assert node.groups.shards.code_for(GROUP) is Code.NONE
        assert await arrival(commit(node.groups, 3)) == [Code.NONE]
        fail(partition_of(node), disk)  # the new log is looked after as well
        assert node.groups.find(GROUP) is None
        reopen(node)


@on_a_loop
async def test_log_that_fails_while_it_is_read_is_not_served(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.shards.ensure_topic()
        assert await arrival(commit(node.groups, 1)) == [Code.NONE]
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        shards, topic = node.groups.shards, node.groups.shards._topic
        read, is_read, reading = topic.read, asyncio.Event(), asyncio.Event()

        async def read_slowly(log: Log) -> LoadedShard:
            found = await read(log)
            if log is partition_of(node).log:
                reading.set()
                await is_read.wait()
            return found

        topic.read = read_slowly
        node.groups.resume()
        await reading.wait()
        fail(partition_of(node), disk)
        assert shards.code_for(GROUP) is Code.NOT_COORDINATOR
        reopen(node)
        assert shards.code_for(GROUP) is Code.COORDINATOR_LOAD_IN_PROGRESS
        assert node.groups.find(GROUP) is None
        is_read.set()
        await until_loaded(node.groups)
        assert shards.code_for(GROUP) is Code.NONE
        assert committed(node.groups) == 1


@on_a_loop
async def test_log_that_is_offline_from_the_start_is_not_served(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.shards.ensure_topic()
        assert await arrival(commit(node.groups, 1)) == [Code.NONE]
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        groups = node.groups  # which begins to read, once others have had their turn
        fail(node.partitions.get(OFFSETS_TOPIC, groups.shards.number_of(GROUP)), disk)
        await until_loaded(node.groups)
        assert node.groups.shards.code_for(GROUP) is Code.NOT_COORDINATOR
        reopen(node)
        await until_loaded(node.groups)
        assert committed(node.groups) == 1


@on_a_loop
async def test_writes_that_were_on_their_way_are_told_of_no_success(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk), tidelog_durability="fsync") as node:
        await node.groups.shards.ensure_topic()
        first = commit(node.groups, 0)
        await turn_until(lambda: first.is_done)
        disk.failing, disk.is_failing = frozenset({"sync"}), True
        replies = [commit(node.groups, offset) for offset in range(1, 4)]
        await turn_until(lambda: all(reply.is_done for reply in replies))
        disk.is_failing = False
        assert {code for reply in replies for code in reply.value} == {Code.NOT_COORDINATOR}
        assert node.groups.find(GROUP) is None
        reopen(node)
        await until_loaded(node.groups)
        assert node.groups.shards.code_for(GROUP) is Code.NONE


@on_a_loop
async def test_offsets_lost_while_a_client_waits_are_not_told_to_be_none(tmp_path: Path) -> None:
    async with running_node(tmp_path, tidelog_durability="fsync") as node:
        await node.groups.shards.ensure_topic()
        may_sync = hold_syncs(node)
        written = commit(node.groups, 7)
        asked = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=GROUP)])
        context = RequestContext(node, OFFSET_FETCH, 9, "test", ConnectionFacts(1, "here"))
        telling = asyncio.ensure_future(offset_fetch(context, asked))
        await asyncio.sleep(0)
        assert not written.is_done
        # The commit is safe, and before the client's turn comes the partition is lost.
        topic, number = node.groups.shards._topic, node.groups.shards.number_of(GROUP)
        written.then(lambda _codes: topic.lose(number))
        may_sync.set()
        said = await telling
        assert isinstance(said, OffsetFetchResponse)
        assert said.groups[0].error_code == Code.COORDINATOR_LOAD_IN_PROGRESS


@on_a_loop
async def test_deleted_topic_is_looked_after_no_more(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.shards.ensure_topic()
        commit(node.groups, 1)
        partition = partition_of(node)
        assert partition.watcher_count == 1
        node.topics.delete(OFFSETS_TOPIC)
        assert partition.watcher_count == 0
        with suppress(Closed):
            partition.log.flush()
        assert await node.groups.shards.ensure_topic() is Code.NONE
        assert await arrival(commit(node.groups, 2)) == [Code.NONE]
        assert committed(node.groups) == 2
