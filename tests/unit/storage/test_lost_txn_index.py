"""Indexes of aborted transactions that are lost, damaged or incomplete, as after a hard stop.

An index is rebuilt only if the log's transactions are known. If the transactions are unknown and
the index file is certainly wrong, the partition refuses appends, and reads of committed records
raise an error.
"""

import pytest
from tests import faults
from tests.faults import START_MS, Keep, SeededEnv, seeded_env
from tests.worlds.directories.logs import (
    DAY_MS,
    PATH,
    TOPIC,
    batch,
    end,
    names,
    new_log,
    offsets,
    path_of,
    put,
    read,
    reader_of,
    reopen,
    transact,
    write,
)

from tidelog.errors import CorruptBatch, CorruptData, CorruptIndex, DamagedLog, StorageFailure
from tidelog.record.batch_walk import walk
from tidelog.storage import files, log_files
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log import segment_list
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.producers import encode_snapshot
from tidelog.storage.segment.txn_index import TXN_ENTRY_SIZE, AbortedTxn, TxnIndex
from tidelog.storage.text_files import write_offset_checkpoint
from tidelog.types import IsolationLevel, TopicPartition

COMMITTED = IsolationLevel.READ_COMMITTED
FIRST_LOG = "00000000000000000000.log"
FIRST_INDEX = "00000000000000000000.txnindex"
# With these settings, only `Log.roll` rolls a segment.
ONE_BY_ONE = {"segment.ms": str(2**62)}


def flip(env: SeededEnv, log_name: str, number: int, at: int, mask: int = 1) -> None:
    """Flip bits of one byte of a batch; `at` is relative to the batch."""
    data = bytearray(read(env, log_name))
    data[list(walk(bytes(data)))[number].at + at] ^= mask
    write(env, log_name, bytes(data))


class TestAHardStop:
    """Damage in the first segment may hide the start of the aborted transaction."""

    INDEX = "00000000000000000005.txnindex"

    @classmethod
    def damaged(cls, number: int = 1, at: int = 16, mask: int = 11) -> tuple[SeededEnv, bytes]:
        """Abort a transaction of the first segment in the second; lose the snapshot in between.

        Returns the disk and the index's bytes. By default, the damage is the format 9 of a batch in
        the first segment.
        """
        env, directory, log = new_log({**ONE_BY_ONE, "index.interval.bytes": "0"})
        for _ in range(4):
            put(log, 1)
        transact(log, 5)
        log.roll()
        end(log, 5, commit=False)
        put(log, 1)
        directory.close()
        env.files.remove(path_of("00000000000000000005.snapshot"))
        flip(env, FIRST_LOG, number, at, mask)
        return env, read(env, cls.INDEX)

    @classmethod
    def hard_stopped(cls, *damage: int) -> tuple[SeededEnv, bytes]:
        """Create the log of `damaged`, then append and kill the writer."""
        env, before = cls.damaged(*damage)
        directory, log = reopen(env)
        put(log, 1)
        log.flush()
        directory.abandon()
        assert read(env, cls.INDEX) == before
        return env, before

    @pytest.mark.parametrize(
        ("damage", "start"),
        [((1, 16, 11), 4), ((4, 50, 1), 5)],
        ids=["format", "producer of the transaction"],
    )
    def test_a_sound_index_is_kept_if_the_earlier_batches_are_damaged(
        self, damage: tuple[int, int, int], start: int
    ) -> None:
        env, before = self.hard_stopped(*damage)
        directory, log = reopen(env)
        assert read(env, self.INDEX) == before
        put(log, 1)
        assert offsets(log.records(start, isolation=COMMITTED)) == [6, 7, 8]
        directory.close()
        assert offsets(reader_of(env).records(start, isolation=COMMITTED)) == [6, 7, 8]

    @pytest.mark.parametrize("data", [None, b"", b"\x00" * 20])
    def test_no_append_follows_if_neither_file_nor_batches_give_it(
        self, data: bytes | None
    ) -> None:
        env, _ = self.hard_stopped()
        env.files.remove(path_of(self.INDEX))
        if data is not None:
            write(env, self.INDEX, data)
        _, log = reopen(env)
        with pytest.raises(DamagedLog, match=rf"{FIRST_LOG}, position"):
            put(log, 1)
        for view in (log, reader_of(env)):
            with pytest.raises(CorruptData):
                list(view.records(4, isolation=COMMITTED))
            assert offsets(view.records(4)) == [4, 6, 7]
        assert (read(env, self.INDEX) if self.INDEX in names(env) else None) == data

    def test_reopening_a_refused_partition_keeps_a_cut_index(self) -> None:
        env, before = self.damaged()
        write(env, self.INDEX, before[:20])
        directory, log = reopen(env)
        with pytest.raises(DamagedLog):
            put(log, 1)
        log = directory.reopen(TOPIC, 0)
        assert read(env, self.INDEX) == before[:20]
        with pytest.raises(DamagedLog):
            put(log, 1)
        with pytest.raises(CorruptIndex, match=self.INDEX):
            list(log.records(4, isolation=COMMITTED))


