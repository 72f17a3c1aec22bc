"""Real Kafka and our broker give the same responses about controllers and features."""

import contextlib
import re
import socket
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import PATIENCE_S

from tidelog.protocol.messages import (
    ADD_RAFT_VOTER,
    API_VERSIONS,
    DESCRIBE_QUORUM,
    REMOVE_RAFT_VOTER,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from tidelog.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    FeatureUpdate,
    QuorumListener,
    QuorumTopic,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.shared import PartitionIndex
from tidelog.protocol.wire import NO_UUID

if TYPE_CHECKING:
    from tidelog.server.embedded import Broker as Ours

pytestmark = pytest.mark.kafka

NODE = 1
METADATA = "__cluster_metadata"
VOTER = UUID(int=5)
# Keys of APIs that Kafka serves and our broker does not serve.
DELEGATION_TOKENS = range(38, 42)
STATES_OF_SHARES = range(83, 88)
STREAMS_GROUPS = range(88, 90)

# Our broker, with the node id of the tests' Kafka.
ours = broker_fixture({"node.id": str(NODE)}, is_temporary=True, scope="module")


def described(client: RawClient, version: int, *asked: tuple[str, list[int]]) -> object:
    """Return the described quorum without its offsets, times and addresses."""
    topics = [
        QuorumTopic(
            topic_name=name,
            partitions=[PartitionIndex(partition_index=number) for number in numbers],
        )
        for name, numbers in asked
    ]
    told = client.ask(DESCRIBE_QUORUM, version, DescribeQuorumRequest(topics=topics))
    for partition in (part for topic in told.topics for part in topic.partitions):
        has_offset = partition.high_watermark >= 0 and bool(partition.current_voters)
        partition.leader_epoch = int(partition.leader_epoch > 0)
        partition.high_watermark = int(has_offset)
        for voter in partition.current_voters:
            voter.log_end_offset = 0
            voter.last_fetch_timestamp = int(voter.last_fetch_timestamp > 0)
            voter.last_caught_up_timestamp = int(voter.last_caught_up_timestamp > 0)
    for node in told.nodes:
        node.listeners = []
    return told


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "asked",
    [
        ((METADATA, [0]),),
        ((METADATA, [1]),),
        ((METADATA, [0, 1]),),
        ((METADATA, []),),
        (("x", [0]),),
        ((METADATA, [0]), ("x", [0])),
        (),
    ],
    ids=repr,
)
def test_quorum(
    clients: tuple[RawClient, RawClient], asked: tuple[tuple[str, list[int]], ...], version: int
) -> None:
    kafka, ours = clients
    assert described(ours, version, *asked) == described(kafka, version, *asked)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "updates",
    [
        [],
        [("metadata.version", 30, 1)],
        [("metadata.version", 30, 2)],
        [("metadata.version", 29, 1)],
        [("metadata.version", 29, 2)],
        [("metadata.version", 29, 3)],
        [("metadata.version", 99, 1)],
        [("metadata.version", 0, 3)],
        [("metadata.version", 30, 0)],
        [("metadata.version", 30, 9)],
        [("metadata.version", -1, 1)],
        [("nope", 1, 1)],
        [("nope", 0, 1)],
        [("nope", -1, 1)],
        [("", 1, 1)],
        [("transaction.version", 2, 1)],
        [("transaction.version", 2, 3)],
        [("transaction.version", 1, 1)],
        [("transaction.version", 3, 1)],
        [("transaction.version", 2, 1), ("nope", 1, 1)],
    ],
    ids=repr,
)
def test_features(
    clients: tuple[RawClient, RawClient], updates: list[tuple[str, int, int]], version: int
) -> None:
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdate(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ],
        validate_only=True,
    )
    kafka, ours = (client.ask(UPDATE_FEATURES, version, request) for client in clients)
    assert ours == kafka


def test_a_broker_that_does_not_exist(clients: tuple[RawClient, RawClient]) -> None:
    request = UnregisterBrokerRequest(broker_id=555)
    kafka, ours = (client.ask(UNREGISTER_BROKER, 0, request) for client in clients)
    assert ours == kafka


HERE = QuorumListener(name="CONTROLLER", host="127.0.0.1", port=65535)
THERE = QuorumListener(name="OTHER", host="127.0.0.1", port=65535)


