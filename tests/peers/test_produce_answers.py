"""Kafka and our broker respond to odd produce requests with the same codes, offsets and errors."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker as KafkaBroker
from tests.worlds.records.batches import BatchFields, batch
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.waiting import Patience, until_equal

import tidelog
from tidelog.protocol.messages import (
    CREATE_TOPICS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.shared import ConfigValue
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.transactions import InitProducerIdRequest
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.header import seal
from tidelog.server.embedded import Broker
from tidelog.types import Codec, NewRecord

pytestmark = pytest.mark.kafka

NOW_MS = 1_700_000_000_000
# The records are old: with the default retention of a week, Kafka would delete them within half a
# minute.
FOREVER = {"log.retention.ms": "-1"}
NOT_LEADER = 6
LOADING = 14
Answer = tuple[object, ...]
ours = broker_fixture(FOREVER, scope="module")


def keyed_batch(*values: bytes, **fields: Unpack[BatchFields]) -> bytearray:
    return bytearray(batch(*values, key=b"k", timestamp=NOW_MS, **fields))


def damaged(place: int, value: int) -> bytes:
    found = keyed_batch()
    found[place] = value
    return bytes(found)


def cut(codec: Codec) -> bytes:
    """Return a batch with a valid checksum, but with a truncated stream of compressed records."""
    found = keyed_batch(b"v" * 100, codec=codec)[:-9]
    found[8:12] = (len(found) - 12).to_bytes(4, "big")
    seal(found, 0)
    return bytes(found)


def uncompressed(codec: Codec) -> bytes:
    """Return a batch whose attributes name a codec, although the records are uncompressed."""
    found = keyed_batch()
    found[22] |= codec
    seal(found, 0)
    return bytes(found)


def flagged(*values: bytes, **more: Unpack[BatchFields]) -> bytes:
    """Return a batch flagged LogAppendTime."""
    found = keyed_batch(*values, **more)
    found[22] |= 8
    seal(found, 0)
    return bytes(found)


def timeless() -> bytes:
    """Return a batch flagged LogAppendTime that has no time."""
    found = bytearray(flagged(b"a", b"b"))
    found[35:43] = b"\xff" * 8
    seal(found, 0)
    return bytes(found)


CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@dataclass(frozen=True)
class Case:
    """A Produce request to one partition; `config` has the settings of the topic."""

    name: str
    records: bytes | bytearray | None
    version: int = 9
    acks: int = -1
    partition: int = 0
    transactional_id: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    times: int = 1


COMPACTED = {"cleanup.policy": "compact"}
STAMPED = {"message.timestamp.type": "LogAppendTime"}
STRICT = {"message.timestamp.before.max.ms": "1000"}
IDEMPOTENT: BatchFields = {"producer_id": 7_000, "producer_epoch": 1, "base_sequence": 0}
TRANSACTIONAL: BatchFields = {**IDEMPOTENT, "transactional": True}
NO_KEYS = bytes(
    build_batch([NewRecord(key=key, value=b"v", timestamp=NOW_MS) for key in (b"k", None, None)])
)

CASES = [
    Case("sound", keyed_batch()),
    Case("acks 1", keyed_batch(), acks=1),
    Case("acks 2", keyed_batch(), acks=2),
    Case("empty records", b""),
    Case("half a batch", keyed_batch()[:40]),
    Case("a batch and half of another", keyed_batch() + keyed_batch()[:40]),
    Case("two batches", keyed_batch() + keyed_batch()),
    Case("frame too short", damaged(11, 1)),
    Case("unknown magic", damaged(16, 9)),
    Case("wrong checksum", damaged(65, 1)),
    Case("base offset not 0", damaged(7, 5)),
    *(Case(f"a stream of {codec.name} that is cut", cut(codec)) for codec in CODECS),
    *(Case(f"plain bytes as {codec.name}", uncompressed(codec)) for codec in CODECS),
    Case("zstd in v6", keyed_batch(codec=Codec.ZSTD), version=6),
    Case("zstd in v7", keyed_batch(codec=Codec.ZSTD), version=7),
    Case("partition that is not there", keyed_batch(), partition=7),
    Case("negative partition", keyed_batch(), partition=-1),
    Case(
        "control batch",
        build_end_marker(
            commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS
        ),
    ),
    Case("transactional, unnamed", keyed_batch(**TRANSACTIONAL)),
    Case("transactional, named", keyed_batch(**TRANSACTIONAL), transactional_id="t"),
    Case(
        "transactional, named, v12",
        keyed_batch(**TRANSACTIONAL),
        transactional_id="t",
        version=12,
    ),
    Case("named, not transactional", keyed_batch(), transactional_id="t"),
    Case("no sequence", keyed_batch(producer_id=7_001, producer_epoch=0)),
    Case("sent twice", keyed_batch(**IDEMPOTENT), times=2),
    Case(
        "unknown producer begins late",
        keyed_batch(producer_id=7_002, producer_epoch=0, base_sequence=9),
    ),
    Case("without keys", NO_KEYS, config=COMPACTED),
    Case("too old", keyed_batch(b"a", b"b"), config=STRICT),
    Case("too large", keyed_batch(b"v" * 5000), config={"max.message.bytes": "1000"}),
    Case("stamped", keyed_batch(), config=STAMPED),
    Case("flagged and stamped", flagged(b"a", b"b"), config=STAMPED),
    Case("flagged and stamped, compressed", flagged(b"a", b"b", codec=Codec.LZ4), config=STAMPED),
    Case("flagged without a time", timeless()),
    Case("magic 1", build_legacy_set([NewRecord(value=b"v", timestamp=NOW_MS)], magic=1)),
]


def responses_of(case: Case, bootstrap: str) -> list[Answer]:
    """Return a broker's response, without times of the broker's clock and without texts."""
    name = f"t{uuid.uuid4().hex}"
    with RawClient(bootstrap) as client:
        create(client, name, case.config)
        data = PartitionProduceData(index=case.partition, records=case.records)
        request = ProduceRequest(
            transactional_id=case.transactional_id,
            acks=case.acks,
            timeout_ms=90_000,
            topic_data=[TopicProduceData(name=name, partition_data=[data])],
        )
        return [_facts(_ask(client, case, request)) for _ in range(case.times)]


def _ask(client: RawClient, case: Case, request: ProduceRequest) -> PartitionProduceResponse:
    """Return the response, once Kafka's partition has a leader."""
    patience = Patience()
    while True:
        patience.check("a leader")
        topics = client.ask(PRODUCE, case.version, request).responses
        one = topics[0].partition_responses[0]
        if one.error_code != NOT_LEADER:
            return one


