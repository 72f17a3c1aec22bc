"""The broker's cleaners: order of partitions, failures and stops."""

import asyncio
import dataclasses
import errno
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.directories.plain_cleaner import PlainWorker
from tests.worlds.waiting import PATIENCE_S, Patience, turn_until, until_so

from tidelog.config import BrokerConfig
from tidelog.control.verbs import TakeBack
from tidelog.env import Env, ManualClock
from tidelog.errors import CleaningAborted, CleaningFailed, InvalidRequest, StorageFailure
from tidelog.server.api import topic_changes
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.server.maintenance import log_cleaner
from tidelog.server.maintenance.log_cleaner import LEND_MS, RETRY_MAX_MS, LogCleaner
from tidelog.server.maintenance.log_manager import LogManager
from tidelog.storage.compaction.cleaner import LogTarget
from tidelog.storage.compaction.cleaning_plan import CleaningState, inspect_log
from tidelog.storage.compaction.job import CleaningJob, CleaningResult
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.types import NewRecord, TopicPartition

START_MS = 1_700_000_000_000
BACKOFF_MS = 1_000
SETTINGS = {"log.cleaner.backoff.ms": str(BACKOFF_MS), "log.initial.task.delay.ms": "0"}
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


class Worker(PlainWorker):
    """Worker whose first `failures` cleanings fail; collects the partition of each cleaning."""

    def __init__(self, env: Env, failures: int = 0) -> None:
        super().__init__(env)
        self.failures = failures
        self.asked: list[str] = []
        self.is_stopped = False
        self.rested_ms = -BACKOFF_MS
        self._clock = env.clock

    def clean(self, job: CleaningJob) -> CleaningResult:
        self.asked.append(f"{job.topic}-{job.partition}")
        if self.failures:
            self.failures -= 1
            raise CleaningFailed("out of luck")
        return super().clean(job)

    def rest(self) -> None:
        self.rested_ms = self._clock.monotonic_ms()

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock, disk: HookedDisk) -> Iterator[Node]:
    env = Env(clock=clock, files=disk)
    made = open_node(str(tmp_path), BrokerConfig.parse(SETTINGS)[0], env=env)
    yield made
    made.close()


