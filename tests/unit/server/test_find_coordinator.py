"""FindCoordinator makes ready what the first write of a group or a transaction would wait for."""

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from tests.worlds.brokers.running import node_fixture

from tidelog.protocol.connection import ClientConnection
from tidelog.protocol.messages import CONSUMER_GROUP_HEARTBEAT, FIND_COORDINATOR, Api
from tidelog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.groups import FindCoordinatorRequest
from tidelog.server.dispatch import answer
from tidelog.server.handlers.coordinator import OPENED_KEYS_MAX
from tidelog.server.node import ConnectionFacts, Node
from tidelog.server.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PARTITIONS = 4
SETTINGS = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "transaction.state.log.num.partitions": str(PARTITIONS),
}
GROUP, TRANSACTION = 0, 1

node = node_fixture(SETTINGS)


class Client:
    """Asks a node without a connection."""

    def __init__(self, node: Node) -> None:
        self._node, self._wire = node, ClientConnection("test")

    async def ask(
        self,
        api: "Api[DataclassInstance, DataclassInstance]",
        version: int,
        message: "DataclassInstance",
    ) -> object:
        frame = b"".join(self._wire.request(api, version, message))[4:]
        said = answer(self._node, ConnectionFacts(1, "here"), memoryview(bytearray(frame)))
        pieces = said if isinstance(said, list) else await said  # type: ignore[misc]
        self._wire.feed(b"".join(bytes(piece) for piece in pieces or ()))
        return self._wire.next_response()

    async def find(self, kind: int, *keys: str) -> list[int]:
        asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        said = await self.ask(FIND_COORDINATOR, 4, asked)
        return [each.error_code for each in said.coordinators]  # type: ignore[attr-defined]


def opened_partitions(node: Node, topic: str) -> set[int]:
    left = node.partitions.unopened((topic, number) for number in range(PARTITIONS))
    return set(range(PARTITIONS)) - {name.partition for name in left}


def test_what_keeps_a_group_is_open_once_its_coordinator_is_found(node: Node) -> None:
    async def story() -> None:
        client = Client(node)
        assert await client.find(GROUP, "a") == [0]
        number_of = node.groups.shards.number_of
        assert opened_partitions(node, OFFSETS_TOPIC) == {number_of("a")}
        names = [f"group-{number}" for number in range(30)]
        assert await client.find(GROUP, *names) == [0] * 30
        assert opened_partitions(node, OFFSETS_TOPIC) == {number_of(name) for name in ("a", *names)}

    asyncio.run(story())


def test_what_keeps_a_transactional_id_is_open_then(node: Node) -> None:
    async def story() -> None:
        assert await Client(node).find(TRANSACTION, "t") == [0]
        assert opened_partitions(node, TRANSACTIONS_TOPIC) == {node.transactions.log.number_of("t")}

    asyncio.run(story())


def test_of_very_many_keys_only_the_first_are_looked_at(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        client = Client(node)
        assert await client.find(GROUP, "a") == [0]
        asked, shards = list[str](), node.groups.shards
        number_of = shards.number_of

        def counted(key: str) -> int:
            asked.append(key)
            return number_of(key)

        monkeypatch.setattr(shards, "number_of", counted)
        names = [f"group-{number}" for number in range(OPENED_KEYS_MAX + 50)]
        assert await client.find(GROUP, *names) == [0] * len(names)
        assert len(asked) == OPENED_KEYS_MAX

    asyncio.run(story())


def test_the_first_write_of_a_group_syncs_nothing_on_the_loop(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, synced = node.env.files, list[int]()
    sync_dir = files.sync_dir

    def watched(path: str) -> None:
        synced.append(threading.get_ident())
        sync_dir(path)

    async def story() -> None:
        client = Client(node)
        await client.find(GROUP, "g")
        joins = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        said = await client.ask(CONSUMER_GROUP_HEARTBEAT, 1, joins)
        assert said.error_code == 0  # type: ignore[attr-defined]

    monkeypatch.setattr(files, "sync_dir", watched)
    asyncio.run(story())
    assert synced
    assert threading.get_ident() not in synced
