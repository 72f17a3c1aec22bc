"""Damaged text files, names and snapshots, with the finding and the repair of each damage."""

import os
from pathlib import Path
from uuid import UUID

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.logs import PATH, read, write
from tests.worlds.directories.sick import PARTITION, BytesFileSystem, counting, look, mend

from tidelog.env import OsFileSystem
from tidelog.storage import files, log_files
from tidelog.storage.checks import DirectoryCheck, Finding, Severity
from tidelog.storage.commits import Commit, Move, commit_path, encode_commit
from tidelog.storage.text_files import write_partition_metadata


def put(env: SeededEnv, path: str, content: bytes) -> None:
    if env.files.exists(path):
        env.files.remove(path)
    file = env.files.open(path, create=True)
    file.pwrite(content, 0)
    file.sync()
    file.close()
    env.files.sync_dir(path.rpartition("/")[0])


def findings_of(env: SeededEnv, path: str) -> list[Finding]:
    return [finding for finding in look(env) if finding.path == path]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tidelog-topics.json", b"{", "not JSON"),
        ("tidelog-topics.json", bytes(40), "not JSON: Expecting value"),
        ("tidelog-topics.json", b'{"version\xf3', "not UTF-8"),
        ("tidelog-topics.json", b'{"version": 9, "topics": {}}', "version 9"),
        ("tidelog-groups.json", b"{", "not JSON"),
        ("tidelog-groups.json", b'{"version": 9}', "version 9"),
        ("tidelog-writers.json", b"{", "not a list of writers"),
        ("tidelog-writers.json", b'{"version": 9, "writers": {}}', "version 9"),
        ("meta.properties", b"version", "key=value"),
        ("meta.properties", b"version=1\ncluster.id=x\n", "it has no node.id"),
        ("t-0/partition.metadata", b"version: 0\ntopic_id: short", "22 characters"),
        (f"tidelog-commit-{'0' * 32}.json", b"{}", "not a commit record"),
        ("t-0/compaction-history", b"1\n", "a wrong checksum"),
    ],
)
def test_primary_text_files_are_reported_and_left(
    env: SeededEnv, name: str, content: bytes, says: str
) -> None:
    path = f"{PATH}/{name}"
    put(env, path, content)
    assert any(says in finding.damage for finding in findings_of(env, path))
    mend(env)
    assert bytes(env.files.map(path)) == content
    assert any(says in finding.damage for finding in findings_of(env, path))


@pytest.mark.parametrize(
    ("topic_id", "says"),
    [(None, "has no records"), (UUID(int=2**99), "has another topic id, AAAACAAAAAAAAAAAAAAAAA")],
)
def test_a_directory_beyond_the_partition_count_is_a_warning(
    env: SeededEnv, topic_id: UUID | None, says: str
) -> None:
    path = f"{PATH}/t-3"
    env.files.make_dirs(path)
    if topic_id is not None:
        write_partition_metadata(env.files, path, topic_id)
    (finding,) = findings_of(env, path)
    assert finding.severity is Severity.WARNING
    assert finding.damage == f"topic t has only partition 0, and this directory {says}"


def test_partitions_that_a_broker_adds_during_a_check_are_no_strays(env: SeededEnv) -> None:
    class Grown(DirectoryCheck):
        def _load_topics(self) -> list[Finding]:
            findings = super()._load_topics()
            env.files.make_dirs(f"{PATH}/t-1")
            topic_id = self._topics["t"].topic_id
            assert topic_id is not None
            write_partition_metadata(env.files, f"{PATH}/t-1", topic_id)
            return findings

    check = Grown(env.files, PATH, clock=env.clock)
    findings = [*check.load(), *check.findings()]
    assert [finding for finding in findings if finding.path == f"{PATH}/t-1"] == []


def test_a_commit_that_a_crash_left_is_a_warning_until_it_is_finished(env: SeededEnv) -> None:
    path = commit_path(PATH, "0" * 32)
    put(env, path, encode_commit(Commit(moves=(Move("t-0", "a.staged", f"{99:020d}.log"),))))
    (finding,) = findings_of(env, path)
    assert finding.severity is Severity.WARNING
    assert "an unfinished commit of 1 file" in finding.damage


def test_a_partition_of_another_topic_is_reported(env: SeededEnv) -> None:
    content = b"version: 0\ntopic_id: AAAAAAAAAAEAAAAAAAAAAg"
    put(env, f"{PARTITION}/partition.metadata", content)
    damages = [finding.damage for finding in look(env)]
    assert any("topic id" in damage for damage in damages)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"0\n1\n1 0\n", "it has epoch 1 for offset 0, the batch has 0"),
        (b"0\n2\n0 0\n", "checkpoint declares 2 entries, but has 1"),
        (b"0\n1\n0 0 0\n", "checkpoint line '0 0 0': 2 fields"),
        (b"0\n1\n0 50\n", "it has no epoch for offset 0"),
        (b"0\n2\n0 0\n1 100000\n", "epoch 1 begins at offset 100000"),
    ],
)
def test_leader_epochs(env: SeededEnv, content: bytes, says: str) -> None:
    name = files.LEADER_EPOCH_CHECKPOINT_FILE
    right = read(env, name)
    put(env, f"{PARTITION}/{name}", content)
    assert any(says in finding.damage for finding in findings_of(env, f"{PARTITION}/{name}"))
    mend(env)
    assert counting(look(env)) == []
    if "100000" not in says:
        assert read(env, name) == right


