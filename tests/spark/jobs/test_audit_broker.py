"""Audits of Kafka, also while a mirror runs, give the same results as audits of directories."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.spark.jobs.test_audit import audit, kinds, make_filled, record, updates
from tests.worlds.directories.topics import make
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker

from tidelog.jobs.mirror.job import mirror
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka


def send_logs(broker: Broker, topic: str, logs: Sequence[Sequence[NewRecord]], **more: str) -> None:
    producer = Producer(broker.client_config(linger_ms=5, **more))
    if more:
        producer.init_transactions(REQUEST_TIMEOUT_S)
        producer.begin_transaction()
    for partition, log in enumerate(logs):
        for one in log:
            producer.produce(
                topic,
                key=one.key,
                value=one.value,
                timestamp=one.timestamp or 0,
                partition=partition,
            )
    if more:
        producer.flush(REQUEST_TIMEOUT_S)
        producer.abort_transaction(REQUEST_TIMEOUT_S)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0


def test_audits_of_a_cluster_with_a_directory_and_with_a_group_report_their_kinds(
    spark: "SparkSession", kafka_broker: Broker, tmp_path: Path
) -> None:
    topic, stamped = "audited-orders", "audited-stamped"
    logs = updates(40, 300)
    kafka_broker.create_topic(topic, 2)
    kafka_broker.create_topic(stamped, 2, **{"message.timestamp.type": "LogAppendTime"})
    send_logs(kafka_broker, topic, logs)
    send_logs(kafka_broker, topic, [[record("k0", "aborted", 999)]], transactional_id="audited")
    send_logs(kafka_broker, stamped, logs)
    place = f"kafka://{kafka_broker.bootstrap}"
    last = logs[1][-1].key or b""
    b = make_filled(tmp_path / "b", [logs[0], logs[1][:-1]], topic)
    state = str(tmp_path / "state")
    kept = [0, 0]
    for number in range(2):
        found = audit(spark, place, b, topics=[topic], state=state)
        assert kinds(found) == {last.decode(): "stale"}
        assert found.topics[0].records == (300, 299)
        kept[number] = found.kept_runs
    assert kept[0] == 0 < kept[1]
    # If one side's topic is LogAppendTime, the audit compares the producers' times.
    again = audit(spark, place, place, topics=[topic], rename={topic: stamped})
    assert again.is_equal
    consumer = Consumer(kafka_broker.client_config(group_id="audited"))
    ends = [TopicPartition(topic, 0, len(logs[0])), TopicPartition(topic, 1, len(logs[1]) - 1)]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()
    behind = audit(spark, place, None, topics=[topic], group="audited")
    assert kinds(behind) == {last.decode(): "undelivered"}


def test_a_mirror_at_work_is_audited_as_far_as_it_went(
    spark: "SparkSession", kafka_broker: Broker, tmp_path: Path
) -> None:
    topic = "audited-mirrored"
    logs = updates(30, 200)
    kafka_broker.create_topic(topic, 2)
    send_logs(kafka_broker, topic, logs)
    place, target = f"kafka://{kafka_broker.bootstrap}", make(str(tmp_path / "b"), "copies", 2)
    work = str(tmp_path / "check")
    mirror(spark, place, {topic: "copies"}, target, checkpoint=work)
    send_logs(kafka_broker, topic, [[record("k0", "newer", 900)], [record("k99", "new", 901)]])
    options = {"topics": [topic], "offset_map": f"{work}/offsets.map"}
    found = audit(spark, place, target, **options)
    assert (found.is_equal, found.topics[0].records) == (True, (200, 200))
    without = audit(spark, place, target, topics=[topic], rename={topic: "copies"})
    assert kinds(without) == {"k0": "stale", "k99": "missing"}
