"""Findings on a damaged log name exactly the lost offsets and the next readable offset."""

import re
from itertools import pairwise
from uuid import UUID

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    end,
    new_dir,
    read,
    snapshot_of,
    transact,
    write,
)
from tests.worlds.directories.sick import (
    PARTITION,
    BytesFileSystem,
    counting,
    look,
    mend,
)

from tidelog.amounts import offsets_text
from tidelog.directory import Directory
from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.header import seal
from tidelog.storage.checks import CheckOptions, DirectoryCheck, Finding, Severity
from tidelog.storage.checks.partition_check import check_names
from tidelog.storage.checks.repair import repair
from tidelog.storage.clocks import append_times
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import NewRecord

FIRST = f"{0:020d}.log"


def batches_in(env: SeededEnv, name: str = FIRST) -> list[RecordBatch]:
    found = list(walk(read(env, name)))
    assert all(isinstance(batch, RecordBatch) for batch in found)
    return [batch for batch in found if isinstance(batch, RecordBatch)]


def change(env: SeededEnv, at: int, content: bytes, name: str = FIRST) -> None:
    data = bytearray(read(env, name))
    data[at : at + len(content)] = content
    write(env, name, bytes(data))


def of_log(findings: list[Finding], name: str = FIRST) -> list[Finding]:
    return [finding for finding in findings if finding.path == f"{PARTITION}/{name}"]


def last_log(env: SeededEnv) -> str:
    names = [entry.name for entry in env.files.list_dir(PARTITION)]
    return max(name for name in names if name.endswith(".log"))


def test_a_broken_frame_loses_its_own_offsets_alone(env: SeededEnv) -> None:
    third, fourth = batches_in(env)[2:4]
    change(env, third.at + 8, (2**31 - 1).to_bytes(4, "big"))
    (finding,) = [each for each in of_log(look(env)) if "can't be read" in each.damage]
    assert (finding.position, finding.offset) == (third.at, third.base_offset)
    assert f"bytes {third.at} to {fourth.at - 1}" in finding.damage
    restart = re.search(r"reads on at (\d+)", finding.remedy)
    assert restart is not None
    between = offsets_text(fourth.base_offset, int(restart[1]) - 1)
    assert f"no command shows {between}, although" in finding.remedy


def test_reading_continues_at_the_promised_offset(env: SeededEnv) -> None:
    """If a finding promises that records from an offset on are readable, reads from there succeed.

    One bit is flipped at a time, in each byte of a batch after the base offset.
    """
    damaged, following = batches_in(env)[3:5]
    whole, promises = read(env, FIRST), 0
    for at in range(damaged.at + 8, following.at):
        change(env, at, bytes([whole[at] ^ 1 << at % 8]))
        remedies = [each.remedy for each in of_log(look(env)) if "can't be read" in each.damage]
        promised = [re.search(r"reads on at (\d+)", each) for each in remedies]
        for offset in [int(match[1]) for match in promised if match is not None]:
            promises += 1
            with LogDir.open(PATH, env=env) as directory:
                first = next(directory.reader("t", 0).records(offset))
            assert first.offset >= offset, at
        write(env, FIRST, whole)
    assert promises > following.at - damaged.at - 61


def is_readable_from(env: SeededEnv, offset: int) -> bool:
    """Return whether a read of all records from `offset` on succeeds and returns a record."""
    with LogDir.open(PATH, env=env) as directory:
        try:
            found = list(directory.reader("t", 0).records(offset))
        except CorruptData:
            return False
    assert found[0].offset >= offset
    return True


@pytest.mark.parametrize("segment", [0, -1], ids=["finished", "last"])
@pytest.mark.parametrize("field", [0, 7, 8, 11], ids=lambda at: f"byte {at}")
def test_a_read_restarts_at_the_promised_offset_and_not_before(
    env: SeededEnv, segment: int, field: int
) -> None:
    """A byte of the base offset (0 to 7) or of the length (8 to 11) of one batch is inverted.

    Some of the damaged batches have an index entry.
    """
    name = FIRST if segment == 0 else last_log(env)
    found, whole, promises = batches_in(env, name), read(env, name), 0
    for damaged, following in pairwise(found[2:14]):
        change(env, damaged.at + field, bytes([whole[damaged.at + field] ^ 0xFF]), name)
        for finding in of_log(look(env), name):
            restart = re.search(r"reads on at (\d+)", finding.remedy)
            if restart is None or "can't be read" not in finding.damage:
                continue
            promises += 1
            start, first = int(restart[1]), following.base_offset
            assert is_readable_from(env, start), damaged.at
            assert not is_readable_from(env, start - 1), damaged.at
            if start > first:
                between = offsets_text(first, start - 1)
                assert f" {between}, " in finding.remedy
                assert ("dump --deep" in finding.remedy) == (field < 8)
        write(env, name, whole)
    assert promises


