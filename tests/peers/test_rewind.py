"""From a real broker, a rewound group reads exactly the records at and after the given time."""

import subprocess

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker, free_port
from tests.worlds.kafka.clients import first_record, produce
from tests.worlds.kafka.groups import commit, consume_all, member, send, tidelog
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import PATIENCE_S

from tidelog.errors import ClusterFailure, GroupActive, OffsetOutOfRange, UnknownGroup, UnknownTopic
from tidelog.remote.cluster import connect
from tidelog.remote.view import Committed
from tidelog.types import IsolationLevel, NewRecord, TimestampType, TopicPartition

pytestmark = pytest.mark.kafka

T0 = 1_700_000_000_000
MINUTE = 60_000


def rewind(broker: Broker, group: str, *more: str) -> tuple[str, ...]:
    return ("rewind", "-b", broker.bootstrap, "--group", group, "-o", "json", *more)


def test_a_rewound_group_reads_exactly_the_records_from_the_time_on(kafka_broker: Broker) -> None:
    """One partition has records before and after the time, one only after, one only before."""
    topic, group = "rewound", "rewound-g"
    kafka_broker.create_topic(topic, partitions=3)
    times = {
        0: [T0 + n * MINUTE for n in range(100)],
        1: [T0 + (n + 200) * MINUTE for n in range(40)],
        2: [T0 + n * MINUTE for n in range(20)],
    }
    for number, stamps in times.items():
        send(kafka_broker, topic, stamps, partition=number)
    assert consume_all(kafka_broker, group, topic, 3) == times
    at = T0 + 60 * MINUTE
    dry = tidelog(*rewind(kafka_broker, group, "--to", str(at), "--count"))
    assert dry.code == 0, dry.err
    assert [row["new_offset"] for row in dry.rows] == [60, 0, 20]
    assert [row["records_again"] for row in dry.rows] == [40, 40, 0]
    assert [row["records_again_is_exact"] for row in dry.rows] == [True, True, True]
    assert dry.rows[2]["why"] == "no record at or after the time"
    assert "--execute moves " in dry.err
    assert consume_all(kafka_broker, group, topic, 3) == {0: [], 1: [], 2: []}

    done = tidelog(*rewind(kafka_broker, group, "--to", str(at), "--execute"))
    assert done.code == 0, done.err
    expected = {n: [ms for ms in stamps if ms >= at] for n, stamps in times.items()}
    assert consume_all(kafka_broker, group, topic, 3) == expected


def test_out_of_order_times_lose_nothing_and_skew_reaches_back(kafka_broker: Broker) -> None:
    topic, group = "shuffled", "shuffled-g"
    kafka_broker.create_topic(topic)
    times = [T0 + ms for ms in (0, 5_000, 9_000, 2_000, 10_000, 7_000, 12_000, 8_000)]
    send(kafka_broker, topic, times)
    commit(kafka_broker, group, topic, {0: len(times)})
    tidelog(*rewind(kafka_broker, group, "--to", str(T0 + 10_000), "--execute"))
    again = consume_all(kafka_broker, group, topic, 1)[0]
    assert again == times[4:]
    assert set(again) >= {ms for ms in times if ms >= T0 + 10_000}
    to = ("--to", str(T0 + 10_000), "--max-skew", "1s", "--execute")
    assert tidelog(*rewind(kafka_broker, group, *to)).code == 0
    assert consume_all(kafka_broker, group, topic, 1)[0] == times[2:]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_active_member_prevents_the_rewind(kafka_broker: Broker, protocol: str) -> None:
    """Rewind is refused while the group has a member (classic protocol or KIP-848)."""
    topic, group = f"busy-{protocol}", f"busy-{protocol}-g"
    kafka_broker.create_topic(topic)
    send(kafka_broker, topic, [T0, T0 + 1])
    commit(kafka_broker, group, topic, {0: 2})
    with member(kafka_broker, group, topic, protocol), connect(kafka_broker.bootstrap) as cluster:
        dry = tidelog(*rewind(kafka_broker, group, "--to", "earliest"))
        assert dry.code == 0
        assert "is refused while the group has members" in dry.err
        done = tidelog(*rewind(kafka_broker, group, "--to", "earliest", "--execute"))
        assert done.code == 1
        assert "stop them first" in done.err
        place = TopicPartition(topic, 0)
        with pytest.raises(GroupActive):  # the broker's own check
            cluster.commit(group, {place: Committed(0)})
        assert cluster.committed(group)[place] == Committed(2)
    assert tidelog(*rewind(kafka_broker, group, "--to", "earliest", "--execute")).code == 0
    assert consume_all(kafka_broker, group, topic, 1) == {0: [T0, T0 + 1]}