def test_a_snapshot_after_the_damage_gives_the_aborted_transactions() -> None:
    """Damage hides the state before the first scanned segment; the next segment has a snapshot."""
    env, directory, log = new_log(ONE_BY_ONE)
    log.append_batches(batch([1], producer_id=3, producer_epoch=0, base_sequence=0))
    log.roll()
    put(log, 1)
    log.roll()
    transact(log, 5)
    directory.close()
    flip(env, FIRST_LOG, 0, 50)
    directory, log = reopen(env)
    end(log, 5, commit=False)
    put(log, 1)
    log.flush()
    directory.abandon()
    index = "00000000000000000002.txnindex"
    before = read(env, index)
    env.files.remove(path_of(index))
    env.files.remove(path_of("00000000000000000001.snapshot"))
    points = f"{PATH}/{files.RECOVERY_POINT_CHECKPOINT_FILE}"
    write_offset_checkpoint(env.files, points, {TopicPartition(TOPIC, 0): 1})
    _, log = reopen(env)
    put(log, 1)
    assert read(env, index) == before
    assert offsets(log.records(1, isolation=COMMITTED)) == [1, 4, 5]


class TestDamageInTheSameSegment:
    """If damage stops the search for aborted transactions, reads of committed records fail."""

    @staticmethod
    def damaged() -> SeededEnv:
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 7)
        put(log, 1)
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        end(log, 7, commit=True)
        put(log, 1)
        directory.close()
        flip(env, FIRST_LOG, 1, 65)
        env.files.remove(path_of(FIRST_INDEX))
        return env

    def test_readers_and_appends_raise(self) -> None:
        env = self.damaged()
        with pytest.raises(CorruptBatch, match=FIRST_LOG):
            list(reader_of(env).records(2, isolation=COMMITTED))
        _, log = reopen(env)
        with pytest.raises(DamagedLog, match=FIRST_LOG):
            put(log, 1)
        with pytest.raises(CorruptBatch, match=FIRST_LOG):
            list(log.records(2, isolation=COMMITTED))
        assert offsets(log.records(2)) == [2, 3, 4, 7]
        assert not log.segments[-1].has_txn_index  # so that a broker's loop does not read it
        assert FIRST_INDEX not in names(env)


class TestDamagedSnapshots:
    def test_they_may_contain_transactions(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        directory.close()
        for name in names(env):
            if name.endswith(".snapshot"):
                write(env, name, read(env, name)[:-1])
        env.files.remove(path_of(FIRST_INDEX))
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0, 3]
        _, log = reopen(env)
        assert offsets(log.records(isolation=COMMITTED)) == [0, 3]
        assert FIRST_INDEX in names(env)


class TestASnapshotBeyondTheLogEnd:
    def test_it_rules_out_no_abort(self) -> None:
        """A crash in a truncation can leave a snapshot beyond the log end; it excludes no abort."""
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        log.flush()
        directory.abandon()
        env.files.remove(path_of(FIRST_INDEX))
        write(env, "00000000000000000009.snapshot", encode_snapshot([]))
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0, 3]


class TestAnUnreadableFile:
    @staticmethod
    def stopped() -> tuple[SeededEnv, bytes]:
        """Stop a log whose record at 0 is aborted; return the disk and the bytes of the index."""
        env, directory, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        directory.close()
        return env, read(env, FIRST_INDEX)

    def test_an_index_above_the_limit_of_small_files_is_rebuilt(self) -> None:
        env, before = self.stopped()
        write(env, FIRST_INDEX, b"\x00" * (files.SMALL_FILE_LIMIT_BYTES + 1))
        _, log = reopen(env)
        (action,) = log.recovery_report.actions
        assert f"{FIRST_INDEX}: 67108865 bytes, at most 67108864 expected; rebuilt" in action
        assert read(env, FIRST_INDEX) == before
        put(log, 1)
        assert offsets(log.records(isolation=COMMITTED)) == [2, 3]

    def test_on_a_full_disk_the_partition_can_be_read(self) -> None:
        env, before = self.stopped()
        write(env, FIRST_INDEX, before[:20])
        env.files.limit_bytes = 0
        directory, log = reopen(env)
        assert offsets(log.records(isolation=COMMITTED)) == [2]
        with pytest.raises(StorageFailure):
            put(log, 1)
        assert read(env, FIRST_INDEX) == before[:20]
        env.files.limit_bytes = None
        log = directory.reopen(TOPIC, 0)
        put(log, 1)
        assert read(env, FIRST_INDEX) == before
        assert offsets(log.records(isolation=COMMITTED)) == [2, 3]


