"""A standby's file of group offsets is imported, and a failed import is retried."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.faults import DamageFileSystem, Keep, reopen
from tests.unit.server.groups.test_shards import (
    GROUP,
    committed,
    config,
    running_node,
    until_loaded,
)
from tests.unit.server.loops import on_a_loop
from tests.worlds.brokers.groups import Syncs
from tests.worlds.waiting import turn_until

from tidelog.env import Env, File, ManualClock, OsFileSystem, os_env
from tidelog.error_codes import ErrorCode
from tidelog.server.api.node import Node
from tidelog.server.coordinator.state_topic import RETRY_MS
from tidelog.storage.directory.broker_files import (
    GROUPS_FILE,
    GroupOffset,
    GroupOffsets,
    read_group_offsets,
    write_group_offsets,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, OFFSETS_TOPIC, NewRecord

PLACE: Final = "/data"
FILE: Final = f"{PLACE}/{GROUPS_FILE}"
KEPT: Final = GroupOffsets(0, {GROUP: [GroupOffset("flights", 0, 0, 0, "why")]})


async def ask(node: Node) -> ErrorCode:
    """Ensure the offsets topic as FindCoordinator does, and wait for loading; return the error."""
    code = await node.groups.topic.ensure_topic()
    await until_loaded(node.groups)
    return code


@on_a_loop
async def test_groups_wait_until_a_damaged_file_is_repaired(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    async with running_node(tmp_path, Env(clock=clock)) as node:
        node.log_dir.create_topic("flights")
    file = tmp_path / GROUPS_FILE
    file.write_text("{")
    async with running_node(tmp_path, Env(clock=clock)) as node:
        for _ in range(3):
            assert await ask(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
            assert not node.groups.topic.has_topic
            assert file.read_text() == "{"
        write_group_offsets(os_env().files, str(tmp_path), KEPT)
        assert (
            await ask(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        )  # requests before the retry interval don't read the file
        assert not node.groups.topic.has_topic
        clock.advance(RETRY_MS)
        # The file is read after the retry interval.
        assert await ask(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await ask(node) is ErrorCode.NONE
        assert committed(node.groups) == 0
        await turn_until(lambda: not file.exists())


@on_a_loop
async def test_without_the_file_groups_continue(tmp_path: Path) -> None:
    (tmp_path / GROUPS_FILE).write_text("{")
    async with running_node(tmp_path) as node:
        assert await ask(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        (tmp_path / GROUPS_FILE).unlink()
        assert await ask(node) is ErrorCode.NONE
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NONE


def test_the_log_names_the_file_and_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_loop
    async def story(path: Path) -> None:
        async with running_node(path) as node:
            await ask(node)

    (tmp_path / GROUPS_FILE).write_text('{"version": 7}')
    with caplog.at_level(logging.ERROR):
        story(tmp_path)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path / GROUPS_FILE} can't be read")
    assert "version 7" in line
    assert "tidelog follow" in line


class ShutTopic(OsFileSystem):
    """Files of the real file system; one topic can't be opened until `is_shut` is False."""

    is_shut = True

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if self.is_shut and "/flights-0/" in path:
            raise OSError(errno.EIO, "the disk can't be read")
        return super().open(path, write=write, create=create)


@on_a_loop
async def test_commit_of_a_partition_that_cannot_be_opened_is_not_forgotten(tmp_path: Path) -> None:
    clock, disk = ManualClock(1_000_000), ShutTopic()
    disk.is_shut = False
    async with running_node(tmp_path, Env(clock=clock)) as node:
        node.log_dir.create_topic("flights")
        node.partitions.get("flights", 0)
    write_group_offsets(os_env().files, str(tmp_path), KEPT)
    async with running_node(tmp_path, Env(clock=clock, files=disk)) as node:
        disk.is_shut = True
        await ask(node)
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        assert read_group_offsets(os_env().files, str(tmp_path)) == KEPT
        disk.is_shut = False
        clock.advance(RETRY_MS)
        node.groups.topic.error_for(GROUP)
        await until_loaded(node.groups)
        assert committed(node.groups) == 0
        assert read_group_offsets(os_env().files, str(tmp_path)) is None


@on_a_loop
async def test_offsets_with_long_metadata_are_divided_into_batches(tmp_path: Path) -> None:
    """One batch with all commits would be larger than `max.message.bytes`."""
    count = 300
    async with running_node(tmp_path) as node:
        node.log_dir.create_topic("flights", partitions=count)
    offsets = [GroupOffset("flights", number, 0, 0, "m" * 4_000) for number in range(count)]
    write_group_offsets(os_env().files, str(tmp_path), GroupOffsets(0, {GROUP: offsets}))
    async with running_node(tmp_path) as node:
        await ask(node)
        assert committed(node.groups) == 0
        await turn_until(lambda: not (tmp_path / GROUPS_FILE).exists())


