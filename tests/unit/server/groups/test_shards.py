"""Partitions of the offsets topic are created, loaded, synced, lost and loaded again."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.faults.hooked import FailingDisk
from tests.unit.server.loops import on_a_loop
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.config import BrokerConfig
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.env import Env, ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure
from tidelog.protocol.messages import HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT
from tidelog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.protocol.requests import ClientConnection
from tidelog.server.api.classic_groups import heartbeat, join_group
from tidelog.server.api.context import RequestContext
from tidelog.server.api.dispatch import answer
from tidelog.server.api.handlers import import_coordinators
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.broker import open_node
from tidelog.server.coordinator.state_topic import RETRY_MS, KeyValue
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.coordinator import GroupCoordinator
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.authorizer import Acl, RuleTable
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.types import OFFSETS_TOPIC, Codec

SETTINGS = {"offsets.topic.num.partitions": "3"}
GROUP = "readers"
NAMES = [f"group {number}" for number in range(300)]
MAY_READ_GROUPS = Acl(
    resource_type=ResourceType.GROUP,
    name="*",
    pattern=PatternType.LITERAL,
    principal="User:*",
    host="*",
    operation=Operation.READ,
    permission=Permission.ALLOW,
)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def config(**settings: str) -> BrokerConfig:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    return BrokerConfig.parse(SETTINGS | named)[0]


@asynccontextmanager
async def running_node(path: Path, env: Env | None = None, **settings: str) -> AsyncIterator[Node]:
    node = open_node(str(path), config(**settings), env=env)
    try:
        yield node
    finally:
        node.close()


def commit(groups: GroupCoordinator, offset: int, group: str = GROUP) -> Reply[list[ErrorCode]]:
    asked = CommitRequest(group_id=group)
    return groups.commits.commit(asked, [Commit("flights", 0, offset)])


def committed(groups: GroupCoordinator, group: str = GROUP) -> int | None:
    found = groups.find(group)
    offset = None if found is None else found.offsets.get("flights", 0)
    return None if offset is None else offset.offset


def fail(partition: Partition, disk: FailingDisk) -> None:
    """Make a sync fail while no request waits for it, as in a periodic flush of the broker."""
    disk.is_failing = True
    with pytest.raises(StorageFailure):
        partition.log.flush()
    disk.is_failing = False


async def until_loaded(groups: GroupCoordinator) -> None:
    await turn_until(lambda: not groups.topic.is_loading)


@on_a_loop
async def test_no_group_is_served_before_the_topic_exists(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        made = await asyncio.gather(*[node.groups.topic.ensure_topic() for _ in range(3)])
        assert made == [ErrorCode.NONE] * 3
        # The second and third call find the files of the first call, and load the topic as an
        # existing one.
        await until_loaded(node.groups)
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NONE
        given = node.log_dir.topic(OFFSETS_TOPIC).given
        assert given["cleanup.policy"] == "compact"
        assert given["segment.bytes"] == "104857600"


@on_a_loop
async def test_groups_are_refused_until_their_partition_is_loaded(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        for number in range(300):
            assert await commit(node.groups, number, f"group {number}") == [ErrorCode.NONE]
    async with running_node(tmp_path) as node:
        shards = node.groups.topic
        assert {shards.error_for(name) for name in NAMES} == {LOADING}
        last = next(name for name in NAMES if shards.number_of(name) == 2)
        others = [name for name in NAMES if shards.number_of(name) == 1]
        assert shards.error_for(last) is LOADING  # this call makes partition 2 load first
        await turn_until(lambda: shards.error_for(last) is ErrorCode.NONE)
        assert committed(node.groups, last) == int(last.split()[1])
        assert shards.error_for(others[0]) is LOADING
        await until_loaded(node.groups)
        assert [committed(node.groups, name) for name in NAMES] == list(range(300))


@on_a_loop
async def test_heartbeats_succeed_while_the_group_is_loaded(tmp_path: Path) -> None:
    """A member that got an error would rejoin, or wait for another coordinator."""
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        assert await commit(node.groups, 1) == [ErrorCode.NONE]
    beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m")
    async with running_node(tmp_path) as node:
        context = RequestContext(node, HEARTBEAT, 4, "t", ClientInfo(1, "here"))
        assert node.groups.topic.error_for(GROUP) is LOADING
        assert heartbeat(context, beat).error_code == ErrorCode.NONE
        await until_loaded(node.groups)
        assert heartbeat(context, beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@on_a_loop
async def test_version_0_of_join_group_has_no_rebalance_timeout_of_its_own(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        for version, timeout_ms, expected_ms in ((0, -1, 10_000), (1, 60_000, 60_000)):
            name = f"group {version}"
            request = JoinGroupRequest(
                group_id=name,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=timeout_ms,
                member_id="",
                protocol_type="consumer",
                protocols=[GroupProtocol(name="range", metadata=b"")],
            )
            join_group(RequestContext(node, JOIN_GROUP, version, "t", ClientInfo(1, "a")), request)
            group = node.groups.find(name)
            assert isinstance(group, ClassicGroup)
            (member,) = group.members.values()
            assert member.rebalance_timeout_ms == expected_ms


@on_a_loop
async def test_a_request_waits_only_for_the_partition_of_its_group(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
    async with running_node(tmp_path) as node:
        shards = node.groups.topic
        last = next(name for name in NAMES if shards.number_of(name) == 2)
        other = next(name for name in NAMES if shards.number_of(name) == 1)
        await shards.loaded(last, wait_s=PATIENCE_S)
        assert shards.error_for(last) is ErrorCode.NONE
        assert shards.error_for(other) is LOADING


@on_a_loop
async def test_a_commit_of_denied_topics_alone_waits_for_no_group(tmp_path: Path) -> None:
    """As in Kafka, the refusal does not wait until the group is loaded."""
    import_coordinators(with_transactions=True)
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        node.log_dir.create_topic("flights", partitions=1)
    async with running_node(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER) as node:
        assert node.groups.topic.error_for(GROUP) is LOADING
        assert node.authorizer is not None
        node.authorizer.use(RuleTable([MAY_READ_GROUPS]))
        commit = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            topics=[OffsetCommitRequestTopic(name="flights", partitions=[commit])],
        )
        frame = b"".join(ClientConnection("app").request(OFFSET_COMMIT, 8, request))[4:]
        pieces = answer(node, ClientInfo(1, "here"), memoryview(frame))
        assert isinstance(pieces, list)
        assert b"".join(pieces).endswith(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED.to_bytes(2) + b"\0" * 3
        )


@on_a_loop
async def test_records_are_compressed_by_the_configured_codec(tmp_path: Path) -> None:
    async with running_node(tmp_path, offsets_topic_compression_codec="3") as node:
        await node.groups.topic.ensure_topic()
        assert await commit(node.groups, 5) == [ErrorCode.NONE]
        log = node.partitions.get(OFFSETS_TOPIC, node.groups.topic.number_of(GROUP)).log
        codecs = {batch.codec for part in log.slices() for _, batch in part.batches()}
        assert codecs == {Codec.LZ4}
    async with running_node(tmp_path) as node:
        node.groups.resume()
        await until_loaded(node.groups)
        assert committed(node.groups) == 5


@on_a_loop
async def test_acknowledged_commits_survive_a_kill(tmp_path: Path) -> None:
    async with running_node(tmp_path / "one") as node:
        await node.groups.topic.ensure_topic()
        for offset in range(10):
            assert await commit(node.groups, offset) == [ErrorCode.NONE]
        # The broker syncs other partitions in the background. The copy leaves out the temporary
        # files of these syncs.
        unfinished = shutil.ignore_patterns("*.tmp")
        shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=unfinished)
    async with running_node(tmp_path / "two") as node:
        node.groups.resume()
        await until_loaded(node.groups)
        assert committed(node.groups) == 9


@on_a_loop
async def test_commit_is_acknowledged_when_it_is_synced(tmp_path: Path) -> None:
    async with running_node(tmp_path, tidelog_durability="fsync") as node:
        await node.groups.topic.ensure_topic()
        replies = [commit(node.groups, offset) for offset in range(5)]
        settled = node.groups.topic.settled(GROUP)
        assert not any(reply.is_done for reply in replies)
        assert not settled.is_done
        assert await settled is ErrorCode.NONE
        assert [reply.value for reply in replies] == [[ErrorCode.NONE]] * 5
        assert node.groups.topic.settled(GROUP).is_done


@on_a_loop
async def test_lost_partition_is_read_again_when_its_disk_works_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        shards = node.groups.topic
        await shards.ensure_topic()
        assert await commit(node.groups, 1) == [ErrorCode.NONE]
        disk.is_failing = True
        assert await commit(node.groups, 2) == [ErrorCode.NOT_COORDINATOR]
        assert node.groups.find(GROUP) is None
        assert shards.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        disk.is_failing = False
        number = shards.number_of(GROUP)
        node.partitions.get(OFFSETS_TOPIC, number).use(node.log_dir.reopen(OFFSETS_TOPIC, number))
        assert shards.error_for(GROUP) is LOADING
        await until_loaded(node.groups)
        assert committed(node.groups) == 1
        assert await commit(node.groups, 3) == [ErrorCode.NONE]


@on_a_loop
async def test_a_damaged_partition_is_refused_and_retried_at_intervals(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    async with running_node(tmp_path, Env(clock=clock)) as node:
        await node.groups.topic.ensure_topic()
        commit(node.groups, 1)
        number = node.groups.topic.number_of(GROUP)
        others = next(name for name in NAMES if node.groups.topic.number_of(name) != number)
        commit(node.groups, 2, others)
    log = tmp_path / f"{OFFSETS_TOPIC}-{number}" / "00000000000000000000.log"
    sound = log.read_bytes()
    log.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    async with running_node(tmp_path, Env(clock=clock)) as node:
        node.groups.resume()
        await until_loaded(node.groups)
        assert committed(node.groups, others) == 2
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        assert not node.groups.topic.is_loading
        log.write_bytes(sound)
        clock.advance(RETRY_MS)
        assert node.groups.topic.error_for(GROUP) is LOADING
        await until_loaded(node.groups)
        assert committed(node.groups) == 1


@on_a_loop
async def test_a_failed_sync_acknowledges_no_write(tmp_path: Path) -> None:
    disk = FailingDisk()
    node = open_node(str(tmp_path), config(tidelog_durability="fsync"), env=Env(files=disk))
    await node.groups.topic.ensure_topic()
    assert await commit(node.groups, 1) == [ErrorCode.NONE]
    disk.failing, disk.is_failing = frozenset({"sync"}), True
    reply = commit(node.groups, 2)
    assert await reply == [ErrorCode.NOT_COORDINATOR]
    assert node.groups.find(GROUP) is None
    disk.is_failing = False
    with pytest.raises(StorageFailure, match="disk is full"):
        node.close()


@on_a_loop
async def test_deleted_topics_take_offsets_and_groups_along(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        node.log_dir.create_topic("flights")
        commit(node.groups, 1)
        delete_topic(node, "flights")
        assert committed(node.groups) is None
        assert node.groups.find(GROUP) is not None
        delete_topic(node, OFFSETS_TOPIC)
        assert node.groups.find(GROUP) is None
        assert node.groups.topic.error_for(GROUP) is ErrorCode.NOT_COORDINATOR
        assert await node.groups.topic.ensure_topic() is ErrorCode.NONE
        assert await commit(node.groups, 1) == [ErrorCode.NONE]


@on_a_loop
async def test_expiry_runs_by_its_clock_over_many_groups(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    settings = {"offsets_retention_minutes": "1", "offsets_retention_check_interval_ms": "70000"}
    async with running_node(tmp_path, Env(clock=clock), **settings) as node:
        await node.groups.topic.ensure_topic()
        for number in range(500):
            commit(node.groups, number, f"group {number}")
        clock.advance(50_000)
        commit(node.groups, 1)
        for _ in range(3):
            clock.advance(10_000)
            node.timers.run_due()
        assert [group.group_id for group in node.groups.groups()] == [GROUP]
        for _ in range(10):
            clock.advance(10_000)
            node.timers.run_due()
        assert list(node.groups.groups()) == []


@on_a_loop
async def test_groups_are_listed_for_metrics(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.topic.ensure_topic()
        commit(node.groups, 8)
        facts = list(node.groups.facts())
        assert [(one.group_id, one.state, one.members) for one in facts] == [(GROUP, "Empty", 0)]
        assert facts[0].offsets == [("flights", 0, 8)]


@on_a_loop
async def test_a_lost_partition_accepts_no_record_from_older_state(tmp_path: Path) -> None:
    """A write based on state from before the loss fails, and no record is written."""
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        shards = node.groups.topic
        await shards.ensure_topic()
        assert await commit(node.groups, 1) == [ErrorCode.NONE]
        partition = node.partitions.get(OFFSETS_TOPIC, shards.number_of(GROUP))
        fail(partition, disk)
        end = partition.log.log_end_offset
        written = shards.append(GROUP, [KeyValue(b"key", b"value")])
        assert written.value is ErrorCode.NOT_COORDINATOR
        assert partition.log.log_end_offset == end
        partition.use(node.log_dir.reopen(OFFSETS_TOPIC, partition.name.partition))
