"""A broker that stops while it loads the offsets topic logs no warning and damages nothing."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk
from tests.unit.server.groups.test_shards import (
    GROUP,
    commit,
    committed,
    running_node,
    until_loaded,
)
from tests.worlds.waiting import turn_until

from tidelog.env import Env
from tidelog.error_codes import ErrorCode
from tidelog.types import OFFSETS_TOPIC


async def make(path: Path) -> None:
    """Create an offsets topic of three partitions, and commit one offset."""
    async with running_node(path) as node:
        await node.groups.topic.ensure_topic()
        assert await commit(node.groups, 7) == [ErrorCode.NONE]


async def check(path: Path) -> None:
    """Check that the next start serves all groups."""
    async with running_node(path) as node:
        node.groups.resume()
        await until_loaded(node.groups)
        assert committed(node.groups) == 7


def test_the_pool_may_be_closed_before_partitions_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        await make(tmp_path)
        async with running_node(tmp_path) as node:
            shards = node.groups.topic
            node.work.close()
            await until_loaded(node.groups)
            assert shards.error_for(GROUP) is not ErrorCode.NONE
        await check(tmp_path)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.messages == []


def test_the_pool_may_be_closed_while_a_partition_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = HookedDisk()

    async def story() -> None:
        await make(tmp_path)
        loop = asyncio.get_running_loop()
        async with running_node(tmp_path, Env(files=disk)) as node:
            shards = node.groups.topic
            for number in range(3):
                node.partitions.get(OFFSETS_TOPIC, number)
            closed = asyncio.Event()

            def close() -> None:
                node.work.close()
                closed.set()

            def stop(_call: str, _path: str) -> None:
                loop.call_soon_threadsafe(close)

            disk.hook = stop
            await until_loaded(node.groups)
            assert closed.is_set()
            assert shards.error_for(GROUP) is not ErrorCode.NONE
            disk.hook = lambda _call, _path: None
        await check(tmp_path)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.messages == []


def test_groups_requested_after_the_stop_began(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator is created after the stop began, so it is not notified of the stop."""

    async def story() -> None:
        await make(tmp_path)
        async with running_node(tmp_path) as node:
            node.work.close()
            assert not node.groups.topic.is_loading

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.messages == []


def test_a_failure_of_the_running_broker_is_reported_with_its_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: str, path: str) -> None:
        if call == "open" and OFFSETS_TOPIC in path:
            raise RuntimeError("unforeseen")

    async def story() -> None:
        await make(tmp_path)
        disk = HookedDisk()
        async with running_node(tmp_path, Env(files=disk)) as node:
            shards = node.groups.topic
            disk.hook = fail
            await turn_until(lambda: not shards.is_loading)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert len(caplog.records) == 3
    assert all(record.exc_info for record in caplog.records)
    assert "can't be loaded: unforeseen" in caplog.messages[0]
