"""Real Kafka and our broker give the same responses to ShareFetch and ShareAcknowledge."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest
from tests.peers.sharing_members import Side
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.either import kafka_fixture

from tidelog.protocol.messages import SHARE_ACKNOWLEDGE
from tidelog.protocol.messages.share_fetch import ShareAcknowledgeRequest, ShareFetchTopic

if TYPE_CHECKING:
    from tidelog.server.embedded import Broker as Ours

pytestmark = pytest.mark.kafka

SETTINGS: Final = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.assignment.interval.ms": "0",
    # Timeouts so long that no member expires on a busy machine, and no lock times out.
    "group.share.max.record.lock.duration.ms": "3600000",
    "group.share.record.lock.duration.ms": "3600000",
    "group.share.session.timeout.ms": "600000",
    "group.share.max.session.timeout.ms": "600000",
}
INVALID_RECORD_STATE: Final = 121
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
kafka = kafka_fixture(SETTINGS)
ours = broker_fixture({"node.id": "1", **SETTINGS}, is_temporary=True, scope="module")


# -- stories -------------------------------------------------------------------------------------


def members(it: Side) -> Iterator[object]:
    it.produce(10, 10, 10)
    one, two = it.member(), it.member()
    yield one.begin(max_records=5)
    yield one.fetch(max_records=5)
    yield two.begin()
    yield one.say((0, 4, [ACCEPT]), (5, 9, [RELEASE]))
    yield two.fetch()
    yield one.say((5, 9, [ACCEPT]))
    yield one.fetch((10, 19, [ACCEPT]))
    yield two.fetch((5, 9, [ACCEPT]), (20, 29, [REJECT]))
    it.produce(3)
    yield one.fetch()


def each_record(it: Side) -> Iterator[object]:
    it.produce(10)
    one = it.member()
    yield one.begin()
    yield one.say((0, 5, [ACCEPT, RELEASE, REJECT, GAP, RELEASE, ACCEPT]))
    yield one.fetch()
    yield one.say((1, 1, [RELEASE]), (4, 4, [ACCEPT]), (6, 9, [RELEASE]))
    yield one.fetch()


def strict(it: Side) -> Iterator[object]:
    it.produce(10, 10)
    one, two = it.member(), it.member()
    yield one.begin(max_records=4, share_acquire_mode=1)
    yield two.begin(max_records=8, share_acquire_mode=1)
    yield one.say((0, 3, [RELEASE]))
    yield two.fetch(max_records=3, share_acquire_mode=1)
    yield two.fetch(max_records=100, share_acquire_mode=1)


def nothing(it: Side) -> Iterator[object]:
    """A request for 0 bytes or 0 records gets its response at once, without records."""
    it.produce(10)
    one = it.member()
    yield one.begin()
    yield one.say((0, 9, [RELEASE]))
    yield one.fetch(max_bytes=0)
    yield one.fetch(max_records=0)
    yield one.fetch()
    yield one.fetch((0, 4, [RELEASE]), max_bytes=0)
    yield one.fetch()


def too_often(it: Side) -> Iterator[object]:
    it.set(**{"share.delivery.count.limit": "2"})
    it.produce(10)
    one = it.member()
    yield one.begin()
    yield one.say((0, 9, [RELEASE]))
    yield one.fetch()
    yield one.say((0, 9, [RELEASE]))
    yield one.fetch()


def isolated(it: Side) -> Iterator[object]:
    it.produce(16)
    one = it.member()
    told = one.begin()
    for _ in range(12):
        yield told
        lent = [each for partition in told[1] for each in partition[3]]
        yield one.say(*((first, last, [RELEASE]) for first, last, _ in lent))
        told = one.fetch()


def many(it: Side) -> Iterator[object]:
    it.set(**{"share.partition.max.record.locks": "100"})
    it.produce(60, 60, 60)
    one, two = it.member(), it.member()
    yield one.begin(max_records=50)
    yield one.fetch(max_records=1000)
    yield two.fetch()
    yield one.say((10, 19, [RELEASE]))
    yield two.fetch()
    yield one.say((0, 9, [ACCEPT]))
    yield two.fetch()
    yield two.say((10, 19, [ACCEPT]))
    yield two.fetch()


def wrong(it: Side) -> Iterator[object]:
    it.produce(10, 10)
    one, two = it.member(), it.member()
    yield one.begin(max_records=5)
    yield two.begin()
    yield one.say((5, 4, [ACCEPT]))
    yield one.say((0, 3, []))
    yield one.say((0, 3, [ACCEPT, ACCEPT]))
    yield one.say((0, 3, [5]))
    yield one.say((0, 3, [-1]))
    yield one.say((4, 5, [ACCEPT]), (0, 3, [ACCEPT]))
    yield one.say((0, 9, [RENEW]))
    yield one.say((0, 20, [ACCEPT]))
    yield one.say((20, 29, [ACCEPT]))
    yield one.say((5, 14, [ACCEPT]))
    yield one.say((10, 14, [ACCEPT]))
    yield one.say((0, 4, [ACCEPT]), (4, 9, [ACCEPT]))
    yield one.say((0, 9, [ACCEPT]))
    yield one.say((0, 9, [ACCEPT]))
    yield one.fetch((3, 5, [ACCEPT]))
    yield one.fetch((12, 15, [ACCEPT]))
    yield two.say((10, 19, [ACCEPT]))
    yield two.say((10, 19, [ACCEPT]))


def sessions(it: Side) -> Iterator[object]:
    it.produce(10)
    one, two = it.member(), it.member()
    one.epoch = 5
    yield one.fetch()
    yield one.say((0, 0, [ACCEPT]))
    one.epoch = -1
    yield one.fetch()
    one.epoch = -1
    yield one.say((0, 0, [ACCEPT]))
    one.epoch = 0
    yield one.fetch((0, 0, [ACCEPT]))
    one.epoch = 0
    yield one.say((0, 0, [ACCEPT]))
    one.epoch = 0
    yield one.begin()
    one.epoch += 1
    yield one.fetch()
    yield one.say((0, 0, [ACCEPT]))
    yield one.fetch(member_id=None)
    yield one.fetch(member_id="x" * 37)
    yield one.fetch(group_id=None)
    one.epoch = -1
    yield one.fetch((0, 4, [ACCEPT]))
    yield two.begin()
    two.epoch = -1
    yield two.say((5, 6, [ACCEPT]))
    yield two.say((7, 7, [ACCEPT]))
    two.epoch = 0
    yield two.begin()


def renewed(it: Side) -> Iterator[object]:
    it.produce(10)
    one = it.member()
    yield one.begin()
    yield one.say((0, 4, [RENEW]), is_renew_ack=True)
    yield one.say((0, 4, [RENEW]))
    epoch = one.epoch
    yield one.fetch((0, 4, [RENEW]), is_renew_ack=True)
    one.epoch = epoch
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
    yield one.fetch((0, 4, [RENEW]), is_renew_ack=True, **nothing)
    yield one.fetch((0, 4, [RENEW, ACCEPT, RENEW, ACCEPT, RENEW]), is_renew_ack=True, **nothing)
    yield one.say((1, 1, [ACCEPT]))
    it.set(**{"share.renew.acknowledge.enable": "false"})
    yield one.say((2, 2, [RENEW]), is_renew_ack=True)
    yield one.say((0, 0, [ACCEPT]))


def deleted(it: Side) -> Iterator[object]:
    it.produce(10, 10, 10)
    one = it.member()
    yield one.begin(max_records=15)
    it.delete_below(12)
    yield one.fetch()
    yield one.say((0, 9, [ACCEPT]))
    yield one.say((10, 19, [RELEASE]))
    # Kafka notices the deletion of the records below offset 12 only at the next fetch. So send a
    # fetch, which acquires no records.
    yield one.begin()


def timed_out(it: Side) -> Iterator[object]:
    it.set(**{"share.record.lock.duration.ms": "1000"})
    it.produce(10)
    one, two = it.member(), it.member()
    yield one.begin()
    yield two.begin()
    yield one.say((0, 9, [ACCEPT]))


def cut(it: Side) -> Iterator[object]:
    it.produce(*([10] * 10))
    one = it.member()
    yield one.begin(batch_size=25)
    yield one.say((0, 99, [RELEASE]))
    yield one.fetch(max_records=30)
    yield one.fetch(batch_size=1)


def elsewhere(it: Side) -> Iterator[object]:
    it.produce(1)
    one = it.member()
    yield one.begin()
    yield one.fetch(topics=one.topics([], partition=7))
    yield one.say(topics=[])


STORIES: Final = [
    members,
    each_record,
    strict,
    nothing,
    too_often,
    isolated,
    many,
    wrong,
    sessions,
    renewed,
    deleted,
    timed_out,
    cut,
    elsewhere,
]


def results_of(bootstrap: str, story: Callable[[Side], Iterator[object]]) -> list[object]:
    with closing(Side(bootstrap)) as side:
        return list(story(side))


@pytest.mark.parametrize("story", STORIES)
def test_both_brokers_give_the_same_responses(
    kafka: Broker, ours: "Ours", story: Callable[[Side], Iterator[object]]
) -> None:
    expected = results_of(kafka.bootstrap, story)
    assert results_of(ours.bootstrap_servers, story) == expected


def test_only_kafka_names_leader_0_in_an_error(kafka: Broker, ours: "Ours") -> None:
    """No broker here has id 0, yet franz-go would treat 0 as the leader after Kafka's error."""
    assert reported_leader(kafka.bootstrap) == (0, 0)
    assert reported_leader(ours.bootstrap_servers) == (-1, -1)


def reported_leader(bootstrap: str) -> tuple[int, int]:
    """Acknowledge records twice; return the leader that the second response names."""
    with closing(Side(bootstrap)) as it:
        it.produce(10)
        one = it.member()
        assert one.begin()
        assert one.say((5, 9, [ACCEPT])) == (0, [0])
        request = ShareAcknowledgeRequest(
            group_id=one.group,
            member_id=one.name,
            share_session_epoch=one.epoch,
            topics=[
                ShareFetchTopic(topic_id=each.topic_id, partitions=each.partitions)
                for each in one.topics([(5, 9, [RELEASE])])
            ],
        )
        (topic,) = one.client.ask(SHARE_ACKNOWLEDGE, 2, request).responses
        (told,) = topic.partitions
        assert told.error_code == INVALID_RECORD_STATE
        return told.current_leader.leader_id, told.current_leader.leader_epoch
