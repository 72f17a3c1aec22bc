"""Two real brokers with the same records in different orders, and `tidelog failover`."""

import io
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.clients import await_ended
from tests.worlds.waiting import with_time

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.env import SystemClock

START = 1_700_000_000_000
GROUP = "billing"


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def content(self) -> dict[str, object]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def partitions(self) -> list[dict[str, object]]:
        found = self.content["partitions"]
        assert isinstance(found, list)
        return found

    @property
    def starts(self) -> dict[object, object]:
        return {row["partition"]: row["new_offset"] for row in self.partitions}

    @property
    def topics(self) -> list[dict[str, object]]:
        found = self.content["topics"]
        assert isinstance(found, list)
        return found

    @property
    def verdict(self) -> dict[str, object]:
        verdicts = self.content["verify"]
        assert isinstance(verdicts, list)
        (verdict,) = verdicts
        assert isinstance(verdict, dict)
        return verdict


@dataclass(slots=True)
class Pair:
    """Two brokers and a topic on both, with the same records in different orders."""

    a: Broker
    b: Broker
    topic: str
    created: dict[int, int] = field(default_factory=dict)

    def create(self, kind: str = "CreateTime", on_a: int = 1, on_b: int = 1) -> "Pair":
        self.a.create_topic(self.topic, on_a, message_timestamp_type=kind)
        self.b.create_topic(self.topic, on_b, message_timestamp_type=kind)
        return self

    def send(
        self,
        broker: Broker,
        numbers: list[int],
        *,
        partitioner: str = "consistent_random",
        size: int = 0,
    ) -> None:
        """Append a record per number; the number determines its key, value and create time."""
        producer = Producer(broker.client_config(linger_ms=0, partitioner=partitioner))
        for number in numbers:
            producer.produce(
                self.topic,
                key=b"%d" % number,
                value=b"value %d" % number + b"." * size,
                timestamp=self.created.get(number, START + number * 1_000),
            )
        assert producer.flush(REQUEST_TIMEOUT_S) == 0

    def transact(self, broker: Broker, batches: list[list[int]], aborted: list[int]) -> None:
        """Append each batch in a transaction.

        Before the last batch, abort a transaction with the records `aborted`.
        """
        config = broker.client_config(transactional_id=f"t-{self.topic}")
        producer = Producer(config)
        producer.init_transactions(REQUEST_TIMEOUT_S)
        for numbers in (*batches[:-1], aborted, batches[-1]):
            producer.begin_transaction()
            for number in numbers:
                producer.produce(
                    self.topic,
                    key=b"%d" % number,
                    value=b"value %d" % number,
                    timestamp=START + number * 1_000,
                )
            if numbers is aborted:
                producer.flush(REQUEST_TIMEOUT_S)
                producer.abort_transaction(REQUEST_TIMEOUT_S)
            else:
                producer.commit_transaction(REQUEST_TIMEOUT_S)
        await_ended(broker.bootstrap, self.topic)

    def commit(self, broker: Broker, offset: int, partition: int = 0) -> None:
        consumer = Consumer(broker.client_config(group_id=GROUP + self.topic))
        place = TopicPartition(self.topic, partition, offset)
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def committed(self, broker: Broker, partition: int = 0) -> int:
        consumer = Consumer(broker.client_config(group_id=GROUP + self.topic))
        (found,) = consumer.committed(
            [TopicPartition(self.topic, partition)], timeout=REQUEST_TIMEOUT_S
        )
        consumer.close()
        return int(found.offset)

    def append_times(self, broker: Broker) -> dict[int, int]:
        """Return each record's append time (a consumer's timestamp), by the record's number."""
        consumer = Consumer(broker.client_config(group_id="reader", enable_partition_eof=True))
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: dict[int, int] = {}
        while (message := consumer.poll(REQUEST_TIMEOUT_S)) is not None and message.error() is None:
            key = message.key()
            assert isinstance(key, bytes)
            found[int(key)] = message.timestamp()[1]
        consumer.close()
        return found

    def failover(self, *arguments: str) -> Result:
        """Run `tidelog failover`, which must print a plan; return the result."""
        result = self._run(*arguments)
        assert result.out, result.err
        return result

    def refused(self, *arguments: str) -> tuple[int, str]:
        """Run the command, which must print nothing on stdout; return its exit code and stderr."""
        result = self._run(*arguments)
        assert not result.out
        return result.code, result.err

    def sampled(
        self, is_enough: Callable[[Result], bool], *more: str, least_s: int
    ) -> tuple[int, Result]:
        """Run with sampling; repeat with a longer sampling time until there are enough samples."""
        return with_time(
            lambda seconds: self._run("--sample-for", f"{seconds}s", *more),
            is_enough,
            least_s=least_s,
        )

    def _run(self, *arguments: str) -> Result:
        out, err = io.StringIO(), io.StringIO()
        code = run(
            [
                *("failover", "--group", GROUP + self.topic, "--from", self.a.bootstrap),
                *("--to", self.b.bootstrap, "-o", "json", *arguments),
            ],
            Surroundings(stdout=out, stderr=err),
        )
        return Result(code, out.getvalue(), err.getvalue())


class Traffic:
    """Sends records with old create times, each to A and then to B, until the `with` block ends."""

    def __init__(self, pair: Pair, lag_ms: int) -> None:
        self._pair = pair
        self._lag_ms = lag_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        producers = [Producer(b.client_config(linger_ms=0)) for b in (self._pair.a, self._pair.b)]
        clock, random = SystemClock(), Random(1)
        number = 1_000
        while not self._stop.wait(0.002):
            created = clock.now_ms() - random.randrange(self._lag_ms)
            for producer in producers:
                producer.produce(
                    self._pair.topic, key=b"%d" % number, value=b"v", timestamp=created
                )
                producer.poll(0)
            number += 1
        for producer in producers:
            producer.flush(REQUEST_TIMEOUT_S)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def delete_before(broker: Broker, topic: str, offset: int) -> None:
    place = TopicPartition(topic, 0, offset)
    admin = AdminClient(broker.client_config())
    for future in admin.delete_records([place]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)
