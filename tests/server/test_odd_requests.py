"""Odd requests that Kafka leaves unanswered or fails to process get a response."""

from collections.abc import Iterator
from typing import Final

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until_equal

from tidelog.protocol.messages import ALTER_CONFIGS, FIND_COORDINATOR, JOIN_GROUP, LEAVE_GROUP
from tidelog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
)
from tidelog.protocol.messages.configs import AlterConfigsRequest, AlterConfigsResource
from tidelog.protocol.messages.shared import ConfigValue, GroupProtocol
from tidelog.server.embedded import Broker

GROUP: Final = "odd"
INVALID_REQUEST, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 42, 79, 82


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as found:
        asked = FindCoordinatorRequest(coordinator_keys=[GROUP])
        until_equal(0, lambda: found.ask(FIND_COORDINATOR, 4, asked).coordinators[0].error_code)
        yield found


def join(
    client: RawClient,
    version: int,
    *protocols: tuple[str, bytes],
    member_id: str = "",
    instance_id: str | None = None,
) -> JoinGroupResponse:
    message = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[GroupProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )
    return client.ask(JOIN_GROUP, version, message)


@pytest.mark.parametrize("version", [0, 2, 3])
def test_a_protocol_that_is_named_twice(client: RawClient, version: int) -> None:
    told = join(client, version, ("range", b"a"), ("range", b"b"))
    assert (told.error_code, told.protocol_name) == (0, "range")


def test_a_pending_member_that_joins_with_an_instance_id_is_refused(client: RawClient) -> None:
    pending = join(client, 9, ("range", b""))
    assert pending.error_code == MEMBER_ID_REQUIRED
    told = join(client, 9, ("range", b""), member_id=pending.member_id, instance_id="seat")
    assert told.error_code in {25, FENCED_INSTANCE_ID}


@pytest.mark.parametrize("subscription", [b"", b"\0", b"\0\0\xff\xff\xff\xff", b"junk" * 9])
def test_a_member_with_an_invalid_subscription_can_join_and_leave(
    client: RawClient, subscription: bytes
) -> None:
    told = join(client, 3, ("range", subscription))
    assert told.error_code == 0
    member = MemberIdentity(member_id=told.member_id, group_instance_id=None)
    left = client.ask(LEAVE_GROUP, 5, LeaveGroupRequest(group_id=GROUP, members=[member]))
    assert (left.error_code, left.members[0].error_code) == (0, 0)


def test_a_resource_that_is_named_twice(client: RawClient) -> None:
    client.auto_create("t")
    given = [ConfigValue(name="retention.ms", value="5")]
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=given)
    told = client.ask(ALTER_CONFIGS, 2, AlterConfigsRequest(resources=[resource, resource]))
    assert {each.error_code for each in told.responses} == {INVALID_REQUEST}
