"""A broker that stops while partitions of the offsets topic are loaded: quiet, and whole again."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.unit.server.groups.test_shards import (
    GROUP,
    commit,
    committed,
    running_node,
    until_loaded,
)
from tests.worlds.waiting import turn_until

from tidelog.server.groups.codes import Code
from tidelog.server.groups.replay import LoadedShard
from tidelog.server.handlers.waiting import arrival
from tidelog.storage.log import Log


async def make(path: Path) -> None:
    """A topic of three partitions with one commit."""
    async with running_node(path) as node:
        await node.groups.shards.ensure_topic()
        assert await arrival(commit(node.groups, 7)) == [Code.NONE]


async def check(path: Path) -> None:
    """All is served at the next start."""
    async with running_node(path) as node:
        node.groups.resume()
        await until_loaded(node.groups)
        assert committed(node.groups) == 7


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pool_that_goes_while_partitions_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_read: bool
) -> None:
    """Before the first partition is opened, and between its opening and its end."""

    async def story() -> None:
        await make(tmp_path)
        async with running_node(tmp_path) as node:
            topic = node.groups.shards._topic
            if is_read:

                async def read(_log: Log) -> LoadedShard:
                    node.work.close()
                    raise RuntimeError("cannot schedule new futures after shutdown")

                topic.read = read
            else:
                node.work.close()
            await turn_until(lambda: not topic.is_loading)
            assert node.groups.shards.code_for(GROUP) is not Code.NONE
        await check(tmp_path)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.messages == []


def test_groups_that_are_asked_for_behind_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told any more that the broker stops: the coordinator is made after that."""

    async def story() -> None:
        await make(tmp_path)
        async with running_node(tmp_path) as node:
            node.work.close()
            assert not node.groups.shards.is_loading

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.messages == []


def test_a_failure_of_the_running_broker_is_told_with_its_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        await make(tmp_path)
        async with running_node(tmp_path) as node:

            async def read(_log: Log) -> LoadedShard:
                raise RuntimeError("unforeseen")

            node.groups.shards._topic.read = read
            await until_loaded(node.groups)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert len(caplog.records) == 3
    assert all(record.exc_info for record in caplog.records)
    assert "can't be loaded: unforeseen" in caplog.messages[0]
