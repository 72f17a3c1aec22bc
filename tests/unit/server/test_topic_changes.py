"""Topics change beside the loop, and not while somebody rebuilds them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.config import BrokerConfig
from tidelog.server import topic_changes
from tidelog.server.node import Node
from tidelog.server.server import open_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = open_node(str(tmp_path), BrokerConfig.parse({})[0])
    yield made
    made.close()


def test_files_of_a_deleted_topic_go_in_a_thread(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[int]()
    remove = node.log_dir.remove_set_aside

    def watched(paths: list[str]) -> None:
        threads.append(threading.get_ident())
        remove(paths)

    monkeypatch.setattr(node.log_dir, "remove_set_aside", watched)

    async def story() -> None:
        await topic_changes.create(node, "t", 2)
        node.partitions.get("t", 0)
        await topic_changes.delete(node, "t")

    asyncio.run(story())
    assert threads[0] != threading.get_ident()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_topic_that_is_held_while_its_deletion_waits_is_kept_so_long(node: Node) -> None:
    async def story() -> tuple[bool, bool]:
        await topic_changes.create(node, "t", 1)
        async with node.topics.changing:
            deletion = asyncio.ensure_future(topic_changes.delete(node, "t"))
            await asyncio.sleep(0)  # it has seen that nobody holds the topic
            hold = node.partitions.holds.hold(["t"], stops_appends=True)
            await hold.__aenter__()
        for _ in range(5):
            await asyncio.sleep(0)
        was_there = node.topics.find("t") is not None
        await hold.__aexit__(None, None, None)
        await deletion
        return was_there, node.topics.find("t") is not None

    assert asyncio.run(story()) == (True, False)
