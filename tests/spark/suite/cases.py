"""The topics of the suite: the sent records, and the expected rows.

Expected rows are derived from the sent records, by the documentation of Spark's Kafka connector:

- a read returns every data record once, by offset;
- null keys and values stay null;
- a record's headers keep their order; without headers, the column is null;
- transaction markers take up offsets, but are never returned as rows;
- read_committed omits aborted records.

The topic with gaps is an exception: its expected rows are the records that Kafka's own consumer
returns after the log cleaner has run.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import consume, produce
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import T0, draw_headers

from tidelog.env import Env, ManualClock
from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import Codec, IsolationLevel, NewRecord

PREFIX = "suite-"
SPAN_MS = 1_000_000
# Append time of all records in the directory that tidelog writes.
APPEND_MS = T0 + 5 * SPAN_MS
GAPS = f"{PREFIX}gaps"
# Segments roll after 500 ms, so the last batch is alone in the active segment, and the cleaner may
# clean all batches before it.
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.0"}


class Row(NamedTuple):
    """A row of a read, expected or actual. `timestamp` is None if the broker's clock set it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    kind: int
    headers: tuple[tuple[str, bytes | None], ...] | None


@dataclass(frozen=True)
class Send:
    """Records that are sent in one call; they are in a transaction if `commit` is not None."""

    records: Sequence[NewRecord]
    codec: Codec = Codec.NONE
    partition: int = 0
    commit: bool | None = None


@dataclass(frozen=True)
class Topic:
    """A topic and the records sent to it, in order."""

    name: str
    sends: Sequence[Send]
    config: dict[str, str] = field(default_factory=dict)
    partitions: int = 1

    @property
    def is_stamped(self) -> bool:
        return self.config.get("message.timestamp.type") == "LogAppendTime"

    def rows(self, isolation: IsolationLevel) -> list[Row]:
        """Return the expected rows."""
        ends = [0] * self.partitions
        found = []
        for send in self.sends:
            is_seen = isolation is IsolationLevel.READ_UNCOMMITTED or send.commit is not False
            for record in send.records:
                if is_seen:
                    found.append(self._row(send.partition, ends[send.partition], record))
                ends[send.partition] += 1
            if send.commit is not None:
                ends[send.partition] += 1
        return sorted(found)

    def _row(self, partition: int, offset: int, record: NewRecord) -> Row:
        headers = tuple((header.key, header.value) for header in record.headers)
        timestamp = None if self.is_stamped else record.timestamp
        place = (self.name, partition, offset)
        return Row(
            *place, record.key, record.value, timestamp, int(self.is_stamped), headers or None
        )


def _records(seed: int, count: int = 25, keys: int = 5) -> list[NewRecord]:
    draw = random.Random(seed)
    return [
        NewRecord(
            key=draw.choice((None, b"", b"k%d" % draw.randrange(keys))),
            value=draw.choice((None, b"", draw.randbytes(draw.randrange(1, 300)))),
            timestamp=T0 + draw.randrange(SPAN_MS),
            headers=draw_headers(draw),
        )
        for _ in range(count)
    ]


def _keyed(seed: int, count: int) -> list[NewRecord]:
    draw = random.Random(seed)
    return [
        # The times are far after those of the previous call, so that each call starts a segment.
        NewRecord(
            key=b"k%d" % draw.randrange(4), value=b"v%d" % n, timestamp=T0 + seed * 10_000 + n
        )
        for n in range(count)
    ]


def _transactions(seed: int) -> list[Send]:
    """Return aborted, committed and plain sends in turn, in several codecs; the last is aborted."""
    return [
        Send(_records(seed + number, 8), codec, commit=commit)
        for number, (codec, commit) in enumerate(
            [
                (Codec.NONE, None),
                (Codec.LZ4, False),
                (Codec.NONE, True),
                (Codec.ZSTD, None),
                (Codec.NONE, False),
                (Codec.GZIP, True),
                (Codec.SNAPPY, False),
            ]
        )
    ]


STAMPED = {"message.timestamp.type": "LogAppendTime"}
TOPICS = (
    Topic(
        f"{PREFIX}records",
        [Send(_records(n), partition=n % 2) for n in range(4)],
        partitions=2,
    ),
    Topic(
        f"{PREFIX}nulls",
        [
            Send([NewRecord(key=k, value=v, timestamp=T0) for k in (None, b"", b"k")])
            for v in (None, b"", b"v")
        ],
    ),
    *(
        Topic(f"{PREFIX}{codec.config_name}", [Send(_records(40 + codec), codec)])
        for codec in Codec
    ),
    Topic(f"{PREFIX}stamped", [Send(_records(50)), Send(_records(51), Codec.ZSTD)], STAMPED),
    Topic(f"{PREFIX}transactions", _transactions(60)),
    Topic(f"{PREFIX}stamped-transactions", _transactions(70), STAMPED),
)


def fill_broker(oracle: Oracle, broker: Broker) -> None:
    """Send everything by Kafka's own producer, and let the cleaner create gaps."""
    for topic in TOPICS:
        create(broker, topic.name, topic.partitions, topic.config)
        for number, send in enumerate(topic.sends):
            produce(
                oracle,
                broker,
                topic.name,
                send.records,
                codec=send.codec,
                partition=send.partition,
                transaction=None if send.commit is None else f"{topic.name}-{number}",
                commit=send.commit is not False,
            )
    create(broker, GAPS, 1, COMPACTED)
    firsts = [
        produce(oracle, broker, GAPS, _keyed(number, 20), codec=codec)[0]
        for number, codec in enumerate(Codec)
    ]
    broker.await_cleaning(GAPS, firsts[-1])


def create(broker: Broker, topic: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic with settings under Kafka's names."""
    settings = {name.replace(".", "_"): value for name, value in config.items()}
    broker.create_topic(topic, partitions, **settings)


def gap_rows(oracle: Oracle, broker: Broker) -> list[Row]:
    """Return the records of the topic with gaps, read by Kafka's own consumer."""
    found = [
        Row(GAPS, 0, seen.offset, seen.key, seen.value, seen.timestamp, 0, seen.headers or None)
        for seen in consume(oracle, broker, GAPS, IsolationLevel.READ_UNCOMMITTED)
    ]
    assert len(found) < found[-1].offset  # some offsets are missing
    return found


def fill_directory(path: str, gaps: Path) -> None:
    """Create the same topics in our directory; copy the topic with gaps from Kafka's files.

    Args:
        path: The new directory.
        gaps: The broker's folder of the partition with gaps.
    """
    clock = ManualClock(APPEND_MS)
    env = Env(clock=clock, random=random.Random(9))
    with LogDir.open(path, env=env, options=LogDirOptions(create=True)) as log_dir:
        for topic in TOPICS:
            config = {**topic.config, "internal.segment.bytes": "12000"}
            log_dir.create_topic(topic.name, partitions=topic.partitions, config=config)
            for number, send in enumerate(topic.sends):
                clock.advance(1_000)
                _append(log_dir.log(topic.name, send.partition), send, number)
        log_dir.create_topic(GAPS, config={"cleanup.policy": "compact"})
        for file in sorted(gaps.glob("*.log")):
            if data := file.read_bytes():
                log_dir.log(GAPS, 0).follower.append(data)


def _append(log: Log, send: Send, number: int) -> None:
    if send.commit is None:
        log.append(list(send.records), codec=send.codec)
        return
    batch = build_batch(
        list(send.records),
        codec=send.codec,
        producer_id=1_000 + number,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append_batches(batch)
    log.end_transaction(
        producer_id=1_000 + number, producer_epoch=0, coordinator_epoch=0, commit=send.commit
    )
