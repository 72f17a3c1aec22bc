"""Writes records to a real broker and reads them, through Kafka's own clients and librdkafka."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from confluent_kafka import Producer
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import tell_records
from tests.worlds.waiting import until_so

from tidelog.record.record import Record
from tidelog.remote.cluster import Cluster
from tidelog.remote.view import RemoteRecord
from tidelog.storage.log.log_reader import LogView
from tidelog.types import Codec, IsolationLevel, NewRecord, TopicPartition

Told: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer sees it."""

    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _bytes(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(cast("str", text))


def first_record(cluster: Cluster, partition: TopicPartition, offset: int) -> RemoteRecord | None:
    """Return the first data record at or after an offset; None if the log has none."""
    return cluster.first_records({partition: offset})[partition]


def consume(
    oracle: Oracle, broker: Broker, topic: str, isolation: IsolationLevel, partition: int = 0
) -> list[Seen]:
    """Return the whole partition as Kafka's own consumer sees it."""
    config = {
        "bootstrap.servers": broker.bootstrap,
        "isolation.level": isolation.name.lower(),
        "enable.auto.commit": "false",
    }
    told = oracle.ask("consume", config=config, topic=topic, partition=partition)
    return [
        Seen(
            offset=cast("int", line["offset"]),
            timestamp=cast("int", line["timestamp"]),
            timestamp_type=cast("str", line["timestamp_type"]),
            key=_bytes(line["key"]),
            value=_bytes(line["value"]),
            headers=tuple(
                (cast("str", key), _bytes(value))
                for key, value in cast("list[list[str | None]]", line["headers"])
            ),
        )
        for line in cast("list[Told]", told)
    ]


def our_view(record: Record) -> Seen:
    """Return one of our records as `Seen`."""
    return Seen(
        offset=record.offset,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type.config_name,
        key=record.key,
        value=record.value,
        headers=tuple((header.key, header.value) for header in record.headers),
    )


def read_ours(reader: LogView, isolation: IsolationLevel) -> list[Seen]:
    """Return the whole partition as our reader sees it."""
    return [our_view(record) for record in reader.records(isolation=isolation)]


def produce(
    oracle: Oracle,
    broker: Broker,
    topic: str,
    records: Sequence[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    transaction: str | None = None,
    commit: bool = True,
    partition: int = 0,
) -> list[int]:
    """Send records by Kafka's producer; return their offsets.

    If `transaction` is given, the records are in a transaction with this id.

    Waits for the transaction's marker, which a broker writes after it has responded.
    """
    config = {"bootstrap.servers": broker.bootstrap, "compression.type": codec.config_name}
    if transaction is not None:
        config["transactional.id"] = transaction
    told = oracle.ask(
        "produce",
        config=config,
        topic=topic,
        partition=partition,
        records=tell_records(records),
        commit=commit,
    )
    offsets = [cast("int", line["offset"]) for line in cast("list[Told]", told)]
    if transaction is not None and offsets:
        await_ended(broker.bootstrap, topic, partition, end=offsets[-1] + 1)
    return offsets


def await_ended(bootstrap: str, topic: str, partition: int = 0, *, end: int | None = None) -> None:
    """Wait until the partition has no open transaction, or none that begins below `end`."""
    with RawClient(bootstrap) as client:

        def is_ended() -> bool:
            stable = client.list_offsets(topic, -1, partition=partition, isolation_level=1)[0]
            last = client.list_offsets(topic, -1, partition=partition)[0]
            assert not stable.error_code, stable
            return stable.offset >= (last.offset if end is None else end)

        until_so(is_ended, f"the transactions of {topic}-{partition} have ended")


def produce_by_librdkafka(
    broker: Broker, topic: str, records: Sequence[NewRecord], *, codec: Codec = Codec.NONE
) -> None:
    """Send records by librdkafka, whose codecs frame compressed data differently from Java's."""
    config = broker.client_config(compression_codec=codec.config_name, linger_ms=50)
    producer = Producer(config)
    for record in records:
        producer.produce(
            topic,
            partition=0,
            key=record.key,
            value=record.value,
            timestamp=record.timestamp or 0,
            headers=[(header.key, header.value) for header in record.headers],
        )
    assert producer.flush(REQUEST_TIMEOUT_S) == 0
