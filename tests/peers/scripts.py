"""Seeded scripts of a log: settings and appends that reach every rule on rolling and indexing."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.worlds.kafka.oracle import Script
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.samples import CODECS, LEGACY_CODECS, T0

from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.header import assign_offset
from tidelog.types import Codec, NewRecord

Step = dict[str, object]
PRODUCERS = (9_000, 9_001, 9_002)
# Kafka's limit on create times ahead of the clock is an hour; some records exceed it.
TOO_LATE = T0 + 10 * 3_600_000
# Leader epoch in a follower's Fetch request: the follower drops received batches that have a later
# epoch (KAFKA-18723).
EPOCH_LIMIT = 1_000
COPY_LIMIT = 1_500


def draw_config(rng: random.Random) -> dict[str, str]:
    """Return settings with small segments and indexes, so that short scripts roll often."""
    config = {
        "internal.segment.bytes": rng.choice(("600", "2000", "8000", "100000")),
        "index.interval.bytes": rng.choice(("0", "1", "100", "500", "4096")),
        "segment.index.bytes": rng.choice(("48", "240", "4096", "4096")),
        "segment.ms": rng.choice(("604800000", "604800000", "500", "4000")),
        "retention.ms": "-1",
    }
    if rng.random() < 0.2:
        config["message.timestamp.type"] = "LogAppendTime"
    if rng.random() < 0.1:
        config["compression.type"] = "uncompressed"
    return config


def draw_times(rng: random.Random, count: int, now_ms: int) -> list[int]:
    """Return the create times of one batch.

    The create times are equal or in any order, and some are missing. In some batches all create
    times are missing, or all are too far in the future.
    """
    kind = rng.random()
    if kind < 0.12:
        return [-1] * count
    if kind < 0.15:
        return [TOO_LATE] * count
    spread = rng.choice((0, 5, 3_000))
    drawn = [now_ms - rng.randrange(spread + 1) for _ in range(count)]
    return [-1 if rng.random() < 0.05 else time for time in drawn]


def draw_small_records(rng: random.Random, now_ms: int) -> list[NewRecord]:
    """Return a few records of up to 120 bytes."""
    times = draw_times(rng, rng.randrange(1, 6), now_ms)
    return [
        NewRecord(
            key=rng.choice((None, b"k", b"key-%d" % rng.randrange(50))),
            value=rng.choice((None, b"v" * rng.randrange(120), rng.randbytes(rng.randrange(60)))),
            timestamp=time,
        )
        for time in times
    ]


def client_script(seed: int, directory: Path, *, steps: int = 40, stubborn: bool = False) -> Script:
    """Return appends as producers and the transaction coordinator send them.

    Args:
        seed: Seed of everything drawn.
        directory: Directory of the script.
        steps: Number of appends.
        stubborn: Whether producers also repeat batches, and skip sequence numbers, as after lost
            batches.
    """
    rng = random.Random(f"client {seed}")
    config = draw_config(rng)
    life = _ClientLife(rng, stubborn=stubborn, stamped="message.timestamp.type" in config)
    return Script(directory, [life.step() for _ in range(steps)], config, now_ms=T0)


class _ClientLife:
    """State of the producers: the clock, and the next sequence number of each producer."""

    def __init__(self, rng: random.Random, *, stubborn: bool, stamped: bool) -> None:
        self._rng = rng
        self._stamped = stamped
        self._stubborn = stubborn
        self._now_ms = T0
        self._sequences = dict.fromkeys(PRODUCERS, 0)
        self._open: set[int] = set()
        self._last: Step | None = None

    def step(self) -> Step:
        self._now_ms += self._rng.choice((0, 0, 1, 7, 400, 1_500))
        kind = self._rng.random()
        if kind < 0.6:
            step = self._plain()
        elif kind < 0.75:
            step = self._transactional()
        elif kind < 0.82 and self._open:
            step = self._end()
        elif kind < 0.86 and self._last is not None and self._stubborn:
            step = self._last  # a retry: the same batch again
        else:
            step = self._idempotent()
        return step | {"now_ms": self._now_ms}

    def _plain(self) -> Step:
        rng = self._rng
        records = draw_small_records(rng, self._now_ms)
        return _append(build_batch(records, codec=rng.choice(CODECS)))

    def _idempotent(self) -> Step:
        return self._sequenced(PRODUCERS[0], transactional=False)

    def _transactional(self) -> Step:
        producer = self._rng.choice(PRODUCERS[1:])
        self._open.add(producer)
        return self._sequenced(producer, transactional=True)

    def _sequenced(self, producer: int, *, transactional: bool) -> Step:
        rng = self._rng
        # When Kafka reads its producer snapshot, it drops producers whose last timestamp is -1.
        records = [
            replace(record, timestamp=self._now_ms) if record.timestamp == -1 else record
            for record in draw_small_records(rng, self._now_ms)
        ]
        # A batch after a gap in the sequence numbers is refused, and so are later batches until the
        # gap is filled.
        lost = self._stubborn and rng.random() < 0.05
        sequence = self._sequences[producer] + (3 if lost else 0)
        data = build_batch(
            records,
            codec=rng.choice(CODECS),
            producer_id=producer,
            producer_epoch=1,
            base_sequence=sequence,
            transactional=transactional,
        )
        refused = not self._stamped and records[0].timestamp == TOO_LATE
        if not lost and not refused:
            self._sequences[producer] += len(records)
        self._last = _append(data)
        return self._last

    def _end(self) -> Step:
        producer = self._rng.choice(sorted(self._open))
        self._open.discard(producer)
        marker = build_end_marker(
            commit=self._rng.random() < 0.5,
            producer_id=producer,
            producer_epoch=1,
            coordinator_epoch=3,
            timestamp=self._now_ms,
        )
        return _append(marker) | {"origin": "COORDINATOR"}


def _append(data: bytes | bytearray) -> Step:
    return {"do": "append", "data": bytes(data)}


def follower_script(seed: int, directory: Path, *, steps: int = 40) -> Script:
    """Return appends as a follower copies them: many batches at once, old formats, gaps, epochs."""
    rng = random.Random(f"follower {seed}")
    config = draw_config(rng)
    config.pop("compression.type", None)
    # Large enough for the index entries of any append: with a smaller index, Kafka itself gets
    # stuck.
    config["segment.index.bytes"] = "4096"
    # Both sides refuse an append that is larger than a segment, but Kafka first records the
    # append's leader epoch.
    config["internal.segment.bytes"] = rng.choice(("1500", "2000", "8000", "100000"))
    batches = _copied_batches(rng, legacy=rng.random() < 0.4)
    found: list[Step] = []
    now_ms = T0
    for _ in range(steps):
        now_ms += rng.choice((0, 1, 7, 400))
        drawn = [next(batches) for _ in range(rng.choice((1, 1, 2, 5)))]
        whole = b"".join(drawn)
        copied = {"origin": "REPLICATION", "leader_epoch": EPOCH_LIMIT, "now_ms": now_ms}
        parts = [whole] if len(whole) <= COPY_LIMIT else drawn
        found += [_append(part) | copied for part in parts]
    return Script(directory, found, config, now_ms=T0)


def _copied_batches(rng: random.Random, *, legacy: bool) -> Iterator[bytes]:
    """Yield batches with the offsets and epochs of their leader."""
    offset = 0
    epoch = 0
    clock = T0
    while True:
        clock += rng.choice((0, 1, 300))
        records = draw_small_records(rng, clock)
        if legacy and rng.random() < 0.7:
            yield _legacy(rng, records, offset)
        else:
            # A gap in the offsets, as compaction on the leader leaves it.
            offset += rng.choice((0, 0, 0, 0, 40))
            epoch += rng.random() < 0.1
            data = build_batch(records, codec=rng.choice(CODECS))
            assign_offset(data, 0, offset, epoch)
            yield bytes(data)
        offset += len(records)


def _legacy(rng: random.Random, records: list[NewRecord], offset: int) -> bytes:
    magic = rng.randrange(2)
    codec = rng.choice(LEGACY_CODECS)
    if magic == 0:
        records = [NewRecord(key=r.key, value=r.value, timestamp=-1) for r in records]
    if codec is not Codec.NONE and magic == 1:
        # Both sides read a compressed message set with outer offset 0 as if its first record had
        # offset 0. This is right only for a set of one record.
        records = records if offset + len(records) > 1 else records[:1]
    return bytes(build_legacy_set(records, magic=magic, codec=codec, base_offset=offset))


def worn_script(seed: int, directory: Path, *, steps: int = 40) -> Script:
    """Return plain appends, with truncations, rolls, deleted records and retention between them."""
    rng = random.Random(f"worn {seed}")
    config = draw_config(rng) | {
        "retention.ms": rng.choice(("-1", "1500", "6000")),
        "retention.bytes": rng.choice(("-1", "0", "1500", "5000")),
        "file.delete.delay.ms": "0",
        "segment.index.bytes": "4096",
        "internal.segment.bytes": rng.choice(("1500", "3000", "8000")),
    }
    life = _WornLife(rng)
    return Script(directory, [life.step() for _ in range(steps)], config, now_ms=T0)


class _WornLife:
    """State of a script: the clock, and the end offset of each batch.

    The script truncates only at edges of batches. After a truncation at an offset inside a batch,
    the two logs would differ: Kafka's log continues at this offset and leaves a gap, while ours
    continues after the last whole batch.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now_ms = T0
        self._ends = [0]

    def step(self) -> Step:
        rng = self._rng
        self._now_ms += rng.choice((0, 1, 400, 1_500))
        kind = rng.random()
        if kind < 0.75:
            # All records have times, because otherwise retention would use the file's real
            # modification time.
            records = [
                replace(record, timestamp=self._now_ms - rng.randrange(3_000))
                for record in draw_small_records(rng, self._now_ms)
            ]
            self._ends.append(self._ends[-1] + len(records))
            step = _append(build_batch(records, codec=rng.choice(CODECS)))
        elif kind < 0.82:
            del self._ends[max(1, len(self._ends) - rng.randrange(1, 4)) :]
            step = {"do": "truncate", "offset": self._ends[-1]}
        elif kind < 0.87:
            step = {"do": "roll"}
        elif kind < 0.93:
            step = {"do": "delete_records", "offset": rng.randrange(self._ends[-1] + 1)}
        else:
            step = {"do": "retention"}
        return step | {"now_ms": self._now_ms}
