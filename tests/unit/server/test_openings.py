"""Partitions are opened beside the loop: once each, several at a time, taken in by the loop."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.worlds.brokers.running import node_fixture
from tests.worlds.waiting import PATIENCE_S

from tidelog.config import BrokerConfig
from tidelog.errors import StorageFailure, UnknownTopic
from tidelog.server.node import Node
from tidelog.server.server import open_node
from tidelog.storage.log import Log
from tidelog.types import NewRecord, TopicPartition

node = node_fixture(topics={"t": 6})


class Gate:
    """Openings of logs, watched, and held up until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_open = threading.Event()
        self.has_begun = threading.Event()
        self.threads: list[int] = []
        self.failure: Exception | None = None
        opening = Log.open_writable

        def watched(*arguments: object) -> Log:
            self.threads.append(threading.get_ident())
            self.has_begun.set()
            assert self.may_open.wait(PATIENCE_S)
            if self.failure is not None:
                raise self.failure
            return opening(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Log, "open_writable", watched)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def names(node: Node) -> list[TopicPartition]:
    return node.partitions.unopened(("t", number) for number in range(-1, 8))


async def begun(node: Node, gate: Gate) -> "asyncio.Future[None]":
    """An opening of all partitions that has come to its threads."""
    opening = asyncio.ensure_future(node.partitions.open_beside(names(node), node.work))
    assert await asyncio.to_thread(gate.has_begun.wait, PATIENCE_S)
    return opening


def test_all_are_opened_in_threads_once_and_serve(node: Node, gate: Gate) -> None:
    gate.may_open.set()

    async def story() -> None:
        asked = names(node)
        both = (node.partitions.open_beside(asked, node.work) for _ in range(2))
        await asyncio.gather(*both)
        assert node.partitions.unopened([("t", 0), ("t", 5)]) == []
        node.partitions.get("t", 5).log.append([NewRecord(value=b"v")])

    assert names(node) == [TopicPartition("t", number) for number in range(6)]
    asyncio.run(story())
    assert len(gate.threads) == 6
    assert threading.get_ident() not in gate.threads


def test_whoever_cannot_wait_gets_the_log_that_is_being_opened(node: Node, gate: Gate) -> None:
    async def story() -> None:
        opening = await begun(node, gate)
        threading.Timer(0, gate.may_open.set).start()
        found = node.partitions.get("t", 0)
        await opening
        assert node.partitions.get("t", 0) is found

    asyncio.run(story())
    assert len(gate.threads) == 6


def test_settings_that_changed_meanwhile_hold(node: Node, gate: Gate) -> None:
    async def story() -> int:
        opening = await begun(node, gate)
        node.log_dir.alter_config("t", {"retention.ms": "7"})
        gate.may_open.set()
        await opening
        return node.partitions.get("t", 0).log.context.config.retention_ms

    assert asyncio.run(story()) == 7


def test_failure_is_told_to_who_asks_next_and_then_tried_again(node: Node, gate: Gate) -> None:
    gate.may_open.set()
    gate.failure = StorageFailure("t-0", "open", "Input/output error")
    name = TopicPartition("t", 0)

    async def story() -> None:
        await node.partitions.open_beside([name], node.work)
        assert not node.partitions.must_open(name)
        with pytest.raises(StorageFailure):
            node.partitions.get("t", 0)
        gate.failure = None
        assert node.partitions.must_open(name)
        await node.partitions.open_beside([name], node.work)
        assert node.partitions.get("t", 0).log.log_end_offset == 0

    asyncio.run(story())


def test_topic_that_is_deleted_meanwhile_leaves_nothing(
    node: Node, gate: Gate, tmp_path: Path
) -> None:
    async def story() -> None:
        opening = await begun(node, gate)
        threading.Timer(0, gate.may_open.set).start()
        node.log_dir.remove_set_aside(node.topics.delete("t"))
        await opening
        with pytest.raises(UnknownTopic):
            node.partitions.get("t", 0)

    asyncio.run(story())
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_opening_goes_on_where_who_waits_goes_away(node: Node, gate: Gate) -> None:
    async def story() -> None:
        opening = await begun(node, gate)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        gate.may_open.set()
        await node.partitions.open_beside(names(node), node.work)
        node.partitions.get("t", 0)

    asyncio.run(story())
    assert len(gate.threads) == 6


def test_who_opens_to_write_leaves_nothing_to_be_synced_on_the_loop(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    files = node.env.files
    sync_dir = files.sync_dir

    def watched(path: str) -> None:
        synced.append(threading.get_ident())
        sync_dir(path)

    async def story() -> None:
        name = TopicPartition("t", 0)
        await node.partitions.open_beside([name], node.work, to_write=True)
        log = node.partitions.get("t", 0).log
        assert log.leader_epochs.entries == ((0, 0),)
        log.append([NewRecord(value=b"v")])
        assert log.leader_epochs.entries == ((0, 0),)

    monkeypatch.setattr(files, "sync_dir", watched)
    asyncio.run(story())
    assert synced
    assert threading.get_ident() not in synced


def test_a_disk_that_fails_who_opens_to_write_leaves_the_partition_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = open_node(str(tmp_path), BrokerConfig())
    node.topics.create("t", 1)

    def fail(log: Log) -> bool:
        raise OSError(5, "input/output error")

    async def story() -> None:
        monkeypatch.setattr(Log, "_note_epoch", fail)
        await node.partitions.open_beside([TopicPartition("t", 0)], node.work, to_write=True)
        found = node.partitions.get("t", 0)
        assert found.failure is not None
        with pytest.raises(StorageFailure):
            found.log.append([NewRecord(value=b"v")])

    asyncio.run(story())
    with pytest.raises(StorageFailure):
        node.close()
