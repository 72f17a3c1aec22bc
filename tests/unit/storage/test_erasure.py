"""After an erasure, at most a tombstone of the key is left; other records are unchanged."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import Fault, FaultKind, Keep, SeededEnv, reopen, seeded_env
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    WRITABLE,
    names,
    new_dir,
    path_of,
    read,
    write,
)

from tidelog.directory import Directory
from tidelog.errors import (
    CorruptFile,
    InexactTable,
    StorageFailure,
    UnsupportedForMessageFormat,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.legacy import build_legacy_message
from tidelog.record.record import Record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.erasure import UNREACHABLE, Erasure, erase, without_records
from tidelog.storage.files import read_file, write_atomically
from tidelog.types import Codec, Header, NewRecord

KEY = b"the one"
KEYS = [None, KEY, b"", b"another"]


def records_of(env: SeededEnv) -> list[Record]:
    with LogDir.open(PATH, env=env) as directory:
        return list(directory.reader(TOPIC, 0).records())


def run(env: SeededEnv, *, execute: bool = True, accepts_lost_times: bool = False) -> Erasure:
    options = LogDirOptions(writable=execute)
    with LogDir.open(PATH, env=env, options=options) as directory:
        return erase(directory, TOPIC, KEY, execute=execute, accepts_lost_times=accepts_lost_times)


@st.composite
def logs(draw: st.DrawFn) -> SeededEnv:
    """Draw a closed directory: segments, any codecs, transactions, and either timestamp type."""
    env = seeded_env(3)
    stamps = draw(st.booleans())
    config = {"message.timestamp.type": "LogAppendTime"} if stamps else {}
    log_dir = new_dir(env, {**SMALL, **config})
    log = log_dir.log(TOPIC, 0)
    sequence = 0
    for number in range(draw(st.integers(1, 12))):
        env.clock.advance(draw(st.integers(0, 5)))
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
        records = [
            NewRecord(
                key=key,
                value=draw(st.sampled_from([None, b"", b"v%d" % number])),
                timestamp=env.clock.now_ms() - draw(st.integers(0, 9)),
                headers=(Header("h", b"%d" % number),),
            )
            for key in keys
        ]
        codec = draw(st.sampled_from(list(Codec)))
        if draw(st.booleans()):
            log.append(records, codec=codec, batch_bytes=1 << 16)
            continue
        batch = build_batch(
            records,
            codec=codec,
            producer_id=9,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        log.append_batches(batch)
        sequence += len(records)
        commit = draw(st.booleans())
        log.end_transaction(producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=commit)
    log_dir.close()
    return env


@given(env=logs())
def test_no_record_of_the_key_is_left_and_all_others_are_unchanged(env: SeededEnv) -> None:
    before = records_of(env)
    hit = [record.offset for record in before if record.key == KEY]
    done = run(env)
    assert done.is_complete
    assert sorted(at for one in done.searched for at in one.offsets) == hit
    after = records_of(env)
    kept = [record for record in before if record.key != KEY]
    stayed = [record for record in after if record.key != KEY]
    # If a batch with LogAppendTime is rewritten, a create time that equals the append time may
    # become unknown.
    known = [
        replace(one, create_timestamp=None) if other.create_timestamp is None else one
        for one, other in zip(kept, stayed, strict=True)
    ]
    assert stayed == known
    left = [record for record in after if record.key == KEY]
    assert [record.value for record in left] == ([None] if hit else [])
    assert [(0, record.offset) for record in left] == done.tombstones
    # A second run finds only the tombstones of the first run, and keeps them.
    again = run(env)
    assert (again.tombstones, again.receipt()["records"]) == (done.tombstones, 0)
    assert again.is_complete
    assert records_of(env) == after


def log_with_key() -> SeededEnv:
    env = seeded_env(4)
    log_dir = new_dir(env, SMALL)
    log = log_dir.log(TOPIC, 0)
    for number in range(30):
        key = KEY if number % 3 == 0 else b"k%d" % number
        log.append([NewRecord(key=key, value=b"%050d" % number)])
        env.clock.advance(10)
    log_dir.close()
    return env


def times_of(env: SeededEnv, offsets: range) -> list[int | None]:
    with LogDir.open(PATH, env=env) as directory:
        log = directory.reader(TOPIC, 0)
        return [log.append_time_of(offset) for offset in offsets]


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_append_times_that_could_be_restored_are_not_erased(is_lost: bool) -> None:
    env = log_with_key()
    before, records = times_of(env, range(30)), records_of(env)
    path = path_of(sorted(each for each in names(env) if each.endswith(".appendtime"))[1])
    data = read_file(env.files, path)
    if is_lost:
        env.files.remove(path)
    else:
        write_atomically(env.files, path, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    (note,) = run(env, execute=False).lost_times
    assert note.startswith(f"--execute is refused: {path}: ")
    with pytest.raises(CorruptFile, match="repeat the erasure with --accept-lost-times") as caught:
        run(env)
    assert caught.value.path == path
    assert records_of(env) == records  # without a tombstone
    write_atomically(env.files, path, data)
    done = run(env)
    assert done.is_complete
    assert not done.lost_times
    left = [record.offset for record in records if record.key != KEY]
    after = times_of(env, range(30))
    assert [after[offset] for offset in left] == [before[offset] for offset in left]


def test_an_erasure_that_accepts_lost_times_is_complete() -> None:
    env = log_with_key()
    before = times_of(env, range(30))
    lost = sorted(each for each in names(env) if each.endswith(".appendtime"))[1]
    env.files.remove(path_of(lost))
    assert not run(env, execute=False, accepts_lost_times=True).receipt()["executed"]
    done = run(env, accepts_lost_times=True)
    assert done.is_complete
    assert lost in done.receipt()["notes"][0]
    base, after = int(lost.partition(".")[0]), times_of(env, range(30))
    assert after[base + 1] is None or after[base + 2] is None
    kept = [offset for offset in range(base) if offset % 3]
    assert [after[offset] for offset in kept] == [before[offset] for offset in kept]
    assert not run(env).lost_times


def test_a_tombstone_below_the_log_start_is_erased() -> None:
    """No consumer can read a tombstone below the log start, so keeping it would have no effect."""
    env = log_with_key()
    ((_, hidden),) = run(env).tombstones
    with LogDir.open(PATH, env=env, options=WRITABLE) as log_dir:
        log_dir.log(TOPIC, 0).delete_records(hidden + 1)
    again = run(env)
    assert again.tombstones == [(0, hidden + 1)]
    assert again.receipt()["records"] == 1
    assert again.is_complete
    third = run(env)
    assert (third.tombstones, third.receipt()["records"]) == (again.tombstones, 0)


def test_a_search_changes_nothing_and_returns_the_offsets_of_the_key() -> None:
    env = log_with_key()
    found = run(env, execute=False)
    assert sum(len(one.offsets) for one in found.searched) == 10
    assert not found.is_complete
    assert [record.key for record in records_of(env)].count(KEY) == 10
    receipt = found.receipt()
    assert receipt["records"] == 10
    assert receipt["tombstones"] == []


def test_a_receipt_has_digests_of_searched_files_and_not_the_key() -> None:
    env = log_with_key()
    done = run(env)
    receipt = done.receipt()
    assert receipt["complete"]
    assert KEY.decode() not in str(receipt)
    assert receipt["key_sha256"] == hashlib.sha256(KEY).hexdigest()
    assert receipt["out_of_reach"] == list(UNREACHABLE)
    searched = {Path(one.path).name: one for one in done.left}
    for name, one in searched.items():
        content = read(env, name)
        assert one.sha256 == hashlib.sha256(content).hexdigest()
        assert one.size_bytes == len(content)
        assert b"%050d" % 0 not in content


@pytest.mark.parametrize("execute", [True, False])
def test_a_receipt_names_partitions_without_a_directory(execute: bool) -> None:
    env = log_with_key()
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.add_partitions(TOPIC, 2)
    folder = f"{PATH}/{TOPIC}-1"
    for entry in env.files.list_dir(folder):
        env.files.remove(f"{folder}/{entry.name}")
    env.files.remove_dir(folder)
    note = "partition 1 is listed in tidelog-topics.json, but has no directory; not searched"
    assert run(env, execute=execute).receipt()["notes"][0] == f"{TOPIC}: {note}"


def test_files_that_wait_for_their_deletion_are_removed() -> None:
    env = log_with_key()
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.log(TOPIC, 0)  # opening the log removes files left by an earlier process
        name = "00000000000000000000.log"
        write(env, f"{name}.deleted", read(env, name))
        done = erase(directory, TOPIC, KEY, execute=True)
    assert done.removed == [path_of(f"{name}.deleted")]
    assert not env.files.exists(path_of(f"{name}.deleted"))
    assert done.is_complete


class CountedOffsets(frozenset[int]):
    """Offsets that count how often one of them is visited or searched for."""

    steps = 0

    def __iter__(self) -> Iterator[int]:
        for offset in super().__iter__():
            CountedOffsets.steps += 1
            yield offset

    def __contains__(self, offset: object) -> bool:
        CountedOffsets.steps += 1
        return super().__contains__(offset)


def test_each_batch_is_compared_with_few_of_a_frequent_keys_offsets() -> None:
    batches = [
        RecordBatch(build_batch([NewRecord(key=KEY, value=b"v")], base_offset=offset))
        for offset in range(1_000)
    ]
    offsets = CountedOffsets(range(1, 1_000, 2))
    counts = [RecordBatch(without_records(batch, offsets)).record_count for batch in batches]
    assert counts == [1, 0] * 500
    assert CountedOffsets.steps < 5_000


def test_files_of_a_running_cleaning_are_reported_as_not_reached() -> None:
    env = log_with_key()
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.log(TOPIC, 0)
        name = "00000000000000000000.log"
        write(env, f"{name}.cleaned", read(env, name))
        done = erase(directory, TOPIC, KEY, execute=True)
    assert not done.is_complete
    assert any(".cleaned" in line for line in done.not_reached)


@pytest.mark.parametrize("execute", [False, True])
def test_damaged_bytes_that_a_repair_moved_are_reported_as_not_reached(execute: bool) -> None:
    env = log_with_key()
    name = "00000000000000000000.log.233.aside"
    write(env, name, KEY)
    done = run(env, execute=execute)
    assert not done.is_complete
    assert [line.partition(": ")[0] for line in done.not_reached] == [path_of(name)]


def test_files_that_a_power_loss_has_torn_do_not_prevent_an_erasure() -> None:
    env = log_with_key()
    own, other = "erase-1.log.staging", "load-1.log.staging"
    for name in (own, other):
        write(env, name, bytes(400))
    done = run(env, execute=False)
    assert {line.partition(": ")[0] for line in done.not_reached} == {path_of(own), path_of(other)}
    done = run(env)
    assert [line.partition(": ")[0] for line in done.not_reached] == [path_of(other)]
    assert [record.value for record in records_of(env) if record.key == KEY] == [None]
    env.files.remove(path_of(other))
    assert run(env).is_complete


def test_an_opening_removes_the_copy_of_a_log_file_that_a_crash_left_unfinished() -> None:
    env = log_with_key()
    name = "00000000000000000000.log.tmp"
    write(env, name, read(env, "00000000000000000000.log"))
    done = run(env)
    assert done.is_complete
    assert not env.files.exists(path_of(name))


def test_segments_staged_by_another_job_are_reported_for_any_topic_name() -> None:
    env = log_with_key()
    data = read(env, "00000000000000000000.log")
    path = f"{PATH}/erase-me-0/load-1.log.staging"
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.create_topic("erase-me", partitions=1)
        staged = env.files.open(path, create=True)
        staged.pwritev([data], 0)
        staged.close()
        done = erase(directory, "erase-me", KEY, execute=True)
    assert env.files.exists(path)
    assert [line.partition(":")[0] for line in done.not_reached] == [path]


def test_tables_from_before_are_refused_afterwards() -> None:
    env = log_with_key()
    middle = env.clock.now_ms() - 150
    with Directory.open(PATH, env=env) as directory:
        keys = directory.table(TOPIC, at=middle).to_table()["key"].to_pylist()
        assert KEY in keys
        directory_keys = directory.table(TOPIC).to_table()["key"].to_pylist()
    run(env)
    with Directory.open(PATH, env=env) as directory:
        with pytest.raises(InexactTable) as caught:
            directory.table(TOPIC, at=middle).to_table()
        assert caught.value.exact_since_ms == env.clock.now_ms()
        later = directory.table(TOPIC, at=env.clock.now_ms()).to_table()["key"].to_pylist()
        assert set(later) == set(directory_keys) - {KEY}
        assert KEY not in directory.table(TOPIC).to_table()["key"].to_pylist()


def test_a_second_run_after_a_failed_call_completes() -> None:
    left = set()
    for call in range(0, 320, 13):
        env = log_with_key()
        env.files.writes.fault = Fault(env.files.calls + call, FaultKind.EIO)
        with suppress(StorageFailure):
            run(env)
        left.add(sum(record.key == KEY for record in records_of(env)))
        assert run(env).is_complete
        assert [r.value for r in records_of(env) if r.key == KEY] == [None]
    assert left & set(range(2, 10)), "no run has stopped after some of the segments"


def test_a_second_run_after_a_crash_completes() -> None:
    """A run is killed at every eleventh call that changes the disk. A second run completes it."""
    whole = log_with_key()
    run(whole)
    moments = range(len(log_with_key().files.journal), len(whole.files.journal), 11)
    left = set()
    for moment in moments:
        env = seeded_env(5, files=reopen(whole.files.crash(Keep.EVERYTHING, moment)))
        left.add(sum(record.key == KEY for record in records_of(env)))
        done = run(env)
        assert done.is_complete, done.not_reached
        # The first run's tombstone is a record of the key, too, so the second run replaces it.
        assert [r.value for r in records_of(env) if r.key == KEY] == [None]
    assert left & set(range(2, 10)), "no run has stopped after some of the segments"


def test_an_old_format_in_the_last_partition_keeps_the_first_unchanged() -> None:
    env = seeded_env(3)
    log_dir = LogDir.open(PATH, env=env, options=WRITABLE)
    log_dir.create_topic(TOPIC, partitions=2)
    log_dir.log(TOPIC, 0).append([NewRecord(key=KEY, value=b"v", timestamp=5)])
    old = f"{PATH}/{TOPIC}-1/{0:020d}.log"
    _ = log_dir.log(TOPIC, 1)
    log_dir.abandon()
    message = bytes(build_legacy_message(KEY, b"value", magic=1, offset=0))
    write_atomically(env.files, old, message)
    with pytest.raises(UnsupportedForMessageFormat, match=f"{old}: format 1 at offset 0"):
        run(env)
    assert [record.value for record in records_of(env)] == [b"v"]
