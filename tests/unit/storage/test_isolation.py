"""Both isolation levels: open, committed and aborted transactions as readers see them."""

import pytest
from tests.unit.storage.logs import (
    batch,
    new_log,
    offsets,
    put,
    reader_of,
    write,
)

from tidelog.errors import CorruptIndex
from tidelog.storage.log import Log
from tidelog.types import IsolationLevel

COMMITTED = IsolationLevel.READ_COMMITTED
FIRST_LOG = "00000000000000000000.log"


def transact(log: Log, producer_id: int, sequence: int = 0, count: int = 1) -> None:
    data = batch(
        [1] * count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    log.append_batches(data)


def end(log: Log, producer_id: int, *, commit: bool) -> None:
    log.end_transaction(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commit=commit
    )


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

    def test_an_abort_is_seen_where_the_marker_lies_behind_the_range(self) -> None:
        """The entry is in the index of the marker's segment, whatever part is read."""
        _, _, log = new_log()
        transact(log, 5)
        log.roll()
        put(log, 1)
        log.roll()
        end(log, 5, commit=False)
        assert offsets(log.records(0, 1, isolation=COMMITTED)) == []
        assert offsets(log.records(0, 2, isolation=COMMITTED)) == [1]

    def test_reading_from_beyond_the_last_stable_offset_gives_nothing(self) -> None:
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