def test_a_repair_keeps_an_epoch_whose_records_were_lost(env: SeededEnv) -> None:
    name = files.LEADER_EPOCH_CHECKPOINT_FILE
    put(env, f"{PARTITION}/{name}", b"0\n2\n0 0\n7 100000\n")
    mend(env)
    assert read(env, name).startswith(b"0\n2\n0 0\n7 ")


def test_an_append_time_checkpoint_of_another_batch_is_reset(
    env: SeededEnv,
) -> None:
    name = files.APPEND_TIME_CHECKPOINT_FILE
    put(env, f"{PARTITION}/{name}", b"0\n1\n10 5 12345\n")
    (finding,) = findings_of(env, f"{PARTITION}/{name}")
    assert finding.severity is Severity.WARNING
    mend(env)
    assert read(env, name) == b"0\n1\n0 -1 0 -1\n"
    assert counting(look(env)) == []


def test_snapshots(env: SeededEnv) -> None:
    names = [entry.name for entry in env.files.list_dir(PARTITION)]
    name = sorted(each for each in names if each.endswith(log_files.SNAPSHOT_SUFFIX))[1]
    right = read(env, name)
    write(env, name, right[:-1] + bytes([right[-1] ^ 1]))
    assert any("checksum" in each.damage for each in findings_of(env, f"{PARTITION}/{name}"))
    put(env, f"{PARTITION}/{log_files.file_name(99_999, log_files.SNAPSHOT_SUFFIX)}", right)
    assert any("after the log end" in finding.damage for finding in look(env))
    mend(env)
    assert read(env, name) == right
    assert counting(look(env)) == []


def test_a_damaged_snapshot_of_deleted_batches_is_left(env: SeededEnv) -> None:
    """The repair leaves the snapshot as it is: the remaining log can't show what belongs in it."""
    names = sorted(entry.name for entry in env.files.list_dir(PARTITION))
    for each in names:
        if each.startswith(f"{0:020d}."):
            env.files.remove(f"{PARTITION}/{each}")
    name = next(
        each for each in names if each.endswith(log_files.SNAPSHOT_SUFFIX) and each > f"{1:020d}"
    )
    damaged = read(env, name)[:-1] + b"\xee"
    write(env, name, damaged)
    (finding,) = findings_of(env, f"{PARTITION}/{name}")
    assert not finding.repairable
    assert "opening uses an older snapshot" in finding.remedy
    mend(env)
    assert read(env, name) == damaged


def test_a_valid_snapshot_of_another_log_is_reported(env: SeededEnv) -> None:
    names = [entry.name for entry in env.files.list_dir(PARTITION)]
    first, second, *_ = sorted(each for each in names if each.endswith(log_files.SNAPSHOT_SUFFIX))
    right = read(env, second)
    write(env, second, read(env, first))
    told_of = findings_of(env, f"{PARTITION}/{second}")
    assert any("last_offset is" in finding.damage for finding in told_of)
    mend(env)
    assert read(env, second) == right


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        (f"{0:020d}.log.deleted", Severity.NOTE),
        (f"{0:020d}.index.swap", Severity.NOTE),
        (f"{0:020d}.log.cleaned", Severity.NOTE),
        (f"{0:020d}.log.staged", Severity.NOTE),
        ("core", Severity.NOTE),
        ("tidelog-unsynced", Severity.NOTE),
        (f"{77:020d}.timeindex", Severity.WARNING),
        (f"{77:020d}.appendtime", Severity.WARNING),
    ],
)
def test_names(env: SeededEnv, name: str, severity: Severity) -> None:
    put(env, f"{PARTITION}/{name}", b"")
    (finding,) = findings_of(env, f"{PARTITION}/{name}")
    assert finding.severity is severity
    mend(env)
    gone = finding.repairable
    assert env.files.exists(f"{PARTITION}/{name}") is not gone
    assert gone == name.endswith(log_files.TIME_INDEX_SUFFIX)


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        "tidelog-metadata.log",
        f"t-0/{60:020d}.index",
        f"t-0/{60:020d}.zones",
        f"t-0/{60:020d}.snapshot",
        "t-0/leader-epoch-checkpoint",
        "t-0/compaction-history",
    ],
)
def test_a_fifo_in_the_place_of_a_file_is_named_and_not_waited_for(
    env: SeededEnv, tmp_path: Path, name: str
) -> None:
    for path, content in BytesFileSystem.copy_of(env.files, PATH).contents.items():
        copied = tmp_path / path.removeprefix(f"{PATH}/")
        copied.parent.mkdir(exist_ok=True)
        copied.write_bytes(content)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    check = DirectoryCheck(OsFileSystem(), str(tmp_path), clock=env.clock)
    found = [*check.load(), *check.findings()]
    damages = [each.damage for each in found if each.path == f"{tmp_path}/{name}"]
    assert any("a FIFO, where a regular file is expected" in damage for damage in damages)
    assert check.unseen == []