def _facts(one: PartitionProduceResponse) -> Answer:
    stamp_ms = one.log_append_time_ms
    return (
        one.index,
        one.error_code,
        one.base_offset,
        stamp_ms if stamp_ms == NOW_MS else stamp_ms >= 0,
        one.log_start_offset,
        [each.batch_index for each in one.record_errors],
        one.error_message is None,
    )


def create(client: RawClient, topic: str, config: Mapping[str, str], count: int = 1) -> None:
    wanted = CreatableTopic(
        name=topic,
        num_partitions=count,
        replication_factor=1,
        configs=[ConfigValue(name=name, value=text) for name, text in config.items()],
    )
    answer = client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[wanted], timeout_ms=90_000))
    assert not answer.topics[0].error_code, answer
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    until_equal(0, lambda: client.ask(METADATA, 9, asked).topics[0].error_code)


def wake_transactions(bootstrap: str) -> None:
    """Wait until a broker has created and loaded the internal topic of transactions."""
    asked = InitProducerIdRequest(transactional_id="other", transaction_timeout_ms=60_000)
    wanted = FindCoordinatorRequest(key_type=1, coordinator_keys=["other"])
    with RawClient(bootstrap) as client:
        until_equal(0, lambda: client.ask(FIND_COORDINATOR, 4, wanted).coordinators[0].error_code)
        until_equal(0, lambda: client.ask(INIT_PRODUCER_ID, 4, asked).error_code)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_responses_are_equal(case: Case, kafka_broker: KafkaBroker, ours: Broker) -> None:
    if case.transactional_id is not None:
        wake_transactions(kafka_broker.bootstrap)
        wake_transactions(ours.bootstrap_servers)
    assert responses_of(case, ours.bootstrap_servers) == responses_of(case, kafka_broker.bootstrap)


