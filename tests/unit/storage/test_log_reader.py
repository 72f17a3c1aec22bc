"""A partition as a reader sees it: the current files, and damage in them."""

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    fill,
    new_log,
    offsets,
    put,
    read,
    reader_of,
    reopen,
    snapshot_of,
    values,
    write,
)

from tidelog.errors import CorruptBatch, OffsetOutOfRange
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import read_file, write_atomically
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import ClockName, IsolationLevel, NewRecord

COMMITTED = IsolationLevel.READ_COMMITTED
FIRST_LOG = "00000000000000000000.log"


def finished_of(log: LogView) -> ClosedSegment:
    """Return the first segment of a log, which is finished."""
    segment = log.segments[0]
    assert isinstance(segment, ClosedSegment)
    return segment


def test_a_refresh_shows_appended_and_rolled_records() -> None:
    env, _, log = new_log(SMALL)
    fill(log, 3)
    reader = reader_of(env)
    fill(log, 30)
    assert reader.log_end_offset == 3
    reader.refresh()
    assert offsets(reader.records()) == list(range(33))
    assert len(reader.segments) == len(log.segments) > 2


def test_refresh_after_the_last_segment_was_cut_and_written_again() -> None:
    """A new file has replaced the last segment's file; the reader must not use the old handle."""
    env, _, log = new_log()
    put(log, 1, 2, 3, value=b"old")
    reader = reader_of(env)
    assert values(reader.records()) == [b"old"] * 3
    log.roll()
    put(log, 5)
    log.truncate_to(0)
    put(log, 1, 2, 3, value=b"new")
    reader.refresh()
    assert values(reader.records()) == [b"new"] * 3


@pytest.mark.parametrize("anew", [False, True])
def test_refresh_after_a_closed_segment_was_cut_and_written_again(*, anew: bool) -> None:
    """When the file was replaced, neither the reader nor its directory may use the old map."""
    env, _, log = new_log()
    put(log, 1, 2, 3, value=b"old")
    log.roll()
    put(log, 5)
    directory = LogDir.open(PATH, env=env)
    reader = directory.reader(TOPIC, 0)
    assert values(reader.records()) == [b"old"] * 3 + [b"v"]
    log.truncate_to(0)
    put(log, 1, 2, 3, value=b"new")
    log.roll()
    put(log, 6)
    if anew:
        directory.refresh()
        reader = directory.reader(TOPIC, 0)
    else:
        reader.refresh()
    assert values(reader.records()) == [b"new"] * 3 + [b"v"]


def test_refresh_reads_a_zone_map_of_changed_append_times_again() -> None:
    """A map of the old times in memory would prune nothing, although the disk has the new map."""
    env, _, log = new_log()
    put(log, 1, 2, 3)
    log.roll()
    put(log, 5)
    reader = LogDir.open(PATH, env=env).reader(TOPIC, 0)
    segment = finished_of(reader)
    assert segment.zones_on(ClockName.APPEND) is not None
    path = f"{PATH}/{TOPIC}-0/{0:020}.appendtime"
    write_atomically(env.files, path, read_file(env.files, path)[:28])
    assert zone_map_files.write(finished_of(LogDir.open(PATH, env=env).reader(TOPIC, 0)))
    reader.refresh()
    assert finished_of(reader) is segment
    assert segment.zones_on(ClockName.APPEND) is not None


def test_kernels_forget_files_that_were_cut() -> None:
    _, _, log = new_log()
    log.use_kernels()
    put(log, 10, 20, 30)
    log.roll()
    put(log, 40)
    assert log.offset_for_time(15) is not None
    log.truncate_to(1)
    put(log, 7, 8, 9, 99)
    log.roll()
    put(log, 100)
    found = log.offset_for_time(15)
    assert found is not None
    assert (found.offset, found.timestamp) == (3, 99)


def test_a_partition_without_segments_has_no_results() -> None:
    env, directory, _ = new_log()
    directory.create_topic("bare")
    directory.close()
    reader = LogDir.open(PATH, env=env).reader("bare", 0)
    assert reader.segments == []
    assert (reader.log_start_offset, reader.log_end_offset) == (0, 0)
    assert list(reader.records()) == []
    assert reader.offset_for_time(5) is None
    assert reader.max_timestamp() is None
    assert reader.append_time_of(0) is None


