"""FindCoordinator opens the coordinator's partition, so that the first write need not do this."""

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar, cast

from tests.faults.hooked import HookedDisk
from tests.worlds.brokers.running import node_fixture

from tidelog.protocol.messages import CONSUMER_GROUP_HEARTBEAT, FIND_COORDINATOR
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.modern_groups import ConsumerGroupHeartbeatRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.server.api.classic_groups import OPENED_KEYS_MAX
from tidelog.server.api.dispatch import answer
from tidelog.server.api.node import ClientInfo, Node
from tidelog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.schema import Api

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

PARTITIONS = 4
SETTINGS = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "transaction.state.log.num.partitions": str(PARTITIONS),
}
GROUP, TRANSACTION = 0, 1

node = node_fixture(SETTINGS, has_disk=True)


class Client:
    """Sends requests to a node without a connection."""

    def __init__(self, node: Node) -> None:
        self._node, self._wire = node, ClientConnection("test")

    async def ask(
        self,
        api: "Api[Request, Response]",
        version: int,
        message: Request,
    ) -> Response:
        frame = b"".join(self._wire.request(api, version, message))[4:]
        said = answer(self._node, ClientInfo(1, "here"), memoryview(bytearray(frame)))
        assert said is not None
        pieces = said if isinstance(said, list) else await said
        self._wire.feed(b"".join(bytes(piece) for piece in pieces or ()))
        return cast("Response", self._wire.next_response())

    async def find(self, kind: int, *keys: str) -> list[int]:
        asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        said = await self.ask(FIND_COORDINATOR, 4, asked)
        return [each.error_code for each in said.coordinators]


def opened_partitions(node: Node, topic: str) -> set[int]:
    left = node.partitions.unopened((topic, number) for number in range(PARTITIONS))
    return set(range(PARTITIONS)) - {name.partition for name in left}


def test_finding_a_groups_coordinator_opens_its_partition(node: Node) -> None:
    async def story() -> None:
        client = Client(node)
        assert await client.find(GROUP, "a") == [0]
        number_of = node.groups.topic.number_of
        assert opened_partitions(node, OFFSETS_TOPIC) == {number_of("a")}
        names = [f"group-{number}" for number in range(30)]
        assert await client.find(GROUP, *names) == [0] * 30
        assert opened_partitions(node, OFFSETS_TOPIC) == {number_of(name) for name in ("a", *names)}

    asyncio.run(story())


def test_finding_a_transaction_coordinator_opens_its_partition(node: Node) -> None:
    async def story() -> None:
        assert await Client(node).find(TRANSACTION, "t") == [0]
        assert opened_partitions(node, TRANSACTIONS_TOPIC) == {
            node.transactions.topic.number_of("t")
        }

    asyncio.run(story())


def test_of_very_many_keys_only_the_first_open_partitions(node: Node) -> None:
    async def story() -> None:
        client = Client(node)
        assert await client.find(GROUP, "a") == [0]
        number_of = node.groups.topic.number_of
        last = PARTITIONS - 1
        names = [f"group-{number}" for number in range(8 * OPENED_KEYS_MAX)]
        others = [name for name in ["a", *names] if number_of(name) != last][:OPENED_KEYS_MAX]
        behind = [name for name in names if number_of(name) == last][:50]
        assert await client.find(GROUP, *others, *behind) == [0] * (len(others) + 50)
        opened = [
            not node.partitions.must_open(TopicPartition(OFFSETS_TOPIC, number))
            for number in range(PARTITIONS)
        ]
        assert opened == [True] * last + [False]
        await client.find(GROUP, behind[0])
        assert not node.partitions.must_open(TopicPartition(OFFSETS_TOPIC, last))

    asyncio.run(story())


def test_the_first_write_of_a_group_syncs_nothing_on_the_loop(node: Node, disk: HookedDisk) -> None:
    synced = list[int]()

    def watched(call: str, _path: str) -> None:
        if call == "sync_dir":
            synced.append(threading.get_ident())

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
        assert said.error_code == 0

    disk.hook = watched
    asyncio.run(story())
    assert synced
    assert threading.get_ident() not in synced