def test_a_damaged_last_offset_is_a_wrong_checksum(env: SeededEnv) -> None:
    """The error names the wrong checksum, not the order of offsets, although both are wrong."""
    damaged = batches_in(env)[3]
    change(env, damaged.at + 25, b"\x10")
    (finding,) = [each for each in of_log(look(env)) if "can't be read" in each.damage]
    assert "CRC-32C is" in finding.damage
    with LogDir.open(PATH, env=env) as directory, pytest.raises(CorruptBatch, match="CRC-32C is"):
        list(directory.reader("t", 0).records())
    with Directory.open(PATH, env=env) as opened, pytest.raises(CorruptBatch, match="CRC-32C is"):
        opened.scan("t").to_table()


def test_zeros_over_several_batches_are_one_finding(env: SeededEnv) -> None:
    found = batches_in(env)
    start, end = found[1].at + 30, found[4].at + 10
    change(env, start, bytes(end - start))
    (finding,) = of_log(look(env))
    assert finding.offset == found[1].base_offset
    last = found[5].base_offset - 1
    assert f"can't be read (offsets {found[1].base_offset} to {last})" in finding.damage


def test_a_finished_log_that_was_cut_between_batches(env: SeededEnv) -> None:
    """Gaps may also come from compaction, so only the zone map shows that batches are missing."""
    last = batches_in(env)[-1]
    size = len(read(env, FIRST))
    write(env, FIRST, read(env, FIRST)[: last.at])
    (finding,) = of_log(look(env))
    assert finding.damage == f"{last.size_bytes} bytes are missing at its end: it had {size} bytes"
    assert finding.offset == last.base_offset


def test_a_torn_end_of_the_last_log_is_a_warning_after_a_crash_alone(env: SeededEnv) -> None:
    name = last_log(env)
    write(env, name, read(env, name) + b"\0\0\0\0")
    (finding,) = of_log(look(env), name)
    assert finding.severity is Severity.ERROR
    env.files.remove(f"{PATH}/.kafka_cleanshutdown")
    (finding,) = of_log(look(env), name)
    assert finding.severity is Severity.WARNING
    assert "left by a crash, or still being written" in finding.remedy


def test_a_batch_that_was_built_wrong(env: SeededEnv) -> None:
    """The checksum is correct, but the offset delta of the first record is wrong."""
    batch = batches_in(env)[0]
    data = bytearray(read(env, FIRST)[: batch.size_bytes])
    data[61 + 2 + 2] ^= 6  # the first record's offset delta, after a two-byte timestamp delta
    seal(data, 0)
    change(env, 0, bytes(data))
    told = [each.damage for each in of_log(look(env))]
    assert any("the checksum of the batch matches" in damage for damage in told)


def test_no_file_is_derived_from_a_log_with_an_invalid_marker(env: SeededEnv) -> None:
    """The checksum is correct, but the marker's record doesn't show which transaction it ended."""
    marker = next(batch for batch in batches_in(env) if batch.is_control)
    data = bytearray(read(env, FIRST)[marker.at : marker.at + marker.size_bytes])
    data[61 + 3] ^= 6  # the offset delta of the marker's record
    seal(data, 0)
    change(env, marker.at, bytes(data))
    (finding,) = look(env)
    assert "the checksum of the batch matches" in finding.damage
    assert (finding.position, finding.offset) == (marker.at, marker.base_offset)
    before = snapshot_of(env, PATH)
    mend(env)
    assert snapshot_of(env, PATH) == before


