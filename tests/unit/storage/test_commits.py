"""After any crash, the staged files of a commit record are visible together or not at all."""

import json
from pathlib import Path

import pytest
from tests.faults import DamageFileSystem, Keep, SeededEnv, reopen, seeded_env
from tests.worlds.directories.logs import (
    PATH,
    TOPIC,
    new_log,
    new_records,
    offsets,
    path_of,
    put,
    reader_of,
    watched,
    write,
)
from tests.worlds.directories.logs import reopen as reopen_dir

from tidelog.env import DirEntry, Env, FileSystem, ManualClock, OsFileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.record.builder import build_batch
from tidelog.storage import commits, files, log_files
from tidelog.storage.commits import Commit, Mark, Move, Removal, read_marks
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import TopicPartition

ID = "0123456789abcdef" * 2
FINAL = "00000000000000000001.log"
MOVES = [Move("t-0", "a.staged", FINAL), Move("t-1", "b.staged", FINAL)]

COMMIT = Commit(moves=tuple(MOVES), marks={"query/a": Mark(3, 5)})


def staged_dir() -> SeededEnv:
    """Create two partitions, each with a staged file; all files are durable."""
    env = seeded_env(1)
    for directory, staged, _ in ((m.directory, m.staged, m.final) for m in MOVES):
        env.files.make_dirs(f"{PATH}/{directory}")
        file = env.files.open(f"{PATH}/{directory}/{staged}", create=True)
        file.pwrite(staged.encode(), 0)
        file.sync()
        env.files.sync_dir(f"{PATH}/{directory}")
    env.files.sync_dir(PATH)
    env.files.sync_dir("/")
    return env


def there(env: Env) -> list[str]:
    found = []
    for number in (0, 1):
        found += [f"t-{number}/{e.name}" for e in env.files.list_dir(f"{PATH}/t-{number}")]
    return found


class TestText:
    def test_a_decoded_value_equals_the_encoded_one(self) -> None:
        commit = Commit(
            moves=tuple(MOVES), removes=(Removal("t-0", FINAL),), marks={"query/a": Mark(3, 5)}
        )
        assert commits.decode_commit(commits.encode_commit(commit)) == commit
        assert commits.decode_commit(commits.encode_commit(Commit())) == Commit()

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"\xff",
            b"[]",
            b"{}",
            b'{"version": 2}',
            b'{"version": 2, "moves": ' + b"[" * 100_000,
        ],
    )
    def test_an_invalid_commit_record_is_refused(self, text: bytes) -> None:
        with pytest.raises(CorruptFile):
            commits.decode_commit(text)

    @pytest.mark.parametrize(
        "fields",
        [
            {"moves": 5},
            {"moves": [["t-0", "a.staged"]]},
            {"moves": [["t-0", "a.staged", 5]]},
            {"moves": [["..", "a.staged", "00000000000000000001.log"]]},
            {"moves": [["t-0/..", "a.staged", "00000000000000000001.log"]]},
            {"moves": [["t-0", "../a.staged", "00000000000000000001.log"]]},
            {"moves": [["t-0", "a.log", "00000000000000000001.log"]]},
            {"moves": [["t-0", "a.staged", "../00000000000000000001.log"]]},
            {"moves": [["t-0", "a.staged", "partition.metadata"]]},
            {"removes": [["t-0", "../x.log"]]},
            {"removes": [["t-0", "partition.metadata"]]},
            {"removes": [["..", "00000000000000000001.log"]]},
            {"removes": 5},
            {"marks": 5},
            {"marks": {"a": [1]}},
            {"marks": {"a": ["1", 2]}},
            {"marks": {"a": [-1, 2]}},
            {"marks": {"": [1, 2]}},
        ],
    )
    def test_fields_that_could_lead_elsewhere_are_refused(self, fields: dict[str, object]) -> None:
        content = {"version": 2, "moves": [], "removes": [], "marks": {}} | fields
        with pytest.raises(CorruptFile):
            commits.decode_commit(json.dumps(content).encode())

    def test_a_later_version_is_refused(self) -> None:
        with pytest.raises(UnsupportedVersion):
            commits.decode_commit(b'{"version": 3, "other": []}')

    def test_a_damaged_record_names_its_file(self) -> None:
        env = staged_dir()
        path = commits.commit_path(PATH, ID)
        env.files.open(path, create=True).pwrite(b"junk", 0)
        with pytest.raises(CorruptFile, match=ID):
            commits.replay(env.files, PATH)


