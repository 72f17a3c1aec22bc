"""Positions of groups from files alone, and the records of `__consumer_offsets` that count."""

import uuid
from pathlib import Path

import pytest
from tests.worlds.directories.topics import T0, append, make

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import CorruptBatch
from tidelog.jobs.lag.work import observe_directory_lag
from tidelog.protocol.wire import NO_UUID
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.remote.group_lag import (
    AgeClock,
    DirectoryGroups,
    State,
    lag_of,
    observe_directory,
    read_groups,
)
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.groups.committed_offsets import CommittedOffset
from tidelog.server.groups.records import offset_record
from tidelog.spark.places import Place
from tidelog.storage.directory.broker_files import GroupOffset, GroupOffsets, write_group_offsets
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendOrigin, AppendTerms
from tidelog.types import OFFSETS_TOPIC, IsolationLevel, NewRecord, TopicPartition

ENV = Env(clock=ManualClock(T0 + 5_000))
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
COUNT = 3


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = make(f"{tmp_path}/a", "orders", 2)
    append(found, "orders", 0, [NewRecord(value=b"%d" % n, timestamp=T0 + n) for n in range(10)])
    make(found, OFFSETS_TOPIC, COUNT, cleanup_policy="compact", internal_segment_bytes="400")
    return found


def commit(
    path: str,
    group: str,
    offset: int,
    partition: int = 0,
    *,
    topic_id: uuid.UUID = NO_UUID,
    transaction: str = "",
) -> None:
    """Write a commit as a coordinator does, optionally in a transaction with the given outcome."""
    value = CommittedOffset(offset, topic_id=topic_id)
    record = offset_record(group, "orders", partition, value)
    made = NewRecord(key=record.key, value=record.value, timestamp=T0)
    number = partition_for(group, COUNT)
    with LogDir.open(path, env=ENV, options=LogDirOptions(writable=True)) as log_dir:
        log = log_dir.log(OFFSETS_TOPIC, number)
        if not transaction:
            log.append_batches(build_batch([made]), AppendTerms(AppendOrigin.COORDINATOR))
            return
        opened = build_batch(
            [made], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append_batches(opened, AppendTerms(AppendOrigin.COORDINATOR))
        if transaction != "open":
            marker = build_end_marker(
                commit=transaction == "commit",
                producer_id=5,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=T0,
                base_offset=0,
            )
            log.append_batches(marker, AppendTerms(AppendOrigin.COORDINATOR))


def found(path: str) -> DirectoryGroups:
    with Directory.open(path, env=ENV) as directory:
        groups = read_groups(directory, ENV)
    assert groups is not None
    return groups


def test_a_directory_without_groups_gives_none(tmp_path: Path) -> None:
    path = make(f"{tmp_path}/a", "orders")
    with Directory.open(path, env=ENV) as directory:
        assert read_groups(directory, ENV) is None


def test_the_last_commit_of_each_partition_counts(path: str) -> None:
    for offset in (3, 7, 5):
        commit(path, "loader", offset)
    commit(path, "loader", 1, partition=1)
    commit(path, "other", 2)
    assert found(path).positions == {"loader": {FIRST: 5, SECOND: 1}, "other": {FIRST: 2}}


@pytest.mark.parametrize(("end", "offset"), [("commit", 9), ("abort", 4), ("open", 4)])
def test_commits_in_transactions_count_when_these_do(path: str, end: str, offset: int) -> None:
    commit(path, "loader", 4)
    commit(path, "loader", 9, transaction=end)
    assert found(path).positions == {"loader": {FIRST: offset}}


def test_a_commit_for_a_former_topic_of_the_name_is_left_out(path: str) -> None:
    with Directory.open(path, env=ENV) as directory:
        topic_id = directory.topic("orders").topic_id
    assert topic_id is not None
    commit(path, "old", 5, topic_id=uuid.UUID(int=7))
    commit(path, "new", 6, topic_id=topic_id)
    groups = found(path)
    assert groups.positions == {"new": {FIRST: 6}}
    assert groups.notes == (
        (
            "group old: its committed offset for orders-0 belongs to a deleted topic of the same"
            " name, and is left out"
        ),
    )


def test_partitions_that_another_broker_has_are_named(path: str) -> None:
    commit(path, "loader", 5)
    here = partition_for("loader", COUNT)
    missing = next(number for number in range(COUNT - 1) if number != here)
    for file in (folder := Path(path, f"{OFFSETS_TOPIC}-{missing}")).iterdir():
        file.unlink()
    folder.rmdir()
    groups = found(path)
    assert groups.missing == {missing}
    assert groups.positions == {"loader": {FIRST: 5}}
    names = [f"group {n}" for n in range(50)]
    elsewhere = [name for name in names if groups.may_be_elsewhere(name)]
    assert elsewhere == [name for name in names if partition_for(name, COUNT) == missing]


def test_stored_offsets_of_a_leader_are_older_than_the_topic(path: str) -> None:
    commit(path, "loader", 5)
    told = {
        "loader": [GroupOffset("orders", 0, 1), GroupOffset("orders", 1, 2)],
        "elder": [GroupOffset("orders", 0, 3)],
    }
    write_group_offsets(ENV.files, path, GroupOffsets(T0, told))
    assert found(path).positions == {
        "loader": {FIRST: 5, SECOND: 2},
        "elder": {FIRST: 3},
    }


def test_damage_is_reported_and_no_value_is_guessed(path: str) -> None:
    for offset in range(20):
        commit(path, "loader", offset)
    number = partition_for("loader", COUNT)
    logs = sorted(Path(path, f"{OFFSETS_TOPIC}-{number}").glob("*.log"))
    assert len(logs) > 1
    data = bytearray(logs[0].read_bytes())
    data[-1] ^= 1
    logs[0].write_bytes(bytes(data))
    with pytest.raises(CorruptBatch, match=f"{OFFSETS_TOPIC}-{number}"):
        found(path)


def test_a_position_in_a_directory_has_a_lag(path: str) -> None:
    with Directory.open(path, env=ENV) as directory:
        seen = observe_directory(directory, ENV, FIRST, 4, IsolationLevel.READ_UNCOMMITTED)
        beyond = observe_directory(directory, ENV, FIRST, 40, IsolationLevel.READ_UNCOMMITTED)
    lag = lag_of(seen, seen)
    assert (lag.offset_lag, lag.behind_ms, lag.state) == (6, 5_000, State.OK)
    assert seen.unread is not None
    assert (seen.unread.offset, seen.unread.clock) == (4, AgeClock.APPEND)
    assert lag_of(beyond, beyond).state is State.BEYOND_END


def test_partitions_that_the_directory_lacks_are_left_out_of_a_groups_lag(path: str) -> None:
    for partition, offset in ((0, 4), (1, 0), (7, 3)):
        commit(path, "g", offset, partition)
    observed = observe_directory_lag(
        Place(path), ["g"], None, None, IsolationLevel.READ_UNCOMMITTED
    )
    assert [one.partition for one in observed["g"]] == [FIRST, SECOND]
