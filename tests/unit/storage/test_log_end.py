"""Opening neither cuts off nor skips bytes at the end of a log that were once valid."""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults import Keep, SeededEnv, seeded_env
from tests.faults import reopen as reopen_disk
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    fill,
    new_log,
    offsets,
    path_of,
    put,
    read,
    reopen,
    write,
)
from tests.worlds.repetition import rarely

from tidelog.errors import (
    CorruptBatch,
    CorruptFile,
    DamagedLog,
    OffsetsGone,
    StorageFailure,
    TidelogError,
)
from tidelog.scan.plan import plan
from tidelog.scan.reader import ReadOptions, to_table
from tidelog.storage.checks import DirectoryCheck, Finding, set_aside
from tidelog.storage.checks.repair import repair
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import write_atomically
from tidelog.storage.log.log_reader import LogView
from tidelog.types import INT64_MAX, ClockName

LOG = "00000000000000000000.log"
MARKER = f"{PATH}/.kafka_cleanshutdown"
POINTS = f"{PATH}/recovery-point-offset-checkpoint"
SIZE = 70
COUNT = 8
BAD = 3

# Header bits (byte, bit) of a batch that no checksum covers: in base offset, length and magic.
FLIPS = [
    (7, 0),
    (6, 2),
    (3, 0),  # an offset that the segment can't hold
    (0, 7),
    (11, 3),
    (10, 0),  # a length that reaches into later batches
    (8, 7),
    (16, 6),
    *(rarely(*flip) for flip in [(7, 1), (7, 2), (16, 0)]),
]


def stopped(*, clean: bool, count: int = COUNT) -> SeededEnv:
    """Create a log of `count` batches of 70 bytes; close it, or kill the writer."""
    env, directory, log = new_log()
    for time in range(count):
        put(log, time)
    assert len(read(env, LOG)) == count * SIZE
    if clean:
        directory.close()
    else:
        directory.abandon()
    return env


def flip(env: SeededEnv, at: int, bit: int) -> bytes:
    data = bytearray(read(env, LOG))
    data[at] ^= 1 << bit
    write(env, LOG, bytes(data))
    return bytes(data)


def before_damage(env: SeededEnv) -> tuple[list[int], CorruptBatch | None]:
    """Return the offsets that a reader returns, and the error that ends the read, if any."""
    return drain(LogDir.open(PATH, env=env).reader(TOPIC, 0))


def drain(reader: LogView) -> tuple[list[int], CorruptBatch | None]:
    found: list[int] = []
    try:
        for record in reader.records():
            found.append(record.offset)  # noqa: PERF401 - offsets before an error count
    except CorruptBatch as error:
        return found, error
    return found, None


def log_time(reader: LogView, clock: ClockName) -> int | None:
    """Search for the largest time.

    Return the offset of the record with that time, -1 if no record has a time, None on damage.
    """
    with suppress(CorruptBatch):
        found = reader.offset_for_time(INT64_MAX, clock=clock)
        return -1 if found is None else found.offset
    return None


def scan(env: SeededEnv) -> list[int]:
    """Return the offsets of a scan."""
    splits = plan(LogDir.open(PATH, env=env), TOPIC).splits
    table = to_table(splits, ("offset",), options=ReadOptions(env=env))
    return [int(offset or 0) for offset in table["offset"].to_pylist()]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("at", "bit"), FLIPS)
