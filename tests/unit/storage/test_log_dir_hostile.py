"""Data directories with files and directories that tidelog did not create."""

import uuid
from pathlib import Path

import pytest
from tests.worlds.directories.logs import (
    PATH,
    TOPIC,
    WRITABLE,
    new_log,
    offsets,
    path_of,
    put,
    reader_of,
    reopen,
)

from tidelog.errors import InvalidPartitions, UnknownTopic
from tidelog.storage import text_files
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import ClockName, TopicPartition

T0 = TopicPartition(TOPIC, 0)


class TestHostileContents:
    """Opening a directory changes nothing outside it, and removes no file of another program."""

    def test_only_kafkas_names_of_deleted_partitions_are_purged(self) -> None:
        env, directory, _ = new_log()
        directory.close()
        kept = ("please-do-not-delete", "t-0-delete", f"t-0.{'x' * 32}-delete", "t-0.abc-delete")
        gone = f"t-1.{'0a' * 16}-delete"
        for name in (*kept, gone):
            env.files.make_dirs(f"{PATH}/{name}/deep")
            env.files.open(f"{PATH}/{name}/deep/file", create=True).close()
        reopen(env)
        for name in kept:
            assert env.files.exists(f"{PATH}/{name}/deep/file")
        assert not env.files.exists(f"{PATH}/{gone}")

    def test_links_are_removed_and_never_followed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").write_text("x")
        root = tmp_path / "data"
        doomed = root / f"t-1.{'0a' * 16}-delete"
        doomed.mkdir(parents=True)
        (doomed / "inner").symlink_to(outside)
        (root / f"t-2.{'0b' * 16}-delete").symlink_to(outside)
        with LogDir.open(str(root), options=WRITABLE) as directory:
            assert not doomed.exists()
            directory.create_topic(TOPIC)
            (root / "t-0" / "partition.metadata").rename(outside / "partition.metadata")
            (root / "t-0").rmdir()
            (root / "t-0").symlink_to(outside)
            directory.delete_topic(TOPIC)
        assert (outside / "precious").read_text() == "x"
        assert not any(path.is_symlink() for path in root.iterdir())

    def test_directories_with_names_of_files_are_skipped(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        for name in ("00000000000000000007.log", "00000000000000000009.index", "x.staged"):
            env.files.make_dirs(path_of(name))
        assert offsets(reader_of(env).records()) == [0]
        directory, log = reopen(env)
        put(log, 2)
        directory.abandon()
        _, log = reopen(env)
        assert offsets(log.records()) == [0, 1]

    @pytest.mark.parametrize(
        "name",
        [
            "99999999999999999999.log",
            "0000000000000000007.log",
            "000000000000000000007.log",
            "-0000000000000000007.log",
            "0000000000000000000\u0667.log",
            "00000000000000000007.LOG",
            "00000000000000000007.log.tmp",
            " 00000000000000000007.log",
            "00000000000000000007.log\n",
        ],
    )
    def test_names_that_only_look_like_segments(self, name: str) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.abandon()
        env.files.open(path_of(name), create=True).pwrite(b"junk" * 100, 0)
        assert offsets(reader_of(env).records()) == [0]
        _, log = reopen(env)
        assert offsets(log.records()) == [0]

    def test_files_and_odd_directories_beside_the_partitions(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        env.files.open(f"{PATH}/t-9", create=True).close()
        for name in ("t", "t-", "-1", "t--1", "t-01", "t-0.x-stray", "..-0", "t-0-future", "ü-0"):
            env.files.make_dirs(f"{PATH}/{name}")
        opened = LogDir.open(PATH, env=env)
        assert opened.topic(TOPIC).partitions == 1
        assert set(opened.topics()) <= {TOPIC, "t-", "t-0", "-"}

    def test_a_huge_partition_number_has_no_cost(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        for name in ("t-2147483647", "u-2147483647"):
            env.files.make_dirs(f"{PATH}/{name}")
        opened = LogDir.open(PATH, env=env)
        huge = 2**31 - 1
        assert opened.partitions("u") == [TopicPartition("u", huge)]
        assert opened.partitions(TOPIC) == [
            T0
        ]  # an empty directory is no partition of a listed topic

    def test_another_topics_partition_survives_a_deletion_and_is_not_served(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        stray = f"{PATH}/{TOPIC}-3"
        env.files.make_dirs(stray)
        text_files.write_partition_metadata(env.files, stray, uuid.UUID(int=2**99))
        env.files.open(f"{stray}/{0:020}.log", create=True).close()
        directory, _ = reopen(env)
        directory.delete_topic(TOPIC)
        assert env.files.exists(f"{stray}/{0:020}.log")
        with pytest.raises(InvalidPartitions, match="t-3 is not a partition of topic t, but"):
            directory.create_topic(TOPIC, partitions=4)
        assert directory.create_topic(TOPIC, partitions=3)
        assert env.files.exists(f"{stray}/{0:020}.log")

    def test_another_topics_append_times_are_not_trusted(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        metadata = f"{PATH}/t-0/partition.metadata"
        env.files.remove(metadata)
        text_files.write_partition_metadata(env.files, f"{PATH}/t-0", uuid.UUID(int=2**99))
        opened = LogDir.open(PATH, env=env)
        reader = opened.reader(TOPIC, 0)
        assert reader.append_time_of(0) is None
        assert reader.offset_for_time(0, clock=ClockName.APPEND) is None
        assert any("topic id" in line for line in opened.reports)
        assert offsets(reader.records()) == [0]


def test_kafkas_own_metadata_log_is_left_alone() -> None:
    """Kafka's metadata log is in the directory if broker and controller are one process."""
    env, directory, _ = new_log()
    directory.abandon()
    place = f"{PATH}/__cluster_metadata-0"
    env.files.make_dirs(place)
    file = env.files.open(f"{place}/00000000000000000000.log", create=True)
    file.pwrite(b"a batch that was cut", 0)
    file.close()
    before = {entry.name for entry in env.files.list_dir(place)}
    # Opens as after a hard stop, so all partitions are recovered.
    again = LogDir.open(PATH, env=env, options=WRITABLE)
    assert set(again.topics()) == {TOPIC}
    with pytest.raises(UnknownTopic):
        again.log("__cluster_metadata", 0)
    again.close()
    assert {entry.name for entry in env.files.list_dir(place)} == before
    assert env.files.stat(f"{place}/00000000000000000000.log").size == 20
