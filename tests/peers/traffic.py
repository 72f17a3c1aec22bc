"""Seeded traffic: prepared batches, one per request, with the same bytes for both brokers.

Times increase, decrease and repeat. Producers have sequence numbers or none, batches have every
codec, and records can have headers or no value. Sometimes a broker must refuse a batch.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.record.builder import build_batch
from tidelog.types import Codec, Header, NewRecord

BASE_MS = 1_700_000_000_000
BATCH_RECORDS_MAX = 12
PRODUCERS = (4_001, 4_002, 4_003)
PLAIN_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Sent:
    """The batch of one request, and the kind of the step (for failure messages)."""

    kind: str
    batch: bytes


class Traffic:
    """Creates the requests of one topic."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._now_ms = BASE_MS
        self._sequences = dict.fromkeys(PRODUCERS, 0)
        self._last: Sent | None = None

    def requests(self, count: int) -> Iterator[Sent]:
        """Yield requests; about one in eight is refused or treated as a duplicate."""
        for _ in range(count):
            yield self._odd() if self._rng.random() < 0.125 else self._usual()

    def _records(self) -> list[NewRecord]:
        count = self._rng.randint(1, BATCH_RECORDS_MAX)
        return [self._record() for _ in range(count)]

    def _record(self) -> NewRecord:
        step = self._rng.choice([0, 0, 1, 1, 7, 400, -5, -300])
        self._now_ms += step
        headers = [Header("h", self._rng.choice([None, b"", b"v"]))] * self._rng.randint(0, 2)
        return NewRecord(
            key=self._rng.choice([None, b"", b"k%d" % self._rng.randint(0, 9)]),
            value=self._rng.choice([None, self._rng.randbytes(self._rng.randint(0, 90))]),
            timestamp=self._now_ms,
            headers=tuple(headers),
        )

    def _usual(self) -> Sent:
        codec = self._rng.choice(list(Codec))
        if self._rng.random() < PLAIN_SHARE:
            return Sent(f"plain {codec.name}", bytes(build_batch(self._records(), codec=codec)))
        producer = self._rng.choice(PRODUCERS)
        records = self._records()
        first = self._sequences[producer]
        self._sequences[producer] += len(records)
        self._last = Sent(f"idempotent {codec.name}", _sequenced(records, codec, producer, first))
        return self._last

    def _odd(self) -> Sent:
        """Return a batch that is damaged or lacks a time, or repeats or skips sequence numbers."""
        kind = self._rng.choice(["again", "gap", "old", "flipped", "no time", "short"])
        producer = self._rng.choice(PRODUCERS)
        first = self._sequences[producer]
        if kind == "again" and self._last is not None:
            return Sent(kind, self._last.batch)
        if kind == "gap":
            return Sent(kind, _sequenced(self._records(), Codec.NONE, producer, first + 7))
        if kind == "old" and first > 200:
            return Sent(kind, _sequenced(self._records(), Codec.NONE, producer, first - 200))
        plain = build_batch(self._records())
        if kind == "flipped":
            plain[-1] ^= 1
        if kind == "short":
            return Sent(kind, bytes(plain[:-1]))
        if kind == "no time":
            plain = build_batch([NewRecord(value=b"timeless", timestamp=-1)])
        return Sent(kind, bytes(plain))


def _sequenced(records: list[NewRecord], codec: Codec, producer: int, first: int) -> bytes:
    batch = build_batch(
        records, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=first
    )
    return bytes(batch)
