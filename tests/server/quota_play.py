"""Clients with quotas, connected to a broker whose clock the test moves."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.worlds.brokers.socketless import TURNS, Talk, World, watched
from tests.worlds.clients.raw import produce_request
from tests.worlds.waiting import Patience

from tidelog.env import Env, ManualClock
from tidelog.protocol.messages import ALTER_CLIENT_QUOTAS, API_VERSIONS, FETCH, PRODUCE
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlteration,
    QuotaOperation,
)
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.protocol.messages.metadata import ApiVersionsRequest
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.protocol.requests import ClientConnection
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.messages import AnyApi

TOPIC = "t"
BOUND = 100.0
Entity = tuple[tuple[str, str | None], ...]
EVERYBODY: Entity = (("user", None),)


def altering(
    values: Mapping[str, float | None], entity: Entity = EVERYBODY, *, trial: bool = False
) -> AlterClientQuotasRequest:
    """Return a request that sets quotas of one entity; a value of None removes the quota."""
    alteration = QuotaAlteration(
        entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            QuotaOperation(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )
    return AlterClientQuotasRequest(entries=[alteration], validate_only=trial)


class Client:
    """One connection to a broker whose clock the test moves."""

    def __init__(self, world: World, clock: ManualClock, name: str = "app") -> None:
        self._world = world
        self._clock = clock
        self._asker = ClientConnection(name)
        self._talk: Talk = world.connect()
        self._seen = 0

    def send(self, api: "AnyApi", version: int, request: "DataclassInstance") -> int:
        """Send a request; return its size in bytes, without the length."""
        data = b"".join(self._asker.request(api, version, request))
        self._talk.feed(data)
        return len(data) - 4

    async def answer(self) -> "DataclassInstance | None":
        """Return the next response, None if the broker has sent none."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        sent = self._talk.transport.sent
        self._asker.feed(bytes(sent[self._seen :]))
        self._seen = len(sent)
        return self._asker.next_response()

    async def answered(self) -> "DataclassInstance":
        """Wait for the next response, for many loop iterations if a thread prepares it."""
        patience = Patience()
        while (found := await self.answer()) is None:
            patience.check("an answer")
        return found

    async def produce(self, *, acks: int = -1) -> tuple[int, int]:
        """Append one record; return the throttle time and the request's size."""
        request = produce_request(TOPIC, bytes(build_batch([NewRecord(value=b"v" * 500)])))
        request.acks = acks
        size = self.send(PRODUCE, 9, request)
        answer = await self.answered()
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0
        return answer.throttle_time_ms, size

    async def fetch(self, session_id: int = 0, epoch: int = -1) -> FetchResponse:
        """Read the topic from its beginning."""
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            session_id=session_id,
            session_epoch=epoch,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        )
        self.send(FETCH, 12, request)
        answer = await self.answered()
        assert isinstance(answer, FetchResponse)
        return answer

    async def is_silent(self) -> bool:
        """Send another request; return whether the broker does not respond yet."""
        self.send(API_VERSIONS, 3, ApiVersionsRequest())
        return await self.answer() is None

    async def is_answered_after(self, delay_ms: int) -> bool:
        """Advance the clock; return whether the pending response comes after exactly this delay."""
        self._clock.advance(delay_ms - 1)
        self._world.node.timers.run_due()
        if await self.answer() is not None:
            return False
        self._clock.advance(1)
        self._world.node.timers.run_due()
        await self.answered()
        return True


class BusyClock(ManualClock):
    """A clock that advances `work_ms` with each reading, to simulate work."""

    work_ms = 0

    def monotonic_ns(self) -> int:
        """Advance the clock by `work_ms`, and return its time in nanoseconds."""
        self.advance(self.work_ms)
        return super().monotonic_ns()


Steps = Callable[[World, BusyClock], Coroutine[object, object, None]]


def play(folder: Path, steps: Steps) -> None:
    """Run a test's steps on a broker with one topic; assert that no unexpected error is logged."""

    async def run() -> None:
        clock = BusyClock(1_700_000_000_000)
        with watched() as errors:
            world = World.open(folder, errors, Env(clock=clock))
            world.node.log_dir.create_topic(TOPIC, partitions=1)
            world.node.partitions.get(TOPIC, 0)
            try:
                await steps(world, clock)
            finally:
                await world.close()
        assert not errors.records

    asyncio.run(run())


async def set_quota(
    world: World, clock: ManualClock, entity: Entity, **values: float | None
) -> None:
    """Set quotas, and wait until they apply."""
    client = Client(world, clock, "admin")
    client.send(ALTER_CLIENT_QUOTAS, 1, altering(values, entity))
    answer = await client.answered()
    assert isinstance(answer, AlterClientQuotasResponse)
    assert [entry.error_code for entry in answer.entries] == [0]
