"""Client libraries behind one interface: write, read, look up offsets by time, join a group.

This module has confluent-kafka (librdkafka), kafka-python and aiokafka. process_adapters has kcat
and Kafka's own Java client, which run in separate processes. A lookup returns None if no record
matches, and also if the broker responds that the log's format stores no times.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeVar, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPlace
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyPlace
from tests.worlds.waiting import Patience

TIMEOUT_S = 90
# Time limit in seconds for a rebalance, which on a busy machine takes several of the clients'
# timeouts.
SETTLE_S = 240
# Session timeout in ms. It is longer than the pauses of a busy machine: if a member's session
# expired, another member would read its records again.
SESSION_MS = 30_000
POLL_S = 0.05
PARTITIONS = 4
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lookup:
    """Offsets of one partition, as returned by a client's lookups.

    Attributes:
        begin: First offset.
        end: End offset, exclusive.
        found: The offset for each requested time; None if no record matches.
    """

    begin: int
    end: int
    found: list[int | None]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Each member's number of partitions in each of the three stages, and all values read."""

    sizes: list[int]
    values: set[str]


class Client(Protocol):
    """Interface of a client."""

    name: str

    def produce(self, bootstrap: str, topic: str, values: Sequence[str]) -> None:
        """Write to partition 0."""
        ...

    def consume(self, bootstrap: str, topic: str) -> list[str]:
        """Read partition 0 from its beginning to its end."""
        ...

    def look_up(self, bootstrap: str, topic: str, times: Sequence[int]) -> Lookup:
        """Look up partition 0's first and end offset, and the offset for each time (KIP-79)."""
        ...

    def rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        """Run a group with one member, then with a second one, then with only the first one."""
        ...


class Confluent:
    """librdkafka through confluent-kafka."""

    name = "confluent"

    def produce(self, bootstrap: str, topic: str, values: Sequence[str]) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for value in values:
            producer.produce(topic, value.encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    def _consumer(self, bootstrap: str, group: str = "none") -> Consumer:
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "cooperative-sticky",
            "log_level": 2,
        }
        return Consumer(config)

    def consume(self, bootstrap: str, topic: str) -> list[str]:
        consumer = self._consumer(bootstrap)
        place = TopicPartition(topic, 0, 0)
        end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[1]
        consumer.assign([place])
        found: list[str] = []
        while end > 0:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append((message.value() or b"").decode())
            if cast("int", message.offset()) >= end - 1:
                break
        consumer.close()
        return found

    def look_up(self, bootstrap: str, topic: str, times: Sequence[int]) -> Lookup:
        consumer = self._consumer(bootstrap)
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        found = [self._offset_for(consumer, topic, time) for time in times]
        consumer.close()
        return Lookup(begin, end, found)

    @staticmethod
    def _offset_for(consumer: Consumer, topic: str, time: int) -> int | None:
        try:
            answer = consumer.offsets_for_times([TopicPartition(topic, 0, time)], TIMEOUT_S)[0]
        except KafkaException as refused:
            if refused.args[0].code() != UNSUPPORTED_FOR_MESSAGE_FORMAT:
                raise
            return None
        return answer.offset if answer.offset >= 0 else None

    def rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        values: set[str] = set()

        def poll(consumer: Consumer) -> int:
            message = consumer.poll(POLL_S)
            if message is not None and not message.error():
                values.add((message.value() or b"").decode())
            return len(consumer.assignment())

        def member() -> Consumer:
            consumer = self._consumer(bootstrap, group)
            consumer.subscribe([topic])
            return consumer

        return _in_turns(member, poll, lambda one: one.close(), values, records)


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def produce(self, bootstrap: str, topic: str, values: Sequence[str]) -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap)
        for value in values:
            producer.send(topic, value.encode(), partition=0)
        producer.flush(TIMEOUT_S)
        producer.close()

    def consume(self, bootstrap: str, topic: str) -> list[str]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        place = PyPlace(topic, 0)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        found: list[str] = []
        patience = Patience()
        while consumer.position(place) < end:
            patience.check(found)
            for records in consumer.poll(timeout_ms=500).values():
                found += [(record.value or b"").decode() for record in records]
        consumer.close()
        return found

    def look_up(self, bootstrap: str, topic: str, times: Sequence[int]) -> Lookup:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap)
        place = PyPlace(topic, 0)
        answers = [consumer.offsets_for_times({place: time})[place] for time in times]
        begin = consumer.beginning_offsets([place])[place]
        end = consumer.end_offsets([place])[place]
        consumer.close()
        return Lookup(begin, end, [None if one is None else one.offset for one in answers])

    def rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        values: set[str] = set()

        def poll(one: _Polled) -> int:
            size = one.look()
            values.update(one.values)
            return size

        def member() -> _Polled:
            consumer = KafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=100,
                metadata_max_age_ms=1_000,
            )
            consumer.subscribe([topic])
            # If the group's leader assigns partitions before it knows the topic, no member gets
            # any. This client (3.0) may then keep the empty assignment, so each member requests
            # the topic's metadata before it joins.
            assert topic in consumer.topics()
            return _Polled(consumer)

        return _in_turns(member, poll, _Polled.close, values, records)


