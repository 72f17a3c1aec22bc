"""Spark's reads of a real broker, by batches and by librdkafka, compared with Kafka's consumer."""

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.clients import Seen, consume, produce, produce_by_librdkafka
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import CODECS, T0, draw_headers

from tidelog.errors import ConfigError, InvalidRequest, OffsetsGone, UnknownTopic
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.pushdown import NO_LIMITS
from tidelog.spark.stream_offset import Extent
from tidelog.spark.tasks import Backend, BatchPlan, WhyEmpty
from tidelog.storage.files import decode_topic_id
from tidelog.types import IsolationLevel, NewRecord, TimestampType, TopicPartition

pytestmark = pytest.mark.kafka

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
# tidelog's own client does not support `kafka.socket.keepalive.enable`, so reads with this option
# use librdkafka.
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


def drawn_records(count: int, seed: int, *, keys: int = 9) -> list[NewRecord]:
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


def send_every_codec(oracle: Oracle, broker: Broker, topic: str) -> None:
    """Send records with each codec, then committed and aborted transactions."""
    for number, codec in enumerate(CODECS):
        produce(oracle, broker, topic, drawn_records(40, number), codec=codec)
        produce_by_librdkafka(broker, topic, drawn_records(40, 10 + number), codec=codec)
        for commit in (False, True, False):
            produce(
                oracle,
                broker,
                topic,
                drawn_records(15, 20 + number),
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
            send_every_codec(kafka_oracle, kafka_broker, topic)
    level = {"kafka.isolation.level": isolation.name.lower()}
    want = consume(kafka_oracle, kafka_broker, topic, isolation)
    assert want
    assert read(plan(kafka_broker, topic, **level, **way)) == want
    cut = plan(kafka_broker, topic, maxRecordsPerPartition="37", **level, **way)
    assert len(cut.tasks) > 5
    assert read(cut) == want
    few = plan(kafka_broker, topic, **{"kafka.max.partition.fetch.bytes": "2000"}, **level, **way)
    assert read(few) == want


def test_names_and_ids(kafka_broker: Broker, kafka_oracle: Oracle) -> None:
    kafka_broker.create_topic("named-a", 2)
    kafka_broker.create_topic("named-b")
    produce(kafka_oracle, kafka_broker, "named-a", drawn_records(3, 1))
    a0, a1, b0 = (TopicPartition(*one) for one in (("named-a", 0), ("named-a", 1), ("named-b", 0)))
    with open_source(kafka_broker, "named-b, named-a") as backend:
        assert backend.partitions() == [a0, a1, b0]
        ids = backend.topic_ids(["named-a"])
        told = kafka_broker.topic_id("named-a").replace("+", "-").replace("/", "_")
        assert ids == {"named-a": decode_topic_id(told).hex}
        assert backend.bounds([a0, b0]) == {a0: Extent(0, 3), b0: Extent(0, 0)}
        assert backend.plan({b0: (0, 0)}) == []
    given = {"kafka.bootstrap.servers": kafka_broker.bootstrap}
    for more, want in (
        ({"subscribePattern": "named-[ab]"}, [a0, a1, b0]),
        ({"subscribePattern": "named"}, []),  # patterns match whole names
        ({"assign": '{"named-a": [1]}'}, [a1]),
    ):
        with open_backend(read_source_options({**given, **more}), COLUMNS) as backend:
            assert backend.partitions() == want
    with open_backend(read_source_options({**given, "subscribePattern": ".*"}), ()) as backend:
        assert not any(name.topic.startswith("__") for name in backend.partitions())
    with pytest.raises(UnknownTopic, match="no topic named-c; did you mean named-"):
        plan(kafka_broker, "named-c")
    wrong = {**given, "assign": '{"named-a": [2]}'}
    with pytest.raises(UnknownTopic, match="partitions 0 to 1, not 2"):
        open_backend(read_source_options(wrong), COLUMNS).partitions()


def test_leader_epochs(kafka_broker: Broker, kafka_oracle: Oracle, way: Mapping[str, str]) -> None:
    topic = f"epochs-{len(way)}"
    name = TopicPartition(topic, 0)
    kafka_broker.create_topic(topic)
    produce(kafka_oracle, kafka_broker, topic, drawn_records(5, 2))
    with open_source(kafka_broker, topic, **way) as backend:
        (epoch,) = set(backend.leader_epochs({name: 5}).values())
        assert epoch >= 0
        assert backend.leader_epochs({name: 1}) == {name: epoch}
        assert backend.leader_epochs({name: 0}) == {name: -1}
        ends = backend.epoch_ends({name: epoch})
        assert ends == {name: (-1, -1) if way else (epoch, 5)}
        assert backend.epoch_ends({name: epoch + 7}) == {name: (-1, -1)}


def test_times_find_offsets_as_the_connector_does(
    kafka_broker: Broker, kafka_oracle: Oracle, way: Mapping[str, str]
) -> None:
    topic = f"timed-{len(way)}"
    kafka_broker.create_topic(topic)
    sent = [NewRecord(value=b"%d" % n, timestamp=T0 + ms) for n, ms in enumerate((10, 30, 20, 40))]
    produce(kafka_oracle, kafka_broker, topic, sent)

    def offsets(**options: str) -> list[int]:
        return [seen.offset for seen in read(plan(kafka_broker, topic, **options, **way))]

    start, end = {"startingTimestamp": str(T0 + 20)}, {"endingTimestamp": str(T0 + 40)}
    assert offsets(**start, **end) == [1, 2]
    assert offsets(**start, endingTimestamp=str(T0 + 30)) == []
    assert offsets(**end) == [0, 1, 2]
    assert offsets(**start, endingTimestamp=str(T0 + 99)) == [1, 2, 3]  # no match: the end
    assert offsets(**start, **end, timeRange="exact") == [1, 2]
    assert offsets(**start, endingTimestamp=str(T0 + 30), timeRange="exact") == [2]
    late = {"startingTimestamp": str(T0 + 41)}
    with pytest.raises(InvalidRequest, match="no record at"):
        offsets(**late)
    assert offsets(startingOffsetsByTimestampStrategy="latest", **late) == []
    by_partition = f'{{"{topic}": {{"0": {T0 + 40}}}}}'
    assert offsets(startingOffsetsByTimestamp=by_partition, startingOffsets="earliest") == [3]
    assert offsets(startingOffsetsByTimestamp=by_partition, **start) == [1, 2, 3]
    with pytest.raises(InvalidRequest, match="has other-0, which is not read"):
        offsets(startingOffsets=f'{{"{topic}": {{"0": 1}}, "other": {{"0": 1}}}}')
    with pytest.raises(InvalidRequest, match=r"clock=append: .*=CreateTime"):
        offsets(**start, clock="append")


def test_lost_offsets_and_reasons_of_empty_ranges_are_reported(
    kafka_broker: Broker,
    kafka_oracle: Oracle,
    way: Mapping[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"lost-{len(way)}"
    name = TopicPartition(topic, 0)
    kafka_broker.create_topic(topic)
    assert plan(kafka_broker, topic, **way).empty[0].why is WhyEmpty.NEVER_WRITTEN
    produce(kafka_oracle, kafka_broker, topic, drawn_records(10, 3))
    planned = plan(kafka_broker, topic, **way)
    lenient = plan(kafka_broker, topic, failOnDataLoss="false", **way)
    delete_below(kafka_broker, name, 4)
    with pytest.raises(OffsetsGone, match=f"{topic}-0: offsets 0 to 3: deleted"):
        read(planned)
    assert [seen.offset for seen in read(lenient)] == list(range(4, 10))
    assert "not in the log any more" in caplog.text
    starts = f'{{"{topic}": {{"0": 1}}}}'
    with pytest.raises(OffsetsGone, match="offsets 1 to 3: deleted, the log starts at offset 4"):
        plan(kafka_broker, topic, startingOffsets=starts, **way)
    ends = f'{{"{topic}": {{"0": 99}}}}'
    with pytest.raises(OffsetsGone, match="offsets 10 to 98: not in the log"):
        plan(kafka_broker, topic, endingOffsets=ends, **way)
    some = plan(kafka_broker, topic, startingOffsets=starts, failOnDataLoss="false", **way)
    assert (some.lost[0].start, some.lost[0].end, some.bounds[name]) == (1, 4, (4, 10))
    delete_below(kafka_broker, name, 10)
    (empty,) = plan(kafka_broker, topic, **way).empty
    assert (empty.why, empty.start, empty.end) == (WhyEmpty.DELETED, 10, 10)
    assert "below offset 10 were deleted" in str(empty)


def delete_below(broker: Broker, name: TopicPartition, offset: int) -> None:
    admin = AdminClient(broker.client_config())
    place = Place(name.topic, name.partition, offset)
    for future in admin.delete_records([place]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)


def test_columns_that_librdkafka_lacks_are_refused(kafka_broker: Broker) -> None:
    given = {"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": "any"}
    by_client = read_source_options({**given, **WAYS["librdkafka"]})
    for column in ("producerId", "producerEpoch", "sequence"):
        open_backend(read_source_options(given), [column]).close()
        with pytest.raises(InvalidRequest, match=f"column {column} is not available"):
            open_backend(by_client, [column])
    with pytest.raises(ConfigError, match="nonsense"):
        open_backend(read_source_options({**given, "kafka.nonsense": "1"}), ()).partitions()
