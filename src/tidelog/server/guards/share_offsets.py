"""Guards of what tools do to share groups (KIP-932). Source: Kafka 4.3's KafkaApis."""

from collections.abc import Iterable

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.guards.common import DENIED_TEXT, Asker, then
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation
from tidelog.server.shares.kept import UNKNOWN_START

_DENIED_TOPIC = DENIED_TEXT[ErrorCode.TOPIC_AUTHORIZATION_FAILED]
_DENIED_GROUP = DENIED_TEXT[ErrorCode.GROUP_AUTHORIZATION_FAILED]


def describe_share_group_offsets(asker: Asker, request: DescribeShareGroupOffsetsRequest) -> Answer:
    """DESCRIBE on each group and on each topic; of all its topics those that may be seen."""
    asked = request.groups
    denied: dict[int, list[DescribeShareGroupOffsetsRequestTopic]] = {}
    for place, group in enumerate(asked):
        group.topics, denied[place] = _seen(asker, group)
    may = [asker.may_group(Operation.DESCRIBE, group.group_id) for group in asked]
    request.groups = [group for group, is_allowed in zip(asked, may, strict=True) if is_allowed]

    def change(said: DescribeShareGroupOffsetsResponse) -> None:
        told = iter(said.groups)
        said.groups = []
        for place, group in enumerate(asked):
            if may[place]:
                shown = _shown(asker, group, next(told))
                shown.topics += [_denied_described(topic) for topic in denied[place]]
                said.groups.append(shown)
            else:
                said.groups.append(
                    DescribeShareGroupOffsetsResponseGroup(
                        group_id=group.group_id,
                        error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
                        error_message=_DENIED_GROUP,
                    )
                )

    return then(asker.go_on(request), change)


def _seen(
    asker: Asker, group: DescribeShareGroupOffsetsRequestGroup
) -> tuple[
    list[DescribeShareGroupOffsetsRequestTopic] | None,
    list[DescribeShareGroupOffsetsRequestTopic],
]:
    """The topics asked for that may be told of, None for all; and the others."""
    if group.topics is None:
        return None, []
    return asker.split(group.topics, Operation.DESCRIBE, lambda topic: topic.topic_name)


def _shown(
    asker: Asker,
    asked: DescribeShareGroupOffsetsRequestGroup,
    told: DescribeShareGroupOffsetsResponseGroup,
) -> DescribeShareGroupOffsetsResponseGroup:
    if asked.topics is None:
        told.topics = [topic for topic in told.topics if asker.may_describe(topic.topic_name)]
    return told


def _denied_described(
    topic: DescribeShareGroupOffsetsRequestTopic,
) -> DescribeShareGroupOffsetsResponseTopic:
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=number,
                start_offset=UNKNOWN_START,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=_DENIED_TOPIC,
            )
            for number in topic.partitions
        ],
    )


def alter_share_group_offsets(asker: Asker, request: AlterShareGroupOffsetsRequest) -> Answer:
    """READ on the group and on each topic."""
    if not asker.may_group(Operation.READ, request.group_id):
        return AlterShareGroupOffsetsResponse(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, error_message=_DENIED_GROUP
        )
    request.topics, denied = asker.split(
        request.topics, Operation.READ, lambda topic: topic.topic_name
    )

    def change(said: AlterShareGroupOffsetsResponse) -> None:
        if not said.error_code:
            said.responses += _denied_altered(asker, denied)

    return then(asker.go_on(request), change)


def _denied_altered(
    asker: Asker,
    topics: Iterable[AlterShareGroupOffsetsRequestTopic],
) -> list[AlterShareGroupOffsetsResponseTopic]:
    """Refusals, which Kafka gives with the ids of topics."""
    ids = {name: info.topic_id for name, info in asker.context.node.topics.all().items()}
    return [
        AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name,
            topic_id=ids.get(topic.topic_name) or NO_UUID,
            partitions=[
                AlterShareGroupOffsetsResponsePartition(
                    partition_index=each.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=_DENIED_TOPIC,
                )
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def delete_share_group_offsets(asker: Asker, request: DeleteShareGroupOffsetsRequest) -> Answer:
    """DELETE on the group, READ on each topic."""
    if not asker.may_group(Operation.DELETE, request.group_id):
        return DeleteShareGroupOffsetsResponse(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, error_message=_DENIED_GROUP
        )
    request.topics, denied = asker.split(
        request.topics, Operation.READ, lambda topic: topic.topic_name
    )

    def change(said: DeleteShareGroupOffsetsResponse) -> None:
        if said.error_code:
            return
        said.responses += [
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=_DENIED_TOPIC,
            )
            for topic in denied
        ]

    return then(asker.go_on(request), change)
