"""A search verifies the checksum of a batch that it skips because of its largest timestamp."""

from collections.abc import Mapping

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.logs import new_log, put, read, reader_of, reopen, write
from tests.worlds.repetition import rarely

from tidelog.errors import CorruptBatch
from tidelog.record.header import CRC_AT, MAGIC_AT, MAX_TIMESTAMP_AT
from tidelog.types import ClockName

LOG = "00000000000000000000.log"
COUNT = 12
SETTINGS: list[Mapping[str, str]] = [{}, {"index.interval.bytes": "200"}]
STAMPED = {"message.timestamp.type": "LogAppendTime"}
FLIPS = [(MAX_TIMESTAMP_AT + 6, 1), (MAGIC_AT, 1)]


def flipped(settings: Mapping[str, str], bad: int, at: int, bit: int, *, rolled: bool) -> SeededEnv:
    """Write records with times 1000, 1001, ...; flip a bit of one batch's header."""
    env, directory, log = new_log(settings)
    for number in range(COUNT):
        put(log, 1000 + number)
    if rolled:
        log.roll()
        put(log, 5000)
    directory.close()
    data = bytearray(read(env, LOG))
    data[len(data) // COUNT * bad + at] ^= 1 << bit
    write(env, LOG, bytes(data))
    return env


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("bad", [1, COUNT - 2, rarely(5)])
@pytest.mark.parametrize(("at", "bit"), FLIPS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_no_search_by_record_time_passes_over_a_damaged_batch(
    settings: Mapping[str, str], at: int, bit: int, bad: int, *, rolled: bool, kernels: bool
) -> None:
    env = flipped(settings, bad, at, bit, rolled=rolled)
    for log in (reader_of(env), reopen(env)[1]):
        if kernels:
            log.use_kernels()
        with pytest.raises(CorruptBatch) as caught:
            log.offset_for_time(1000 + bad)
        assert caught.value.position == len(read(env, LOG)) // COUNT * bad
        found = log.offset_for_time(1000)
        assert found is not None
        assert found.offset == 0


def test_a_read_fails_at_a_damaged_batch_before_its_start_only_if_a_gap_follows() -> None:
    """A wrong offset in the damaged header could hide records in the gap, but no other records."""
    env = flipped({}, 5, CRC_AT, 1, rolled=False)
    assert [record.offset for record in reader_of(env).records(6)] == list(range(6, COUNT))
    data = read(env, LOG)
    size = len(data) // COUNT
    write(env, LOG, data[: 6 * size] + data[7 * size :])
    with pytest.raises(CorruptBatch) as caught:
        list(reader_of(env).records(6))
    assert caught.value.position == 5 * size
    assert [record.offset for record in reader_of(env).records(7)] == list(range(7, COUNT))


def test_no_search_by_a_stamped_append_time_passes_over_a_damaged_batch() -> None:
    env, directory, log = new_log(STAMPED)
    for _ in range(COUNT):
        put(log, 0)
        env.clock.advance(1000)
    first = log.append_time_of(0)
    assert first is not None
    directory.close()
    name = LOG.replace(".log", ".appendtime")
    env.files.remove(f"/data/t-0/{name}")
    data = bytearray(read(env, LOG))
    size = len(data) // COUNT
    for byte in range(8):
        data[size * 5 + MAX_TIMESTAMP_AT + byte] = 0
    write(env, LOG, bytes(data))
    with pytest.raises(CorruptBatch) as caught:
        reader_of(env).offset_for_time(first + 5000, clock=ClockName.APPEND)
    assert caught.value.position == size * 5