class TestOneFlippedBit:
    def test_is_refused_by_an_opening_which_changes_no_byte(
        self, at: int, bit: int, *, clean: bool
    ) -> None:
        env = stopped(clean=clean)
        damaged = flip(env, BAD * SIZE + at, bit)
        for _ in range(2):
            directory, log = reopen(env)
            with pytest.raises(CorruptBatch) as caught:
                put(log, 9)
            assert (caught.value.path, caught.value.position) == (path_of(LOG), BAD * SIZE)
            assert caught.value.offset == BAD
            assert caught.value.code == StorageFailure.code
            assert drain(log)[0] == [0, 1, 2]
            assert any("nothing is truncated" in line for line in directory.reports)
            directory.close()
            assert read(env, LOG) == damaged

    def test_ends_no_reader_in_silence(self, at: int, bit: int, *, clean: bool) -> None:
        env = stopped(clean=clean)
        flip(env, BAD * SIZE + at, bit)
        found, error = before_damage(env)
        assert found == [0, 1, 2]
        assert error is not None
        assert error.position == BAD * SIZE
        directory = LogDir.open(PATH, env=env)
        with pytest.raises(CorruptBatch):
            scan(env)
        with pytest.raises(CorruptBatch):
            directory.reader(TOPIC, 0).offset_for_time(COUNT)


@pytest.mark.parametrize(("at", "bit"), [*FLIPS, (69, 0)])
def test_the_last_batch_of_a_closed_log_is_refused_too(at: int, bit: int) -> None:
    env = stopped(clean=True)
    damaged = flip(env, (COUNT - 1) * SIZE + at, bit)
    found, error = before_damage(env)
    assert found == list(range(COUNT - 1))
    assert error is not None
    if at == 69:
        return  # opening succeeds: it verifies frames (all valid), but no checksums
    _, log = reopen(env)
    with pytest.raises(DamagedLog):
        put(log, 9)
    assert read(env, LOG) == damaged


@pytest.mark.parametrize(("at", "bit"), [(8, 2), (9, 0), (10, 3), (11, 3)])
@pytest.mark.parametrize("clean", [True, False])
def test_a_length_beyond_the_end_stops_no_reader_if_indexes_have_the_end(
    at: int, bit: int, *, clean: bool
) -> None:
    env, directory, log = new_log({"index.interval.bytes": "0"})
    for time in range(COUNT):
        put(log, time)
    directory.checkpoint()
    (directory.close if clean else directory.abandon)()
    damaged = flip(env, at, bit)
    found, error = before_damage(env)
    assert error is not None
    assert (found, error.position) == ([], 0)
    with pytest.raises(CorruptBatch) as caught:
        scan(env)
    assert caught.value.position == 0
    _, log = reopen(env)
    found, error = drain(log)
    assert error is not None
    assert (found, error.position) == ([], 0)
    with suppress(CorruptBatch):  # if damage precedes the last index entry, the append succeeds
        put(log, 9)
    assert read(env, LOG).startswith(damaged)


