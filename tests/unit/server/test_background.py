"""Retention in all orders of threads and timers, and partitions opened while a broker stops."""

import asyncio
import threading
from dataclasses import dataclass
from itertools import permutations
from typing import Final

import pytest
from tests.faults import DamageFileSystem, seeded_env
from tests.faults.later import Later
from tests.worlds.waiting import turn_until

from tidelog.config import BrokerConfig
from tidelog.env import ManualClock
from tidelog.server.api.node import Node
from tidelog.server.maintenance.log_manager import RETRY_MS, LogManager
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.threads import THREADS
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord, TopicPartition

ROOT: Final = "/data"
DELAY_MS: Final = 5_000
CONFIG: Final = {"retention.bytes": "1", "file.delete.delay.ms": str(DELAY_MS)}
RETAIN_MS: Final = DELAY_MS // 2
SETTINGS: Final = {
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": str(RETAIN_MS),
    # This interval prevents checkpoints in threads, which the disk in memory does not support.
    "log.flush.offset.checkpoint.interval.ms": "2147483647",
}


@dataclass
class World:
    """Background work of a broker without a loop; threads run and time advances only on demand."""

    files: DamageFileSystem
    clock: ManualClock
    node: Node
    later: Later
    partition: Partition
    background: LogManager
    idle: int = 0  # number of timers while no work is pending

    def fill(self) -> None:
        """Create two finished segments and an active one."""
        log = self.partition.log
        for _ in range(2):
            log.append([NewRecord(value=b"v")])
            log.roll()
        log.append([NewRecord(value=b"v")])
        self.partition.advance()
        self.later.settle()

    def names(self, part: str) -> list[str]:
        """Return the partition's files whose names contain `part`."""
        return [e.name for e in self.files.list_dir(f"{ROOT}/t-0") if part in e.name]

    def checkpoint(self, name: str) -> str:
        """Return the text of a checkpoint."""
        path = f"{ROOT}/{name}-offset-checkpoint"
        if not self.files.exists(path):
            return ""
        file = self.files.open(path)
        try:
            return file.pread(1000, 0).decode()
        finally:
            file.close()

    def retain(self) -> None:
        """Start the next round of retention; threads do not run yet."""
        self.clock.advance(RETAIN_MS)
        self.node.timers.run_due()

    def is_idle(self) -> bool:
        """Return whether no check for files to delete is scheduled."""
        return len(self.node.timers._heap) == self.idle

    def pass_by(self, ms: int) -> None:
        """Advance the clock, and run the work of threads."""
        self.clock.advance(ms)
        self.node.timers.run_due()
        self.later.settle()


@pytest.fixture
def world() -> World:
    env, laters = seeded_env(1), list[Later]()

    def deferral() -> Later:
        laters.append(Later())
        return laters[-1]

    log_dir = LogDir.open(ROOT, env=env, options=LogDirOptions(create=True, deferrals=deferral))
    log_dir.create_topic("t", config=CONFIG)
    node = Node(log_dir, BrokerConfig.parse(SETTINGS)[0])
    partition = node.partitions.get("t", 0)
    background = LogManager(node)
    made = World(env.files, env.clock, node, laters[0], partition, background)
    background.start()
    barrier = threading.Barrier(THREADS)  # passed after the work of the start
    for done in [node.work.submit(barrier.wait) for _ in range(THREADS)]:
        done.result()
    made.pass_by(0)
    made.idle = len(node.timers._heap)
    made.fill()
    return made


@pytest.mark.parametrize("order", list(permutations(["threads", "checkpoint", "timers"])))
def test_checkpoints_are_the_same_in_any_order_of_events(
    world: World, order: tuple[str, ...]
) -> None:
    world.retain()
    for step in order:
        match step:
            case "threads":
                world.later.settle()
            case "checkpoint":
                world.node.log_dir.checkpoint()
            case _:
                world.clock.advance(DELAY_MS + 1)
                world.node.timers.run_due()
    log = world.partition.log
    assert log.log_start_offset == log.segments[0].base_offset == 2
    # As in Kafka, the checkpoint of log starts has no line for a log that starts at the start of
    # its first segment. A line is written when the log start moves. The first checkpoint without
    # pending work removes this line.
    is_settled = order.index("checkpoint") == order.index("threads") + 1
    assert ("t 0 2" in world.checkpoint("log-start")) is not is_settled
    world.later.settle()
    world.node.log_dir.checkpoint()
    assert "t 0" not in world.checkpoint("log-start")
    assert f"t 0 {log.recovery_point}" in world.checkpoint("recovery-point")
    world.pass_by(RETRY_MS + DELAY_MS)
    assert not world.names(".deleted")
    assert not world.names(f"{0:020}.log")


def test_files_are_removed_even_if_they_are_set_aside_late(world: World) -> None:
    world.retain()
    world.clock.advance(DELAY_MS + 1)
    world.node.timers.run_due()
    assert world.names(f"{0:020}.log") == [f"{0:020}.log"]
    world.later.settle()
    assert world.names(".deleted")
    world.pass_by(RETRY_MS)
    assert not world.names(".deleted")
    world.pass_by(RETRY_MS)
    assert world.is_idle()


def test_files_are_removed_even_if_wall_time_is_set_back(world: World) -> None:
    world.retain()
    world.later.settle()
    world.clock.jump(world.clock.now_ms() - 100)
    world.pass_by(DELAY_MS + 1)
    assert world.names(".deleted")  # not due by the wall clock
    world.pass_by(DELAY_MS)
    assert not world.names(".deleted")
    world.pass_by(RETRY_MS)
    assert world.is_idle()


def test_one_look_serves_all_deletions_of_a_partition(world: World) -> None:
    world.retain()
    world.later.settle()
    world.fill()
    world.retain()
    world.later.settle()
    assert len(world.node.timers._heap) == world.idle + 1
    world.pass_by(DELAY_MS // 2 + 1)
    assert world.names(".deleted")
    world.pass_by(DELAY_MS)
    assert not world.names(".deleted")
    world.pass_by(RETRY_MS)
    assert world.is_idle()


def test_a_stop_waits_for_the_end_of_openings_that_it_cancels(world: World) -> None:
    """If the loop ended before the openings, asyncio would report this on stderr."""
    world.node.log_dir.create_topic("unused")
    opens = threading.Event()

    async def stop() -> None:
        for _ in range(THREADS):
            world.node.work.submit(opens.wait)
        world.retain()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) > 1, "nothing is being opened"
        await world.background.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        asyncio.run(stop())
    finally:
        opens.set()


def test_no_partition_is_opened_after_a_stop(world: World) -> None:
    """Timers still run while a broker stops, but the stop doesn't wait for openings by timers."""
    world.node.log_dir.create_topic("unused")

    async def stop() -> None:
        await world.background.stop()
        world.retain()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(stop())


def test_a_round_ends_with_an_opening_that_ends_as_it_is_cancelled(world: World) -> None:
    for topic in ("unused", "unused-too"):
        world.node.log_dir.create_topic(topic)
    node = world.node

    async def stop() -> None:
        others = asyncio.all_tasks()
        world.retain()
        (opening,) = asyncio.all_tasks() - others
        await turn_until(opening.done)
        await world.background.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert node.partitions.must_open(TopicPartition("unused-too", 0))

    asyncio.run(stop())