class TestReplay:
    def test_moves_every_file_and_removes_the_record(self) -> None:
        env = staged_dir()
        commits.publish(env.files, PATH, ID, COMMIT)
        done = commits.replay(env.files, PATH)
        assert there(env) == [f"t-0/{FINAL}", f"t-1/{FINAL}"]
        assert commits.find_commits(env.files, PATH) == []
        assert "finished a commit of 2 files" in done[0]
        assert read_marks(env.files, PATH) == {"query/a": Mark(3, 5)}
        assert commits.replay(env.files, PATH) == []

    def test_without_a_record_staged_files_are_dropped(self) -> None:
        env = staged_dir()
        done = commits.replay(env.files, PATH)
        assert there(env) == []
        assert len(done) == 2

    def test_a_topic_that_was_deleted_meanwhile_does_not_stop_the_start(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        gone = [Move("gone-0", "a.staged", FINAL)]
        commits.publish(env.files, PATH, ID, Commit(moves=tuple(gone)))
        directory, log = reopen_dir(env)
        assert offsets(log.records()) == [0]
        assert commits.find_commits(env.files, PATH) == []

    def test_after_every_crash_all_files_are_visible_or_none(self) -> None:
        """Whichever calls a power loss discards, the next start has both files, or neither."""
        env = staged_dir()
        env.files.settle()
        commits.publish(env.files, PATH, ID, COMMIT)
        published = len(env.files.journal)
        commits.replay(env.files, PATH)
        outcomes = set()
        everything = (f"t-0/{FINAL}", f"t-1/{FINAL}")
        states = [*env.files.prefixes(Keep.SYNCED), *env.files.prefixes(Keep.EVERYTHING)]
        for state in (*states, *env.files.crash_states(range(300))):
            disk: DamageFileSystem = reopen(state)
            commits.replay(disk, PATH)
            found = tuple(there(Env(files=disk)))
            assert found in ((), everything), str(state)
            assert found == everything or state.prefix < published, str(state)
            outcomes.add(found)
        assert len(outcomes) == 2

    def test_after_no_crash_a_removed_file_is_beside_the_file_that_replaces_it(self) -> None:
        """Kafka completes a swap by file names alone, without the commit record."""
        env, old = seeded_env(1), "00000000000000000000.log"
        swap = Move("t-0", FINAL + log_files.SWAP_SUFFIX, FINAL)
        env.files.make_dirs(f"{PATH}/t-0")
        for name in (old, swap.staged):
            file = env.files.open(f"{PATH}/t-0/{name}", create=True)
            file.pwrite(name.encode(), 0)
            file.sync()
        for directory in (f"{PATH}/t-0", PATH, "/"):
            env.files.sync_dir(directory)
        env.files.settle()
        commits.publish(env.files, PATH, ID, Commit(moves=(swap,), removes=(Removal("t-0", old),)))
        commits.replay(env.files, PATH)
        states = [*env.files.prefixes(Keep.SYNCED), *env.files.prefixes(Keep.EVERYTHING)]
        for state in (*states, *env.files.crash_states(range(300))):
            names = {entry.name for entry in reopen(state).list_dir(f"{PATH}/t-0")}
            assert not {old, FINAL} <= names, str(state)


class TestOverlay:
    def prepared(self) -> Env:
        """Write a log of one record, stage more segments, and publish their commit record."""
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        moves = []
        for offset in (1, 2, 3):
            data = build_batch(new_records([10 + offset]), base_offset=offset)
            write(env, f"{offset}.staged", bytes(data))
            moves.append(Move("t-0", f"{offset}.staged", f"{offset:020d}.log"))
        commits.publish(env.files, PATH, ID, Commit(moves=tuple(moves)))
        return env

    def test_a_reader_reads_staged_files_under_their_final_names(self) -> None:
        env = self.prepared()
        assert commits.overlay(env.files, PATH, TopicPartition("t", 1)) == {}
        reader = reader_of(env)
        assert offsets(reader.records()) == [0, 1, 2, 3]
        found = reader.offset_for_time(12)
        assert found is not None
        assert found.offset == 2

    def test_a_record_that_is_carried_out_meanwhile_hides_no_other_record(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env = self.prepared()
        write(env, "4.staged", bytes(build_batch(new_records([14]), base_offset=4)))
        later = Commit(moves=(Move("t-0", "4.staged", "00000000000000000004.log"),))
        commits.publish(env.files, PATH, "f" * 32, later)
        first, _ = commits.find_commits(env.files, PATH)
        read_commit = commits.read_commit

        def removed(fs: FileSystem, path: str) -> Commit:
            if path == first:
                raise FileNotFoundError(2, "carried out", path)
            return read_commit(fs, path)

        monkeypatch.setattr(commits, "read_commit", removed)
        found = commits.overlay(env.files, PATH, TopicPartition("t", 0))
        assert found == {"00000000000000000004.log": "4.staged"}

    def test_a_reader_continues_when_the_writer_renames_them(self) -> None:
        env = self.prepared()
        directory = LogDir.open(PATH, env=env)
        reader = directory.reader(TOPIC, 0)
        commits.replay(env.files, PATH)
        assert offsets(reader.records()) == [0, 1, 2, 3]
        reader.refresh()
        assert offsets(reader.records()) == [0, 1, 2, 3]

    def test_a_commit_record_may_be_removed_while_a_reader_opens_it(self) -> None:
        env = self.prepared()
        watching, seen = watched(env)

        def finish(path: str) -> None:
            if "tidelog-commit" in path:
                seen.before_open = None
                commits.replay(env.files, PATH)

        seen.before_open = finish
        reader = LogDir.open(PATH, env=watching).reader(TOPIC, 0)
        assert offsets(reader.records()) == [0, 1, 2, 3]

    def test_files_that_are_already_renamed_are_not_overlaid(self) -> None:
        env = self.prepared()
        env.files.rename(path_of("2.staged"), path_of("00000000000000000002.log"))
        found = commits.overlay(env.files, PATH, TopicPartition("t", 0))
        assert sorted(found.values()) == ["1.staged", "3.staged"]
        assert offsets(reader_of(env).records()) == [0, 1, 2, 3]


NOW_MS = 1_700_000_000_000


class ListedFiles(OsFileSystem):
    """The real file system; collects the path of each directory that is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def list_dir(self, path: str) -> list[DirEntry]:
        self.listed.append(path)
        return super().list_dir(path)


def settle(env: Env, path: str, now_ms: int) -> None:
    """Set the directory's modification time."""
    env.files.set_mtime(path, now_ms)


class TestManyPartitions:
    COUNT = 5

    def opened(self, tmp_path: Path, ago_ms: int) -> tuple[LogDir, list[str]]:
        """Open for reading a directory that was last changed `ago_ms` ago.

        Also return the list to which each listing of a directory adds its path.
        """
        path = str(tmp_path)
        env = Env(clock=ManualClock(NOW_MS))
        with LogDir.open(path, env=env, options=LogDirOptions(create=True)) as made:
            made.create_topic("t", partitions=self.COUNT)
        settle(env, path, NOW_MS - ago_ms)
        files = ListedFiles()
        found = LogDir.open(path, env=Env(files=files, clock=ManualClock(NOW_MS)))
        found.topics()
        files.listed.clear()
        return found, files.listed

    @pytest.mark.parametrize("ago_ms", [60_000, files.SETTLED_MS, files.SETTLED_FINE_MS + 1, 2_001])
    def test_commit_records_are_searched_once(self, tmp_path: Path, ago_ms: int) -> None:
        """A modification time in whole seconds is trusted later than one with fractions."""
        log_dir, listed = self.opened(tmp_path, ago_ms)
        for number in range(self.COUNT):
            log_dir.reader("t", number)
        assert listed.count(str(tmp_path)) == 1

    def test_after_a_change_commit_records_are_searched_again(self, tmp_path: Path) -> None:
        log_dir, listed = self.opened(tmp_path, 60_000)
        log_dir.reader("t", 0)
        staged = [Move(f"t-{n}", f"{n}.staged", FINAL) for n in range(self.COUNT)]
        data = build_batch(new_records([11]), base_offset=1)
        for move in staged:
            Path(tmp_path, move.directory, move.staged).write_bytes(bytes(data))
        commits.publish(log_dir.env.files, str(tmp_path), ID, Commit(moves=tuple(staged)))
        for number in range(1, self.COUNT):
            assert offsets(log_dir.reader("t", number).records()) == [1]
        commits.replay(log_dir.env.files, str(tmp_path))
        settle(log_dir.env, str(tmp_path), NOW_MS - 50_000)
        log_dir.refresh()
        log_dir.topics()
        before = listed.count(str(tmp_path))
        for number in range(self.COUNT):
            assert offsets(log_dir.reader("t", number).records()) == [1]
        assert listed.count(str(tmp_path)) == before + 1

    @pytest.mark.parametrize("ago_ms", [0, 2_000, files.SETTLED_FINE_MS - 1, -59_999, -60_000])
    def test_a_directory_changed_just_now_is_listed_each_time(
        self, tmp_path: Path, ago_ms: int
    ) -> None:
        """A later change may get the same modification time, in one tick or if clocks differ."""
        log_dir, listed = self.opened(tmp_path, ago_ms)
        for number in range(self.COUNT):
            log_dir.reader("t", number)
        assert listed.count(str(tmp_path)) == self.COUNT
