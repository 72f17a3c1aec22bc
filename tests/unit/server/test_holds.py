"""Locks on topics: which operations wait, and until when."""

import asyncio

import pytest
from tests.unit.server.loops import turns
from tests.worlds.brokers.running import node_fixture

from tidelog.protocol.messages import DELETE_RECORDS
from tidelog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.server.api import topic_changes
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.topics import delete_records
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.partitions import Holds
from tidelog.types import NewRecord

node = node_fixture()


def test_appends_wait_and_continue() -> None:
    async def life() -> list[str]:
        holds, told = Holds(), list[str]()

        async def append(topic: str) -> None:
            await holds.wait([topic])
            told.append(topic)

        async with holds.hold(["a"], stops_appends=True):
            assert holds
            assert holds.stops_appends(["b", "a"])
            tasks = [asyncio.ensure_future(append(topic)) for topic in ("a", "b")]
            await turns(3)
            assert told == ["b"]
        await asyncio.gather(*tasks)
        assert not holds
        return told

    assert asyncio.run(life()) == ["b", "a"]


def test_a_light_hold_stops_only_other_holds() -> None:
    async def life() -> None:
        holds, told = Holds(), list[str]()

        async def attach() -> None:
            async with holds.hold(["a", "b"], stops_appends=True):
                told.append("attached")

        async with holds.hold(["a"], stops_appends=False):
            task = asyncio.ensure_future(attach())
            await turns(3)
            assert told == []
            assert holds.is_locked("a")
            assert not holds.stops_appends(["a"])
            await holds.wait(["a"])
        await task
        assert told == ["attached"]

    asyncio.run(life())


def test_a_hold_ends_if_its_block_fails() -> None:
    async def life() -> None:
        holds = Holds()
        try:
            async with holds.hold(["a"], stops_appends=True):
                raise RuntimeError
        except RuntimeError:
            pass
        await holds.wait(["a"])
        assert not holds

    asyncio.run(life())


def test_a_deletion_of_records_waits_for_a_change_that_begins_between_two_partitions(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [DeleteRecordsPartition(partition_index=number, offset=1) for number in (0, 1)]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=named)], timeout_ms=1000
    )

    async def story() -> tuple[list[int], list[int]]:
        await topic_changes.create(node, "t", 2)
        partitions = [node.partitions.get("t", number) for number in (0, 1)]
        for partition in partitions:
            partition.log.append([NewRecord(value=b"v")])
            partition.advance()
        hold = node.partitions.holds.hold(["t"], stops_appends=True)

        async def flushed(_: Partition) -> None:
            monkeypatch.undo()
            await hold.__aenter__()

        monkeypatch.setattr(Partition, "flushed", flushed)
        context = RequestContext(node, DELETE_RECORDS, 2, "test", ClientInfo(1, "test"))
        deletion = asyncio.ensure_future(delete_records(context, request))
        await turns(5)
        during = [partition.log.log_start_offset for partition in partitions]
        await hold.__aexit__(None, None, None)
        response = await deletion
        return during, [each.low_watermark for each in response.topics[0].partitions]

    assert asyncio.run(story()) == ([1, 0], [1, 1])
