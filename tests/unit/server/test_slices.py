"""Large responses are built in slices, between which other tasks run."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from tests.worlds.brokers.running import node_fixture
from tests.worlds.clocks import BusyClock
from tests.worlds.waiting import PATIENCE_S

from tidelog.env import ManualClock
from tidelog.protocol.messages import (
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    AnyApi,
)
from tidelog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.requests import ReceivedRequest
from tidelog.server.api import dispatch
from tidelog.server.api.context import LargeResponse, RequestContext
from tidelog.server.api.dispatch import Pieces
from tidelog.server.api.handlers import handler_of
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.broker import use_kernels
from tidelog.server.runtime.loop import SLICE_MS, Slices
from tidelog.server.runtime.reply import Reply
from tidelog.server.runtime.threads import THREADS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

COUNT = 60
NAMES = [f"t{number}" for number in range(COUNT)]

node = node_fixture(clock=lambda: BusyClock(1_700_000_000_000))


async def turns_of_others(work: Awaitable[object]) -> tuple[object, int]:
    """Return the result of the work, and how often another task ran meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    try:
        return await work, turns
    finally:
        task.cancel()


def describe() -> "DataclassInstance":
    resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in NAMES]
    return DescribeConfigsRequest(resources=resources)


def create() -> "DataclassInstance":
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in NAMES]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True)


def delete() -> "DataclassInstance":
    topics = [DeleteTopicState(name=name) for name in NAMES]
    return DeleteTopicsRequest(topics=topics, timeout_ms=1000)


def grow() -> "DataclassInstance":
    topics = [CreatePartitionsTopic(name=name, count=2) for name in NAMES]
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=True)


def add_users() -> "DataclassInstance":
    """Return a request that is refused as a whole, so that it waits for no write to the disk."""
    users = [
        ScramCredentialUpsertion(
            name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=b""
        )
        for name in NAMES
    ]
    return AlterUserScramCredentialsRequest(upsertions=users)


@pytest.mark.parametrize(
    ("api", "version", "message"),
    [
        (ALTER_USER_SCRAM_CREDENTIALS, 0, add_users),
        (DESCRIBE_CONFIGS, 4, describe),
        (CREATE_TOPICS, 7, create),
        (DELETE_TOPICS, 6, delete),
        (CREATE_PARTITIONS, 3, grow),
    ],
)
def test_requests_about_many_things_leave_others_their_turn(
    api: AnyApi, version: int, message: "Callable[[], DataclassInstance]", node: Node
) -> None:
    context = RequestContext(node, api, version, "test", ClientInfo(1, "test"))
    said = handler_of(api.key)(context, message())
    assert isinstance(said, Awaitable)
    answer, turns = asyncio.run(turns_of_others(said))
    assert turns >= COUNT // (SLICE_MS + 2)
    assert isinstance(answer, LargeResponse) is (api in (DESCRIBE_CONFIGS, CREATE_TOPICS))


def test_work_rests_only_when_its_slice_is_over() -> None:
    clock = ManualClock(0)

    async def work() -> None:
        slices = Slices(clock)
        for _ in range(10):
            await slices.rest()
        clock.advance(SLICE_MS)
        await slices.rest()
        await slices.rest()

    assert asyncio.run(turns_of_others(work()))[1] == 1


def test_long_responses_are_encoded_outside_the_loop(node: Node) -> None:
    import threading

    gate = threading.Event()
    request = ReceivedRequest(DESCRIBE_CONFIGS, 4, 7, "test", describe())
    context = RequestContext(node, DESCRIBE_CONFIGS, 4, "test", ClientInfo(1, "test"))

    async def story() -> tuple[int, int]:
        said = handler_of(DESCRIBE_CONFIGS.key)(context, request.message)
        assert isinstance(said, Awaitable)
        response = await said
        assert isinstance(response, LargeResponse)

        for _ in range(THREADS):  # block all threads
            node.work.submit(lambda: gate.wait(PATIENCE_S))
        written = asyncio.ensure_future(_pieces(node, request, response))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not written.done()
        gate.set()
        pieces = await written
        assert pieces
        results = response.response.results  # type: ignore[attr-defined] # of this API
        return sum(map(len, pieces)), len(results)

    size, left = asyncio.run(story())
    assert size > COUNT * 4
    assert left == 0


async def _pieces(node: Node, request: ReceivedRequest, response: LargeResponse) -> Pieces | None:
    outcome = dispatch._write(node, request, None, response)
    assert isinstance(outcome, Reply)
    return await outcome


def test_open_partitions_take_kernels_in_slices(node: Node) -> None:
    node.log_dir.create_topic("many", partitions=COUNT)
    for number in range(COUNT):
        node.partitions.get("many", number)
    turns = asyncio.run(turns_of_others(use_kernels(node)))[1]
    assert turns >= COUNT // (SLICE_MS + 2)
    assert node.partitions.has_kernels