class TestAnIndexWithoutItsLastEntries:
    """A power loss may keep a marker but lose its entry in the index.

    A marker is written before its index entry, and a flush of the records doesn't sync the index.
    """

    @staticmethod
    def power_loss(*, is_first: bool) -> LogView:
        """Abort a transaction, flush the log, lose unsynced data; return a reader of the log."""
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        if not is_first:
            transact(log, 5)
            end(log, 5, commit=False)
        directory.close()
        _, log = reopen(env)
        transact(log, 6)
        end(log, 6, commit=False)
        put(log, 1)
        log.flush()
        return reader_of(seeded_env(1, files=faults.reopen(env.files.crash(Keep.SYNCED))))

    @pytest.mark.parametrize(("is_first", "committed"), [(True, [0, 3]), (False, [0, 5])])
    def test_a_reader_after_a_power_loss(self, *, is_first: bool, committed: list[int]) -> None:
        """If the first entry is lost, the index may be missing. No snapshot lists transactions."""
        assert offsets(self.power_loss(is_first=is_first).records(isolation=COMMITTED)) == committed

    def test_a_reader_beside_a_writer(self) -> None:
        env, _, log = new_log({**ONE_BY_ONE, "index.interval.bytes": "0"})
        for producer_id in (5, 6):
            put(log, 1)
            transact(log, producer_id)
            end(log, producer_id, commit=False)
        written = read(env, FIRST_INDEX)
        for entries in (0, 1, 2):
            write(env, FIRST_INDEX, written[: entries * TXN_ENTRY_SIZE])
            assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0, 3]

    def test_an_abort_without_records_has_no_entry(self) -> None:
        env, _, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        end(log, 5, commit=False)
        end(log, 6, commit=False)
        put(log, 1)
        directory = LogDir.open(PATH, env=env)
        assert offsets(directory.reader(TOPIC, 0).records(isolation=COMMITTED)) == [3]
        assert not directory.reports

    def test_an_old_entry_of_an_empty_transaction_does_not_replace_a_lost_one(self) -> None:
        """Old brokers wrote entries of empty transactions; a rebuilt index has no such entries."""
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        end(log, 9, commit=False)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        directory.close()
        write(env, FIRST_INDEX, TxnIndex(0, [AbortedTxn(9, 1, 1, 2)]).encoded.tobytes())
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0, 4]

    def test_damage_after_the_last_entry_may_hide_a_marker(self) -> None:
        env, directory, log = new_log({**ONE_BY_ONE, "index.interval.bytes": "0"})
        transact(log, 5)
        end(log, 5, commit=False)
        for later_ms in range(4):
            put(log, START_MS + DAY_MS + later_ms)
        directory.close()
        flip(env, FIRST_LOG, 2, 16, 11)
        reader = reader_of(env)
        assert offsets(reader.records(5)) == [5]
        with pytest.raises(CorruptBatch, match=FIRST_LOG):
            list(reader.records(5, isolation=COMMITTED))


