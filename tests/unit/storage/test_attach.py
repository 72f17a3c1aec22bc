"""All staged segments are attached or none; offsets, epochs and times are as for appends."""

import errno
from typing import TYPE_CHECKING

import pytest
from tests.faults import DamageFileSystem, seeded_env
from tests.faults.seeded import SeededEnv
from tests.worlds.directories.staged import (
    CONFIG,
    ROOT,
    T0,
    TOPIC,
    WRITABLE,
    attach_all,
    expected,
    make_directory,
    stage,
    staged_names,
    values,
)

from tidelog.env import DirEntry, Env, FileStat
from tidelog.errors import (
    CorruptData,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    TidelogError,
    UnknownTopic,
)
from tidelog.record.builder import build_batch
from tidelog.storage.directory.attach import attach
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.staging import (
    STAGING_AGE_MS,
    RowFacts,
    StagedWriter,
    drop_staging,
    staging_path,
)
from tidelog.storage.open_files import FilePool
from tidelog.types import INT64_MAX, Codec, NewRecord, TimestampType, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def env() -> SeededEnv:
    return seeded_env(1)


def test_attached_records_follow_the_existing_ones(env: SeededEnv) -> None:
    make_directory(env)
    staged = [*stage(env, 0, "a"), *stage(env, 1, "b", 5)]
    result = attach_all(env, staged)
    assert values(env, 0) == expected(0, "a")
    assert values(env, 1) == expected(1, "b", 5)
    assert result.record_count == 35
    attached = result.partitions[TopicPartition(TOPIC, 0)]
    assert (attached.first_offset, attached.end_offset) == (1, 31)
    assert attached.segments == sum(segment.partition == 0 for segment in staged) > 1


def test_offsets_epochs_and_append_times_are_those_of_one_append(env: SeededEnv) -> None:
    make_directory(env, partitions=1)
    env.clock.advance(5_000)
    staged = stage(env, 0, "a")
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log = log_dir.log(TOPIC, 0)
        attach(log_dir, staged)
        assert [record.offset for record in log.records()] == list(range(31))
        batches = [batch for part in log.slices(1) for _, batch in part.batches()]
        assert {batch.leader_epoch for batch in batches} == {log.leader_epoch}
        assert {log.append_time_of(offset) for offset in range(1, 31)} == {env.clock.now_ms()}
        assert all(batch.is_valid() for batch in batches)
    with LogDir.open(ROOT, env=env) as log_dir:
        reader = log_dir.reader(TOPIC, 0)
        assert reader.append_time_of(30) == env.clock.now_ms()
        found = reader.offset_for_time(T0 + 17)
        assert found is not None
        assert (found.offset, found.timestamp) == (18, T0 + 17)
        assert log_dir.reports == []


def test_appends_continue_after_attached_records(env: SeededEnv) -> None:
    make_directory(env, partitions=1)
    staged = stage(env, 0, "a", 7)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        attach(log_dir, staged)
        env.clock.advance(10)
        result = log_dir.log(TOPIC, 0).append([NewRecord(value=b"new")])
        assert result.base_offset == 8
    env.clock.advance(10)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log = log_dir.log(TOPIC, 0)
        assert log.append([NewRecord(value=b"newer")]).base_offset == 9
        assert log.append_time_of(7) is not None
    assert values(env, 0) == [*expected(0, "a", 7), b"new", b"newer"]


def test_append_times_are_proven_without_a_clean_stop(env: SeededEnv) -> None:
    make_directory(env, partitions=1)
    env.clock.advance(5_000)
    staged = stage(env, 0, "a")
    log_dir = LogDir.open(ROOT, env=env, options=WRITABLE)
    attach(log_dir, staged)
    log_dir.abandon()
    for options in (LogDirOptions(), WRITABLE):
        with LogDir.open(ROOT, env=env, options=options) as again:
            reader = again.reader(TOPIC, 0)
            assert {reader.append_time_of(n) for n in range(1, 31)} == {env.clock.now_ms()}


def test_coarse_append_times_never_decrease_after_an_attach(env: SeededEnv) -> None:
    coarse = {"tidelog.append.time.granularity.ms": "1000"}
    make_directory(env, partitions=1, config=coarse)
    env.clock.advance(5_700)
    staged = stage(env, 0, "a", 3)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        attach(log_dir, staged)
        env.clock.advance(100)
        log = log_dir.log(TOPIC, 0)
        log.append([NewRecord(value=b"new")])
        times = [log.append_time_of(offset) or -1 for offset in range(5)]
        assert times == sorted(times)


