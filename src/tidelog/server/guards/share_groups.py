"""Guards of share groups (KIP-932). Source: Kafka 4.3's KafkaApis."""

from collections.abc import Iterator
from typing import Final

from tidelog.protocol.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidelog.server.guards.common import DENIED_TEXT, GROUP_DENIED, TOPIC_DENIED, Asker, then
from tidelog.server.handlers.groups import GROUP_OPERATIONS
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation, ResourceType

_HIDDEN: Final = "The group described uses topics that the client is not authorized to describe."


def share_group_heartbeat(asker: Asker, request: ShareGroupHeartbeatRequest) -> Answer:
    """READ on the group, DESCRIBE on each topic named."""
    code = 0
    if not asker.may_group(Operation.READ, request.group_id):
        code = GROUP_DENIED
    elif not all(_may_see(asker, name) for name in request.subscribed_topic_names or ()):
        code = TOPIC_DENIED
    if not code:
        return asker.go_on(request)
    return ShareGroupHeartbeatResponse(
        error_code=code, error_message=None, member_id=None, assignment=None
    )


def _may_see(asker: Asker, name: str) -> bool:
    return asker.may_topic(Operation.DESCRIBE, name)


def share_group_describe(asker: Asker, request: ShareGroupDescribeRequest) -> Answer:
    """DESCRIBE on each group, and on all topics that its members read or ask for."""
    request.group_ids, denied = asker.split_groups(request.group_ids, Operation.DESCRIBE)

    def change(said: ShareGroupDescribeResponse) -> None:
        for group in said.groups:
            if request.include_authorized_operations and not group.error_code:
                found = asker.bits(ResourceType.GROUP, group.group_id, GROUP_OPERATIONS)
                group.authorized_operations = found
        said.groups = [_shown(asker, group) for group in said.groups]
        said.groups += [
            DescribedShareGroup(
                error_code=GROUP_DENIED, error_message=DENIED_TEXT[GROUP_DENIED], group_id=name
            )
            for name in dict.fromkeys(denied)
        ]

    return then(asker.go_on(request), change)


def _shown(asker: Asker, group: DescribedShareGroup) -> DescribedShareGroup:
    """A group, or nothing of it but its name."""
    if all(_may_see(asker, name) for name in set(_topics_of(group))):
        return group
    return DescribedShareGroup(
        error_code=TOPIC_DENIED, error_message=_HIDDEN, group_id=group.group_id
    )


def _topics_of(group: DescribedShareGroup) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        yield from (topic.topic_name for topic in member.assignment.topic_partitions)
