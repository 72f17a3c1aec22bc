"""Many partitions in a fetch session, many groups, and many clients that are idle or don't read."""

import contextlib
import signal
import sys
from pathlib import Path

import pytest
from tests.server.crowds import Crowd, Rest, descriptors, memory_bytes
from tests.server.test_produce import until
from tests.server.test_serve import serving
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.needs import need
from tests.worlds.records.batches import batch
from tests.worlds.waiting import PATIENCE_S, Patience, until_equal, until_so

import tidelog
from tidelog.protocol.messages import (
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest, ListGroupsRequest
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)

TOPIC = "t"
PARTITIONS = 1000
AT_ONCE = 50
GROUPS = 10_000
TOGETHER = 100
SLOW = 500
IDLE = 300
IDLE_MANY = 10_000
IDLE_MEMORY_BYTES = 80 << 20
LARGE = 1 << 20


def fetch(
    asking: RawClient, session_id: int, epoch: int, partitions: list[FetchPartition]
) -> FetchResponse:
    """Send one fetch of a session, without waiting for records."""
    topics = [FetchTopic(topic=TOPIC, partitions=partitions)] if partitions else []
    request = FetchRequest(
        session_id=session_id, session_epoch=epoch, max_bytes=LARGE, topics=topics
    )
    return asking.ask(FETCH, 12, request)


@pytest.mark.slow  # opens 1,000 partitions
def test_a_session_of_many_partitions_returns_only_new_records(quick_path: Path) -> None:
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=LARGE)
        for number in range(PARTITIONS)
    ]
    with tidelog.broker(str(quick_path / "data"), settings=SETTINGS) as broker:
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=PARTITIONS))
        place = broker.bootstrap_servers
        with RawClient(place) as asking, RawClient(place) as writer:
            for first in range(0, PARTITIONS, AT_ONCE):  # a request may add at most AT_ONCE
                fetch(asking, 0, -1, wanted[first : first + AT_ONCE])
            begun = fetch(asking, 0, 0, wanted)
            session = begun.session_id
            assert session
            assert len(begun.responses[0].partitions) == PARTITIONS
            assert fetch(asking, session, 1, []).responses == []
            for number in (3, 997):
                assert writer.produce(TOPIC, batch(), number).error_code == 0
            (told,) = fetch(asking, session, 2, []).responses
            assert sorted(found.partition_index for found in told.partitions) == [3, 997]
            taken = [
                FetchPartition(partition=number, fetch_offset=1, partition_max_bytes=LARGE)
                for number in (3, 997)
            ]
            assert fetch(asking, session, 3, taken).responses == []


def commit(group: str, offset: int) -> OffsetCommitRequest:
    """Return a request that commits an offset for a group without members."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return OffsetCommitRequest(group_id=group, topics=[topic])


def find_coordinator(asking: RawClient) -> None:
    """Repeat the request until a coordinator is available, as clients do."""
    request = FindCoordinatorRequest(key="g0")
    until_equal(0, lambda: asking.ask(FIND_COORDINATOR, 2, request).error_code)


def offset_of_group(asking: RawClient, group: str) -> int:
    topic = OffsetFetchTopic(name=TOPIC, partition_indexes=[0])
    request = OffsetFetchRequest(group_id=group, topics=[topic])
    patience = Patience()
    while (told := asking.ask(OFFSET_FETCH, 5, request)).error_code:
        patience.check(f"{group} is loaded")
        assert told.error_code == 14
    return told.topics[0].partitions[0].committed_offset


@pytest.mark.slow  # 10,000 commits
def test_many_groups_are_kept_and_found(quick_path: Path) -> None:
    data = str(quick_path / "data")
    with (
        tidelog.broker(data, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap_servers) as asking,
    ):
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
        find_coordinator(asking)
        for first in range(0, GROUPS, TOGETHER):
            for number in range(first, first + TOGETHER):
                asking.send(OFFSET_COMMIT, 7, commit(f"g{number}", number))
            for _ in range(TOGETHER):
                told = asking.receive(OFFSET_COMMIT)
                assert told.topics[0].partitions[0].error_code == 0
    with (
        tidelog.broker(data, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap_servers) as asking,
    ):
        find_coordinator(asking)
        for number in range(0, GROUPS, 997):
            assert offset_of_group(asking, f"g{number}") == number
        listed = asking.ask(LIST_GROUPS, 4, ListGroupsRequest())
        assert len({group.group_id for group in listed.groups}) == GROUPS


@pytest.mark.slow  # 500 connections
def test_clients_that_receive_nothing_delay_no_other_client(quick_path: Path) -> None:
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LARGE)]
    request = FetchRequest(
        session_epoch=-1, max_bytes=LARGE, topics=[FetchTopic(topic=TOPIC, partitions=wanted)]
    )
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(tidelog.broker(str(quick_path / "data"), settings=SETTINGS))
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        assert client.produce(TOPIC, batch(bytes(LARGE - 1000))).error_code == 0
        for _ in range(SLOW):
            stack.enter_context(RawClient(broker.bootstrap_servers)).send(FETCH, 12, request)
        for _ in range(20):
            assert client.produce(TOPIC, batch()).error_code == 0
            assert client.ask(FETCH, 12, request).responses[0].partitions[0].records
        until(broker, lambda node: node.metrics.connections == SLOW + 1)
        assert client.produce(TOPIC, batch()).error_code == 0


def test_idle_connections_delay_no_client_and_end_with_the_broker(quick_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        need(stack.enter_context(descriptors(2 * IDLE)), f"{2 * IDLE} open descriptors")
        broker = stack.enter_context(tidelog.broker(str(quick_path / "data"), settings=SETTINGS))
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
        crowd = stack.enter_context(contextlib.closing(Crowd(broker.bootstrap_servers, IDLE)))
        until(broker, lambda node: node.metrics.connections == IDLE)
        with RawClient(broker.bootstrap_servers) as client:
            for number in range(20):
                assert client.produce(TOPIC, batch()).base_offset == number
            assert len(client.read_all(TOPIC)) == 20
        assert crowd.is_left_alone()
        broker.close()
        crowd.await_end()


@pytest.mark.slow  # 10,000 connections
def test_ten_thousand_idle_connections_use_few_resources(quick_path: Path) -> None:
    """The broker runs as a separate process, which raises its own limit of open files."""
    need(sys.platform == "linux", "/proc of Linux, for the process's memory")
    with contextlib.ExitStack() as stack:
        need(stack.enter_context(descriptors(IDLE_MANY)), f"{IDLE_MANY} open descriptors")
        data = str(quick_path / "data")
        process, address = stack.enter_context(serving("--data", data))
        client = stack.enter_context(RawClient(address))
        client.auto_create(TOPIC)
        stack.enter_context(contextlib.closing(Crowd(address, 100)))
        until_so(Rest(process.pid).has_come, "kernels are loaded, and all is quiet")
        before = memory_bytes(process.pid)
        crowd = stack.enter_context(contextlib.closing(Crowd(address, IDLE_MANY)))
        for number in range(100):
            assert client.produce(TOPIC, batch()).base_offset == number
        assert len(client.read_all(TOPIC)) == 100
        until_so(Rest(process.pid).has_come, "the broker is at rest")
        assert memory_bytes(process.pid) - before <= IDLE_MEMORY_BYTES
        assert crowd.is_left_alone()
        process.send_signal(signal.SIGTERM)
        crowd.await_end()
        assert process.wait(PATIENCE_S) == 0
