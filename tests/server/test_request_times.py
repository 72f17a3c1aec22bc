"""Request durations have a resolution of 1 us, whatever the resolution of the loop's clock."""

import asyncio
from pathlib import Path

import pytest
from tests.worlds.brokers.socketless import World, watched

from tidelog.env import Env, ManualClock
from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.messages.metadata import ApiVersionsRequest
from tidelog.protocol.requests import ClientConnection

STEP_NS = 250_000


class Steps(ManualClock):
    """A clock that advances a quarter of a millisecond with each reading of nanoseconds."""

    def __init__(self) -> None:
        super().__init__(1_700_000_000_000)
        self._ns = 0

    def monotonic_ns(self) -> int:
        self._ns += STEP_NS
        return self._ns


def test_durations_below_a_millisecond_are_measured(tmp_path: Path) -> None:
    async def ask() -> None:
        with watched() as errors:
            world = World.open(tmp_path, errors, Env(clock=Steps()))
            talk = world.connect()
            asker = ClientConnection("asker")
            talk.feed(b"".join(asker.request(API_VERSIONS, 3, ApiVersionsRequest())))
            await talk.settle()
            told = world.node.metrics.apis["ApiVersions"].seconds
            await world.close()
        assert sum(told.counts) == 1
        assert told.total == pytest.approx(STEP_NS / 1e9)
        assert told.counts[1] == 1, "the bucket up to and with 0.25 ms"

    asyncio.run(ask())
