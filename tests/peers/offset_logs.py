"""Writes many logs into a broker's directory, and looks up offsets in them with Kafka's client."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.peers.ours import run_ours
from tests.peers.scripts import client_script, follower_script
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome

from tidelog.record.batch_walk import walk
from tidelog.types import INT64_MAX

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
SPECIAL = (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED)
NOT_FOUND = (-1, -1)
KEPT_FILE = "partition.metadata"
ASK_TIMEOUT_S = 1_800

Answer = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a log as it is on disk: (offset, timestamp) of every record, in order.

    `largest` is the largest timestamp of its batches, even of batches whose records are deleted. If
    no batch has a timestamp, `largest` is the file's modification time, as for Kafka.
    """

    base: int
    records: tuple[tuple[int, int], ...]
    largest: int
    is_timed: bool


def read_parts(directory: Path) -> list[Part]:
    """Return a partition's segments with all records. Kafka's lookups find control records too."""
    parts = []
    for log in sorted(directory.glob("*.log")):
        batches = list(walk(log.read_bytes()))
        largest = max((batch.max_timestamp for batch in batches), default=-1)
        records = tuple((r.offset, r.timestamp) for b in batches for r in b.records())
        mtime_ms = log.stat().st_mtime_ns // 1_000_000
        is_timed = largest >= 0
        parts.append(Part(int(log.stem), records, largest if is_timed else mtime_ms, is_timed))
    return parts


def exact(parts: Sequence[Part], target: int, start: int) -> Answer:
    """Return the first record at or above the log start that has a time of at least `target`."""
    records = (record for part in parts for record in part.records)
    return next(((o, t) for o, t in records if o >= start and t >= target), NOT_FOUND)


def as_kafka(parts: Sequence[Part], target: int, start: int) -> Answer:
    """Compute Kafka's result: Kafka searches the first segment that seems to reach the time."""
    part = next((part for part in parts if part.largest >= target), None)
    return NOT_FOUND if part is None else exact([part], target, start)


def latest_exact(parts: Sequence[Part], start: int) -> Answer:
    """Return the first of the readable records that have the largest timestamp."""
    records = [r for part in parts for r in part.records if r[0] >= start and r[1] >= 0]
    return max(records, key=lambda r: (r[1], -r[0]), default=NOT_FOUND)


def latest_as_kafka(parts: Sequence[Part]) -> Answer:
    """Compute Kafka's result, which can be a record below the log start."""
    return latest_exact(parts, 0)


def questions(parts: Sequence[Part]) -> list[int]:
    """Return the special values, and each timestamp with the times 1 ms before and after it."""
    times = {t + d for part in parts for _, t in part.records for d in (-1, 0, 1)}
    return [*SPECIAL, *sorted(t for t in times if 0 <= t <= INT64_MAX)]


def place_log(broker: Broker, topic: str, partition: int, seed: int, *, legacy: bool) -> None:
    """Put a generated log in the place of the stopped broker's empty partition."""
    directory = broker.partition_dir(topic, partition)
    for file in directory.iterdir():
        if file.name != KEPT_FILE:
            file.unlink()
    make = follower_script if legacy else client_script
    run_ours(replace(make(seed, directory), directory=directory))


def ask_kafka(
    home: KafkaHome, broker: Broker, asked: Iterable[tuple[str, int, Sequence[int]]], folder: Path
) -> list[list[Answer]]:
    """Look up with Kafka's admin client; return (offset, timestamp) per partition and value."""
    ask, told = folder / "questions.json", folder / "answers.json"
    ask.write_text(json.dumps([[topic, number, list(specs)] for topic, number, specs in asked]))
    command = home.java_command(
        "tidelog.kafka.OffsetQuestions", broker.bootstrap, str(ask), str(told)
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [[(o, t) for o, t in answers] for answers in json.loads(told.read_text())]
