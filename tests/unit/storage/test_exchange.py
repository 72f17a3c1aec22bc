"""After a crash during an exchange, readers see either all old segments or all new ones."""

from contextlib import suppress

import pytest
from tests.core import thinned
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, reopen, seeded_env
from tests.faults.seeded import SeededEnv
from tests.worlds.directories.staged import ROOT, T0, TOPIC, WRITABLE

from tidelog.env import Env
from tidelog.errors import CorruptData, InvalidRequest, StorageFailure, UnknownTopic
from tidelog.record.builder import build_batch
from tidelog.storage.directory.attach import exchange
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.staging import NewSegment, staging_path
from tidelog.storage.log.log import Log
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

NAME = TopicPartition(TOPIC, 0)
ROUNDS, BATCHES = 4, 3


def make_directory(env: SeededEnv) -> None:
    """Create four finished segments of three batches, one record each, and an active segment."""
    with LogDir.open(ROOT, env=env, options=LogDirOptions(create=True)) as log_dir:
        # An exchange may remove records only if the topic is compacted.
        config = {"index.interval.bytes": "1", "cleanup.policy": "compact"}
        log_dir.create_topic(TOPIC, config=config)
        log = log_dir.log(TOPIC, 0)
        for number in range(ROUNDS * BATCHES):
            env.clock.advance(10)
            log.append([NewRecord(key=b"k", value=b"%d" % number, timestamp=T0 + number)])
            if number % BATCHES == BATCHES - 1:
                log.roll()
        log.append([NewRecord(key=b"k", value=b"active", timestamp=T0 + 100)])


def batches_at(log: Log, keep: tuple[int, ...]) -> bytes:
    """Return the bytes of the batches with these base offsets."""
    found = bytearray()
    for part in log.slices(0, ROUNDS * BATCHES):
        for position, batch in part.batches():
            if batch.base_offset in keep:
                found += part.segment.view(position, position + batch.size_bytes)
    return bytes(found)


def stage(env: Env, name: str, base_offset: int, data: bytes) -> NewSegment:
    file = env.files.open(staging_path(ROOT, NAME, name), create=True)
    file.pwrite(data, 0)
    file.close()
    return NewSegment(name=name, base_offset=base_offset, size_bytes=len(data))


def staged(env: Env, log: Log) -> list[NewSegment]:
    """Stage two new segments: the first replaces two old segments, the second replaces one."""
    return [
        stage(env, "clean-0", 0, batches_at(log, (0, 3))),
        stage(env, "clean-1", 6, batches_at(log, (6,))),
    ]


BEFORE = [*range(12), 12]
AFTER = [0, 3, 6, 9, 10, 11, 12]


def offsets(env: Env) -> list[int]:
    with LogDir.open(ROOT, env=env) as log_dir:
        return [record.offset for record in log_dir.reader(TOPIC, 0).records()]


def times(log_dir: LogDir, env: SeededEnv) -> None:
    """Check that a search finds each record by its time; no append time may be in the future."""
    log = log_dir.reader(TOPIC, 0)
    start = env.clock.now_ms()
    for record in log.records():
        known = log.append_time_of(record.offset)
        assert known is None or known <= start
        found = log.offset_for_time(record.timestamp)
        assert found is not None
        assert found.offset == record.offset


def test_new_segments_in_the_place_of_old_ones() -> None:
    env = seeded_env(1)
    make_directory(env)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log = log_dir.log(TOPIC, 0)
        before = {offset: log.append_time_of(offset) for offset in BEFORE}
        done = exchange(log_dir, NAME, [0, 3, 6], staged(env, log))
        assert (done.segments_before, done.segments_after) == (3, 2)
        assert done.bytes_before == 3 * done.bytes_after
        assert [segment.base_offset for segment in log.segments] == [0, 6, 9, 12]
        assert [record.offset for record in log.records()] == AFTER
        assert {n: log.append_time_of(n) for n in AFTER} == {n: before[n] for n in AFTER}
        log.append([NewRecord(key=b"k", value=b"more", timestamp=T0 + 200)])
        times(log_dir, env)
        assert log_dir.reports == []
    with LogDir.open(ROOT, env=env) as log_dir:
        log_reader = log_dir.reader(TOPIC, 0)
        assert [record.offset for record in log_reader.records()] == [*AFTER, 13]
        assert {n: log_reader.append_time_of(n) for n in AFTER} == {n: before[n] for n in AFTER}
        times(log_dir, env)
        assert log_dir.reports == []
    names = [entry.name for entry in env.files.list_dir(f"{ROOT}/{TOPIC}-0")]
    assert not [name for name in names if name.startswith("00000000000000000003")]
    assert not [name for name in names if ".sta" in name or name.endswith(".deleted")]
    # All finished segments have zone maps, including the segments that the exchange added.
    assert {f"{base:020}.zones" for base in (0, 6, 9)} <= set(names)