@pytest.mark.parametrize("cluster_id", [None, "of-another-cluster", ""])
@pytest.mark.parametrize("voter", [(3, VOTER), (0, VOTER), (-2, VOTER), (3, NO_UUID)], ids=repr)
def test_voters_stay(
    clients: tuple[RawClient, RawClient], cluster_id: str | None, voter: tuple[int, UUID]
) -> None:
    """As in Kafka, any other error takes precedence over the error "voters can't be changed"."""
    number, directory = voter
    removing = RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=number, voter_directory_id=directory
    )
    told = [refused(client.ask(REMOVE_RAFT_VOTER, 0, removing)) for client in clients]
    assert told[0] == told[1]
    lower = QuorumListener(name="controller", host="127.0.0.1", port=65535)
    # A listener with an empty name is not tested: it ends the controller of Kafka 4.3.
    for listeners in ([HERE], [THERE, HERE], [HERE, HERE], [lower], [THERE], []):
        adding = AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=1000,
            voter_id=number,
            voter_directory_id=directory,
            listeners=listeners,
        )
        told = [refused(client.ask(ADD_RAFT_VOTER, 1, adding)) for client in clients]
        assert told[0] == told[1], listeners


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("cluster_id", [b"\0", b"\x03no"], ids=["any", "another"])
def test_a_voter_is_changed_at_controllers_alone(
    kafka_broker: Broker, ours: "Ours", cluster_id: bytes, version: int
) -> None:
    """Brokers close the connection without a response to UpdateRaftVoter (82)."""
    head = b"\0\x52" + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff\0"
    voter = bytes(4) + NODE.to_bytes(4, "big") + VOTER.bytes
    listeners = b"\2" + b"\x0bCONTROLLER" + b"\x0a127.0.0.1" + b"\xff\xff" + b"\0"
    frame = head + cluster_id + voter + listeners + bytes(4) + b"\0\0"
    for bootstrap in (kafka_broker.bootstrap, ours.bootstrap_servers):
        host, _, port = bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
            sock.sendall(len(frame).to_bytes(4, "big") + frame)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(4) == b""


def refused(told: AddRaftVoterResponse | RemoveRaftVoterResponse) -> tuple[int, str]:
    """Return the code and the text, without the cluster's id and the requested values."""
    assert told.error_code
    return told.error_code, re.split('id "|endpoint', str(told.error_message))[0][:30]


def announced(told: ApiVersionsResponse) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Return the minimum level of each feature, and the level range of each finalized feature."""
    in_force = {
        row.name: (row.min_version_level, row.max_version_level) for row in told.finalized_features
    }
    return {row.name: row.min_version for row in told.supported_features}, in_force


@pytest.mark.parametrize("version", [3, 4])
def test_features_with_minimum_zero_are_announced_in_version_4_only(
    version: int, clients: tuple[RawClient, RawClient]
) -> None:
    """Versions below 4 omit features whose minimum is 0, because older Java clients refuse them."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    kafka, ours = (announced(client.ask(API_VERSIONS, version, request)) for client in clients)
    # Only responses of version 4 show the features that Kafka 4.3 has and our broker lacks.
    assert ours[0] == {name: kafka[0][name] for name in ours[0]}
    assert ours[1] == {name: kafka[1][name] for name in ours[1]}
    if version == 3:
        assert ours[0] == kafka[0]
    else:
        assert 0 in ours[0].values()


def test_some_apis_and_features_are_announced_by_kafka_only(
    clients: tuple[RawClient, RawClient],
) -> None:
    """We lack some features, and the APIs of delegation tokens, streams groups and share state."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    kafka, ours = (client.ask(API_VERSIONS, 4, request) for client in clients)
    keys = [{row.api_key: row for row in told.api_keys} for told in (kafka, ours)]
    alone = {*DELEGATION_TOKENS, *STATES_OF_SHARES, *STREAMS_GROUPS}
    assert keys[1] == {key: row for key, row in keys[0].items() if key not in alone}
    assert alone <= keys[0].keys()
    features = [
        {row.name: row.max_version for row in told.supported_features} for told in (kafka, ours)
    ]
    assert features[0].items() - features[1].items() == {
        ("eligible.leader.replicas.version", 1),
        ("kraft.version", 1),
        ("streams.version", 1),
    }
    # Kafka finalizes this feature in each new cluster, but Kafka Streams uses it only on request.
    assert announced(kafka)[1]["streams.version"] == (1, 1)