@pytest.mark.parametrize("size", [0, 1, SIZE, SIZE + 20, (COUNT - 1) * SIZE])
def test_a_closed_log_that_was_cut_is_refused(size: int) -> None:
    env = stopped(clean=True)
    write(env, LOG, read(env, LOG)[:size])
    found, error = before_damage(env)
    assert found == list(range(size // SIZE))
    assert error is not None
    assert error.offset == size // SIZE
    with pytest.raises(CorruptBatch):
        scan(env)
    seen = LogDir.open(PATH, env=env).reader(TOPIC, 0)
    times = [log_time(seen, clock) for clock in ClockName]
    with pytest.raises(CorruptBatch):
        seen.max_timestamp()
    assert times == [None, None]
    directory, log = reopen(env)
    with pytest.raises(DamagedLog):
        put(log, 9)
    assert log.log_end_offset == COUNT
    directory.close()
    assert len(read(env, LOG)) == size


def test_only_that_partition_refuses_appends_and_the_directory_closes_cleanly() -> None:
    env = stopped(clean=True)
    directory, _ = reopen(env)
    directory.create_topic("other")
    directory.close()
    flip(env, BAD * SIZE + 7, 0)
    directory, log = reopen(env)
    put(directory.log("other", 0), 1)
    assert isinstance(log.failure, DamagedLog)
    directory.close()
    assert env.files.exists(MARKER)
    directory, _ = reopen(env)
    assert offsets(directory.reader("other", 0).records()) == [0]


class TestAfterAHardStop:
    def test_damage_below_the_recovery_point_is_refused(self) -> None:
        env = stopped(clean=True)
        env.files.remove(MARKER)
        damaged = flip(env, (COUNT - 1) * SIZE + 69, 0)
        _, log = reopen(env)
        with pytest.raises(DamagedLog, match=f"below offset {COUNT} were on disk"):
            put(log, 9)
        assert read(env, LOG) == damaged

    def test_a_later_segment_is_not_dropped_after_damage(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 40)
        bases = [segment.base_offset for segment in log.segments]
        directory.abandon()
        name = f"{bases[1]:020d}.log"
        data = bytearray(read(env, name))
        data[-1] ^= 1
        write(env, name, bytes(data))
        _, log = reopen(env)
        assert [segment.base_offset for segment in log.segments] == bases
        with pytest.raises(
            DamagedLog, match=f"later segment with base offset {bases[2]} begins with"
        ):
            put(log, 9)

    @pytest.mark.parametrize("first", [0, COUNT - 2, 2**40, -1])
    def test_a_whole_batch_with_impossible_offsets_hides_no_earlier_one(self, first: int) -> None:
        env = stopped(clean=False)
        at = (COUNT - 1) * SIZE
        data = bytearray(read(env, LOG))
        data[at : at + 8] = first.to_bytes(8, "big", signed=True)
        write(env, LOG, bytes(data))
        found, error = before_damage(env)
        assert found == list(range(COUNT - 1))
        assert error is not None
        assert (error.position, error.offset) == (at, COUNT - 1)
        with pytest.raises(CorruptBatch):
            scan(env)
        _, log = reopen(env)
        assert log.log_end_offset == COUNT
        assert drain(log)[0] == list(range(COUNT - 1))
        assert read(env, LOG) == bytes(data)

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_batch_that_was_written_twice_hides_none_before_it(self, *, clean: bool) -> None:
        env = stopped(clean=clean)
        write(env, LOG, read(env, LOG) + read(env, LOG)[-SIZE:])
        found, error = before_damage(env)
        assert found == list(range(COUNT))
        assert clean == (error is None)
        _, log = reopen(env)
        assert log.log_end_offset == COUNT + (not clean)
        with pytest.raises(DamagedLog):
            put(log, 9)

    def test_a_gap_that_a_follower_has_written_is_trusted(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        twin, _, source = new_log()
        for time in range(20):
            put(source, time)
        data = read(twin, LOG)
        log.follower.append(data[9 * SIZE : 10 * SIZE])
        directory.abandon()
        _, log = reopen(env)
        assert log.log_end_offset == 10
        assert offsets(log.records()) == [0, 9]


def rubbish() -> Iterator[Callable[[bytes], bytes]]:
    """Yield functions that damage a log's end like a power loss: no valid batch follows."""
    yield lambda data: data[: -SIZE // 2] + bytes(3000)
    yield lambda data: data[:-SIZE] + bytes(SIZE)
    yield lambda data: data[:-1] + b"\xff"
    yield lambda data: data + b"\xa5" * 500
    yield lambda data: data + data[:SIZE][:40]


@pytest.mark.parametrize("tear", list(rubbish()))
def test_a_torn_end_is_cut_off(tear: Callable[[bytes], bytes]) -> None:
    env = stopped(clean=False)
    write(env, LOG, tear(read(env, LOG)))
    found, error = before_damage(env)
    assert error is None
    _, log = reopen(env)
    assert log.failure is None
    assert offsets(log.records()) == found
    put(log, 9)
    assert offsets(log.records()) == [*found, len(found)]


def test_a_live_writer_s_unfinished_batch_is_no_damage() -> None:
    env, directory, log = new_log()
    put(log, 1)
    directory.checkpoint()
    put(log, 2)
    whole = read(env, LOG)
    write(env, LOG, whole[:-10])
    assert before_damage(env) == ([0], None)


class TestSettingDamageAside:
    """`tidelog doctor --repair` keeps each valid batch, and moves the rest into other files."""

    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize(("at", "bit"), FLIPS)
    def test_one_batch_is_set_aside_and_the_log_accepts_appends_again(
        self, at: int, bit: int, *, clean: bool
    ) -> None:
        env = stopped(clean=clean)
        whole = read(env, LOG)
        damaged = flip(env, BAD * SIZE + at, bit)
        (finding,) = [each for each in mend_all(env) if "does not cut this off" in each.damage]
        assert (finding.position, finding.offset) == (BAD * SIZE, BAD)
        assert f"offset {BAD} is lost" in finding.remedy
        aside = read(env, f"{LOG}.{BAD * SIZE}.aside")
        assert aside == damaged[BAD * SIZE : (BAD + 1) * SIZE]
        kept = [offset for offset in range(COUNT) if offset != BAD]
        assert read(env, LOG) == whole[: BAD * SIZE]
        assert read(env, f"{BAD + 1:020d}.log") == whole[(BAD + 1) * SIZE :]
        _, log = reopen(env)
        assert there(log) == kept
        if clean:  # after a hard stop, times without a row are unknown
            assert None not in [log.append_time_of(offset) for offset in kept]
        put(log, 9)
        assert there(log) == [*kept, COUNT]

    @pytest.mark.parametrize("stop", ["clean", "hard", "checkpointed"])
    @pytest.mark.parametrize("bad", [BAD, COUNT - 1, rarely(0), rarely(COUNT - 2)])
    @pytest.mark.parametrize(("at", "bit"), FLIPS)
    def test_findings_of_a_refused_log_name_that_batch_alone(
        self, at: int, bit: int, bad: int, stop: str
    ) -> None:
        """No finding says that opening will cut the log, or that a valid batch is lost."""
        env, directory, log = new_log()
        for time in range(COUNT):
            put(log, time)
        if stop == "clean":
            directory.close()
        else:
            if stop == "checkpointed":
                log.flush()
                directory.checkpoint()
            directory.abandon()
        flip(env, bad * SIZE + at, bit)
        found = [each for each in mend_all(env) if each.path == path_of(LOG)]
        if not any("does not cut this off" in each.damage for each in found):
            assert stop == "hard"
            assert bad == COUNT - 1
            return
        assert {each.position for each in found} == {bad * SIZE}
        assert not any("cuts them off" in each.remedy for each in found)
        assert not any("truncates the file" in each.remedy for each in found)
        _, log = reopen(env)
        assert there(log) == [offset for offset in range(COUNT) if offset != bad]

    def test_after_a_hard_stop_damage_in_an_earlier_segment_is_set_aside(self) -> None:
        env, directory, log = new_log()
        put(log, 0)
        log.flush()
        directory.checkpoint()
        for time in range(1, COUNT):
            put(log, time)
        log.roll()
        put(log, COUNT)
        directory.abandon()
        flip(env, BAD * SIZE + 40, 3)
        mend_all(env)
        _, log = reopen(env)
        put(log, 9)
        kept = [offset for offset in range(COUNT + 1) if offset != BAD]
        assert there(log) == [*kept, COUNT + 1]

    def test_no_offset_is_assigned_twice_after_the_end_was_lost(self) -> None:
        env = stopped(clean=True)
        write(env, LOG, read(env, LOG)[: 5 * SIZE + 20])
        mend_all(env)
        _, log = reopen(env)
        put(log, 9)
        assert there(log) == [0, 1, 2, 3, 4, COUNT]

    def test_each_damaged_batch_is_set_aside_on_its_own(self) -> None:
        env = stopped(clean=True)
        for bad in (0, 2, 5):
            flip(env, bad * SIZE + 11, 3)
        mend_all(env)
        _, log = reopen(env)
        assert there(log) == [1, 3, 4, 6, 7]

    def test_a_repair_with_too_many_damaged_spans_names_the_next_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(set_aside, "DAMAGES_MAX", 2)
        env = stopped(clean=True)
        for bad in (0, 2, 5):
            flip(env, bad * SIZE + 11, 3)
        check = DirectoryCheck(env.files, PATH, clock=env.clock)
        (problem,) = repair(env, check, [*check.load(), *check.findings()])
        assert "damaged ranges were set aside before it: repair again" in problem
        mend_all(env)
        _, log = reopen(env)
        assert there(log) == [1, 3, 4, 6, 7]

    def test_a_repair_that_a_crash_cut_short_is_begun_again(self) -> None:
        env = stopped(clean=True)
        flip(env, BAD * SIZE + 7, 2)
        env.files.settle()
        mend_all(env)
        for state in env.files.prefixes(Keep.SYNCED):
            again = seeded_env(2, files=reopen_disk(state))
            mend_all(again)
            _, log = reopen(again)
            put(log, 9)
            assert there(log) == [0, 1, 2, 4, 5, 6, 7, COUNT]


def there(log: LogView) -> list[int]:
    """Return the offsets of all records; offsets that a repair has recorded as lost are skipped."""
    found: list[int] = []
    for each in range(log.log_end_offset):
        with suppress(OffsetsGone):
            found += offsets(log.records(each, each + 1))
    return found


def mend_all(env: SeededEnv) -> list[Finding]:
    """Check and repair as `tidelog doctor --repair` does, and return the findings."""
    check = DirectoryCheck(env.files, PATH, clock=env.clock)
    found = [*check.load(), *check.findings()]
    repair(env, check, found)
    return found


class TestCheckpointsThatCannotBe:
    def test_a_checkpoint_of_the_largest_offset_is_reported_and_not_trusted(self) -> None:
        for name in ("log-start", "recovery-point"):
            env = stopped(clean=True)
            path = f"{PATH}/{name}-offset-checkpoint"
            write_text(env, path, f"0\n1\n{TOPIC} 0 {2**63 - 1}\n")
            directory, log = reopen(env)
            put(log, 9)
            assert offsets(log.records()) == list(range(COUNT + 1))
            assert any(path in line for line in directory.reports)

    def test_a_log_start_above_the_end_of_a_clean_stop_is_not_trusted(self) -> None:
        env = stopped(clean=True)
        write_text(env, f"{PATH}/log-start-offset-checkpoint", f"0\n1\n{TOPIC} 0 900\n")
        reading = LogDir.open(PATH, env=env)
        assert offsets(reading.reader(TOPIC, 0).records()) == list(range(COUNT))
        directory, log = reopen(env)
        assert log.log_start_offset == 0
        put(log, 9)
        assert offsets(log.records()) == list(range(COUNT + 1))
        for each in (reading, directory):
            assert any("after its end offset 8 at the clean stop" in line for line in each.reports)

    def test_a_recovery_point_above_the_end_that_the_close_noted_is_not_trusted(self) -> None:
        env = stopped(clean=True)
        write_text(env, POINTS, f"0\n1\n{TOPIC} 0 900\n")
        assert before_damage(env) == (list(range(COUNT)), None)
        directory, log = reopen(env)
        put(log, 9)
        assert log.log_end_offset == COUNT + 1
        assert any("the recovery point is ignored" in line for line in directory.reports)


def write_text(env: SeededEnv, path: str, text: str) -> None:
    write_atomically(env.files, path, text.encode())


class TestOddFiles:
    """Entries of the directory that are no regular files, on a real disk."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        with LogDir.open(f"{tmp_path}/data", options=LogDirOptions(create=True)) as made:
            made.create_topic(TOPIC)
            for time in range(3):
                put(made.log(TOPIC, 0), time)
        return tmp_path / "data" / f"{TOPIC}-0"

    @pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint", LOG])
    def test_a_fifo_is_never_waited_for(self, directory: Path, name: str) -> None:
        (directory / name).unlink()
        os.mkfifo(directory / name)
        with LogDir.open(f"{directory.parent}") as opened:
            try:
                found = offsets(opened.reader(TOPIC, 0).records())
            except TidelogError as error:
                assert "a FIFO" in str(error)  # noqa: PT017 - either outcome is right
            else:
                assert found == [0, 1, 2]

    def test_a_broken_link_is_reported(self, directory: Path) -> None:
        (directory / f"{3:020d}.log").symlink_to("/nowhere/at/all")
        for options in (LogDirOptions(), LogDirOptions(writable=True)):
            with (
                LogDir.open(f"{directory.parent}", options=options) as opened,
                pytest.raises(CorruptFile, match=r"3\.log: a symbolic link without a target"),
            ):
                opened.reader(TOPIC, 0)

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_linked_log_is_read_and_never_written(self, directory: Path, *, clean: bool) -> None:
        outside = directory.parent.parent / "outside.log"
        (directory / LOG).rename(outside)
        (directory / LOG).symlink_to(outside)
        outside.write_bytes(whole := outside.read_bytes() + b"somebody's")
        if not clean:
            (directory.parent / ".kafka_cleanshutdown").unlink()
        with LogDir.open(f"{directory.parent}", options=LogDirOptions(writable=True)) as opened:
            log = opened.log(TOPIC, 0)
            with pytest.raises(DamagedLog, match="a symbolic link"):
                put(log, 9)
            assert offsets(log.records()) == [0, 1, 2]
        assert outside.read_bytes() == whole


@pytest.mark.parametrize(
    ("numbers", "count", "proof"),
    [
        (struct.pack(">5i", 0, 7, 60, 3, 5), 12_000, "a sound batch follows"),
        (struct.pack(">4ib", 0, 7, 60, 3, 2), 25_000, "too many later positions look like batches"),
    ],
)
def test_numbers_that_look_like_batches_hide_no_valid_ones(
    numbers: bytes, count: int, proof: str
) -> None:
    env, directory, log = new_log()
    put(log, 1, value=numbers * count)
    for time in range(3):
        put(log, time, value=b"sound")
    directory.abandon()
    before = flip(env, 8, 6)  # a length that exceeds the end of the log
    directory, log = reopen(env)
    with pytest.raises(DamagedLog, match=proof):
        put(log, 4)
    directory.close()
    assert read(env, LOG) == before
    (finding,) = [each for each in mend_all(env) if "does not cut this off" in each.damage]
    assert "offset 0 is lost" in finding.remedy
    assert read(env, f"{LOG}.0.aside") + read(env, f"{1:020d}.log") == before
    _, log = reopen(env)
    assert there(log) == [1, 2, 3]


@pytest.mark.parametrize("bit", [0, 1, 6, *map(rarely, (2, 3, 4, 5, 7))])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("bad", [0, BAD, COUNT - 1])
def test_a_batch_with_a_flipped_magic_is_never_truncated(
    bad: int, bit: int, *, clean: bool
) -> None:
    """If the magic is wrong and the checksum correct, the batch was complete, and it is kept."""
    env = stopped(clean=clean)
    damaged = flip(env, bad * SIZE + 16, bit)
    found, error = before_damage(env)
    assert found == list(range(bad))
    assert error is not None
    assert (error.path, error.position) == (path_of(LOG), bad * SIZE)
    if clean and bit == 1:
        return  # opening succeeds: a frame of magic 0 is valid, and no checksum is verified
    directory, log = reopen(env)
    with pytest.raises(DamagedLog):
        put(log, 9)
    directory.close()
    assert read(env, LOG) == damaged
    if not clean and bad == COUNT - 1:
        (finding,) = [each for each in mend_all(env) if "does not cut this off" in each.damage]
        assert "the batch's checksum is right if its magic is 2" in finding.damage
        assert read(env, f"{LOG}.{bad * SIZE}.aside") == damaged[bad * SIZE :]
