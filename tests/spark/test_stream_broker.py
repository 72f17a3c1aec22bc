"""A stream from a real Kafka broker: splits, new partitions, lost records, committed offsets."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.spark.settled import add_partitions, delete_topic
from tests.spark.streams import to_end
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.kafka

TOPIC = "streamed"
GROUP = "watched"
Run = Callable[..., "StreamingQuery"]


def produce_offsets(broker: Broker, partition: int, first: int, end: int) -> None:
    """Write records whose value is their offset."""
    failed: list[object] = []
    producer = Producer(
        {
            **broker.client_config(linger_ms=0),
            "on_delivery": lambda error, _message: failed.append(error) if error else None,
        }
    )
    for number in range(first, end):
        producer.produce(TOPIC, value=str(number).encode(), partition=partition)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0
    assert failed == []


def group_offsets(admin: AdminClient) -> dict[int, int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])
    places = asked[GROUP].result(timeout=REQUEST_TIMEOUT_S).topic_partitions
    return {place.partition: place.offset for place in places}


@pytest.fixture
def run(spark: "SparkSession", kafka_broker: Broker, tmp_path: Path) -> Run:
    """Return a function that streams the existing records into Parquet files."""

    def start(**options: str) -> "StreamingQuery":
        given = {
            "kafka.bootstrap.servers": kafka_broker.bootstrap,
            "subscribePattern": f"{TOPIC}|none",
            "startingOffsets": "earliest",
            "commitGroup": GROUP,
        }
        frame = spark.readStream.format("tidelog").options(**given | options).load()
        writer = (
            frame.selectExpr("partition", "offset", "cast(value as string)")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        return to_end(partial(writer.start, str(tmp_path / "rows")))

    return start


def test_a_stream_from_a_broker_reads_each_record_once(
    spark: "SparkSession", kafka_broker: Broker, run: Run, tmp_path: Path
) -> None:
    admin = AdminClient(kafka_broker.client_config())
    kafka_broker.create_topic(TOPIC, partitions=2)
    produce_offsets(kafka_broker, 0, 0, 100)
    produce_offsets(kafka_broker, 1, 0, 10)

    def read() -> list[tuple[int, int, str]]:
        return sorted(map(tuple, spark.read.parquet(str(tmp_path / "rows")).collect()))

    def rows(partition: int, first: int, end: int) -> list[tuple[int, int, str]]:
        return [(partition, offset, str(offset)) for offset in range(first, end)]

    query = run(maxOffsetsPerTrigger="55", includeHeaders="true")
    assert read() == rows(0, 0, 100) + rows(1, 0, 10)
    progress = [json.loads(one.json) for one in query.recentProgress if one.numInputRows]
    assert [one["numInputRows"] for one in progress] == [55, 55]
    source = progress[0]["sources"][0]
    assert source["latestOffset"]["behind"] == {TOPIC: {"0": 50, "1": 5}}
    assert source["endOffset"]["topics"][TOPIC]["partitions"]["0"] == {"epoch": 0, "offset": 50}
    assert len(source["endOffset"]["topics"][TOPIC]["id"]) == 32
    assert group_offsets(admin) == {0: 100, 1: 10}

    add_partitions(kafka_broker, TOPIC, 3)
    produce_offsets(kafka_broker, 0, 100, 120)
    produce_offsets(kafka_broker, 2, 0, 7)
    for place in admin.delete_records([TopicPartition(TOPIC, 0, 105)]).values():
        place.result(timeout=REQUEST_TIMEOUT_S)
    with pytest.raises(Exception, match=f"{TOPIC}-0: offsets 100 to 104: deleted before"):
        run()
    run(failOnDataLoss="false")
    expected = rows(0, 0, 100) + rows(0, 105, 120) + rows(1, 0, 10) + rows(2, 0, 7)
    assert read() == expected

    delete_topic(kafka_broker, TOPIC)
    kafka_broker.create_topic(TOPIC, partitions=1)
    produce_offsets(kafka_broker, 0, 0, 3)
    with pytest.raises(Exception, match="the topic was deleted and recreated"):
        run()
    run(failOnDataLoss="false")
    assert read() == sorted(expected + rows(0, 0, 3))
