"""A broker's transaction coordinator, the topics of its markers, and a manual clock."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults import DamageFileSystem
from tests.unit.server.loops import turns
from tests.worlds.brokers.groups import Syncs
from tests.worlds.waiting import Patience, turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env, FileSystem, ManualClock, OsFileSystem
from tidelog.error_codes import ErrorCode
from tidelog.record.record import ControlType, read_end_marker
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.server.transactions.coordinator import ProducerAnswer
from tidelog.server.transactions.metadata import (
    AddRequest,
    EndRequest,
    InitRequest,
    ProducerRef,
    Transaction,
    TransactionMetadata,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import TopicPartition

ID = "payments"
TIMEOUT_MS = 60_000
START_MS = 1_700_000_000_000
SETTINGS = {"transaction.state.log.num.partitions": "1"}
ONE = TopicPartition("flights", 0)
TWO = TopicPartition("flights", 1)
TOPICS: Mapping[str, int] = {"flights": 2}


class Marker(NamedTuple):
    """A marker that ended a transaction in a partition."""

    place: TopicPartition
    producer_id: int
    producer_epoch: int
    commit: bool


class World:
    """One broker and its transactions."""

    def __init__(self, node: Node, clock: ManualClock) -> None:
        self.node = node
        self.clock = clock
        self.coordinator = node.transactions

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic and open its partitions, so that no thread has to open them."""
        if self.node.topics.find(topic) is None:
            self.node.log_dir.create_topic(topic, partitions=partitions)
        for number in range(partitions):
            self.node.partitions.get(topic, number)

    def markers(self) -> list[Marker]:
        """Return all markers in topics that aren't internal, ordered by topic and partition."""
        return [marker for marker, _ in self._markers()]

    def coordinator_epochs(self) -> list[int]:
        """Return the coordinator epoch of each marker."""
        return [epoch for _, epoch in self._markers()]

    def _markers(self) -> list[tuple[Marker, int]]:
        found = []
        for info in sorted(self.node.topics.all().values(), key=lambda info: info.name):
            if self.node.topics.is_internal(info.name):
                continue
            for number in range(info.partitions):
                place = TopicPartition(info.name, number)
                log = self.node.partitions.get(info.name, number).log
                for part in log.slices():
                    for _, batch in part.batches():
                        if not batch.is_control:
                            continue
                        (record,) = batch.records()
                        end = read_end_marker(record)
                        commit = end.kind is ControlType.COMMIT
                        marker = Marker(place, batch.producer_id, batch.producer_epoch, commit)
                        found.append((marker, end.coordinator_epoch))
        return found

    @property
    def table(self) -> Sequence[TransactionMetadata]:
        return [each.metadata for each in self.coordinator.table.all()]

    def known(self, transactional_id: str = ID) -> TransactionMetadata:
        found = self.coordinator.table.find(transactional_id)
        assert isinstance(found, Transaction), found
        return found.metadata

    async def init(
        self,
        expected: ProducerAnswer | None = None,
        transactional_id: str = ID,
        timeout_ms: int = TIMEOUT_MS,
    ) -> ProducerAnswer:
        ref = None if expected is None else ProducerRef(*expected[1:])
        asked = InitRequest(transactional_id=transactional_id, timeout_ms=timeout_ms, expected=ref)
        return await self.coordinator.init_producer_id(asked)

    async def begun(self, transactional_id: str = ID) -> ProducerAnswer:
        """Initialize a producer; if the id has an open transaction, first wait until it ends."""
        patience = Patience()
        while (said := await self.init(transactional_id=transactional_id)).code is (
            ErrorCode.CONCURRENT_TRANSACTIONS
        ):
            patience.check("the open transaction has ended")
            await self.ended(transactional_id)
        assert said.code is ErrorCode.NONE
        return said

    async def add(
        self,
        producer: ProducerAnswer,
        *partitions: TopicPartition,
        version: int = 0,
        transactional_id: str = ID,
    ) -> ErrorCode:
        asked = AddRequest(
            transactional_id=transactional_id,
            producer=ProducerRef(*producer[1:]),
            partitions=frozenset(partitions),
            version=version,
        )
        return await self.coordinator.add(asked)

    async def end(
        self,
        producer: ProducerAnswer,
        *,
        commit: bool,
        version: int = 0,
        transactional_id: str = ID,
    ) -> ProducerAnswer:
        asked = EndRequest(
            transactional_id=transactional_id,
            producer=ProducerRef(*producer[1:]),
            commit=commit,
            version=version,
        )
        return await self.coordinator.end(asked)

    async def loaded(self) -> None:
        await turn_until(lambda: not self.coordinator.topic.is_loading)

    async def ended(self, transactional_id: str = ID) -> None:
        """Wait until the id has no transaction that is open or being ended."""
        await turn_until(lambda: self.known(transactional_id).is_ended)

    async def pass_time(self, ms: int) -> None:
        """Advance the clock; run each due timer at its own time."""
        end, patience = self.clock.monotonic_ms() + ms, Patience()
        while True:
            patience.check("no timer is due")
            await turns()
            delay = self.node.timers.next_delay_ms()
            if delay is None or self.clock.monotonic_ms() + delay > end:
                break
            self.clock.advance(delay)
            self.node.timers.run_due()
        self.clock.advance(end - self.clock.monotonic_ms())
        await turns()


@asynccontextmanager
async def world(
    path: Path | str,
    *,
    clock: ManualClock | None = None,
    files: FileSystem | None = None,
    topics: Mapping[str, int] = TOPICS,
    **settings: str,
) -> AsyncIterator[World]:
    """Start a broker without a listener, with the transactions topic and these topics."""
    named = {name.replace("_", "."): text for name, text in settings.items()}
    config = BrokerConfig.parse(SETTINGS | named)[0]
    clock = clock or ManualClock(START_MS)
    env = Env(clock=clock, files=files or OsFileSystem())
    node = _node(str(path), config, env)
    try:
        made = World(node, clock)
        for topic, count in topics.items():
            made.create(topic, count)
        assert await made.coordinator.topic.ensure_topic() is ErrorCode.NONE
        await made.loaded()
        yield made
    finally:
        node.close()


def _node(path: str, config: BrokerConfig, env: Env) -> Node:
    """Return a broker. On a disk in memory, which supports no threads, logs are synced at once."""
    if not isinstance(env.files, DamageFileSystem):
        return open_node(path, config, env=env)
    options = LogDirOptions(create=True, deferrals=Syncs)
    return Node(LogDir.open(path, env=env, options=options), config)