class _Polled:
    """A group member with a thread that polls its consumer all the time.

    kafka-python (3.0) sends a request again if its response arrives between two polls. If one
    thread polled all members in turn, joining might therefore never end on a busy machine.

    Attributes:
        values: The values read so far.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.values: tuple[str, ...] = ()
        self._size = 0
        self._consumer = consumer
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for found in self._consumer.poll(timeout_ms=500).values():
                self.values += tuple((record.value or b"").decode() for record in found)
            self._size = len(self._consumer.assignment())

    def look(self) -> int:
        """Wait a moment; return how many partitions the member has."""
        self._is_over.wait(POLL_S)
        return self._size

    def close(self) -> None:
        """Leave the group."""
        self._is_over.set()
        self._thread.join()
        self._consumer.close()


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def produce(self, bootstrap: str, topic: str, values: Sequence[str]) -> None:
        async def run() -> None:
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
                for value in values:
                    await producer.send_and_wait(topic, value.encode(), partition=0)

        asyncio.run(run())

    def consume(self, bootstrap: str, topic: str) -> list[str]:
        async def run() -> list[str]:
            place = AioPlace(topic, 0)
            found: list[str] = []
            async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                consumer.assign([place])
                await consumer.seek_to_beginning(place)
                end = (await consumer.end_offsets([place]))[place]
                while await consumer.position(place) < end:
                    record = await asyncio.wait_for(consumer.getone(place), TIMEOUT_S)
                    found.append((record.value or b"").decode())
            return found

        return asyncio.run(run())

    def look_up(self, bootstrap: str, topic: str, times: Sequence[int]) -> Lookup:
        async def run() -> Lookup:
            place = AioPlace(topic, 0)
            async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                answers = [(await consumer.offsets_for_times({place: t}))[place] for t in times]
                begin = (await consumer.beginning_offsets([place]))[place]
                end = (await consumer.end_offsets([place]))[place]
            return Lookup(begin, end, [None if one is None else one.offset for one in answers])

        return asyncio.run(run())

    def rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        return asyncio.run(self._rebalance(bootstrap, topic, group, records))

    async def _rebalance(self, bootstrap: str, topic: str, group: str, records: int) -> Rebalance:
        values: set[str] = set()

        async def poll(consumer: AIOKafkaConsumer) -> int:
            for found in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                values.update((record.value or b"").decode() for record in found)
            return len(consumer.assignment())

        async def settle(members: Sequence[AIOKafkaConsumer], each: int) -> list[int]:
            async with asyncio.timeout(SETTLE_S):
                while (sizes := [await poll(one) for one in members]) != [each] * len(members):
                    pass
            return sizes

        def member() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=100,
                metadata_max_age_ms=1_000,
            )

        async with member() as first:
            sizes = await settle([first], PARTITIONS)
            async with member() as second:
                sizes += await settle([first, second], PARTITIONS // 2)
            sizes += await settle([first], PARTITIONS)
            async with asyncio.timeout(SETTLE_S):
                while len(values) < records:
                    await poll(first)
        return Rebalance(sizes, values)


def _in_turns(
    member: Callable[[], T],
    poll: Callable[[T], int],
    close: Callable[[T], object],
    values: set[str],
    records: int,
) -> Rebalance:
    """Poll members in turn in this thread until each member has its share of the partitions."""

    def settle(members: Sequence[T], each: int) -> list[int]:
        end_s = monotonic() + SETTLE_S
        while (sizes := [poll(one) for one in members]) != [each] * len(members):
            assert monotonic() < end_s, f"the group does not settle: {sizes}"
        return sizes

    first = member()
    try:
        sizes = settle([first], PARTITIONS)
        second = member()
        try:
            sizes += settle([first, second], PARTITIONS // 2)
        finally:
            close(second)
        sizes += settle([first], PARTITIONS)
        end_s = monotonic() + SETTLE_S
        while len(values) < records and monotonic() < end_s:
            poll(first)
    finally:
        close(first)
    return Rebalance(sizes, values)
