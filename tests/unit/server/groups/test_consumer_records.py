"""Records of consumer groups, as Kafka 4.3 wrote them, are read and written again."""

from typing import TypeVar
from uuid import UUID

import pytest

from tidelog.protocol.messages.modern_group_records import CONSUMER_MEMBER_VALUE
from tidelog.server.groups.modern_group import (
    ClassicPart,
    ConsumerGroup,
    MemberAssignment,
    ResolvedRegex,
    ShareAssignment,
    SharedTopic,
    ShareGroup,
    Subscription,
)
from tidelog.server.groups.modern_records import (
    AssignmentChange,
    Change,
    EpochChange,
    MemberChange,
    PartitionMetadataChange,
    RegexChange,
    SharedTopicsChange,
    TargetChange,
    TargetEpochChange,
    end_records,
    read_modern_change,
)

AnyGroupT = TypeVar("AnyGroupT", ConsumerGroup, ShareGroup)

SUBSCRIBED = b"\0\0\0\0\0\1\0\x06routes\xff\xff\xff\xff"
# A member record's last field is tagged and nullable; Kafka writes this field even if it is null.
MEMBERS = {
    "00000000047261770b2f3132372e302e302e310307726f75"
    "7465730673746f7073010000ea600001000100": Subscription(
        client_id="raw",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000,
        topics=frozenset({"routes", "stops"}),
    ),
    "000005736561740568657265047261770b2f3132372e302e302e310207726f75746573010000ea600672616e67650100"
    "0100": Subscription(
        instance_id="seat",
        rack_id="here",
        client_id="raw",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000,
        topics=frozenset({"routes"}),
        assignor="range",
    ),
    "00000000047261770b2f3132372e302e302e310207726f7574657301000075300001002101000927c0020672616e6765"
    "130000000000010006726f75746573ffffffff0000": Subscription(
        client_id="raw",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=30_000,
        topics=frozenset({"routes"}),
        classic=ClassicPart(600_000, (("range", SUBSCRIBED),)),
    ),
}


@pytest.mark.parametrize(("written", "asks"), MEMBERS.items())
def test_members_are_read_and_written_as_kafka_does(written: str, asks: Subscription) -> None:
    change = MemberChange("A", asks)
    record = change.record(ConsumerGroup("readers"))
    assert record.value == bytes.fromhex(written)
    found = read_modern_change(5, record.key, record.value)
    assert found is not None
    assert (found.group_id, found.change) == ("readers", change)
    assert CONSUMER_MEMBER_VALUE.read(record.value)[0] == 0


TARGET = {UUID(int=1): frozenset({0})}


def test_the_end_of_a_consumer_group_deletes_each_of_its_records() -> None:
    """Otherwise a new group of the same name would get them at the next start."""
    group = ConsumerGroup("g")
    changes: list[Change[ConsumerGroup]] = [EpochChange(2), TargetEpochChange(2)]
    for member_id in ("A", "B"):
        changes += [
            MemberChange(member_id, Subscription(regex="r.*")),
            TargetChange(member_id, TARGET),
            AssignmentChange(member_id, MemberAssignment(epoch=2)),
        ]
    changes += [RegexChange("r.*", ResolvedRegex()), PartitionMetadataChange(is_there=True)]
    assert ended_keys(group, changes) == {change.record(group).key for change in changes}


def test_the_end_of_a_share_group_deletes_each_of_its_records() -> None:
    group = ShareGroup("g")
    changes: list[Change[ShareGroup]] = [EpochChange(2), TargetEpochChange(2)]
    for member_id in ("A", "B"):
        changes += [
            MemberChange(member_id, Subscription()),
            TargetChange(member_id, TARGET),
            AssignmentChange(member_id, ShareAssignment(epoch=2)),
        ]
    changes.append(SharedTopicsChange({UUID(int=1): SharedTopic("t", frozenset({0}))}))
    assert ended_keys(group, changes) == {change.record(group).key for change in changes}


def ended_keys(group: AnyGroupT, changes: list[Change[AnyGroupT]]) -> set[bytes]:
    """Apply the changes, and return the keys of the tombstones that then end the group."""
    for change in changes:
        change.apply(group)
    records = end_records(group)
    assert {record.value for record in records} == {None}
    return {record.key for record in records}