def test_segments_of_a_partition_follow_their_order(env: SeededEnv) -> None:
    make_directory(env, partitions=1)
    second, first = stage(env, 0, "b", 5, order=(1,)), stage(env, 0, "a", 5, order=(0,))
    attach_all(env, [*second, *first])
    assert values(env, 0)[1:] == [f"{label}-{n}".encode() for label in "ab" for n in range(5)]


def test_an_empty_partition_attaches_segments_from_offset_0(env: SeededEnv) -> None:
    with LogDir.open(ROOT, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, config=CONFIG)
    attach_all(env, stage(env, 0, "a", 3))
    assert values(env, 0) == [b"a-0", b"a-1", b"a-2"]


def test_an_attach_without_segments_changes_nothing(env: SeededEnv) -> None:
    make_directory(env)
    assert attach_all(env, []).record_count == 0
    assert values(env, 0) == [b"0"]


def test_log_append_time_stamps_the_batches(env: SeededEnv) -> None:
    make_directory(env, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    env.clock.advance(5_000)
    attach_all(env, stage(env, 0, "a", 9))
    with LogDir.open(ROOT, env=env) as log_dir:
        records = list(log_dir.reader(TOPIC, 0).records(1))
        assert {record.timestamp for record in records} == {env.clock.now_ms()}
        assert {r.timestamp_type for r in records} == {TimestampType.LOG_APPEND_TIME}
        assert [record.create_timestamp for record in records] == [T0 + n for n in range(9)]
        found = log_dir.reader(TOPIC, 0).offset_for_time(env.clock.now_ms())
        assert found is not None
        assert found.offset == 1


def test_attached_stamps_never_decrease_without_append_times(env: SeededEnv) -> None:
    """As for appends, the stamps then come from the append clock instead of the wall clock."""
    off = {"message.timestamp.type": "LogAppendTime", "tidelog.append.time.enable": "false"}
    make_directory(env, partitions=1, config=off)
    staged = stage(env, 0, "a", 3)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log = log_dir.log(TOPIC, 0)
        env.clock.advance(5_000)
        log.append([NewRecord(value=b"before")])
        env.clock.jump(env.clock.now_ms() - 3_000)
        attach(log_dir, staged)
        stamps = [record.timestamp for record in log.records(1)]
    assert stamps == [env.clock.now_ms() + 3_000] * 4


@pytest.mark.parametrize("codec", list(Codec))
def test_codecs(env: SeededEnv, codec: Codec) -> None:
    make_directory(env, partitions=1)
    attach_all(env, stage(env, 0, "a", codec=codec))
    assert values(env, 0) == expected(0, "a")


def test_no_segment_is_over_the_limit(env: SeededEnv) -> None:
    make_directory(env, partitions=1)
    staged = stage(env, 0, "a", 200)
    assert len(staged) > 3
    assert all(segment.size_bytes <= 600 for segment in staged)


# -- refusals ------------------------------------------------------------------------------------


def change(env: Env, changes: dict[str, str | None]) -> None:
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log_dir.alter_config(TOPIC, changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max.message.bytes": "80"}, MessageTooLarge),
        ({"message.timestamp.before.max.ms": "1000"}, InvalidTimestamp),
        ({"compression.type": "zstd"}, InvalidRequest),
    ],
)
def test_rules_of_the_topic_are_those_at_the_commit(
    env: SeededEnv, changes: dict[str, str | None], error: type[TidelogError]
) -> None:
    make_directory(env)
    staged = [*stage(env, 0, "a"), *stage(env, 1, "b")]
    change(env, changes)
    env.clock.advance(100_000)
    with pytest.raises(error):
        attach_all(env, staged)
    assert [values(env, 0), values(env, 1)] == [[b"0"], [b"1"]]


def test_compacted_topic_needs_keys(env: SeededEnv) -> None:
    make_directory(env, partitions=1, config={"cleanup.policy": "compact"})
    pool = FilePool(env.files)
    with LogDir.open(ROOT, env=env) as log_dir:
        config = log_dir.topic(TOPIC).config
    writer = StagedWriter(pool, ROOT, TopicPartition(TOPIC, 0), config, name="x")
    writer.append([build_batch([NewRecord(value=b"no key")])], RowFacts(has_null_key=True))
    with pytest.raises(InvalidRecord):
        writer.finish(env.clock.now_ms())
    writer.discard(env.files)
    assert staged_names(env) == []


def test_a_missing_staged_file_is_refused(env: SeededEnv) -> None:
    make_directory(env)
    staged = [*stage(env, 0, "a"), *stage(env, 1, "b")]
    env.files.remove(staging_path(ROOT, TopicPartition(TOPIC, 1), staged[-1].name))
    with pytest.raises(InvalidRequest, match="is missing"):
        attach_all(env, staged)
    assert values(env, 0) == [b"0"]