class TestALargeLastSegment:
    """A large last segment is not read as a whole: only its markers after a snapshot are read."""

    @pytest.fixture(autouse=True)
    def _all_are_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(segment_list, "_LAST_WALKED_BYTES", 0)

    @pytest.mark.parametrize(("is_first", "committed"), [(True, [0, 3]), (False, [0, 5])])
    def test_entries_that_a_power_loss_removed_are_known(
        self, *, is_first: bool, committed: list[int]
    ) -> None:
        reader = TestAnIndexWithoutItsLastEntries.power_loss(is_first=is_first)
        assert offsets(reader.records(isolation=COMMITTED)) == committed

    @pytest.mark.parametrize("entries", [0, 1, 2])
    @pytest.mark.parametrize("stop", [None, 6])
    def test_a_reader_beside_a_writer(self, entries: int, stop: int | None) -> None:
        env, _, log = new_log(ONE_BY_ONE)
        for producer_id in (5, 6):
            put(log, 1)
            transact(log, producer_id)
            end(log, producer_id, commit=False)
        write(env, FIRST_INDEX, read(env, FIRST_INDEX)[: entries * TXN_ENTRY_SIZE])
        reader = reader_of(env)
        assert offsets(reader.records(end=stop, isolation=COMMITTED)) == [0, 3]
        put(log, 1)
        reader.refresh()
        assert offsets(reader.records(end=stop, isolation=COMMITTED))[:2] == [0, 3]

    def test_a_transaction_that_began_in_an_earlier_segment(self) -> None:
        env, _, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 5)
        log.roll()
        transact(log, 6)
        end(log, 5, commit=False)
        put(log, 1)
        env.files.remove(path_of("00000000000000000002.txnindex"))
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0]
        end(log, 6, commit=True)
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0, 2, 4]

    def test_a_complete_index_is_not_reported(self) -> None:
        env, _, log = new_log(ONE_BY_ONE)
        for producer_id in (5, 6):
            transact(log, producer_id)
            end(log, producer_id, commit=False)
        end(log, 7, commit=False)
        put(log, 1)
        directory = LogDir.open(PATH, env=env)
        assert offsets(directory.reader(TOPIC, 0).records(isolation=COMMITTED)) == [5]
        assert not directory.reports


class TestAnEntryWithoutItsMarker:
    """After a power loss, a file may contain only zeros, which look like a valid first entry."""

    @staticmethod
    def stopped() -> SeededEnv:
        env, directory, log = new_log({**ONE_BY_ONE, "index.interval.bytes": "0"})
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        for later_ms in range(3):
            put(log, START_MS + DAY_MS + later_ms)
        directory.close()
        return env

    @pytest.mark.parametrize("lost_bytes", [TXN_ENTRY_SIZE, 20])
    def test_it_is_replaced_from_the_batches(self, lost_bytes: int) -> None:
        env = self.stopped()
        entry = read(env, FIRST_INDEX)
        write(env, FIRST_INDEX, entry[:-lost_bytes] + bytes(lost_bytes))
        directory = LogDir.open(PATH, env=env)
        assert offsets(directory.reader(TOPIC, 0).records(isolation=COMMITTED)) == [0, 3, 4, 5]
        (report,) = directory.reports
        assert f"{FIRST_INDEX}: the last entry has no abort marker; rebuilt in memory" in report

    @pytest.mark.parametrize(("number", "at", "mask"), [(0, 65, 1), (0, 16, 11), (2, 16, 11)])
    def test_a_sound_entry_is_used_beside_damage(self, number: int, at: int, mask: int) -> None:
        """The damage is in a record, in an earlier header, or in the marker's own header."""
        env = self.stopped()
        flip(env, FIRST_LOG, number, at, mask)
        assert offsets(reader_of(env).records(4, isolation=COMMITTED)) == [4, 5]


class TestALogWithoutSnapshotsAndAborts:
    """No index has to be rebuilt, so neither damaged records nor the log's length matter."""

    @staticmethod
    def stopped(*, transacts: bool) -> SeededEnv:
        env, directory, log = new_log({**ONE_BY_ONE, "index.interval.bytes": "0"})
        for _ in range(3):
            put(log, 1)
        log.roll()
        if transacts:
            transact(log, 5)
            end(log, 5, commit=True)
        for _ in range(4):
            put(log, 1)
        directory.close()
        for name in names(env):
            if name.endswith(log_files.SNAPSHOT_SUFFIX):
                env.files.remove(path_of(name))
        return env

    def test_a_damaged_record_hides_no_others(self) -> None:
        env = self.stopped(transacts=False)
        flip(env, "00000000000000000003.log", 1, 65)
        for view in (reader_of(env), reopen(env)[1]):
            assert offsets(view.records(0, 3, isolation=COMMITTED)) == [0, 1, 2]
            assert offsets(view.records(5, 7, isolation=COMMITTED)) == [5, 6]
            with pytest.raises(CorruptBatch):
                list(view.records(isolation=COMMITTED))

    def test_damage_in_an_earlier_segment_hides_no_committed_transaction(self) -> None:
        env = self.stopped(transacts=True)
        flip(env, FIRST_LOG, 1, 65)
        _, log = reopen(env)
        for view in (reader_of(env), log):
            assert offsets(view.records(3, isolation=COMMITTED)) == [3, 5, 6, 7, 8]
        put(log, 1)
        assert offsets(log.records(3, isolation=COMMITTED)) == [3, 5, 6, 7, 8, 9]