def test_an_empty_segment_in_the_middle_has_no_records() -> None:
    """Another program's cleaner may leave a segment without records and without append times."""
    env, directory, log = new_log({"cleanup.policy": "compact"})
    log.append([NewRecord(key=b"k", value=b"v", timestamp=1)])
    directory.close()
    for base in (5, 9):
        write(env, f"{base:020d}.log", b"")
    reader = reader_of(env)
    assert reader.log_end_offset == 9
    assert reader.append_time_of(6) is None
    assert offsets(reader.records()) == [0]
    assert reader.offset_for_time(2) is None


def test_read_outside_the_log_is_refused() -> None:
    _, _, log = new_log()
    put(log, 1, 2, 3)
    log.delete_records(1)
    for start in (0, -1, 4):
        with pytest.raises(OffsetOutOfRange):
            list(log.records(start))
    assert list(log.records(3)) == []
    assert offsets(log.records(1, 2)) == [1]


class TestForeignIndexes:
    """Missing or damaged indexes are rebuilt in memory and reported."""

    @pytest.mark.parametrize(
        "damage", ["missing", "zero tail", "zeros", "torn", "falling", "beyond", "empty"]
    )
    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    def test_results_do_not_change_and_no_file_is_written(self, damage: str, suffix: str) -> None:
        env, directory, log = new_log(SMALL)
        for time in range(30):
            put(log, (time * 7) % 30, value=b"x" * 50)
        bases = [segment.base_offset for segment in log.segments]
        expected = [log.offset_for_time(time) for time in range(32)]
        directory.close()
        for base in bases[:-1]:
            name = f"{base:020d}{suffix}"
            changed = damaged(read(env, name), damage, suffix)
            if changed is None:
                env.files.remove(f"{PATH}/{TOPIC}-0/{name}")
            else:
                write(env, name, changed)
        before = snapshot_of(env)
        opened = LogDir.open(PATH, env=env)
        reader = opened.reader(TOPIC, 0)
        assert [reader.offset_for_time(time) for time in range(32)] == expected
        assert offsets(reader.records()) == list(range(30))
        assert offsets(reader.records(17, 19)) == [17, 18]
        assert snapshot_of(env) == before
        # An empty offset index is valid if every batch is within one index interval from the start.
        if not (damage == "empty" and suffix == ".index"):
            assert len(opened.reports) >= len(bases) - 1


def damaged(data: bytes, damage: str, suffix: str) -> bytes | None:
    size = 8 if suffix == ".index" else 12
    return {
        "missing": None,
        "zero tail": data + bytes(10 * size),
        "zeros": bytes(max(2 * size, len(data))),
        "torn": data + b"\x01",
        "falling": data + data[:size],
        "beyond": data + b"\x7f" * size if suffix == ".index" else data + b"\x80" + bytes(size - 1),
        "empty": b"",
    }[damage]


def test_a_torn_indexed_batch_ends_the_log_and_hides_no_earlier_record() -> None:
    """The last batch's index entry reached the disk, but the batch itself did not."""
    env, directory, log = new_log({"index.interval.bytes": "0"})
    for time in range(4):
        put(log, time)
    directory.abandon()
    data = bytearray(read(env, FIRST_LOG))
    data[-1] ^= 1
    write(env, FIRST_LOG, bytes(data))
    reader = reader_of(env)
    assert reader.log_end_offset == 3
    assert offsets(reader.records()) == [0, 1, 2]
    found = reader.max_timestamp()
    assert found is not None
    assert found.offset == 2


def test_a_damaged_batch_names_file_and_position_and_harms_nothing_else() -> None:
    env, directory, log = new_log(SMALL)
    fill(log, 20)
    log.roll()
    fill(log, 2)
    bases = [segment.base_offset for segment in log.segments]
    directory.close()
    data = bytearray(read(env, FIRST_LOG))
    size = len(data) // bases[1]
    data[2 * size + 80] ^= 1
    write(env, FIRST_LOG, bytes(data))
    reader = reader_of(env)
    seen: list[int] = []
    with pytest.raises(CorruptBatch) as caught:
        seen.extend(record.offset for record in reader.records())
    assert seen == [0, 1]
    assert caught.value.path == f"{PATH}/{TOPIC}-0/{FIRST_LOG}"
    assert caught.value.position == 2 * size
    assert caught.value.offset == 2
    assert offsets(reader.records(3)) == list(range(3, 22))
    assert offsets(reader.records(0, 2)) == [0, 1]


def test_a_range_before_a_frame_that_cannot_be_is_read() -> None:
    env, directory, log = new_log()
    put(log, 1)
    put(log, 2)
    log.roll()
    directory.close()
    data = bytearray(read(env, FIRST_LOG))
    data[70 + 8] = 0xFF
    write(env, FIRST_LOG, bytes(data))
    reader = reader_of(env)
    assert offsets(reader.records(0, 1)) == [0]
    with pytest.raises(CorruptBatch, match="position 70"):
        list(reader.records(1))


