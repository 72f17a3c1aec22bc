"""A cluster of one broker: quorum, features, elections, reassignments, log directories.

The broker is its own controller and the quorum's only voter. DescribeQuorum describes the metadata
log as empty. The broker leads every partition and has one log directory. UpdateFeatures,
AlterPartitionReassignments and AlterReplicaLogDirs change nothing: the broker accepts a request for
the state that already exists, and refuses any other request. Each feature stays at the highest
level that this release supports.

Source: Kafka's protocol guide, APIs 34, 35, 43, 45, 46, 55, 57, 64, 80 and 81; KIP-113, KIP-827
(bytes of the volume); responses of one Kafka 4.3 node that is broker and controller; KafkaApis and
ControllerApis (rights).
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidelog.env import Env, OsFileSystem
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectionPartitionResult,
    ElectionTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FeatureUpdate,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
    QuorumTopic,
    ReassignablePartition,
    ReassignedTopic,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdatedFeature,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.protocol.messages.shared import PartitionCode, PartitionError
from tidelog.protocol.wire import NO_UUID
from tidelog.server.admin.topic_rules import ensure_brokers
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many
from tidelog.server.api.guards import Access, Denied, Guarded, failed_item
from tidelog.server.api.metadata import FEATURES
from tidelog.server.api.node import Node
from tidelog.server.partitions.partitions import numbers_of
from tidelog.server.runtime.errors import NOT_HOSTED, Refusal, errors_in, set_error
from tidelog.server.security.operations import Operation
from tidelog.storage import log_files
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.files import CLUSTER_METADATA_TOPIC
from tidelog.types import TopicPartition

METADATA_VERSION: Final = "metadata.version"

# The usual name of the controllers' listener. This broker has no such listener.
_LISTENER: Final = "CONTROLLER"

# Leader epoch of the metadata partition. The epoch never changes, because there are no elections.
_EPOCH: Final = 1

_UPGRADE: Final = 1
_DOWNGRADE: Final = 2
_DOWNGRADE_WITH_LOSS: Final = 3


# -- the quorum ----------------------------------------------------------------------------------


def describe_quorum(
    context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Describe the metadata partition, whose leader and only voter is this broker.

    A request must name only this partition. Otherwise all partitions in the request get an error.
    """
    if not _is_metadata(request.topics):
        return DescribeQuorumResponse(
            error_message="",
            topics=[
                failed_item(
                    DescribedQuorumTopic, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED
                )
                for topic in request.topics
            ],
        )
    partition = _described(context.node, with_times=context.version >= 1)
    topic = DescribedQuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    nodes = [_node(context.node)]
    return DescribeQuorumResponse(error_message="", topics=[topic], nodes=nodes)


def _is_metadata(topics: list[QuorumTopic]) -> bool:
    """Whether a request names exactly the one partition of the metadata topic."""
    partitions = [(t.topic_name, part.partition_index) for t in topics for part in t.partitions]
    return len(topics) == 1 and partitions == [(CLUSTER_METADATA_TOPIC, 0)]


