"""The lag of groups on a real broker: unread records, the records' age, and the rate of change."""

from collections.abc import Callable

import pytest
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.clients import first_record, produce
from tests.worlds.kafka.groups import Ended, commit, consume_all, member, send, tidelog
from tests.worlds.kafka.oracle import Oracle

from tidelog.env import Env, ManualClock
from tidelog.remote.cluster import connect
from tidelog.types import NewRecord, TopicPartition

pytestmark = pytest.mark.kafka

T0 = 1_700_000_000_000
SECOND = 1_000


def lag(
    broker: Broker,
    group: str,
    *more: str,
    clock: ManualClock | None = None,
    wait: Callable[[float], None] = lambda _seconds: None,
) -> Ended:
    env = Env(clock=clock or ManualClock(T0 + 1000 * SECOND))
    # The clock is stopped, so the command never times out: it gets every response, or the test's
    # time limit ends the test.
    return tidelog("lag", group, "-b", broker.bootstrap, "-o", "json", *more, env=env, wait=wait)


def only(ended: Ended) -> dict[str, object]:
    (row,) = ended.rows
    return row


def test_age_is_that_of_the_record_at_the_committed_offset(kafka_broker: Broker) -> None:
    """Create times are out of order, so an age interpolated between two records would be wrong."""
    topic, group = "aged", "aged-g"
    kafka_broker.create_topic(topic, partitions=2)
    send(kafka_broker, topic, [T0 + s * SECOND for s in (0, 900, 100, 995, 300)])
    commit(kafka_broker, group, topic, {0: 2, 1: 0})
    ended = lag(kafka_broker, group)
    assert ended.code == 0, ended.err
    first, second = ended.rows
    assert (first["offset_lag"], first["behind_ms"]) == (3, 900 * SECOND)
    assert (first["unread_offset"], first["clock"]) == (2, "create-time")
    assert (second["offset_lag"], second["behind_ms"], second["records_left"]) == (0, 0, 0)


def test_limits_decide_the_exit_code(kafka_broker: Broker) -> None:
    topic, group = "limited", "limited-g"
    kafka_broker.create_topic(topic)
    send(kafka_broker, topic, [T0 + s * SECOND for s in range(10)])
    commit(kafka_broker, group, topic, {0: 4})
    assert lag(kafka_broker, group, "--max-lag", "6", "--max-seconds", "996").code == 0
    over = lag(kafka_broker, group, "--max-lag", "5")
    assert (over.code, "at most 6 records left, limit 5" in over.err) == (2, True)
    late = lag(kafka_broker, group, "--max-seconds", "995.9")
    assert (late.code, "16m36s behind" in late.err) == (2, True)


def test_timestamps_of_the_broker_are_shown_as_append_times(kafka_broker: Broker) -> None:
    topic, group = "lag-stamped", "lag-stamped-g"
    kafka_broker.create_topic(topic, message_timestamp_type="LogAppendTime")
    send(kafka_broker, topic, [T0])
    commit(kafka_broker, group, topic, {0: 0})
    with connect(kafka_broker.bootstrap) as cluster:
        record = first_record(cluster, TopicPartition(topic, 0), 0)
        assert record is not None
        assert record.timestamp is not None
    row = only(lag(kafka_broker, group, clock=ManualClock(record.timestamp + 7_000)))
    assert (row["clock"], row["behind_ms"]) == ("log-append-time", 7_000)


def test_records_left_of_a_compacted_topic(kafka_broker: Broker) -> None:
    """Kafka's cleaner leaves 10 of 1,000 records; the lag in offsets still counts the others."""
    topic, group = "compacted-lag", "compacted-lag-g"
    kafka_broker.create_topic(
        topic,
        cleanup_policy="compact",
        segment_ms="60000",
        min_cleanable_dirty_ratio="0.001",
    )
    for n in range(10):
        send(kafka_broker, topic, [T0 + n] * 100, key=f"k{n}")
    send(kafka_broker, topic, [T0 + 3_600_000] * 10, key="last")
    commit(kafka_broker, group, topic, {0: 50})
    kafka_broker.await_cleaning(topic, 1_000)
    data = ("--data", str(kafka_broker.log_dir))
    by_offsets = only(lag(kafka_broker, group))
    by_headers = only(lag(kafka_broker, group, *data))
    by_reading = only(lag(kafka_broker, group, "--count"))
    left = len(consume_all(kafka_broker, group, topic, 1)[0])
    assert left == 20  # the last record of each of 10 keys, and 10 in the active segment
    assert by_offsets["offset_lag"] == 960
    assert by_offsets["records_left_is_exact"] is False
    for exact in (by_headers, by_reading):
        assert (exact["records_left"], exact["records_left_is_exact"]) == (left, True)
        assert (exact["offset_lag"], exact["unread_offset"]) == (960, 99)