def test_a_group_before_the_target_is_not_moved_forward(kafka_broker: Broker) -> None:
    topic, group = "slow", "slow-g"
    kafka_broker.create_topic(topic)
    send(kafka_broker, topic, [T0 + n for n in range(10)])
    commit(kafka_broker, group, topic, {0: 3})
    held = tidelog(*rewind(kafka_broker, group, "--to", str(T0 + 8), "--execute"))
    assert held.code == 2
    assert held.rows[0]["new_offset"] == 3
    assert held.rows[0]["records_skipped"] == 5
    moved = tidelog(*rewind(kafka_broker, group, "--to", str(T0 + 8), "--forward", "--execute"))
    assert moved.code == 0
    assert consume_all(kafka_broker, group, topic, 1) == {0: [T0 + 8, T0 + 9]}


def test_append_clock_of_stamped_topics_alone(kafka_broker: Broker) -> None:
    kafka_broker.create_topic("stamped", message_timestamp_type="LogAppendTime")
    kafka_broker.create_topic("created")
    for topic in ("stamped", "created"):
        send(kafka_broker, topic, [T0])
        send(kafka_broker, topic, [T0 + 1])
        commit(kafka_broker, f"{topic}-g", topic, {0: 2})
    with connect(kafka_broker.bootstrap) as cluster:
        second = first_record(cluster, TopicPartition("stamped", 0), 1)
        assert second is not None
        assert second.timestamp_type is TimestampType.LOG_APPEND_TIME
    to = ("--to", f"{second.timestamp}ms", "--clock", "append")
    found = tidelog(*rewind(kafka_broker, "stamped-g", *to))
    assert found.code == 0, found.err
    assert found.rows[0]["time_ms"] == second.timestamp
    refused = tidelog(*rewind(kafka_broker, "created-g", *to))
    assert refused.code == 3
    assert "message.timestamp.type=CreateTime" in refused.err


def test_match_that_kafka_hides_after_deleted_records_is_found(kafka_broker: Broker) -> None:
    """The first segment's only match is deleted, so Kafka misses the match in a later segment."""
    topic, group = "hidden", "hidden-g"
    kafka_broker.create_topic(topic, segment_ms="60000")
    times = [T0 + 100, T0 + 9_000, T0 + 200]  # one segment
    send(kafka_broker, topic, times)
    send(kafka_broker, topic, [T0 + 3_600_000])  # in the next segment
    commit(kafka_broker, group, topic, {0: 4})
    admin = AdminClient(kafka_broker.client_config())
    for future in admin.delete_records([Place(topic, 0, 2)]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)
    with connect(kafka_broker.bootstrap) as cluster:
        place = TopicPartition(topic, 0)
        assert cluster.offsets_for_times({place: T0 + 5_000}) == {place: None}, "Kafka is cured"
    found = tidelog(*rewind(kafka_broker, group, "--to", str(T0 + 5_000)))
    assert found.rows[0]["new_offset"] == 3


