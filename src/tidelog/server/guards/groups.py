"""Guards of APIs about groups. Source: Kafka 4.3's KafkaApis."""

from typing import Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.protocol.messages.described_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.protocol.messages.groups import (
    GROUP_KEY_TYPE,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsRequest,
    OffsetFetchGroup,
    OffsetFetchGroupPartitionResponse,
    OffsetFetchGroupResponse,
    OffsetFetchGroupTopicResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResponse,
)
from tidelog.protocol.messages.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.server.guards.common import DENIED_TEXT, Asker, then, then_keep
from tidelog.server.handlers import offset_fetch as fetching
from tidelog.server.handlers.coordinator import (
    NO_NODE,
    SHARE_FIRST_VERSION,
    SHARE_KEY_TYPE,
    TRANSACTION_KEY_TYPE,
)
from tidelog.server.handlers.groups import GROUP_OPERATIONS, NULL_NAMES_FIRST_VERSION
from tidelog.server.handlers.offset_fetch import TOPIC_IDS_FIRST_VERSION
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation, ResourceType
from tidelog.types import NO_OFFSET

BATCHED_KEYS_FIRST_VERSION: Final = 4


def join_group(asker: Asker, request: JoinGroupRequest) -> Answer:
    """READ on the group."""
    if asker.may_group(Operation.READ, request.group_id):
        return asker.go_on(request)
    return JoinGroupResponse(
        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
        generation_id=-1,
        protocol_name="" if asker.context.version < NULL_NAMES_FIRST_VERSION else None,
    )


def sync_group(asker: Asker, request: SyncGroupRequest) -> Answer:
    """READ on the group."""
    if asker.may_group(Operation.READ, request.group_id):
        return asker.go_on(request)
    return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)


def heartbeat(asker: Asker, request: HeartbeatRequest) -> Answer:
    """READ on the group."""
    if asker.may_group(Operation.READ, request.group_id):
        return asker.go_on(request)
    return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)


def leave_group(asker: Asker, request: LeaveGroupRequest) -> Answer:
    """READ on the group."""
    if asker.may_group(Operation.READ, request.group_id):
        return asker.go_on(request)
    return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)


def describe_groups(asker: Asker, request: DescribeGroupsRequest) -> Answer:
    """DESCRIBE on each group."""
    request.groups, denied = asker.split_groups(request.groups, Operation.DESCRIBE)

    def change(said: DescribeGroupsResponse) -> None:
        if request.include_authorized_operations:
            for group in said.groups:
                if not group.error_code:
                    kind = ResourceType.GROUP
                    found = asker.bits(kind, group.group_id, GROUP_OPERATIONS)
                    group.authorized_operations = found
        said.groups.extend(
            DescribedGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=name)
            for name in dict.fromkeys(denied)
        )

    return then(asker.go_on(request), change)


def list_groups(asker: Asker, request: ListGroupsRequest) -> Answer:
    """DESCRIBE on the cluster, or on each group: the others are not named."""
    if asker.may_cluster(Operation.DESCRIBE):
        return asker.go_on(request)

    def passes(group: ListedGroup) -> bool:
        return asker.may_group(Operation.DESCRIBE, group.group_id)

    return then_keep(asker, asker.go_on(request), "groups", passes)


