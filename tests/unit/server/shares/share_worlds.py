"""A broker without a listener, its share groups, and a manual clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tests.unit.server.loops import turns
from tests.worlds.waiting import Patience, turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env, FileSystem, ManualClock, OsFileSystem
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import SHARE_ACKNOWLEDGE, SHARE_FETCH
from tidelog.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    SharePartitionData,
)
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch
from tidelog.server.api.context import LargeResponse, RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.share_fetch import share_acknowledge, share_fetch
from tidelog.server.broker import open_node
from tidelog.server.groups.modern_group import SharedTopic, ShareGroup
from tidelog.server.shares.record_runs import AckType
from tidelog.server.shares.state_topic import ShareKey
from tidelog.types import NewRecord

GROUP: Final = "workers"
TOPIC: Final = "jobs"
START_MS: Final = 1_700_000_000_000
LOCK_MS: Final = 30_000
SETTINGS: Final = {
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
EARLIEST: Final = {"share.auto.offset.reset": "earliest"}

Batches = Sequence[tuple[int, int, Sequence[int]]]


def said(first: int, last: int, *types: AckType) -> tuple[int, int, Sequence[int]]:
    return first, last, types


@dataclass
class Member:
    """A client that keeps track of its share session's epoch."""

    world: "World"
    name: str
    connection: ClientInfo
    epoch: int = 0
    group: str = GROUP

    async def fetch(
        self,
        *partitions: int,
        acks: Batches = (),
        records: int = 1000,
        wait_ms: int = 0,
        **changes: object,
    ) -> ShareFetchResponse:
        """Fetch partitions of the topic; `acks` acknowledge records of the first partition."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_records=records,
            batch_size=500,
            topics=self.world.topics(partitions, acks),
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return await self.send_fetch(request)

    async def send_fetch(self, request: ShareFetchRequest) -> ShareFetchResponse:
        context = RequestContext(self.world.node, SHARE_FETCH, 2, "test", self.connection)
        found = share_fetch(context, request)
        told = await found if isinstance(found, Awaitable) else found
        return cast(
            "ShareFetchResponse", told.response if isinstance(told, LargeResponse) else told
        )

    async def say(self, *acks: tuple[int, int, Sequence[int]], **changes: object) -> int:
        """Acknowledge records of partition 0; return the error code of the response.

        If the response has no error, return the error code of the partition.
        """
        response = await self.acknowledge(0, acks, **changes)
        if response.error_code:
            return response.error_code
        return response.responses[0].partitions[0].error_code

    async def acknowledge(
        self, partition: int, acks: Batches, **changes: object
    ) -> ShareAcknowledgeResponse:
        found = self.begin_acknowledging(partition, acks, **changes)
        return await found if isinstance(found, Awaitable) else found

    def begin_acknowledging(
        self, partition: int, acks: Batches, **changes: object
    ) -> ShareAcknowledgeResponse | Awaitable[ShareAcknowledgeResponse]:
        """Send an acknowledgement; return the response, or an awaitable if it comes later."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        topics = [
            ShareFetchTopic(topic_id=each.topic_id, partitions=each.partitions)
            for each in self.world.topics([partition], acks)
        ]
        request = ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.name, share_session_epoch=epoch, topics=topics
        )
        for name, value in changes.items():
            setattr(request, name, value)
        context = RequestContext(self.world.node, SHARE_ACKNOWLEDGE, 2, "test", self.connection)
        return share_acknowledge(context, request)


