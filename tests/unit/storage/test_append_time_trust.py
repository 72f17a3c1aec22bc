"""Trust in append times: after other writers, crashes and lost files."""

from collections.abc import Callable, Iterator

import pytest
from tests.faults import START_MS, SeededEnv
from tests.worlds.directories.logs import (
    SMALL,
    fill,
    new_log,
    new_records,
    path_of,
    put,
    read,
    reader_of,
    reopen,
    write,
)

from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch
from tidelog.storage.segment.append_time_trust import (
    AppendTimeCheckpoint,
    batch_ending_at,
    batch_starting_at,
    fingerprint,
    trusted_end,
)
from tidelog.types import ClockName

FIRST = "00000000000000000000"
CHECKPOINT = "append-time-checkpoint"


def timed(count: int = 4, config: dict[str, str] | None = None) -> SeededEnv:
    """Write a log of `count` records, 10 ms apart, and close it cleanly."""
    env, directory, log = new_log(config or {"index.interval.bytes": "0"})
    for _ in range(count):
        put(log, 1)
        env.clock.advance(10)
    directory.close()
    return env


def known(env: SeededEnv, count: int) -> list[int | None]:
    reader = reader_of(env)
    return [reader.append_time_of(offset) for offset in range(count)]


def own(count: int, start: int = 0) -> list[int | None]:
    return [START_MS + 10 * number for number in range(start, start + count)]


def append_foreign(env: SeededEnv, offset: int, epoch: int = 9) -> None:
    """Append a batch without append times, as another program does."""
    data = build_batch(new_records([1]), base_offset=offset, leader_epoch=epoch)
    write(env, f"{FIRST}.log", read(env, f"{FIRST}.log") + bytes(data))


class TestOthers:
    def test_only_records_of_other_writers_have_unknown_append_times(self) -> None:
        env = timed(3)
        append_foreign(env, 3)
        assert known(env, 4) == [*own(3), None]
        directory, log = reopen(env)
        put(log, 1)
        env.clock.advance(10)
        directory.close()
        assert known(env, 5) == [*own(3), None, START_MS + 30]

    def test_records_of_others_after_a_truncation_below_the_checkpoint_are_unknown(self) -> None:
        """Another program's records don't get the append times of the records that they replace."""
        env = timed(4)
        write(env, f"{FIRST}.log", read(env, f"{FIRST}.log")[:140])
        append_foreign(env, 2)
        append_foreign(env, 3)
        assert known(env, 4) == [START_MS, START_MS + 10, None, None]

    def test_a_log_cut_by_another_program_keeps_its_earlier_times(self) -> None:
        env = timed(4)
        write(env, f"{FIRST}.log", read(env, f"{FIRST}.log")[:140])
        assert known(env, 2) == own(2)

    def test_records_removed_by_another_cleaner_change_no_append_time(self) -> None:
        env = timed(4)
        data = read(env, f"{FIRST}.log")
        write(env, f"{FIRST}.log", data[:70] + data[140:])
        env.files.remove(path_of(f"{FIRST}.index"))
        assert known(env, 4)[0] == START_MS
        assert known(env, 4)[2:] == own(2, 2)


class TestLostFiles:
    def test_without_the_checkpoint_rows_are_proven_by_their_batches(self) -> None:
        env = timed(4)
        env.files.remove(path_of(CHECKPOINT))
        assert known(env, 4) == own(4)

    @pytest.mark.parametrize(
        "text", [b"", b"junk", b"0\n1\n1 2\n", b"0\n1\n4 x 5\n", b"0\n2\n4 3 5\n4 3 5\n", b"\xff"]
    )
    def test_a_damaged_checkpoint_is_none(self, text: bytes) -> None:
        env = timed(4)
        write(env, CHECKPOINT, text)
        assert AppendTimeCheckpoint.read(env.files, path_of("").rstrip("/")) is None
        assert known(env, 4) == own(4)

    def test_a_checkpoint_that_claims_too_much_is_not_trusted(self) -> None:
        env = timed(2)
        write(env, f"{FIRST}.appendtime", read(env, f"{FIRST}.appendtime")[:28])
        write(env, CHECKPOINT, b"0\n1\n99 0 12345\n")
        assert known(env, 2) == [None, None]

    def test_without_rows_nothing_is_known(self) -> None:
        env = timed(4)
        env.files.remove(path_of(f"{FIRST}.appendtime"))
        assert known(env, 4) == [None] * 4

    @pytest.mark.parametrize("place", range(28, 28 + 5 * 20, 7))
    def test_a_damaged_row_invalidates_only_later_rows(self, place: int) -> None:
        env = timed(4)
        data = bytearray(read(env, f"{FIRST}.appendtime"))
        assert len(data) == 28 + 5 * 20
        data[place] ^= 0x10
        write(env, f"{FIRST}.appendtime", bytes(data))
        row = (place - 28) // 20
        found = known(env, 4)
        assert found[: row - 1 if row else 0] == own(4)[: row - 1 if row else 0]
        assert all(time in {None, right} for time, right in zip(found, own(4), strict=True))
        assert found[row:] == [None] * len(found[row:])


