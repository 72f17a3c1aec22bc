"""When a broker gets its first consumer group, no client has to retry a request.

So no client may get the error COORDINATOR_LOAD_IN_PROGRESS, after which clients pause before they
retry; librdkafka pauses for three seconds.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kafka import KafkaConsumer
from tests.server.loop_meter import HELD_MAX_S
from tests.server.relay import Led, Relay
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.env import UnsyncedFiles
from tidelog.protocol.messages import (
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_FETCH,
)
from tidelog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from tidelog.protocol.messages.group_offsets import OffsetFetchRequest
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.protocol.messages.transactions import InitProducerIdRequest
from tidelog.protocol.requests import ReceivedRequest
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.server.net.clients import Clients
from tidelog.types import OFFSETS_TOPIC, NewRecord

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LATER = {14, 15, 16}
CLIENTS = 4
ID_NEEDED = 79
# Program that prints the CPU seconds for which the first request about a group blocks the loop.
FIRST_OF_A_PROCESS = """
import tempfile
import pytest
from tests.server.loop_meter import metered_broker
from tests.worlds.clients.raw import RawClient
from tidelog.protocol.messages import FIND_COORDINATOR, METADATA
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.metadata import MetadataRequest

with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as path:
    with metered_broker(path, patch, {}) as metered:
        with RawClient(metered.broker.bootstrap_servers) as client:
            client.ask(METADATA, 9, MetadataRequest(topics=[]))
            metered.held_s()
            client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g"))
        print(metered.held_s())
"""

# Program that prints the loaded modules twice: after a broker has served requests without a pause,
# and after the first request about a group. Then the program simulates a pause of the clients, and
# waits until the broker has loaded the modules for groups that it loads in a pause.
BEFORE_A_PAUSE = """
import asyncio, sys
import tidelog
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import Patience
from tidelog.protocol.messages import FIND_COORDINATOR, METADATA
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.server.net.clients import Clients

paused, limits = asyncio.Event(), []

async def first_pause(clients, silent_ms, *, limit_ms):
    limits.append(limit_ms)
    await paused.wait()

Clients.first_pause = first_pause
with tidelog.broker() as broker, RawClient(broker.bootstrap_servers) as client:
    client.ask(METADATA, 9, MetadataRequest(topics=[]))
    print(*sys.modules)
    client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g"))
    print(*sys.modules)
    broker.call(lambda node: paused.set())
    patience = Patience()
    while "tidelog.server.api.group_offsets" not in sys.modules:
        patience.check("the modules for groups are loaded")
        client.ask(METADATA, 9, MetadataRequest(topics=[]))
    assert limits and 0 < limits[0] < 1000
"""
GROUPS = "tidelog.server.groups.coordinator"
NOT_AT_THE_START = {
    "tidelog.server.api.fetch",
    "tidelog.server.api.group_offsets",
    "tidelog.server.api.list_offsets",
    "tidelog.server.kernels",
    "tidelog.server.maintenance.log_cleaner",
    "tidelog.server.partitions.fetch",
}


def by_confluent(address: str) -> None:
    settings = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe(["t"])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
    finally:
        consumer.close()


def by_kafka_python(address: str) -> None:
    consumer = KafkaConsumer(
        "t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
    )
    next(iter(consumer))
    consumer.close()


def by_aiokafka(address: str) -> None:
    async def read() -> None:
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            await consumer.getone()
        finally:
            await consumer.stop()

    asyncio.run(read())


@contextmanager
def listened(broker: Broker) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Run a relay to the broker; yield its address, and the errors in the responses, by API."""
    led = Led()
    errors: list[tuple[str, int]] = []

    def note(request: ReceivedRequest, message: "DataclassInstance") -> None:
        led(request, message)
        code = getattr(message, "error_code", 0)
        if code:
            errors.append((request.api.name, code))

    with Relay(broker.bootstrap_servers, note) as relay:
        led.address = relay.address
        yield relay.address, errors


@pytest.mark.parametrize("read", [by_confluent, by_kafka_python, by_aiokafka])
def test_no_client_gets_a_retriable_error(tmp_path: Path, read: Callable[[str], None]) -> None:
    for number in range(3):  # the third broker has the second one's directory
        data = str(tmp_path / f"data-{min(number, 1)}")
        with tidelog.broker(data) as broker:
            if number < 2:
                broker.call(lambda node: node.log_dir.create_topic("t"))
            with tidelog.connect(broker.bootstrap_servers) as log:
                log.append("t", [NewRecord(value=b"v")])
            with listened(broker) as (address, errors):
                read(address)
        assert {code for _, code in errors} <= {ID_NEEDED}, errors