def test_records_left_of_a_transactional_topic(kafka_oracle: Oracle, kafka_broker: Broker) -> None:
    """Markers are no records, and readers of committed records don't get aborted records."""
    topic, group = "transactional-lag", "transactional-lag-g"
    kafka_broker.create_topic(topic)
    for number in range(6):
        records = [NewRecord(value=b"1", timestamp=T0 + number * SECOND)] * 5
        is_committed = number % 2 == 1
        name = f"lag-t{number}"
        produce(kafka_oracle, kafka_broker, topic, records, transaction=name, commit=is_committed)
    commit(kafka_broker, group, topic, {0: 0})
    for count in (("--count",), ("--data", str(kafka_broker.log_dir))):
        row = only(lag(kafka_broker, group, *count))
        assert (row["offset_lag"], row["records_left"]) == (36, 30)
        assert row["behind_ms"] == 1000 * SECOND
        row = only(lag(kafka_broker, group, *count, "--isolation", "read_committed"))
        assert (row["records_left"], row["behind_ms"]) == (15, 999 * SECOND)
    commit(kafka_broker, group, topic, {0: 35})
    row = only(lag(kafka_broker, group))
    assert (row["offset_lag"], row["records_left"], row["behind_ms"]) == (1, 0, 0)


def test_speed_and_time_to_catch_up_over_samples(kafka_broker: Broker) -> None:
    topic, group = "speedy", "speedy-g"
    kafka_broker.create_topic(topic)
    send(kafka_broker, topic, [T0] * 100)
    commit(kafka_broker, group, topic, {0: 0})
    clock = ManualClock(T0)
    at = [0]

    def wait(seconds: float) -> None:
        """Advance the clock instead; also add 30 to the group's offset, and append ten records."""
        clock.advance(int(seconds * SECOND))
        at[0] += 30
        commit(kafka_broker, group, topic, {0: at[0]})
        send(kafka_broker, topic, [T0] * 10)

    more = ("--samples", "3", "--every", "10s")
    row = only(lag(kafka_broker, group, *more, clock=clock, wait=wait))
    assert (row["committed"], row["end"], row["offset_lag"]) == (60, 120, 60)
    assert (row["offsets_per_s"], row["arrivals_per_s"], row["catch_up_s"]) == (3.0, 1.0, 30.0)


def test_the_member_of_a_partition_is_shown(kafka_broker: Broker) -> None:
    topic, group = "manned", "manned-g"
    kafka_broker.create_topic(topic)
    send(kafka_broker, topic, [T0])
    commit(kafka_broker, group, topic, {0: 0})
    assert only(lag(kafka_broker, group))["member"] is None
    with member(kafka_broker, group, topic):
        assert only(lag(kafka_broker, group))["member"] == "rdkafka"


def test_records_deleted_before_the_group_read_them_are_reported(kafka_broker: Broker) -> None:
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    topic, group = "outrun", "outrun-g"
    kafka_broker.create_topic(topic)
    send(kafka_broker, topic, [T0 + n for n in range(10)])
    commit(kafka_broker, group, topic, {0: 2})
    admin = AdminClient(kafka_broker.client_config())
    for future in admin.delete_records([Place(topic, 0, 6)]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)
    row = only(lag(kafka_broker, group))
    assert (row["offsets_lost"], row["offset_lag"], row["unread_offset"]) == (4, 4, 6)
    assert row["state"] == "records lost"
