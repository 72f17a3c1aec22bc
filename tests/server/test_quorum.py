"""Requests about the quorum and about features, to a broker that is its own controller."""

from collections.abc import Iterator

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient

from tidelog.protocol.messages import DESCRIBE_QUORUM, UNREGISTER_BROKER, UPDATE_FEATURES
from tidelog.protocol.messages.cluster import (
    DescribeQuorumRequest,
    FeatureUpdate,
    QuorumTopic,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.protocol.messages.shared import PartitionIndex
from tidelog.server.embedded import Broker

NODE = 7
running = broker_fixture({"node.id": str(NODE)}, is_temporary=True, scope="module")


@pytest.fixture
def asking(running: Broker) -> Iterator[RawClient]:
    with RawClient(running.bootstrap_servers) as found:
        yield found


def test_the_broker_is_leader_and_only_voter_of_the_quorum(
    running: Broker, asking: RawClient
) -> None:
    partitions = [PartitionIndex(partition_index=0)]
    asked = QuorumTopic(topic_name="__cluster_metadata", partitions=partitions)
    told = asking.ask(DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=[asked]))
    partition = told.topics[0].partitions[0]
    assert (partition.leader_id, partition.high_watermark) == (NODE, 0)
    assert [(v.replica_id, v.log_end_offset) for v in partition.current_voters] == [(NODE, 0)]
    place = told.nodes[0].listeners[0]
    assert f"{place.host}:{place.port}" == running.bootstrap_servers


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("name", ["transaction.version", "group.version", "share.version"])
def test_a_level_that_would_change_is_refused(asking: RawClient, name: str, version: int) -> None:
    down = FeatureUpdate(feature=name, max_version_level=0, upgrade_type=2, allow_downgrade=True)
    told = asking.ask(UPDATE_FEATURES, version, UpdateFeaturesRequest(feature_updates=[down]))
    assert told.error_code == 95
    assert f"Invalid update version 0 for feature {name}" in str(told.error_message)


def test_the_broker_can_not_be_unregistered(asking: RawClient) -> None:
    told = asking.ask(UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=NODE))
    assert told.error_code == 42