async def make_segments(node: Node, topic: str, count: int, **config: str) -> None:
    """Create a topic with `count` finished and synced segments; all records have the same key."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    node.log_dir.create_topic(topic, partitions=1, config={**CONFIG, **settings})
    log = node.partitions.get(topic, 0).log
    for number in range(count):
        log.append([NewRecord(key=b"k", value=b"%d" % number, timestamp=START_MS)])
        log.roll()
    await node.partitions.get(topic, 0).flushed()


async def synced(log: Log) -> None:
    """Wait for the thread that syncs the rolled segment."""
    patience = Patience()
    while not log.guard.is_settled:
        patience.check("the rolled segment is synced")
        await asyncio.to_thread(lambda: None)


async def settle(node: Node, worker: Worker) -> None:
    """Run all work that is due, without advancing the clock, until the cleaner waits."""
    patience = Patience()
    while True:
        patience.check("the cleaner never rests")
        node.timers.run_due()
        await asyncio.sleep(0)
        is_resting = node.env.clock.monotonic_ms() < worker.rested_ms + BACKOFF_MS
        if is_resting and (node.timers.next_delay_ms() or 0) > 0:
            return
        await asyncio.to_thread(lambda: None)


async def run(node: Node, worker: Worker) -> LogCleaner:
    found = LogCleaner(node, lambda: worker)
    found.start()
    await asyncio.sleep(0)
    await settle(node, worker)
    return found


def count(node: Node, topic: str) -> int:
    return len(list(node.partitions.get(topic, 0).log.records()))


def test_the_dirtiest_log_is_cleaned_first_and_all_are_cleaned(node: Node) -> None:
    async def story() -> None:
        await make_segments(node, "some", 3)
        log = node.partitions.get("some", 0).log
        node.log_dir.note_cleaned(TopicPartition("some", 0), 2)
        await make_segments(node, "all", 3)
        node.log_dir.create_topic("plain", partitions=1)
        worker = Worker(node.env)
        cleaners = await run(node, worker)
        assert worker.asked == ["all-0", "some-0"]
        assert [count(node, "some"), count(node, "all")] == [1, 1]
        assert log.failure is None
        tally = node.metrics.cleaner
        assert (tally.runs, tally.failures, tally.at_work) == (2, 0, 0)
        assert tally.ratios == {TopicPartition(t, 0): 0.0 for t in ("some", "all")}
        await cleaners.stop()
        assert worker.is_stopped

    asyncio.run(story())


def test_a_partition_that_fails_is_named_and_tried_again_later_and_later(
    node: Node, clock: ManualClock
) -> None:
    async def story() -> None:
        await make_segments(node, "t", 3)
        name = TopicPartition("t", 0)
        worker = Worker(node.env, failures=3)
        cleaners = await run(node, worker)
        for failures, wait_ms in enumerate((BACKOFF_MS, 2 * BACKOFF_MS, 4 * BACKOFF_MS), 1):
            assert len(worker.asked) == failures
            assert node.metrics.cleaner.failing == {name: "out of luck"}
            clock.advance(wait_ms - 1)
            await settle(node, worker)
            assert len(worker.asked) == failures
            clock.advance(BACKOFF_MS)
            await settle(node, worker)
        assert len(worker.asked) == 4
        assert count(node, "t") == 1
        assert node.metrics.cleaner.failing == {}
        await cleaners.stop()

    asyncio.run(story())


def test_after_a_success_the_next_failure_is_retried_soon(node: Node, clock: ManualClock) -> None:
    async def story() -> None:
        await make_segments(node, "t", 3)
        partition = node.partitions.get("t", 0)
        worker = Worker(node.env, failures=2)
        cleaners = await run(node, worker)
        for _ in range(4):
            clock.advance(BACKOFF_MS)
            await settle(node, worker)
        assert (len(worker.asked), count(node, "t")) == (3, 1)
        partition.log.append([NewRecord(key=b"k", value=b"9", timestamp=START_MS)])
        partition.log.roll()
        await partition.flushed()
        worker.failures = 1
        for attempts in (4, 5):
            clock.advance(BACKOFF_MS)
            await settle(node, worker)
            assert len(worker.asked) == attempts
        await cleaners.stop()

    asyncio.run(story())


def test_lost_append_times_stop_one_partition_alone(
    node: Node, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        await make_segments(node, "lost", 3)
        await make_segments(node, "sound", 3)
        path = tmp_path / "lost-0" / f"{1:020}.appendtime"
        data = path.read_bytes()
        path.unlink()
        worker = Worker(node.env)
        cleaners = await run(node, worker)
        assert worker.asked == ["sound-0"]
        for _ in range(3):
            await settle(node, worker)
        (line,) = [record.message for record in caplog.records if "lost-0" in record.message]
        assert str(path) in line
        assert "--accept-lost-times" in line
        path.write_bytes(data)
        clock.advance(BACKOFF_MS)
        await settle(node, worker)
        assert worker.asked == ["sound-0", "lost-0"]
        assert node.metrics.cleaner.failing == {}
        await cleaners.stop()

    asyncio.run(story())


def test_a_wait_has_an_end(node: Node, clock: ManualClock) -> None:
    async def story() -> None:
        await make_segments(node, "t", 3)
        worker = Worker(node.env, failures=100)
        cleaners = await run(node, worker)
        for tries in range(2, 17):
            clock.advance(RETRY_MAX_MS)
            await settle(node, worker)
            assert len(worker.asked) == tries
        clock.advance(RETRY_MAX_MS - 1)
        await settle(node, worker)
        assert len(worker.asked) == tries
        assert node.metrics.cleaner.failing == {TopicPartition("t", 0): "out of luck"}
        await topic_changes.delete(node, "t")
        assert node.metrics.cleaner.failing == {}
        await cleaners.stop()

    asyncio.run(story())


def test_an_idle_head_is_rolled_and_cleaned(node: Node, clock: ManualClock) -> None:
    async def story() -> None:
        await make_segments(node, "t", 0, max_compaction_lag_ms="5000")
        log = node.partitions.get("t", 0).log
        for number in range(3):
            log.append([NewRecord(key=b"k", value=b"%d" % number, timestamp=START_MS)])
        worker = Worker(node.env)
        cleaners = await run(node, worker)
        assert count(node, "t") == 3
        clock.advance(5_001)
        for _ in range(4):
            clock.advance(BACKOFF_MS)
            await settle(node, worker)
            await synced(log)
        assert count(node, "t") == 1
        await cleaners.stop()

    asyncio.run(story())


def test_a_backfill_waits_from_its_append_on(node: Node, clock: ManualClock) -> None:
    """The maximum lag is counted from the append times; the create times are older than the lag."""

    async def story() -> None:
        await make_segments(
            node, "t", 0, max_compaction_lag_ms="5000", min_cleanable_dirty_ratio="1"
        )
        log = node.partitions.get("t", 0).log
        worker = Worker(node.env)
        cleaners = await run(node, worker)
        for number in range(4):
            log.append([NewRecord(key=b"k", value=b"%d" % number, timestamp=1000 + number)])
            clock.advance(BACKOFF_MS)
            await settle(node, worker)
            assert (len(log.segments), count(node, "t")) == (1, number + 1)
        for _ in range(4):
            clock.advance(BACKOFF_MS)
            await settle(node, worker)
            await synced(log)
        assert (len(log.segments), count(node, "t")) == (2, 1)
        await cleaners.stop()

    asyncio.run(story())


def test_a_sync_that_ends_during_a_look_is_not_overlooked(
    node: Node, clock: ManualClock, disk: HookedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()

    def wait(call: str, _path: str) -> None:
        if call == "sync":
            assert may_sync.wait(PATIENCE_S)

    async def story() -> None:
        await make_segments(node, "t", 0, max_compaction_lag_ms="5000")
        log = node.partitions.get("t", 0).log
        for number in range(3):
            log.append([NewRecord(key=b"k", value=b"%d" % number, timestamp=START_MS)])
        disk.hook = wait

        def slowly(log_dir: LogDir, name: TopicPartition) -> CleaningState:
            found = inspect_log(log_dir, name)
            may_sync.set()
            until_so(lambda: log.recovery_point >= log.active.base_offset)
            return found

        monkeypatch.setattr(log_cleaner, "inspect_log", slowly)
        clock.advance(5_001)
        worker = Worker(node.env)
        cleaners = await run(node, worker)
        assert (len(log.segments), count(node, "t")) == (2, 3)
        clock.advance(BACKOFF_MS)
        await settle(node, worker)
        assert count(node, "t") == 1
        await cleaners.stop()

    asyncio.run(story())


def test_a_requested_compaction_runs_once_at_a_time(node: Node) -> None:
    async def story() -> None:
        await make_segments(node, "t", 3)
        node.log_dir.create_topic("plain", partitions=1)
        cleaners = LogCleaner(node, lambda: Worker(node.env))
        name = TopicPartition("t", 0)
        first = asyncio.ensure_future(cleaners.clean_now(name))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="already being compacted"):
            await cleaners.clean_now(name)
        assert (await first).records_after == 1
        with pytest.raises(InvalidRequest, match="not a compacted topic"):
            await cleaners.clean_now(TopicPartition("plain", 0))
        await cleaners.stop()

    asyncio.run(story())


def test_a_failed_requested_compaction_can_be_requested_again(node: Node, disk: HookedDisk) -> None:
    def fail(call: str, path: str) -> None:
        if call in {"open", "map"} and "/t-0/" in path:
            raise OSError(errno.EIO, "the disk fails", path)

    async def story() -> None:
        await make_segments(node, "t", 3)
        cleaners = LogCleaner(node, lambda: Worker(node.env))
        name = TopicPartition("t", 0)
        disk.hook = fail
        try:
            with pytest.raises((OSError, StorageFailure), match="the disk fails"):
                await cleaners.clean_now(name)
        finally:
            disk.hook = lambda _call, _path: None
        assert (await cleaners.clean_now(name)).records_after == 1
        await cleaners.stop()

    asyncio.run(story())


def test_cleaners_share_the_io_rate_and_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of the cleaner's process, a program runs that stores its first job and ends."""
    program, stored = tmp_path / "python", tmp_path / "job"
    program.write_text(f'#!/bin/sh\nread -r job\nprintf "%s" "$job" > "{stored}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    shared = {
        "log.cleaner.threads": "4",
        "log.cleaner.io.max.bytes.per.second": "1000",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
        "log.cleaner.io.buffer.load.factor": "0.5",
    }
    node = open_node(str(tmp_path / "data"), BrokerConfig.parse({**SETTINGS, **shared})[0])

    async def story() -> None:
        name = TopicPartition("t", 0)
        await make_segments(node, name.topic, 3)
        cleaners = LogCleaner(node)
        with pytest.raises(CleaningFailed, match="process ended"):
            await cleaners.clean_now(name)
        _, lent = await cleaners.lending.begin(name, roll=False, is_asked=True)
        assert lent is not None
        assert (lent.rules.dedupe_buffer_bytes, lent.rules.load_factor) == (2 << 20, 0.5)
        await cleaners.stop()

    try:
        asyncio.run(story())
    finally:
        node.close()
    request = json.loads(stored.read_text())
    assert request["bytes_per_second"] == 250
    rules = json.loads(request["job"])["rules"]
    assert (rules["dedupe_buffer_bytes"], rules["load_factor"]) == (2 << 20, 0.5)


