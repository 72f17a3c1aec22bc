"""A reader that stays open beside a writer returns the same results as a newly opened one.

The steps are drawn by a seed: appends with any timestamps, transactions, rolls, deletions,
retention, compaction, truncation, restarts; sidecars are removed and restored, the folder is
replaced by its copy, the topic is created again. A random time passes between two steps. Some disks
round modification times; on the other disks the clock is sometimes set back. If the folder's
modification time is unchanged, the open reader reads only the last segment again.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from tests.faults import DamageFileSystem, seeded_env
from tests.worlds.directories.logs import ANY_TIME, batch
from tests.worlds.directories.plain_cleaner import PlainWorker

from tidelog.directory import Directory
from tidelog.env import FileStat
from tidelog.errors import PolicyViolation, TidelogError
from tidelog.storage import log_files
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.log.log import Log
from tidelog.types import ClockName, Codec, IsolationLevel, NewRecord, TopicPartition

PATH = "/data"
NAME = TopicPartition("t", 0)
FOLDER = f"{PATH}/{NAME}"
STEPS = 40
PAUSES_MS = (0, 1, 50, 99, 100, 101, 150, 1_000, 2_999, 3_000, 3_001, 60_000)
SET_BACK_MS = (-7, -1_013, -50_003)
GRAINS_MS = (1, 10, 1_000, 2_000)


class CoarseDisk(DamageFileSystem):
    """A disk that rounds modification times down to multiples of `grain_ms`."""

    grain_ms = 1

    def stat(self, path: str) -> FileStat:
        status = super().stat(path)
        return replace(status, mtime_ms=status.mtime_ms // self.grain_ms * self.grain_ms)


class Life:
    """One directory, and the seeded steps that a writer takes on it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        disk = CoarseDisk()
        disk.grain_ms = GRAINS_MS[seed % len(GRAINS_MS)]
        self.pauses = PAUSES_MS + (SET_BACK_MS if disk.grain_ms == 1 else ())
        self.env = seeded_env(seed, files=disk)
        self.env.files.make_dirs("/aside")
        self.removed: list[str] = []
        self.writer = self.open()
        self.create()

    def open(self) -> Directory:
        return Directory.open(PATH, writable=True, env=self.env)

    @property
    def log(self) -> Log:
        return self.writer.log("t", 0)

    def create(self) -> None:
        config = {
            **ANY_TIME,
            "internal.segment.bytes": "600",
            "index.interval.bytes": self.dice.choice(["0", "200"]),
            "cleanup.policy": self.dice.choice(["delete", "compact,delete"]),
            "message.timestamp.type": self.dice.choice(["CreateTime"] * 3 + ["LogAppendTime"]),
            "file.delete.delay.ms": self.dice.choice(["0", "1000"]),
        }
        self.writer.create_topic("t", config=config)

    def step(self) -> str:
        """Do a step, let some time pass, and return a text with the step and the time."""
        steps: list[Callable[[], object]] = [
            *[self.append] * 6,
            *[self.transaction] * 3,
            *[self.roll] * 2,
            *[self.remove_sidecar] * 2,
            *[self.restore_sidecar] * 2,
            self.delete,
            self.retain,
            self.compact,
            self.truncate,
            self.restart,
            self.checkpoint,
            self.create_again,
            self.configure,
            self.replace_folder,
        ]
        chosen, pause_ms = self.dice.choice(steps), self.dice.choice(self.pauses)
        chosen()
        self.env.clock.advance(pause_ms)
        return f"{chosen.__name__} {pause_ms}"

    def append(self) -> None:
        now = self.env.clock.now_ms()
        times = [-1, now, now, now - 5_000, now + 5_000, now - self.dice.randrange(99_000)]
        records = [
            NewRecord.of_log(
                key=b"k%d" % self.dice.randrange(6),
                value=b"v" * 9,
                timestamp=self.dice.choice(times),
            )
            for _ in range(self.dice.randrange(1, 5))
        ]
        codec = self.dice.choice([Codec.NONE, Codec.GZIP])
        self.log.append(records, codec=codec, batch_bytes=self.dice.choice([1, 9_999]))

    def transaction(self) -> None:
        producer, states = self.dice.choice((5, 6)), self.log.producer_states()
        if producer in states.open_transactions or self.dice.random() < 0.1:
            self.log.end_transaction(
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=self.dice.random() < 0.5,
            )
            return
        known = states.producers.get(producer)
        sequence = known.batches[-1].last_sequence + 1 if known and known.batches else 0
        self.log.append_batches(
            batch(
                [self.env.clock.now_ms()] * self.dice.randrange(1, 3),
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )

    def roll(self) -> None:
        self.log.roll()

    def checkpoint(self) -> None:
        self.writer.flush()
        self.writer.log_dir.checkpoint()

    def delete(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        with suppress(PolicyViolation):
            self.writer.delete_records({NAME: self.dice.randrange(start, end + 1)})
        self.checkpoint()

    def retain(self) -> None:
        self.writer.alter_config("t", {"retention.bytes": "1800"})
        self.log.apply_retention()
        self.writer.alter_config("t", {"retention.bytes": "-1"})
        self.writer.log_dir.checkpoint()

    def compact(self) -> None:
        if "compact" in self.writer.topic("t").config.cleanup_policy:
            # `remove_sidecar` also removes files of append times, so the times may be lost.
            worker = PlainWorker(self.env)
            options = CleanerOptions(is_asked=True, accepts_lost_times=True)
            clean_partition(self.writer.log_dir, NAME, worker, options)

    def truncate(self) -> None:
        end = self.log.log_end_offset - self.dice.choice([1, 2, 5, 20])
        self.log.truncator.truncate_to(max(end, self.log.log_start_offset))

    def restart(self) -> None:
        if self.dice.random() < 0.5:
            self.writer.close()
        else:
            self.writer.log_dir.abandon()
        self.writer = self.open()
        assert self.log.failure is None

    def create_again(self) -> None:
        if self.dice.random() < 0.3:
            self.removed.clear()
            self.writer.delete_topic("t")
            self.create()

    def configure(self) -> None:
        self.writer.alter_config("t", {"retention.ms": str(10**12 + self.dice.randrange(9))})

    def remove_sidecar(self) -> None:
        finished = [
            log_files.file_name(each.base_offset, "") for each in self.log.finished_segments()
        ]
        names = [entry.name for entry in self.env.files.list_dir(FOLDER)]
        sidecars = [
            name
            for name in names
            if name.startswith(tuple(finished)) and not name.endswith(log_files.LOG_SUFFIX)
        ]
        if sidecars:
            self.removed.append(self.dice.choice(sidecars))
            self.env.files.rename(f"{FOLDER}/{self.removed[-1]}", f"/aside/{self.removed[-1]}")

    def restore_sidecar(self) -> None:
        if self.removed:
            name = self.removed.pop()
            log = f"{FOLDER}/{name.partition('.')[0]}{log_files.LOG_SUFFIX}"
            if self.env.files.exists(log) and not self.env.files.exists(f"{FOLDER}/{name}"):
                self.env.files.rename(f"/aside/{name}", f"{FOLDER}/{name}")

    def replace_folder(self) -> None:
        """Replace the partition's folder by a copy while no writer is open."""
        self.writer.close()
        fs, copy = self.env.files, f"/aside/{self.dice.getrandbits(40)}"
        fs.make_dirs(copy)
        for entry in fs.list_dir(FOLDER):
            source = fs.open(f"{FOLDER}/{entry.name}")
            target = fs.open(f"{copy}/{entry.name}", create=True)
            target.pwrite(source.pread(source.size(), 0), 0)
            source.close()
            target.close()
        fs.rename(FOLDER, f"{copy}-old")
        fs.rename(copy, FOLDER)
        self.writer = self.open()


def records_of(directory: Directory, level: IsolationLevel) -> list[object]:
    return list(directory.records("t", isolation=level))


def results(directory: Directory, times: list[int]) -> Iterator[tuple[str, object]]:
    """Yield the results of all reads of the topic; for an error, its type and text."""

    def call(what: str, function: Callable[[], object]) -> tuple[str, object]:
        try:
            return what, function()
        except TidelogError as error:
            return what, (type(error), str(error))

    view = directory.partition("t", 0)
    yield "segments", [(each.base_offset, each.end_offset) for each in view.segments]
    yield call("size", view.size_bytes)
    yield call("losses", view.lost_offsets)
    yield call("settings", lambda: directory.topic("t"))
    yield call("start", lambda: directory.beginning_offsets([NAME]))
    yield call("largest", lambda: directory.max_timestamps([NAME]))
    yield call("unknown", lambda: directory.without_append_time(NAME))
    for clock in ClockName:
        yield call(f"span {clock}", partial(directory.time_spans, "t", clock=clock))
        yield call(f"count {clock}", partial(directory.count, "t", clock=clock))
        for ms in times:
            first = partial(directory.offsets_for_times, {NAME: ms}, clock=clock)
            yield call(f"first {clock} {ms}", first)
    for level in IsolationLevel:
        yield call(f"end {level}", partial(directory.end_offsets, [NAME], isolation=level))
        yield call(f"records {level}", partial(records_of, directory, level))


@pytest.mark.parametrize("seed", range(12))
def test_an_open_reader_returns_the_same_as_a_new_one(seed: int) -> None:
    life = Life(seed)
    reader, done = Directory.open(PATH, env=life.env), []
    for _ in range(STEPS):
        done.append(life.step())
        if life.dice.random() < 0.6:
            now = life.env.clock.now_ms()
            times = [0, *(now + life.dice.randrange(-200_000, 20_000) for _ in range(4))]
            expected = list(results(Directory.open(PATH, env=life.env), times))
            assert list(results(reader, times)) == expected, done
            done.append("read")
