"""Power is lost at each disk call while a mirror writes a batch; then the batch is repeated.

The tests run without Spark: they call the functions that Spark's driver calls, on a disk that loses
unsynced data. Afterwards each record exists once, and the map has its offset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.core import thinned
from tests.faults import Keep, reopen, seeded_env
from tests.faults.seeded import SeededEnv
from tests.worlds.directories.staged import ROOT, TOPIC, make_directory, stage, staged_names
from tests.worlds.spark.frames import T0, frame, origin_batch, value

from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.jobs.mirror.commit import Batches, DirectoryTarget
from tidelog.jobs.mirror.options import BatchDone
from tidelog.jobs.mirror.work import Routes
from tidelog.jobs.offset_map import (
    CopiedRange,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
    read_map,
    write_map,
)
from tidelog.spark.directory_sink import batch_commit_id
from tidelog.spark.sink_options import SinkOptions, StreamBatch
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK, PARTITIONS = "/check", 2
MAP = f"{WORK}/offsets.map"
OF_A_BATCH = 12
ROUTES = Routes(
    pairs=((0, "orders", TOPIC),),
    counts=((TOPIC, PARTITIONS),),
    partitioning=Partitioning.KEPT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions(SinkOptions):
    """Sink options with the disk of the test."""

    disk: Env

    def env(self) -> Env:
        return self.disk


def rows(batch_id: int) -> "DataFrame":
    """Return the records of a batch; offsets of partition 1 have gaps, as after compaction."""
    return frame(
        origin_batch("orders", partition, offsets_of(partition, batch_id))
        for partition in range(PARTITIONS)
    )


def offsets_of(partition: int, batch_id: int) -> list[int]:
    step = 1 + 2 * partition
    return [step * n for n in range(OF_A_BATCH * batch_id, OF_A_BATCH * (batch_id + 1))]


def begin(env: SeededEnv) -> None:
    """Create a directory with a record in each partition, and an empty offset map."""
    make_directory(env, partitions=PARTITIONS)
    env.files.make_dirs(WORK)
    places = [SourcePartition(0, number) for number in range(PARTITIONS)]
    found = OffsetMap(
        target=ROOT,
        target_ids={TOPIC: ""},
        partition_counts={TOPIC: PARTITIONS},
        sources=(SourceTopic(place="here", topic="orders", topic_id="", target=TOPIC),),
        partitioning=Partitioning.KEPT,
        copied={place: CopiedRange(0, 0) for place in places},
        ends={TopicPartition(TOPIC, number): 1 for number in range(PARTITIONS)},
    )
    write_map(env.files, MAP, found)


def batches_on(env: SeededEnv, watch: Callable[[BatchDone], None] = lambda _done: None) -> Batches:
    options = DiskOptions(path=ROOT, disk=env)
    target = DirectoryTarget(options=options, routes=ROUTES, mirror_id="m" * 32)
    found = read_map(env.files, MAP)
    return Batches(target=target, offset_map=found, path=MAP, env=env, watch=watch)


def check(env: Env, batch_count: int) -> None:
    """Check that the target has each record once, in order, and that the map has its offset."""
    found = read_map(env.files, MAP)
    for partition in range(PARTITIONS):
        offsets = [o for number in range(batch_count) for o in offsets_of(partition, number)]
        with LogDir.open(ROOT, env=env) as log_dir:
            records = list(log_dir.reader(TOPIC, partition).records())[1:]
        assert [r.value for r in records] == [value(partition, offset) for offset in offsets]
        assert [r.timestamp for r in records] == [T0 + offset for offset in offsets]
        name = TopicPartition(TOPIC, partition)
        for offset, record in zip(offsets, records, strict=True):
            start = found.starts(SourcePartition(0, partition), offset)[name]
            assert start.offset == record.offset
        ends = found.starts(SourcePartition(0, partition), offsets[-1] + 1)
        assert ends[name].offset == records[-1].offset + 1
    assert staged_names(env) == []


def test_batches_follow_each_other() -> None:
    env = seeded_env(1)
    begin(env)
    done: list[BatchDone] = []

    def watch(one: BatchDone) -> None:
        # The map must contain a batch before the batch is reported as done.
        assert read_map(env.files, MAP).batch_id == one.batch_id
        done.append(one)

    batches = batches_on(env, watch)
    for number in range(4):
        batches(rows(number), number)
    check(env, 4)
    assert [(one.batch_id, one.records, one.was_done) for one in done] == [
        (number, PARTITIONS * OF_A_BATCH, False) for number in range(4)
    ]


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call(keep: Keep) -> None:
    env = seeded_env(1)
    begin(env)
    batches = batches_on(env)
    batches(rows(0), 0)
    env.files.settle()
    batches(rows(1), 1)
    was_done: list[bool] = []
    for state in thinned(env.files.prefixes(keep)):
        again = seeded_env(99, files=reopen(state))
        again.clock.set(env.clock.now_ms() + 1_000)
        known = batches_on(again, lambda done: was_done.append(done.was_done))
        known(rows(1), 1)
        check(again, 2)
        known(rows(2), 2)
        check(again, 3)
    assert not was_done[0]
    assert was_done[-2]


def test_staged_files_of_other_attempts_are_removed() -> None:
    """A speculative attempt may stage files after the first attempt has written the batch."""
    env = seeded_env(1)
    begin(env)
    options = DiskOptions(path=ROOT, disk=env)
    target = DirectoryTarget(options=options, routes=ROUTES, mirror_id="m" * 32)
    commit_id = batch_commit_id(StreamBatch("m" * 32, 0))
    stage(env, 1, "another")
    others = staged_names(env)
    for was_done in (False, True):
        stage(env, 0, f"{commit_id}-late")
        assert len(staged_names(env)) > len(others)
        assert target.write(rows(0), 0).was_done == was_done
        assert staged_names(env) == others


def test_a_batch_of_an_older_checkpoint_is_refused() -> None:
    env = seeded_env(1)
    begin(env)
    batches = batches_on(env)
    batches(rows(0), 0)
    batches(rows(1), 1)
    with pytest.raises(
        InvalidRequest,
        match="Spark runs batch 0, but the offset map already has batch 1: Spark's checkpoint is",
    ):
        batches(rows(0), 0)
    check(env, 2)


def test_after_the_end_nothing_is_written() -> None:
    env = seeded_env(1)
    begin(env)
    batches = batches_on(env)
    batches(rows(0), 0)
    batches.close()
    with pytest.raises(InvalidRequest, match="stopped before batch 1, which will be retried"):
        batches(rows(1), 1)
    check(env, 1)
