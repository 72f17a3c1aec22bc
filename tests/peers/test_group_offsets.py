"""Kafka and our broker serve the groups of one directory by turns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.either import kafka_fixture
from tests.worlds.kafka.groups import commit, member
from tests.worlds.waiting import until, until_so

import tidelog
from tidelog.directory import Directory
from tidelog.env import os_env
from tidelog.protocol.messages import HEARTBEAT, OFFSET_COMMIT
from tidelog.protocol.messages.classic_groups import HeartbeatRequest
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.remote.group_lag import observe_directory, read_groups
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker as OurBroker
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.records import read_change
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import OFFSETS_TOPIC, IsolationLevel
from tidelog.types import TopicPartition as Partition

pytestmark = pytest.mark.kafka

TOPIC = "voyages"
PARTITIONS = 2
LATER = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}

# `__consumer_offsets` has several partitions.
kafka = kafka_fixture(
    {"offsets.topic.num.partitions": "5", "group.min.session.timeout.ms": "6000"},
    is_started=False,
    scope="function",
)


@contextmanager
def running(broker: Broker) -> Iterator[AdminClient]:
    """Run Kafka until the block ends."""
    broker.start()
    try:
        yield AdminClient(broker.client_config())
    finally:
        broker.stop()


@contextmanager
def ours_on(broker: Broker) -> Iterator[tuple[OurBroker, AdminClient]]:
    """Run our broker on the directory of a stopped Kafka."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with tidelog.broker(str(broker.log_dir), settings=settings) as found:
        yield found, AdminClient({"bootstrap.servers": found.bootstrap_servers, "log_level": 2})


def committed_offsets(admin: AdminClient, group: str) -> dict[int, int]:
    """Return a group's committed offsets by partition; retries while the broker loads them."""
    asked = ConsumerGroupTopicPartitions(group)

    def ask() -> Sequence[TopicPartition] | None:
        try:
            told = admin.list_consumer_group_offsets([asked])[group].result(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in LATER:
                raise
            return None
        places: Sequence[TopicPartition] = told.topic_partitions
        return places

    found = until(ask, lambda places: places is not None)
    assert found is not None, f"{group} is never loaded"
    return {place.partition: place.offset for place in found}


def commit_in_a_transaction(broker: Broker, group: str, offset: int, *, ends: str) -> None:
    """Commit an offset in a producer's transaction, which is committed, aborted, or left open."""
    producer = Producer(broker.client_config(transactional_id=f"id of {group} {ends}"))
    consumer = Consumer(broker.client_config(group_id=group))
    producer.init_transactions(REQUEST_TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(TOPIC, 0, offset)], consumer.consumer_group_metadata(), REQUEST_TIMEOUT_S
    )
    if ends == "commit":
        producer.commit_transaction(REQUEST_TIMEOUT_S)
    if ends == "abort":
        producer.abort_transaction(REQUEST_TIMEOUT_S)
    consumer.close()


def write_and_commit(broker: Broker) -> None:
    """Write records and commits before Kafka stops."""
    broker.create_topic(TOPIC, PARTITIONS)
    producer = Producer(broker.client_config())
    for number in range(10):
        producer.produce(TOPIC, partition=number % PARTITIONS, value=str(number))
    assert producer.flush(REQUEST_TIMEOUT_S) == 0
    for number in range(20):
        commit(broker, f"simple {number}", TOPIC, {0: number, 1: 100 + number})
    commit(broker, "simple 3", TOPIC, {0: 33})
    for number, ends in enumerate(("commit", "abort", "open")):
        commit_in_a_transaction(broker, f"exact {ends}", number + 50, ends=ends)


def test_groups_are_continued_by_either_broker(kafka: Broker) -> None:
    """Kafka writes; we read and write; Kafka reads our writes and writes again; we read."""
    with running(kafka) as admin:
        write_and_commit(kafka)
        commit_twice(kafka.bootstrap)
        with member(kafka, "alive", TOPIC) as consumer:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 4)], asynchronous=False)
            kafka_says = committed_offsets(admin, "alive")
            kafka.kill()
    check_files(kafka, kafka_says)
    with ours_on(kafka) as (broker, admin):
        check_kafkas(admin)
        assert committed_offsets(admin, "alive") == kafka_says
        commit_twice(broker.bootstrap_servers)
        change_offsets(admin)
        beat = member_of_ours(broker)
    found = [(key, timeless(key, value)) for key, value in commit_records(kafka, "twice")]
    assert len(found) == 8
    assert found[:4] == found[4:], "records of the same commits differ"
    with running(kafka) as admin:
        assert committed_offsets(admin, "simple 4") == {0: 77, 1: 78}
        assert committed_offsets(admin, "simple 5") == {}
        assert committed_offsets(admin, "simple 3") == {0: 33, 1: 103}
        assert committed_offsets(admin, "alive") == kafka_says
        await_heartbeat(kafka, beat)
        commit(kafka, "simple 4", TOPIC, {0: 80})
    with ours_on(kafka) as (_, admin):
        assert committed_offsets(admin, "simple 4") == {0: 80, 1: 78}


