"""In a task of the sink, a delivery report without an offset is no proof of delivery."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import confluent_kafka as ck
import pyarrow as pa
import pytest

from tidelog.errors import ClusterFailure, WriterFenced
from tidelog.spark import broker_sink
from tidelog.spark.broker_sink import Claim
from tidelog.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery report as the client library passes it."""

    at: int | None

    def topic(self) -> str:
        return "flights"

    def partition(self) -> int:
        return 0

    def offset(self) -> int | None:
        return self.at


@dataclass(slots=True)
class Producer:
    """Accepts records, and delivers them at the given offsets in a flush."""

    hear: Callable[[object, Message], None]
    only_errors: object
    offsets: list[int | None]
    waiting: int = 0

    def produce(self, *_: object) -> None:
        self.waiting += 1

    def poll(self, _timeout_s: float) -> int:
        return 0

    def flush(self, _timeout_s: float) -> int:
        while self.waiting:
            self.waiting -= 1
            if not self.only_errors:
                self.hear(None, Message(self.offsets.pop(0)))
        return 0

    def purge(self) -> None:
        self.waiting = 0


@dataclass(slots=True)
class FakeCluster:
    offsets: list[int | None]
    made: list[Producer] = field(default_factory=list)

    def producer(self, settings: Mapping[str, object]) -> Producer:
        hear = cast("Callable[[object, Message], None]", settings["on_delivery"])
        only_errors = settings["delivery.report.only.error"]
        self.made.append(Producer(hear, only_errors, self.offsets))
        return self.made[-1]


def task(offsets: list[int | None], told: list[int] | None = None) -> broker_sink._Task:
    found = broker_sink._Task(
        cast("Cluster", FakeCluster(offsets)),
        SinkOptions(bootstrap="east:9092", topic="flights"),
        0,
        None,
        None if told is None else lambda _topic, _partition, offset: told.append(offset),
    )
    found._router._count_of = lambda _topic: 1
    return found


def rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"]})


def test_rows_with_a_reported_offset_are_delivered() -> None:
    told: list[int] = []
    assert task([4, 5, 6], told).run(iter([rows()])).records == 3
    assert told == [4, 5, 6]
    assert task([4, 5, 6]).run(iter([rows()])).records == 3


@pytest.mark.parametrize("told", [None, []])
def test_a_delivery_without_an_offset_ends_the_task(told: list[int] | None) -> None:
    """KAFKA-15591: the library may report success although the record is not in the log."""
    with pytest.raises(ClusterFailure, match="flights-0: the broker returned no offset for a"):
        task([4, None, 6], told).run(iter([rows()]))


class FullProducer(Producer):
    """A producer that first refuses each row, as if its queue were full, and then accepts it."""

    sent: list[tuple[object, ...]]
    is_full = False

    def __len__(self) -> int:
        return 1

    def produce(self, *row: object) -> None:
        self.is_full = not self.is_full
        if self.is_full:
            raise BufferError
        self.sent.append(row)
        super().produce(*row)


class FullCluster(FakeCluster):
    def producer(self, settings: Mapping[str, object]) -> Producer:
        made = super().producer(settings)
        self.full = FullProducer(made.hear, made.only_errors, made.offsets)
        self.full.sent = []
        return self.full


def test_a_row_that_waits_for_room_in_the_queue_is_sent_whole() -> None:
    cluster = FullCluster([4])
    found = broker_sink._Task(
        cast("Cluster", cluster),
        SinkOptions(bootstrap="east:9092", topic="flights"),
        0,
        None,
        None,
    )
    found._router._count_of = lambda _topic: 1
    row = pa.table(
        {
            "key": pa.array([b"k"]),
            "value": pa.array([b"v"]),
            "timestamp": pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC")),
            "headers": pa.array([[{"key": "h", "value": b"x"}]]),
        }
    )
    assert found.run(iter(row.to_batches())).records == 1
    assert cluster.full.sent == [
        ("flights", b"v", b"k", 0, None, None, 1_700_000_000_000, [("h", b"x")])
    ]


FATAL, FENCED = -150, -144


class OvertakenProducer(Producer):
    """A producer whose calls and reports fail with a fatal error; only abort tells the reason."""

    def init_transactions(self, _timeout_s: float) -> None:
        return

    def begin_transaction(self) -> None:
        return

    def flush(self, _timeout_s: float) -> int:
        if self.waiting:
            self.waiting = 0
            self.hear(ck.KafkaError(FATAL), Message(None))
        return 0

    def abort_transaction(self, _timeout_s: float) -> None:
        raise ck.KafkaException(ck.KafkaError(FENCED, "another one has begun", fatal=True))


class OvertakenCluster(FakeCluster):
    bootstrap = "east:9092"

    def producer(self, settings: Mapping[str, object]) -> Producer:
        made = super().producer(settings)
        return OvertakenProducer(made.hear, made.only_errors, made.offsets)

    def deadline(self) -> Callable[[], bool]:
        return lambda: True

    def failure(self, operation: str, error: ck.KafkaError) -> ClusterFailure:
        return ClusterFailure(self.bootstrap, operation, error.str(), error_code=error.code())


class NoMarkers:
    """Storage of markers in which no marker has been written."""

    topic = "__markers"

    def __init__(self, *_: object) -> None: ...

    def ensure(self) -> None: ...

    def committed(self, *_: object) -> dict[str, object]:
        return {}

    def partition_of(self, _key: str) -> int:
        return 0


def test_an_overtaken_task_is_fenced_after_any_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_sink, "Markers", NoMarkers)
    found = broker_sink._Task(
        cast("Cluster", OvertakenCluster([])),
        SinkOptions(bootstrap="east:9092", topic="flights"),
        0,
        Claim("query/0", 1),
        None,
    )
    found._router._count_of = lambda _topic: 1
    with pytest.raises(WriterFenced, match="another one has begun"):
        found.run(iter([rows()]))
