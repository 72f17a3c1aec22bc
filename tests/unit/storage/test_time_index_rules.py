"""The rules of the time index: size, the largest timestamp of a segment, rebuilding.

Source: KIP-33.
"""

from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    names,
    new_dir,
    new_log,
    new_records,
    path_of,
    put,
    read,
    reader_of,
    reopen,
)
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.repetition import rarely

from tidelog.config import RetentionClock, TopicConfig
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.segment.index_loading import IndexBuilder
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.types import NO_TIMESTAMP, ClockName

if TYPE_CHECKING:
    from tidelog.record.batch_walk import Batch

MIB = 1 << 20
GIB = 1 << 30
LEGACY = {"index.interval.bytes": "0"}
Times = list[int]


class Header(NamedTuple):
    """The fields of a batch that an index is built from."""

    last_offset: int
    max_timestamp: int


def index_sizes(batch_bytes: int, **config: str) -> tuple[int, int]:
    """Return both indexes' sizes for a 1 GiB segment of equal batches with increasing times."""
    settings, _ = TopicConfig.parse({name.replace("_", "."): text for name, text in config.items()})
    builder = IndexBuilder(settings, 0)
    for number, position in enumerate(range(0, GIB - batch_bytes, batch_bytes)):
        builder.add(cast("Batch", Header(number, 1_000 + number)), position)
    offset_index, time_index = builder.finish()
    return offset_index.size_bytes, time_index.size_bytes


class TestSize:
    """A time entry takes 12 bytes, an offset entry 8; `segment.index.bytes` limits both indexes."""

    def test_a_segment_of_1_gb_at_4_kb_needs_2_mb_and_3_mb(self) -> None:
        offset_bytes, time_bytes = index_sizes(4_097)
        assert 0.999 * 2 * MIB < offset_bytes <= 2 * MIB
        assert 0.999 * 3 * MIB < time_bytes <= 3 * MIB
        assert time_bytes == pytest.approx(1.5 * offset_bytes, abs=12)

    @pytest.mark.parametrize("batch_bytes", [3_000, 16_384])
    def test_no_size_of_batches_needs_more(self, batch_bytes: int) -> None:
        offset_bytes, time_bytes = index_sizes(batch_bytes)
        assert offset_bytes <= 2 * MIB
        assert time_bytes <= 3 * MIB

    def test_with_a_limit_of_2_mb_the_time_index_is_full_first(self) -> None:
        offset_bytes, time_bytes = index_sizes(4_097, segment_index_bytes=str(2 * MIB))
        assert time_bytes == 2 * MIB // 12 * 12
        assert offset_bytes > time_bytes * 8 // 12
        # The limit leaves out the last slot, which is reserved for the closing entry.
        full = TimeIndex(0, size_limit=2 * MIB)
        assert full.entry_limit == time_bytes // 12


def legacy_log(magics: list[int]) -> tuple[SeededEnv, Times, int]:
    """Write two segments, with batches of these formats in turn, and close the log.

    Returns the disk, each segment's largest timestamp, and the second segment's base offset.
    """
    env, directory, log = new_log(LEGACY)
    for half in range(2):
        for number, magic in enumerate(magics * 3):
            time = 1_000 + (number * 7 + half) % 20
            add(log, magic, time)
        if half == 0:
            log.roll()
    largest = [segment.largest_timestamp for segment in log.segments]
    directory.close()
    return env, largest, log.segments[-1].base_offset


def add(log: Log, magic: int, time: int) -> None:
    if magic == 2:
        put(log, time, time - 5)
        return
    records = new_records([time, time - 5])
    data = build_legacy_set(records, magic=magic, base_offset=log.log_end_offset)
    log.follower.append(data)


FORMATS = [[0], [2], [0, 1, 2], *map(rarely, ([1], [0, 1], [0, 2], [1, 2]))]