def test_a_header_with_a_wrong_largest_time_is_a_warning(env: SeededEnv) -> None:
    data = bytearray(read(env, FIRST)[: batches_in(env)[0].size_bytes])
    data[42] ^= 1
    seal(data, 0)
    change(env, 0, bytes(data))
    told = [each for each in of_log(look(env)) if "the header's largest timestamp" in each.damage]
    assert [each.severity for each in told] == [Severity.WARNING]


@pytest.mark.parametrize("seed", range(25))
def test_no_file_is_derived_from_a_damaged_log(env: SeededEnv, seed: int) -> None:
    size = len(read(env, FIRST))
    change(env, seed * 389 % size, bytes([seed * 7 % 255 + 1] * (seed % 9 + 1)))
    before = snapshot_of(env, PATH)
    if counting(look(env)):
        mend(env)
    assert snapshot_of(env, PATH) == before


@pytest.mark.parametrize("row", range(3))
def test_a_damaged_row_of_append_times_is_named(env: SeededEnv, row: int) -> None:
    name = f"{0:020d}.appendtime"
    change(env, append_times.HEADER_SIZE + row * append_times.ROW_SIZE + 5, b"\xee", name)
    (finding, *_) = of_log(look(env), name)
    assert finding.position == append_times.HEADER_SIZE + row * append_times.ROW_SIZE
    assert finding.severity is Severity.ERROR
    assert not finding.repairable
    assert f"row {row}: wrong checksum" in finding.damage


def test_a_damaged_head_of_append_times_is_named(env: SeededEnv) -> None:
    name = f"{0:020d}.appendtime"
    change(env, 9, b"\xee", name)
    (finding, *_) = of_log(look(env), name)
    assert finding.position == 0
    assert "topic id" in finding.damage


def topic_id_of(env: SeededEnv) -> UUID:
    with LogDir.open(PATH, env=env) as log_dir:
        return log_dir.reader("t", 0).context.topic_id


@pytest.mark.parametrize("is_removed", [False, True], ids=["replaced", "removed"])
def test_no_repair_of_lost_append_times_is_promised(env: SeededEnv, is_removed: bool) -> None:
    name = f"{0:020d}.appendtime"
    times, _ = append_times.AppendTimes.decode(read(env, name), 0, topic_id_of(env))
    end = times.rows()[-1].offset
    times.truncate_to(times.rows()[1].offset)
    write(env, name, times.encode() + times.close(end))
    if is_removed:
        env.files.remove(f"{PARTITION}/{name}")
    (finding,) = of_log(look(env), name)
    expected = "is missing, but its zone map" if is_removed else "when its zone map was built"
    assert expected in finding.damage
    assert finding.severity is Severity.WARNING
    assert "restore the file from a backup" in finding.remedy
    assert not finding.repairable


def test_a_partition_that_cannot_be_read_is_not_called_sound(env: SeededEnv) -> None:
    copied = BytesFileSystem.copy_of(env.files, PATH)
    for name in list(copied.contents):
        if name.startswith(PARTITION):
            copied.contents[name.replace("t-0", "t-1")] = copied.contents[name]
    copied.failing = f"{PARTITION}/{FIRST}"
    del copied.contents[f"{PATH}/t-1/{0:020d}.index"]
    check = DirectoryCheck(copied, PATH, clock=env.clock)  # type: ignore[arg-type] # it is only read
    found = [*check.load(), *check.findings()]
    assert [failure.path for failure in check.unseen] == [PARTITION]
    assert any(finding.path == f"{PATH}/t-1/{0:020d}.index" for finding in found)


@pytest.mark.parametrize("seed", range(30))
def test_the_kernel_and_the_plain_pass_find_the_same_damage(env: SeededEnv, seed: int) -> None:
    from tidelog.record.kernels.records import check_body

    batch = batches_in(env)[0]
    data = bytearray(read(env, FIRST)[: batch.size_bytes])
    data[61 + seed * 5 % (batch.size_bytes - 61)] ^= 1 << seed % 8
    seal(data, 0)
    change(env, 0, bytes(data))
    copied = BytesFileSystem.copy_of(env.files, PATH)
    check = DirectoryCheck(copied, PATH, clock=env.clock)  # type: ignore[arg-type] # it is only read
    plain = [*check.load(), *check.findings()]
    check.options = CheckOptions(body_check=check_body)
    by_kernel = list(check.findings())
    places = [(each.path, each.position, each.severity) for each in plain]
    assert [(each.path, each.position, each.severity) for each in by_kernel] == places