class TestOffsetsOutOfOrder:
    """No checksum covers a batch's offsets, so their order and bounds are checked.

    No record may be returned with the offset of another record.
    """

    @pytest.mark.parametrize(
        "wrong", [0, 2, 2**40, -5], ids=["again", "backwards", "beyond the segment", "negative"]
    )
    def test_reading_raises_instead_of_handing_out_wrong_offsets(self, wrong: int) -> None:
        env, directory, log = new_log({"index.interval.bytes": "1000000"})
        fill(log, 6)
        log.roll()
        fill(log, 1)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        size = len(data) // 6
        data[3 * size : 3 * size + 8] = wrong.to_bytes(8, "big", signed=True)
        write(env, FIRST_LOG, bytes(data))
        reader = reader_of(env)
        seen: list[int] = []
        with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position {3 * size}"):
            seen.extend(record.offset for record in reader.records())
        assert seen == [0, 1, 2]

    def test_a_last_segment_that_was_closed_is_damaged_there(self) -> None:
        env, directory, log = new_log()
        fill(log, 4)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        size = len(data) // 4
        data[2 * size : 2 * size + 8] = (1).to_bytes(8, "big")
        write(env, FIRST_LOG, bytes(data))
        opened = LogDir.open(PATH, env=env)
        reader = opened.reader(TOPIC, 0)
        seen: list[int] = []
        with pytest.raises(CorruptBatch, match="offset 1, expected 2 or more"):
            seen.extend(record.offset for record in reader.records())
        assert reader.log_end_offset == 4
        assert any("offset 1, expected 2 or more" in line for line in opened.reports)


class TestDamageUnderLostIndexes:
    """After an index is rebuilt, a search must not deny a record that damage may hide."""

    @pytest.mark.parametrize("lost", ["", None])
    def test_a_lookup_reports_the_damage(self, lost: str | None) -> None:
        env, directory, log = new_log()
        for time in (10, 20, 30):
            put(log, time)
        log.roll()
        put(log, 99)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        data[70 + 8] = 0xFF
        write(env, FIRST_LOG, bytes(data))
        name = "00000000000000000000.timeindex"
        if lost is None:
            env.files.remove(f"{PATH}/{TOPIC}-0/{name}")
        else:
            write(env, name, b"")
        for _ in range(2):
            reader = reader_of(env)
            found = reader.offset_for_time(5)
            assert found is not None
            assert found.offset == 0
            with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
                reader.offset_for_time(25)
            with pytest.raises(CorruptBatch, match=f"{FIRST_LOG}, position 70"):
                reader.max_timestamp()
            # A writer must not store an index of only the part before the damage.
            directory, log = reopen(env)
            assert len(log.apply_retention()) == 0
            directory.close()

    def test_retention_uses_the_times_that_can_be_read(self) -> None:
        env, directory, log = new_log({"retention.ms": "100"})
        put(log, 10)
        put(log, 20)
        log.roll()
        put(log, START_MS)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        data[70 + 8] = 0xFF
        write(env, FIRST_LOG, bytes(data))
        env.files.remove(f"{PATH}/{TOPIC}-0/00000000000000000000.timeindex")
        _, log = reopen(env)
        assert [deletion.base_offset for deletion in log.apply_retention()] == [0]

    @pytest.mark.parametrize(
        ("has_map", "says"), [(True, "checksum in its zone map"), (False, "or none; rebuilt")]
    )
    def test_an_index_of_another_file_is_not_used(self, has_map: bool, says: str) -> None:
        """The index keeps all rules of an index, but its positions are in the middle of batches."""
        env, directory, log = new_log({"index.interval.bytes": "0"})
        for number in range(10):
            put(log, number, value=b"x" * number)
        log.roll()
        put(log, 99)
        directory.close()
        index = bytearray(read(env, "00000000000000000000.index"))
        for at in range(7, len(index), 8):
            index[at] -= 3
        write(env, "00000000000000000000.index", bytes(index))
        if not has_map:
            env.files.remove(f"{PATH}/{TOPIC}-0/00000000000000000000.zones")
        opened = LogDir.open(PATH, env=env)
        reader = opened.reader(TOPIC, 0)
        assert offsets(reader.records(5)) == [5, 6, 7, 8, 9, 10]
        found = reader.offset_for_time(6)
        assert found is not None
        assert found.offset == 6
        assert any(says in line for line in opened.reports)
