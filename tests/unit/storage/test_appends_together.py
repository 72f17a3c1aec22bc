"""A failure of one log doesn't affect the other logs of an append to many logs."""

import gc
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.faults import Fault, FaultKind, seeded_env
from tests.unit.storage.test_short_way import PRODUCED, Way, append
from tests.worlds.directories.logs import new_dir, new_log

from tidelog.errors import InvalidRecord, OutOfOrderSequence, StorageFailure
from tidelog.record.buffers import is_free
from tidelog.record.builder import build_batch
from tidelog.storage.log.append_types import AppendResult
from tidelog.storage.log.log import Log, append_together
from tidelog.types import NewRecord


def plain(sequence: int | None = None) -> memoryview:
    """Return a batch; if `sequence` is given, the batch has a producer id and this sequence."""
    if sequence is None:
        return memoryview(build_batch([NewRecord(value=b"v", timestamp=1)]))
    records = [NewRecord(value=b"v", timestamp=1)]
    return memoryview(build_batch(records, producer_id=5, producer_epoch=0, base_sequence=sequence))


def append_results(logs: Sequence[Log], batches: Sequence[memoryview]) -> list[str]:
    """Append the batches; return for each batch its first offset, or the class of its error."""
    return [
        str(outcome.base_offset) if isinstance(outcome, AppendResult) else type(outcome).__name__
        for outcome in append_together(list(zip(logs, batches, strict=True)), PRODUCED)
    ]


def test_an_error_of_one_log_affects_no_other() -> None:
    directory = new_dir(seeded_env(1), partitions=4)
    logs = [directory.log("t", number) for number in range(4)]
    append(logs[2], bytes(plain(0)), Way.COPIED)
    assert append_results(logs, [plain(), plain()[:-1], plain(7), plain()]) == [
        "0",
        InvalidRecord.__name__,
        OutOfOrderSequence.__name__,
        "0",
    ]
    assert [log.log_end_offset for log in logs] == [1, 0, 1, 1]
    directory.close()


@pytest.mark.parametrize("call", range(6))
def test_a_disk_that_fails_one_log_fails_no_other(call: int) -> None:
    """All logs first write their rows of append times; after that, all logs write their batches."""
    env = seeded_env(1)
    directory = new_dir(env, partitions=3)
    logs = [directory.log("t", number) for number in range(3)]
    for log in logs:
        append(log, bytes(plain()), Way.COPIED)
    env.clock.advance(1)
    env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
    failed = call % 3
    expected = [StorageFailure.__name__ if n == failed else "1" for n in range(3)]
    assert append_results(logs, [plain() for _ in logs]) == expected
    assert [log.failure is not None for log in logs] == [n == failed for n in range(3)]
    assert [log.log_end_offset for log in logs] == [1 if n == failed else 2 for n in range(3)]
    env.clock.advance(1)
    assert append_results(logs, [plain() for _ in logs]) == [
        StorageFailure.__name__ if n == failed else "2" for n in range(3)
    ]


@pytest.mark.parametrize("call", range(6))
def test_a_failure_is_reported_once_every_log_is_at_rest(call: int) -> None:
    """The callback of a failure may append, so it is called only after all steps of the appends.

    Between two steps, the callback could append at the offset of a batch that is being appended.
    """
    env = seeded_env(1)
    directory = new_dir(env, partitions=3)
    logs = [directory.log("t", number) for number in range(3)]
    for log in logs:
        append(log, bytes(plain()), Way.COPIED)
    env.clock.advance(1)
    failed, other = logs[call % 3], logs[(call + 1) % 3]
    ends: list[int] = []

    def append_to_other() -> None:
        ends.append(other.log_end_offset)
        append(other, bytes(plain()), Way.COPIED)

    failed.guard.call_on_failure(append_to_other)
    env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
    append_results(logs, [plain() for _ in logs])
    assert ends == [2]
    assert [record.offset for record in other.records()] == [0, 1, 2]


def test_a_refused_batch_leaves_its_buffer_at_once() -> None:
    """The buffer is free for another use at once, even without a garbage collection."""
    _, _, log = new_log()
    append(log, bytes(plain(0)), Way.IN_PLACE)
    buffer = bytearray(plain(7))
    gc.collect()
    gc.disable()
    try:
        assert append_results([log], [memoryview(buffer)]) == [OutOfOrderSequence.__name__]
        assert is_free(buffer)
    finally:
        gc.enable()


@pytest.mark.parametrize("call", [0, 1])
def test_a_disk_that_fails_leaves_a_request_s_buffer_at_once(call: int) -> None:
    """After a failed write of a row or batch, the log's error has no reference to the request."""
    env, _, log = new_log()
    append(log, bytes(plain()), Way.IN_PLACE)
    env.clock.advance(1)
    buffer = bytearray(plain())
    env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
    gc.collect()
    gc.disable()
    try:
        with suppress(StorageFailure):
            log.append_batches(memoryview(buffer), PRODUCED)
        assert log.failure is not None
        assert is_free(buffer)
    finally:
        gc.enable()