def test_a_log_deleted_during_its_check_is_no_damage(env: SeededEnv) -> None:
    """If retention deletes files during the check, the check continues and reports no loss."""
    batch = batches_in(env)[0]
    # When the check reports this damage, the loop below deletes the log of a later segment.
    change(env, batch.at + 21, b"\xff")
    check = DirectoryCheck(env.files, PATH, clock=env.clock)
    findings = [*check.load()]
    path = f"{PARTITION}/{60:020d}.log"
    for finding in check.findings():
        findings.append(finding)
        if env.files.exists(path):
            env.files.remove(path)
    (gone,) = [each for each in findings if each.path == path and each.position is None]
    assert (gone.severity, gone.damage) == (Severity.NOTE, "it was removed during the check")
    assert not any(each.counts for each in findings if each.path != f"{PARTITION}/{FIRST}")


def test_an_index_of_a_log_that_was_damaged_since_the_check_is_left(env: SeededEnv) -> None:
    """The repair reports that the index can't be rebuilt, and leaves the index unchanged."""
    name = f"{0:020d}.index"
    change(env, 9, b"\xee", name)
    before = read(env, name)
    check = DirectoryCheck(env.files, PATH, clock=env.clock)
    findings = [*check.load(), *check.findings()]
    change(env, batches_in(env)[1].at, bytes(40))
    notes = repair(env, check, findings)
    assert any(line.startswith(f"{PARTITION}/{name}: can't be rebuilt") for line in notes)
    assert read(env, name) == before


def test_a_negative_leader_epoch_is_named(env: SeededEnv) -> None:
    batch = batches_in(env)[3]
    change(env, batch.at + 12, (-5).to_bytes(4, "big", signed=True))
    found = [each for each in of_log(look(env)) if "leader epoch -5 is negative" in each.damage]
    assert [(each.position, each.offset) for each in found] == [(batch.at, batch.base_offset)]


def test_deleted_and_compacted_batches_of_an_open_transaction_are_no_damage() -> None:
    env = seeded_env(3)
    log_dir = new_dir(env, {**SMALL, "cleanup.policy": "compact,delete"})
    log = log_dir.log(TOPIC, 0)
    transact(log, 1, count=3)
    log.roll()
    log.append([NewRecord(key=b"k", value=b"v" * 400)])
    transact(log, 1, sequence=3)
    log.roll()
    log.delete_records(4)
    clean_partition(log_dir, log.topic_partition, InProcess(env), CleanerOptions(is_asked=True))
    assert not log.segments[0].size_bytes
    end(log, 1, commit=True)
    log_dir.close()
    assert counting(look(env)) == []


@pytest.mark.parametrize(("suffix", "size", "at"), [("index", 8, 0), ("timeindex", 12, 8)])
def test_an_index_entry_in_wrong_order_is_named_with_its_offset(
    env: SeededEnv, suffix: str, size: int, at: int
) -> None:
    """`at` is the place of the offset in an entry of `size` bytes."""
    name = f"{0:020d}.{suffix}"
    data = read(env, name)
    first, second = data[:size], data[size : 2 * size]
    write(env, name, second + first + data[2 * size :])
    (finding,) = (each for each in of_log(look(env), name) if each.position == size)
    assert "is not above the one before it" in finding.damage
    assert finding.offset == int.from_bytes(first[at : at + 4], "big")


def test_a_segment_that_a_broker_begins_during_the_check_is_no_leftover() -> None:
    env = seeded_env(1)
    with new_dir(env, SMALL) as log_dir:
        log = log_dir.log(TOPIC, 0)
        log.append([NewRecord(value=b"v")])
        check = DirectoryCheck(env.files, PATH, clock=env.clock)
        check.load()
        log.roll()
        assert not list(check_names(check.partitions[log.topic_partition], {0}))
        env.files.remove(f"{PARTITION}/{1:020d}.log")
        found = list(check_names(check.partitions[log.topic_partition], {0}))
        assert {finding.severity for finding in found} == {Severity.WARNING}
