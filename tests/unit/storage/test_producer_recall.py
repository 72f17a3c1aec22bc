"""Batches of producers that lie before a snapshot: found again near it, and no harm where not."""

import errno

import pytest
from tests.faults import START_MS, DamageFileSystem, Fault, FaultKind, SeededEnv
from tests.unit.storage.logs import SMALL, batch, new_log, reader_of, reopen
from tests.unit.storage.tiers.tiered import Tiered

from tidelog.env import File
from tidelog.errors import OutOfOrderSequence, StorageFailure
from tidelog.storage import producer_recall
from tidelog.storage.log import Log
from tidelog.types import NewRecord

DAY_MS = 86_400_000
IN_FLIGHT = 5


def sent(count: int, *, producer_id: int = 5, first_ms: int = START_MS) -> list[bytes]:
    """Batches of one record each, numbered from 0 on."""
    return [
        bytes(batch([first_ms + n], producer_id=producer_id, producer_epoch=0, base_sequence=n))
        for n in range(count)
    ]


def put_all(log: Log, batches: list[bytes]) -> list[bool]:
    """Append them; which were known."""
    return [log.append_batches(bytearray(each)).is_duplicate for each in batches]


def with_five(config: dict[str, str] | None = None) -> tuple[SeededEnv, list[bytes]]:
    """A log that was closed behind five batches."""
    env, directory, log = new_log(config)
    batches = sent(IN_FLIGHT)
    put_all(log, batches)
    directory.close()
    return env, batches


def test_the_window_ends_at_the_snapshot_whatever_was_appended_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_recall, "RECALL_BYTES", 4_000)
    env, batches = with_five({"index.interval.bytes": "0"})
    directory, log = reopen(env)
    put_all(log, sent(100, producer_id=6))
    assert log.active.size_bytes > 4_000 + len(batches[0]) * IN_FLIGHT
    directory.abandon()
    _, log = reopen(env)
    assert put_all(log, batches) == [True] * IN_FLIGHT


def test_what_lies_before_the_window_is_known_by_the_last_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, batches = with_five({"index.interval.bytes": "0"})
    monkeypatch.setattr(producer_recall, "RECALL_BYTES", len(batches[0]) - 1)
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


def refused_openings() -> tuple[int, int]:
    """How many reads an opening makes, and how many of them must not fail."""
    env, _ = with_five()
    before = env.files.reads.calls
    directory, _ = reopen(env)
    count = env.files.reads.calls - before
    directory.close()
    refused = 0
    for nth in range(count):
        env, _ = with_five()
        env.files.reads.fault = Fault(env.files.reads.calls + nth, FaultKind.EIO)
        try:
            reopen(env)
        except StorageFailure:
            refused += 1
    return count, refused


def test_no_read_of_the_window_keeps_a_partition_from_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, refused = refused_openings()
    monkeypatch.setattr(producer_recall, "RECALL_BYTES", 0)
    count_without, refused_without = refused_openings()
    assert count > count_without
    assert refused == refused_without


def test_append_times_that_fail_to_be_read_make_nobody_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, directory, log = new_log()
    put_all(log, sent(1))
    log.roll()
    log.append([NewRecord(value=b"v")])
    directory.close()
    env.clock.advance(2 * DAY_MS)
    name, open_file = f"{0:020}.appendtime", type(env.files).open

    def refuse(
        disk: DamageFileSystem, path: str, *, write: bool = False, create: bool = False
    ) -> File:
        if path.endswith(name):
            raise OSError(errno.EIO, "refused", path)
        return open_file(disk, path, write=write, create=create)

    monkeypatch.setattr(type(env.files), "open", refuse)
    _, log = reopen(env)
    assert 5 in log.producer_states().producers


def test_a_reader_looks_for_no_earlier_batches() -> None:
    env, _ = with_five()
    reader = reader_of(env)
    assert [len(each.batches) for each in reader.producer_states().producers.values()] == [1]


def test_who_wrote_old_records_is_known_when_they_are_deleted() -> None:
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
