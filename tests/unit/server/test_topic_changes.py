"""Topics are changed in threads, but not while another task holds a lock on them."""

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable
from pathlib import Path
from shutil import copytree
from uuid import UUID

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.brokers.running import node_fixture, opened_node
from tests.worlds.waiting import PATIENCE_S

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure, UnknownTopic
from tidelog.protocol.messages import CREATE_PARTITIONS, CREATE_TOPICS
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.server.api import topic_changes
from tidelog.server.api.context import LargeResponse, RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.topics import create_partitions, create_topics
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.files import TOPICS_FILE
from tidelog.storage.text_files import write_partition_metadata
from tidelog.types import NewRecord

node = node_fixture(has_disk=True)


def test_topic_that_is_held_while_its_deletion_waits_is_kept_so_long(node: Node) -> None:
    async def story() -> tuple[bool, bool]:
        await topic_changes.create(node, "t", 1)
        async with node.topics.changing:
            deletion = asyncio.ensure_future(topic_changes.delete(node, "t"))
            await asyncio.sleep(0)  # the deletion has checked that no lock is on the topic
            hold = node.partitions.holds.hold(["t"], stops_appends=True)
            await hold.__aenter__()
        for _ in range(5):
            await asyncio.sleep(0)
        was_there = node.topics.find("t") is not None
        await hold.__aexit__(None, None, None)
        await deletion
        return was_there, node.topics.find("t") is not None

    assert asyncio.run(story()) == (True, False)


def test_changes_are_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.server")

    async def story() -> None:
        await topic_changes.create(node, "t", 1)
        await topic_changes.grow_all(node, {"t": 3})
        changes = {"retention.ms": "5", "max.message.bytes": None}
        await topic_changes.alter(node, "t", lambda _: changes)
        await topic_changes.alter(node, "t", lambda _: {})
        await topic_changes.delete(node, "t")

    asyncio.run(story())
    assert caplog.messages == [
        "topic t created, partitions: 1",
        "topic t: number of partitions increased to 3",
        "topic t: settings changed: max.message.bytes, retention.ms",
        "topic t deleted, partitions: 3",
    ]


