"""The broker limits what small, endless or unfinished requests cost it and other clients."""

import contextlib
import socket
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S, until_equal, until_so

import tidelog
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_GROUPS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
)
from tidelog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from tidelog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.transactions import InitProducerIdRequest, ListTransactionsRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.record.builder import build_batch
from tidelog.server.admin.topic_rules import NEW_PARTITIONS_MAX
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.server.net import clients
from tidelog.server.runtime.counters import Counters
from tidelog.types import Buffer, NewRecord

TIMES: Final = 1000
# Number of responses whose total size exceeds the system's buffers of a connection. Each response
# has hundreds of kilobytes.
ANSWERS: Final = 60
UNKNOWN_TOPIC: Final = 3
NEVER_MS: Final = 1 << 60


def test_a_repeated_name_is_described_once(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        name = broker.call(lambda node: str(node.node_id))
        resource = DescribeConfigsResource(resource_type=4, resource_name=name)
        settings = client.ask(
            DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource] * TIMES)
        )
        assert [len(found.configs) > 50 for found in settings.results] == [True]
        groups = client.ask(DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"] * TIMES))
        assert [group.group_id for group in groups.groups] == ["g"]
        topic = OffsetFetchTopic(name="t", partition_indexes=[0] * (TIMES // 5))
        group = OffsetFetchGroup(group_id="g", topics=[topic] * 2)
        client.auto_create("t")
        broker.call(lambda node: node.groups)
        offsets = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[group] * 2))
        assert len(offsets.groups) == 1
        assert sum(len(each.partitions) for each in offsets.groups[0].topics) <= 1


def test_negative_counts_do_not_offset_too_many_partitions(broker: Broker) -> None:
    asked = [
        CreatableTopic(name="large", num_partitions=NEW_PARTITIONS_MAX + 1, replication_factor=1),
        CreatableTopic(name="less", num_partitions=-NEW_PARTITIONS_MAX, replication_factor=1),
    ]
    with RawClient(broker.bootstrap_servers) as client:
        message = CreateTopicsRequest(topics=asked, timeout_ms=1000, validate_only=True)
        answer = client.ask(CREATE_TOPICS, 7, message)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}


def test_metadata_creates_no_more_topics_than_the_limit(tmp_path: Path) -> None:
    wanted = [MetadataRequestTopic(name=f"t{number}") for number in range(2)]
    settings = {"num.partitions": str(NEW_PARTITIONS_MAX // 2 + 1)}
    with (
        tidelog.broker(str(tmp_path), settings=settings) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
        answer = client.ask(METADATA, 9, message)
        assert {topic.error_code for topic in answer.topics} == {UNKNOWN_TOPIC}
        assert not broker.call(lambda node: len(node.topics.all()))


def test_a_client_with_endless_requests_does_not_exclude_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, done = Counters.request, list[int]()

    def watched(counters: Counters, name: str, seconds: float, come: int, gone: int) -> None:
        request(counters, name, seconds, come, gone)
        if name == "Metadata":  # its response is sent by now
            done.append(_described(counters))

    monkeypatch.setattr(Counters, "request", watched)
    name = broker.call(lambda node: str(node.node_id))
    asked = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=4, resource_name=name, configuration_keys=["node.id"]
            )
        ]
    )
    with (
        RawClient(broker.bootstrap_servers) as client,
        RawClient(broker.bootstrap_servers) as other,
    ):
        is_held, both_sent = threading.Event(), threading.Event()

        def hold(_node: Node) -> None:
            is_held.set()
            assert both_sent.wait(PATIENCE_S)

        # The broker's loop is blocked until both clients have sent a request. So one iteration
        # reads both requests, however slow this machine is.
        held = threading.Thread(target=broker.call, args=(hold,))
        held.start()
        assert is_held.wait(PATIENCE_S)
        for _ in range(TIMES):
            client.send(DESCRIBE_CONFIGS, 4, asked)
        other.send(METADATA, 9, MetadataRequest(topics=[]))
        both_sent.set()
        held.join()
        other.receive()
        for _ in range(TIMES):
            client.receive()
        assert done[0] < TIMES / 2
        assert broker.call(lambda node: _described(node.metrics)) == TIMES


