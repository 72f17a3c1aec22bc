"""A group goes from one real Kafka 4.3 to another, and misses nothing."""

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.kafka_oracle import Oracle
from tests.peers.broker import Broker
from tests.peers.groups import member
from tests.peers.home import KafkaHome

from tidelog.cli.main import run
from tidelog.cli.surroundings import Surroundings
from tidelog.env import SystemClock

pytestmark = pytest.mark.kafka

START = 1_700_000_000_000
GROUP = "billing"


@pytest.fixture(scope="module")
def second_broker(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    broker = Broker(kafka_jars, kafka_oracle, tmp_path_factory.mktemp("second"))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


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
    """Two brokers and a topic on both, with records of which each has its own order."""

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
        """Append in this order; a number stands for key, value and create time."""
        producer = Producer(broker.client_config(linger_ms=0, partitioner=partitioner))
        for number in numbers:
            producer.produce(
                self.topic,
                key=b"%d" % number,
                value=b"value %d" % number + b"." * size,
                timestamp=self.created.get(number, START + number * 1_000),
            )
        assert producer.flush(30) == 0

    def transact(self, broker: Broker, batches: list[list[int]], aborted: list[int]) -> None:
        """Each batch in a transaction of its own, the aborted records in one before the last."""
        config = broker.client_config(transactional_id=f"t-{self.topic}")
        producer = Producer(config)
        producer.init_transactions(30)
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
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)

    def commit(self, broker: Broker, offset: int, partition: int = 0) -> None:
        consumer = Consumer(broker.client_config(group_id=GROUP + self.topic))
        place = TopicPartition(self.topic, partition, offset)
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def committed(self, broker: Broker, partition: int = 0) -> int:
        consumer = Consumer(broker.client_config(group_id=GROUP + self.topic))
        (found,) = consumer.committed([TopicPartition(self.topic, partition)], timeout=30)
        consumer.close()
        return int(found.offset)

    def append_times(self, broker: Broker) -> dict[int, int]:
        """What a consumer sees as timestamps, by number."""
        consumer = Consumer(broker.client_config(group_id="reader", enable_partition_eof=True))
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: dict[int, int] = {}
        while (message := consumer.poll(30)) is not None and message.error() is None:
            key = message.key()
            assert isinstance(key, bytes)
            found[int(key)] = message.timestamp()[1]
        consumer.close()
        return found

    def failover(self, *arguments: str) -> Result:
        """Run the command, which shows a plan at least."""
        result = self._run(*arguments)
        assert result.out, result.err
        return result

    def refused(self, *arguments: str) -> tuple[int, str]:
        """Run the command, which must show nothing."""
        result = self._run(*arguments)
        assert not result.out
        return result.code, result.err

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


@pytest.fixture
def pair(kafka_broker: Broker, second_broker: Broker, request: pytest.FixtureRequest) -> Pair:
    return Pair(kafka_broker, second_broker, f"failover-{abs(hash(request.node.name))}")


def test_the_reordering_of_kip_33(pair: Pair) -> None:
    """m1, created first, lies before m2 in one cluster and behind it in the other."""
    pair.create()
    m1, m2 = 10, 11
    pair.send(pair.a, [*range(10), m2, 12, 13, m1, *range(14, 20)])
    pair.send(pair.b, [*range(10), m1, m2, *range(12, 20)])
    pair.commit(pair.a, 11)  # m2 is consumed, m1 is not
    careless = pair.failover("--max-latency", "0s", "--verify", "--execute")
    assert careless.code == 1
    assert "nothing was committed: 1 records would be missed" in careless.err
    assert careless.starts == {0: 11}
    assert careless.verdict["examples"] == [
        {
            "partition": 0,
            "offset": 10,
            "time": "2023-11-14T22:13:30.000Z",
            "time_ms": START + m1 * 1_000,
        }
    ]
    assert pair.committed(pair.b) < 0
    safe = pair.failover("--max-latency", "3s", "--verify", "--execute")
    assert safe.code == 0, safe.err
    # Created since 3 s before m2, less what was not consumed: 8, 9, and m2 itself.
    assert safe.verdict["missed"] == 0
    assert safe.verdict["duplicates"] == 3
    assert safe.starts == {0: 8}
    assert pair.committed(pair.b) == 8


