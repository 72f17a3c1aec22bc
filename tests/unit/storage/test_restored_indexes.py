"""Missing indexes of finished segments are rebuilt when a log is opened for writing."""

import pytest
from tests.faults import seeded_env

from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

PATH = "/data"
WRITABLE = LogDirOptions(create=True)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_missing_index_of_a_finished_segment_is_written_again(suffix: str) -> None:
    env = seeded_env(1)
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.create_topic("t", config={"index.interval.bytes": "50"})
        log = directory.log("t", 0)
        for number in range(20):
            log.append([NewRecord(value=b"v" * 40, timestamp=1_000 + number * 37 % 20)])
        log.roll()
    path = f"{PATH}/t-0/{0:020}.{suffix}"
    before = bytes(env.files.map(path))
    assert before
    env.files.remove(path)
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.log("t", 0)
        assert any(path in line for line in directory.reports)
        rebuilt = bytes(env.files.map(path))
        assert rebuilt
        found = directory.log("t", 0).offset_for_time(1_019)
        assert found is not None
        assert found.timestamp == 1_019
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.log("t", 0)
        assert directory.reports == []


def test_reading_alone_writes_no_index() -> None:
    env = seeded_env(1)
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.create_topic("t")
        log = directory.log("t", 0)
        log.append([NewRecord(value=b"v", timestamp=7)])
        log.roll()
    path = f"{PATH}/t-0/{0:020}.timeindex"
    env.files.remove(path)
    with LogDir.open(PATH, env=env) as directory:
        assert directory.reader("t", 0).offset_for_time(7) is not None
        assert any("missing" in line for line in directory.reports)
    assert not env.files.exists(path)
