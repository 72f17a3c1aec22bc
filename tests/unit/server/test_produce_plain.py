"""Each part of a Produce request has the same result and effect as a separate request."""

import asyncio
from dataclasses import dataclass, replace
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults import seeded_env

from tidelog.config import BrokerConfig
from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.record.builder import build_batch
from tidelog.record.header import ATTRIBUTES_AT, LENGTH_AT, MAGIC_AT, TRANSACTIONAL_BIT, seal
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.produce import produce
from tidelog.server.broker import open_node
from tidelog.server.runtime.errors import UnansweredRequest
from tidelog.types import NewRecord

NOW = 1_700_000_000_000
PARTITIONS = 3
Answered: TypeAlias = list[tuple[str, list[PartitionProduceResponse]]] | int | None
TOPICS = ("a", "b", "stamped", "compacted", "__consumer_offsets", "missing")
BY_ID = 13


def plain_batch(
    *, key: bytes | None = None, sequence: int = -1, transactional: bool = False
) -> bytes:
    has_producer = sequence >= 0
    return bytes(
        build_batch(
            [NewRecord(key=key, value=b"v", timestamp=NOW)],
            producer_id=9 if has_producer else -1,
            producer_epoch=0 if has_producer else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def with_byte(at: int, value: int, *, is_sealed: bool = True) -> bytes:
    data = bytearray(plain_batch())
    data[at] = value
    if is_sealed:
        seal(data, 0)
    return bytes(data)


RECORDS = st.sampled_from(
    [
        *[plain_batch()] * 6,
        plain_batch(key=b"k"),
        plain_batch(sequence=0),
        plain_batch(sequence=1),
        plain_batch(sequence=0, transactional=True),
        plain_batch() + plain_batch(),
        plain_batch() + b"\0",
        plain_batch()[:-1],
        plain_batch()[:30],
        b"",
        None,
        with_byte(MAGIC_AT, 1, is_sealed=False),
        with_byte(LENGTH_AT + 3, 3, is_sealed=False),
        with_byte(LENGTH_AT, 255, is_sealed=False),
        with_byte(ATTRIBUTES_AT + 1, TRANSACTIONAL_BIT),
        with_byte(ATTRIBUTES_AT + 1, 7),
        with_byte(7, 1),
        with_byte(len(plain_batch()) - 1, 1, is_sealed=False),
    ]
)
PARTS = st.lists(st.tuples(st.integers(0, PARTITIONS), RECORDS), min_size=1, max_size=4)


@dataclass(frozen=True)
class Asked:
    """Parameters from which a request is built for each of the two brokers."""

    version: int
    acks: int
    topics: list[tuple[str, list[tuple[int, bytes | None]]]]
    client_id: str = "t"


ASKED = st.builds(
    Asked,
    version=st.sampled_from([3, 6, 7, 9, 12, BY_ID]),
    acks=st.sampled_from([-1, 1, 1, 1, 2]),  # acks=0 gets no response to compare
    topics=st.lists(st.tuples(st.sampled_from([*TOPICS, *["a", "b"] * 3]), PARTS), max_size=3),
    client_id=st.sampled_from(["t", "t", "__admin_client"]),
)


def open_side() -> Node:
    """Start a broker with all partitions open."""
    node = open_node("/data", BrokerConfig.parse({})[0], env=seeded_env(1, now_ms=NOW))
    for name in TOPICS[:2]:
        node.log_dir.create_topic(name, partitions=PARTITIONS)
    node.log_dir.create_topic(
        "stamped", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
    )
    node.log_dir.create_topic(
        "compacted", partitions=PARTITIONS, config={"cleanup.policy": "compact"}
    )
    node.log_dir.create_topic("__consumer_offsets", partitions=PARTITIONS)
    for name in TOPICS[:-1]:
        for number in range(PARTITIONS):
            node.partitions.get(name, number)
    return node


def request_of(node: Node, asked: Asked) -> ProduceRequest:
    topics = []
    for name, parts in asked.topics:
        info = node.topics.find(name)
        has_id = asked.version >= BY_ID and info is not None and info.topic_id is not None
        topics.append(
            TopicProduceData(
                name="" if asked.version >= BY_ID else name,
                topic_id=info.topic_id if has_id and info and info.topic_id else NO_UUID,
                partition_data=[
                    PartitionProduceData(
                        index=index,
                        records=None if data is None else memoryview(bytearray(data)),
                    )
                    for index, data in parts
                ],
            )
        )
    return ProduceRequest(transactional_id=None, acks=asked.acks, timeout_ms=9, topic_data=topics)


async def answered(node: Node, asked: Asked) -> Answered:
    """Send a request; return its response with topic names instead of ids."""
    context = RequestContext(node, PRODUCE, asked.version, asked.client_id, ClientInfo(1, "here"))
    try:
        answer = await produce(context, request_of(node, asked))
    except UnansweredRequest as error:
        return error.code
    if answer is None:
        return None
    assert isinstance(answer, ProduceResponse)
    return [
        (topic.name or f"{topic.topic_id}", topic.partition_responses) for topic in answer.responses
    ]


def logs(node: Node) -> list[bytes]:
    return [
        bytes(segment.whole())
        for name in TOPICS[:-1]
        for number in range(PARTITIONS)
        for segment in node.partitions.get(name, number).log.segments
    ]


def alone(asked: Asked) -> list[Asked]:
    """Split a request into requests with one partition each."""
    return [
        replace(asked, topics=[(name, [part])]) for name, parts in asked.topics for part in parts
    ]


async def together_and_alone(
    together: Node, apart: Node, asked: Asked
) -> tuple[Answered, Answered]:
    """Return the response to a request, and the joined responses to its parts."""
    said = await answered(together, asked)
    parts = [await answered(apart, each) for each in alone(asked)]
    if refused := [part for part in parts if isinstance(part, int)]:
        return said, refused[0]
    rows: list[tuple[str, list[PartitionProduceResponse]]] = []
    for part in parts:
        assert isinstance(part, list)
        for name, found in part:
            if rows and rows[-1][0] == name:
                rows[-1][1].extend(found)
            else:
                rows.append((name, found))
    return said, rows


def codes(answer: Answered) -> set[int]:
    """Return the error codes in a response."""
    if isinstance(answer, int):
        return {answer}
    return {each.error_code for _, rows in answer or () for each in rows}


def each_once(asked: Asked) -> bool:
    """Return whether the request has no topic twice, and no partition of a topic twice."""
    names = [name for name, _ in asked.topics]
    numbers = [[number for number, _ in parts] for _, parts in asked.topics]
    return len({*names}) == len(names) and all(len({*each}) == len(each) for each in numbers)


@given(st.lists(ASKED.filter(each_once), min_size=1, max_size=4))
@examples(60)
def test_a_combined_request_has_the_results_and_effects_of_separate_ones(
    asked: list[Asked],
) -> None:
    together, apart = open_side(), open_side()
    for each in asked:
        before = logs(together)
        said, expected = asyncio.run(together_and_alone(together, apart, each))
        refused, alone_codes = codes(said), codes(expected)
        if isinstance(said, int) or (said != expected and len(refused) == 1):
            # A malformed part makes the broker refuse the whole request, and no record is written.
            assert 0 not in refused
            assert refused <= alone_codes
            assert logs(together) == before
            break
        assert said == expected
    else:
        assert logs(together) == logs(apart)
        assert tallies(together) == tallies(apart)
    together.close()
    apart.close()


def tallies(node: Node) -> object:
    found = getattr(node.metrics, "topics", {})
    return {
        name: (tally.records_in, tally.bytes_in, tally.latency.counts, tally.latency.total)
        for name, tally in found.items()
    }


def test_a_partition_named_twice_with_an_undefined_codec_gets_a_response() -> None:
    """A request with such a partition gets an error response, and its connection stays open."""
    node = open_side()
    odd = with_byte(ATTRIBUTES_AT + 1, 7)
    both: list[tuple[int, bytes | None]] = [(0, plain_batch()), (0, odd)]
    for parts in (both, both[::-1]):
        said = asyncio.run(answered(node, Asked(3, 1, [("a", parts)])))
        assert isinstance(said, list)
        assert [(each.index, each.error_code) for _, all_of in said for each in all_of] == [(0, 76)]
    node.close()