@pytest.mark.parametrize("from_kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("to_kind", ["CreateTime", "LogAppendTime"])
def test_append_times_serve_on_either_side(pair: Pair, from_kind: str, to_kind: str) -> None:
    """Records are sent now, to A in another order than to B; those created first come last."""
    pair.a.create_topic(pair.topic, message_timestamp_type=from_kind)
    pair.b.create_topic(pair.topic, message_timestamp_type=to_kind)
    now = SystemClock().now_ms()
    pair.created = {number: now - 5_000 + 100 * number for number in range(40)}
    pair.send(pair.a, list(range(20)))
    pair.send(pair.b, list(reversed(range(20))))
    pair.send(pair.a, list(reversed(range(20, 40))))
    pair.send(pair.b, list(range(20, 40)))
    pair.commit(pair.a, 25)
    result = pair.failover("--max-latency", "1m", "--verify", "--execute")
    assert result.code == 0, result.err
    verdict = result.verdict
    both_create = (from_kind, to_kind) == ("CreateTime", "CreateTime")
    assert verdict["compared"] == ("key, create time, value" if both_create else "key, value")
    assert (verdict["unconsumed"], verdict["missed"], verdict["absent"]) == (15, 0, 0)
    # A minute covers all that was sent: everything consumed comes again, and is counted.
    assert (verdict["after"], verdict["duplicates"], verdict["only_on_b"]) == (40, 25, 0)
    assert pair.committed(pair.b) == 0


class Traffic:
    """Sends to both brokers until the block ends, to B behind A, create times before both."""

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
            producer.flush(30)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_the_latency_is_measured_at_the_tails(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, list(range(10)))
    pair.send(pair.b, list(range(10)))
    pair.commit(pair.a, 5)
    with Traffic(pair, lag_ms=800):
        result = pair.failover("--sample-for", "3s", "--sample-records", "50", "--verify")
    margin = result.content["margin"]
    assert isinstance(margin, dict)
    samples = margin["samples"]
    assert [(s["cluster"], s["records"] >= 50, s["for_ms"]) for s in samples] == [
        ("A", True, 3_000),
        ("B", True, 3_000),
    ]
    assert margin["measured"] is True
    assert margin["latency_ms"] == max(sample["max_ms"] for sample in samples) >= 400
    assert result.verdict["missed"] == 0


def test_a_latency_that_cant_be_measured_is_refused_with_the_reason(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, [1])
    pair.send(pair.b, [1])
    pair.commit(pair.a, 1)
    code, err = pair.refused("--sample-for", "200ms")
    assert code == 1
    assert f"the latency of {pair.topic} on A can't be told from 0 records in 0.2 s" in err
    assert "1000 are needed" in err
    assert "--max-latency 2m" in err


def test_the_latency_of_stamped_topics_is_read_from_their_batches(pair: Pair) -> None:
    """Exactly, for what was appended before: nothing is sent while it is measured."""
    pair.create("LogAppendTime")
    now = SystemClock().now_ms()
    pair.created = {number: now - 10 * number for number in range(100)}
    pair.send(pair.a, list(range(100)))
    pair.send(pair.b, list(range(100)))
    pair.commit(pair.a, 50)
    result = pair.failover("--sample-for", "5m", "--sample-records", "100", "--verify")
    margin = result.content["margin"]
    assert isinstance(margin, dict)
    appended = {name: pair.append_times(b) for name, b in (("A", pair.a), ("B", pair.b))}
    for sample in margin["samples"]:
        times = appended[sample["cluster"]]
        largest = max(times[number] - pair.created[number] for number in range(100))
        assert (sample["is_exact"], sample["records"]) == (True, 100)
        assert sample["max_ms"] == largest
    assert result.verdict["missed"] == 0


def test_stamped_topics_behind_a_password_are_refused_with_the_reason(
    pair: Pair, tmp_path: Path
) -> None:
    pair.create("LogAppendTime")
    pair.send(pair.a, [1])
    pair.send(pair.b, [1])
    pair.commit(pair.a, 1)
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=PLAINTEXT\n")
    with Traffic(pair, lag_ms=10):
        code, err = pair.refused(
            *("--sample-for", "1s", "--sample-records", "10", "--from-config", str(settings))
        )
    assert code == 1
    assert "its timestamps are append times" in err


def test_another_number_of_partitions(pair: Pair) -> None:
    """A record may be in any partition of B, so the earliest time of all counts for each."""
    pair.create(on_a=2, on_b=3)
    pair.send(pair.a, list(range(60)))
    pair.send(pair.b, list(range(60)))
    for partition in (0, 1):
        pair.commit(pair.a, 20, partition)
    result = pair.failover("--max-latency", "1s", "--verify")
    assert result.code == 0, result.err
    assert list(result.starts) == [0, 1, 2]
    (topic,) = result.topics
    assert topic["mapping"] == "any"
    assert topic["why"] == f"{pair.topic} has 2 partitions on A and 3 on B"
    assert result.verdict["missed"] == 0


@pytest.mark.parametrize(
    ("on_a", "on_b", "mapping"),
    [
        ("murmur2_random", "murmur2_random", "same"),
        ("consistent_random", "consistent_random", "same"),
        ("murmur2_random", "consistent_random", "any"),
    ],
)
def test_whether_partitions_correspond_is_seen_from_the_keys(
    pair: Pair, on_a: str, on_b: str, mapping: str
) -> None:
    pair.create(on_a=3, on_b=3)
    pair.send(pair.a, list(range(60)), partitioner=on_a)
    pair.send(pair.b, list(range(60)), partitioner=on_b)
    for partition in range(3):
        pair.commit(pair.a, 10, partition)
    result = pair.failover("--max-latency", "1s", "--verify")
    assert result.code == 0, result.err
    (topic,) = result.topics
    assert topic["mapping"] == mapping, topic
    assert result.verdict["missed"] == 0


def test_members_on_b_refuse_it_and_a_dry_run_commits_nothing(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, list(range(10)))
    pair.send(pair.b, list(range(10)))
    pair.commit(pair.a, 5)
    assert pair.failover("--max-latency", "0s").starts == {0: 4}
    assert pair.committed(pair.b) < 0
    with member(pair.b, GROUP + pair.topic, pair.topic):
        code, err = pair.refused("--max-latency", "0s", "--execute")
        assert code == 1
        assert "is active on" in err
        assert "--execute is refused" in pair.failover("--max-latency", "0s").err
    assert pair.committed(pair.b) < 0


def test_where_kafka_finds_nothing_although_there_is_something_it_starts_at_the_beginning(
    pair: Pair,
) -> None:
    """The only match in the first segment lies below the log start; Kafka looks no further."""
    pair.a.create_topic(pair.topic)
    pair.b.create_topic(pair.topic, segment_bytes="1048576")
    late = 1_000
    pair.created = dict.fromkeys(range(100, 700), START)
    pair.send(pair.b, [late])
    # Of a segment's 1 MB each half takes 0.6: the second one begins a new segment.
    pair.send(pair.b, list(range(100, 400)), size=2_000)
    pair.send(pair.b, list(range(400, 700)), size=2_000)
    pair.send(pair.b, [late + 1, late + 2])
    pair.send(pair.a, [late + 1, late + 2])
    pair.commit(pair.a, 0)
    delete_before(pair.b, pair.topic, 1)
    result = pair.failover("--max-latency", "2s", "--verify")
    assert result.starts == {0: 1}
    (row,) = result.partitions
    assert row["found_by"] == "beginning"
    assert str(row["why"]).startswith("B found nothing by time although it has later records")
    assert result.verdict["missed"] == 0


def delete_before(broker: Broker, topic: str, offset: int) -> None:
    place = TopicPartition(topic, 0, offset)
    admin = AdminClient(broker.client_config())
    for future in admin.delete_records([place]).values():
        future.result(timeout=30)


def test_aborted_records_and_markers_count_for_nothing(pair: Pair) -> None:
    pair.create()
    pair.transact(pair.a, [[1, 2], [3]], aborted=[90])
    pair.transact(pair.b, [[1], [2, 3]], aborted=[91, 92])
    end = 9
    pair.send(pair.a, [4])
    pair.send(pair.b, [4])
    for position, unconsumed in ((0, 4), (3, 2), (end, 0)):
        pair.commit(pair.a, position)
        result = pair.failover("--max-latency", "1h", "--verify")
        assert result.code == 0, result.err
        verdict = result.verdict
        assert (verdict["unconsumed"], verdict["missed"]) == (unconsumed, 0)
        assert (verdict["after"], verdict["duplicates"]) == (4, 4 - unconsumed)


def test_a_stated_time_does_without_a(pair: Pair) -> None:
    pair.create()
    pair.send(pair.b, list(range(10)))
    out = io.StringIO()
    code = run(
        [
            *("failover", "--group", "g", "--to", pair.b.bootstrap, "--topic", pair.topic),
            *("--at", str(START + 7_000), "--max-latency", "2s", "-o", "csv"),
        ],
        Surroundings(stdout=out, stderr=io.StringIO()),
    )
    assert code == 0
    heading, row = out.getvalue().splitlines()
    assert dict(zip(heading.split(","), row.split(","), strict=True))["new_offset"] == "5"


def test_a_cluster_that_is_not_there_is_named(pair: Pair) -> None:
    pair.create()
    pair.send(pair.a, [1])
    pair.commit(pair.a, 0)
    gone = Pair(pair.a, Nobody(), pair.topic)  # type: ignore[arg-type]
    code, err = gone.refused("--max-latency", "1s", "--timeout", "1s")
    assert code == 1
    assert "127.0.0.1:1: could not" in err


class Nobody:
    """A broker that is not there."""

    bootstrap = "127.0.0.1:1"