def test_a_failed_connection_has_its_reason(kafka_broker: Broker) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    refused = "connection refused"
    lost = tidelog("rewind", "-b", nobody, "-g", "x", "--to", "-6h")
    assert lost.code == 1
    assert nobody in lost.err
    assert refused in lost.err
    with connect(kafka_broker.bootstrap, timeout_s=PATIENCE_S) as cluster:
        with pytest.raises(UnknownGroup):
            cluster.group("nobody")
        with pytest.raises(UnknownTopic, match=f"{kafka_broker.bootstrap} has no topic"):
            cluster.partitions("nothing")
    with connect(kafka_broker.bootstrap, timeout_s=3) as cluster, pytest.raises(ClusterFailure):
        first_record(cluster, TopicPartition("nothing", 0), 0)
    unknown = tidelog(*rewind(kafka_broker, "nobody", "--to", "-6h"))
    assert "has no consumer group nobody" in unknown.err


def test_single_records_of_a_broker(kafka_oracle: Oracle, kafka_broker: Broker) -> None:
    topic, place = "single", TopicPartition("single", 0)
    kafka_broker.create_topic(topic)
    records = [NewRecord(key=b"k", value=b"v", timestamp=T0 + n) for n in range(3)]
    produce(kafka_oracle, kafka_broker, topic, records, transaction="single-t", commit=False)
    with connect(kafka_broker.bootstrap) as cluster:
        assert cluster.watermarks([place])[place].end == 4
        send(kafka_broker, topic, [T0 + 50])
        first = first_record(cluster, place, 1)
        assert first is not None
        assert (first.offset, first.timestamp, first.key, first.value) == (1, T0 + 1, b"k", b"v")
        behind_marker = first_record(cluster, place, 3)
        assert behind_marker is not None
        assert behind_marker.offset == 4
        assert first_record(cluster, place, 5) is None
        committed = IsolationLevel.READ_COMMITTED
        assert [r.offset for r in cluster.records(place, 0, 5, isolation=committed)] == [4]
        assert [r.offset for r in cluster.records(place, 1, 3)] == [1, 2]
        with pytest.raises(OffsetOutOfRange):
            first_record(cluster, place, 99)


def kafkas_reset(
    home: KafkaHome, broker: Broker, group: str, topic: str, to: str, *more: str
) -> dict[int, int]:
    """Return the offsets that Kafka's own tool sets, by partition."""
    command = home.java_command(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--group", group, "--topic", topic),
        *("--reset-offsets", "--to-datetime", to, "--export", *more),
        *("--timeout", str(REQUEST_TIMEOUT_S * 1000)),
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=REQUEST_TIMEOUT_S * 2, check=True
    )
    lines = [line.replace('"', "").split(",") for line in done.stdout.splitlines()]
    found = {int(line[1]): int(line[2]) for line in lines if line[0] == topic}
    assert found, done.stdout + done.stderr
    return found


def test_a_rewind_equals_kafkas_tool_but_never_skips_unread_records(
    kafka_jars: KafkaHome, kafka_broker: Broker
) -> None:
    """The group has read partition 0 to its end; its offsets in 1 and 2 are before the time."""
    topic, group = "both", "both-g"
    kafka_broker.create_topic(topic, partitions=3)
    send(kafka_broker, topic, [T0 + s * 1000 for s in range(20)], partition=0)
    send(kafka_broker, topic, [T0] * 6, partition=1)
    send(kafka_broker, topic, [T0 + s * 1000 for s in range(20)], partition=2)
    commit(kafka_broker, group, topic, {0: 20, 1: 3, 2: 5})
    at = "2023-11-14T22:13:30.000Z"  # T0 + 10 s
    theirs = kafkas_reset(kafka_jars, kafka_broker, group, topic, at, "--dry-run")
    assert theirs == {0: 10, 1: 6, 2: 10}, "Kafka's tool skips three and five records unread"
    ours = tidelog(*rewind(kafka_broker, group, "--to", at))
    assert [row["new_offset"] for row in ours.rows] == [10, 3, 5]
    assert ours.code == 2
    asked = tidelog(*rewind(kafka_broker, group, "--to", at, "--to-end", "--forward"))
    assert {number: row["new_offset"] for number, row in enumerate(asked.rows)} == theirs
