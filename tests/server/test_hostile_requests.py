"""Small requests that ask for much: what they can make the broker do has a bound."""

import contextlib
import socket
from pathlib import Path
from typing import Final

import pytest
from tests.server.raw import TIMEOUT_S, RawClient

import tidelog
from tidelog.protocol.messages import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    METADATA,
    OFFSET_FETCH,
)
from tidelog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.messages.described_groups import DescribeGroupsRequest
from tidelog.protocol.messages.groups import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tidelog.record.builder import build_batch
from tidelog.server import clients
from tidelog.server.in_process import Broker
from tidelog.server.node import Node
from tidelog.server.topic_rules import NEW_PARTITIONS_MAX, POLICY_VIOLATION
from tidelog.types import NewRecord

TIMES: Final = 1000
UNKNOWN_TOPIC: Final = 3


def test_what_is_named_often_is_told_once(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        name = broker.call(lambda node: str(node.node_id))
        resource = DescribeConfigsResource(resource_type=4, resource_name=name)
        settings = client.ask(
            DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource] * TIMES)
        )
        assert [len(found.configs) > 50 for found in settings.results] == [True]
        groups = client.ask(DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"] * TIMES))
        assert [group.group_id for group in groups.groups] == ["g"]
        topic = OffsetFetchGroupTopic(name="t", partition_indexes=[0] * TIMES)
        group = OffsetFetchGroup(group_id="g", topics=[topic] * 2)
        client.auto_create("t")
        broker.call(lambda node: node.groups)
        offsets = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[group] * 2))
        assert len(offsets.groups) == 1
        assert sum(len(each.partitions) for each in offsets.groups[0].topics) <= 1


def test_negative_counts_take_nothing_off_what_is_too_much(broker: Broker) -> None:
    asked = [
        CreatableTopic(name="large", num_partitions=NEW_PARTITIONS_MAX + 1, replication_factor=1),
        CreatableTopic(name="less", num_partitions=-NEW_PARTITIONS_MAX, replication_factor=1),
    ]
    with RawClient(broker.bootstrap_servers) as client:
        message = CreateTopicsRequest(topics=asked, timeout_ms=1000, validate_only=True)
        answer = client.ask(CREATE_TOPICS, 7, message)
    assert {topic.error_code for topic in answer.topics} == {POLICY_VIOLATION}


def test_metadata_makes_no_more_topics_than_one_may_create_at_once(tmp_path: Path) -> None:
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


def test_client_that_asks_without_end_leaves_others_their_turn(broker: Broker) -> None:
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
        for _ in range(TIMES):
            client.send(DESCRIBE_CONFIGS, 4, asked)
        other.ask(METADATA, 9, MetadataRequest(topics=[]))
        done = broker.call(_described)
        assert done < TIMES / 2
        for _ in range(TIMES):
            client.receive()
        assert broker.call(_described) == TIMES


def test_begun_requests_that_never_end_hold_others_up_for_a_while_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "STALLED_MS", 100)
    host, _, port = broker.bootstrap_servers.rpartition(":")
    begun = (100 << 20).to_bytes(4, "big") + b"\0"
    with contextlib.ExitStack() as slow, RawClient(broker.bootstrap_servers) as client:
        client.auto_create("t")
        for _ in range(3):
            sender = slow.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
            sender.sendall(begun)
        while broker.call(lambda node: node.metrics.connections) < 4:
            pass
        answer = client.produce("t", bytes(build_batch([NewRecord(value=bytes(500_000))])))
    assert answer.error_code == 0


def _described(node: Node) -> int:
    return sum(node.metrics.apis["DescribeConfigs"].seconds.counts)
