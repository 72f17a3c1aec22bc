"""`kill -9` under load loses, duplicates and reorders no acknowledged record.

Three idempotent producers write to two partitions, and a group commits. The broker is killed after
some acknowledgements and restarted on the same directory, several times. The operating system keeps
all writes of a killed process, so lost writes don't occur here; tests/fault covers power losses.
"""

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.server.kill.writers import (
    Committer,
    IdempotentProducer,
    await_coordinator,
    committed_offset,
)
from tests.worlds.brokers.victims import Nursery, Victim
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S

from tidelog.record.record import Record

TOPIC = "killed"
OPTIONS = (
    *("--set", "num.partitions=2"),
    *("--set", "offsets.topic.num.partitions=1"),
    # Records are a millisecond apart, so segments have few batches, and some kills interrupt a
    # roll.
    *("--set", "log.roll.ms=40"),
    # The records are old: the default retention of a week would delete them within half a minute.
    *("--set", "log.retention.ms=-1"),
)

Writer = IdempotentProducer | Committer


class Life:
    """One run of the broker: it serves the writers until it has acknowledged enough, then dies."""

    def __init__(self, victim: Victim, writers: Sequence[Writer], acknowledgements: int) -> None:
        self._victim = victim
        self._left = acknowledgements
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._failures: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in writers]

    def _run(self, writer: Writer) -> None:
        try:
            writer.run(self._victim.bootstrap, self._acknowledged)
        except ConnectionError:
            if not self._enough.is_set():
                self._failures.append(RuntimeError("the broker hung up before it was killed"))
        except Exception as error:  # noqa: BLE001 - raised in the test's thread
            self._failures.append(error)
        self._enough.set()

    def _acknowledged(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._enough.set()

    def run(self) -> None:
        """Start the broker, let the writers write, kill it; raise the writers' errors."""
        self._victim.start()
        for thread in self._threads:
            thread.start()
        assert self._enough.wait(PATIENCE_S), "too few acknowledgements"
        self._victim.kill()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


def _check_producer(producer: IdempotentProducer, found: Sequence[Record]) -> None:
    """Assert that a producer's records occur once, in order, and at the acknowledged offsets."""
    values = {record.offset: record.value for record in found}
    for base_offset, batch in producer.acknowledged:
        told = [values.get(base_offset + n) for n in range(batch.count)]
        assert told == [producer.value(batch.first + n) for n in range(batch.count)]
    prefix = producer.name.encode() + b":"
    own = [record.value for record in found if (record.value or b"").startswith(prefix)]
    assert own == [producer.value(number) for number in range(len(own))]


def _check_all(victim: Victim, producers: Sequence[IdempotentProducer], group: Committer) -> None:
    victim.start()
    with RawClient(victim.bootstrap) as client:
        by_partition = {number: client.read_all(TOPIC, number) for number in (0, 1)}
        await_coordinator(client, group.group)
        assert group.acknowledged <= committed_offset(client, group.group, TOPIC) <= group.sent
    victim.stop()
    for producer in producers:
        _check_producer(producer, by_partition[producer.partition])
    for records in by_partition.values():
        assert [record.offset for record in records] == list(range(len(records)))


def kill_again_and_again(tmp_path: Path, kills: int, seed: int, *options: str) -> None:
    """Run and kill the broker `kills` times, then check all records and commits."""
    rng = random.Random(seed)
    producers = [
        IdempotentProducer(f"p{number}", TOPIC, number % 2, random.Random(seed + number))
        for number in range(3)
    ]
    group = Committer("group", TOPIC)
    with Nursery(tmp_path / "log") as nursery:
        victim = Victim(nursery, tmp_path / "data", *OPTIONS, *options)
        try:
            victim.start()
            with RawClient(victim.bootstrap) as client:
                client.auto_create(TOPIC)
            victim.kill()
            for _ in range(kills - 1):
                Life(victim, [*producers, group], rng.randint(1, 60)).run()
            _check_all(victim, producers, group)
        finally:
            victim.stop()


@pytest.mark.parametrize(("durability", "kills"), [("page-cache", 7), ("fsync", 3)])
def test_kills_lose_no_acknowledged_record(tmp_path: Path, durability: str, kills: int) -> None:
    kill_again_and_again(tmp_path, kills, 6, "--durability", durability)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_kills_lose_no_acknowledged_record(tmp_path: Path, seed: int) -> None:
    durability = "fsync" if seed % 3 == 0 else "page-cache"
    kill_again_and_again(tmp_path, 100, seed, "--durability", durability)
