"""Records of consumer groups, as Kafka 4.3 wrote them, are read and written again."""

import pytest

from tidelog.protocol.messages.modern_group_records import CONSUMER_MEMBER_VALUE
from tidelog.server.groups.modern_group import ClassicPart, ConsumerGroup, Subscription
from tidelog.server.groups.modern_records import MemberChange, read_modern_change

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
