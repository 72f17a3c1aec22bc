"""DescribeGroups and similar requests for groups that can't be described."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from tests.worlds.brokers.running import node_fixture

from tidelog.config import BrokerConfig
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import (
    BY_KEY,
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    SHARE_GROUP_DESCRIBE,
)
from tidelog.protocol.messages.classic_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from tidelog.protocol.messages.shared import DescribedPartitions
from tidelog.protocol.schema import NO_OPERATIONS
from tidelog.server.api.classic_groups import describe_groups
from tidelog.server.api.context import RequestContext
from tidelog.server.api.guards import Access
from tidelog.server.api.modern_groups import (
    consumer_group_describe,
    guard_consumer_group_describe,
    share_group_describe,
)
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.table import guard_of
from tidelog.server.broker import open_node
from tidelog.server.groups.requests import HeartbeatRequest
from tidelog.server.security.authorizer import ALL_USERS, WILDCARD, Acl, Authorizer
from tidelog.server.security.operations import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

node = node_fixture({"group.consumer.assignment.interval.ms": "0"})


def test_a_group_that_does_not_exist_has_no_operations(node: Node) -> None:
    here, operations = ClientInfo(1, "here"), {"include_authorized_operations": True}

    async def story() -> None:
        classic = await describe_groups(
            RequestContext(node, DESCRIBE_GROUPS, 6, None, here),
            DescribeGroupsRequest(groups=["none"], **operations),
        )
        consumer = await consumer_group_describe(
            RequestContext(node, CONSUMER_GROUP_DESCRIBE, 1, None, here),
            ConsumerGroupDescribeRequest(group_ids=["none"], **operations),
        )
        share = await share_group_describe(
            RequestContext(node, SHARE_GROUP_DESCRIBE, 1, None, here),
            ShareGroupDescribeRequest(group_ids=["none"], **operations),
        )
        assert isinstance(classic, DescribeGroupsResponse)
        assert isinstance(consumer, ConsumerGroupDescribeResponse)
        assert isinstance(share, ShareGroupDescribeResponse)
        for (group,) in (classic.groups, consumer.groups, share.groups):
            assert group.error_code != ErrorCode.NONE
            assert group.authorized_operations == NO_OPERATIONS

    asyncio.run(story())


def test_a_member_has_the_partitions_that_it_still_has_to_revoke(node: Node) -> None:
    async def story() -> list[tuple[str, list[int], list[int]]]:
        node.log_dir.create_topic("routes", partitions=2)
        await node.groups.topic.ensure_topic()
        first = HeartbeatRequest(
            group_id="g",
            member_id="A",
            rebalance_timeout_ms=60_000,
            topics=frozenset({"routes"}),
            owned={},
        )
        beat = node.groups.heartbeats.heartbeat
        joined = await beat(first)
        await beat(first._replace(member_id="B"))
        await beat(first._replace(epoch=joined.epoch, owned=joined.assignment))
        response = await consumer_group_describe(
            RequestContext(node, CONSUMER_GROUP_DESCRIBE, 1, None, ClientInfo(1, "here")),
            ConsumerGroupDescribeRequest(group_ids=["g"]),
        )
        assert isinstance(response, ConsumerGroupDescribeResponse)
        return [
            (
                member.member_id,
                [n for part in member.assignment.topic_partitions for n in part.partitions],
                [n for part in member.target_assignment.topic_partitions for n in part.partitions],
            )
            for member in response.groups[0].members
        ]

    (_, has, keeps), (_, nothing, gets) = sorted(asyncio.run(story()))
    assert (has, nothing) == ([0, 1], [])
    assert sorted(keeps + gets) == [0, 1]
    assert len(keeps) == 1


@pytest.mark.parametrize(
    ("request_kind", "names", "response_kind", "group_kind"),
    [
        (DescribeGroupsRequest, "groups", DescribeGroupsResponse, DescribedGroup),
        (
            ConsumerGroupDescribeRequest,
            "group_ids",
            ConsumerGroupDescribeResponse,
            DescribedConsumerGroup,
        ),
        (ShareGroupDescribeRequest, "group_ids", ShareGroupDescribeResponse, DescribedShareGroup),
    ],
)
def test_a_guard_adds_operations_only_to_groups_without_an_error(
    request_kind: type, names: str, response_kind: type, group_kind: type, tmp_path: Path
) -> None:
    (api,) = (each for each in BY_KEY.values() if each.request is request_kind)
    guard = guard_of(api.key)
    assert guard is not None
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    node = open_node(str(tmp_path), BrokerConfig.parse(settings)[0])
    try:
        access = Access(RequestContext(node, api, api.last, None, ClientInfo(1, "here")))
        _, denied = guard(
            access, request_kind(**{names: ["none", "some"]}, include_authorized_operations=True)
        )
        assert denied is not None
        failed = group_kind(group_id="none", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        response = denied.add_to(response_kind(groups=[failed, group_kind(group_id="some")]))
        assert isinstance(
            response,
            DescribeGroupsResponse | ConsumerGroupDescribeResponse | ShareGroupDescribeResponse,
        )
        found = [group.authorized_operations for group in response.groups]
    finally:
        node.close()
    assert found[0] == NO_OPERATIONS
    assert found[1] not in {NO_OPERATIONS, 0}


HIDDEN = DescribedAssignment(
    topic_partitions=[DescribedPartitions(topic_id=UUID(int=1), topic_name="hidden")]
)


@pytest.mark.parametrize(
    "member",
    [
        DescribedConsumer(subscribed_topic_names=["hidden"]),
        DescribedConsumer(assignment=HIDDEN),
        DescribedConsumer(target_assignment=HIDDEN),
    ],
    ids=["subscription", "assignment", "target"],
)
def test_a_consumer_group_with_a_hidden_topic_is_not_described(
    node: Node, member: DescribedConsumer
) -> None:
    """Without DESCRIBE on a topic, a client learns from no part of a member that it exists."""
    node.authorizer = Authorizer(
        [
            Acl(
                resource_type=kind,
                name=name,
                pattern=PatternType.LITERAL,
                principal=ALL_USERS,
                host=WILDCARD,
                operation=Operation.DESCRIBE,
                permission=Permission.ALLOW,
            )
            for kind, name in ((ResourceType.GROUP, WILDCARD), (ResourceType.TOPIC, "shown"))
        ]
    )
    here = ClientInfo(1, "here")
    access = Access(RequestContext(node, CONSUMER_GROUP_DESCRIBE, 1, None, here))
    request = ConsumerGroupDescribeRequest(group_ids=["open", "closed"])
    _, denied = guard_consumer_group_describe(access, request)
    groups = [
        DescribedConsumerGroup(
            group_id="open", members=[DescribedConsumer(subscribed_topic_names=["shown"])]
        ),
        DescribedConsumerGroup(group_id="closed", members=[member]),
    ]
    assert denied is not None
    response = denied.add_to(ConsumerGroupDescribeResponse(groups=groups))
    assert isinstance(response, ConsumerGroupDescribeResponse)
    assert [(group.error_code, len(group.members)) for group in response.groups] == [
        (ErrorCode.NONE, 1),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0),
    ]
