"""Duplicates of batches before a producer snapshot are recognized within a window of the log."""

import errno

import pytest
from tests.faults import START_MS, Fault, FaultKind, SeededEnv
from tests.unit.storage.tiers.tiered import Tiered
from tests.worlds.directories.logs import SMALL, batch, new_log, reader_of, reopen, watched

from tidelog.errors import OutOfOrderSequence, StorageFailure
from tidelog.record.builder import build_batch
from tidelog.storage.log.log import Log
from tidelog.storage.log.producer_loading import RECALL_BYTES
from tidelog.types import NewRecord

DAY_MS = 86_400_000
IN_FLIGHT = 5
LARGE = {"max.message.bytes": "10000000", "index.interval.bytes": "0"}
# Record value that is larger than the part of the log that is searched for recent batches.
FAR = bytes(RECALL_BYTES + 100_000)


def sent(
    count: int, *, producer_id: int = 5, first_ms: int = START_MS, value: bytes = b"v"
) -> list[bytes]:
    """Return batches of one record, with sequence numbers from 0."""
    return [
        bytes(
            build_batch(
                [NewRecord(value=value, timestamp=first_ms + n)],
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=n if producer_id >= 0 else -1,
            )
        )
        for n in range(count)
    ]


def put_all(log: Log, batches: list[bytes]) -> list[bool]:
    """Append the batches; return for each one whether it was a duplicate."""
    return [log.append_batches(bytearray(each)).is_duplicate for each in batches]


def with_five(*, value: bytes = b"v") -> tuple[SeededEnv, list[bytes]]:
    """Write five batches and close the log; return the disk and the batches."""
    env, directory, log = new_log(LARGE)
    batches = sent(IN_FLIGHT, value=value)
    put_all(log, batches)
    directory.close()
    return env, batches


def test_the_window_ends_at_the_snapshot_despite_later_appends() -> None:
    env, batches = with_five()
    directory, log = reopen(env)
    put_all(log, sent(2, producer_id=6, value=FAR))
    directory.abandon()
    _, log = reopen(env)
    assert put_all(log, batches) == [True] * IN_FLIGHT


def test_only_the_last_batch_before_the_window_is_recognized() -> None:
    env, batches = with_five(value=FAR)
    _, log = reopen(env)
    with pytest.raises(OutOfOrderSequence):
        put_all(log, batches)
    assert put_all(log, batches[-1:]) == [True]


def test_batches_of_other_epochs_and_producers_stay_apart() -> None:
    env, directory, log = new_log()
    others = sent(3, producer_id=6)
    old = batch([START_MS], producer_id=5, producer_epoch=0, base_sequence=0)
    new = batch([START_MS], producer_id=5, producer_epoch=1, base_sequence=0)
    put_all(log, [bytes(old), *others, bytes(new)])
    before = log.producer_states().producers
    directory.close()
    _, log = reopen(env)
    assert log.producer_states().producers == {5: before[5], 6: before[6]}


def test_no_read_of_the_window_keeps_a_partition_from_opening() -> None:
    """If a read fails, the partition opens with its producer's last batch, or does not open at all.

    The partition fails to open no more often than a partition to which no producer wrote.
    """

    def closed(producer_id: int) -> SeededEnv:
        env, directory, log = new_log(LARGE)
        put_all(log, sent(IN_FLIGHT, producer_id=producer_id))
        directory.close()
        return env

    def refused(producer_id: int) -> int:
        env = closed(producer_id)
        before = env.files.reads.calls
        directory, _ = reopen(env)
        count, failed = env.files.reads.calls - before, 0
        directory.close()
        for nth in range(count):
            env = closed(producer_id)
            env.files.reads.fault = Fault(env.files.reads.calls + nth, FaultKind.EIO)
            try:
                _, log = reopen(env)
            except StorageFailure:
                failed += 1
            else:
                known = log.producer_states().producers
                assert [len(each.batches) for each in known.values()] == [1]
        return failed

    assert refused(5) == refused(-1)


def test_unreadable_append_times_expire_no_producer() -> None:
    env, directory, log = new_log()
    put_all(log, sent(1))
    log.roll()
    log.append([NewRecord(value=b"v")])
    directory.close()
    env.clock.advance(2 * DAY_MS)

    def refuse(path: str) -> None:
        if path.endswith(f"{0:020}.appendtime"):
            raise OSError(errno.EIO, "refused", path)

    surroundings, disk = watched(env)
    disk.before_open = refuse
    _, log = reopen(surroundings)
    assert 5 in log.producer_states().producers


def test_a_reader_looks_for_no_earlier_batches() -> None:
    env, _ = with_five()
    reader = reader_of(env)
    assert [len(each.batches) for each in reader.producer_states().producers.values()] == [1]


def test_a_producer_of_old_records_is_known_after_their_deletion() -> None:
    env, _, log = new_log({"retention.ms": str(7 * DAY_MS)} | SMALL)
    batches = sent(IN_FLIGHT, first_ms=0)
    put_all(log, batches)
    log.apply_retention()
    assert log.log_start_offset == log.log_end_offset
    log.producer_states().expire(env.clock.now_ms() + DAY_MS - 1, DAY_MS)
    assert put_all(log, batches) == [True] * IN_FLIGHT


def test_a_store_that_is_down_keeps_no_partition_from_opening() -> None:
    made = Tiered().start(local_retention_bytes="0")
    for each in sent(3):
        made.log.append_batches(bytearray(each))
        made.log.roll()
    made.fill(10)
    made.move()
    made.log.apply_retention()
    assert made.log.segments[0].is_tiered
    made.directory.close()
    made.base.clock.advance(DAY_MS + 1)
    calls = made.store.calls
    _, log = reopen(made.env)
    assert made.store.calls == calls
    assert 5 not in log.producer_states().producers
