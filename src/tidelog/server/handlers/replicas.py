"""Elections, reassignments and moves between directories, where there is one broker and one disk.

Each partition is led by the only broker and lies in the only directory: to ask for just that is
fine and changes nothing, anything else can't be.

Source: Kafka's protocol guide, APIs 43, 45, 46 and 34; behaviour of one Kafka 4.3 node.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartition,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ElectionPartitionResult,
    ElectionTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignedPartition,
    ReassignedTopic,
)
from tidelog.server.errors import Refusal
from tidelog.server.leader_epochs import numbers_of
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.server.topic_rules import ensure_brokers

# Of the preferred replica, and of any.
ELECTION_TYPES: Final = (0, 1)
_NO_PARTITION: Final = "This server does not host this topic-partition."


def _is_there(node: Node, topic: str, number: int) -> bool:
    info = node.topics.find(topic)
    return info is not None and number in numbers_of(info)


def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """No election is needed, as is said of what is named; of all no partition is told."""
    node, named = context.node, request.topic_partitions
    if request.election_type not in ELECTION_TYPES:
        return _unknown_election(request.election_type, named or ())
    if named is None:
        results = [ElectionTopicResult(topic=name) for name in node.topics.names()]
        return ElectLeadersResponse(error_code=0, replica_election_results=results)
    results = [
        ElectionTopicResult(
            topic=topic.topic,
            partition_result=[_election(node, topic.topic, number) for number in topic.partitions],
        )
        for topic in named
    ]
    return ElectLeadersResponse(error_code=0, replica_election_results=results)


def _unknown_election(kind: int, named: Iterable[ElectLeadersTopic]) -> ElectLeadersResponse:
    odd = f"Unknown election type {kind}"
    results = [
        ElectionTopicResult(
            topic=topic.topic,
            partition_result=[
                ElectionPartitionResult(
                    partition_id=number, error_code=ErrorCode.INVALID_REQUEST, error_message=odd
                )
                for number in topic.partitions
            ],
        )
        for topic in named
    ]
    return ElectLeadersResponse(
        error_code=ErrorCode.INVALID_REQUEST, replica_election_results=results
    )


def _election(node: Node, topic: str, number: int) -> ElectionPartitionResult:
    code, text = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if not _is_there(node, topic, number):
        there = node.topics.find(topic) is not None
        missing = f"partition as {topic}-{number}" if there else f"topic as {topic}"
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {missing}"
    return ElectionPartitionResult(partition_id=number, error_code=code, error_message=text)


def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Partitions stay where they are."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignedTopic(
                name=topic.name,
                partitions=[_reassign(context.node, topic.name, each) for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassign(node: Node, topic: str, asked: ReassignablePartition) -> ReassignedPartition:
    found = ReassignedPartition(partition_index=asked.partition_index, error_code=0)
    try:
        if not _is_there(node, topic, asked.partition_index):
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_PARTITION)
        if asked.replicas is None:
            raise Refusal(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
            )
        ensure_brokers(asked.replicas, node.node_id)
    except Refusal as why:
        found.error_code, found.error_message = why.error_code, why.message
    return found


def list_partition_reassignments(
    context: RequestContext,  # noqa: ARG001 - every handler has one
    request: ListPartitionReassignmentsRequest,  # noqa: ARG001 - whatever is asked
) -> ListPartitionReassignmentsResponse:
    """There are none."""
    return ListPartitionReassignmentsResponse()


def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Partitions stay where they are."""
    node = context.node
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        is_ours = directory.path.rstrip("/") == node.log_dir.path
        for topic in directory.topics:
            found = AlterReplicaLogDirTopicResult(topic_name=topic.name)
            found = results.setdefault(topic.name, found)
            for number in topic.partitions:
                there = (
                    0
                    if _is_there(node, topic.name, number)
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                code = there if is_ours else ErrorCode.LOG_DIR_NOT_FOUND
                found.partitions.append(
                    AlterReplicaLogDirPartition(partition_index=number, error_code=code)
                )
    return AlterReplicaLogDirsResponse(results=list(results.values()))
