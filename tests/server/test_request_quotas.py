"""Quotas of the time that requests use (`request_percentage`), with a clock that tests move."""

from pathlib import Path

from tests.server.quota_play import EVERYBODY, BusyClock, Client, altering, play, set_quota
from tests.worlds.brokers.socketless import World

from tidelog.protocol.messages import ALTER_CLIENT_QUOTAS, API_VERSIONS
from tidelog.protocol.messages.configs import AlterClientQuotasResponse
from tidelog.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse


class TestRequestTime:
    async def _versions_ms(self, client: Client) -> int:
        client.send(API_VERSIONS, 3, ApiVersionsRequest())
        answer = await client.answered()
        assert isinstance(answer, ApiVersionsResponse)
        return answer.throttle_time_ms

    def test_a_client_over_its_request_quota_gets_the_throttle_time_and_is_muted(
        self, tmp_path: Path
    ) -> None:
        async def steps(world: World, clock: BusyClock) -> None:
            await set_quota(world, clock, EVERYBODY, request_percentage=1.0)
            client, other = Client(world, clock), Client(world, clock)
            clock.work_ms = 30
            told = [await self._versions_ms(client) for _ in range(4)]
            # A quota of 1 % allows a burst of 100 ms within ten seconds. A client that exceeds the
            # burst waits for one window, which is a second.
            assert told == [0, 0, 0, 1000]
            clock.work_ms = 0
            assert await client.is_silent()
            assert not await other.is_silent(), "its connection has used nothing"
            clock.advance(1000)
            world.node.timers.run_due()
            await client.answered()

        play(tmp_path, steps)

    def test_the_work_of_a_late_response_counts(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: BusyClock) -> None:
            await set_quota(world, clock, EVERYBODY, request_percentage=1e-6)
            client = Client(world, clock)
            clock.work_ms = 1
            client.send(ALTER_CLIENT_QUOTAS, 1, altering({"producer_byte_rate": 1e9}))
            answer = await client.answered()
            assert isinstance(answer, AlterClientQuotasResponse)
            assert answer.throttle_time_ms == 1000

        play(tmp_path, steps)

    def test_a_fetch_over_it_brings_its_records(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: BusyClock) -> None:
            await Client(world, clock).produce()
            await set_quota(world, clock, EVERYBODY, request_percentage=1e-6)
            clock.work_ms = 1
            told = await Client(world, clock, "reader").fetch()
            assert told.throttle_time_ms == 1000
            assert told.responses[0].partitions[0].records

        play(tmp_path, steps)

    def test_the_longer_silence_counts(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: BusyClock) -> None:
            await set_quota(
                world, clock, EVERYBODY, request_percentage=1e-6, producer_byte_rate=1.0
            )
            client = Client(world, clock)
            clock.work_ms = 1
            told_ms, _ = await client.produce()
            assert told_ms > 1000, "that of its bytes"

        play(tmp_path, steps)
