"""A coordinator on a log of its own, markers that are only noted, a clock that tests move."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.server.loops import turns
from tests.worlds.waiting import turn_until

from tidelog.config import BrokerConfig
from tidelog.env import Env, FileSystem, ManualClock, OsFileSystem
from tidelog.server.arrivals import arrival
from tidelog.server.node import Node
from tidelog.server.server import open_node
from tidelog.server.transactions.coordinator import ProducerAnswer, TransactionCoordinator
from tidelog.server.transactions.metadata import Transaction, TransactionMetadata
from tidelog.server.transactions.seam import ErrorCode
from tidelog.server.transactions.steps import AddAsked, EndAsked, InitAsked, ProducerRef
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import asyncio

ID = "payments"
TIMEOUT_MS = 60_000
START_MS = 1_700_000_000_000
SETTINGS = {"transaction.state.log.num.partitions": "1"}
ONE = TopicPartition("flights", 0)
TWO = TopicPartition("flights", 1)


class NotedMarkers:
    """Says what it is told to, and notes what was written.

    Attributes:
        written: Partition, producer id, epoch and whether it commits, of each marker.
        codes: What partitions answer with that take no marker now.
        on_write: Called after each marker.
        gate: Where it is not None, nothing is written before it is set.
    """

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, int, int, bool]] = []
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.versions: list[int] = []
        self.coordinator_epochs: list[int] = []
        self.on_write: Callable[[], None] = lambda: None
        self.gate: asyncio.Event | None = None
        self.calls = 0

    async def write(
        self,
        partitions: Sequence[TopicPartition],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.calls += 1
        self.versions.append(transaction_version)
        self.coordinator_epochs.append(coordinator_epoch)
        if self.gate is not None:
            await self.gate.wait()
        said = {}
        for each in partitions:
            said[each] = self.codes.get(each, ErrorCode.NONE)
            if said[each] is ErrorCode.NONE:
                self.written.append((each, producer_id, producer_epoch, commit))
                self.on_write()
        return said


class World:
    """One broker's coordinator."""

    def __init__(self, node: Node, clock: ManualClock, markers: NotedMarkers) -> None:
        self.node = node
        self.clock = clock
        self.markers = markers
        self.coordinator = TransactionCoordinator(node, markers)
        self.coordinator.resume()

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
        asked = InitAsked(transactional_id=transactional_id, timeout_ms=timeout_ms, expected=ref)
        return await self.coordinator.init_producer_id(asked)

    async def begun(self, transactional_id: str = ID) -> ProducerAnswer:
        """A producer that may write: whatever was there is ended first."""
        while (said := await self.init(transactional_id=transactional_id)).code is (
            ErrorCode.CONCURRENT_TRANSACTIONS
        ):
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
        asked = AddAsked(
            transactional_id=transactional_id,
            producer=ProducerRef(*producer[1:]),
            partitions=frozenset(partitions),
            version=version,
        )
        return await arrival(self.coordinator.add(asked))

    async def end(
        self,
        producer: ProducerAnswer,
        *,
        commit: bool,
        version: int = 0,
        transactional_id: str = ID,
    ) -> ProducerAnswer:
        asked = EndAsked(
            transactional_id=transactional_id,
            producer=ProducerRef(*producer[1:]),
            commit=commit,
            version=version,
        )
        return await self.coordinator.end(asked)

    async def loaded(self) -> None:
        await turn_until(lambda: not self.coordinator.log.is_loading)

    async def ended(self, transactional_id: str = ID) -> None:
        """Once no transaction is open or being ended."""
        await turn_until(lambda: self.known(transactional_id).is_ended)

    async def pass_time(self, ms: int) -> None:
        """Let time pass; what is due in between is done at its time."""
        end = self.clock.monotonic_ms() + ms
        while True:
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
    markers: NotedMarkers | None = None,
    files: FileSystem | None = None,
    **settings: str,
) -> AsyncIterator[World]:
    """A broker that is not listening; its topic is there."""
    named = {name.replace("_", "."): text for name, text in settings.items()}
    config = BrokerConfig.parse(SETTINGS | named)[0]
    clock = clock or ManualClock(START_MS)
    env = Env(clock=clock, files=files or OsFileSystem())
    node = open_node(str(path), config, env=env)
    try:
        made = World(node, clock, markers or NotedMarkers())
        assert await made.coordinator.log.ensure_topic() is ErrorCode.NONE
        await made.loaded()
        yield made
    finally:
        node.close()