def _described(node: Node, *, with_times: bool) -> DescribedQuorumPartition:
    now_ms = node.env.clock.now_ms() if with_times else -1
    voter = QuorumReplica(
        replica_id=node.node_id,
        log_end_offset=0,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return DescribedQuorumPartition(
        partition_index=0,
        error_message="",
        leader_id=node.node_id,
        leader_epoch=_EPOCH,
        high_watermark=0,
        current_voters=[voter],
        observers=[],
    )


def _node(node: Node) -> QuorumNode:
    addresses = node.listeners or {"PLAINTEXT": node.address}
    return QuorumNode(
        node_id=node.node_id,
        listeners=[
            QuorumListener(name=name, host=address.host, port=address.port)
            for name, address in addresses.items()
        ],
    )


def add_raft_voter(context: RequestContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """Refuse to add a voter, because the set of voters can't change.

    A request with invalid fields gets the error for the first of these fields instead.
    """
    refusal = _voter_refusal(context.node, request, "adding")
    reachable = {listener.name.upper() for listener in request.listeners}
    if refusal.error_code == ErrorCode.UNSUPPORTED_VERSION and _LISTENER not in reachable:
        text = f"Add voter request didn't include an endpoint for the listener {_LISTENER}"
        refusal = Refusal(ErrorCode.INVALID_REQUEST, text)
    return AddRaftVoterResponse(error_code=refusal.error_code, error_message=refusal.message)


def remove_raft_voter(
    context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Refuse to remove a voter, because the set of voters can't change.

    A request with invalid fields gets the error for the first of these fields instead.
    """
    refusal = _voter_refusal(context.node, request, "removing")
    return RemoveRaftVoterResponse(error_code=refusal.error_code, error_message=refusal.message)


def _voter_refusal(
    node: Node, request: AddRaftVoterRequest | RemoveRaftVoterRequest, action: str
) -> Refusal:
    """Return the first reason to refuse a change of voters, in Kafka's order of checks."""
    cluster_id = request.cluster_id
    if cluster_id is not None and cluster_id != node.cluster_id:
        text = f'The given id "{cluster_id}" doesn\'t match the cluster id "{node.cluster_id}"'
        return Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
    if request.voter_id < 0 or request.voter_directory_id == NO_UUID:
        word = "Add" if action == "adding" else "Remove"
        return Refusal(
            ErrorCode.INVALID_REQUEST, f"{word} voter request didn't include a valid voter"
        )
    text = f"Cluster doesn't support {action} voter because the kraft.version feature is 0"
    return Refusal(ErrorCode.UNSUPPORTED_VERSION, text)


def unregister_broker(
    context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Refuse the request, because this broker is running and no other broker is registered."""
    broker_id, node_id = request.broker_id, context.node.node_id
    if broker_id == node_id:
        text = f"Broker ID {broker_id} is this broker and can't be unregistered"
        return UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
    text = f"Broker ID {broker_id} is not currently registered"
    return UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=text
    )


# -- features ------------------------------------------------------------------------------------


def update_features(
    context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Accept updates of features that are already at the requested level.

    If any update is invalid or would change a feature's level, all updates are refused.
    """
    try:
        for update in request.feature_updates:
            _ensure_unchanged(context.node, update, _kind_of(context, update))
    except Refusal as refusal:
        text = "The update failed for all features since the following feature had an error: "
        return UpdateFeaturesResponse(
            error_code=refusal.error_code, error_message=f"{text}{refusal.message}"
        )
    return UpdateFeaturesResponse(
        results=[
            UpdatedFeature(feature=name, error_message="NONE")
            for name in dict.fromkeys(update.feature for update in request.feature_updates)
        ],
    )


def _kind_of(context: RequestContext, update: FeatureUpdate) -> int:
    """Return the upgrade type of an update.

    In version 0, the field `allow_downgrade` selects the type.
    """
    if context.version >= 1:
        return update.upgrade_type
    return _DOWNGRADE if update.allow_downgrade else _UPGRADE


def _ensure_unchanged(node: Node, update: FeatureUpdate, kind: int) -> None:
    """Raise Refusal if the update is invalid or the feature isn't at the requested level."""
    level, name = update.max_version_level, update.feature
    if kind not in (_UPGRADE, _DOWNGRADE, _DOWNGRADE_WITH_LOSS):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    feature = next((row for row in FEATURES if row[0] == name), None)
    if feature is None and level == 0:
        raise _invalid(update, f"Feature {name} not found.")
    if feature is None:
        raise _invalid(update, f"Local controller {node.node_id} does not support this feature.")
    _, first, last = feature
    if not first <= level <= last:
        text = f"Local controller {node.node_id} only supports versions {first}-{last}"
        raise _invalid(update, text)
    if level < last:
        raise _downgrade(update, kind, last)


def _downgrade(update: FeatureUpdate, kind: int, current: int) -> Refusal:
    if kind == _UPGRADE:
        return _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to"
            " either safe or unsafe downgrade.",
        )
    if update.feature != METADATA_VERSION:
        return _invalid(update, f"This broker supports only level {current}.")
    reason = (
        "Refusing to perform the requested downgrade because it might delete metadata information."
        if kind == _DOWNGRADE
        else "Unsafe metadata downgrade is not supported in this version."
    )
    text = f"Unsupported metadata.version downgrade from {current} to {update.max_version_level}."
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"{text} {reason}")


def _invalid(update: FeatureUpdate, reason: str) -> Refusal:
    text = (
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}"
    )
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, text)


# Codes of election types: 0 elects the preferred replica, 1 any replica (unclean).
ELECTION_TYPES: Final = (0, 1)


def _exists(node: Node, topic: str, number: int) -> bool:
    info = node.topics.find(topic)
    return info is not None and number in numbers_of(info)


