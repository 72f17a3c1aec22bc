"""If records arrive after a fetch's read and before its wait, the wait ends at once."""

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path

from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.record.builder import build_batch
from tidelog.server.api.context import RequestContext
from tidelog.server.api.fetch import fetch
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime import reply
from tidelog.types import IsolationLevel, NewRecord

VERSION = 12
FOR_EVER_MS = 2**31 - 1


def test_records_that_are_appended_before_the_wait_begins_end_it(tmp_path: Path) -> None:
    came, told = threading.Event(), list[FetchResponse]()
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=FOR_EVER_MS,
        min_bytes=1,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[asked])],
    )

    async def rest(answer: Awaitable[FetchResponse]) -> None:
        told.append(await answer)
        came.set()

    def start(node: Node) -> "asyncio.Task[None]":
        node.log_dir.create_topic("t", partitions=1)
        partition = node.partitions.get("t", 0)  # an open partition is read at once
        context = RequestContext(node, FETCH, VERSION, None, ClientInfo(1, "here"))
        # The fetch reads during this call, but begins to wait only in the next iteration of the
        # loop.
        answer = reply.start(fetch(context, request))
        assert not isinstance(answer, FetchResponse)
        partition.append(bytes(build_batch([NewRecord(value=b"v")])))
        return asyncio.ensure_future(rest(answer))

    with tidelog.broker(str(tmp_path)) as broker:
        kept = broker.call(start)
        assert came.wait(PATIENCE_S), kept
    assert [len(topic.partitions) for topic in told[0].responses] == [1]


def test_a_fetch_at_records_that_are_not_visible_waits(tmp_path: Path) -> None:
    """A fetch inside an open transaction waits, because the records are not visible yet."""
    asked = FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=FOR_EVER_MS,
        min_bytes=1,
        isolation_level=IsolationLevel.READ_COMMITTED,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[asked])],
    )
    told = list[bool]()
    came = threading.Event()

    def append(partition: Partition, sequence: int) -> None:
        batch = build_batch(
            [NewRecord(value=b"open")] * 3,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        partition.append(bytes(batch))

    async def story(node: Node) -> None:
        node.log_dir.create_topic("t", partitions=1)
        partition = node.partitions.get("t", 0)
        append(partition, 0)
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 3)
        context = RequestContext(node, FETCH, VERSION, None, ClientInfo(1, "here"))
        answer = fetch(context, request)
        assert not isinstance(answer, FetchResponse)
        waiting = asyncio.ensure_future(answer)
        for sequence in (3, 6):
            for _ in range(5):
                await asyncio.sleep(0)
            told.append(waiting.done())
            append(partition, sequence)
        await asyncio.sleep(0)
        told.append(waiting.done())
        waiting.cancel()
        came.set()

    with tidelog.broker(str(tmp_path)) as broker:
        kept = broker.call(lambda node: asyncio.ensure_future(story(node)))
        assert came.wait(PATIENCE_S), kept
    assert told == [False] * 3
