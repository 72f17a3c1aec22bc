"""Guards of the consumer protocol of groups (KIP-848). Source: Kafka 4.3's KafkaApis."""

from collections.abc import Iterator

from tidelog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tidelog.server.guards.assigned_groups import Shown, heartbeat_refusal
from tidelog.server.guards.common import Asker, then
from tidelog.server.requests import Answer
from tidelog.server.security.authorizer import Operation


def consumer_group_heartbeat(asker: Asker, request: ConsumerGroupHeartbeatRequest) -> Answer:
    """READ on the group, DESCRIBE on each topic named; expressions find what may be seen."""
    code = heartbeat_refusal(asker, request.group_id, request.subscribed_topic_names)
    if not code:
        return asker.go_on(request)
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=None, member_id=None, assignment=None
    )


def consumer_group_describe(asker: Asker, request: ConsumerGroupDescribeRequest) -> Answer:
    """DESCRIBE on each group, and on all topics that its members read or ask for."""
    request.group_ids, denied = asker.split_groups(request.group_ids, Operation.DESCRIBE)
    shown = Shown(asker, _topics_of, _refused)

    def change(said: ConsumerGroupDescribeResponse) -> None:
        with_operations = request.include_authorized_operations
        said.groups = shown.groups(said.groups, denied, with_operations=with_operations)

    return then(asker.go_on(request), change)


def _refused(name: str, code: int, text: str) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error_code=code, error_message=text, group_id=name)


def _topics_of(group: DescribedConsumerGroup) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        for part in (member.assignment, member.target_assignment):
            yield from (topic.topic_name for topic in part.topic_partitions)
