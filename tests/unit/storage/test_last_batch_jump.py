"""The writer refuses a last batch whose offsets leave a gap, and readers report it.

No checksum covers a batch's offsets, and after the last batch no other batch contradicts them.
"""

from collections.abc import Mapping

import pytest
from tests.faults import Keep, SeededEnv, seeded_env
from tests.faults import reopen as disk_of
from tests.unit.storage.test_log_end import LOG, drain, scan
from tests.worlds.directories.logs import new_log, offsets, put, read, reader_of, reopen, write
from tests.worlds.repetition import rarely

from tidelog.errors import CorruptBatch, DamagedLog

COUNT = 8
LAST = COUNT - 1
# With the interval 0, the last batch has an index entry.
SETTINGS: list[Mapping[str, str]] = [
    {},
    {"index.interval.bytes": "0"},
    {"index.interval.bytes": "0", "message.timestamp.type": "LogAppendTime"},
    {"index.interval.bytes": "100"},
]
# (byte, bit): bits that increase the base offset, but keep it within the segment's limit.
UP = [(7, 3), (4, 6), *(rarely(*flip) for flip in [(7, 6), (6, 6), (5, 1), (4, 2)])]


def moved_up(
    settings: Mapping[str, str], at: int, bit: int, *, clean: bool
) -> tuple[SeededEnv, int]:
    """Write one-record batches; flip a bit of the last base offset; return disk and position."""
    env, directory, log = new_log(settings)
    for time in range(COUNT):
        put(log, time)
    (directory.close if clean else directory.abandon)()
    data = bytearray(read(env, LOG))
    place = len(data) // COUNT * LAST
    data[place + at] |= 1 << bit
    write(env, LOG, bytes(data))
    return env, place


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("at", "bit"), UP)
def test_readers_report_the_jump_that_the_writer_refuses(
    settings: Mapping[str, str], at: int, bit: int, *, clean: bool
) -> None:
    env, place = moved_up(settings, at, bit, clean=clean)
    damaged = read(env, LOG)
    for has_indexes in (True, False):
        if not has_indexes:
            for name in (LOG.replace(".log", ".index"), LOG.replace(".log", ".timeindex")):
                write(env, name, b"")
        reader = reader_of(env)
        assert reader.log_end_offset == COUNT
        found, error = drain(reader)
        assert found == list(range(LAST))
        assert error is not None
        assert (error.position, error.offset) == (place, LAST)
        with pytest.raises(CorruptBatch):
            scan(env)
        with pytest.raises(CorruptBatch):
            reader.offset_for_time(2**62)
        with pytest.raises(CorruptBatch):
            reader.max_timestamp()
    _, log = reopen(env)
    assert log.log_end_offset == COUNT
    with pytest.raises(DamagedLog) as caught:
        put(log, 9)
    assert (caught.value.position, caught.value.offset) == (place, LAST)
    assert drain(log)[0] == list(range(LAST))
    assert read(env, LOG) == damaged


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_batch_that_an_index_entry_leads_to_is_not_the_right_one_of_two(
    settings: Mapping[str, str],
) -> None:
    """A search that uses an index entry must compare the batch's offset with the entry's."""
    env, directory, log = new_log(settings)
    # The last entry of the time index points to the batch before the last two.
    for time in (*range(COUNT - 3), 1000, 1, 2):
        put(log, time)
    directory.abandon()
    data = bytearray(read(env, LOG))
    place = len(data) // COUNT * (COUNT - 3)
    data[place + 7] |= 1 << 4
    write(env, LOG, bytes(data))
    reader = reader_of(env)
    assert reader.log_end_offset == COUNT
    found, error = drain(reader)
    assert found == list(range(COUNT - 3))
    assert error is not None
    assert (error.position, error.offset) == (place, COUNT - 3)
    _, log = reopen(env)
    with pytest.raises(DamagedLog):
        put(log, 9)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_reader_beside_a_writer_sees_no_damage_in_a_running_append(
    settings: Mapping[str, str],
) -> None:
    env, directory, log = new_log(settings)
    put(log, 1)
    directory.checkpoint()
    env.files.settle()
    for time in range(3):
        put(log, time, time, value=b"v" * 50)
    for state in env.files.prefixes(Keep.EVERYTHING):
        seen = seeded_env(2, files=disk_of(state))
        found, error = drain(reader_of(seen))
        assert error is None
        assert found == list(range(len(found)))
    whole, size = read(env, LOG), len(read(env, LOG))
    for cut in range(size - 180, size):
        write(env, LOG, whole[:cut])
        assert drain(reader_of(env))[1] is None


def test_a_gap_that_a_follower_has_written_is_trusted_beside_it() -> None:
    env, _, log = new_log({"index.interval.bytes": "0"})
    put(log, 1)
    twin, _, source = new_log()
    for time in range(20):
        put(source, time)
    data = read(twin, LOG)
    size = len(data) // 20
    log.follower.append(data[9 * size : 10 * size])
    assert offsets(reader_of(env).records()) == [0, 9]
