"""DescribeGroups and similar requests for groups that can't be described."""

import asyncio

from tests.worlds.brokers.running import node_fixture

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    SHARE_GROUP_DESCRIBE,
)
from tidelog.protocol.messages.classic_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from tidelog.protocol.schema import NO_OPERATIONS
from tidelog.server.api.classic_groups import describe_groups
from tidelog.server.api.context import RequestContext
from tidelog.server.api.modern_groups import consumer_group_describe, share_group_describe
from tidelog.server.api.node import ClientInfo, Node

node = node_fixture()


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
