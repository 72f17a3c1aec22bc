"""Syncs of a partition that several appends share: waiting requests, visibility, failed disks."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from tests.faults import DamageFileSystem, Fault, FaultKind, seeded_env
from tests.faults.later import Later

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure, UnknownTopic
from tidelog.record.builder import build_batch
from tidelog.server.partitions.fetch import ReadOrder
from tidelog.server.partitions.partition import Partition
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import read_file
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.producers import ProducerStates
from tidelog.types import IsolationLevel, NewRecord

ALL: Final = -1
ROOT = "/data"


@dataclass
class World:
    """One partition whose syncs run on demand."""

    files: DamageFileSystem
    log_dir: LogDir
    later: Later
    partition: Partition

    def append(self, value: bytes = b"v", **more: object) -> tuple[int, bool]:
        """Append one record; return its offset, and whether an acks=all response has to wait."""
        batch = build_batch([NewRecord(value=value)], **more)  # type: ignore[arg-type] # fields by name
        result = self.partition.append(batch, AppendTerms(owned=True))
        return result.base_offset, self.partition.must_wait(result, ALL)

    def is_offline(self) -> bool:
        """Return whether the partition refuses appends."""
        return self.partition.failure is not None

    def syncs(self) -> int:
        """Return how often the log file was synced."""
        return sum(
            1
            for entry in self.files.journal
            if entry.path.endswith(".log") and type(entry.change).__name__ == "Sync"
        )


def make(config: dict[str, str] | None = None, *, syncs_all: bool = True) -> World:
    env = seeded_env(1)
    laters = list[Later]()

    def deferral() -> Later:
        laters.append(Later())
        return laters[-1]

    options = LogDirOptions(create=True, deferrals=deferral)
    log_dir = LogDir.open(ROOT, env=env, options=options)
    log_dir.create_topic("t", config=config)
    partition = Partition(log_dir.log("t", 0), syncs_all=syncs_all)
    return World(env.files, log_dir, laters[0], partition)


@pytest.fixture
def world() -> Iterator[World]:
    made = make()
    yield made
    made.log_dir.abandon()


def test_readers_see_synced_records_only(world: World) -> None:
    told = list[int]()
    world.partition.watch(lambda: told.append(world.partition.high_watermark))
    assert world.append() == (0, True)
    assert (world.partition.high_watermark, world.partition.log.log_end_offset) == (0, 1)
    world.later.settle()
    assert told == [1]
    assert world.partition.high_watermark == world.partition.log.recovery_point == 1


def test_next_group_gathers_while_one_syncs(world: World) -> None:
    before = world.syncs()
    for _ in range(10):
        world.append()
    world.later.work()
    assert world.syncs() - before == 1
    assert world.partition.high_watermark == 1  # only the first append is synced
    world.later.work()
    assert world.syncs() - before == 2
    assert world.partition.high_watermark == 10  # a single sync for the nine later appends
    assert world.later.is_idle


def test_append_times_are_synced_before_records(world: World) -> None:
    world.append()
    start = len(world.files.journal)
    world.later.settle()
    synced = [
        entry.path.rpartition(".")[2]
        for entry in world.files.journal[start:]
        if type(entry.change).__name__ == "Sync"
    ]
    assert synced == ["appendtime", "log"]


def test_acks_of_one_do_not_wait(world: World) -> None:
    result = world.partition.append(build_batch([NewRecord(value=b"v")]), AppendTerms(owned=True))
    assert not world.partition.must_wait(result, 1)
    assert world.partition.must_wait(result, ALL)


def test_repeated_batch_waits_as_its_first_did(world: World) -> None:
    idempotent = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    assert world.append(b"v", **idempotent) == (0, True)
    assert world.append(b"v", **idempotent) == (0, True)
    world.later.settle()
    assert world.append(b"v", **idempotent) == (0, False)


def test_waiting_responses_are_sent_with_their_group(world: World) -> None:
    async def story() -> list[int | None]:
        world.append()
        world.append()
        first, second = (world.partition.visible(end) for end in (1, 2))
        world.later.work()
        assert (first.is_done, second.is_done) == (True, False)
        world.later.work()
        return [first.value, second.value]

    assert asyncio.run(story()) == [0, 0]


def test_a_smaller_end_is_visible_before_a_larger_one_that_has_waited_longer(world: World) -> None:
    async def story() -> tuple[bool, bool]:
        world.append()
        world.append()
        larger, smaller = (world.partition.visible(end) for end in (2, 1))
        world.later.work()
        done = larger.is_done, smaller.is_done
        world.later.settle()
        assert (larger.value, smaller.value) == (0, 0)
        return done

    assert asyncio.run(story()) == (False, True)


def test_failed_sync_is_never_acknowledged(world: World) -> None:
    async def story() -> int:
        world.append(b"kept")
        world.later.settle()
        world.append(b"lost")
        waiting = world.partition.visible(2)
        world.files.writes.fault = Fault(world.files.calls, FaultKind.EIO)
        world.later.settle()
        late = world.partition.visible(2)
        assert late.value == ErrorCode.KAFKA_STORAGE_ERROR
        return waiting.value

    assert asyncio.run(story()) == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.partition.high_watermark == 1
    calls = world.files.calls
    with pytest.raises(StorageFailure):
        world.append()
    assert world.files.calls == calls
    assert [record.value for record in world.partition.log.records()][:1] == [b"kept"]


def test_each_use_of_an_offline_partition_is_a_storage_failure(world: World) -> None:
    world.append(b"kept")
    world.files.writes.fault = Fault(world.files.calls, FaultKind.EIO)
    world.later.settle()
    assert world.is_offline()
    for _ in range(2):
        with pytest.raises(StorageFailure):
            world.partition.advance()


def test_offline_partition_returns(world: World) -> None:
    world.append(b"kept")
    world.files.writes.fault = Fault(world.files.calls, FaultKind.NO_SPACE)
    world.later.settle()
    assert world.is_offline()
    world.files.writes.fault = None
    log = world.log_dir.reopen("t", 0)
    log.flush()
    world.partition.use(log)
    assert not world.is_offline()
    assert world.partition.high_watermark == 1
    result = world.partition.append(
        build_batch([NewRecord(value=b"next")]), AppendTerms(owned=True)
    )
    assert result.base_offset == 1


def test_a_deleted_topic_ends_waits_with_an_error(world: World) -> None:
    async def story() -> int:
        world.append()
        waiting = world.partition.visible(1)
        world.partition.close()
        return waiting.value

    assert asyncio.run(story()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_roll_is_synced_before_later_records(world: World) -> None:
    world.append(b"old")
    world.partition.log.roll()
    world.append(b"new")
    world.later.work()  # the sync of `old`
    assert world.partition.high_watermark == 1
    world.later.settle()
    assert world.partition.high_watermark == 2
    assert world.partition.log.recovery_point == 2


def test_with_flush_messages_the_append_that_is_due_waits_for_the_flush() -> None:
    world = make({"flush.messages": "3"}, syncs_all=False)
    assert [world.append() for _ in range(2)] == [(0, False), (1, False)]
    assert world.partition.high_watermark == 2
    assert world.append() == (2, True)
    assert world.append() == (3, True)  # waits for the flush in progress, as in Kafka
    assert world.partition.high_watermark == 2
    world.later.settle()
    assert world.partition.high_watermark == 4
    assert world.partition.log.recovery_point == 3
    world.log_dir.abandon()


@pytest.mark.parametrize(
    "setting", [{"retention.bytes": "0"}, {"retention.ms": "1"}], ids=["size", "time"]
)
def test_retention_keeps_segments_that_readers_do_not_see_yet(setting: dict[str, str]) -> None:
    world = make(setting)
    log = world.partition.log
    for number in range(2):
        world.partition.append(
            build_batch([NewRecord(value=b"%d" % number, timestamp=0)]), AppendTerms(owned=True)
        )
        log.roll()
    world.later.work()  # syncs the first record
    assert (world.partition.high_watermark, log.log_end_offset) == (1, 2)
    assert [deletion.base_offset for deletion in log.apply_retention()] == [0]
    assert log.log_start_offset == 1
    world.later.settle()
    assert [deletion.base_offset for deletion in log.apply_retention()] == [1]
    world.log_dir.abandon()


def test_retention_keeps_unsynced_records_of_a_reopened_log(world: World) -> None:
    world.append()
    world.later.settle()
    world.partition.use(world.log_dir.reopen("t", 0))
    world.append()
    world.partition.log.roll()
    assert world.partition.log.high_watermark == 1
    world.later.settle()
    assert world.partition.log.high_watermark == 2


def test_with_page_cache_no_append_waits() -> None:
    world = make(syncs_all=False)
    assert world.append() == (0, False)
    assert world.partition.high_watermark == 1
    assert world.later.is_idle
    world.log_dir.abandon()


def test_the_flush_of_a_deleted_log_ends(world: World) -> None:
    async def story() -> list[object]:
        world.append()
        flushes = [asyncio.ensure_future(world.partition.flushed()) for _ in range(2)]
        await asyncio.sleep(0)
        world.log_dir.delete_topic("t")
        world.partition.close()
        return list(await asyncio.gather(*flushes, return_exceptions=True))

    assert [type(each) for each in asyncio.run(story())] == [UnknownTopic] * 2


def test_a_failed_flush_is_an_error(world: World) -> None:
    async def story() -> None:
        world.append()
        flush = asyncio.ensure_future(world.partition.flushed())
        await asyncio.sleep(0)
        world.files.writes.fault = Fault(world.files.calls, FaultKind.EIO)
        world.later.settle()
        await flush

    with pytest.raises(StorageFailure):
        asyncio.run(story())


def test_partition_that_cannot_be_synced_at_its_opening_is_read_and_returns() -> None:
    world = make(syncs_all=False)
    world.append(b"kept")
    world.partition.log.flush()
    world.append(b"not synced")
    world.files.writes.fault = Fault(world.files.calls, FaultKind.EIO)
    world.partition = Partition(world.partition.log, syncs_all=True)
    assert world.is_offline()
    assert world.partition.high_watermark == 1
    world.files.writes.fault = None
    world.partition.use(world.log_dir.reopen("t", 0))
    assert not world.is_offline()
    assert world.partition.high_watermark == 2
    world.log_dir.abandon()


def test_waiters_get_a_failure_before_another_log_replaces_the_failed_one(world: World) -> None:
    world.append(b"kept")
    world.later.settle()
    world.append(b"waits for its sync")
    failures = list[object]()
    world.partition.watch(lambda: failures.append(world.partition.failure))
    world.files.writes.fault = Fault(world.files.calls, FaultKind.NO_SPACE)
    with pytest.raises(StorageFailure):
        world.append(b"fails")
    world.files.writes.fault = None
    world.partition.use(world.log_dir.reopen("t", 0))
    assert failures[0] is not None


def test_a_follower_sees_only_synced_records(world: World) -> None:
    order = ReadOrder(
        12, IsolationLevel.READ_UNCOMMITTED, is_follower=True, min_bytes=1, max_bytes=1 << 20
    )
    world.append()
    assert order.end_offset(world.partition) == 0
    world.later.settle()
    assert order.end_offset(world.partition) == 1


def test_roll_leaves_the_snapshot_of_producers_to_a_thread() -> None:
    world, snapshot = make(syncs_all=False), f"{ROOT}/t-0/{1:020}.snapshot"
    log = world.partition.log
    for producer_id in (7, 8):
        sent = build_batch(
            [NewRecord(value=b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        log.append_batches(sent)
        if producer_id == 7:
            log.roll()
        assert not world.files.exists(snapshot)
    world.later.settle()
    # The snapshot has the producers that were known when the segment was finished.
    states = ProducerStates.decode_snapshot(read_file(world.files, snapshot))
    assert set(states.producers) == {7}
    world.log_dir.abandon()