def sized(length: int) -> bytes:
    """Return a batch with this length in the batch's header."""
    found = keyed_batch()
    found[8:12] = length.to_bytes(4, "big")
    return bytes(found)


def below_null() -> bytes:
    """Return a record whose key has a length of -2."""
    found = bytearray(build_batch([NewRecord(value=b"v", timestamp=NOW_MS)]))
    assert found[65] == 1
    found[65] = 3
    seal(found, 0)
    return bytes(found)


@pytest.mark.parametrize(
    ("case", "theirs", "own"),
    [
        (Case("longer than anything", sized((1 << 31) - 1)), (-1, True), (87, True)),
        (Case("shorter than a header", sized(48)), (2, True), (2, False)),
        (Case("a key of -2 bytes", below_null()), (0, True), (87, True)),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else "",
)
def test_impossible_lengths(
    case: Case,
    theirs: tuple[int, bool],
    own: tuple[int, bool],
    kafka_broker: KafkaBroker,
    ours: Broker,
) -> None:
    """Assert the error code, and whether a text is absent, for Kafka (`theirs`) and us (`own`)."""
    (kafka_says,), (we_say,) = (
        responses_of(case, kafka_broker.bootstrap),
        responses_of(case, ours.bootstrap_servers),
    )
    assert (kafka_says[1], kafka_says[-1]) == theirs
    assert (we_say[1], we_say[-1]) == own


def test_unknown_ids_and_names(kafka_broker: KafkaBroker, ours: Broker) -> None:
    def ask(bootstrap: str) -> list[int]:
        data = [PartitionProduceData(index=0, records=keyed_batch())]
        codes = []
        with RawClient(bootstrap) as client:
            for version, topic in (
                (12, TopicProduceData(name="nobody", partition_data=data)),
                (13, TopicProduceData(topic_id=uuid.uuid4(), partition_data=data)),
            ):
                request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
                answer = client.ask(PRODUCE, version, request)
                codes.append(answer.responses[0].partition_responses[0].error_code)
        return codes

    assert ask(ours.bootstrap_servers) == ask(kafka_broker.bootstrap) == [3, 100]


@pytest.mark.parametrize("acks_error", [b"", b"garbage that is no batch, but long enough for one"])
def test_refused_without_acknowledgement_closes(
    acks_error: bytes, kafka_broker: KafkaBroker, ours: Broker
) -> None:
    for bootstrap in (ours.bootstrap_servers, kafka_broker.bootstrap):
        data = PartitionProduceData(index=0, records=acks_error)
        topic = TopicProduceData(name="nobody", partition_data=[data])
        with RawClient(bootstrap) as client:
            client.send(PRODUCE, 9, ProduceRequest(acks=0, timeout_ms=1, topic_data=[topic]))
            with pytest.raises(ConnectionError):
                client.receive()


def test_producer_ids(kafka_broker: KafkaBroker, ours: Broker) -> None:
    def ask(bootstrap: str) -> list[Answer]:
        found: list[Answer] = []
        with RawClient(bootstrap) as client:
            for producer_id, epoch in ((-1, -1), (-1, 3), (3, -1), (3, 4)):
                request = InitProducerIdRequest(
                    transactional_id=None,
                    transaction_timeout_ms=60_000,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
                patience = Patience()
                while (answer := client.ask(INIT_PRODUCER_ID, 4, request)).error_code == LOADING:
                    patience.check("Kafka's broker has a block of producer ids")
                found.append((answer.error_code, answer.producer_id >= 0, answer.producer_epoch))
            empty = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1)
            found.append((client.ask(INIT_PRODUCER_ID, 4, empty).error_code,))
        return found

    assert ask(ours.bootstrap_servers) == ask(kafka_broker.bootstrap)


def test_producer_ids_are_never_assigned_twice(tmp_path: Path) -> None:
    given = list[int]()
    for _ in range(3):
        with (
            tidelog.broker(str(tmp_path)) as running,
            RawClient(running.bootstrap_servers) as client,
        ):
            given += [client.producer_id() for _ in range(1200)]
    assert len(set(given)) == len(given)