def test_unfinished_requests_delay_others_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "STALLED_MS", 100)
    settings = {"queued.max.request.bytes": "1000000"}
    with tidelog.broker(str(tmp_path), settings=settings) as broker:
        with contextlib.ExitStack() as slow, RawClient(broker.bootstrap_servers) as client:
            client.auto_create("t")
            for _ in range(3):
                _begin(slow, broker, 400_000)
            until_equal(4, lambda: broker.call(lambda node: node.metrics.connections))
            answer = client.produce("t", bytes(build_batch([NewRecord(value=bytes(500_000))])))
        assert answer.error_code == 0


def test_announced_requests_delay_no_other_client(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "STALLED_MS", NEVER_MS)
    monkeypatch.setattr(clients, "SENDING_MS", NEVER_MS)
    with contextlib.ExitStack() as slow, RawClient(broker.bootstrap_servers) as client:
        client.auto_create("t")
        for _ in range(5):
            _begin(slow, broker, 1)
        until_equal(6, lambda: broker.call(lambda node: node.metrics.connections))
        answer = client.produce("t", bytes(build_batch([NewRecord(value=bytes(500_000))])))
    assert answer.error_code == 0


def test_responses_that_are_not_received_are_dropped_at_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "STALLED_MS", NEVER_MS)
    monkeypatch.setattr(clients, "SENDING_MS", NEVER_MS)
    settings = {"queued.max.request.bytes": "1000"}
    with (
        tidelog.broker(str(tmp_path), settings=settings) as broker,
        RawClient(broker.bootstrap_servers) as client,
        contextlib.ExitStack() as silent,
    ):
        names = [f"t{number}" for number in range(40)]
        broker.call(lambda node: [node.log_dir.create_topic(name) for name in names])
        for count in range(36, 40):  # responses of different sizes
            sender = silent.enter_context(RawClient(broker.bootstrap_servers))
            for _ in range(ANSWERS):
                sender.send(DESCRIBE_CONFIGS, 4, _with_texts(names[:count]))
        monkeypatch.setattr(clients, "STALLED_MS", 100)  # only after all requests are sent
        until_so(lambda: broker.call(lambda node: node.metrics.connections) == 1)
        assert broker.call(lambda node: _described(node.metrics)) < 4 * ANSWERS
        assert client.ask(METADATA, 9, MetadataRequest(topics=[])).topics == []


def test_names_of_invalid_utf_8_hide_no_groups_or_transactions_from_others(broker: Broker) -> None:
    name = "\0" * 20_000  # sent as bytes that are invalid UTF-8
    joins = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type=name,
        protocols=[GroupProtocol(name="range")],
    )
    begins = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    with RawClient(broker.bootstrap_servers) as client:
        for kind in range(2):  # a group and a transactional id
            wanted = FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"])
            until_so(partial(_has_coordinator, client, wanted))
        _send_changed(broker, name, ClientConnection("c").request(JOIN_GROUP, 4, joins))
        _send_changed(broker, name, ClientConnection("c").request(INIT_PRODUCER_ID, 1, begins))
        _send_changed(broker, name, ClientConnection(name).request(METADATA, 8, MetadataRequest()))
        assert client.ask(LIST_GROUPS, 5, ListGroupsRequest()).groups == []
        assert client.ask(LIST_TRANSACTIONS, 1, ListTransactionsRequest()).transaction_states == []


def _has_coordinator(client: RawClient, wanted: FindCoordinatorRequest) -> bool:
    return not client.ask(FIND_COORDINATOR, 4, wanted).coordinators[0].error_code


def _send_changed(broker: Broker, name: str, request: Iterable[Buffer]) -> None:
    """Send a request with bytes of invalid UTF-8 for a name; the broker has to disconnect."""
    data = b"".join(request).replace(name.encode(), b"\xff" * len(name))
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as sender:
        sender.sendall(data)
        assert sender.recv(1) == b""


def _with_texts(topics: list[str]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=name) for name in topics],
        include_synonyms=True,
        include_documentation=True,
    )


def _begin(slow: contextlib.ExitStack, broker: Broker, size: int) -> None:
    """Announce a request of 100 MiB, send part of it, then be silent."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    sender = slow.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
    sender.sendall((100 << 20).to_bytes(4, "big") + bytes(size))


def _described(counters: Counters) -> int:
    return sum(counters.apis["DescribeConfigs"].seconds.counts)
