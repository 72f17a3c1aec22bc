"""Requests about replicas in a cluster of one broker with one directory."""

from tests.worlds.brokers.running import broker_fixture

from tidelog.protocol.messages import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    ELECT_LEADERS,
    AnyApi,
)
from tidelog.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.protocol.messages.shared import NamedPartitions, TopicPartitions
from tidelog.server.api import cluster
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.embedded import Broker

TOPIC = "flights"

# A broker with one topic of two partitions.
broker = broker_fixture({"node.id": "7"}, topics={TOPIC: 2}, scope="module")


def context(node: Node, api: AnyApi) -> RequestContext:
    """Return the context of a request in the newest version."""
    return RequestContext(node, api, api.last, None, ClientInfo(1, "here"))


def test_no_election_is_needed(broker: Broker) -> None:
    named = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0, 2])])
    told = broker.call(lambda n: cluster.elect_leaders(context(n, ELECT_LEADERS), named))
    (topic,) = told.replica_election_results
    assert [(p.partition_id, p.error_code) for p in topic.partition_result] == [(0, 84), (2, 3)]
    every = ElectLeadersRequest(topic_partitions=None)
    told = broker.call(lambda n: cluster.elect_leaders(context(n, ELECT_LEADERS), every))
    found = [(each.topic, each.partition_result) for each in told.replica_election_results]
    assert (told.error_code, found) == (0, [(TOPIC, [])])


def test_an_election_of_a_type_that_there_is_not_is_refused(broker: Broker) -> None:
    named = ElectLeadersRequest(
        election_type=2, topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0, 9])]
    )
    told = broker.call(lambda n: cluster.elect_leaders(context(n, ELECT_LEADERS), named))
    (topic,) = told.replica_election_results
    assert told.error_code == 42
    assert [(p.partition_id, p.error_code) for p in topic.partition_result] == [(0, 42), (9, 42)]


def test_partitions_cannot_be_moved_to_another_broker(broker: Broker) -> None:
    wishes = [[7], [8], None, [], [7, 8]]
    asked = [ReassignablePartition(partition_index=0, replicas=wish) for wish in wishes]
    asked.append(ReassignablePartition(partition_index=9, replicas=[7]))
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=TOPIC, partitions=asked)]
    )
    told = broker.call(
        lambda n: cluster.alter_partition_reassignments(
            context(n, ALTER_PARTITION_REASSIGNMENTS), request
        )
    )
    (topic,) = told.responses
    assert [each.error_code for each in topic.partitions] == [0, 39, 85, 39, 39, 3]


def test_replicas_can_be_moved_only_to_the_one_directory(broker: Broker) -> None:
    there = NamedPartitions(name=TOPIC, partitions=[0, 9])
    elsewhere = NamedPartitions(name=TOPIC, partitions=[1])
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(path=broker.data, topics=[there]),
            AlterReplicaLogDir(path="/elsewhere", topics=[elsewhere]),
        ]
    )
    told = broker.call(
        lambda n: cluster.alter_replica_log_dirs(context(n, ALTER_REPLICA_LOG_DIRS), request)
    )
    (topic,) = told.results
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
        (0, 0),
        (9, 3),
        (1, 57),
    ]
