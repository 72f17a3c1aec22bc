"""A mirror writes to a broker: the map has the offsets that the broker assigned, even on retry."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S
from tests.worlds.kafka.clients import await_ended
from tests.worlds.kafka.either import AnyBroker
from tests.worlds.spark.frames import T0, frame, origin_batch, value

from tidelog.jobs.mirror.commit import BrokerTarget
from tidelog.jobs.mirror.work import Routes
from tidelog.jobs.offset_map import MapRow, Partitioning
from tidelog.spark.sink_options import SinkOptions

pytestmark = pytest.mark.kafka


def target(broker: AnyBroker, topic: str) -> BrokerTarget:
    routes = Routes(
        pairs=((0, "orders", topic),), counts=((topic, 2),), partitioning=Partitioning.KEPT
    )
    options = SinkOptions(bootstrap=broker.bootstrap, exactly_once=True)
    return BrokerTarget(options=options, routes=routes, mirror_id=f"of-{topic}")


def seen(broker: AnyBroker, topic: str, partition: int) -> dict[bytes, tuple[int, int]]:
    """Return the offset and timestamp of each committed record, by value; values must be unique."""
    await_ended(broker.bootstrap, topic, partition)
    settings = broker.client_config(
        group_id="reader", enable_partition_eof=True, isolation_level="read_committed"
    )
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: dict[bytes, tuple[int, int]] = {}
    while (message := consumer.poll(REQUEST_TIMEOUT_S)) is not None and message.error() is None:
        text, offset = message.value(), message.offset()
        assert isinstance(text, bytes)
        assert offset is not None
        assert text not in found
        found[text] = offset, message.timestamp()[1]
    consumer.close()
    return found


def check(rows: tuple[MapRow, ...], places: dict[bytes, tuple[int, int]], partition: int) -> None:
    """Assert that the map's rows contain the copies' offsets, and that dense rows are exact."""
    mine = [row for row in rows if row.source_partition == partition]
    assert mine
    for row in mine:
        assert row.target_partition == partition
        for offset in range(row.source_start, row.source_end):
            place = places.get(value(partition, offset))
            if place is None:
                assert not row.is_dense
                continue
            assert row.target_start <= place[0] < row.target_end
            assert place[1] == T0 + offset
            if row.is_dense:
                assert place[0] - row.target_start == offset - row.source_start


def test_the_map_has_the_offsets_of_the_copies(either_broker: AnyBroker) -> None:
    """The map stays right if other clients write between copies, and if a copy is repeated."""
    topic = "mirror-places"
    either_broker.create_topic(topic, 2)
    other = Producer(either_broker.client_config(linger_ms=0))
    mirror, gaps = target(either_broker, topic), [0, 1, 2, 5, 6, 9]

    def failing() -> Iterator[pa.RecordBatch]:
        yield origin_batch("orders", 0, gaps)
        raise RuntimeError("the task dies")

    rows: tuple[MapRow, ...] = ()
    for batch_id in range(3):
        other.produce(topic, value=b"other %d" % batch_id, partition=0)
        assert other.flush(REQUEST_TIMEOUT_S) == 0
        with pytest.raises(RuntimeError, match="the task dies"):
            mirror.write(frame(failing()), batch_id)
        parts = [
            origin_batch("orders", 0, [10 * batch_id + n for n in gaps]),
            origin_batch("orders", 1, list(range(50 * batch_id, 50 * batch_id + 50))),
        ]
        first = mirror.write(frame(parts), batch_id)
        assert (first.records, first.was_done) == (56, False)
        again = target(either_broker, topic).write(frame(parts), batch_id)
        assert again.was_done
        assert (again.map_batch, again.records) == (first.map_batch, 56)
        rows += first.map_batch.rows
    for partition in range(2):
        places = seen(either_broker, topic, partition)
        check(rows, places, partition)
        copies = [text for text in places if not text.startswith(b"other")]
        assert len(copies) == 3 * (6, 50)[partition]
    dense = [row for row in rows if row.source_partition == 1]
    assert [row.is_dense for row in dense] == [True] * 3
