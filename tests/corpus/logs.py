"""Creates the directory of topics for the recorded commands; its bytes are always the same.

| topic | special content |
|---|---|
| flights | 3 partitions, small segments, late records, headers |
| planes | compacted, tombstones, not cleaned yet |
| orders | compacted and deleted by age, keys are int64 |
| stamped | LogAppendTime |
| packed | a batch in each codec |
| prices | all finished segments are older than retention.ms |
| odd | keys and values that are null, binary, long, not printable |
| txn | transactions: committed, aborted, open; by a broker, with offsets of the group `readers` |
| blank | no records, 2 partitions |
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.corpus import still

import tidelog
from tidelog import Codec, Header, NewRecord

DAY_MS: Final = 86_400_000
MINUTE_MS: Final = 60_000
# 00:00 UTC on the day before the fixed time of `still`.
T0: Final = still.START_MS - still.START_MS % DAY_MS - DAY_MS
SMALL: Final = {"internal.segment.bytes": "800", "index.interval.bytes": "200"}
WAIT_S: Final = 60
# Settings of a broker that has few internal partitions, and changes segments only on request.
FEW: Final = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.initial.task.delay.ms": "864000000",
    "log.retention.check.interval.ms": "864000000",
    "transaction.max.timeout.ms": "2147483647",
}


def make(path: Path) -> None:
    """Create the directory."""
    still.set_time(T0)
    still.draw_for("logs")
    with tidelog.open(path, writable=True) as directory:
        _flights(directory)
        _planes(directory)
        _orders(directory)
        _others(directory)
        _odd(directory)
        _create(directory, "txn", config={"cleanup.policy": "delete"})
    _transactions(path)
    with tidelog.open(path, writable=True) as directory:
        _prices(directory)
    still.set_time(still.START_MS)


def _create(
    directory: tidelog.Directory,
    name: str,
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic whose id depends only on its name."""
    topic_id = uuid5(NAMESPACE_DNS, name)
    directory.create_topic(name, partitions=partitions, config=config, topic_id=topic_id)


def _flights(directory: tidelog.Directory) -> None:
    _create(directory, "flights", partitions=3, config={**SMALL, "retention.ms": "-1"})
    for hour in range(9):
        still.set_time(T0 + (hour + 1) * 60 * MINUTE_MS)
        records = []
        for number in range(10):
            count = hour * 10 + number
            late_ms = 95 * MINUTE_MS if count % 11 == 5 else 0
            value = {"flight": 1000 + count, "from": "JFK", "to": ("SFO", "LAX", "ZRH")[count % 3]}
            headers = (Header("source", b"radar"),) if count % 7 == 3 else ()
            created = T0 + hour * 60 * MINUTE_MS + number * 6 * MINUTE_MS - late_ms
            records.append(
                NewRecord(
                    key=f"N{14228 + count % 8}".encode(),
                    value=json.dumps(value).encode(),
                    timestamp=max(created, T0),
                    headers=headers,
                )
            )
        directory.append("flights", records)


def _planes(directory: tidelog.Directory) -> None:
    _create(directory, "planes", config={**SMALL, "cleanup.policy": "compact"})
    for turn in range(8):
        still.set_time(T0 + (turn * 90 + 5) * MINUTE_MS)
        records = [
            NewRecord(
                key=f"N{number}".encode(),
                value=None
                if (turn + number) % 6 == 5
                else f"seats {100 + turn * 10 + number}".encode(),
                timestamp=still.now_ms() - number * 1000,
            )
            for number in range(6)
        ]
        directory.append("planes", records)


def _orders(directory: tidelog.Directory) -> None:
    config = {**SMALL, "cleanup.policy": "compact,delete", "retention.ms": f"{30 * DAY_MS}"}
    _create(directory, "orders", partitions=2, config=config)
    for turn in range(4):
        still.set_time(T0 + (turn * 200 + 7) * MINUTE_MS)
        records = [
            NewRecord(
                key=number.to_bytes(8, "big"),
                value=json.dumps({"order": number, "state": ("new", "paid")[turn % 2]}).encode(),
                timestamp=still.now_ms() - 250,
            )
            for number in range(turn, turn + 8)
        ]
        directory.append("orders", records)


