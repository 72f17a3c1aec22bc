"""Results of Kafka and our broker if a Produce request names a partition more than once."""

import uuid
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker as KafkaBroker
from tests.worlds.kafka.either import AnyBroker, Ours
from tests.worlds.records.batches import batch

import tidelog
from tidelog.protocol.messages import METADATA, PRODUCE
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = pytest.mark.kafka

BY_NAME, BY_ID = 9, 13
NOBODY_ID = uuid.UUID(int=5)
INVALID_RECORD = 87
# The records are old: with the default retention of a week, Kafka would delete them within half a
# minute.
FOREVER = {"log.retention.ms": "-1"}
# One partition of a request: its index and the bytes sent to it.
Entry: TypeAlias = tuple[int, bytes]
# One partition of a response: its index, its error code, and the first offset of its batch.
Answer: TypeAlias = tuple[int, int, int]


class Told(NamedTuple):
    """A broker's response, and the records that the broker stored.

    Attributes:
        topics: Number of topics in the response.
        answers: Responses of all partitions, sorted.
        kept: Values of the stored records, by partition.
    """

    topics: int
    answers: list[Answer]
    kept: dict[int, list[bytes]]


def numbered_batch(value: bytes, sequence: int | None = None) -> bytes:
    """Return a batch; if a sequence number is given, the batch is from an idempotent producer."""
    if sequence is None:
        return batch(value, key=b"k", timestamp=1_700_000_000_000)
    return batch(
        value,
        key=b"k",
        timestamp=1_700_000_000_000,
        producer_id=71_000,
        producer_epoch=0,
        base_sequence=sequence,
    )


def damaged(value: bytes) -> bytes:
    found = bytearray(numbered_batch(value))
    found[-1] ^= 1
    return bytes(found)


A, B, X, Y = (numbered_batch(value) for value in (b"a", b"b", b"x", b"y"))
TWO = numbered_batch(b"two") + numbered_batch(b"batches")
DAMAGED = damaged(b"a")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    with tidelog.broker(str(tmp_path_factory.mktemp("ours")), settings=FOREVER) as running:
        yield Ours(running)


def result_of(
    broker: AnyBroker, version: int, topics: list[list[Entry]], *, is_there: bool = True
) -> Told:
    """Send a request that names the same topic several times; return the result."""
    name = f"twice-{uuid.uuid4().hex}"
    broker.create_topic(name, 2)
    with RawClient(broker.bootstrap) as client:
        found = client.ask(
            METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        ).topics[0]
        asked = name if is_there else f"no-{name}"
        topic_id = found.topic_id if is_there else NOBODY_ID
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=90_000,
            topic_data=[_topic(version, asked, topic_id, entries) for entries in topics],
        )
        said = client.ask(PRODUCE, version, request).responses
        answers = [
            (each.index, each.error_code, each.base_offset)
            for topic in said
            for each in topic.partition_responses
        ]
        kept = {
            number: [record.value or b"" for record in client.read_all(name, number)]
            for number in range(2)
        }
    return Told(len(said), sorted(answers), kept)


def _topic(version: int, name: str, topic_id: uuid.UUID, entries: list[Entry]) -> TopicProduceData:
    data = [PartitionProduceData(index=number, records=sent) for number, sent in entries]
    if version < BY_ID:
        return TopicProduceData(name=name, partition_data=data)
    return TopicProduceData(topic_id=topic_id, partition_data=data)


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        pytest.param([[(0, A), (0, B)]], Told(1, [(0, 0, 0)], {0: [b"b"], 1: []}), id="twice"),
        pytest.param(
            [[(0, A), (0, A)]], Told(1, [(0, 0, 0)], {0: [b"a"], 1: []}), id="twice the same"
        ),
        pytest.param(
            [[(1, X), (0, A), (1, Y), (0, B)]],
            Told(1, [(0, 0, 0), (1, 0, 0)], {0: [b"b"], 1: [b"y"]}),
            id="among others",
        ),
        pytest.param(
            [[(0, A)], [(1, X), (0, B)]],
            Told(1, [(0, 0, 0), (1, 0, 0)], {0: [b"b"], 1: [b"x"]}),
            id="the topic twice",
        ),
        pytest.param(
            [[(0, numbered_batch(b"1", 0)), (0, numbered_batch(b"2", 1))]],
            Told(1, [(0, 0, 0)], {0: [b"2"], 1: []}),
            id="sequences",
        ),
        pytest.param(
            [[(0, DAMAGED), (0, B)]], Told(1, [(0, 0, 0)], {0: [b"b"], 1: []}), id="damaged first"
        ),
        pytest.param(
            [[(0, A), (0, DAMAGED)]], Told(1, [(0, 2, -1)], {0: [], 1: []}), id="damaged last"
        ),
        pytest.param([[]], Told(0, [], {0: [], 1: []}), id="without partitions"),
        pytest.param(
            [[], [(0, A)], []], Told(1, [(0, 0, 0)], {0: [b"a"], 1: []}), id="once without any"
        ),
        pytest.param(
            [[(7, A), (7, B)]], Told(1, [(7, 3, -1)], {0: [], 1: []}), id="no such partition"
        ),
    ],
)
def test_the_last_records_take_the_place_of_the_others(
    topics: list[list[Entry]],
    expected: Told,
    version: int,
    kafka_broker: KafkaBroker,
    ours: Ours,
) -> None:
    assert result_of(ours, version, topics) == expected
    assert result_of(kafka_broker, version, topics) == expected


@pytest.mark.parametrize(("version", "code"), [(BY_NAME, 3), (BY_ID, 100)])
def test_a_topic_that_does_not_exist(
    version: int, code: int, kafka_broker: KafkaBroker, ours: Ours
) -> None:
    expected = Told(1, [(0, code, -1)], {0: [], 1: []})
    for broker in (ours, kafka_broker):
        assert result_of(broker, version, [[(0, A), (0, B)]], is_there=False) == expected


@pytest.mark.parametrize("entries", [[(0, TWO), (0, B)], [(0, B), (0, TWO)]])
def test_only_kafka_appends_valid_records_of_a_refused_partition(
    entries: list[Entry], kafka_broker: KafkaBroker, ours: Ours
) -> None:
    answers = [(0, INVALID_RECORD, -1)]
    assert result_of(kafka_broker, BY_NAME, [entries]) == Told(1, answers, {0: [b"b"], 1: []})
    assert result_of(ours, BY_NAME, [entries]) == Told(1, answers, {0: [], 1: []})
