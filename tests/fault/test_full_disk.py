"""On a full disk, operations that free space succeed: topic deletion and shorter retention."""

import logging

import pytest
from tests.fault.workload import ROOT
from tests.faults import SeededEnv, seeded_env

from tidelog.errors import StorageFailure
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import RESERVE_FILE
from tidelog.types import NewRecord

DAY_MS = 86_400_000
RECORD = NewRecord(value=b"v" * 1000)
SMALL = {"internal.segment.bytes": "20000", "file.delete.delay.ms": "0"}


def full(env: SeededEnv) -> LogDir:
    """Return a directory on a full disk; its partition t-0 has several segments and is offline."""
    directory = LogDir.open(ROOT, env=env, options=LogDirOptions(create=True))
    directory.create_topic("t", config=SMALL)
    directory.create_topic("other")
    log = directory.log("t", 0)
    for _ in range(100):
        log.append([RECORD])
    log.flush()
    directory.checkpoint()
    directory.keep_reserve()
    env.files.limit_bytes = env.files.used_bytes() + 300
    with pytest.raises(StorageFailure, match="No space left"):
        log.append([RECORD])
    assert log.failure is not None
    env.files.limit_bytes = env.files.used_bytes()
    return directory


def test_an_offline_partition_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        directory = full(seeded_env(1))
        with pytest.raises(StorageFailure):
            directory.log("t", 0).append([RECORD])
    (told,) = [one.getMessage() for one in caplog.records if "offline" in one.getMessage()]
    assert told.startswith("t-0 is offline: ")
    assert "No space left" in told
    assert "tidelog reopen" in told


@pytest.mark.parametrize("name", ["t", "other"])
def test_a_topic_can_be_deleted(name: str) -> None:
    env = seeded_env(2)
    directory = full(env)
    before = env.files.used_bytes()
    directory.delete_topic(name)
    assert name not in directory.topics()
    assert env.files.used_bytes() < before
    directory.abandon()
    env.files.limit_bytes = None
    with LogDir.open(ROOT, env=env, options=LogDirOptions(create=True)) as again:
        assert name not in again.topics()


def test_shorter_retention_frees_space_on_a_full_disk() -> None:
    env = seeded_env(3)
    directory = full(env)
    directory.alter_config("t", {"retention.bytes": "30000"})
    log = directory.reopen("t", 0)
    assert log.failure is None
    assert log.apply_retention()
    log.deleter.unlink_due()
    assert log.log_start_offset > 0
    log.append([RECORD])
    assert log.log_end_offset == 101
    directory.close()


def test_the_reserve_is_made_again_when_there_is_room() -> None:
    env = seeded_env(4)
    directory = full(env)
    path = f"{ROOT}/{RESERVE_FILE}"
    assert env.files.exists(path)
    directory.alter_config("t", {"retention.ms": str(DAY_MS)})
    assert not env.files.exists(path)
    directory.keep_reserve()
    assert not env.files.exists(path)
    assert not env.files.exists(f"{path}.tmp")
    env.files.limit_bytes = None
    directory.keep_reserve()
    assert env.files.exists(path)
    directory.abandon()
