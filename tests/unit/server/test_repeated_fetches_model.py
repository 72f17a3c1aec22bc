"""After random events in a broker, a repeated fetch gets the same response as a new fetch."""

import random
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.unit.server.fetching import MANY_BYTES, NOW_MS, PARTITIONS, TOPICS, Broker
from tests.worlds.brokers.topics import delete_topic

from tidelog.errors import StorageFailure
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.server.api.node import ClientInfo
from tidelog.storage.log.append_types import AppendOrigin, AppendTerms
from tidelog.types import NewRecord


class Life:
    """Random changes, and random requests that continue where earlier responses ended."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.rng = random.Random(seed)
        self.sequences: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], list[int]] = {}
        self.change_client()

    def step(self) -> None:
        change = self.rng.choices(
            (
                self.append,
                self.append_transactional,
                self.delete_records,
                self.roll,
                self.configure,
                self.make_anew,
                self.change_client,
                self.change_limit,
                self.fail_disk,
            ),
            (20, 4, 2, 3, 1, 1, 2, 1, 1),
        )[0]
        change()
        for _ in range(3):
            self.fetch()

    def some(self) -> tuple[str, int]:
        return self.rng.choice(TOPICS), self.rng.randrange(PARTITIONS)

    def working(self) -> tuple[str, int]:
        """Choose a partition; if it has failed, recreate its topic. Return the partition."""
        place = self.some()
        if self.broker.partition(*place).failure is not None:
            delete_topic(self.broker.node, place[0])
            self.broker.create(place[0])
            self.forget(place[0])
            assert self.broker.partition(*place).failure is None
        return place

    def forget(self, topic: str) -> None:
        for number in range(PARTITIONS):
            self.sequences.pop((topic, number), None)
            self.ends.pop((topic, number), None)

    def append(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            size = self.rng.choice((5, 300, 5_000, 17_000, 60_000))
            place = self.working()
            end = self.broker.append(*place, size, self.rng.randrange(1, 4))
            self.ends.setdefault(place, []).append(end)

    def append_transactional(self) -> None:
        place = self.working()
        partition = self.broker.partition(*place)
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = sequence + 1
        batch = build_batch(
            [NewRecord(value=b"v" * self.rng.choice((5, 20_000)), timestamp=NOW_MS)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        partition.append(batch, AppendTerms(AppendOrigin.COORDINATOR))
        if self.rng.random() < 0.8:
            marker = build_end_marker(
                commit=self.rng.random() < 0.5,
                producer_id=7,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=NOW_MS,
            )
            partition.append(marker, AppendTerms(AppendOrigin.COORDINATOR))

    def delete_records(self) -> None:
        partition = self.broker.partition(*self.working())
        if partition.last_stable_offset == partition.high_watermark:
            log = partition.log
            log.delete_records(self.rng.randint(log.log_start_offset, log.log_end_offset))

    def roll(self) -> None:
        self.broker.partition(*self.working()).log.roll()

    def configure(self) -> None:
        value = self.rng.choice(("true", None))
        changes = {"tidelog.expose.append.time": value}
        self.broker.node.log_dir.alter_config(self.rng.choice(TOPICS), changes)

    def make_anew(self) -> None:
        topic = self.rng.choice(TOPICS)
        delete_topic(self.broker.node, topic)
        self.broker.compare(self.request())
        self.broker.create(topic)
        self.forget(topic)

    def change_limit(self) -> None:
        node, most = self.broker.node, self.rng.choice((1024, 50_000, MANY_BYTES))
        node.config = replace(node.config, fetch_max_bytes=most)

    def fail_disk(self) -> None:
        """Let the disk of a partition fail; acknowledged records can still be read."""
        log = self.broker.partition(*self.some()).log
        if log.failure is None:
            self.broker.disk.is_failing = True
            with pytest.raises(StorageFailure):
                log.flush()
            self.broker.disk.is_failing = False

    def change_client(self) -> None:
        """Replace the client. A client's requests differ only in their partitions and offsets."""
        self.version = self.rng.choice((9, 11, 12, 13, 18))
        self.isolation = self.rng.choice((0, 1))
        self.max_bytes = self.rng.choice((MANY_BYTES, MANY_BYTES, 90_000, 0))
        self.min_bytes, self.wait_ms = self.rng.choice((0, 1)), self.rng.choice((0, 500))
        self.broker.connection = ClientInfo(1, "somewhere")

    def fetch(self) -> None:
        self.broker.compare(self.request())

    def request(self) -> bytes:
        asked = []
        for topic in self.rng.sample(TOPICS, self.rng.randint(1, 2)):
            numbers = self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS))
            asked.append((topic, [(number, self.offset(topic, number)) for number in numbers]))
        return self.broker.frame(
            self.version,
            asked,
            isolation=self.isolation,
            partition_max_bytes=self.rng.choice((1 << 20, 1 << 20, 40_000, 100, 0)),
            max_bytes=self.max_bytes,
            min_bytes=self.min_bytes,
            wait_ms=self.wait_ms,
            epochs=(self.rng.choice((-1,) * 8 + (0, 1)), -1),
            number=self.rng.randrange(-(1 << 31), 1 << 31) & 0xFFFF_FFFF,
        )

    def offset(self, topic: str, number: int) -> int:
        found = self.broker.node.partitions.find_used(topic, number)
        if found is None or self.rng.random() < 0.03:
            return self.rng.randrange(-1, 200)
        ends = self.ends.get((topic, number), [])
        return self.rng.choice((*ends[-3:], found.log.log_start_offset, found.high_watermark))


@examples(25)
@given(st.integers(0, 1 << 32))
def test_repeated_fetches_get_the_same_responses_after_any_events(seed: int) -> None:
    with TemporaryDirectory() as folder:
        broker = Broker(folder, seed=seed)
        try:
            life = Life(broker, seed)
            for _ in range(30):
                life.step()
        finally:
            with suppress(StorageFailure):  # closing the node raises the failure again
                broker.node.close()