def test_aborted_transactions_stay_aborted() -> None:
    env = seeded_env(1)
    with LogDir.open(ROOT, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        for number in range(2):
            data = build_batch(
                [NewRecord(key=b"k", value=b"t%d" % number, timestamp=T0)],
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
                transactional=True,
            )
            log.append_batches(bytes(data))
            log.end_transaction(
                producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=number == 1
            )
            log.roll()
        new = [stage(env, "clean", 0, batches_at(log, (0, 1, 2, 3)))]
        exchange(log_dir, NAME, [0, 2], new)
        committed = [r.value for r in log.records(isolation=IsolationLevel.READ_COMMITTED)]
        assert committed == [b"t1"]
    with LogDir.open(ROOT, env=env) as log_dir:
        reader = log_dir.reader(TOPIC, 0)
        committed = [r.value for r in reader.records(isolation=IsolationLevel.READ_COMMITTED)]
        assert committed == [b"t1"]


def judge(files: DamageFileSystem, env: SeededEnv) -> bool:
    """Check that readers find all old or all new segments; return whether they find new ones."""
    again = seeded_env(99, files=files)
    again.clock.set(env.clock.now_ms())
    outcomes = []
    for _ in range(2):
        found = offsets(again)
        assert found in (BEFORE, AFTER), found
        outcomes.append(found == AFTER)
        with LogDir.open(ROOT, env=again, options=WRITABLE) as log_dir:
            log = log_dir.log(TOPIC, 0)
            found = [record.offset for record in log.records()]
            assert found in (BEFORE, AFTER), found
            outcomes.append(found == AFTER)
            times(log_dir, again)
    assert outcomes == sorted(outcomes)  # once seen, new segments stay
    assert outcomes[1] == outcomes[-1]
    return outcomes[-1]


def done_once() -> tuple[SeededEnv, int]:
    """Run an exchange and return its environment and the number of journaled calls."""
    env = seeded_env(1)
    make_directory(env)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log = log_dir.log(TOPIC, 0)
        new = staged(env, log)
        env.files.settle()
        exchange(log_dir, NAME, [0, 3, 6], new)
        return env, len(env.files.journal)


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call(keep: Keep) -> None:
    env, count = done_once()
    states = list(env.files.prefixes(keep))[: count + 1]
    outcomes = [judge(reopen(state), env) for state in states]
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]
    assert outcomes[-1]


def test_power_loss_in_seeded_ways() -> None:
    env, _ = done_once()
    outcomes = {judge(reopen(state), env) for state in env.files.crash_states(thinned(range(250)))}
    assert outcomes == {True, False}


def test_every_call_fails_once() -> None:
    """After a failure, the open log has the old segments. Reopened, it has all old or all new."""
    env = seeded_env(1)
    make_directory(env)
    env.files.settle()
    clean = env.files.crash(Keep.SYNCED)
    told = 0
    for call in range(2, 200, 2):
        again = seeded_env(1, files=reopen(clean, fault=Fault(call, FaultKind.EIO)))
        again.clock.set(env.clock.now_ms())
        failure = None
        with suppress(StorageFailure, OSError):
            log_dir = LogDir.open(ROOT, env=again, options=WRITABLE)
            log = log_dir.log(TOPIC, 0)
            new = staged(again, log)
            try:
                exchange(log_dir, NAME, [0, 3, 6], new)
            except StorageFailure as error:
                failure = error
                told += 1
            if log.failure is None:
                found = [record.offset for record in log.records()]
                assert found == (AFTER if failure is None else BEFORE), call
            log_dir.close()
        judge(reopen(again.files.crash(Keep.EVERYTHING)), env)
    assert told > 15


@pytest.mark.parametrize(
    ("bases", "said"),
    [([], "consecutive"), ([0, 6], "consecutive"), ([9, 12], "consecutive"), ([1], "there are")],
)
def test_segments_that_cannot_be_exchanged(bases: list[int], said: str) -> None:
    env = seeded_env(1)
    make_directory(env)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        with pytest.raises(InvalidRequest, match=said):
            exchange(log_dir, NAME, bases, staged(env, log_dir.log(TOPIC, 0)))
        with pytest.raises(UnknownTopic):
            exchange(log_dir, TopicPartition("t", 0), [0], [])


def test_new_segments_that_do_not_fit() -> None:
    env = seeded_env(1)
    make_directory(env)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        log = log_dir.log(TOPIC, 0)
        sound = batches_at(log, (3,))
        with pytest.raises(InvalidRequest, match="begin at offset 3"):
            exchange(log_dir, NAME, [3], [])
        with pytest.raises(InvalidRequest, match="begin at offset 3"):
            exchange(log_dir, NAME, [3], [stage(env, "a", 4, sound)])
        with pytest.raises(CorruptData, match="offset 9"):
            exchange(log_dir, NAME, [3], [stage(env, "b", 3, batches_at(log, (3, 9)))])
        with pytest.raises(CorruptData, match="offset 0"):
            exchange(log_dir, NAME, [3], [stage(env, "c", 3, batches_at(log, (0,)))])
        broken = bytearray(sound)
        broken[-1] ^= 1
        with pytest.raises(CorruptData, match="CRC-32C"):
            exchange(log_dir, NAME, [3], [stage(env, "d", 3, bytes(broken))])
        short = stage(env, "e", 3, sound[:-1])
        with pytest.raises(CorruptData, match="incomplete"):
            exchange(log_dir, NAME, [3], [short])
        with pytest.raises(InvalidRequest, match="file is missing"):
            exchange(log_dir, NAME, [3], [NewSegment(name="f", base_offset=3, size_bytes=1)])
        assert [record.offset for record in log.records()] == BEFORE
        assert log.failure is None