def test_damaged_file(env: SeededEnv) -> None:
    make_directory(env)
    staged = [*stage(env, 0, "a"), *stage(env, 1, "b")]
    path = staging_path(ROOT, TopicPartition(TOPIC, 1), staged[-1].name)
    file = env.files.open(path, write=True)
    last = file.pread(1, file.size() - 1)
    file.pwrite(bytes([last[0] ^ 1]), file.size() - 1)
    file.close()
    with pytest.raises(CorruptData, match="staging"):
        attach_all(env, staged)
    assert [values(env, 0), values(env, 1)] == [[b"0"], [b"1"]]


def test_unknown_topic(env: SeededEnv) -> None:
    make_directory(env)
    (first, *_) = stage(env, 0, "a", 3)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log_dir.delete_topic(TOPIC)
        with pytest.raises(UnknownTopic):
            attach(log_dir, [first])


def test_staging_files_survive_an_opening_and_old_ones_go(env: SeededEnv) -> None:
    make_directory(env)
    staged = stage(env, 0, "a", 3)
    with LogDir.open(ROOT, env=env, options=WRITABLE):
        pass
    assert len(staged_names(env)) == 1
    env.clock.advance(STAGING_AGE_MS + 1)
    attach_all(env, stage(env, 1, "b", 3))
    assert staged_names(env) == []
    with pytest.raises(InvalidRequest):
        attach_all(env, staged)


def test_staged_files_are_dropped_by_prefix(env: SeededEnv) -> None:
    make_directory(env)
    stage(env, 0, "job1-a", 3)
    stage(env, 1, "job2-a", 3)
    assert drop_staging(env.files, ROOT, prefix="job1", older_than_ms=INT64_MAX) == 1
    assert [name[:4] for name in staged_names(env)] == ["job2"]


class MeetingDisk(DamageFileSystem):
    """Disk that makes a call once, just before a commit record is removed."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def remove(self, path: str) -> None:
        if self.meanwhile and "tidelog-commit" in path:
            self.meanwhile.pop()()
        super().remove(path)


def test_an_attach_during_a_commit_of_this_process_is_accepted() -> None:
    disk = MeetingDisk()
    env = seeded_env(1, files=disk)
    make_directory(env)
    first, second = stage(env, 0, "a", 3), stage(env, 1, "b", 3)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        disk.meanwhile.append(lambda: attach(log_dir, second))
        attach(log_dir, first)
        assert not disk.meanwhile
    assert values(env, 0) == expected(0, "a", 3)
    assert values(env, 1) == expected(1, "b", 3)
    assert staged_names(env) == []


class BusyDisk(DamageFileSystem):
    """Disk on which another process removes files just after they were listed."""

    goes = ""

    def list_dir(self, path: str) -> list[DirEntry]:
        found = super().list_dir(path)
        for entry in found:
            if self.goes and self.goes in entry.name:
                inner = f"{path}/{entry.name}"
                if entry.is_dir:
                    self.rename(inner, f"{inner}.gone")
                else:
                    self.remove(inner)
        return found


@pytest.mark.parametrize("goes", ["job1-b", f"{TOPIC}-0"])
def test_staging_files_removed_by_another_process_are_no_error(goes: str) -> None:
    disk = BusyDisk()
    env = seeded_env(1, files=disk)
    make_directory(env)
    stage(env, 0, "job1-b", 3)
    stage(env, 1, "job1-a", 3)
    disk.goes = goes
    assert drop_staging(disk, ROOT, prefix="job1", older_than_ms=INT64_MAX) == 1
    assert not disk.exists(staging_path(ROOT, TopicPartition(TOPIC, 1), "job1-a-0"))


class BlindDisk(DamageFileSystem):
    """Disk that can't read some paths."""

    unread = "-"

    def list_dir(self, path: str) -> list[DirEntry]:
        self._fail(path)
        return super().list_dir(path)

    def stat(self, path: str) -> FileStat:
        self._fail(path)
        return super().stat(path)

    def _fail(self, path: str) -> None:
        if path.endswith(self.unread):
            raise OSError(errno.EIO, "Input/output error", path)


@pytest.mark.parametrize(("unread", "dropped"), [(ROOT, 0), (f"{TOPIC}-0", 1), (".staging", 0)])
def test_unreadable_staging_files_are_not_removed(unread: str, dropped: int) -> None:
    disk = BlindDisk()
    env = seeded_env(1, files=disk)
    make_directory(env)
    stage(env, 0, "job1-b", 3)
    stage(env, 1, "job1-a", 3)
    disk.unread = unread
    assert drop_staging(disk, ROOT, prefix="job1", older_than_ms=INT64_MAX) == dropped
    disk.unread = "-"
    assert len(staged_names(env)) == 2 - dropped
