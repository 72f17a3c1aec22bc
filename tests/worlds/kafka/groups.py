"""Consumer groups on a real broker, and commands run against it."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings, wait_seconds
from tidelog.env import Env, os_env


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


def tidelog(
    *arguments: str,
    env: Env | None = None,
    wait: Callable[[float], None] = wait_seconds,
) -> Ended:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    surroundings = Surroundings(
        env=env or os_env(), stdout=out, stderr=err, wait=wait, variables={}
    )
    code = run(arguments, surroundings)
    return Ended(code, out.getvalue(), err.getvalue())


def send(
    broker: Broker, topic: str, times: Sequence[int], *, partition: int = 0, key: str | None = None
) -> None:
    """Send a record for each create time, in few batches; the values are the times."""
    producer = Producer(broker.client_config(linger_ms=20))
    for ms in times:
        producer.produce(topic, partition=partition, key=key, value=str(ms), timestamp=ms)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0


@contextmanager
def member(broker: Broker, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """Run a member of the group, with assigned partitions, until the `with` block ends."""
    consumer = Consumer(
        broker.client_config(
            group_id=group,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            enable_partition_eof=True,
        )
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(REQUEST_TIMEOUT_S)
        assert message is not None, "no record and no end of a partition came"
        _step_back(consumer, message)
        yield consumer
    finally:
        consumer.close()


def _step_back(consumer: Consumer, message: Message) -> None:
    """Seek back to the message, so that the next poll returns it again."""
    if message.error() is None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        consumer.seek(TopicPartition(topic, partition, offset))


def consume_all(broker: Broker, group: str, topic: str, partitions: int) -> dict[int, list[int]]:
    """Read as a new member from the group's position to the end, and commit; return the values."""
    consumer = Consumer(
        broker.client_config(
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            enable_partition_eof=True,
        )
    )
    seen: dict[int, list[int]] = {number: [] for number in range(partitions)}
    ended: set[int] = set()
    try:
        consumer.subscribe([topic])
        while len(ended) < partitions:
            message = consumer.poll(REQUEST_TIMEOUT_S)
            assert message is not None, f"partitions {ended} ended, then nothing came"
            number = message.partition()
            assert number is not None
            if message.error() is not None:
                ended.add(number)
                continue
            value = message.value()
            assert value is not None
            seen[number].append(int(value))
        commit_positions(consumer, topic, partitions)
    finally:
        consumer.close()
    return seen


def commit_positions(consumer: Consumer, topic: str, partitions: int) -> None:
    """Commit the consumer's positions, without partitions that the consumer has not read."""
    places = consumer.position([TopicPartition(topic, number) for number in range(partitions)])
    known = [place for place in places if place.offset >= 0]
    if known:
        consumer.commit(offsets=known, asynchronous=False)


def commit(broker: Broker, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets by partition, like a consumer that was in the group earlier."""
    consumer = Consumer(broker.client_config(group_id=group))
    try:
        places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()
