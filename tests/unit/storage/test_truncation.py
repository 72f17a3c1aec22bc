"""Truncation: removed files, the remaining records, and readers of truncated files."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults import START_MS, Fault, FaultKind, Keep, SeededEnv
from tests.faults import reopen as disk_of
from tests.worlds.directories.logs import (
    ANY_TIME,
    PATH,
    SMALL,
    TOPIC,
    WRITABLE,
    bases,
    batch,
    fill,
    names,
    new_log,
    new_records,
    offsets,
    put,
    read,
    reader_of,
    reopen,
    use_leader_epoch,
    values,
    write,
)

from tidelog.env import Env
from tidelog.errors import CorruptIndex, InvalidRequest, OffsetsGone, StorageFailure
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.types import ClockName, IsolationLevel

CALLS_MAX = 1_000


class TestRemovedFiles:
    def test_every_offset_of_a_log_of_segments(self) -> None:
        """The whole batch with the offset is removed; earlier records can be read and found."""
        for target in range(0, 62, 3):
            env, _, log = new_log(SMALL)
            for number in range(20):
                env.clock.advance(1)
                log.append(new_records([number * 3] * 3), batch_bytes=1 << 20)
            end = log.truncate_to(target)
            assert end == min(target, 60) // 3 * 3
            assert offsets(log.records()) == list(range(end))
            assert offsets(reader_of(env).records()) == list(range(end))
            for time in range(0, 60, 3):
                found = log.offset_for_time(time)
                assert (found and found.offset) == (time if time < end else None)
            assert [log.append_time_of(o) for o in range(end)] == [
                START_MS + 1 + o // 3 for o in range(end)
            ]
            put(log, 999)
            assert log.offset_for_time(100) is not None

    def test_a_truncation_above_the_end_changes_nothing(self) -> None:
        _, _, log = new_log()
        put(log, 1, 2)
        assert log.truncate_to(2) == 2
        assert log.truncate_to(50) == 2
        with pytest.raises(InvalidRequest):
            log.truncate_to(-1)

    def test_everything(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 30)
        assert log.truncate_to(0) == 0
        assert [segment.base_offset for segment in log.segments] == [0]
        put(log, 7)
        assert offsets(log.records()) == [0]
        directory.close()
        _, log = reopen(env)
        assert offsets(log.records()) == [0]

    def test_an_emptied_segment_has_the_age_of_its_next_record(self) -> None:
        _, _, log = new_log({"segment.ms": "1000"})
        put(log, 0)
        log.truncate_to(0)
        put(log, 5_000)
        put(log, 6_000)
        assert bases(log) == [0]
        put(log, 6_001)
        assert bases(log) == [0, 2]

    def test_an_emptied_segment_without_timestamps_has_the_age_since_its_truncation(self) -> None:
        env, _, log = new_log({"segment.ms": "1000"})
        put(log, -1)
        env.clock.advance(5_000)
        log.truncate_to(0)
        put(log, -1)
        env.clock.advance(1_000)
        put(log, -1)
        assert bases(log) == [0]
        env.clock.advance(1)
        put(log, -1)
        assert bases(log) == [0, 2]

    def test_below_the_log_start(self) -> None:
        env, directory, log = new_log(SMALL)
        fill(log, 30)
        log.delete_records(20)
        log.apply_retention()
        log.truncate_to(5)
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
        put(log, 1)
        assert offsets(log.records()) == [5]
        directory.abandon()
        _, log = reopen(env)
        assert offsets(log.records()) == [5]

    def test_transactions_and_their_aborts(self) -> None:
        _, _, log = new_log(SMALL)
        fields = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
        log.append_batches(batch([1], base_sequence=0, **fields))
        put(log, 1)
        log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=False)
        log.roll()
        put(log, 1)
        assert log.last_stable_offset == 4
        log.truncate_to(2)  # removes the marker, so the transaction is open again
        assert log.last_stable_offset == 0
        assert offsets(log.records(isolation=IsolationLevel.READ_COMMITTED)) == []
        log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=True)
        assert offsets(log.records(isolation=IsolationLevel.READ_COMMITTED)) == [0, 1]

    def test_damage_found_during_a_truncation(self) -> None:
        """The partition goes offline, because its files and its memory may be partly changed."""
        env, directory, log = new_log({"segment.ms": str(2**62)})
        fields = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
        log.append_batches(batch([1], base_sequence=0, **fields))
        log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=False)
        for _ in range(3):
            put(log, 1)
        log.roll()
        put(log, 1)
        log.truncate_to(4)  # makes the first segment active; its index is unread
        write(env, "00000000000000000000.txnindex", b"\x00" * 20)
        with pytest.raises(StorageFailure, match=r"truncate failed: .*txnindex.*incomplete entry"):
            log.truncate_to(3)
        assert offsets(log.records()) == [0, 2, 3]
        for change in (lambda: put(log, 1), lambda: log.truncate_to(3), log.flush, log.roll):
            with pytest.raises(StorageFailure, match="the partition is offline"):
                change()
        with pytest.raises(StorageFailure):
            directory.close()
        directory, log = reopen(env)
        assert (log.failure, log.end_offset(), offsets(log.records())) == (None, 4, [0, 2, 3])
        assert log.truncate_to(3) == 3
        put(log, 1)
        assert offsets(log.records(isolation=IsolationLevel.READ_COMMITTED)) == [2, 3]
        directory.close()
        assert offsets(reader_of(env).records()) == [0, 2, 3]

    def test_damage_in_an_earlier_segment_does_not_matter(self) -> None:
        env, directory, log = new_log({"segment.ms": str(2**62)})
        for _ in range(3):
            put(log, 1)
            put(log, 1)
            log.roll()
        put(log, 1)
        put(log, 1)
        directory.close()
        first = "00000000000000000000.log"
        data = bytearray(read(env, first))
        second = len(data) // 2
        data[second + 8 : second + 12] = (10**6).to_bytes(4)
        write(env, first, bytes(data))
        _, log = reopen(env)
        assert log.truncate_to(5) == 5
        put(log, 1)
        assert log.end_offset() == 6

    def test_the_first_batch_of_a_segment_is_not_read_to_remove_all(self) -> None:
        env, directory, log = new_log({"segment.ms": str(2**62)})
        put(log, 1)
        log.roll()
        put(log, 1)
        log.roll()
        put(log, 1)
        directory.close()
        second = "00000000000000000001.log"
        data = bytearray(read(env, second))
        data[8:12] = (10**6).to_bytes(4)
        write(env, second, bytes(data))
        _, log = reopen(env)
        assert log.truncate_to(1) == 1
        put(log, 1)
        assert offsets(log.records()) == [0, 1]

    @pytest.mark.parametrize("is_reopened", [True, False])
    def test_a_partition_is_sound_after_a_failure_at_any_call(self, is_reopened: bool) -> None:
        """A truncation lowers the recovery point before it removes records."""
        failures = 0
        while True:
            env, directory, log = new_log()
            for _ in range(3):
                put(log, 1)
                log.roll()
            log.flush()
            env.files.writes.fault = Fault(env.files.calls + failures, FaultKind.EIO)
            try:
                log.truncate_to(1)
            except StorageFailure:
                failures += 1
                assert failures < CALLS_MAX, "every truncation fails"
            else:
                break
            env.files.writes.fault = None
            if is_reopened:
                log = directory.reopen(TOPIC, 0)
            else:
                directory.abandon()
                _, log = reopen(env)
            put(log, 2)
            assert log.failure is None
        assert failures > 10

    def test_a_refused_change_leaves_the_partition_online(self) -> None:
        def refuse() -> None:
            raise InvalidRequest("refused")

        _, _, log = new_log()
        with pytest.raises(InvalidRequest, match="refused"):
            log.guard.run(log.context.directory, "change", refuse)
        put(log, 1)
        assert offsets(log.records()) == [0]

    def test_snapshots_and_epochs_behind_it(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        directory.close()
        _, log = reopen(env)
        put(log, 2)
        log.roll()
        log.truncate_to(1)
        assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(0, 0)]
        assert "00000000000000000002.snapshot" not in names(env)
        put(log, 3)
        assert log.leader_epochs.latest_epoch > 1  # new records get another epoch

    @pytest.mark.parametrize("is_hard_stop", [False, True])
    def test_a_log_truncated_to_0_reuses_no_epoch(self, is_hard_stop: bool) -> None:
        env, directory, log = new_log()
        use_leader_epoch(log, 7)
        put(log, 1)
        log.truncate_to(0)
        assert log.leader_epochs.entries == ()
        if is_hard_stop:
            directory.abandon()
        else:
            directory.close()
        _, log = reopen(env)
        assert log.leader_epoch > 7
        assert log.leader_epochs.entries == ()


class TestCommittedReadersDuringIt:
    """After any truncation, readers of committed records get no aborted records."""

    @staticmethod
    def aborted_twice(*, is_finished: bool) -> tuple[SeededEnv, LogDir, Log]:
        """Return a log with aborted records at 1 and 4; the second transaction ends at 6."""
        env, directory, log = new_log({"segment.ms": str(2**62)})
        for producer_id in (5, 6):
            put(log, 1)
            _transact(log, producer_id)
            if producer_id == 6:
                put(log, 1)
            _abort(log, producer_id)
        put(log, 1)
        if is_finished:
            log.roll()
            put(log, 1)
        return env, directory, log

    @pytest.mark.parametrize("is_finished", [False, True])
    def test_after_a_failure_and_after_a_kill(self, is_finished: bool) -> None:
        visible = {0, 3, 5, 7, 8}
        env, _, log = self.aborted_twice(is_finished=is_finished)
        env.files.settle()
        log.truncate_to(6)
        for state in env.files.prefixes(Keep.EVERYTHING):
            killed = Env(files=disk_of(state), clock=env.clock, random=env.random)
            got = offsets(reader_of(killed).records(isolation=IsolationLevel.READ_COMMITTED))
            assert set(got) <= visible, str(state)
            _, again = reopen(killed)
            got = offsets(again.records(isolation=IsolationLevel.READ_COMMITTED))
            assert set(got) <= visible, str(state)
        for call in range(env.files.calls):
            env, _, log = self.aborted_twice(is_finished=is_finished)
            env.files.writes.fault = Fault(env.files.calls + call, FaultKind.NO_SPACE, sticky=True)
            try:
                log.truncate_to(6)
            except StorageFailure:
                env.files.writes.fault = None
                got = []
                with suppress(OffsetsGone):  # the file is cut already, but not yet the log's end
                    got += (
                        each.offset for each in log.records(isolation=IsolationLevel.READ_COMMITTED)
                    )
                assert set(got) <= visible, call
            else:
                break

    def test_an_index_rebuilt_for_a_truncation_that_fails_is_not_used(self) -> None:
        env, directory, log = self.aborted_twice(is_finished=True)
        directory.close()
        index = "00000000000000000000.txnindex"
        write(env, index, read(env, index)[:50])
        _, log = reopen(env)
        env.files.writes.fault = Fault(env.files.calls, FaultKind.NO_SPACE, sticky=True)
        with pytest.raises(StorageFailure):
            log.truncate_to(6)
        env.files.writes.fault = None
        with pytest.raises(CorruptIndex, match=index):
            list(log.records(isolation=IsolationLevel.READ_COMMITTED))

    def test_no_removed_snapshot_comes_back_in_a_crash(self) -> None:
        """A removed snapshot lists an open transaction, which would hide later records."""
        env, directory, log = new_log()
        for offset in range(5):
            log.follower.append(batch([1], base_offset=offset, leader_epoch=0))
        fields = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
        log.follower.append(batch([1], base_offset=5, leader_epoch=0, base_sequence=0, **fields))
        directory.close()
        _, log = reopen(env)
        env.files.settle()
        log.truncate_to(5)
        for offset in range(5, 9):
            log.follower.append(batch([1], base_offset=offset, leader_epoch=0))
        log.flush()
        for state in env.files.crash_states(range(100), prefix=len(env.files.journal)):
            crashed = Env(files=disk_of(state), clock=env.clock, random=env.random)
            _, again = reopen(crashed)
            got = offsets(again.records(isolation=IsolationLevel.READ_COMMITTED))
            assert got == list(range(9)), str(state)


def _transact(log: Log, producer_id: int) -> None:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
    log.append_batches(batch([1], base_sequence=0, **fields))


def _abort(log: Log, producer_id: int) -> None:
    log.end_transaction(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commit=False
    )


class TestAppendTimesAfterIt:
    def test_new_records_never_get_the_times_of_those_that_went(self) -> None:
        env, directory, log = new_log()
        for _ in range(5):
            env.clock.advance(10)
            put(log, 1)
        log.truncate_to(2)
        env.clock.advance(-45)  # the removed rows' times are later than the next append's
        put(log, 1)
        assert log.append_time_of(2) == START_MS + 20
        directory.close()
        _, log = reopen(env)
        assert [log.append_time_of(o) for o in range(3)] == [
            START_MS + 10,
            START_MS + 20,
            START_MS + 20,
        ]
        found = log.offset_for_time(START_MS + 21, clock=ClockName.APPEND)
        assert found is None

    def test_append_times_are_right_or_unknown_after_a_crash(self) -> None:
        """After a crash, each remaining record has its correct append time, or none."""
        env, directory, log = new_log(SMALL)
        for number in range(25):
            env.clock.advance(1)
            put(log, number, value=b"old" * 20)
        directory.close()
        directory, log = reopen(env)
        env.files.settle()
        log.truncate_to(4)
        env.clock.advance(1000)
        put(log, 99, value=b"new" * 20)
        log.flush()
        right = {b"old" * 20: START_MS + 1, b"new" * 20: START_MS + 1025}
        for state in (*env.files.prefixes(Keep.SYNCED), *env.files.crash_states(range(150))):
            disk = disk_of(state)
            crashed = Env(files=disk, clock=env.clock, random=env.random)
            _, again = reopen(crashed)
            assert again.log_end_offset >= 4, str(state)
            for record in again.records():
                base = right[record.value or b""]
                own = base + record.offset if (record.value or b"").startswith(b"old") else base
                assert again.append_time_of(record.offset) in {None, own}, str(state)
            assert [again.append_time_of(o) for o in range(2)] == [START_MS + 1, START_MS + 2]


CHILD = """
import sys
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
reader = LogDir.open(sys.argv[1]).reader("t", 0)
records = reader.records()
seen = [next(records) for _ in range(3)]
views = [s.view(0, s.size_bytes) for s in reader.segments if not s.is_active]
indexes = [(s.offset_index, s.time_index) for s in reader.segments if not s.is_active]
print("ready", flush=True)
sys.stdin.readline()
left = [r.value for r in records]
total = sum(sum(view) for view in views)
found = [reader.offset_for_time(t) for t in range(40)]
assert total and all(list(a.entries()) is not None and b.entry_count for a, b in indexes)
reader.refresh()
after = [r.value for r in reader.records()]
print(len(seen) + len(left), set(left), len(after), set(after))
"""


def test_a_reader_in_another_process_survives_a_truncation_under_its_maps(tmp_path: Path) -> None:
    """The reader continues with its memory maps, and sees the new log after a refresh."""
    root = tmp_path / "data"
    with LogDir.open(str(root), options=WRITABLE) as directory:
        directory.create_topic(TOPIC, config={**SMALL, **ANY_TIME})
        log = directory.log(TOPIC, 0)
        for number in range(40):
            log.append(new_records([number], b"old"))
        assert len(log.segments) >= 4
        run = [sys.executable, "-c", CHILD, str(root)]
        with subprocess.Popen(
            run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            log.truncate_to(log.segments[0].end_offset - 1)  # into a closed segment
            kept = log.log_end_offset
            for number in range(30):
                log.append(new_records([number], b"new"))
            child.stdin.write("go\n")
            child.stdin.flush()
            line = child.stdout.readline()
        assert child.returncode == 0
    before, _, rest = line.partition(" {b'old'} ")
    # The last segment is read from its file, so the reader no longer sees the truncated records.
    assert kept < int(before) <= 40
    assert rest.split(" ", 1)[0] == str(kept + 30)
    assert "b'new'" in rest


def test_a_reader_of_the_last_segment_sees_no_wrong_record() -> None:
    env, _, log = new_log()
    for number in range(10):
        put(log, number, value=b"old")
    reader = LogDir.open(PATH, env=env).reader(TOPIC, 0)
    records = reader.records()
    assert next(records).value == b"old"
    log.truncate_to(4)
    for number in range(10):
        put(log, number, value=b"new")
    reader.refresh()
    assert values(reader.records()) == [b"old"] * 4 + [b"new"] * 10
