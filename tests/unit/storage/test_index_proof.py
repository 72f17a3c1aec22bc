"""A wrong index that violates no rule of an index costs time but hides no record."""

from collections.abc import Callable
from contextlib import closing

import pytest
from tests.core import thinned
from tests.faults import SeededEnv
from tests.worlds.directories.logs import (
    PATH,
    TOPIC,
    new_log,
    offsets,
    put,
    read,
    reader_of,
    reopen,
    write,
)

from tidelog.errors import CorruptBatch
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.index_proof import batch_reaching
from tidelog.storage.segment.segment import iterate_batches

TIMES = [(time * 7) % 20 * 10 for time in range(20)]
QUESTIONS = range(0, 202, 10)
MANY = {"internal.segment.bytes": "1200", "index.interval.bytes": "0"}
ONE = {"index.interval.bytes": "0"}


def stopped(config: dict[str, str]) -> SeededEnv:
    """Return a directory after a clean stop, with 20 batches whose times rise and fall."""
    env, directory, log = new_log(config)
    for time in TIMES:
        put(log, time, value=b"x" * 20)
    directory.close()
    return env


def answers(reader: LogView) -> list[object]:
    """Return the results of all kinds of reads."""
    found = [reader.offset_for_time(time) for time in QUESTIONS]
    ranges = [offsets(reader.records(start, start + 3)) for start in range(0, 17, 4)]
    return [found, ranges, reader.max_timestamp(), offsets(reader.records())]


def plain(env: SeededEnv) -> LogView:
    return reader_of(env)


def kernels(env: SeededEnv) -> LogView:
    reader = reader_of(env)
    reader.use_kernels()
    return reader


@pytest.mark.parametrize("open_reader", [plain, kernels])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("config", [MANY, ONE], ids=["closed", "last"])
def test_no_single_bit_of_an_index_hides_a_record(
    open_reader: Callable[[SeededEnv], LogView], suffix: str, config: dict[str, str]
) -> None:
    env = stopped(config)
    name = f"{0:020d}{suffix}"
    right = read(env, name)
    expected = answers(open_reader(env))
    assert len(right) >= 36
    for bit in thinned(range(8 * len(right))):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        write(env, name, bytes(wrong))
        assert answers(open_reader(env)) == expected, f"bit {bit}"


@pytest.mark.parametrize("open_reader", [plain, kernels])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("config", [MANY, ONE], ids=["closed", "last"])
def test_an_index_that_ends_too_early_is_found_and_reported(
    open_reader: Callable[[SeededEnv], LogView], suffix: str, config: dict[str, str]
) -> None:
    """Without the last entries, reads have the same results. The other entries follow all rules."""
    env = stopped(config)
    name = f"{0:020d}{suffix}"
    right = read(env, name)
    expected = answers(open_reader(env))
    size = 8 if suffix == ".index" else 12
    for left in range(0, len(right), size):
        write(env, name, right[:left])
        assert answers(open_reader(env)) == expected, f"{left} bytes left"


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_time_index_cut_short_is_reported(kept: int) -> None:
    env = stopped(MANY)
    name = f"{0:020d}.timeindex"
    write(env, name, read(env, name)[: 12 * kept])
    opened = LogDir.open(PATH, env=env)
    found = opened.reader(TOPIC, 0).offset_for_time(TIMES[3])
    assert found is not None
    assert any("time index" in line and "rebuilt" in line for line in opened.reports)


def test_the_index_of_another_segment_is_not_trusted() -> None:
    env = stopped(MANY)
    bases = [segment.base_offset for segment in reader_of(env).segments]
    expected = answers(plain(env))
    for suffix in (".index", ".timeindex"):
        write(env, f"{bases[0]:020d}{suffix}", read(env, f"{bases[1]:020d}{suffix}"))
    assert answers(plain(env)) == expected
    assert answers(kernels(env)) == expected


def test_an_entry_beyond_the_log_end_does_not_stop_appends() -> None:
    """Entries of old brokers may have offsets after their batch, but never after the log end."""
    env = stopped(ONE)
    write(env, f"{0:020d}.index", (2**30).to_bytes(4, "big") + bytes(4))
    directory, log = reopen(env)
    put(log, 500)
    found = log.offset_for_time(500)
    assert found is not None
    assert found.offset == len(TIMES)
    directory.close()
    assert offsets(reader_of(env).records(18)) == [18, 19, 20]


def test_a_writer_repairs_a_wrong_index_with_the_next_append() -> None:
    env = stopped(ONE)
    name = f"{0:020d}.index"
    right = read(env, name)
    wrong = bytearray(right)
    wrong[8 * 5 + 7] ^= 1  # the position of the sixth entry
    write(env, name, bytes(wrong))
    directory, log = reopen(env)
    for start in range(20):
        assert offsets(log.records(start, start + 1)) == [start]
    put(log, 1_000)
    directory.close()
    assert read(env, name)[: len(right)] == right


def test_a_search_does_not_skip_a_batch_whose_base_offset_is_too_small() -> None:
    env = stopped(ONE)
    (segment,) = reader_of(env).segments
    starts = [position for position, _ in iterate_batches(segment, 0, segment.size_bytes)]
    for number in range(3, 20):
        found = batch_reaching(segment, number)
        assert found is not None
        assert (found[0], found[1].base_offset) == (starts[number], number)
        path, at = segment.log_path, starts[number]
        with closing(env.files.open(path, write=True)) as file:
            file.pwrite((number - 2).to_bytes(8, "big"), at)
            damaged = LogDir.open(PATH, env=env).reader(TOPIC, 0)
            with pytest.raises(CorruptBatch, match=f"position {at}, offset {number}"):
                batch_reaching(damaged.segments[0], number)
            file.pwrite(number.to_bytes(8, "big"), at)
