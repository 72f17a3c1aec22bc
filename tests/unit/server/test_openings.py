"""Threads open partitions, each partition once; the event loop installs opened partitions."""

import asyncio
import errno
import re
import threading
from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import PATIENCE_S

from tidelog.config import BrokerConfig
from tidelog.env import Env
from tidelog.errors import StorageFailure, UnknownTopic
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.types import NewRecord, TopicPartition

node = node_fixture(topics={"t": 6}, has_disk=True)


class Gate:
    """Records and blocks the openings of a topic's partitions.

    Attributes:
        begun: For each thread's identifier, the numbers of the partitions that it opens.
        failure: Exception raised by an opening.
    """

    def __init__(self, disk: HookedDisk) -> None:
        self.may_open = threading.Event()
        self.has_begun = threading.Event()
        self.begun: dict[int, set[str]] = {}
        self.failure: Exception | None = None
        disk.hook = self._wait

    def _wait(self, call: str, path: str) -> None:
        found = re.search(r"/t-(\d+)/", path)
        if call != "open" or found is None:
            return
        self.begun.setdefault(threading.get_ident(), set()).add(found[1])
        self.has_begun.set()
        assert self.may_open.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure

    def opened(self) -> list[str]:
        """Return the index of each partition, once for each thread that began to open it."""
        return sorted(number for numbers in self.begun.values() for number in numbers)


@pytest.fixture
def gate(node: Node, disk: HookedDisk) -> Gate:
    assert node.topics.find("t") is not None  # done before openings are blocked
    return Gate(disk)


def names(node: Node) -> list[TopicPartition]:
    return node.partitions.unopened(("t", number) for number in range(-1, 8))


async def begun(node: Node, gate: Gate) -> "asyncio.Future[None]":
    """Start to open all partitions, and wait until a thread opens one of them."""
    opening = asyncio.ensure_future(node.partitions.open_beside(names(node)))
    assert await asyncio.to_thread(gate.has_begun.wait, PATIENCE_S)
    return opening


def test_all_are_opened_in_threads_once_and_serve(node: Node, gate: Gate, disk: HookedDisk) -> None:
    gate.may_open.set()

    async def story() -> None:
        asked = names(node)
        both = (node.partitions.open_beside(asked) for _ in range(2))
        await asyncio.gather(*both)
        assert node.partitions.unopened([("t", 0), ("t", 5)]) == []
        disk.hook = lambda _call, _path: None
        node.partitions.get("t", 5).log.append([NewRecord(value=b"v")])

    assert names(node) == [TopicPartition("t", number) for number in range(6)]
    asyncio.run(story())
    assert gate.opened() == [*"012345"]
    assert threading.get_ident() not in gate.begun


def test_a_caller_that_cannot_wait_gets_the_log_that_is_being_opened(
    node: Node, gate: Gate
) -> None:
    async def story() -> None:
        opening = await begun(node, gate)
        threading.Timer(0, gate.may_open.set).start()
        found = node.partitions.get("t", 0)
        await opening
        assert node.partitions.get("t", 0) is found

    asyncio.run(story())
    assert gate.opened() == [*"012345"]


def test_settings_that_changed_meanwhile_are_used(node: Node, gate: Gate) -> None:
    async def story() -> int:
        opening = await begun(node, gate)
        node.log_dir.alter_config("t", {"retention.ms": "7"})
        gate.may_open.set()
        await opening
        return node.partitions.get("t", 0).log.context.config.retention_ms

    assert asyncio.run(story()) == 7


def test_a_failed_opening_is_raised_once_and_then_retried(node: Node, gate: Gate) -> None:
    gate.may_open.set()
    gate.failure = OSError(errno.EIO, "Input/output error")
    name = TopicPartition("t", 0)

    async def story() -> None:
        await node.partitions.open_beside([name])
        assert not node.partitions.must_open(name)
        with pytest.raises(StorageFailure):
            node.partitions.get("t", 0)
        gate.failure = None
        assert node.partitions.must_open(name)
        await node.partitions.open_beside([name])
        assert node.partitions.get("t", 0).log.log_end_offset == 0

    asyncio.run(story())


def test_a_topic_that_is_deleted_meanwhile_leaves_no_partition(
    node: Node, gate: Gate, tmp_path: Path
) -> None:
    async def story() -> None:
        opening = await begun(node, gate)
        threading.Timer(0, gate.may_open.set).start()
        node.log_dir.topic_admin.remove_set_aside(delete_topic(node, "t"))
        await opening
        with pytest.raises(UnknownTopic):
            node.partitions.get("t", 0)

    asyncio.run(story())
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_opening_continues_if_its_caller_is_cancelled(node: Node, gate: Gate) -> None:
    async def story() -> None:
        opening = await begun(node, gate)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        gate.may_open.set()
        await node.partitions.open_beside(names(node))
        node.partitions.get("t", 0)

    asyncio.run(story())
    assert gate.opened() == [*"012345"]


def test_an_opening_for_writing_leaves_no_sync_for_the_loop(node: Node, disk: HookedDisk) -> None:
    synced: list[int] = []

    def watched(call: str, _path: str) -> None:
        if call == "sync_dir":
            synced.append(threading.get_ident())

    async def story() -> None:
        name = TopicPartition("t", 0)
        await node.partitions.open_beside([name], to_write=True)
        log = node.partitions.get("t", 0).log
        assert log.leader_epochs.entries == ((0, 0),)
        log.append([NewRecord(value=b"v")])
        assert log.leader_epochs.entries == ((0, 0),)

    disk.hook = watched
    asyncio.run(story())
    assert synced
    assert threading.get_ident() not in synced


def test_a_failed_opening_for_writing_leaves_the_partition_offline(tmp_path: Path) -> None:
    disk = HookedDisk()
    node = open_node(str(tmp_path), BrokerConfig(), env=Env(files=disk))
    node.log_dir.create_topic("t", partitions=1)

    def fail(call: str, path: str) -> None:
        if call == "rename to" and path.endswith("/t-0/leader-epoch-checkpoint"):
            raise OSError(errno.EIO, "input/output error")

    async def story() -> None:
        disk.hook = fail
        await node.partitions.open_beside([TopicPartition("t", 0)], to_write=True)
        found = node.partitions.get("t", 0)
        assert found.failure is not None
        with pytest.raises(StorageFailure):
            found.log.append([NewRecord(value=b"v")])

    asyncio.run(story())
    with pytest.raises(StorageFailure):
        node.close()
