"""Partitions that can't take a marker now, or have no transaction to end."""

import errno
from pathlib import Path
from typing import Final

import pytest
from tests.faults.hooked import HookedDisk
from tests.unit.server.loops import on_a_loop
from tests.unit.server.transactions.worlds import ONE, TWO, world
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import Patience

from tidelog.error_codes import ErrorCode
from tidelog.server.transactions.metadata import TransactionState
from tidelog.types import OFFSETS_TOPIC, TopicPartition

ELSEWHERE: Final = TopicPartition("ships", 0)


class ShutTopic(HookedDisk):
    """Disk that can't open a partition, until `failure` is None.

    Attributes:
        tries: How many attempts to open the partition have failed.
    """

    def __init__(self, place: TopicPartition, failure: Exception | None = None) -> None:
        super().__init__(self._fail)
        self.failure = failure
        self.tries = 0
        self._part = f"/{place.topic}-{place.partition}/"

    def _fail(self, call: str, path: str) -> None:
        is_log = self._part in path and path.endswith(".log")
        if call == "open" and is_log and self.failure is not None:
            self.tries += 1
            raise self.failure


@pytest.mark.parametrize(
    ("place", "failure"),
    [
        (ELSEWHERE, OSError(errno.EIO, "the disk has gone")),
        (ELSEWHERE, RuntimeError("unforeseen")),
        (TopicPartition(OFFSETS_TOPIC, 0), OSError(errno.EIO, "the disk has gone")),
    ],
    ids=str,
)
def test_a_marker_that_was_not_written_is_retried(
    tmp_path: Path, place: TopicPartition, failure: Exception
) -> None:
    async def check(path: Path) -> None:
        disk = ShutTopic(place)
        async with world(path, files=disk, offsets_topic_num_partitions="1") as it:
            it.node.log_dir.create_topic(place.topic, partitions=1)
            disk.failure = failure
            producer = await it.init()
            await it.add(producer, ONE, place)
            assert (await it.end(producer, commit=True)).code is ErrorCode.NONE
            patience = Patience()
            while disk.tries < 6:
                patience.check("it is not asked again")
                await it.pass_time(10_000)
            assert it.known().state is TransactionState.PREPARE_COMMIT
            disk.failure = None
            while not it.known().is_ended:
                patience.check("the marker is not written")
                await it.pass_time(10_000)
            assert it.known().state is TransactionState.COMPLETE_COMMIT
            numbers = producer.producer_id, 0, True
            places = [ONE] if place.topic == OFFSETS_TOPIC else [ONE, place]
            # The coordinator does not know which partition failed, so its retry writes markers to
            # all partitions again.
            assert {*it.markers()} == {(each, *numbers) for each in places}

    on_a_loop(check)(tmp_path)


@pytest.mark.parametrize("reason", ["deleted", "a later producer", "a later coordinator"])
def test_no_transaction_is_blocked_without_a_partition_to_end(tmp_path: Path, reason: str) -> None:
    async def check(path: Path) -> None:
        async with world(path, topics={"flights": 2, ELSEWHERE.topic: 1}) as it:
            producer = await it.init()
            await it.add(producer, ELSEWHERE, TWO)
            log, ended = it.node.partitions.get("ships", 0).log, []
            if reason == "deleted":
                delete_topic(it.node, ELSEWHERE.topic)
            else:
                is_later = reason == "a later producer"
                log.end_transaction(
                    producer_id=producer.producer_id,
                    producer_epoch=5 if is_later else 0,
                    coordinator_epoch=0 if is_later else 1000,
                    commit=False,
                )
                ended = it.markers()
            await it.end(producer, commit=True)
            await it.ended()
            assert it.markers() == [(TWO, producer.producer_id, 0, True), *ended]

    on_a_loop(check)(tmp_path)
