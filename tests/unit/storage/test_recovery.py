"""Recovery after a hard stop: scanned segments, the cut, rebuilt files and reports."""

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    batch,
    fill,
    names,
    new_log,
    new_records,
    offsets,
    path_of,
    put,
    read,
    reader_of,
    reopen,
    watched,
    write,
)
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch, DamagedLog
from tidelog.record.builder import build_batch
from tidelog.record.legacy import build_legacy_message
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import Codec, IsolationLevel

FIRST = "00000000000000000000"
FIRST_LOG = f"{FIRST}.log"
MARKER = f"{PATH}/.kafka_cleanshutdown"


def stopped(count: int = 4, config: dict[str, str] | None = None) -> SeededEnv:
    """Write a log of `count` batches of 70 bytes, and abandon it as a killed writer does."""
    env, directory, log = new_log(config or {"index.interval.bytes": "0"})
    for time in range(count):
        put(log, time)
    directory.abandon()
    return env


def change(env: SeededEnv, name: str, at: int, data: bytes) -> None:
    content = bytearray(read(env, name))
    content[at : at + len(data)] = data
    write(env, name, bytes(content))


class TestCut:
    @pytest.mark.parametrize(
        ("at", "data"),
        [
            (69, b"\xff"),  # a byte of a record
            (17, b"\0\0\0\0"),  # the checksum
            (8, b"\xff\xff\xff\xff"),  # an impossible length
            (8, b"\0\0\0\x80"),  # a length that exceeds the end of the log
        ],
    )
    def test_a_bad_last_batch_is_cut_off(self, at: int, data: bytes) -> None:
        env = stopped()
        change(env, FIRST_LOG, 3 * 70 + at, data)
        directory, log = reopen(env)
        assert offsets(log.records()) == [0, 1, 2]
        assert env.files.stat(path_of(FIRST_LOG)).size == 210
        assert log.recovery_report.truncated_bytes == 70
        (line,) = [line for line in directory.reports if "; cut" in line]
        assert line.endswith(f"; cut 70 bytes from {path_of(FIRST_LOG)}")
        put(log, 9)
        assert offsets(log.records()) == [0, 1, 2, 3]

    @pytest.mark.parametrize("bit", range(8))
    @pytest.mark.parametrize("magic", [0, 1])
    def test_an_old_message_with_a_flipped_magic_is_not_cut(self, magic: int, bit: int) -> None:
        env = stopped()
        message = build_legacy_message(b"key", b"value", magic=magic, offset=4)
        message[16] ^= 1 << bit
        whole = read(env, FIRST_LOG) + bytes(message)
        write(env, FIRST_LOG, whole)
        _, log = reopen(env)
        with pytest.raises(DamagedLog, match=f"checksum is right if its magic is {magic}"):
            put(log, 9)
        assert read(env, FIRST_LOG) == whole

    @pytest.mark.parametrize("size", [1, 11, 16, 60, 69])
    def test_an_incomplete_batch_is_cut_off(self, size: int) -> None:
        env = stopped()
        write(env, FIRST_LOG, read(env, FIRST_LOG)[: 3 * 70 + size])
        _, log = reopen(env)
        assert offsets(log.records()) == [0, 1, 2]
        assert log.recovery_report.truncated_bytes == size

    def test_a_preallocated_tail_of_zeros_is_cut_off(self) -> None:
        env = stopped()
        write(env, FIRST_LOG, read(env, FIRST_LOG) + bytes(5000))
        _, log = reopen(env)
        assert offsets(log.records()) == [0, 1, 2, 3]
        assert log.recovery_report.truncated_bytes == 5000

    def test_no_bytes_are_cut_off_a_valid_log(self) -> None:
        env = stopped()
        before = read(env, FIRST_LOG)
        directory, log = reopen(env)
        assert log.recovery_report.actions == []
        assert directory.reports == []
        assert read(env, FIRST_LOG) == before

    def test_later_segments_without_a_valid_batch_are_dropped_with_a_report(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 40)
        bases = [segment.base_offset for segment in log.segments]
        directory.abandon()
        last = f"{bases[1]:020d}.log"
        write(env, last, read(env, last)[:-1])
        for base in bases[2:]:
            write(env, f"{base:020d}.log", bytes(100))
        _, log = reopen(env)
        assert [segment.base_offset for segment in log.segments] == bases[:2]
        assert log.log_end_offset < bases[2]
        assert sum("dropped" in line for line in log.recovery_report.actions) == len(bases) - 2
        bases_left = {int(name[:20]) for name in names(env) if name[:20].isdigit()}
        assert bases_left <= {*bases[:2], log.log_end_offset}

    def test_an_offset_that_belongs_to_the_next_segment_is_found(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        put(log, 2)
        log.roll()
        put(log, 3)
        directory.abandon()
        change(env, FIRST_LOG, 70, (50).to_bytes(8, "big"))
        opened = reader_of(env)
        with pytest.raises(CorruptBatch, match=r"position 70.*expected less than 2"):
            list(opened.records())


class TestScannedSegments:
    def test_recovery_reads_from_the_segment_of_the_recovery_point(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 40)
        directory.flush()
        directory.checkpoint()
        directory.abandon()
        bases = [segment.base_offset for segment in log.segments]
        change(env, FIRST_LOG, 90, b"\xff\xff")  # below the recovery point, so not read
        watching, seen = watched(env)
        again = LogDir.open(PATH, env=watching, options=None)
        assert again.reader(TOPIC, 0).log_end_offset == 40
        seen.read_bytes.clear()
        _, log = reopen(watching)
        assert log.recovery_report.scanned_segments == 1
        scanned = {p for p in seen.read_bytes if p.endswith(".log")}
        assert scanned == {path_of(f"{bases[-1]:020d}.log")}

    def test_a_log_without_snapshots_is_read_once(self) -> None:
        """If all snapshots are missing, recovery reads the log once, not again for each segment."""
        env, directory, log = new_log(SMALL)
        fill(log, 150)
        total, count = log.size_bytes(), len(log.segments)
        assert count > 15
        directory.abandon()
        for name in names(env):
            if name.endswith(".snapshot"):
                env.files.remove(path_of(name))
        watching, seen = watched(env)
        _, log = reopen(watching)
        assert log.recovery_report.scanned_segments == count
        read_bytes = sum(n for path, n in seen.read_bytes.items() if path.endswith(".log"))
        assert total <= read_bytes <= 1.5 * total
        assert len([path for path in seen.mapped if path.endswith(".log")]) <= 2 * count

    def test_a_damaged_snapshot_is_reported_and_an_older_one_is_used(self) -> None:
        env, directory, log = new_log()
        for _ in range(3):
            put(log, 1)
            log.roll()
        directory.abandon()
        newest = "00000000000000000003.snapshot"
        change(env, newest, 2, b"\xff")
        directory, log = reopen(env)
        (line,) = [line for line in directory.reports if newest in line]
        assert line.startswith(f"{path_of(newest)}")
        assert line.endswith("; an older snapshot is used")
        assert offsets(log.records(0)) == [0, 1, 2]

    def test_damage_below_the_recovery_point_does_not_keep_the_log_from_opening(self) -> None:
        env, directory, log = new_log()
        for _ in range(3):
            put(log, 1)
            put(log, 2)
            log.roll()
        directory.checkpoint()
        directory.abandon()
        for name in names(env):
            if name.endswith(".snapshot"):
                env.files.remove(path_of(name))
        change(env, FIRST_LOG, 78, b"\xff")
        directory, log = reopen(env)
        assert any(f"{FIRST_LOG}, position 70" in line for line in directory.reports)
        put(log, 3)
        assert offsets(log.records(2)) == [2, 3, 4, 5, 6]
        directory.close()

    def test_a_clean_stop_with_a_damaged_last_batch_opens_appends_and_closes(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        put(log, 2)
        log.roll()
        directory.close()
        change(env, FIRST_LOG, 78, b"\xff")
        directory, log = reopen(env)
        put(log, 3)
        directory.close()
        directory, log = reopen(env)
        assert offsets(log.records(2)) == [2]
        assert offsets(log.records(0, 1)) == [0]
        directory.close()


class TestRebuiltFiles:
    def test_rebuilt_indexes_equal_those_of_a_scan(self) -> None:
        env, directory, log = new_log({**SMALL, "index.interval.bytes": "139"})
        for number in range(60):
            put(log, (number * 7) % 60)
        bases = [segment.base_offset for segment in log.segments]
        directory.abandon()
        for base in bases:
            for suffix in (".index", ".timeindex"):
                write(env, f"{base:020d}{suffix}", b"\x01" * 50)
        _, log = reopen(env)
        assert [log.offset_for_time(t) is not None for t in range(61)] == [True] * 60 + [False]
        for base in bases:
            assert read(env, f"{base:020d}.index") != b"\x01" * 50
        for offset in range(60):
            assert offsets(log.records(offset, offset + 1)) == [offset]
        first = log.segments[0]
        entries = list(first.offset_index.entries())
        assert entries == [(2, 140), (4, 280), (6, 420), (8, 560)]

    def test_aborted_transactions_producers_and_both_isolation_levels(self) -> None:
        env, directory, log = new_log(SMALL)
        fields = {"producer_epoch": 0, "transactional": True}
        for number in range(12):
            producer = 5 + number % 2
            sequence = number // 2
            log.append_batches(batch([1], producer_id=producer, base_sequence=sequence, **fields))
            if number % 4 == 3:
                for other, commit in ((5, False), (6, True)):
                    log.end_transaction(
                        producer_id=other, producer_epoch=0, coordinator_epoch=0, commit=commit
                    )
        log.append_batches(batch([1], producer_id=5, base_sequence=6, **fields))
        committed = offsets(log.records(isolation=IsolationLevel.READ_COMMITTED))
        stable = log.last_stable_offset
        every = offsets(log.records())
        directory.abandon()
        for name in names(env):
            if name.endswith((".txnindex", ".snapshot")):
                env.files.remove(path_of(name))
        _, log = reopen(env)
        assert offsets(log.records()) == every
        assert offsets(log.records(isolation=IsolationLevel.READ_COMMITTED)) == committed
        assert log.last_stable_offset == stable
        assert len(committed) == 6
        assert log.append_batches(batch([1], producer_id=5, base_sequence=6, **fields)).is_duplicate

    def test_leader_epochs_that_only_batches_know(self) -> None:
        env, directory, log = new_log()
        for base, epoch in ((0, 3), (1, 5)):
            data = build_batch(new_records([1]), base_offset=base, leader_epoch=epoch)
            log.follower.append(data)
        directory.abandon()
        env.files.remove(path_of("leader-epoch-checkpoint"))
        _, log = reopen(env)
        assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(3, 0), (5, 1)]
        assert log.leader_epoch == 6

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
    def test_legacy_and_mixed_segments(self, magic: int, codec: Codec) -> None:
        env, directory, log = new_log(SMALL)
        next_offset = 0
        for number in range(20):
            if number % 3 == 2:
                put(log, number)
                next_offset += 1
                continue
            data = build_legacy_set(
                new_records([-1 if magic == 0 else number] * 2),
                magic=magic,
                codec=codec,
                base_offset=next_offset,
            )
            log.follower.append(data)
            next_offset += 2
        directory.abandon()
        _, log = reopen(env)
        assert log.recovery_report.actions == []
        assert offsets(log.records()) == list(range(next_offset))
        for view in (log, reader_of(env)):
            found = view.offset_for_time(6)
            assert found is not None
            first = next(r for r in view.records() if r.timestamp >= 6)
            assert (found.offset, found.timestamp) == (first.offset, first.timestamp)

    def test_a_valid_wrapper_of_an_unknown_codec_is_no_damage(self) -> None:
        """Recovery doesn't decompress; the error is raised when the record is read."""
        env, directory, log = new_log()
        put(log, 1)
        directory.abandon()
        odd = build_legacy_message(None, b"??", magic=1, offset=3, timestamp=5, attributes=5)
        write(env, FIRST_LOG, read(env, FIRST_LOG) + bytes(odd))
        _, log = reopen(env)
        assert log.log_end_offset == 4
        assert offsets(log.records(0, 1)) == [0]
        put(log, 9)
        assert log.log_end_offset == 5

    def test_snapshots_after_the_cut_are_not_trusted(self) -> None:
        """The snapshots describe batches that were cut off. New batches get the same offsets."""
        env, directory, log = new_log()
        for sequence in range(3):
            log.append_batches(batch([1], producer_id=5, producer_epoch=0, base_sequence=sequence))
        directory.close()
        assert "00000000000000000003.snapshot" in names(env)
        env.files.remove(MARKER)
        env.files.remove(f"{PATH}/recovery-point-offset-checkpoint")
        change(env, FIRST_LOG, 2 * 70 + 69, b"\xff")
        directory, log = reopen(env)
        assert log.log_end_offset == 2
        put(log, 1)
        put(log, 1)
        directory.abandon()
        _, log = reopen(env)
        again = batch([1], producer_id=5, producer_epoch=0, base_sequence=2)
        assert log.append_batches(again).base_offset == 4


class TestUnfinishedRenames:
    def test_deleted_files_and_orphans_go(self) -> None:
        env = stopped()
        for name in ("00000000000000000009.log.deleted", "00000000000000000007.index"):
            write(env, name, b"x")
        reopen(env)
        assert not any(
            name.startswith(("00000000000000000009", "00000000000000000007")) for name in names(env)
        )

    def test_an_unfinished_compaction_is_dropped(self) -> None:
        env = stopped()
        for name in (f"{FIRST_LOG}.cleaned", f"{FIRST}.index.cleaned", f"{FIRST_LOG}.swap"):
            write(env, name, b"x")
        directory, log = reopen(env)
        assert offsets(log.records()) == [0, 1, 2, 3]
        assert not any(name.endswith((".cleaned", ".swap")) for name in names(env))
        assert any("unfinished compaction" in line for line in directory.reports)

    def test_a_completed_rename_replaces_the_old_segments(self) -> None:
        env, directory, log = new_log()
        for time in range(3):
            put(log, time)
            log.roll()
        put(log, 9)
        directory.abandon()
        merged = build_batch(new_records([0]), base_offset=0) + build_batch(
            new_records([2]), base_offset=2
        )
        write(env, f"{FIRST_LOG}.swap", bytes(merged))
        directory, log = reopen(env)
        assert offsets(log.records()) == [0, 2, 3]
        assert [segment.base_offset for segment in log.segments] == [0, 3]
        assert any("renames of a compaction" in line for line in directory.reports)


def test_a_log_that_ends_below_its_start_starts_again_there() -> None:
    env, directory, log = new_log()
    put(log, 1, 2, 3)
    put(log, 4)
    log.flush()
    log.delete_records(4)
    directory.abandon()
    write(env, FIRST_LOG, read(env, FIRST_LOG)[:90])
    directory, log = reopen(env)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)
    assert any("restarted at its start" in line for line in directory.reports)
    put(log, 5)
    assert offsets(log.records()) == [4]


def test_recovery_twice_gives_the_same_as_once() -> None:
    env = stopped(30, SMALL)
    change(env, FIRST_LOG, 5 * 70 + 69, b"\xff")
    directory, log = reopen(env)
    once = {name: read(env, name) for name in names(env)}
    end = log.log_end_offset
    directory.abandon()
    _, log = reopen(env)
    assert log.log_end_offset == end
    same = {name for name in once if not name.startswith("leader-epoch")}
    assert {name: read(env, name) for name in same} == {name: once[name] for name in same}
