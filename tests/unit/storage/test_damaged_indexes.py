"""Opening a log for writing with damaged indexes: zeros, cuts, and an index of another log."""

import pytest
from tests.faults import START_MS, SeededEnv
from tests.worlds.directories.logs import (
    DAY_MS,
    HOUR_MS,
    new_log,
    offsets,
    put,
    read,
    reopen,
    write,
)

from tidelog.storage import files, log_files
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log

SPARSE = {"index.interval.bytes": "0", "tidelog.retention.clock": "record"}
FIRST_TIMES = f"{0:020d}.timeindex"
FIRST_OFFSETS = f"{0:020d}.index"


def two_segments(env_config: dict[str, str] | None = None) -> tuple[SeededEnv, Log]:
    """Write a finished segment of four batches, an hour apart, and a segment of one batch."""
    env, directory, log = new_log({**SPARSE, "retention.ms": str(DAY_MS), **(env_config or {})})
    for hours in (4, 3, 2, 1):
        put(log, START_MS - hours * HOUR_MS)
    log.roll()
    put(log, START_MS)
    directory.close()
    return env, log


def drop_zones(env: SeededEnv) -> None:
    """Remove the zone map, so that only the log itself can verify an index."""
    path = f"/data/t-0/{log_files.file_name(0, log_files.ZONES_SUFFIX)}"
    if env.files.exists(path):
        env.files.remove(path)


@pytest.mark.parametrize("has_map", [True, False])
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda data: data + bytes(120), id="a tail of zeros (KAFKA-10207)"),
        pytest.param(lambda data: bytes(1200), id="never written (KAFKA-19200)"),
        pytest.param(lambda data: data[:12], id="cut: the largest time is lost"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(
            lambda data: (5).to_bytes(8, "big") + bytes(4), id="of another log, far in the past"
        ),
    ],
)
def test_retention_is_not_fooled_by_a_time_index(changed: object, has_map: bool) -> None:
    env, _ = two_segments()
    if not has_map:
        drop_zones(env)
    assert callable(changed)
    write(env, FIRST_TIMES, changed(read(env, FIRST_TIMES)))
    directory, log = reopen(env)
    env.clock.advance(HOUR_MS)
    assert log.apply_retention() == []
    assert offsets(log.records()) == list(range(5))
    found = log.offset_for_time(START_MS - HOUR_MS)
    assert found is not None
    assert found.offset == 3
    assert any("rebuilt" in line for line in directory.reports)
    env.clock.advance(DAY_MS - HOUR_MS - HOUR_MS // 2)
    # The segment is old enough now, so retention deletes it.
    assert [gone.base_offset for gone in log.apply_retention()] == [0]


def test_zeros_at_the_end_of_indexes_neither_fill_a_segment_nor_change_its_time() -> None:
    """After a hard stop of Kafka, both indexes are preallocated, with zeros at the end."""
    env, _ = two_segments()
    for suffix, size in ((log_files.OFFSET_INDEX_SUFFIX, 8), (log_files.TIME_INDEX_SUFFIX, 12)):
        name = log_files.file_name(4, suffix)
        write(env, name, read(env, name) + bytes(100 * size))
    _, log = reopen(env)
    put(log, START_MS + 1)
    assert log.roll()
    put(log, START_MS + 2)
    assert log.apply_retention() == []
    assert offsets(log.records()) == list(range(7))
    found = log.offset_for_time(START_MS + 1)
    assert found is not None
    assert found.offset == 5


def test_offset_indexes_that_lead_elsewhere_lose_no_record() -> None:
    env, _ = two_segments()
    drop_zones(env)
    data = read(env, FIRST_OFFSETS)
    write(env, FIRST_OFFSETS, data[:-4] + (int.from_bytes(data[-4:], "big") + 3).to_bytes(4, "big"))
    directory, log = reopen(env)
    assert [offsets(log.records(start, start + 1)) for start in range(5)] == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]
    assert any("rebuilt" in line for line in directory.reports)


def test_a_batch_that_claims_more_than_the_time_index_stops_no_append() -> None:
    """After a bit flip in a batch's largest timestamp, appends, rolls and openings still work."""
    env, directory, log = new_log({"retention.ms": "-1"})
    for number in range(4):
        put(log, START_MS + number)
    directory.close()
    name = f"{0:020d}.log"
    data = bytearray(read(env, name))
    data[len(data) // 4 + 36] ^= 1  # the largest timestamp of the second batch
    write(env, name, bytes(data))
    directory, log = reopen(env)
    put(log, START_MS + 4)
    log.roll()
    directory.close()
    _, log = reopen(env)
    assert log.log_end_offset == 5


def test_index_entries_of_a_batch_that_was_lost_in_a_crash_are_dropped_without_a_report() -> None:
    """A crash may keep the last entries of both indexes, but not their batch."""
    env, directory, log = new_log(SPARSE)
    ends = []
    for hours in (4, 3, 2):
        put(log, START_MS - hours * HOUR_MS)
        ends.append(log.segments[-1].size_bytes)
    directory.close()
    name = log_files.file_name(0, log_files.LOG_SUFFIX)
    write(env, name, read(env, name)[: ends[2] - 1])
    env.files.remove(f"/data/{files.RECOVERY_POINT_CHECKPOINT_FILE}")
    with LogDir.open("/data", env=env) as seen:
        log_view = seen.reader("t", 0)
        assert offsets(log_view.records()) == [0, 1]
        latest = log_view.max_timestamp()
        assert latest is not None
        assert (latest.offset, latest.timestamp) == (1, START_MS - 3 * HOUR_MS)
        assert log_view.offset_for_time(START_MS - 2 * HOUR_MS) is None
        assert seen.reports == []
