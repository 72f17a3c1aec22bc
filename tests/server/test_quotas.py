"""Quotas survive restarts. Clients that exceed their quotas get throttle times and are muted."""

import asyncio
import math
from pathlib import Path

import pytest
from tests.server.quota_play import (
    BOUND,
    EVERYBODY,
    TOPIC,
    Client,
    Entity,
    altering,
    play,
    set_quota,
)
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.brokers.socketless import TURNS, World
from tests.worlds.clients.raw import RawClient, produce_request

import tidelog
from tidelog.env import ManualClock
from tidelog.errors import CorruptFile
from tidelog.protocol.messages import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    PRODUCE,
)
from tidelog.protocol.messages.configs import DescribeClientQuotasRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.record.builder import build_batch
from tidelog.storage.directory.broker_files import CLUSTER_FILE
from tidelog.types import NewRecord


def kept(asking: RawClient) -> dict[Entity, dict[str, float]]:
    """Return all quotas."""
    told = asking.ask(DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest(components=[]))
    assert told.entries is not None
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in told.entries
    }


class TestKept:
    def test_across_a_restart(self, tmp_path: Path) -> None:
        data, entity = str(tmp_path / "data"), (("client-id", "app"), ("user", "alice"))
        expected = {entity: {"consumer_byte_rate": 5.0, "producer_byte_rate": 1000.0}}
        for _ in range(2):
            with (
                tidelog.broker(data, settings=SETTINGS) as broker,
                RawClient(broker.bootstrap_servers) as asking,
            ):
                request = altering(expected[entity], entity)
                asking.ask(ALTER_CLIENT_QUOTAS, 1, request)
                assert kept(asking) == expected
        with (
            tidelog.broker(data, settings=SETTINGS) as broker,
            RawClient(broker.bootstrap_servers) as asking,
        ):
            assert kept(asking) == expected
            assert broker.call(lambda node: node.throttles) is not None
            asking.ask(ALTER_CLIENT_QUOTAS, 0, altering({"producer_byte_rate": None}, entity))
            assert kept(asking) == {entity: {"consumer_byte_rate": 5.0}}
            asking.ask(ALTER_CLIENT_QUOTAS, 0, altering({"consumer_byte_rate": None}, entity))
            assert kept(asking) == {}
            assert broker.call(lambda node: node.throttles) is None

    def test_a_trial_changes_nothing(self, tmp_path: Path) -> None:
        with (
            tidelog.broker(str(tmp_path / "d")) as broker,
            RawClient(broker.bootstrap_servers) as asking,
        ):
            told = asking.ask(
                ALTER_CLIENT_QUOTAS, 1, altering({"producer_byte_rate": BOUND}, trial=True)
            )
            assert told.entries[0].error_code == 0
            assert kept(asking) == {}
        assert not (tmp_path / "d" / CLUSTER_FILE).exists()

    def test_all_changes_of_an_entity_are_made_or_none(self, tmp_path: Path) -> None:
        with (
            tidelog.broker(str(tmp_path / "d")) as broker,
            RawClient(broker.bootstrap_servers) as asking,
        ):
            told = asking.ask(
                ALTER_CLIENT_QUOTAS, 1, altering({"producer_byte_rate": 1.0, "nope": 2.0})
            )
            assert told.entries[0].error_code == 42
            assert kept(asking) == {}

    def test_a_quota_that_is_not_enforced_is_refused(self, tmp_path: Path) -> None:
        with (
            tidelog.broker(str(tmp_path / "d")) as broker,
            RawClient(broker.bootstrap_servers) as asking,
        ):
            told = asking.ask(ALTER_CLIENT_QUOTAS, 1, altering({"controller_mutation_rate": 50.0}))
            assert told.entries[0].error_code == 42
            assert "not enforced" in str(told.entries[0].error_message)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
    @pytest.mark.parametrize("key", ["producer_byte_rate", "request_percentage"])
    def test_a_quota_that_is_no_positive_number_is_refused(
        self, key: str, value: float, tmp_path: Path
    ) -> None:
        """A broker must refuse a value that it could not read back at its next start."""
        with (
            tidelog.broker(str(tmp_path / "d")) as broker,
            RawClient(broker.bootstrap_servers) as asking,
        ):
            told = asking.ask(ALTER_CLIENT_QUOTAS, 1, altering({key: value}))
            assert told.entries[0].error_code == 42

    def test_a_damaged_file_stops_the_start_and_frees_the_directory(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        data.mkdir()
        (data / CLUSTER_FILE).write_bytes(b"{")
        with pytest.raises(CorruptFile, match=CLUSTER_FILE):
            tidelog.broker(str(data))
        (data / CLUSTER_FILE).unlink()
        tidelog.broker(str(data)).close()


class TestProduce:
    def test_a_producer_over_its_quota_gets_the_throttle_time_and_is_muted(
        self, tmp_path: Path
    ) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await set_quota(world, clock, EVERYBODY, producer_byte_rate=BOUND)
            client, other = Client(world, clock), Client(world, clock)
            told_ms, size = await client.produce()
            assert told_ms == 0, "ten seconds' worth may come at once"
            assert not await client.is_silent()
            told_ms, _ = await client.produce()
            expected_ms = round((2 * size / 10 - BOUND) / BOUND * 10_000)
            assert told_ms == expected_ms
            assert await client.is_silent()
            assert not await other.is_silent(), "its connection has used nothing"
            assert await client.is_answered_after(told_ms)

        play(tmp_path, steps)

    def test_connections_of_a_user_share_a_quota(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await set_quota(world, clock, EVERYBODY, producer_byte_rate=BOUND)
            first, second = Client(world, clock, "a"), Client(world, clock, "b")
            assert (await first.produce())[0] == 0
            assert (await second.produce())[0] > 0

        play(tmp_path, steps)

    def test_clients_of_other_names_do_not(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await set_quota(world, clock, (("client-id", None),), producer_byte_rate=BOUND)
            first, second = Client(world, clock, "a"), Client(world, clock, "b")
            assert (await first.produce())[0] == 0
            assert (await second.produce())[0] == 0
            assert (await first.produce())[0] > 0

        play(tmp_path, steps)

    def test_clients_without_acknowledgement_are_muted_too(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await set_quota(world, clock, EVERYBODY, producer_byte_rate=BOUND)
            client = Client(world, clock)
            await client.produce()
            request = produce_request(TOPIC, bytes(build_batch([NewRecord(value=b"v" * 500)])))
            request.acks = 0
            client.send(PRODUCE, 9, request)
            assert await client.is_silent()
            assert world.node.partitions.get(TOPIC, 0).high_watermark == 2

        play(tmp_path, steps)

    def test_a_removed_quota_has_no_effect(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await set_quota(world, clock, EVERYBODY, producer_byte_rate=1.0)
            await set_quota(world, clock, EVERYBODY, producer_byte_rate=1e9)
            client = Client(world, clock)
            for _ in range(5):
                assert (await client.produce())[0] == 0

        play(tmp_path, steps)

    def test_a_muted_client_that_disconnects_is_forgotten(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await set_quota(world, clock, EVERYBODY, producer_byte_rate=1.0)
            talk, asker = world.connect(), ClientConnection("a")
            request = produce_request(TOPIC, bytes(build_batch([NewRecord(value=b"v")])))
            talk.feed(b"".join(asker.request(PRODUCE, 9, request)))
            for _ in range(TURNS):
                await asyncio.sleep(0)
            await talk.hang_up()
            clock.advance(10_000_000)
            world.node.timers.run_due()

        play(tmp_path, steps)


class TestFetch:
    def test_a_consumer_over_its_quota_gets_no_records_and_is_muted(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            writer, reader = Client(world, clock), Client(world, clock, "reader")
            await writer.produce()
            await set_quota(world, clock, EVERYBODY, consumer_byte_rate=BOUND)
            first = await reader.fetch()
            assert first.throttle_time_ms == 0
            assert first.responses[0].partitions[0].records
            second = await reader.fetch()
            assert second.throttle_time_ms > 0
            assert (second.responses, second.error_code) == ([], 0)
            assert await reader.is_silent()
            assert not await writer.is_silent()
            assert await reader.is_answered_after(second.throttle_time_ms)
            clock.advance(20_000)
            assert (await reader.fetch()).responses[0].partitions[0].records

        play(tmp_path, steps)

    def test_a_fetch_session_continues_after_a_throttle(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            await Client(world, clock).produce()
            await set_quota(world, clock, EVERYBODY, consumer_byte_rate=BOUND)
            reader = Client(world, clock, "reader")
            session = (await reader.fetch(epoch=0)).session_id
            assert session
            told = await reader.fetch(session, 1)
            assert (told.session_id, told.error_code, told.responses) == (session, 0, [])
            assert told.throttle_time_ms > 0
            clock.advance(60_000)
            world.node.timers.run_due()
            again = await reader.fetch(session, 2)
            assert (again.session_id, again.error_code) == (session, 0)
            assert again.responses[0].partitions[0].records

        play(tmp_path, steps)

    def test_no_response_exceeds_the_largest_burst(self, tmp_path: Path) -> None:
        async def steps(world: World, clock: ManualClock) -> None:
            writer, reader = Client(world, clock), Client(world, clock, "reader")
            for _ in range(10):
                await writer.produce()
            await set_quota(world, clock, EVERYBODY, consumer_byte_rate=BOUND)
            found = (await reader.fetch()).responses[0].partitions[0].records
            assert found is not None
            assert 0 < sum(map(len, [found])) <= BOUND * 10

        play(tmp_path, steps)
