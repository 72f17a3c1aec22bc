"""A repeated Produce request gets the same bytes as on a new connection."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.server.steps import steps
from tests.worlds.brokers.outcomes import outcome
from tests.worlds.brokers.topics import delete_topic

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.errors import TidelogError
from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.requests import ClientConnection
from tidelog.protocol.wire import NO_UUID
from tidelog.record.buffers import is_free
from tidelog.record.builder import build_batch
from tidelog.server.api import dispatch
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.broker import open_node
from tidelog.server.runtime.reply import Reply
from tidelog.types import Codec, NewRecord

TOPIC = "t"
NOW_MS = 1_700_000_000_000
LENGTH_BYTES = 4
LAST_BY_NAME = 12


def timed_batch(*values: bytes, timestamp: int = NOW_MS, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch without a producer id."""
    return bytes(
        build_batch([NewRecord(value=v, timestamp=timestamp) for v in values], codec=codec)
    )


def of_producer(sequence: int, *, transactional: bool = False) -> bytes:
    """Return a batch of an idempotent producer."""
    records = [NewRecord(value=b"v", timestamp=NOW_MS)]
    made = build_batch(
        records,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )
    return bytes(made)


def damaged(data: bytes) -> bytes:
    """Return the batch with its last byte changed, so that the checksum is wrong."""
    return data[:-1] + bytes((data[-1] ^ 1,))


class Broker:
    """A node and one connection to it."""

    def __init__(self, folder: Path) -> None:
        env = Env(clock=ManualClock(NOW_MS))
        self.node: Node = open_node(str(folder), BrokerConfig.parse({})[0], env=env)
        info, _ = self.node.log_dir.create_topic(TOPIC, partitions=3)
        self.topic_id = info.topic_id or NO_UUID
        for number in range(2):
            self.node.partitions.get(TOPIC, number)
        self.connection = ClientInfo(1, "somewhere")

    def say(self, frame: bytes) -> bytes | str:
        """Return the response to a frame; if there is none now, return the reason as text."""
        try:
            found = outcome(self.node, self.connection, frame)
        except TidelogError as error:
            return type(error).__name__
        return b"".join(found) if isinstance(found, list) else type(found).__name__


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Yield two brokers: one keeps its connection, one gets a new connection for each request."""
    brokers = Broker(tmp_path / "a"), Broker(tmp_path / "b")
    yield brokers
    for each in brokers:
        each.node.close()


def frame_of(
    broker: Broker,
    version: int,
    rows: Sequence[tuple[int, bytes | None]],
    *,
    client: str = "somebody",
    acks: int = -1,
    topic: str = TOPIC,
) -> bytes:
    """Return a request with a batch for each of these partitions."""
    data = [PartitionProduceData(index=number, records=records) for number, records in rows]
    by_id = version > LAST_BY_NAME
    asked = TopicProduceData(
        name="" if by_id else topic,
        topic_id=broker.topic_id if by_id else NO_UUID,
        partition_data=data,
    )
    message = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[asked])
    pieces = ClientConnection(client).request(PRODUCE, version, message)
    return b"".join(pieces)[LENGTH_BYTES:]


def numbered(frame: bytes, number: int) -> bytes:
    """Return the request with another correlation id."""
    return frame[:4] + number.to_bytes(4, "big") + frame[8:]


def say_both(pair: tuple[Broker, Broker], frame: bytes) -> list[bytes | str]:
    """Return the response of each broker."""
    pair[1].connection = ClientInfo(1, "somewhere")
    return [broker.say(frame) for broker in pair]


def compare(pair: tuple[Broker, Broker], version: int, bodies: Sequence[bytes | None]) -> None:
    """Check that both brokers give the same responses to these requests, in order."""
    for number, body in enumerate(bodies):
        said = []
        for broker in pair:
            said.append(broker.say(numbered(frame_of(broker, version, [(0, body)]), number)))
            if broker is pair[1]:
                broker.connection = ClientInfo(1, "somewhere")
        if version <= LAST_BY_NAME or not isinstance(said[0], bytes):
            assert said[0] == said[1], (number, said)
        else:  # topic ids are random
            first, second = (broker.topic_id.bytes for broker in pair)
            assert isinstance(said[1], bytes)
            assert said[0].replace(first, second) == said[1]


BODIES: Sequence[bytes | None] = (
    timed_batch(b"first"),
    timed_batch(b"second", b"third"),
    timed_batch(b"x" * 5000),
    timed_batch(b"x" * 5000, codec=Codec.LZ4),
    damaged(timed_batch(b"fourth")),
    timed_batch(b"a") + timed_batch(b"b"),
    timed_batch(b"a")[:40],
    timed_batch(b"", timestamp=NOW_MS + (1 << 40)),
    None,
    b"",
    of_producer(0),
    of_producer(0),
    of_producer(5),
    of_producer(1, transactional=True),
    timed_batch(b"x" * (2 << 20)),
    timed_batch(b"last"),
)


@pytest.mark.parametrize("version", range(3, 14))
def test_templates_change_no_response(pair: tuple[Broker, Broker], version: int) -> None:
    compare(pair, version, BODIES)
    logs = [broker.node.partitions.get(TOPIC, 0).log for broker in pair]
    assert logs[0].log_end_offset == logs[1].log_end_offset > 0
    first, second = (bytes(log.active.view(0, log.active.size_bytes)) for log in logs)
    assert first == second


@pytest.mark.parametrize("version", [5, 9, 13])
def test_the_second_of_its_kind_takes_fewer_steps(
    pair: tuple[Broker, Broker], version: int
) -> None:
    broker = pair[0]
    frames = [frame_of(broker, version, [(0, timed_batch(b"2" * size))]) for size in (1, 300, 20)]
    broker.say(frames[0])
    again = steps(lambda: broker.say(frames[1]))
    broker.connection = ClientInfo(1, "somewhere")
    once = steps(lambda: broker.say(frames[2]))
    assert again < once / 2
    assert broker.node.partitions.get(TOPIC, 0).log.log_end_offset == 3


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_request_that_waits_for_a_flush_keeps_no_records(
    pair: tuple[Broker, Broker], *, is_repeated: bool
) -> None:
    node, connection = pair[0].node, pair[0].connection
    node.log_dir.create_topic("flushed", partitions=1, config={"flush.messages": "2"})
    log = node.partitions.get("flushed", 0).log
    frame = frame_of(pair[0], 9, [(0, timed_batch(b"1"))], topic="flushed")

    async def story() -> list[bool]:
        """Return whether the response is pending, and whether the request's buffer is free."""
        dispatch.answer(node, connection, memoryview(frame))
        if not is_repeated:
            connection.templates = None
        buffer = bytearray(numbered(frame, 1))
        found = dispatch.answer(node, connection, memoryview(buffer))
        assert isinstance(found, Reply)
        states = [not found.is_done, is_free(buffer)]
        await found
        return states

    assert asyncio.run(story()) == [True, True]
    assert log.log_end_offset == 2