def _others(directory: tidelog.Directory) -> None:
    _create(directory, "blank", partitions=2)
    stamped = {"message.timestamp.type": "LogAppendTime", **SMALL}
    _create(directory, "stamped", config=stamped)
    _create(directory, "packed")
    for number, codec in enumerate(Codec):
        still.set_time(T0 + (700 + number) * MINUTE_MS)
        for topic in ("stamped", "packed"):
            records = [
                NewRecord(
                    key=f"k{one}".encode(),
                    value=f"{topic} {number} ".encode() * 10,
                    timestamp=still.now_ms() - one * 1000,
                )
                for one in range(4)
            ]
            kind = codec if topic == "packed" else Codec.NONE
            directory.append(topic, records, codec=kind)


def _prices(directory: tidelog.Directory) -> None:
    config = {**SMALL, "retention.ms": f"{60 * MINUTE_MS}", "retention.bytes": "1000000"}
    _create(directory, "prices", config=config)
    for number in range(5):
        still.set_time(T0 + (920 + number) * MINUTE_MS)
        records = [
            NewRecord(key=f"k{one}".encode(), value=b"price " * 20, timestamp=still.now_ms())
            for one in range(4)
        ]
        directory.append("prices", records)


def _odd(directory: tidelog.Directory) -> None:
    _create(directory, "odd")
    still.set_time(T0 + 800 * MINUTE_MS)
    directory.append("odd", _odd_records())


def _odd_records() -> Iterator[NewRecord]:
    time = still.now_ms()
    yield NewRecord(key=None, value=None, timestamp=time)
    yield NewRecord(key=b"", value=b"", timestamp=time)
    yield NewRecord(key=b"null", value=b"null", timestamp=time)
    yield NewRecord(key=b"\x00\xff\xfe", value=bytes(range(8)), timestamp=time)
    yield NewRecord(key="Zürich ✈ 日本".encode(), value=b"tab\tline\nescape\x1b[1m", timestamp=time)
    yield NewRecord(key=b"long", value=b"0123456789" * 30, timestamp=time)
    yield NewRecord(key=b"json", value=b'{"a": [1, 2.5, null], "b": "c"}', timestamp=time)
    yield NewRecord(key=(7).to_bytes(8, "big"), value=(1.5).hex().encode(), timestamp=time)
    yield NewRecord(key=b"no time", value=b"has no time", timestamp=-1)
    yield NewRecord(key=b"old", value=b"first of 1970", timestamp=0)
    headers = (Header("h", None), Header("h", b""), Header("", b"\xff"), Header("é", b"x"))
    yield NewRecord(key=b"headers", value=b"four", timestamp=time, headers=headers)


def _transactions(path: Path) -> None:
    """Write transactional batches of one record each, and offsets of the group `readers`."""
    still.set_time(T0 + 900 * MINUTE_MS)
    with tidelog.broker(str(path), settings=FEW) as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        for name, ends in (("first", "commit"), ("second", "abort"), ("third", "open")):
            # A very large timeout, so that the third transaction is still open when later brokers
            # start. It is less than the largest int32, because librdkafka adds some ms: after an
            # overflow to a negative number, librdkafka would repeat its request for a producer id
            # without waiting for the response.
            timeout = {"transaction.timeout.ms": 2_147_000_000}
            producer = Producer({**client, **timeout, "transactional.id": name, "linger.ms": 0})
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            for number in range(3):
                value, key = f"{name} {number}".encode(), f"k{number}".encode()
                producer.produce("txn", value, key, timestamp=still.now_ms() + number)
                producer.flush(WAIT_S)
            still.advance(MINUTE_MS)
            if ends == "commit":
                producer.commit_transaction(WAIT_S)
            elif ends == "abort":
                producer.abort_transaction(WAIT_S)
        consumer = Consumer({**client, "group.id": "readers"})
        places = [TopicPartition("flights", 0, 5), TopicPartition("flights", 1, 9)]
        consumer.commit(offsets=[*places, TopicPartition("txn", 0, 2)], asynchronous=False)
        consumer.close()
