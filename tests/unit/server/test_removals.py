"""Files of deleted topics are removed after the response, in threads, also after a restart."""

import asyncio
import errno
import logging
import threading
from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.brokers.running import node_fixture
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env
from tidelog.server.api import topic_changes
from tidelog.server.api.node import Node
from tidelog.server.broker import Server, open_node
from tidelog.server.partitions.topics import Removals

node = node_fixture(has_disk=True)


def open_here(path: Path, disk: HookedDisk | None = None) -> Node:
    return open_node(str(path), BrokerConfig.parse({})[0], env=Env(files=disk or HookedDisk()))


def directories(path: Path) -> list[str]:
    """Return the directories, without the random parts of their names."""
    return sorted(
        found.name.partition(".")[0] + found.name[-7:] * ("-delete" in found.name)
        for found in path.iterdir()
        if found.is_dir()
    )


class Gate:
    """Blocks removals of files of deleted topics."""

    def __init__(self, disk: HookedDisk) -> None:
        self._open, self._reached = threading.Event(), threading.Event()
        disk.hook = self._wait

    def _wait(self, call: str, path: str) -> None:
        if call in {"remove", "remove_dir"} and "-delete" in path:
            self._reached.set()
            assert self._open.wait(PATIENCE_S)

    def open(self) -> None:
        """Let all removals proceed."""
        self._open.set()

    async def reached(self) -> None:
        """Wait until a removal is blocked."""
        await asyncio.to_thread(self._reached.wait, PATIENCE_S)


async def made(node: Node, name: str, partitions: int) -> None:
    await topic_changes.create(node, name, partitions)
    for number in range(partitions):
        node.partitions.get(name, number)


def test_a_deletion_gets_a_response_before_files_are_removed(
    node: Node, tmp_path: Path, disk: HookedDisk
) -> None:
    gate, told = Gate(disk), list[str]()
    node.topics.on_deleted.append(lambda info: told.append(info.name))

    async def story() -> None:
        await made(node, "t", 2)
        await asyncio.wait_for(topic_changes.delete(node, "t"), PATIENCE_S)
        assert told == ["t"]
        assert directories(tmp_path) == ["t-0-delete", "t-1-delete"]
        # The name is available again before the files are removed.
        await made(node, "t", 1)
        gate.open()
        await node.removals.settle()

    asyncio.run(story())
    assert directories(tmp_path) == ["t-0"]


def test_a_deletion_of_many_partitions_waits_for_removed_files(
    node: Node, tmp_path: Path, disk: HookedDisk
) -> None:
    gate = Gate(disk)
    node.removals = Removals(node.work, node.log_dir, limit=2)

    async def story() -> None:
        await made(node, "few", 2)
        await made(node, "many", 3)
        await asyncio.wait_for(topic_changes.delete(node, "few"), PATIENCE_S)
        deletion = asyncio.ensure_future(topic_changes.delete(node, "many"))
        await turn_until(lambda: len(node.removals._paths) == 5)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not deletion.done()
        gate.open()
        await asyncio.wait_for(deletion, PATIENCE_S)
        await node.removals.settle()

    asyncio.run(story())
    assert directories(tmp_path) == []


def test_a_failed_removal_delays_no_other_one(
    node: Node, tmp_path: Path, disk: HookedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(call: str, path: str) -> None:
        if call == "remove_dir" and "/t-1." in path:
            raise OSError(errno.EIO, "Input/output error")

    async def story() -> None:
        await made(node, "t", 3)
        disk.hook = failing
        await topic_changes.delete(node, "t")
        await node.removals.settle()

    with caplog.at_level(logging.WARNING, "tidelog.server"):
        asyncio.run(story())
    assert directories(tmp_path) == ["t-1-delete"]
    assert "can't be removed until the next start" in caplog.text


def test_files_left_at_a_stop_are_removed_after_the_next_start(tmp_path: Path) -> None:
    disk = HookedDisk()
    node, gate = open_here(tmp_path, disk), Gate(disk)

    async def stopped() -> None:
        server = Server(node)
        await server.start("127.0.0.1", 0)
        await made(node, "t", 3)
        await topic_changes.delete(node, "t")
        await gate.reached()
        stopping = asyncio.ensure_future(server.stop())
        await turn_until(lambda: not node.removals._paths)
        gate.open()
        await stopping

    async def started() -> None:
        again, held = open_here(tmp_path, disk), Gate(disk)
        server = Server(again)
        await server.start("127.0.0.1", 0)  # does not wait for removals
        assert len(directories(tmp_path)) == 2
        held.open()
        await again.removals.settle()
        assert directories(tmp_path) == []
        await server.stop()

    asyncio.run(stopped())
    assert directories(tmp_path) == ["t-1-delete", "t-2-delete"]
    asyncio.run(started())


def test_a_stop_waits_only_for_the_running_removal(tmp_path: Path) -> None:
    """The stop waits only for the removal in progress, not for removals that wait for a turn."""
    disk = HookedDisk()
    node, gate = open_here(tmp_path, disk), Gate(disk)
    node.removals = Removals(node.work, node.log_dir, limit=0)

    async def story() -> None:
        server = Server(node)
        await server.start("127.0.0.1", 0)
        await made(node, "t", 3)
        deletion = asyncio.ensure_future(topic_changes.delete(node, "t"))
        await gate.reached()
        stopping = asyncio.ensure_future(server.stop())
        await turn_until(lambda: not node.removals._paths)
        gate.open()
        await asyncio.wait_for(stopping, PATIENCE_S)
        await deletion

    asyncio.run(story())
    assert directories(tmp_path) == ["t-1-delete", "t-2-delete"]
