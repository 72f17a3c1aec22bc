"""Mirrors into a broker: their driver is killed at random, and `failover` uses a mirror's map."""

import io
import json
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.spark.jobs.test_mirror_kill import (
    PARTITIONS,
    enough,
    kill,
    some,
    start_child,
    wait_for,
)
from tests.spark.maps import map_of
from tests.spark.settled import await_markers
from tests.worlds.directories.topics import append, make
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S
from tests.worlds.kafka.either import AnyBroker

from tidelog.cli.app import run as run_command
from tidelog.cli.surroundings import Surroundings
from tidelog.jobs.mirror.job import mirror
from tidelog.jobs.offset_map import SourcePartition
from tidelog.types import NewRecord
from tidelog.types import TopicPartition as Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

GROUP = "billing"


def consumed(broker: AnyBroker, topic: str, partition: int) -> list[tuple[int, NewRecord]]:
    """Return offsets and records as a consumer of committed records sees them."""
    settings = broker.client_config(
        group_id="reader", enable_partition_eof=True, isolation_level="read_committed"
    )
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[int, NewRecord]] = []
    while True:
        message = consumer.poll(REQUEST_TIMEOUT_S)
        assert message is not None, f"neither a record nor the end came behind {len(found)}"
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                break
            assert error.retriable(), error
            continue
        key, value = message.key(), message.value()
        assert key is None or isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        record = NewRecord(key=key, value=value, timestamp=message.timestamp()[1])
        found.append((int(message.offset() or 0), record))
    consumer.close()
    return found


def bare(records: list[NewRecord]) -> list[NewRecord]:
    return [NewRecord(key=r.key, value=r.value, timestamp=r.timestamp) for r in records]


@pytest.mark.parametrize(
    ("either_broker", "seed", "kills"),
    [
        ("kafka", 1, 1),
        pytest.param("tidelog", 1, 1, marks=pytest.mark.slow),
        *(pytest.param("kafka", n, 5, marks=pytest.mark.slow) for n in range(2, 8)),
        *(pytest.param("tidelog", n, 5, marks=pytest.mark.slow) for n in range(2, 8)),
    ],
    indirect=["either_broker"],
)
def test_every_record_once_whenever_the_driver_is_killed(
    spark: "SparkSession", either_broker: AnyBroker, tmp_path: Path, seed: int, kills: int
) -> None:
    dice, topic, count = random.Random(seed), f"mirrored-{seed}", enough(kills)
    source = make(f"{tmp_path}/a", topic, PARTITIONS)
    either_broker.create_topic(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        append(source, topic, partition, some(partition, 0, count))
    work = tmp_path / "check"
    to = f"kafka://{either_broker.bootstrap}"
    given: dict[str, object] = {"source": source, "topic": topic, "target": to}
    given |= {"checkpoint": str(work)}
    for _ in range(kills):
        done = [int(path.name) for path in (work / "spark/commits").glob("[0-9]*")]
        number = max(done, default=-1) + dice.randrange(1, 3)
        child = start_child(given)
        try:
            wait_for(child, (work / f"spark/offsets/{number}").exists)
            # The kill hits some step of the batch: reading, sending in a transaction, committing,
            # or recording the batch in the checkpoint.
            wait_a_little(child, dice)
        finally:
            kill(child)
        for partition in range(PARTITIONS):
            seen = [record for _, record in consumed(either_broker, topic, partition)]
            assert seen == bare(some(partition, 0, count))[: len(seen)]
    mirror(spark, source, [topic], to, checkpoint=str(work))
    await_markers(either_broker, topic)
    found = map_of(str(work))
    for partition in range(PARTITIONS):
        seen_at = consumed(either_broker, topic, partition)
        assert [record for _, record in seen_at] == bare(some(partition, 0, count))
        for offset in range(0, count, 7):
            start = found.starts(SourcePartition(0, partition), offset)[Place(topic, partition)]
            assert start.offset <= seen_at[offset][0]
            if start.is_exact:
                assert start.offset == seen_at[offset][0]


def wait_a_little(child: "subprocess.Popen[bytes]", dice: random.Random) -> None:
    """Wait for a random time, at most 1.5 s, which is about the duration of a batch."""
    try:
        child.wait(timeout=dice.uniform(0, 1.5))
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"ended by itself with {child.returncode}")


def test_a_group_fails_over_by_the_map(
    spark: "SparkSession", either_broker: AnyBroker, tmp_path: Path
) -> None:
    """Mirror a topic to another topic of the same broker; then move a group there by the map."""
    either_broker.create_topic("east-orders", 2)
    either_broker.create_topic("west-orders", 2)
    produced = {0: some(0, 0, 120), 1: some(1, 0, 90)}
    from confluent_kafka import Producer

    producer = Producer(either_broker.client_config(linger_ms=0))
    for partition, records in produced.items():
        for record in records:
            producer.produce(
                "east-orders",
                key=record.key,
                value=record.value,
                timestamp=record.timestamp or 0,
                headers=[(header.key, header.value) for header in record.headers],
                partition=partition,
            )
    assert producer.flush(REQUEST_TIMEOUT_S) == 0
    place = f"kafka://{either_broker.bootstrap}"
    work = f"{tmp_path}/check"
    mirror(spark, place, {"east-orders": "west-orders"}, place, checkpoint=work, batch_records=80)
    await_markers(either_broker, "west-orders")
    for partition, records in produced.items():
        copies = consumed(either_broker, "west-orders", partition)
        assert [record for _, record in copies] == bare(records)
    consumer = Consumer(either_broker.client_config(group_id=GROUP))
    places = [TopicPartition("east-orders", 0, 77), TopicPartition("east-orders", 1, 90)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    result = failover(either_broker, "--map", f"{work}/offsets.map", "--verify")
    rows = {int(row["partition"]): row for row in result["partitions"]}
    copies = consumed(either_broker, "west-orders", 0)
    assert rows[0]["found_by"] == "map"
    assert rows[0]["new_offset"] == copies[77][0]
    assert int(rows[1]["new_offset"]) > consumed(either_broker, "west-orders", 1)[-1][0]
    (verdict,) = result["verify"]
    assert verdict["unconsumed"] == 120 - 77
    assert (verdict["missed"], verdict["absent"], verdict["duplicates"]) == (0, 0, 0)


def failover(broker: AnyBroker, *arguments: str) -> dict[str, list[dict[str, int | str]]]:
    out, err = io.StringIO(), io.StringIO()
    code = run_command(
        [
            *("failover", "--group", GROUP, "--from", broker.bootstrap, "--to", broker.bootstrap),
            *(*arguments, "-o", "json"),
        ],
        Surroundings(stdout=out, stderr=err),
    )
    assert code in (0, 2), err.getvalue()
    found = json.loads(out.getvalue())
    assert isinstance(found, dict)
    return found
