"""A directory of partitions: lock, topics, clean and hard stops, KIP-79, foreign contents."""

import shutil
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.faults import START_MS, Fault, FaultKind, SeededEnv, seeded_env
from tests.worlds.directories.logs import (
    ANY_TIME,
    DAY_MS,
    PATH,
    SMALL,
    TOPIC,
    WRITABLE,
    fill,
    new_dir,
    new_log,
    new_records,
    offsets,
    path_of,
    put,
    reader_of,
    reopen,
    snapshot_of,
    watched,
)

import tidelog
from tidelog.env import ManualClock, OsFileSystem
from tidelog.errors import (
    ClockJump,
    Closed,
    CorruptFile,
    DirectoryLocked,
    InvalidRequest,
    MissingFile,
    ReadOnly,
    StorageFailure,
    TopicExists,
    UnknownTopic,
)
from tidelog.storage import files
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import ClockName, NewRecord, OffsetAndTimestamp, TopicPartition

T0, T1, T2 = (TopicPartition(TOPIC, number) for number in range(3))
MARKER = f"{PATH}/.kafka_cleanshutdown"


class TestLock:
    def test_a_second_writer_is_refused_by_name_and_readers_continue(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        with pytest.raises(DirectoryLocked, match=f"^{PATH}: another process"):
            LogDir.open(PATH, env=env, options=WRITABLE)
        assert offsets(reader_of(env).records()) == [0]
        put(log, 2)
        assert offsets(reader_of(env).records()) == [0, 1]
        directory.close()
        reopen(env)[0].close()

    def test_within_a_process(self, tmp_path: Path) -> None:
        for _ in range(2):  # twice: the lock can be acquired again after its release
            with (
                LogDir.open(str(tmp_path), options=WRITABLE),
                pytest.raises(DirectoryLocked, match=": this process has it open for writing"),
            ):
                LogDir.open(str(tmp_path), options=WRITABLE)

    def test_between_processes(self, tmp_path: Path) -> None:
        with LogDir.open(str(tmp_path), options=WRITABLE):
            code = (
                "import sys\n"
                "from tidelog.storage.directory.log_dir import LogDir, LogDirOptions\n"
                "LogDir.open(sys.argv[1], options=LogDirOptions(writable=True))\n"
            )
            run = [sys.executable, "-c", code, str(tmp_path)]
            found = subprocess.run(run, capture_output=True, text=True, check=False)
        assert found.returncode == 1
        assert f"DirectoryLocked: {tmp_path}: another process has it open" in found.stderr

    def test_a_failed_opening_leaves_no_lock(self) -> None:
        env, directory, _ = new_log()
        directory.close()
        name = f"{PATH}/tidelog-commit-{'0' * 32}.json"
        env.files.open(name, create=True).pwrite(b"[]", 0)
        for _ in range(2):
            with pytest.raises(CorruptFile):
                reopen(env)
        env.files.remove(name)
        reopen(env)


class TestReading:
    def test_a_reader_changes_nothing(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 30)
        directory.abandon()
        env.files.remove(path_of("00000000000000000000.index"))
        before, calls = snapshot_of(env), env.files.calls
        with LogDir.open(PATH, env=env) as opened:
            reader = opened.reader(TOPIC, 0)
            assert len(list(reader.records())) == 30
            assert reader.offset_for_time(START_MS) is not None
            assert reader.offset_for_time(START_MS, clock=ClockName.APPEND) is not None
            reader.max_timestamp()
            reader.refresh()
            opened.refresh()
            for refused in (
                lambda: opened.log(TOPIC, 0),
                lambda: opened.create_topic("n"),
                lambda: opened.delete_topic(TOPIC),
                opened.flush,
                opened.checkpoint,
                opened.accept_clock,
            ):
                with pytest.raises(ReadOnly):
                    refused()
        assert snapshot_of(env) == before
        assert env.files.calls == calls

    def test_a_read_only_file_tree_can_be_read(self, tmp_path: Path) -> None:
        """Without write permission, the content and times of all files stay unchanged."""
        root = tmp_path / "data"
        with LogDir.open(str(root), options=WRITABLE) as directory:
            directory.create_topic(TOPIC, config={**SMALL, **ANY_TIME})
            fill(directory.log(TOPIC, 0), 30)
        (root / "t-0" / "00000000000000000000.timeindex").unlink()
        every = [root, *sorted(root.rglob("*"))]
        for path in reversed(every):
            path.chmod(0o500 if path.is_dir() else 0o400)
        before = [(p, p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in every]
        try:
            with LogDir.open(str(root)) as opened:
                reader = opened.reader(TOPIC, 0)
                assert len(list(reader.records())) == 30
                assert reader.offset_for_time(0) is not None
                assert any("missing; rebuilt" in line for line in opened.reports)
            after = [root, *sorted(root.rglob("*"))]
            assert before == [
                (p, p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in after
            ]
        finally:
            for path in every:
                path.chmod(stat.S_IRWXU)

    def test_a_missing_directory_is_an_error(self) -> None:
        env = seeded_env(1)
        for options in (None, LogDirOptions(writable=True)):
            with pytest.raises(InvalidRequest, match="no such directory"):
                LogDir.open("/nowhere", env=env, options=options)

    def test_a_partition_without_a_directory_is_created_again_only_if_it_had_no_records(
        self, tmp_path: Path
    ) -> None:
        with tidelog.open(tmp_path, writable=True) as directory:
            directory.create_topic(TOPIC, partitions=4)
            assert not directory.reports
            directory.append(TOPIC, [NewRecord(value=b"v")] * 5, partition=1)
            directory.append(TOPIC, [NewRecord(value=b"v")] * 3, partition=3)
            directory.log(TOPIC, 3).delete_records(3)
        moved = tmp_path / "moved"
        (tmp_path / f"{TOPIC}-1").rename(moved)
        for number in (2, 3):
            shutil.rmtree(tmp_path / f"{TOPIC}-{number}")
        (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 1 5\n")
        for was_made in (False, True):
            with tidelog.open(tmp_path, writable=True) as directory:
                for number in (0, 2):
                    assert directory.log(TOPIC, number).log_end_offset == 0
                for number, end in ((1, 5), (3, 3)):
                    text = f"{TOPIC}-{number}: .* all records before offset {end}; restore it"
                    for _ in range(2):
                        with pytest.raises(MissingFile, match=text):
                            directory.log(TOPIC, number)
                assert not (tmp_path / f"{TOPIC}-1").exists()
                made = "the directory of this partition was missing; an empty one was created"
                lost = [line for line in directory.reports if "all records before" in line]
                assert [line.partition(":")[0] for line in lost] == [
                    f"{tmp_path}/{TOPIC}-{number}" for number in (1, 3)
                ]
                assert (f"{tmp_path}/{TOPIC}-2: {made}" in directory.reports) is not was_made
        with tidelog.open(tmp_path, writable=True) as directory:
            moved.rename(tmp_path / f"{TOPIC}-1")
            (tmp_path / f"{TOPIC}-3").mkdir()
            assert directory.log(TOPIC, 1).log_end_offset == 5
            directory.append(TOPIC, [NewRecord(value=b"v")], partition=3)


class TestStarts:
    def test_a_clean_start_reads_no_log_from_end_to_end(self) -> None:
        env, directory, log = new_log({**SMALL, "index.interval.bytes": "100"})
        fill(log, 300)
        sizes = {segment.log_path: segment.size_bytes for segment in log.segments}
        directory.close()
        watching, seen = watched(env)
        opened = LogDir.open(PATH, env=watching, options=WRITABLE)
        again = opened.log(TOPIC, 0)
        assert again.recovery_report.scanned_segments == 0
        assert again.log_end_offset == 300
        read = {path: size for path, size in seen.read_bytes.items() if path.endswith(".log")}
        # Only the end of the last segment was read.
        assert set(read) <= set(list(sizes)[-1:])
        assert sum(read.values()) <= 2 * 700
        assert len([path for path in seen.mapped if path.endswith(".log")]) <= 1

    def test_partitions_are_opened_when_they_are_requested(self) -> None:
        """A start with 1,000 partitions of 5 segments reads no segment and opens none."""
        env = seeded_env(1)
        directory = new_dir(env, SMALL, partitions=1000)
        log = directory.log(TOPIC, 7)
        fill(log, 40)
        assert len(log.segments) >= 5
        source = {n: data for n, data in snapshot_of(env, f"{PATH}/t-7").items() if data}
        directory.close()
        for number in range(1000):
            for path, data in source.items():
                name = path.rsplit("/", 1)[1]
                env.files.open(f"{PATH}/t-{number}/{name}", create=True).pwrite(data, 0)
        watching, seen = watched(env)
        with LogDir.open(PATH, env=watching, options=WRITABLE) as opened:
            assert [path for path in seen.opened if ".log" in path] == []
            assert [path for path in seen.opened if "/t-" in path and ".metadata" not in path] == []
            assert opened.log(TOPIC, 500).log_end_offset == 40
            touched = {path.split("/")[2] for path in seen.opened if ".log" in path}
            assert touched == {"t-500"}

    def test_the_marker_is_removed_when_the_directory_is_opened(self) -> None:
        env, directory, _ = new_log()
        assert not env.files.exists(MARKER)
        directory.close()
        assert env.files.exists(MARKER)
        directory, _ = reopen(env)
        assert not env.files.exists(MARKER)

    def test_after_a_hard_stop_every_partition_is_recovered_with_a_report(self) -> None:
        env = seeded_env(1)
        directory = new_dir(env, partitions=3)
        for number in range(3):
            put(directory.log(TOPIC, number), 1, 2)
        directory.flush()
        env.files.open(path_of("00000000000000000000.log"), write=True).pwrite(b"\0" * 20, 79)
        directory.abandon()
        opened = LogDir.open(PATH, env=env, options=WRITABLE)
        for number in range(3):
            log = opened.log(TOPIC, number)
            assert log.recovery_report.scanned_segments == 1
            assert offsets(log.records()) == [0, 1]
        (line,) = [line for line in opened.reports if "cut" in line]
        assert line.endswith(f"cut 20 bytes from {path_of('00000000000000000000.log')}")

    def test_recovery_begins_at_the_recovery_point(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 40)
        directory.checkpoint()
        count = len(log.segments)
        fill(log, 10)
        added = len(log.segments) - count
        directory.abandon()
        _, log = reopen(env)
        assert log.recovery_report.scanned_segments == added + 1
        assert log.log_end_offset == 50

    def test_a_damaged_checkpoint_counts_as_empty_and_is_reported(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        for name in (files.LOG_START_CHECKPOINT_FILE, files.RECOVERY_POINT_CHECKPOINT_FILE):
            path = f"{PATH}/{name}"
            file = env.files.open(path, create=True)
            file.truncate(0)
            file.pwrite(b"nonsense", 0)
        directory, log = reopen(env)
        assert offsets(log.records()) == [0]
        assert sum("treated as empty" in line for line in directory.reports) == 2

    def test_a_closed_directory_refuses_appends(self) -> None:
        _, directory, _ = new_log()
        directory.close()
        directory.close()
        with pytest.raises(Closed):
            directory.create_topic("n")


class TestTopics:
    def test_a_deleted_topic_can_be_recreated_and_is_empty(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        first = directory.topic(TOPIC).topic_id
        directory.delete_topic(TOPIC)
        with pytest.raises(UnknownTopic):
            directory.log(TOPIC, 0)
        assert not any(TOPIC in e.name and e.is_dir for e in env.files.list_dir(PATH))
        info, _ = directory.create_topic(TOPIC, config=ANY_TIME)
        assert info.topic_id != first
        assert directory.log(TOPIC, 0).log_end_offset == 0

    def test_a_name_is_free_only_once_the_deleted_directories_have_lost_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env, directory, log = new_log()
        put(log, 1)
        rename = env.files.rename

        def refused(source: str, target: str) -> None:
            if source == f"{PATH}/{TOPIC}-0":
                raise OSError(5, "Input/output error")
            rename(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(env.files, "rename", refused)
            for change in (directory.delete_topic, directory.create_topic):
                with pytest.raises(StorageFailure, match="some directories can't be renamed"):
                    change(TOPIC)
        directory.create_topic(TOPIC)
        assert directory.log(TOPIC, 0).log_end_offset == 0

    def test_names_and_ids(self) -> None:
        env, directory, _ = new_log()
        wanted = uuid.UUID(int=2**100 + 7)
        assert directory.create_topic("mine", topic_id=wanted)[0].topic_id == wanted
        with pytest.raises(TopicExists):
            directory.create_topic("mine")
        for partition in (1, -1):
            with pytest.raises(UnknownTopic):
                directory.log("mine", partition)
        directory.close()
        reader = LogDir.open(PATH, env=env)
        assert reader.topic("mine").topic_id == wanted
        with pytest.raises(UnknownTopic, match="did you mean mine"):
            reader.topic("mne")

    def test_a_foreign_broker_may_have_only_some_partitions(self) -> None:
        """A directory with some of a topic's partitions is read; missing ones aren't created."""
        env = seeded_env(1)
        directory = new_dir(env, partitions=4)
        put(directory.log(TOPIC, 3), 1, 2)
        directory.close()
        env.files.remove(f"{PATH}/tidelog-topics.json")
        for number in (0, 1):
            names = [e.name for e in env.files.list_dir(f"{PATH}/t-{number}")]
            for name in names:
                env.files.remove(f"{PATH}/t-{number}/{name}")
            env.files.remove_dir(f"{PATH}/t-{number}")
        for options in (None, WRITABLE):
            opened = LogDir.open(PATH, env=env, options=options)
            assert opened.partitions(TOPIC) == [T2, TopicPartition(TOPIC, 3)]
            assert opened.end_offsets(opened.partitions(TOPIC)) == {
                T2: 0,
                TopicPartition(TOPIC, 3): 2,
            }
            with pytest.raises(UnknownTopic, match="no partition 0 here, only 2, 3"):
                opened.reader(TOPIC, 0)
            opened.close()
        assert not env.files.exists(f"{PATH}/t-0")

    def test_a_listed_partition_without_a_directory_is_not_empty(self) -> None:
        env = seeded_env(1)
        new_dir(env, partitions=2).close()
        for entry in env.files.list_dir(f"{PATH}/t-1"):
            env.files.remove(f"{PATH}/t-1/{entry.name}")
        env.files.remove_dir(f"{PATH}/t-1")
        with pytest.raises(MissingFile, match="partition 1 is listed in"):
            LogDir.open(PATH, env=env).reader(TOPIC, 1)


class TestKip79:
    def prepared(self) -> LogDir:
        env = seeded_env(1)
        directory = new_dir(env, partitions=3)
        put(directory.log(TOPIC, 0), 10, 30, 20)
        put(directory.log(TOPIC, 1), -1, -1)
        return directory

    def test_every_requested_partition_is_in_the_result(self) -> None:
        directory = self.prepared()
        assert directory.offsets_for_times({T0: 15, T1: 0, T2: 0}) == {
            T0: OffsetAndTimestamp(1, 30, 0),
            T1: None,
            T2: None,
        }
        assert directory.offsets_for_times({T0: 31}) == {T0: None}
        assert directory.offsets_for_times({}) == {}

    def test_a_negative_time_is_refused_before_any_lookup(self) -> None:
        directory = self.prepared()
        missing = TopicPartition("missing", 0)
        for times in ({T0: 1, T1: -1}, {missing: 1, T0: -1}):
            with pytest.raises(ValueError, match="is negative"):
                directory.offsets_for_times(times)
        with pytest.raises(UnknownTopic):
            directory.offsets_for_times({missing: 1})

    def test_beginning_and_end_offsets_are_those_of_the_logs(self) -> None:
        directory = self.prepared()
        directory.log(TOPIC, 0).delete_records(2)
        assert directory.beginning_offsets([T0, T1, T2]) == {T0: 2, T1: 0, T2: 0}
        assert directory.end_offsets([T0, T1, T2]) == {T0: 3, T1: 2, T2: 0}

    def test_the_append_clock(self) -> None:
        directory = self.prepared()
        found = directory.offsets_for_times({T0: 15, T1: 15}, clock=ClockName.APPEND)
        assert found == {
            T0: OffsetAndTimestamp(0, START_MS, 0),
            T1: OffsetAndTimestamp(0, START_MS, 0),
        }


class TestClock:
    def test_a_jump_stops_appends_of_all_partitions_until_it_is_accepted(self) -> None:
        env = seeded_env(1)
        directory = new_dir(env, partitions=2)
        put(directory.log(TOPIC, 0), 1)
        env.clock.jump(START_MS + DAY_MS)
        for number in (0, 1):
            with pytest.raises(ClockJump):
                put(directory.log(TOPIC, number), 1)
        assert offsets(directory.log(TOPIC, 0).records()) == [0]
        directory.accept_clock()
        for number in (0, 1):
            put(directory.log(TOPIC, number), 1)
        assert directory.log(TOPIC, 0).append_time_of(1) == START_MS + DAY_MS

    def test_a_jump_is_not_accepted_if_that_can_not_be_stored(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        env.clock.jump(START_MS + DAY_MS)
        with pytest.raises(ClockJump):
            put(log, 1)
        env.files.writes.fault = Fault(env.files.calls, FaultKind.EIO)
        with pytest.raises(StorageFailure, match="accept the clock"):
            directory.accept_clock()
        with pytest.raises(ClockJump):
            put(log, 1)
        directory.accept_clock()
        put(log, 1)

    def test_a_last_row_far_ahead_stops_appends_at_the_next_start(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        env.clock.jump(START_MS - DAY_MS)
        directory, log = reopen(env)
        for _ in range(2):
            with pytest.raises(ClockJump, match="the last append time on disk"):
                put(log, 1)
        directory.accept_clock()
        put(log, 1)
        assert log.append_time_of(1) == START_MS


def test_a_real_directory_is_created_and_opened_again(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    clock = ManualClock(START_MS)
    env = SeededEnv(files=OsFileSystem(), clock=clock)  # type: ignore[arg-type] # any files will do
    with LogDir.open(f"{root}/", env=env, options=WRITABLE) as directory:
        directory.create_topic(TOPIC, config=ANY_TIME)
        directory.log(TOPIC, 0).append(new_records([1, 2]))
    with LogDir.open(str(root), env=env, options=WRITABLE) as directory:
        assert offsets(directory.log(TOPIC, 0).records()) == [0, 1]