def test_a_lent_job_without_a_result_ends_after_a_day(node: Node, clock: ManualClock) -> None:
    async def story() -> None:
        await make_segments(node, "t", 3)
        name, worker = TopicPartition("t", 0), Worker(node.env)
        cleaners = LogCleaner(node, lambda: worker)
        assert (await cleaners.lending.begin(name, roll=False, is_asked=True))[1] is not None
        cleaners.start()
        await asyncio.sleep(0)
        await settle(node, worker)
        clock.advance(LEND_MS - 1)
        await settle(node, worker)
        assert (worker.asked, name in node.cleanings) == ([], True)
        clock.advance(BACKOFF_MS)
        await settle(node, worker)
        assert (worker.asked, name in node.cleanings) == (["t-0"], False)
        await cleaners.stop()

    asyncio.run(story())


def test_a_lent_job_ends_after_a_day_although_the_cleaner_is_off(
    node: Node, clock: ManualClock
) -> None:
    node.config = dataclasses.replace(node.config, log_cleaner_enable=False)

    async def story() -> None:
        await make_segments(node, "t", 3)
        name, worker = TopicPartition("t", 0), Worker(node.env)
        cleaners = LogCleaner(node, lambda: worker)
        assert (await cleaners.lending.begin(name, roll=False, is_asked=True))[1] is not None
        cleaners.start()
        await asyncio.sleep(0)
        clock.advance(LEND_MS - 1)
        node.timers.run_due()
        await asyncio.to_thread(lambda: None)
        assert name in node.cleanings
        clock.advance(BACKOFF_MS)
        node.timers.run_due()
        await turn_until(lambda: name not in node.cleanings)
        assert worker.asked == []
        await cleaners.stop()

    asyncio.run(story())