def test_deletion_touches_no_file_on_the_loop(node: Node, tmp_path: Path, disk: HookedDisk) -> None:
    threads = dict[str, set[int]]()

    def watched(call: str, _path: str) -> None:
        threads.setdefault(call, set()).add(threading.get_ident())

    async def story() -> None:
        await topic_changes.create(node, "t", 3)
        for number in range(3):
            node.partitions.get("t", number)
        disk.hook = watched
        await topic_changes.delete(node, "t")
        await node.removals.settle()

    asyncio.run(story())
    assert {"rename", "sync_dir", "remove", "remove_dir"} <= threads.keys()
    assert all(threading.get_ident() not in found for found in threads.values())
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_deletion_waits_for_a_logs_thread_without_blocking_the_loop(
    node: Node, tmp_path: Path, disk: HookedDisk
) -> None:
    gate, runs = threading.Event(), threading.Event()

    def slowly(call: str, path: str) -> None:
        if call == "sync" and "/t-0/" in path:
            runs.set()
            assert gate.wait(PATIENCE_S)

    async def story() -> None:
        await topic_changes.create(node, "t", 1)
        partition = node.partitions.get("t", 0)
        partition.log.append([NewRecord(value=b"v")])
        disk.hook = slowly
        partition.flush_later()
        await asyncio.to_thread(runs.wait, PATIENCE_S)
        deletion = asyncio.ensure_future(topic_changes.delete(node, "t"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert node.topics.find("t") is None
        assert partition.is_deleted
        with pytest.raises(UnknownTopic):
            node.partitions.get("t", 0)
        assert not deletion.done()
        assert (tmp_path / "t-0").exists()
        gate.set()
        await deletion

    asyncio.run(story())
    assert not (tmp_path / "t-0").exists()


def test_a_deletion_continues_if_its_caller_is_cancelled(node: Node, tmp_path: Path) -> None:
    async def story() -> None:
        await topic_changes.create(node, "t", 1)
        asked = asyncio.ensure_future(topic_changes.delete(node, "t"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert node.topics.find("t") is None
        asked.cancel()
        # A creation with the same name waits for the end of the deletion.
        made = await topic_changes.create(node, "t", 2)
        assert node.topics.find("t") == made
        await node.removals.settle()

    asyncio.run(story())
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["t-0", "t-1"]


def test_a_failed_deletion_loses_nothing_and_notifies_no_listener(
    node: Node, disk: HookedDisk
) -> None:
    told = list[str]()
    node.topics.on_deleted.append(lambda info: told.append(info.name))

    def failing(call: str, path: str) -> None:
        if call == "rename to" and path.endswith(TOPICS_FILE):
            raise OSError(errno.EIO, "Input/output error")

    async def story() -> None:
        await topic_changes.create(node, "t", 3)
        for number in range(3):
            node.partitions.get("t", number).log.append([NewRecord(value=b"v")])
        disk.hook = failing
        with pytest.raises(StorageFailure):
            await topic_changes.delete(node, "t")
        disk.hook = lambda _call, _path: None
        assert not told
        for number in range(3):
            log = node.partitions.get("t", number).log
            assert log.log_end_offset == 1
            assert log.append([NewRecord(value=b"w")]).base_offset == 1

    asyncio.run(story())


def test_directory_that_cant_be_renamed_keeps_a_name_and_no_topic(
    node: Node, disk: HookedDisk
) -> None:
    told = list[str]()
    node.topics.on_deleted.append(lambda info: told.append(info.name))

    def failing(call: str, path: str) -> None:
        if call == "rename" and path.endswith("t-1"):
            raise OSError(errno.EIO, "Input/output error")

    async def story() -> None:
        await topic_changes.create(node, "t", 2)
        for number in range(2):
            node.partitions.get("t", number).log.append([NewRecord(value=b"v")])
        disk.hook = failing
        await topic_changes.delete(node, "t")
        assert told == ["t"]
        with pytest.raises(StorageFailure, match="deleted"):
            await topic_changes.create(node, "t", 2)
        disk.hook = lambda _call, _path: None
        await topic_changes.create(node, "t", 2)
        assert [node.partitions.get("t", number).log.log_end_offset for number in (0, 1)] == [0, 0]

    asyncio.run(story())


def test_topics_of_one_request_are_deleted_together_except_a_held_one(
    node: Node, disk: HookedDisk
) -> None:
    told, writes, seven = list[str](), list[str](), asyncio.Event()

    def tell(info: TopicInfo) -> None:
        told.append(info.name)
        if len(told) == 7:
            seven.set()

    node.topics.on_deleted.append(tell)

    def watched(call: str, path: str) -> None:
        writes.extend([path] if call == "rename to" and path.endswith(TOPICS_FILE) else [])

    async def story() -> None:
        names = [f"t{number}" for number in range(8)]
        made = [await topic_changes.create(node, name, 2) for name in names]
        disk.hook = watched
        async with node.partitions.holds.hold(["t3"], stops_appends=True):
            deletion = asyncio.ensure_future(topic_changes.delete_all(node, made))
            await seven.wait()
            assert node.topics.names() == {"t3"}
            assert len(writes) == 1
            assert not deletion.done()
        assert await deletion == [None] * 8
        assert (len(writes), sorted(told)) == (2, names)

    asyncio.run(story())


def test_a_topic_recreated_meanwhile_is_not_deleted(node: Node) -> None:
    async def story() -> None:
        old = await topic_changes.create(node, "t", 1)
        other = await topic_changes.create(node, "u", 1)
        await topic_changes.delete(node, "t")
        new = await topic_changes.create(node, "t", 1)
        failure, deleted = await topic_changes.delete_all(node, [old, other])
        assert isinstance(failure, UnknownTopic)
        assert str(failure) == "no topic 't'"
        assert deleted is None
        assert dict(node.topics.all()) == {"t": new}

    asyncio.run(story())


def test_saved_settings_apply_if_the_caller_is_cancelled(node: Node, disk: HookedDisk) -> None:
    may_go_on = threading.Event()

    def slowly(call: str, _path: str) -> None:
        if call == "rename to":
            assert may_go_on.wait(PATIENCE_S)

    async def story() -> int:
        await topic_changes.create(node, "t", 1)
        log = node.partitions.get("t", 0).log
        disk.hook = slowly
        asking = topic_changes.alter(node, "t", lambda _: {"max.message.bytes": "200"})
        waiter = asyncio.ensure_future(asking)
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        is_free = not node.topics.changing.locked()
        may_go_on.set()
        await node.topics.settle()
        assert not is_free
        return log.context.config.max_message_bytes

    assert asyncio.run(story()) == 200


@pytest.mark.parametrize("is_trial", [True, False])
def test_a_topic_never_gets_the_records_of_a_stray_directory(
    tmp_path: Path, *, is_trial: bool
) -> None:
    stray = tmp_path / "t-5"
    with opened_node(tmp_path) as node:
        asyncio.run(topic_changes.create(node, "t", 3))
    copytree(tmp_path / "t-0", stray)
    (stray / f"{0:020}.log").write_bytes(b"records")
    stray_id = UUID(int=2**99)

    async def refused(node: Node, count: int) -> tuple[int, str | None]:
        more = [CreatePartitionsTopic(name="t", count=count)]
        growth = CreatePartitionsRequest(topics=more, timeout_ms=1000, validate_only=is_trial)
        context = RequestContext(node, CREATE_PARTITIONS, 3, "test", ClientInfo(1, "test"))
        (grown,) = (await create_partitions(context, growth)).results
        return grown.error_code, grown.error_message

    with opened_node(tmp_path) as node:
        for count in (5, 6):
            code, message = asyncio.run(refused(node, count))
            assert code == ErrorCode.INVALID_PARTITIONS
            assert message is not None
            assert "t-5 is not a partition of topic t, but has records" in message
        info = node.topics.find("t")
        assert info is not None
        assert info.partitions == 3
        write_partition_metadata(node.env.files, str(stray), stray_id)
        asyncio.run(topic_changes.delete(node, "t"))
        new = [CreatableTopic(name="t", num_partitions=6, replication_factor=1)]
        creation = CreateTopicsRequest(topics=new, timeout_ms=1000, validate_only=is_trial)
        context = RequestContext(node, CREATE_TOPICS, 7, "test", ClientInfo(1, "test"))
        response = asyncio.run(_answer(create_topics(context, creation)))
        (created,) = response.topics
        assert created.error_code == ErrorCode.INVALID_PARTITIONS
        assert node.topics.find("t") is None
    assert (stray / f"{0:020}.log").read_bytes() == b"records"


def test_a_partition_that_lost_its_directory_is_offline_until_it_is_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened_node(tmp_path) as node:
        asyncio.run(topic_changes.create(node, "t", 2))
        for number in (0, 1):
            node.partitions.get("t", number).log.append([NewRecord(value=b"v")])
    (tmp_path / "t-1").rename(tmp_path / "moved")
    with opened_node(tmp_path) as node:
        assert any("t-1: opening for writing failed" in line for line in caplog.messages)
        assert node.partitions.find("t", 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert not (tmp_path / "t-1").exists()
        assert node.partitions.get("t", 0).log.log_end_offset == 1
        (tmp_path / "moved").rename(tmp_path / "t-1")
        assert node.partitions.get("t", 1).log.log_end_offset == 1


async def _answer(
    response: Awaitable[CreateTopicsResponse | LargeResponse],
) -> CreateTopicsResponse:
    answered = await response
    assert isinstance(answered, CreateTopicsResponse)
    return answered
