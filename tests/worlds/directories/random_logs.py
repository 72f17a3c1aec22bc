"""Random logs for tests of scans: many segments, all codecs, transactions, unordered times."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.env import Env, ManualClock
from tidelog.record.builder import build_batch
from tidelog.record.record import Record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import Codec, Header, IsolationLevel, NewRecord, TopicPartition

TOPIC = "tides"
T0 = 1_360_342_800_000
SPAN_MS = 1_000_000
CONFIG = {
    "internal.segment.bytes": "3000",
    "index.interval.bytes": "200",
    "message.timestamp.after.max.ms": str(2**62),
}
# Timestamps of an append increase and decrease, are equal, or are missing.
TIMES = ("random", "equal", "missing")


@dataclass(slots=True)
class Txn:
    """An open transaction."""

    producer_id: int
    sequence: int = 0


class Filler:
    """Fills a partition at random, by a seed."""

    def __init__(self, log: Log, clock: ManualClock, seed: int) -> None:
        self.log = log
        self.clock = clock
        self.draw = random.Random(seed)
        self._open: list[Txn] = []

    def fill(self, steps: int) -> None:
        """Run random appends, transactions and rolls; the clock may advance before each step."""
        for _ in range(steps):
            self.clock.advance(self.draw.choice((0, 1, 500, 20_000)))
            choose = self.draw.random()
            if choose < 0.6:
                self.append()
            elif choose < 0.8:
                self.append_in_transaction()
            elif choose < 0.95:
                self.end_transaction()
            else:
                self.log.roll()

    def append(self) -> None:
        """Append one or more batches of any codec."""
        records = self.records(self.draw.randrange(1, 12))
        size = self.draw.choice((60, 400, 16_384))
        self.log.append(records, codec=self.draw.choice(list(Codec)), batch_bytes=size)

    def records(self, count: int) -> list[NewRecord]:
        """Return records with and without key, value, headers and time."""
        kind = self.draw.choice(TIMES)
        return [self._record(kind) for _ in range(count)]

    def _record(self, kind: str) -> NewRecord:
        draw = self.draw
        timestamp = T0 + {"random": draw.randrange(SPAN_MS), "equal": 500_000}.get(kind, 0)
        if kind == "missing" or draw.random() < 0.05:
            timestamp = -1
        headers = tuple(
            Header(draw.choice(("a", "höhe")), draw.choice((b"1", b"", None)))
            for _ in range(draw.choice((0, 0, 0, 1, 3)))
        )
        return NewRecord(
            key=draw.choice((None, b"", b"k%d" % draw.randrange(9))),
            value=draw.choice((None, b"", draw.randbytes(draw.randrange(120)))),
            timestamp=timestamp,
            headers=headers,
        )

    def append_in_transaction(self) -> None:
        """Append a batch of an open transaction, or of a new transaction."""
        if len(self._open) < 3 and (not self._open or self.draw.random() < 0.3):
            self._open.append(Txn(self.draw.randrange(1 << 40)))
        txn = self.draw.choice(self._open)
        records = self.records(self.draw.randrange(1, 5))
        batch = build_batch(
            records,
            codec=self.draw.choice(list(Codec)),
            producer_id=txn.producer_id,
            producer_epoch=0,
            base_sequence=txn.sequence,
            transactional=True,
        )
        self.log.append_batches(batch)
        txn.sequence += len(records)

    def end_transaction(self) -> None:
        """Commit or abort an open transaction, if any."""
        if self._open:
            txn = self._open.pop(self.draw.randrange(len(self._open)))
            self.log.end_transaction(
                producer_id=txn.producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=self.draw.random() < 0.5,
            )


def make_log_dir(
    path: str,
    seed: int,
    *,
    partitions: int = 2,
    steps: int = 60,
    config: dict[str, str] | None = None,
    env: Env | None = None,
) -> None:
    """Create a directory with one topic, filled by a seed; some append times are unknown."""
    clock = ManualClock(T0)
    env = Env(files=env.files if env else Env().files, clock=clock, random=random.Random(seed))
    with LogDir.open(path, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, partitions=partitions, config={**CONFIG, **(config or {})})
        for number in range(partitions):
            Filler(log_dir.log(TOPIC, number), clock, seed + number).fill(steps)


def records_of(
    path: str,
    partition: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    env: Env | None = None,
) -> list[Record]:
    """Return the records of a partition, read by the plain code."""
    with LogDir.open(path, env=env) as log_dir:
        return list(log_dir.reader(TOPIC, partition).records(isolation=isolation))


def append_times_of(
    path: str, partition: int, records: Sequence[Record], env: Env | None = None
) -> list[int | None]:
    """Return the append time of each record, read by the plain code."""
    with LogDir.open(path, env=env) as log_dir:
        reader = log_dir.reader(TOPIC, partition)
        return [reader.append_time_of(record.offset) for record in records]


def names(partitions: int) -> list[TopicPartition]:
    """Return the topic's partitions."""
    return [TopicPartition(TOPIC, number) for number in range(partitions)]
