"""Controllers and features, of a broker that is its own controller: 55, 57, 64, 80 and 81.

The broker votes alone, on a metadata log that has no records. A feature stays at the level that
this release has: what changes nothing is done, everything else is refused.

Source: Kafka's protocol guide; answers of one Kafka 4.3 node that is broker and controller.
"""

from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FeatureUpdate,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
    QuorumTopic,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdatedFeature,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.errors import Refusal
from tidelog.server.handlers.api_versions import FEATURES
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.storage.files import CLUSTER_METADATA_TOPIC

METADATA_VERSION: Final = "metadata.version"
_NOT_HERE: Final = "This server does not host this topic-partition."
# The usual name of that by which controllers reach each other: we have none.
_LISTENER: Final = "CONTROLLER"
# The only one: the broker's own election, which nobody else took part in.
_EPOCH: Final = 1
_UPGRADE: Final = 1
_DOWNGRADE: Final = 2
_DOWNGRADE_WITH_LOSS: Final = 3


# -- the quorum ----------------------------------------------------------------------------------


def describe_quorum(
    context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """One voter, which leads; errors for partitions that are not the metadata's."""
    if not _is_metadata(request.topics):
        return DescribeQuorumResponse(
            error_code=0,
            error_message="",
            topics=[_unknown(topic) for topic in request.topics],
        )
    partition = _described(context.node, with_times=context.version >= 1)
    topic = DescribedQuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    nodes = [_node(context.node)]
    return DescribeQuorumResponse(error_code=0, error_message="", topics=[topic], nodes=nodes)


def _is_metadata(topics: list[QuorumTopic]) -> bool:
    """Whether the metadata's one partition is asked about, and nothing else."""
    asked = [(t.topic_name, part.partition_index) for t in topics for part in t.partitions]
    return len(topics) == 1 and asked == [(CLUSTER_METADATA_TOPIC, 0)]


def _unknown(topic: QuorumTopic) -> DescribedQuorumTopic:
    return DescribedQuorumTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribedQuorumPartition(
                partition_index=each.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=_NOT_HERE,
            )
            for each in topic.partitions
        ],
    )


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
        error_code=0,
        error_message="",
        leader_id=node.node_id,
        leader_epoch=_EPOCH,
        high_watermark=0,
        current_voters=[voter],
        observers=[],
    )


def _node(node: Node) -> QuorumNode:
    places = node.listeners or {"PLAINTEXT": node.address}
    return QuorumNode(
        node_id=node.node_id,
        listeners=[
            QuorumListener(name=name, host=place.host, port=place.port)
            for name, place in places.items()
        ],
    )


def add_raft_voter(context: RequestContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """Refused: nobody votes but the broker. What is wrong with the request is said first."""
    why = _voting_refused(context.node, request, "adding")
    reachable = {listener.name.upper() for listener in request.listeners}
    if why.error_code == ErrorCode.UNSUPPORTED_VERSION and _LISTENER not in reachable:
        text = f"Add voter request didn't include an endpoint for the listener {_LISTENER}"
        why = Refusal(ErrorCode.INVALID_REQUEST, text)
    return AddRaftVoterResponse(error_code=why.error_code, error_message=why.message)


def remove_raft_voter(
    context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Refused likewise."""
    why = _voting_refused(context.node, request, "removing")
    return RemoveRaftVoterResponse(error_code=why.error_code, error_message=why.message)


def _voting_refused(
    node: Node, request: AddRaftVoterRequest | RemoveRaftVoterRequest, doing: str
) -> Refusal:
    """The first of the reasons, in Kafka's order."""
    asked = request.cluster_id
    if asked is not None and asked != node.cluster_id:
        text = f'The given id "{asked}" doesn\'t match the cluster id "{node.cluster_id}"'
        return Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
    if request.voter_id < 0 or request.voter_directory_id == NO_UUID:
        word = "Add" if doing == "adding" else "Remove"
        return Refusal(
            ErrorCode.INVALID_REQUEST, f"{word} voter request didn't include a valid voter"
        )
    text = f"Cluster doesn't support {doing} voter because the kraft.version feature is 0"
    return Refusal(ErrorCode.UNSUPPORTED_VERSION, text)


def unregister_broker(
    context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Refused: no other broker is known, and this one is here."""
    asked, node_id = request.broker_id, context.node.node_id
    if asked == node_id:
        text = f"Broker ID {asked} is this broker, which is running"
        return UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
    text = f"Broker ID {asked} is not currently registered"
    return UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=text
    )


# -- features ------------------------------------------------------------------------------------


def update_features(
    context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Say of each feature that it is at that level; refuse all where one would change."""
    try:
        for update in request.feature_updates:
            _ensure_unchanged(context.node, update, _kind_of(context, update))
    except Refusal as why:
        text = "The update failed for all features since the following feature had an error: "
        return UpdateFeaturesResponse(
            error_code=why.error_code, error_message=f"{text}{why.message}"
        )
    return UpdateFeaturesResponse(
        error_code=0,
        results=[
            UpdatedFeature(feature=name, error_code=0, error_message="NONE")
            for name in dict.fromkeys(update.feature for update in request.feature_updates)
        ],
    )


def _kind_of(context: RequestContext, update: FeatureUpdate) -> int:
    """Up or down, as the version says it."""
    if context.version >= 1:
        return update.upgrade_type
    return _DOWNGRADE if update.allow_downgrade else _UPGRADE


def _ensure_unchanged(node: Node, update: FeatureUpdate, kind: int) -> None:
    """Raise Refusal, with Kafka's words, where the feature is not at that level."""
    level, name = update.max_version_level, update.feature
    if kind not in (_UPGRADE, _DOWNGRADE, _DOWNGRADE_WITH_LOSS):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    found = next((row for row in FEATURES if row[0] == name), None)
    if found is None and level == 0:
        raise _invalid(update, f"Feature {name} not found.")
    if found is None:
        raise _invalid(update, f"Local controller {node.node_id} does not support this feature.")
    _, first, last = found
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
        return _invalid(update, f"This broker has it at {current} and at no other level.")
    why = (
        "Refusing to perform the requested downgrade because it might delete metadata information."
        if kind == _DOWNGRADE
        else "Unsafe metadata downgrade is not supported in this version."
    )
    text = f"Unsupported metadata.version downgrade from {current} to {update.max_version_level}."
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"{text} {why}")


def _invalid(update: FeatureUpdate, why: str) -> Refusal:
    text = f"Invalid update version {update.max_version_level} for feature {update.feature}. {why}"
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, text)
