"""Reading a real broker for Spark: by batches and by librdkafka, held against Kafka's consumer."""

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.kafka_oracle import Oracle
from tests.peers.broker import Broker
from tests.peers.clients import Seen, consume, produce, produce_by_librdkafka
from tests.peers.samples import CODECS, T0, draw_headers

from tidelog.errors import ClusterFailure, ConfigError, InvalidRequest, OffsetsGone, UnknownTopic
from tidelog.spark.backend import Backend, Bounds, open_backend
from tidelog.spark.limits import NO_LIMITS
from tidelog.spark.source_options import read_source_options
from tidelog.spark.tasks import BatchPlan
from tidelog.types import Header, IsolationLevel, NewRecord, TimestampType, TopicPartition

pytestmark = pytest.mark.kafka

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
# A setting that the direct way does not know, so that records come through librdkafka.
WAYS = {"batches": {}, "librdkafka": {"kafka.socket.keepalive.enable": "true"}}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    return WAYS[request.param]


def open_source(broker: Broker, topic: str, **options: str) -> Backend:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    return open_backend(read_source_options(given), COLUMNS)


def plan(broker: Broker, topic: str, **options: str) -> BatchPlan:
    with open_source(broker, topic, **options) as backend:
        return backend.plan_batch(NO_LIMITS)


def read(found: BatchPlan) -> list[Seen]:
    return [seen for task in found.tasks for batch in task.read() for seen in rows(batch)]


def rows(batch: pa.RecordBatch) -> Iterator[Seen]:
    for row in batch.to_pylist():
        time = row["timestamp"]
        yield Seen(
            offset=row["offset"],
            timestamp=-1 if time is None else round((time - EPOCH).total_seconds() * 1000),
            timestamp_type=TimestampType(row["timestampType"]).config_name,
            key=row["key"],
            value=row["value"],
            headers=tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        )


def records(count: int, seed: int, *, keys: int = 9) -> list[NewRecord]:
    draw = random.Random(seed)
    return [
        NewRecord(
            key=None if draw.random() < 0.2 else b"k%d" % draw.randrange(keys),
            value=None if draw.random() < 0.2 else draw.randbytes(draw.randrange(300)),
            timestamp=T0 + draw.randrange(1_000_000),
            headers=draw_headers(draw),
        )
        for _ in range(count)
    ]


def fill(oracle: Oracle, broker: Broker, topic: str) -> None:
    """All codecs, transactions that were committed and aborted, one behind the other."""
    for number, codec in enumerate(CODECS):
        produce(oracle, broker, topic, records(40, number), codec=codec)
        produce_by_librdkafka(broker, topic, records(40, 10 + number), codec=codec)
        for commit in (False, True, False):
            produce(
                oracle,
                broker,
                topic,
                records(15, 20 + number),
                codec=codec,
                transaction=f"{topic}-{number}-{commit}",
                commit=commit,
            )


@pytest.mark.parametrize("isolation", list(IsolationLevel))
@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
def test_rows_are_those_of_kafkas_consumer(
    kafka_broker: Broker,
    kafka_oracle: Oracle,
    way: Mapping[str, str],
    stamp: str,
    isolation: IsolationLevel,
) -> None:
    topic = f"backend-{stamp}"
    with open_source(kafka_broker, topic) as backend:
        try:
            backend.partitions()
        except UnknownTopic:
            kafka_broker.create_topic(topic, message_timestamp_type=stamp)
            fill(kafka_oracle, kafka_broker, topic)
    level = {"kafka.isolation.level": isolation.name.lower()}
    want = consume(kafka_oracle, kafka_broker, topic, isolation)
    assert want
    assert read(plan(kafka_broker, topic, **level, **way)) == want
    cut = plan(kafka_broker, topic, maxRecordsPerPartition="37", **level, **way)
    assert len(cut.tasks) > 5
    assert read(cut) == want
    few = plan(kafka_broker, topic, **{"kafka.max.partition.fetch.bytes": "2000"}, **level, **way)
    assert read(few) == want