@pytest.mark.parametrize("magics", FORMATS, ids=str)
@pytest.mark.parametrize("missing", ["index", "timeindex", "both"])
@pytest.mark.parametrize("which", ["finished", "last"])
def test_a_missing_index_is_rebuilt_from_the_records(
    magics: list[int], missing: str, which: str
) -> None:
    env, largest, base = legacy_log(magics)
    times = [r.timestamp for r in reader_of(env).records()]
    questions = range(990, 1_025)
    expected = [next((t for t in times if t >= asked), None) for asked in questions]
    for suffix in ("index", "timeindex"):
        if missing in {suffix, "both"}:
            env.files.remove(path_of(f"{base if which == 'last' else 0:020d}.{suffix}"))
    reader = reader_of(env)
    found = [reader.offset_for_time(asked) for asked in questions]
    assert [one and one.timestamp for one in found] == expected
    assert [segment.largest_timestamp for segment in reader.segments] == largest
    _, log = reopen(env)
    assert [segment.largest_timestamp for segment in log.segments] == largest


@pytest.mark.parametrize("magics", FORMATS, ids=str)
def test_the_files_time_is_used_only_if_no_record_has_one(magics: list[int]) -> None:
    env, largest, _ = legacy_log(magics)
    reader = reader_of(env)
    for segment, time in zip(reader.segments, largest, strict=True):
        env.files.set_mtime(segment.log_path, 777)
        times = read_times(reader, segment, clock=RetentionClock.RECORD)
        assert (times.largest_timestamp == NO_TIMESTAMP) == (magics == [0])
        assert (times.largest_timestamp, times.mtime_ms) == (time, 777)
    # A segment without timestamps has an empty time index.
    assert (read(env, f"{0:020d}.timeindex") == b"") == (magics == [0])


def test_times_rise_inside_one_file_only() -> None:
    env = seeded_env(1)
    with new_dir(env, LEGACY) as directory:
        log = directory.log(TOPIC, 0)
        for times in ([50, 20, 70], [10, 5, 30]):
            for time in times:
                put(log, time)
            log.roll()
        entries = [list(segment.time_index.entries()) for segment in log.segments[:2]]
    assert [[time for time, _ in part] for part in entries] == [[50, 70], [10, 30]]


@pytest.mark.parametrize("stop", ["clean", "hard"])
def test_the_largest_timestamp_is_known_after_any_stop(stop: str) -> None:
    """The time is the same, although only a hard stop makes the opening read the whole segment."""
    env, directory, log = new_log({"index.interval.bytes": "200"})
    for time in (5, 900, 30, 40):
        put(log, time)
    if stop == "clean":
        directory.close()
    else:
        directory.abandon()
    for view in (reader_of(env), reopen(env)[1]):
        assert view.segments[-1].largest_timestamp == 900
        found = view.max_timestamp()
        assert found is not None
        assert found.offset == 1


@pytest.mark.parametrize(
    "target", [target if target % 3 == 1 else rarely(target) for target in range(1, 24)]
)
def test_a_truncation_removes_all_files_and_reloads_the_largest_timestamp(target: int) -> None:
    env, directory, log = new_log({**SMALL, "internal.segment.bytes": "900"})
    times = [(n * 7) % 24 + 100 for n in range(24)]
    for time in times:
        put(log, time, value=b"x" * 40)
    assert len(log.segments) > 2
    log.truncate_to(target)
    last = log.segments[-1]
    kept = times[last.base_offset : target]
    assert last.largest_timestamp == max(kept, default=NO_TIMESTAMP)
    assert all(offset < target for offset, _ in last.offset_index.entries())
    assert all(offset < target for _, offset in last.time_index.entries())
    bases = {segment.base_offset for segment in log.segments}
    assert {int(name.split(".")[0]) for name in names(env) if name[0].isdigit()} - bases <= {target}
    assert f"{last.base_offset:020d}.zones" not in names(env)  # the segment is active again
    put(log, 500)
    directory.close()
    reader = reader_of(env)
    assert [record.timestamp for record in reader.records()] == [*times[:target], 500]
    for clock in ClockName:
        assert reader.offset_for_time(0, clock=clock) is not None
    assert not [line for line in reader_reports(env) if "rebuilt" in line]


def reader_reports(env: SeededEnv) -> list[str]:
    with LogDir.open(PATH, env=env) as directory:
        reader = directory.reader(TOPIC, 0)
        reader.offset_for_time(10**6)
        return list(directory.reports)