def join(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[GroupProtocol(name="range", metadata=b"")],
    )


def test_concurrent_lookups_of_a_coordinator_wait_for_one_creation_of_its_topic() -> None:
    """No request may find the topic created but still without partitions, as in a former defect."""
    for _ in range(3):
        with tidelog.broker() as broker:
            clients = [RawClient(broker.bootstrap_servers) for _ in range(CLIENTS)]
            asked = FindCoordinatorRequest(key="g", key_type=0)
            for client in clients:
                client.send(FIND_COORDINATOR, 2, asked)
            codes = [getattr(client.receive(), "error_code", None) for client in clients]
            joined = [client.ask(JOIN_GROUP, 5, join("g")).error_code for client in clients]
            for client in clients:
                client.close()
        assert codes == [0] * CLIENTS
        assert joined == [ID_NEEDED] * CLIENTS


def test_the_first_group_of_a_process_leaves_the_loop_to_others() -> None:
    """A thread imports the modules for groups, even if a request comes right after the start."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_OF_A_PROCESS], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < HELD_MAX_S


def test_a_broker_imports_the_modules_of_groups_in_a_pause_or_for_a_request() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_A_PAUSE], capture_output=True, text=True, check=True
    )
    started, asked = (set(line.split()) for line in done.stdout.splitlines())
    assert not (NOT_AT_THE_START | {GROUPS}) & started
    assert GROUPS in asked
    assert not NOT_AT_THE_START & asked
    for name in NOT_AT_THE_START:
        assert find_spec(name) is not None, name


def test_stored_groups_and_transactions_wait_for_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    resumed = threading.Event()
    resume = Node.resume_transactions

    def note(node: Node) -> None:
        resume(node)
        if node.has_groups == node.has_stored_groups:
            resumed.set()

    for kind in (0, 1):
        data = str(tmp_path / str(kind))
        with tidelog.broker(data) as broker, RawClient(broker.bootstrap_servers) as client:
            client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="x", key_type=kind))
        with monkeypatch.context() as patch:
            patch.setattr(Clients, "first_pause", never)
            patch.setattr(Node, "resume_transactions", note)
            with tidelog.broker(data) as broker:
                assert resumed.wait(PATIENCE_S)
        resumed.clear()


def test_a_broker_on_a_temporary_directory_creates_few_partitions(tmp_path: Path) -> None:
    def partitions(broker: Broker) -> int:
        with RawClient(broker.bootstrap_servers) as client:
            client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g", key_type=0))
        return broker.call(lambda node: node.topics.all()[OFFSETS_TOPIC].partitions)

    with tidelog.broker() as broker:
        assert partitions(broker) == 1
    with tidelog.broker(settings={"offsets.topic.num.partitions": "3"}) as broker:
        assert partitions(broker) == 3
    with tidelog.broker(str(tmp_path)) as broker:
        assert partitions(broker) == 50


def test_only_files_of_a_temporary_directory_are_not_synced(tmp_path: Path) -> None:
    def facts(broker: Broker) -> tuple[bool, str]:
        return broker.call(lambda node: isinstance(node.env.files, UnsyncedFiles)), broker.data

    with tidelog.broker() as broker:
        is_unsynced, path = facts(broker)
        assert is_unsynced
        assert Path(path).is_dir()
    assert not Path(path).exists()
    with tidelog.broker(env=tidelog.os_env()) as broker:
        assert not facts(broker)[0]
    for settings, data in (({}, str(tmp_path / "a")), ({"log.dirs": str(tmp_path / "b")}, None)):
        with tidelog.broker(data, settings=settings) as broker:
            assert not facts(broker)[0]


def test_requests_wait_while_groups_and_transactions_are_loaded(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)) as broker, RawClient(broker.bootstrap_servers) as client:
        client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g", key_type=0))
        client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="x", key_type=1))
    with tidelog.broker(str(tmp_path)) as broker:
        asked = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        with RawClient(broker.bootstrap_servers) as one, RawClient(broker.bootstrap_servers) as two:
            one.send(JOIN_GROUP, 5, join("g"))
            two.send(INIT_PRODUCER_ID, 4, asked)
            codes = [getattr(each.receive(), "error_code", None) for each in (one, two)]
            offsets = one.ask(OFFSET_FETCH, 5, OffsetFetchRequest(group_id="h", topics=None))
            groups = two.ask(LIST_GROUPS, 4, ListGroupsRequest())
    assert codes == [ID_NEEDED, 0]
    assert offsets.error_code == 0
    assert groups.error_code == 0