def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Report for each named partition that no election is needed, or that the partition is unknown.

    The response to a request for all partitions has only the names of the topics, without
    partitions.
    """
    if request.election_type not in ELECTION_TYPES:
        code, text = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        topics = request.topic_partitions or ()
        results = [failed_item(ElectionTopicResult, topic, code, text) for topic in topics]
        return ElectLeadersResponse(error_code=code, replica_election_results=results)
    if request.topic_partitions is None:
        results = [ElectionTopicResult(topic=name) for name in context.node.topics.names()]
        return ElectLeadersResponse(replica_election_results=results)
    results = []
    for topic in request.topic_partitions:
        result = ElectionTopicResult(topic=topic.topic)
        for number in topic.partitions:
            partition = ElectionPartitionResult(partition_id=number)
            set_error(partition, _election(context.node, topic.topic, number))
            result.partition_result.append(partition)
        results.append(result)
    return ElectLeadersResponse(replica_election_results=results)


def _election(node: Node, topic: str, number: int) -> Refusal:
    if _exists(node, topic, number):
        text = "Leader election not needed for topic partition."
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, text)
    topic_exists = node.topics.find(topic) is not None
    missing = f"partition as {topic}-{number}" if topic_exists else f"topic as {topic}"
    return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {missing}")


def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Accept reassignments to this broker alone, which change nothing; refuse all others."""
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


def _reassign(node: Node, topic: str, partition: ReassignablePartition) -> PartitionError:
    result = PartitionError(partition_index=partition.partition_index)
    with errors_in(result):
        if not _exists(node, topic, partition.partition_index):
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
        if partition.replicas is None:
            raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        ensure_brokers(partition.replicas, node.node_id)
    return result


def list_partition_reassignments(
    _context: RequestContext, _request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Return an empty list, because no reassignment is ever in progress."""
    return ListPartitionReassignmentsResponse()


def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Accept moves to the only log directory, which change nothing; refuse all other moves."""
    node = context.node

    def code_of(path: str, topic: str, number: int) -> ErrorCode:
        if path.rstrip("/") != node.log_dir.path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        is_there = _exists(node, topic, number)
        return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return _log_dir_results(request, code_of)


def _log_dir_results(
    request: AlterReplicaLogDirsRequest, code_of: Callable[[str, str, int], ErrorCode]
) -> AlterReplicaLogDirsResponse:
    """Return the response. `code_of(path, topic, partition)` returns a partition's error code."""
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = AlterReplicaLogDirTopicResult(topic_name=topic.name)
            results.setdefault(topic.name, result).partitions.extend(
                PartitionCode(
                    partition_index=number,
                    error_code=code_of(directory.path, topic.name, number),
                )
                for number in topic.partitions
            )
    return AlterReplicaLogDirsResponse(results=list(results.values()))


UNKNOWN_BYTES: Final = -1


async def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | LargeResponse:
    """Describe the log directory with the sizes of the requested partitions.

    If the request's list is null, all partitions are described. Unknown partitions, and partitions
    without a directory, are left out.
    """
    node = context.node
    env, path, topics = node.env, node.log_dir.path, dict(node.topics.all())

    def describe() -> DescribeLogDirsResult:
        sizes, (total, usable) = measure(env, path, _partitions_of(topics, request))
        return DescribeLogDirsResult(
            log_dir=path,
            topics=_topics(sizes),
            total_bytes=total,
            usable_bytes=usable,
        )

    result = await node.reads.run(describe)
    return large_if_many(DescribeLogDirsResponse(results=[result]), result.topics)


def _partitions_of(
    topics: Mapping[str, TopicInfo], request: DescribeLogDirsRequest
) -> list[TopicPartition]:
    if request.topics is None:
        names = {(name, number) for name, info in topics.items() for number in info.present}
    else:
        names = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    return sorted(
        TopicPartition(name, number)
        for name, number in names
        if name in topics and number in topics[name].present
    )


def measure(
    env: Env, directory: str, names: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], tuple[int, int]]:
    """Return the log sizes of partitions, and the volume's total and usable size, in bytes.

    If `env.files` is not an `OsFileSystem`, the volume's sizes are UNKNOWN_BYTES. Call this
    function in a worker thread, because it waits for the disk.
    """
    sizes = {name: sum(log_files.log_sizes(env.files, f"{directory}/{name}")) for name in names}
    return sizes, _volume(env, directory)


def _volume(env: Env, path: str) -> tuple[int, int]:
    if not isinstance(env.files, OsFileSystem):
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    volume = os.statvfs(path)
    return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize


def _topics(sizes: Mapping[TopicPartition, int]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for name, size in sizes.items():
        topic = topics.setdefault(name.topic, DescribeLogDirsTopic(name=name.topic))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=name.partition, partition_size=size, offset_lag=0
            )
        )
    return list(topics.values())


def guard_alter_replica_log_dirs(
    access: Access, request: AlterReplicaLogDirsRequest
) -> Guarded[AlterReplicaLogDirsRequest]:
    """Require ALTER on the cluster."""
    if access.may_cluster(Operation.ALTER):
        return request, None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None, Denied.whole(_log_dir_results(request, lambda _path, _topic, _number: code))