def test_a_lent_job_ends_with_its_topic(node: Node) -> None:
    """A new topic of the same name can be cleaned, because the old topic's job has ended."""

    async def story() -> None:
        await make_segments(node, "t", 3)
        await make_segments(node, "u", 3)
        name, other = TopicPartition("t", 0), TopicPartition("u", 0)
        cleaners = LogCleaner(node, lambda: Worker(node.env))
        for each in (name, other):
            assert (await cleaners.lending.begin(each, roll=False, is_asked=True))[1] is not None
        await topic_changes.delete(node, "t")
        assert (name in node.cleanings, other in node.cleanings) == (False, True)
        await make_segments(node, "t", 3)
        assert (await cleaners.clean_now(name)).records_after == 1
        await cleaners.stop()

    asyncio.run(story())


def test_nothing_ends_a_lent_job_while_its_result_is_swapped_in(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the job ended, files that are being renamed would be removed, and swaps could overlap."""
    name, is_swapping, may_go_on = TopicPartition("t", 0), threading.Event(), threading.Event()
    plain = LogTarget.swap_in

    def swap_in(target: LogTarget, cleaned: CleaningResult) -> None:
        is_swapping.set()
        assert may_go_on.wait(PATIENCE_S)
        plain(target, cleaned)

    monkeypatch.setattr(LogTarget, "swap_in", swap_in)

    async def story() -> None:
        await make_segments(node, "t", 3)
        cleaners = LogCleaner(node, lambda: Worker(node.env))
        _, job = await cleaners.lending.begin(name, roll=False, is_asked=True)
        assert job is not None
        result = TakeBack(name, job.seed, Worker(node.env).clean(job))
        swap = asyncio.create_task(cleaners.lending.take_back(result))
        await asyncio.to_thread(is_swapping.wait, PATIENCE_S)
        with pytest.raises(InvalidRequest, match="already being compacted"):
            await cleaners.lending.begin(name, roll=False, is_asked=True)
        with pytest.raises(CleaningAborted, match="has ended"):
            await cleaners.lending.take_back(result)
        clock.advance(LEND_MS)
        await cleaners.lending.give_up_old()
        assert name in node.cleanings
        may_go_on.set()
        assert not await swap
        assert (count(node, "t"), name in node.cleanings) == (1, False)
        await cleaners.stop()

    asyncio.run(story())


def test_an_unexpected_error_stops_no_cleaner(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unexpected error, the partition is retried later, and others are cleaned."""

    async def story() -> None:
        await make_segments(node, "t", 3)
        await make_segments(node, "u", 2)
        worker = Worker(node.env)
        plain = worker.clean

        def clean(job: CleaningJob) -> CleaningResult:
            if job.topic == "t":
                raise ZeroDivisionError("nobody expects it")
            return plain(job)

        monkeypatch.setattr(worker, "clean", clean)  # a worker with a defect
        cleaners = await run(node, worker)
        assert node.metrics.cleaner.failing == {TopicPartition("t", 0): "nobody expects it"}
        assert (count(node, "t"), count(node, "u")) == (3, 1)
        await cleaners.stop()

    asyncio.run(story())


def test_a_topic_that_is_deleted_meanwhile_is_no_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        await make_segments(node, "t", 3)
        worker = Worker(node.env)
        loop, plain = asyncio.get_running_loop(), worker.clean

        def clean(job: CleaningJob) -> CleaningResult:
            done = plain(job)
            asyncio.run_coroutine_threadsafe(topic_changes.delete(node, "t"), loop).result()
            return done

        monkeypatch.setattr(worker, "clean", clean)
        cleaners = await run(node, worker)
        assert worker.asked == ["t-0"]
        assert node.metrics.cleaner.failing == {}
        assert node.topics.find("t") is None
        await cleaners.stop()

    asyncio.run(story())


def test_retention_waits_for_a_cleaning_and_runs_when_it_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention doesn't end a cleaning, but waits, and deletes expired segments afterwards."""

    async def story() -> None:
        both = {"cleanup.policy": "compact,delete", "retention.ms": "10000"}
        # With segments of this size, none are merged.
        node.log_dir.create_topic(
            "t", partitions=1, config={**CONFIG, **both, "internal.segment.bytes": "3000"}
        )
        partition = node.partitions.get("t", 0)
        for key, age_ms in ((b"old", 20_000), (b"k", 0), (b"k", 0)):
            record = NewRecord(key=key, value=b"v" * 2000, timestamp=START_MS - age_ms)
            partition.log.append([record])
            partition.log.roll()
        await partition.flushed()
        partition.advance()
        worker = Worker(node.env)
        loop, plain = asyncio.get_running_loop(), worker.clean
        starts: list[int] = []

        async def retain() -> None:
            LogManager(node).start()  # the first check is due at once
            node.timers.run_due()
            starts.append(partition.log.log_start_offset)

        def clean(job: CleaningJob) -> CleaningResult:
            done = plain(job)
            asyncio.run_coroutine_threadsafe(retain(), loop).result()
            return done

        monkeypatch.setattr(worker, "clean", clean)
        cleaners = await run(node, worker)
        assert (worker.asked, starts) == (["t-0"], [0])
        assert partition.log.log_start_offset == 1
        assert [record.offset for record in partition.log.records()] == [2]
        await cleaners.stop()

    asyncio.run(story())


def test_cleaners_that_are_switched_off_do_nothing(tmp_path: Path, clock: ManualClock) -> None:
    config = BrokerConfig.parse({**SETTINGS, "log.cleaner.enable": "false"})[0]
    node = open_node(str(tmp_path), config, env=Env(clock=clock))

    async def story() -> None:
        worker = Worker(node.env)
        cleaners = LogCleaner(node, lambda: worker)
        cleaners.start()
        await make_segments(node, "t", 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert node.timers.next_delay_ms() is None
        assert worker.asked == []
        await cleaners.stop()

    asyncio.run(story())
    node.close()
