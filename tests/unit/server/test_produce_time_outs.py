"""A Produce request with acks=all whose records are not durable within the client's timeout."""

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path

from tests.faults.hooked import HookedDisk
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.record.builder import build_batch
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo
from tidelog.server.api.produce import produce
from tidelog.server.broker import open_node
from tidelog.server.runtime.reply import start
from tidelog.types import NewRecord

TIMEOUT_MS = 5_000


def test_a_hanging_disk_is_reported_in_time_and_the_records_are_written_later(
    tmp_path: Path, disk: HookedDisk
) -> None:
    is_free = threading.Event()

    def hang(call: str, path: str) -> None:
        if call == "sync" and path.endswith(".log"):
            assert is_free.wait(PATIENCE_S)

    async def story() -> None:
        clock = ManualClock(1_700_000_000_000)
        config = BrokerConfig.parse({"tidelog.durability": "fsync"})[0]
        node = open_node(str(tmp_path), config, env=Env(clock=clock, files=disk))
        node.log_dir.create_topic("t", partitions=1)
        partition = node.partitions.get("t", 0)
        records = memoryview(bytearray(build_batch([NewRecord(value=b"v")])))
        data = [PartitionProduceData(index=0, records=records)]
        topics = [TopicProduceData(name="t", partition_data=data)]
        request = ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics
        )
        disk.hook = hang
        context = RequestContext(node, PRODUCE, 12, "t", ClientInfo(1, "t"))
        answer = start(produce(context, request))
        assert isinstance(answer, Awaitable)
        task = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        clock.advance(TIMEOUT_MS - 1)
        node.timers.run_due()
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(1)
        node.timers.run_due()
        await turn_until(task.done)
        response = await task
        assert isinstance(response, ProduceResponse)
        (told,) = response.responses[0].partition_responses
        assert told.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert told.base_offset == told.log_append_time_ms == told.log_start_offset == -1
        assert partition.high_watermark == 0
        is_free.set()
        await turn_until(lambda: partition.high_watermark == 1)
        node.close()

    asyncio.run(story())