class TestHardStop:
    def test_times_of_surviving_appends_are_kept(self) -> None:
        env, directory, log = new_log(SMALL)
        for _ in range(20):
            put(log, 1)
            env.clock.advance(10)
        log.flush()
        directory.abandon()
        _, log = reopen(env)
        found = [log.append_time_of(offset) for offset in range(20)]
        assert found == own(20)

    def test_records_of_one_time_that_only_the_next_row_would_end(self) -> None:
        """Later rows may be lost, so the last row proves the append time of only one append."""
        env, directory, log = new_log()
        put(log, 1)
        put(log, 1)
        directory.abandon()
        _, log = reopen(env)
        assert log.append_time_of(0) == START_MS
        assert log.append_time_of(1) in {START_MS, None}

    def test_lost_rows_make_their_records_unknown_for_good(self) -> None:
        env, directory, log = new_log()
        for _ in range(4):
            put(log, 1)
            env.clock.advance(10)
        directory.abandon()
        write(env, f"{FIRST}.appendtime", read(env, f"{FIRST}.appendtime")[: 28 + 2 * 20])
        directory, log = reopen(env)
        put(log, 1)
        assert [log.append_time_of(o) for o in range(5)] == [*own(2), None, None, START_MS + 40]
        directory.close()
        assert known(env, 5) == [*own(2), None, None, START_MS + 40]

    def test_rows_of_lost_records_are_dropped(self) -> None:
        env, directory, log = new_log()
        for _ in range(4):
            put(log, 1)
            env.clock.advance(10)
        directory.abandon()
        write(env, f"{FIRST}.log", read(env, f"{FIRST}.log")[:140])
        directory, log = reopen(env)
        env.clock.advance(1000)
        put(log, 1)
        assert [log.append_time_of(o) for o in range(3)] == [*own(2), START_MS + 1040]
        directory.close()
        assert known(env, 3) == [*own(2), START_MS + 1040]


class TestParts:
    def test_the_fingerprint_depends_on_epoch_and_offset(self) -> None:
        views = [
            RecordBatch(build_batch(new_records([time]), base_offset=offset, leader_epoch=epoch))
            for time, offset, epoch in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))
        ]
        assert len({fingerprint(view) for view in views}) == 4

    def test_trusted_end(self) -> None:
        _, _, log = new_log(SMALL)
        fill(log, 30)
        batches = [b for part in log.slices() for _, b in part.batches()]
        last = batches[20]
        right = AppendTimeCheckpoint(21, 20, fingerprint(last))
        assert trusted_end(right, log.segments) == 21
        assert trusted_end(None, log.segments) == 0
        assert trusted_end(AppendTimeCheckpoint(21, 20, 1), log.segments) == 0
        assert trusted_end(AppendTimeCheckpoint(99, 98, 1), log.segments) == 0
        assert trusted_end(AppendTimeCheckpoint(7, -1, 0), log.segments) == 7
        assert trusted_end(right, []) == 0

    @pytest.mark.parametrize("find", [batch_starting_at, batch_ending_at])
    def test_only_an_exact_place_is_a_place(self, find: Callable[..., object]) -> None:
        _, _, log = new_log()
        put(log, 1, 2, 3)
        put(log, 4, 5)
        (segment,) = log.segments
        places = {0, 3} if find is batch_starting_at else {3, 5}
        assert {n for n in range(7) if find(segment, n) is not None} == places


@pytest.mark.parametrize("bit", [0, 7, 31])
@pytest.mark.parametrize("number", [0, 5, 9])
@pytest.mark.parametrize("rolls", [False, True])
def test_records_that_a_flipped_leader_epoch_leaves_without_a_time_are_counted(
    rolls: bool, number: int, bit: int
) -> None:
    """If only the changed batch could prove an append time, the time counts as unknown."""
    env, directory, log = new_log()
    for at in range(10):
        env.clock.advance(10)
        put(log, at)
        if rolls and at == 5:
            log.roll()
    directory.close()
    name = f"{6 if rolls and number > 5 else 0:020}.log"
    data = bytearray(read(env, name))
    place = next(at for at, one in _placed(data) if one.base_offset == number)
    data[place + 15 - bit // 8] ^= 1 << bit % 8
    write(env, name, bytes(data))
    reader = reader_of(env)
    unknown = [offset for offset in range(10) if reader.append_time_of(offset) is None]
    assert reader.without_append_time() == len(unknown)
    for before in range(11):
        assert reader.without_append_time(before) == sum(offset < before for offset in unknown)
    if number == 9:
        assert number in unknown
    found = reader.offset_for_time(START_MS + 10_000, clock=ClockName.APPEND)
    assert found is None


def _placed(data: bytearray) -> Iterator[tuple[int, Batch]]:
    at = 0
    for batch in walk(data):
        yield at, batch
        at += batch.size_bytes