def delete_groups(asker: Asker, request: DeleteGroupsRequest) -> Answer:
    """DELETE on each group."""
    request.groups_names, denied = asker.split_groups(request.groups_names, Operation.DELETE)

    def add(said: DeleteGroupsResponse) -> None:
        said.results.extend(
            DeletableGroupResult(group_id=name, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for name in dict.fromkeys(denied)
        )

    return then(asker.go_on(request), add)


# -- FindCoordinator -----------------------------------------------------------------------------


def find_coordinator(asker: Asker, request: FindCoordinatorRequest) -> Answer:
    """DESCRIBE on each group or transactional id; CLUSTER_ACTION for share partitions."""
    if asker.context.version < BATCHED_KEYS_FIRST_VERSION:
        code = _key_code(asker, request.key_type, request.key)
        if not code:
            return asker.go_on(request)
        return FindCoordinatorResponse(
            error_code=code, error_message=DENIED_TEXT[code], node_id=NO_NODE, port=NO_NODE
        )
    asked = request.coordinator_keys
    codes = {key: _key_code(asker, request.key_type, key) for key in asked}
    request.coordinator_keys = [key for key in asked if not codes[key]]
    refused = [
        Coordinator(
            key=key,
            node_id=NO_NODE,
            port=NO_NODE,
            error_code=codes[key],
            error_message=DENIED_TEXT[codes[key]],
        )
        for key in asked
        if codes[key]
    ]
    if refused and not request.coordinator_keys:
        return FindCoordinatorResponse(coordinators=refused)

    def add(said: FindCoordinatorResponse) -> None:
        said.coordinators.extend(refused)

    return then(asker.go_on(request), add)


def _key_code(asker: Asker, kind: int, key: str) -> int:
    if kind == GROUP_KEY_TYPE and not asker.may_group(Operation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if kind == TRANSACTION_KEY_TYPE and not asker.may_transact(Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_share = kind == SHARE_KEY_TYPE and asker.context.version >= SHARE_FIRST_VERSION
    if is_share and not asker.may_cluster(Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return 0


# -- offsets -------------------------------------------------------------------------------------


def offset_commit(asker: Asker, request: OffsetCommitRequest) -> Answer:
    """READ on the group and on each topic."""
    if not asker.may_group(Operation.READ, request.group_id):
        topics = [
            _refused_commit(topic, ErrorCode.GROUP_AUTHORIZATION_FAILED) for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)
    by_id = asker.context.version >= TOPIC_IDS_FIRST_VERSION
    request.topics, denied = asker.split(
        request.topics,
        Operation.READ,
        lambda topic: asker.name_of(topic.topic_id) if by_id else topic.name,
    )
    refused = [_refused_commit(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in denied]
    if refused and not request.topics:
        return OffsetCommitResponse(topics=refused)

    def add(said: OffsetCommitResponse) -> None:
        said.topics.extend(refused)

    return then(asker.go_on(request), add)


def _refused_commit(topic: OffsetCommitRequestTopic, code: int) -> OffsetCommitResponseTopic:
    partitions = [
        OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
        for each in topic.partitions
    ]
    return OffsetCommitResponseTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def offset_delete(asker: Asker, request: OffsetDeleteRequest) -> Answer:
    """DELETE on the group, READ on each topic."""
    if not asker.may_group(Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    request.topics, denied = asker.split(request.topics, Operation.READ, lambda t: t.name)
    refused = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=each.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for each in topic.partitions
            ],
        )
        for topic in denied
    ]

    def add(said: OffsetDeleteResponse) -> None:
        if not said.error_code:
            said.topics.extend(refused)

    return then(asker.go_on(request), add)


def offset_fetch(asker: Asker, request: OffsetFetchRequest) -> Answer:
    """DESCRIBE on each group and topic; where all topics are asked for, the others aren't named."""
    if asker.context.version < fetching.BATCHED_FIRST_VERSION:
        return _fetch_single(asker, request)
    names = [group.group_id for group in request.groups]
    denied = dict.fromkeys(asker.split_groups(names, Operation.DESCRIBE)[1])
    request.groups = [group for group in request.groups if group.group_id not in denied]
    refused = {group.group_id: _cut_topics(asker, group) for group in request.groups}

    def change(said: OffsetFetchResponse) -> None:
        for group in said.groups:
            group.topics = [t for t in group.topics if _may_tell(asker, t.name, t.topic_id)]
            if not group.error_code:
                group.topics.extend(refused.get(group.group_id, ()))
        said.groups.extend(
            OffsetFetchGroupResponse(group_id=name, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for name in denied
        )

    return then(asker.go_on(request), change)


def _may_tell(asker: Asker, name: str, topic_id: UUID) -> bool:
    """Whether what was committed of a topic may be told; of an unknown id there is nothing."""
    found = name or asker.name_of(topic_id)
    return not found or asker.may_topic(Operation.DESCRIBE, found)


def _cut_topics(asker: Asker, group: OffsetFetchGroup) -> list[OffsetFetchGroupTopicResponse]:
    """Take denied topics out of a question; what is said of them."""
    if group.topics is None:
        return []
    by_id = asker.context.version >= fetching.TOPIC_IDS_FIRST_VERSION
    group.topics, denied = asker.split(
        group.topics,
        Operation.DESCRIBE,
        lambda topic: asker.name_of(topic.topic_id) if by_id else topic.name,
    )
    return [
        OffsetFetchGroupTopicResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetFetchGroupPartitionResponse(
                    partition_index=number,
                    committed_offset=NO_OFFSET,
                    metadata="",
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for number in topic.partition_indexes
            ],
        )
        for topic in denied
    ]


def _fetch_single(asker: Asker, request: OffsetFetchRequest) -> Answer:
    """The same for versions that ask for one group."""
    if not asker.may_group(Operation.DESCRIBE, request.group_id):
        # Before version 2 an error is told with each partition.
        topics = request.topics or [] if asker.context.version < 2 else []
        return OffsetFetchResponse(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            topics=[
                _refused_single(t.name, t.partition_indexes, ErrorCode.GROUP_AUTHORIZATION_FAILED)
                for t in topics
            ],
        )
    refused: list[OffsetFetchTopicResponse] = []
    if request.topics is not None:
        request.topics, denied = asker.split(request.topics, Operation.DESCRIBE, lambda t: t.name)
        refused = [
            _refused_single(t.name, t.partition_indexes, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for t in denied
        ]

    def change(said: OffsetFetchResponse) -> None:
        may = asker.may_topic
        said.topics = [t for t in said.topics if may(Operation.DESCRIBE, t.name)]
        said.topics.extend(refused)

    return then(asker.go_on(request), change)


def _refused_single(name: str, numbers: list[int], code: int) -> OffsetFetchTopicResponse:
    return OffsetFetchTopicResponse(
        name=name,
        partitions=[
            OffsetFetchPartitionResponse(
                partition_index=number, committed_offset=NO_OFFSET, metadata="", error_code=code
            )
            for number in numbers
        ],
    )
