"""Isolation levels: open, committed and aborted transactions as readers see them."""

import re
from collections.abc import Callable

import pytest
from tests.faults import Fault, FaultKind, SeededEnv, seeded_env
from tests.worlds.directories.logs import (
    PATH,
    TOPIC,
    end,
    names,
    new_dir,
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

from tidelog.errors import Closed, CorruptBatch, CorruptIndex, DamagedLog, StorageFailure
from tidelog.record.batch_walk import walk
from tidelog.record.coding import crc32c
from tidelog.scan.plan import plan
from tidelog.scan.reader import ReadOptions, to_table
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.producer_loading import rebuild_txn_index, transaction_start
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.txn_index import TXN_ENTRY_SIZE, AbortedTxn, TxnIndex
from tidelog.types import IsolationLevel

COMMITTED = IsolationLevel.READ_COMMITTED
FIRST_LOG = "00000000000000000000.log"
# Segments roll only by `Log.roll`.
ONE_BY_ONE = {"segment.ms": str(2**62)}


class TestIsolation:
    def test_committed_readers_stop_at_the_last_stable_offset(self) -> None:
        env, _, log = new_log()
        put(log, 1)
        transact(log, 5)
        put(log, 2)
        for view in (log, reader_of(env)):
            assert view.last_stable_offset == 1
            assert (view.end_offset(), view.end_offset(COMMITTED)) == (3, 1)
            assert offsets(view.records(isolation=COMMITTED)) == [0]
            assert offsets(view.records()) == [0, 1, 2]

    def test_a_commit_shows_the_records_and_never_the_marker(self) -> None:
        env, _, log = new_log()
        transact(log, 5, count=2)
        end(log, 5, commit=True)
        put(log, 2)
        for view in (log, reader_of(env)):
            assert offsets(view.records(isolation=COMMITTED)) == [0, 1, 3]
            assert offsets(view.records()) == [0, 1, 3]

    def test_an_abort_hides_only_the_records_of_its_transaction(self) -> None:
        env, _, log = new_log()
        transact(log, 5)
        transact(log, 6)
        transact(log, 5, 1)
        end(log, 5, commit=False)
        transact(log, 5, 2)
        end(log, 6, commit=True)
        end(log, 5, commit=True)
        for view in (log, reader_of(env)):
            assert offsets(view.records(isolation=COMMITTED)) == [1, 4]
            assert offsets(view.records()) == [0, 1, 2, 4]

    def test_an_abort_is_seen_if_the_marker_is_after_the_range(self) -> None:
        """The index entry is in the segment of the marker, after the range that is read."""
        _, _, log = new_log()
        transact(log, 5)
        log.roll()
        put(log, 1)
        log.roll()
        end(log, 5, commit=False)
        assert offsets(log.records(0, 1, isolation=COMMITTED)) == []
        assert offsets(log.records(0, 2, isolation=COMMITTED)) == [1]

    def test_a_read_from_beyond_the_last_stable_offset_has_no_records(self) -> None:
        _, _, log = new_log()
        put(log, 1)
        transact(log, 5, count=3)
        assert list(log.slices(3, isolation=COMMITTED)) == []
        assert offsets(log.records(2, isolation=COMMITTED)) == []

    def test_a_damaged_transaction_index_names_its_file(self) -> None:
        env, directory, log = new_log()
        transact(log, 5)
        end(log, 5, commit=False)
        directory.close()
        write(env, "00000000000000000000.txnindex", b"\x00" * 20)
        reader = reader_of(env)
        assert offsets(reader.records()) == [0]
        with pytest.raises(CorruptIndex, match=r"00000000000000000000\.txnindex"):
            list(reader.records(isolation=COMMITTED))


class TestADamagedIndexOfTheLastSegment:
    """A log that is opened for writing rebuilds an index if no entry can be appended to it."""

    INDEX = "00000000000000000001.txnindex"
    LOG = "00000000000000000001.log"

    @classmethod
    def stopped(cls) -> tuple[SeededEnv, bytes]:
        """Return a closed log with an aborted and an open transaction, and the index's bytes."""
        env, directory, log = new_log()
        transact(log, 5)
        end(log, 5, commit=False)
        transact(log, 6, count=2_000)
        transact(log, 6, sequence=2_000)
        directory.close()
        return env, read(env, cls.INDEX)

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda data: data[:20], "an incomplete entry: 20 of 34 bytes"),
            (lambda data: b"\x01" + data[1:], "aborted transaction of version 256, 0 expected"),
            (
                lambda data: data[:23] + b"\x01" + data[24:],
                r"marker offset \d+ is not below the log end, offset 2003",
            ),
        ],
        ids=["cut", "version", "marker after the log end"],
    )
    def test_an_abort_after_the_opening_hides_its_records(
        self, damage: Callable[[bytes], bytes], reason: str
    ) -> None:
        env, before = self.stopped()
        write(env, self.INDEX, damage(before))
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            (action,) = log.recovery_report.actions
            assert re.search(rf"{self.INDEX}: {reason}; rebuilt from the log", action)
            assert read(env, self.INDEX) == before
            assert (log.last_stable_offset, log.end_offset()) == (2, 2003)
            end(log, 6, commit=False)
            assert (log.last_stable_offset, log.end_offset()) == (2004, 2004)
            put(log, 1)
            assert offsets(log.records(isolation=COMMITTED)) == [2004]
        assert read(env, self.INDEX)[: len(before)] == before
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [2004]

    def test_an_index_without_any_abort_in_the_log_is_removed(self) -> None:
        env, directory, log = new_log()
        transact(log, 5)
        directory.close()
        index = "00000000000000000000.txnindex"
        write(env, index, b"\x00" * 20)
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as writing:
            log = writing.log(TOPIC, 0)
            assert index not in names(env)
            end(log, 5, commit=False)
            assert offsets(log.records(isolation=COMMITTED)) == []
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == []

    def test_an_index_cut_to_nothing_is_rebuilt(self) -> None:
        env, before = self.stopped()
        write(env, self.INDEX, b"")
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            assert "empty; rebuilt from the log" in log.recovery_report.actions[0]
            end(log, 6, commit=False)
        assert read(env, self.INDEX)[: len(before)] == before
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == []

    @staticmethod
    def without_snapshot() -> tuple[SeededEnv, str, bytes]:
        """Close a log whose transaction is in two segments; cut the index, remove the snapshot.

        Returns the disk, the index's name, and the index's bytes before the cut.
        """
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 5)
        log.roll()
        end(log, 5, commit=False)
        put(log, 1)
        directory.close()
        env.files.remove(path_of("00000000000000000002.snapshot"))
        index = "00000000000000000002.txnindex"
        before = read(env, index)
        write(env, index, before[:20])
        return env, index, before

    def test_without_a_snapshot_the_earlier_segments_tell_the_open_transactions(self) -> None:
        env, index, before = self.without_snapshot()
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            put(log, 1)
            assert offsets(log.records(isolation=COMMITTED)) == [0, 3, 4]
        assert read(env, index) == before

    def test_no_append_follows_if_the_open_transactions_before_are_unknown(self) -> None:
        """Damage in the earlier segment may hide the transaction that this marker ends."""
        env, index, before = self.without_snapshot()
        env.files.remove(path_of("00000000000000000000.zones"))
        data = bytearray(read(env, FIRST_LOG))
        data[16] = 9  # the format of the first batch
        write(env, FIRST_LOG, bytes(data))
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            with pytest.raises(DamagedLog, match=r"00000000000000000000\.log"):
                put(log, 1)
            with pytest.raises(CorruptIndex, match=index):
                list(log.records(2, isolation=COMMITTED))
        assert read(env, index) == before[:20]

    def test_an_empty_index_is_not_rebuilt_up_to_damage(self) -> None:
        env, directory, log = new_log({**ONE_BY_ONE, "index.interval.bytes": "0"})
        transact(log, 5)
        end(log, 5, commit=False)
        transact(log, 7)
        transact(log, 6)
        end(log, 6, commit=False)
        end(log, 7, commit=True)
        put(log, 1)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        damaged = list(walk(bytes(data)))[2]
        data[damaged.at + 65] ^= 1
        write(env, FIRST_LOG, bytes(data))
        write(env, "00000000000000000000.txnindex", b"")
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            with pytest.raises(DamagedLog, match=r"00000000000000000000\.log"):
                put(directory.log(TOPIC, 0), 1)
            assert read(env, "00000000000000000000.txnindex") == b""

    def test_a_truncation_rebuilds_the_index_of_a_finished_segment_first(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        for _ in range(3):
            put(log, 1)
            log.roll()
        directory.close()
        (index,) = [name for name in names(env) if name.endswith(".txnindex")]
        before = read(env, index)
        write(env, index, before[:20])
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            assert log.truncate_to(3) == 3
            put(log, 1)
            assert offsets(log.records(isolation=COMMITTED)) == [0, 3]
        assert read(env, index) == before
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [0, 3]

    @staticmethod
    def damaged_end() -> SeededEnv:
        """Stop a log with a cut index in a finished segment whose last batch is damaged."""
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        log.roll()
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        put(log, 1)
        for _ in range(2):
            log.roll()
            put(log, 1)
        directory.close()
        index, name = "00000000000000000001.txnindex", "00000000000000000001.log"
        write(env, index, read(env, index)[:20])
        data = bytearray(read(env, name))
        data[-1] ^= 1  # in the batch at offset 5
        write(env, name, bytes(data))
        return env

    @pytest.mark.parametrize(("offset", "left"), [(1, [0]), (2, [0, 1]), (5, [0, 1, 4])])
    def test_a_truncation_needs_no_batch_that_it_removes(
        self, offset: int, left: list[int]
    ) -> None:
        env = self.damaged_end()
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            assert log.truncate_to(offset) == offset
            assert offsets(log.records(isolation=COMMITTED)) == left
            put(log, 1)
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [*left, offset]

    @pytest.mark.parametrize("is_rolled", [True, False])
    def test_a_truncation_at_an_abort_marker_forgets_the_abort(self, is_rolled: bool) -> None:
        env, _, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        end(log, 5, commit=False)
        if is_rolled:
            log.roll()
        put(log, 2)
        assert log.truncate_to(1) == 1
        end(log, 5, commit=True)
        for view in (log, reader_of(env)):
            assert offsets(view.records(isolation=COMMITTED)) == [0]

    def test_a_truncation_that_can_t_rebuild_it_changes_nothing(self) -> None:
        env = self.damaged_end()
        data = bytearray(read(env, self.LOG))
        data[list(walk(bytes(data)))[3].at + 65] ^= 1  # in the batch at offset 4
        write(env, self.LOG, bytes(data))
        before = {name: read(env, name) for name in names(env)}
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            with pytest.raises(CorruptBatch, match=r"00000000000000000001\.log"):
                log.truncate_to(5)
            assert (log.failure, log.end_offset()) == (None, 8)
        assert before.items() <= {name: read(env, name) for name in names(env)}.items()

    def test_a_read_that_fails_before_a_truncation_changes_nothing(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        put(log, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        log.roll()
        put(log, 1)
        directory.close()
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            env.files.reads.fault = Fault(env.files.reads.calls, FaultKind.EIO)
            with pytest.raises(StorageFailure, match="truncate failed"):
                log.truncate_to(3)
            env.files.reads.fault = None
            assert (log.failure, log.end_offset()) == (None, 5)
            assert log.truncate_to(3) == 3

    def test_a_marker_that_can_t_be_read_makes_the_partition_read_only(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        directory.close()
        data = bytearray(read(env, FIRST_LOG))
        (marker,) = [each.at for each in walk(bytes(data)) if each.is_control]
        size = 12 + int.from_bytes(data[marker + 8 : marker + 12])
        data[marker + 22] |= 6  # a codec that does not exist
        data[marker + 17 : marker + 21] = crc32c(data[marker + 21 : marker + size]).to_bytes(4)
        write(env, FIRST_LOG, bytes(data))
        write(env, "00000000000000000000.txnindex", b"\x00" * 20)
        writable = LogDirOptions(writable=True)
        with (
            LogDir.open(PATH, env=env, options=writable) as directory,
            pytest.raises(DamagedLog, match="codec 6"),
        ):
            put(directory.log(TOPIC, 0), 1)

    def test_no_append_follows_if_the_batches_are_damaged_too(self) -> None:
        env, before = self.stopped()
        write(env, self.INDEX, before[:20])
        data = bytearray(read(env, self.LOG))
        data[70] ^= 1  # in the first batch, which is not read after a clean stop
        write(env, self.LOG, bytes(data))
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as directory:
            log = directory.log(TOPIC, 0)
            with pytest.raises(DamagedLog, match=self.LOG):
                put(log, 1)
            with pytest.raises(CorruptIndex, match=self.INDEX):
                list(log.records(isolation=COMMITTED))
        assert read(env, self.INDEX) == before[:20]


class TestAnIndexDamagedWhileTheLogIsOpen:
    """The marker of an abort is written, but its entry can't be added to the damaged index."""

    def test_the_partition_goes_offline_and_the_next_opening_rebuilds_the_index(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        end(log, 5, commit=False)
        transact(log, 5, sequence=1)
        transact(log, 6)
        put(log, 1)
        log.roll()
        put(log, 1)
        log.truncate_to(4)  # makes the first segment active; its index is unread
        write(env, "00000000000000000000.txnindex", b"\x00" * 20)
        with pytest.raises(StorageFailure, match=r"append failed: .*txnindex.*incomplete entry"):
            end(log, 5, commit=False)
        with pytest.raises(StorageFailure, match="the partition is offline"):
            put(log, 1)
        assert offsets(log.records()) == [0, 2, 3]
        with pytest.raises(StorageFailure):
            directory.close()
        directory, log = reopen(env)
        assert len(read(env, "00000000000000000000.txnindex")) == 2 * TXN_ENTRY_SIZE
        assert (log.last_stable_offset, log.end_offset()) == (3, 5)
        end(log, 6, commit=True)
        assert offsets(log.records(isolation=COMMITTED)) == [3]
        directory.close()
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == [3]

    def test_a_roll_that_must_sync_the_index(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        put(log, 1)
        log.roll()
        log.truncate_to(3)
        write(env, "00000000000000000000.txnindex", b"\x00" * 20)
        directory.alter_config(TOPIC, {"segment.ms": "10"})
        with pytest.raises(StorageFailure, match=r"roll failed: .*txnindex.*incomplete entry"):
            put(log, 5000)
        with pytest.raises(StorageFailure, match="the partition is offline"):
            put(log, 1)
        assert offsets(log.records()) == [0, 2]
        directory.abandon()
        _, log = reopen(env)
        put(log, 1)
        assert offsets(log.records(isolation=COMMITTED)) == [2, 3]

    def test_a_close_that_must_sync_the_index(self) -> None:
        """If the close of one partition fails, the directory still closes its other partition."""
        env = seeded_env(1)
        directory = new_dir(env, ONE_BY_ONE, partitions=2)
        log, other = directory.log(TOPIC, 0), directory.log(TOPIC, 1)
        transact(log, 5)
        end(log, 5, commit=False)
        put(log, 1)
        put(log, 1)
        put(other, 1)
        log.roll()
        log.truncate_to(3)
        write(env, "00000000000000000000.txnindex", b"\x00" * 20)
        with pytest.raises(StorageFailure, match=r"close failed: .*txnindex.*incomplete entry"):
            directory.close()
        with pytest.raises(Closed):
            put(other, 1)
        directory, log = reopen(env)
        put(log, 1)
        assert offsets(log.records(isolation=COMMITTED)) == [2, 3]
        assert offsets(directory.log(TOPIC, 1).records()) == [0]

    def test_an_entry_out_of_order(self) -> None:
        env, directory, log = new_log(ONE_BY_ONE)
        transact(log, 5)
        log.segments[-1].txn_index.append(AbortedTxn(7, 0, 9, 0))
        with pytest.raises(StorageFailure, match=r"append failed: .* does not follow the one"):
            end(log, 5, commit=False)
        with pytest.raises(StorageFailure, match="the partition is offline"):
            end(log, 5, commit=False)
        assert (log.end_offset(), offsets(log.records())) == (1, [0])
        directory.abandon()
        _, log = reopen(env)
        assert (log.last_stable_offset, log.end_offset()) == (2, 2)
        assert offsets(log.records(isolation=COMMITTED)) == []


class TestAMissingIndexOfAbortedTransactions:
    """If neither an index nor a zone map exists, reads use the batches, with the same results."""

    @staticmethod
    def stopped() -> tuple[SeededEnv, list[int]]:
        """Return a closed log with transactions in three segments, and the committed offsets."""
        env, directory, log = new_log()
        put(log, 1)
        transact(log, 5)
        transact(log, 8)
        log.roll()
        transact(log, 6, count=2)
        end(log, 6, commit=False)
        end(log, 5, commit=False)
        transact(log, 6, sequence=2)
        log.roll()
        end(log, 6, commit=True)
        transact(log, 6, sequence=3)
        end(log, 6, commit=False)
        end(log, 8, commit=False)
        put(log, 2)
        log.roll()
        put(log, 3)
        seen = offsets(log.records(isolation=COMMITTED))
        directory.close()
        assert len([name for name in names(env) if name.endswith(".txnindex")]) == 2
        return env, seen

    @pytest.mark.parametrize("gone", [(".txnindex",), (".txnindex", ".snapshot")])
    @pytest.mark.parametrize("number", [0, 1, None])
    def test_readers_see_the_same(self, gone: tuple[str, ...], number: int | None) -> None:
        env, seen = self.stopped()
        indexes = [name for name in names(env) if name.endswith(".txnindex")]
        kept = set() if number is None else {indexes[number]}
        for name in names(env):
            if name.endswith((*gone, ".zones")) and name not in kept:
                env.files.remove(path_of(name))
        directory = LogDir.open(PATH, env=env)
        reader = directory.reader(TOPIC, 0)
        assert offsets(reader.records(isolation=COMMITTED)) == seen
        assert any("txnindex: missing; rebuilt in memory" in line for line in directory.reports)
        planned = plan(directory, TOPIC, isolation=COMMITTED)
        table = to_table(planned.splits, ("offset",), options=ReadOptions(env=env))
        assert table["offset"].to_pylist() == seen
        # A zone map that a writer builds must not state that the segment has no index.
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as writing:
            log = writing.log(TOPIC, 0)
            zone_map_files.build_missing(log.segments)
            assert offsets(log.records(isolation=COMMITTED)) == seen
        assert set(indexes) <= set(names(env))
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == seen

    def test_an_empty_index_is_restored_before_a_zone_map_records_it(self) -> None:
        env, seen = self.stopped()
        indexes = {name: read(env, name) for name in names(env) if name.endswith(".txnindex")}
        for name in indexes:
            write(env, name, b"")
            env.files.remove(path_of(name.replace(".txnindex", ".zones")))
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as writing:
            zone_map_files.build_missing(writing.log(TOPIC, 0).segments)
        assert {name: read(env, name) for name in indexes} == indexes
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == seen

    def test_a_reader_reads_an_index_again_that_the_writer_has_restored(self) -> None:
        env, seen = self.stopped()
        index = next(name for name in names(env) if name.endswith(".txnindex"))
        written = read(env, index)
        for name in names(env):
            if name.endswith(".zones"):
                env.files.remove(path_of(name))
        write(env, index, written[:TXN_ENTRY_SIZE])
        reader = reader_of(env)
        assert offsets(reader.records(isolation=COMMITTED)) != seen
        write(env, index, written)
        reader.refresh()
        assert offsets(reader.records(isolation=COMMITTED)) == seen

    def test_an_entry_of_the_file_is_used_instead_of_the_rebuilt_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Snapshots may lack a transaction's start, so a rebuilt entry can begin too late."""
        env, directory, log = new_log()
        for sequence in (0, 2):
            transact(log, 5, count=2, sequence=sequence)
            end(log, 5, commit=False)
        put(log, 1)
        seen = offsets(log.records(isolation=COMMITTED))
        assert len(seen) == 1
        directory.close()
        (index,) = [name for name in names(env) if name.endswith(".txnindex")]
        write(env, index, read(env, index)[:TXN_ENTRY_SIZE])

        def rebuilt(*arguments: object, **more: object) -> TxnIndex:
            found = rebuild_txn_index(*arguments, **more)  # type: ignore[arg-type] # passed on unchanged
            first, *others = found.entries
            late = first._replace(first_offset=first.first_offset + 1)
            return TxnIndex(found.base_offset, [late, *others])

        monkeypatch.setattr("tidelog.storage.log.segment_list.rebuild_txn_index", rebuilt)
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == seen

    @pytest.mark.parametrize("clean", [True, False])
    def test_the_last_segment_gives_the_same_result(self, *, clean: bool) -> None:
        env, directory, log = new_log()
        transact(log, 5)
        log.roll()
        put(log, 1)
        end(log, 5, commit=False)
        transact(log, 5, sequence=1)
        end(log, 5, commit=True)
        transact(log, 5, sequence=2)
        end(log, 5, commit=False)
        seen = offsets(log.records(isolation=COMMITTED))
        assert len(seen) == 2
        (directory.close if clean else directory.abandon)()
        (index,) = [name for name in names(env) if name.endswith(".txnindex")]
        before = read(env, index)
        env.files.remove(path_of(index))
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == seen
        with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as writing:
            log = writing.log(TOPIC, 0)
            assert offsets(log.records(isolation=COMMITTED)) == seen
            assert read(env, index) == before
            transact(log, 5, sequence=3)
            end(log, 5, commit=False)
            assert offsets(log.records(isolation=COMMITTED)) == seen
        assert read(env, index)[: len(before)] == before
        assert offsets(reader_of(env).records(isolation=COMMITTED)) == seen

    def test_a_log_without_transactions_is_not_walked(self) -> None:
        env, directory, log = new_log()
        put(log, 1)
        log.roll()
        put(log, 2)
        directory.close()
        env.files.remove(path_of("00000000000000000000.zones"))
        reader = reader_of(env)
        end_offset = reader.end_offset()
        assert transaction_start(reader.context, end_offset) == end_offset
        assert offsets(reader.records(isolation=COMMITTED)) == [0, 1]