def test_other_requests_get_the_codecs_responses(pair: tuple[Broker, Broker]) -> None:
    broker, plain = pair[0], timed_batch(b"1")
    known = frame_of(broker, 9, [(0, plain)])
    others = [
        frame_of(broker, 9, [(1, plain)]),
        frame_of(broker, 10, [(0, plain)]),
        frame_of(broker, 9, [(0, plain)], client="somebody-else"),
        frame_of(broker, 9, [(0, plain)], acks=1),
        frame_of(broker, 9, [(0, plain)], topic="T"),
        frame_of(broker, 9, [(0, plain), (1, plain)]),
        frame_of(broker, 9, [(0, of_producer(0, transactional=True))]),
        known + b"\0",
        known[:-1],
        known[:-1] + b"\1",
        known[:30],
        known[:3],
    ]
    for other in others:
        for frame in (known, other):
            first, second = say_both(pair, frame)
            assert first == second
    for number in range(2):
        logs = [each.node.partitions.get(TOPIC, number).log for each in pair]
        assert logs[0].log_end_offset == logs[1].log_end_offset > 0


def test_a_recreated_topic_is_looked_up_again(pair: tuple[Broker, Broker]) -> None:
    broker = pair[0]
    frame = frame_of(broker, 9, [(0, timed_batch(b"1"))])
    said = [broker.say(frame) for _ in range(3)]
    delete_topic(broker.node, TOPIC)
    broker.node.log_dir.create_topic(TOPIC, partitions=3)
    log = broker.node.partitions.get(TOPIC, 0).log
    assert broker.say(frame) == said[0]
    assert log.log_end_offset == 1


def test_no_templates_are_built_for_requests_that_always_change(
    pair: tuple[Broker, Broker],
) -> None:
    broker = pair[0]

    def cost(number: int) -> int:
        frame = frame_of(broker, 9, [(number % 2, timed_batch(b"1"))])
        return steps(lambda: broker.say(frame))

    costs = [cost(number) for number in range(100)]
    assert max(costs[-10:]) < costs[0] * 0.9
    logs = [broker.node.partitions.get(TOPIC, number).log for number in range(2)]
    assert [log.log_end_offset for log in logs] == [50] * 2