class World:
    """One broker with one topic."""

    def __init__(self, node: Node, clock: ManualClock) -> None:
        self.node = node
        self.clock = clock
        self._members = 0

    def topics(self, partitions: Sequence[int], acks: Batches = ()) -> list[ShareFetchTopic]:
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[*types])
            for first, last, types in acks
        ]
        asked = [
            ShareFetchPartition(
                partition_index=number, acknowledgement_batches=[] if at else batches
            )
            for at, number in enumerate(partitions)
        ]
        return [ShareFetchTopic(topic_id=self.key().topic_id, partitions=asked)] if asked else []

    def member(self, name: str = "", group: str = GROUP) -> Member:
        self._members += 1
        self.share(group)
        facts = ClientInfo(self._members, "127.0.0.1")
        return Member(self, name or f"member {self._members}", facts, group=group)

    def share(self, group: str = GROUP) -> None:
        """Create a group that shares the topic, as the first heartbeat of a member does."""
        key = self.key()
        known = self.node.groups.find(group)
        if isinstance(known, ShareGroup) and key.topic_id in known.shared:
            return
        topics = {key.topic_id: SharedTopic(TOPIC, frozenset(range(3)))}
        written = self.node.groups.share_topics.share(ShareGroup(group), topics)
        assert not written.is_done or written.value is ErrorCode.NONE

    def key(self, partition: int = 0, group: str = GROUP) -> ShareKey:
        info = self.node.topics.find(TOPIC)
        assert info is not None
        assert info.topic_id is not None
        return ShareKey(group, info.topic_id, partition)

    def waiting_count(self, partition: int = 0) -> int:
        """Return how many of the group's fetches wait for a partition."""
        live = self.node.shares.find(self.key(partition))
        return 0 if live is None else live.waiting_count

    def produce(self, *sizes: int, partition: int = 0) -> None:
        """Append batches with these record counts."""
        found = self.node.partitions.get(TOPIC, partition)
        for size in sizes:
            records = [NewRecord(value=b"v", timestamp=self.clock.now_ms()) for _ in range(size)]
            found.append(build_batch(records))

    async def set_group(self, texts: dict[str, str], group: str = GROUP) -> None:
        """Change settings of a group."""
        from tidelog.server.admin.config_changes import ConfigChange, ConfigChanges
        from tidelog.server.api.configs import GroupResource

        changes = tuple(ConfigChange(name, 0, text) for name, text in texts.items())
        await GroupResource(self.node, group).alter(ConfigChanges(changes), is_trial=False)

    async def pass_time(self, ms: int) -> None:
        """Advance the clock; run each due timer at its own time."""
        end = self.clock.monotonic_ms() + ms
        await turns()
        patience = Patience()
        while (delay := self.node.timers.next_delay_ms()) is not None:
            patience.check("no timer is due")
            if self.clock.monotonic_ms() + delay > end:
                break
            self.clock.advance(delay)
            self.node.timers.run_due()
            await turns()
        self.clock.advance(end - self.clock.monotonic_ms())
        await turns()


async def begun(
    wanted: "Awaitable[ShareFetchResponse]", world: World
) -> "asyncio.Task[ShareFetchResponse]":
    """Start a fetch of partition 0; return its task once the fetch waits for records."""
    before = world.waiting_count()
    task = asyncio.ensure_future(wanted)
    # Threads open the partition before the fetch waits for records. How long this takes is unknown.
    await turn_until(lambda: world.waiting_count() > before or task.done())
    await turns()
    assert not task.done()
    return task


def of(response: ShareFetchResponse, partition: int = 0) -> SharePartitionData | None:
    """Return the response's data for a partition, None if the response doesn't have it."""
    found = [data for topic in response.responses for data in topic.partitions]
    return next((data for data in found if data.partition_index == partition), None)


def batches_of(data: SharePartitionData) -> list[Batch]:
    """Return the batches in the response."""
    pieces = data.records
    assert isinstance(pieces, list)
    return list(walk(b"".join(bytes(piece) for piece in pieces)))


def acquired(response: ShareFetchResponse, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return first offset, last offset and delivery count of each range acquired in a partition."""
    assert response.error_code == 0, response
    data = of(response, partition)
    if data is None:
        return []
    assert data.error_code == 0, data
    return [
        (each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records
    ]


@asynccontextmanager
async def world(
    path: Path | str,
    *,
    clock: ManualClock | None = None,
    files: FileSystem | None = None,
    often: int = 500,
    **settings: str,
) -> AsyncIterator[World]:
    """Start a broker with the topic and a group that reads the topic from its beginning.

    A snapshot of the group's state is written after every `often` changes.
    """
    named = {name.replace("_", "."): text for name, text in settings.items()}
    named["share.coordinator.snapshot.update.records.per.snapshot"] = str(often)
    config = BrokerConfig.parse(SETTINGS | named)[0]
    clock = clock or ManualClock(START_MS)
    env = Env(clock=clock, files=files or OsFileSystem())
    node = open_node(str(path), config, env=env)
    try:
        if node.topics.find(TOPIC) is None:
            node.log_dir.create_topic(TOPIC, partitions=3)
        made = World(node, clock)
        assert await node.groups.topic.ensure_topic() is ErrorCode.NONE
        await turn_until(lambda: node.groups.topic.error_for(GROUP) is ErrorCode.NONE)
        if not node.group_texts(GROUP):
            await made.set_group(EARLIEST)
        yield made
    finally:
        node.close()