@on_a_loop
async def test_offsets_that_the_topic_refuses_are_not_forgotten(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        node.log_dir.create_topic("flights")
        await ask(node)
        node.log_dir.topic_admin.alter(OFFSETS_TOPIC, {"max.message.bytes": "10"})
    write_group_offsets(os_env().files, str(tmp_path), KEPT)
    async with running_node(tmp_path) as node:
        await ask(node)
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        assert read_group_offsets(os_env().files, str(tmp_path)) == KEPT


@on_a_loop
async def test_offsets_beyond_the_log_end_become_the_log_end(tmp_path: Path) -> None:
    """The standby may lack records that the leader's groups had consumed."""
    numbers = range(4)
    async with running_node(tmp_path) as node:
        node.log_dir.create_topic("flights", partitions=len(numbers))
        for number in numbers:
            node.partitions.get("flights", number).log.append([NewRecord(value=b"v")] * 2)
    offsets = [GroupOffset("flights", number, number, None, "m") for number in numbers]
    write_group_offsets(os_env().files, str(tmp_path), GroupOffsets(0, {GROUP: offsets}))
    async with running_node(tmp_path) as node:
        await ask(node)
        group = node.groups.find(GROUP)
        assert group is not None
        imported = [group.offsets.get("flights", number) for number in numbers]
        assert [one and one.offset for one in imported] == [0, 1, 2, 2]
        topic_id = node.log_dir.topic("flights").topic_id
        assert {one and (one.topic_id, one.leader_epoch, one.metadata) for one in imported} == {
            (topic_id, NO_LEADER_EPOCH, "m")
        }


@on_a_loop
async def test_a_former_leader_that_has_followed_uses_the_newer_offsets(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    async with running_node(tmp_path, Env(clock=clock)) as node:
        node.log_dir.create_topic("flights")
        node.partitions.get("flights", 0).log.append([NewRecord(value=b"v")] * 3)
    # The first offset is committed at 1,000,000 ms: later than the third file, before the second.
    for fetched_ms, offset, expected in ((1, 2, 2), (1_000_500, 1, 1), (1_000_400, 3, 1)):
        offsets = GroupOffsets(fetched_ms, {GROUP: [GroupOffset("flights", 0, offset, None, "")]})
        write_group_offsets(os_env().files, str(tmp_path), offsets)
        async with running_node(tmp_path, Env(clock=clock)) as node:
            await ask(node)
            assert committed(node.groups) == expected
            await turn_until(lambda: not (tmp_path / GROUPS_FILE).exists())
        clock.set(1_000_500)


@on_a_loop
async def test_commits_of_a_copied_topic_stay(tmp_path: Path) -> None:
    """Their times are the leader's, so a comparison with the standby's clock proves nothing."""
    async with running_node(tmp_path) as node:
        node.log_dir.create_topic("flights")
        node.partitions.get("flights", 0).log.append([NewRecord(value=b"v")] * 3)
    for fetched_ms, offset in ((1, 2), (INT64_MAX, 1)):
        commits = {GROUP: [GroupOffset("flights", 0, offset, None, "")]}
        offsets = GroupOffsets(fetched_ms, commits, topic_copied=True)
        write_group_offsets(os_env().files, str(tmp_path), offsets)
        async with running_node(tmp_path) as node:
            await ask(node)
            assert committed(node.groups) == 2
            await turn_until(lambda: not (tmp_path / GROUPS_FILE).exists())


@asynccontextmanager
async def node_on(files: DamageFileSystem) -> AsyncIterator[Node]:
    """Start a broker on a disk in memory. It uses no threads, so logs are synced at once."""
    env = Env(clock=ManualClock(1_000_000), files=files)
    options = LogDirOptions(create=True, deferrals=Syncs)
    node = Node(LogDir.open(PLACE, env=env, options=options), config())
    try:
        yield node
    finally:
        node.close()


async def promoted(node: Node) -> None:
    """Check that groups are served with the standby's offsets."""
    await ask(node)
    assert await ask(node) is ErrorCode.NONE
    assert committed(node.groups) == 0


async def standby() -> DamageFileSystem:
    files = DamageFileSystem(clock=ManualClock(1_000_000))
    async with node_on(files) as node:
        node.log_dir.create_topic("flights")
    write_group_offsets(files, PLACE, KEPT)
    files.settle()
    return files


def test_power_may_be_lost_after_the_file_is_removed() -> None:
    asyncio.run(lose_power())


async def lose_power() -> None:
    files = await standby()
    async with node_on(files) as node:
        await promoted(node)
        await turn_until(lambda: not files.exists(FILE))
    states = [one for one in files.prefixes(Keep.SYNCED) if FILE not in one.contents()]
    assert states
    for state in states:
        async with node_on(reopen(state)) as node:
            await ask(node)
            assert committed(node.groups) == 0, str(state)


def test_a_file_that_was_taken_in_never_returns() -> None:
    """If the imported file reappeared, a group that was deleted later would reappear, too."""
    asyncio.run(take_in())


async def take_in() -> None:
    files = await standby()
    async with node_on(files) as node:
        await promoted(node)
        await turn_until(lambda: FILE not in files.crash(Keep.SYNCED).contents())