def check_kafkas(admin: AdminClient) -> None:
    """Assert that Kafka's commits exist, except commits in aborted and open transactions."""
    assert committed_offsets(admin, "simple 3") == {0: 33, 1: 103}
    assert committed_offsets(admin, "simple 19") == {0: 19, 1: 119}
    assert committed_offsets(admin, "exact commit") == {0: 50}
    assert committed_offsets(admin, "exact abort") == {}
    assert committed_offsets(admin, "exact open") == {}
    described = admin.describe_consumer_groups(["alive"])["alive"]
    alive = described.result(timeout=REQUEST_TIMEOUT_S)
    assert alive.state == ConsumerGroupState.STABLE
    assert len(alive.members) == 1
    assert len(alive.members[0].assignment.topic_partitions) == PARTITIONS


def check_files(kafka: Broker, alive: dict[int, int]) -> None:
    """Assert that a killed broker's files contain the groups and give the right lag."""
    env = os_env()
    with Directory.open(str(kafka.log_dir)) as directory:
        found = read_groups(directory, env)
        assert found is not None
        behind = observe_directory(
            directory, env, Partition(TOPIC, 0), 3, IsolationLevel.READ_UNCOMMITTED
        )
    assert found.notes == ()
    assert found.partitions == 5
    assert not found.missing
    told = {
        group: {name.partition: offset for name, offset in places.items()}
        for group, places in found.positions.items()
    }
    simple = {f"simple {n}": {0: n, 1: 100 + n} for n in range(20)} | {"simple 3": {0: 33, 1: 103}}
    twice = {"twice": {0: 5, 1: 6}}
    assert told == simple | twice | {"exact commit": {0: 50}, "alive": alive}
    assert (behind.end, behind.left.records) == (5, 2)
    assert behind.unread is not None


def change_offsets(admin: AdminClient) -> None:
    """Change a group's offsets, and delete a group."""
    moved = [TopicPartition(TOPIC, 0, 77), TopicPartition(TOPIC, 1, 78)]
    changed = ConsumerGroupTopicPartitions("simple 4", moved)
    admin.alter_consumer_group_offsets([changed])["simple 4"].result(timeout=REQUEST_TIMEOUT_S)
    admin.delete_consumer_groups(["simple 5"])["simple 5"].result(timeout=REQUEST_TIMEOUT_S)


def member_of_ours(broker: OurBroker) -> HeartbeatRequest:
    """Let one static member join a group on our broker; return a heartbeat of this member."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 2}
    consumer = Consumer(
        settings
        | {
            "group.id": "our own",
            "group.instance.id": "seat",
            # The member must not expire before Kafka has started.
            "session.timeout.ms": 600_000,
            "max.poll.interval.ms": 600_000,
        }
    )
    consumer.subscribe([TOPIC])

    def is_in() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    until_so(is_in, "the member has its partitions")
    member_id = consumer.memberid()
    consumer.close()  # a static member stays in the group when it closes
    assert member_id is not None
    return HeartbeatRequest(
        group_id="our own",
        generation_id=broker.call(lambda node: generation_of(node, "our own")),
        member_id=member_id,
        group_instance_id="seat",
    )


def await_heartbeat(kafka: Broker, beat: HeartbeatRequest) -> None:
    """Assert that Kafka accepts a heartbeat in the generation that our broker started."""
    with RawClient(kafka.bootstrap) as raw:
        code = until(
            lambda: raw.ask(HEARTBEAT, 4, beat).error_code, lambda found: found not in LATER
        )
        assert code == 0


def commit_twice(bootstrap: str) -> None:
    """Commit two partitions twice, once with a retention time."""
    places = [
        OffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=5 + number,
            committed_leader_epoch=number - 1,
            committed_metadata="why" if number else None,
        )
        for number in range(PARTITIONS)
    ]
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=places)]
    plain = OffsetCommitRequest(group_id="twice", topics=topics)
    expiring = OffsetCommitRequest(group_id="twice", retention_time_ms=6_000_000, topics=topics)
    with RawClient(bootstrap) as raw:
        for version, asked in ((9, plain), (3, expiring)):
            codes = until(partial(commit_codes, raw, version, asked), LATER.isdisjoint)
            assert not any(codes)


def commit_codes(raw: RawClient, version: int, asked: OffsetCommitRequest) -> list[int]:
    answer = raw.ask(OFFSET_COMMIT, version, asked)
    return [place.error_code for place in answer.topics[0].partitions]


def generation_of(node: Node, group: str) -> int:
    found = node.groups.find(group)
    assert isinstance(found, ClassicGroup)
    return found.generation


def commit_records(kafka: Broker, group: str) -> list[tuple[bytes, bytes]]:
    """Return the records of one group's commits in the stopped broker's directory."""
    found = []
    with LogDir.open(str(kafka.log_dir)) as log_dir:
        for number in range(log_dir.topic(OFFSETS_TOPIC).partitions):
            for record in log_dir.reader(OFFSETS_TOPIC, number).records():
                if record.key is None or record.value is None:
                    continue
                change = read_change(record.key, record.value, 0)
                if change is not None and change.group_id == group:
                    found.append((record.key, record.value))
    return found


def timeless(key: bytes, value: bytes) -> bytes:
    """Return a commit's value with commit time and expiry time set to zero."""
    change = read_change(key, value, 0)
    assert change is not None
    for at in range(len(value) - 7):
        ms = int.from_bytes(value[at : at + 8], "big")
        if 1_500_000_000_000 < ms < 3_000_000_000_000:
            value = value[:at] + bytes(8) + value[at + 8 :]
    return value
