"""A tier whose log is cut, deleted, exchanged or copied, or has another writer."""

import copy
import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.faults import seeded_env
from tests.unit.storage.tiers.fake_store import URL
from tests.unit.storage.tiers.tiered import NAME, TIERED, Tiered, moved, values
from tests.worlds.directories import logs
from tests.worlds.directories.logs import (
    PATH,
    TOPIC,
    WRITABLE,
    end,
    offsets,
    path_of,
    put,
    transact,
)
from tests.worlds.directories.sick import look

from tidelog import scan
from tidelog.amounts import offsets_text
from tidelog.errors import (
    CorruptFile,
    DamagedLog,
    InvalidRequest,
    MissingFile,
    OffsetsGone,
    StorageFailure,
    TierConflict,
)
from tidelog.record.builder import build_batch
from tidelog.scan import ReadOptions, RequestedRange, ScanStats
from tidelog.storage.checks import Finding, Severity
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import LOG_START_CHECKPOINT_FILE, SETTLED_MS, write_atomically
from tidelog.storage.log.producers import ProducerEntry, ProducerStates
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.compaction_history import HISTORY_FILE
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.tier.manifest import Manifest, TierSegment
from tidelog.storage.tier.tier_files import record_path
from tidelog.storage.tier.tier_record import read_deleted, read_record, write_record
from tidelog.storage.tier_manager.mover import MoveOptions, Mover, tier_partition, tier_status
from tidelog.storage.tier_manager.orphans import collect, restore
from tidelog.storage.tier_manager.tier_store import (
    CopySource,
    PartitionTier,
    copy_segment,
    verify,
    writer_of,
)
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

EAGER = {"local.retention.bytes": "0"}


def manifest_of(tiered: Tiered) -> Manifest:
    tier = tiered.log.tier
    assert tier is not None
    return tier.record.manifest


# -- retention ---------------------------------------------------------------------------------


def test_local_files_stay_for_the_time_of_local_retention() -> None:
    tiered = Tiered().start(**{"local.retention.ms": "10000"})
    tiered.fill(40)
    tiered.move()
    now = tiered.base.clock.now_ms()
    newest_gone = tiered.log.local_start_offset - 1
    time = tiered.log.append_time_of(newest_gone)
    assert time is not None
    assert now - time > 10_000
    first_kept = tiered.log.local_segments[0]
    last = tiered.log.append_time_of(first_kept.end_offset - 1)
    assert last is not None
    assert now - last <= 10_000
    tiered.base.clock.advance(3_600_000)
    tiered.move()
    assert len(tiered.log.local_segments) == 1


def test_segments_missing_in_the_tier_stay_despite_local_retention() -> None:
    tiered = Tiered().start(**EAGER, **{"remote.log.copy.disable": "true"})
    tiered.fill(40)
    report = tiered.move()
    assert (report.copied, report.released) == (0, 0)
    tiered.log.apply_retention()
    assert tiered.log.local_start_offset == 0


def test_total_retention_does_not_wait_for_copies() -> None:
    tiered = Tiered().start(**{"remote.log.copy.disable": "true", "retention.ms": "20000"})
    tiered.fill(40)
    assert tiered.log.apply_retention()
    assert tiered.log.log_start_offset > 10
    assert values(tiered.reader()) == list(range(tiered.log.log_start_offset, 40))


def test_total_retention_deletes_from_the_tier_too() -> None:
    tiered = moved(40, **EAGER, **{"retention.ms": "20000"})
    start = tiered.log.log_start_offset
    assert start > 0
    tiered.base.clock.advance(10_000)
    report = tiered.move()
    assert report.deleted
    assert tiered.log.log_start_offset > start
    assert manifest_of(tiered).segments[0].base_offset == tiered.log.log_start_offset
    assert manifest_of(tiered).garbage
    objects = len(tiered.store.objects)
    for _ in range(2):  # the second run removes the objects that the first run replaces
        tiered.base.clock.advance(3_600_001)
        tiered.move()
    assert len(tiered.store.objects) < objects
    assert not manifest_of(tiered).garbage
    assert values(tiered.reader()) == list(range(tiered.log.log_start_offset, 40))


def test_switching_it_off_keeps_the_tier_readable_or_drops_it() -> None:
    tiered = moved()
    tiered.directory.alter_config(TOPIC, {"remote.storage.enable": "false"})
    tiered.move()
    assert values(tiered.reader()) == list(range(40))
    tiered.directory.alter_config(TOPIC, {"remote.log.delete.on.disable": "true"})
    tiered.move()
    start = tiered.log.local_segments[0].base_offset
    assert values(tiered.reader()) == list(range(start, 40))
    assert not manifest_of(tiered).segments


# -- cuts and starts ---------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 12, 13, 34, 35, 36, 39])
def test_a_cut_anywhere_is_a_cut_of_both(offset: int) -> None:
    tiered = moved()
    end = tiered.log.truncate_to(offset)
    assert end == offset
    assert values(tiered.log) == list(range(offset))
    assert values(tiered.reader()) == list(range(offset))
    tiered.reopen(clean=False)
    assert values(tiered.log) == list(range(offset))
    tiered.fill(50 - offset)
    tiered.move()
    assert values(tiered.reader()) == list(range(50))
    assert list(verify(tiered.directory, [NAME])) == []
    ends = [(row.base_offset, row.end_offset) for row in manifest_of(tiered).segments]
    assert all(a[1] == b[0] for a, b in pairwise(ends))


@pytest.mark.parametrize("before", [0, 1])
def test_a_cut_inside_a_batch_of_the_tier_ends_before_that_batch(before: int) -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(before)
    tiered.log.append([NewRecord(value=b"%d" % number) for number in range(before, before + 3)])
    tiered.fill(20)
    tiered.log.flush()
    tiered.move(roll=True)
    assert tiered.log.local_start_offset > before + 3
    tiered.reopen()
    assert tiered.log.truncate_to(before + 2) == before
    assert values(tiered.reader()) == list(range(before))
    tiered.reopen(clean=False)
    assert values(tiered.log) == list(range(before))


def test_a_store_that_is_away_stops_a_cut_before_anything_is_changed() -> None:
    tiered = moved()
    tiered.store.fail_at = tiered.store.calls + 1
    with pytest.raises(StorageFailure):
        tiered.log.truncate_to(13)
    assert tiered.log.failure is None
    assert values(tiered.log) == list(range(40))
    tiered.fill(1)
    assert tiered.log.truncate_to(13) == 13
    tiered.store.fail_at = tiered.store.calls + 1
    tiered.log.apply_retention()
    tiered.reopen()
    tiered.fill(1)
    tiered.reopen(clean=False)
    assert tiered.store.calls < tiered.store.fail_at, "opening and closing ask no store"
    tiered.store.fail_at = None
    assert values(tiered.log) == list(range(14))


def test_segments_after_a_truncation_in_both_tiers_are_copied_again() -> None:
    tiered = moved(40, **{"local.retention.bytes": "-1"})
    tiered.log.truncate_to(12)
    tiered.base.clock.advance(1000)
    for _ in range(20):
        tiered.log.append([NewRecord(value=b"%d.other" % tiered.log.log_end_offset)])
    tiered.move(roll=True)
    tiered.directory.alter_config(TOPIC, {"local.retention.bytes": "0"})
    tiered.move()
    assert tiered.log.local_start_offset > 20
    found = {record.offset: record.value for record in tiered.reader().records()}
    assert found[12] == b"12.other"


def test_records_that_were_deleted_do_not_return() -> None:
    tiered = moved()
    tiered.log.delete_records(17)
    assert values(tiered.reader()) == list(range(17, 40))
    tiered.reopen(clean=False)
    assert values(tiered.log) == list(range(17, 40))
    # As after Kafka, which rewrites the checkpoint with the local start offset.
    tiered.directory.close()
    tiered.disk.remove(f"{PATH}/log-start-offset-checkpoint")
    assert values(tiered.reader()) == list(range(17, 40))
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    tiered.move(grace_ms=0)
    assert manifest_of(tiered).log_start_offset == 17
    assert values(tiered.log) == list(range(17, 40))


def test_an_open_reader_keeps_the_log_start_of_a_record_without_segments() -> None:
    tiered = Tiered().start()
    tiered.fill(30)
    tiered.move()
    tiered.log.delete_records(30)
    tiered.log.apply_retention()
    tiered.move()
    tiered.fill(3)
    tiered.log.delete_records(32)
    assert manifest_of(tiered).segments == ()
    tiered.directory.close()
    tiered.disk.remove(f"{PATH}/{LOG_START_CHECKPOINT_FILE}")
    reader = LogDir.open(PATH, env=tiered.env)
    for _ in range(3):
        tiered.base.clock.advance(SETTLED_MS)
        reader.refresh()
        assert reader.reader(TOPIC, 0).log_start_offset == 32


def test_a_log_truncated_below_its_start_begins_there() -> None:
    tiered = moved()
    tiered.log.delete_records(37)
    tiered.move()
    tiered.log.truncate_to(10)
    assert (tiered.log.log_start_offset, tiered.log.log_end_offset) == (10, 10)
    tiered.fill(30)
    tiered.move()
    assert manifest_of(tiered).log_start_offset == 10
    assert values(tiered.reader()) == list(range(10, 40))
    tiered.reopen(clean=False)
    assert values(tiered.log) == list(range(10, 40))


def test_a_stale_copy_does_not_bring_deleted_records_back() -> None:
    tiered = moved(40, **{"local.retention.bytes": "-1"})
    tiered.log.delete_records(17)
    tiered.directory.close()
    tier = read_record(tiered.disk, f"{PATH}/{TOPIC}-0")
    assert tier is not None
    rows = list(tier.manifest.segments)
    # As if another program had cut the log.
    rows[3] = dataclasses.replace(rows[3], last_fingerprint=1)
    stale = dataclasses.replace(tier.manifest, segments=tuple(rows))
    write_record(tiered.disk, f"{PATH}/{TOPIC}-0", dataclasses.replace(tier, manifest=stale))
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    assert tiered.move().copied > 0
    assert tiered.log.log_start_offset == 17
    assert values(tiered.reader()) == list(range(17, 40))
    assert manifest_of(tiered).log_start_offset == 17


def test_the_record_of_another_topic_is_refused() -> None:
    tiered = moved()
    tiered.directory.create_topic("other", config=TIERED)
    record = read_record(tiered.disk, f"{PATH}/{TOPIC}-0")
    assert record is not None
    write_record(tiered.disk, f"{PATH}/other-0", record)
    with pytest.raises(CorruptFile, match="another topic"):
        tiered.directory.log("other", 0)


def test_damaged_local_files_remove_nothing_from_the_tier() -> None:
    tiered = moved(40, **{"local.retention.bytes": "-1"})
    tiered.log.flush()
    segments = tiered.log.local_segments
    victim, end = segments[-2], segments[-1].base_offset
    tiered.directory.abandon()
    for segment in segments[-2:]:
        file = tiered.disk.open(segment.log_path, write=True)
        file.truncate(5)
        file.close()
    assert victim.base_offset < end
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    assert values(tiered.log) == list(range(end))
    assert values(tiered.reader()) == list(range(end))


def test_a_damaged_segment_that_refuses_appends_is_not_removed_for_the_tiers_copy() -> None:
    tiered = moved(40, **{"local.retention.bytes": "-1"})
    victim, active = tiered.log.local_segments[-2:]
    tiered.directory.close()
    tiered.disk.remove(active.log_path)
    file = tiered.disk.open(victim.log_path, write=True)
    data = bytearray(file.pread(file.size(), 0))
    data[len(data) // 2] ^= 1
    file.pwrite(data, 0)
    file.close()
    found = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    with pytest.raises(DamagedLog):
        found.log(TOPIC, 0).append([NewRecord(value=b"v")])
    assert any("nothing is truncated" in line for line in found.reports)
    kept = tiered.disk.open(victim.log_path)
    assert kept.pread(len(data), 0) == data


def with_hole(**config: str) -> tuple[Tiered, int, int]:
    """Return a log without the files after its tier's end, and the hole's start and end offset."""
    tiered = Tiered().start(**EAGER, **config)
    tiered.fill(20)
    tiered.move()
    start = manifest_of(tiered).end_offset
    tiered.fill(20)
    local = tiered.log.local_segments
    tiered.directory.close()
    for segment in local[:2]:  # deletes segments, like a broker without tiers
        tiered.disk.remove(segment.log_path)
    return tiered, start, local[2].base_offset


def test_records_lost_between_the_tier_and_local_files_are_an_error() -> None:
    tiered, start, end = with_hole()
    before = f"offsets {start} to {end - 1} before it: "
    (finding,) = (one for one in look(tiered.env) if one.damage.startswith(before))
    assert (finding.offset, finding.severity) == (start, Severity.ERROR)
    found = LogDir.open(PATH, env=tiered.env)
    reader = found.reader(TOPIC, 0)
    assert any(f"offsets {start} to {end - 1}" in line for line in found.reports)
    assert [(lost.start, lost.end) for lost in reader.lost_offsets()] == [(start, end)]
    with pytest.raises(OffsetsGone, match=f"offsets {start} to {end - 1}"):
        values(reader)
    assert [one.offset for one in reader.records(0, start)] == list(range(start))
    assert [one.offset for one in reader.records(end)] == list(range(end, 40))
    with pytest.raises(OffsetsGone, match=f"offsets {start + 1} to {end - 1}"):
        list(reader.records(start + 1, end + 1))
    for clock in ClockName:
        time = reader.offset_for_time(0, clock=clock)
        assert time is not None
        with pytest.raises(OffsetsGone, match=f"offsets {start} to {end - 1}"):
            reader.offset_for_time(tiered.base.clock.now_ms(), clock=clock)
    with pytest.raises(OffsetsGone, match=f"offsets {start} to {end - 1}"):
        reader.max_timestamp()


@pytest.mark.parametrize("by_time", [False, True])
def test_scans_and_counts_report_records_lost_after_the_tier(by_time: bool) -> None:
    tiered, start, end = with_hole()
    now = tiered.base.clock.now_ms()
    with LogDir.open(PATH, env=tiered.env) as directory:
        for clock in ClockName:
            times = RequestedRange(start_ms=0, end_ms=now + 1) if by_time else RequestedRange()
            with pytest.raises(OffsetsGone, match=f"offsets {start} to {end - 1}"):
                scan.count(directory, TOPIC, requested_range=times, clock=clock)
            planned = scan.plan(directory, TOPIC, requested_range=times, clock=clock)
            with pytest.raises(OffsetsGone, match=f"offsets {start} to {end - 1}"):
                scan.to_table(planned, ["offset"], options=ReadOptions(env=tiered.env))
            stats = ScanStats()
            options = ReadOptions(env=tiered.env, fail_on_data_loss=False)
            rows = scan.to_table(planned, ["offset"], options=options, stats=stats)
            assert rows["offset"].to_pylist() == [*range(start), *range(end, 40)]
            assert [(lost.start, lost.end) for lost in stats.lost] == [(start, end)]


def test_a_hole_behind_the_tier_ends_with_the_log_start_after_it() -> None:
    """Segments after the hole are copied only once the log start is past it.

    An earlier copy would hide the hole.
    """
    tiered, start, end = with_hole()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    report = tiered.move()
    assert report.copied == 0
    assert f"offsets {start} to {end - 1}" in (report.stopped or "")
    assert manifest_of(tiered).end_offset == start
    tiered.log.advance_start(end)
    assert tiered.log.lost_offsets() == []
    report = tiered.move()
    assert report.stopped is None
    assert report.copied > 0
    assert values(tiered.reader()) == list(range(end, 40))


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_start_inside_a_hole_behind_the_tier_does_not_end_the_loss(clean: bool) -> None:
    tiered, start, end = with_hole()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    for log_start in (start, start + 1, end - 1):
        tiered.log.advance_start(log_start)
        for _ in range(2):
            check_lost(tiered, start, end)
            report = tiered.move()
            assert report.copied == 0
            assert f"offsets {start} to {end - 1}" in (report.stopped or "")
            check_lost(tiered, start, end)
            tiered.reopen(clean=clean)
    tiered.directory.close()
    tiered.directory = restored(tiered)
    check_lost(tiered, start, end)
    tiered.reopen()
    check_lost(tiered, start, end)
    tiered.log.advance_start(end)
    report = tiered.move()
    assert report.stopped is None
    assert report.copied > 0
    assert manifest_of(tiered).segments[0].base_offset == end
    assert values(tiered.reader()) == list(range(end, 40))


def restored(tiered: Tiered) -> LogDir:
    """Rebuild the partition's tier record, and open the directory for writing."""

    def prepare(directory: LogDir) -> None:
        restore(directory, NAME)

    options = LogDirOptions(writable=True, prepare=prepare)
    return LogDir.open(PATH, env=tiered.env, options=options)


def check_lost(tiered: Tiered, start: int, end: int) -> None:
    """Check that the log, and readers of its directory, report these offsets as lost."""
    reader = tiered.reader()
    for log in (tiered.log, reader):
        assert [(lost.start, lost.end) for lost in log.lost_offsets()] == [(start, end)]
    first = max(start, reader.log_start_offset)
    with pytest.raises(OffsetsGone, match=f"{offsets_text(first, end - 1)}: "):
        values(reader)
    assert [one.offset for one in reader.records(end)] == list(range(end, 40))


def test_retention_by_size_deletes_the_tiers_segment_together_with_the_hole_after_it() -> None:
    tiered, start, end = with_hole()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    tiered.log.advance_start(start + 1)
    tiered.move()
    check_lost(tiered, start, end)
    tiered.directory.alter_config(TOPIC, {"retention.bytes": "1"})
    tiered.move()
    assert tiered.log.log_start_offset >= end
    assert tiered.log.lost_offsets() == []
    assert [row for row in manifest_of(tiered).segments if row.base_offset < end] == []


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_log_that_loses_all_files_after_a_hole_continues_at_its_start(is_restored: bool) -> None:
    tiered, _, end = with_hole()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    tiered.log.advance_start(end - 1)
    tiered.move()
    if is_restored:
        tiered.directory.close()
        for name in [entry.name for entry in tiered.disk.list_dir(f"{PATH}/{TOPIC}-0")]:
            tiered.disk.remove(path_of(name))
        tiered.directory = restored(tiered)
    else:
        tiered.log.truncate_to(end - 1)
    for _ in range(2):
        assert (tiered.log.log_start_offset, tiered.log.log_end_offset) == (end - 1, end - 1)
        tiered.reopen()
    tiered.fill(20)
    assert tiered.move().stopped is None
    assert values(tiered.reader()) == list(range(end - 1, end + 19))


def test_a_hole_behind_the_tier_of_a_compacted_topic_may_be_a_compaction() -> None:
    tiered, start, end = with_hole(**{"cleanup.policy": "compact"})
    with LogDir.open(PATH, env=tiered.env) as directory:
        assert values(directory.reader(TOPIC, 0)) == [*range(start), *range(end, 40)]
        assert any(f"offsets {start} to {end - 1}" in line for line in directory.reports)


def test_a_hole_inside_the_tier_is_an_error_too() -> None:
    """Earlier releases copied segments after a hole."""
    tiered, start, end = with_hole()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    history = path_of(HISTORY_FILE)
    tiered.disk.open(history, create=True).close()
    assert tiered.reopen().move().copied > 0
    tiered.directory.close()
    assert not holes(tiered)
    tiered.disk.remove(history)
    with pytest.raises(OffsetsGone, match=f"offsets {start} to {end - 1}"):
        values(tiered.reader())
    (finding,) = holes(tiered)
    assert finding.path == record_path(f"{PATH}/{NAME}")
    assert (finding.offset, finding.severity) == (start, Severity.ERROR)
    assert finding.damage.startswith(f"offsets {start} to {end - 1} before segment {end} of the ")
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    for log_start in (start, end - 1):
        tiered.log.advance_start(log_start)
        tiered.move()
        check_lost(tiered, start, end)
        tiered.reopen()
        check_lost(tiered, start, end)
    tiered.log.advance_start(end)
    tiered.move()
    assert manifest_of(tiered).segments[0].base_offset == end
    assert values(tiered.reader()) == list(range(end, 40))


@pytest.mark.parametrize("past_end", [0, 1])
def test_a_hole_below_the_log_start_is_no_finding(past_end: int) -> None:
    tiered, _, end = with_hole()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    tiered.log.advance_start(end - 1 + past_end)
    tiered.directory.close()
    assert [one.offset for one in holes(tiered)] == [end - 1][past_end:]


def test_a_hole_in_the_tier_of_a_compacted_topic_is_no_finding() -> None:
    tiered, _, _ = with_hole(**{"cleanup.policy": "compact"})
    assert not holes(tiered)
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    assert tiered.move().copied > 0
    tiered.directory.close()
    assert not holes(tiered)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_segment_below_the_log_start_stays_only_if_the_gap_after_it_is_a_loss(
    policy: str,
) -> None:
    tiered, start, end = with_hole(**{"cleanup.policy": policy})
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    tiered.log.advance_start(start + 1)
    tiered.move()
    bases = [row.base_offset for row in manifest_of(tiered).segments]
    assert (bases[0] == end) == (policy == "compact"), bases
    assert (bases[0] < start) == (policy == "delete")


def holes(tiered: Tiered) -> list[Finding]:
    """Return the findings on offsets that are missing in the tier, or after it."""
    return [one for one in look(tiered.env) if "missing between two segments" in one.damage]


# -- topics ------------------------------------------------------------------------------------


def test_a_recreated_topic_has_a_tier_of_its_own_and_the_old_one_is_collected() -> None:
    tiered = moved()
    old = set(tiered.store.objects)
    tiered.store.fail_at = tiered.store.calls + 1
    tiered.directory.delete_topic(TOPIC)  # sends no request to the store
    tiered.store.fail_at = None
    tiered.directory.create_topic(TOPIC, config={**TIERED, **EAGER})
    assert tiered.log.tier is None
    tiered.fill(20)
    tiered.move()
    assert values(tiered.reader()) == list(range(20))
    assert len(read_deleted(tiered.disk, PATH)) == 1
    (manifest,) = (key for key in old if key.endswith("/manifest.json"))
    folder = manifest.removesuffix("/manifest.json")
    assert collect(tiered.directory, [NAME]).folders == [folder]
    assert not old & set(tiered.store.objects)
    assert read_deleted(tiered.disk, PATH) == []
    assert values(tiered.reader()) == list(range(20))


def test_a_deleted_topic_with_a_damaged_record_keeps_its_objects_with_a_report() -> None:
    tiered = moved()
    objects = set(tiered.store.objects)
    write_atomically(tiered.disk, record_path(f"{PATH}/{TOPIC}-0"), b"{}")
    tiered.directory.delete_topic(TOPIC)
    assert any("in the tier are kept" in line for line in tiered.directory.reports)
    assert read_deleted(tiered.disk, PATH) == []
    collect(tiered.directory, [])
    assert set(tiered.store.objects) == objects


def test_a_topic_without_an_id_or_a_store_is_refused() -> None:
    tiered = Tiered().start()
    tiered.directory.alter_config(TOPIC, {"tidelog.tier.url": None})
    with pytest.raises(InvalidRequest, match="--to URL"):
        tiered.move()
    tiered.directory.alter_config(
        TOPIC, {"tidelog.tier.url": URL, "remote.storage.enable": "false"}
    )
    with pytest.raises(InvalidRequest, match="is false"):
        tiered.move()
    assert not tiered.store.objects
    tiered.directory.alter_config(TOPIC, {"remote.storage.enable": "true"})
    tiered.fill(20)
    tiered.move()
    with pytest.raises(InvalidRequest, match="its tier is at"):
        tier_partition(tiered.directory, NAME, MoveOptions(url="s3://elsewhere/x"))


# -- competitors -------------------------------------------------------------------------------


def test_a_race_with_another_writer_is_lost_before_anything_is_changed() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(20)
    tiered.move()

    def interfere() -> None:
        tier = PartitionTier(tiered.store, manifest_folder(tiered))
        now = tier.read()[0]
        assert now is not None
        ahead = dataclasses.replace(now, log_start_offset=2, change="c" * 32)
        tier.update(lambda _found: ahead)

    tiered.fill(20)
    tiered.store.before_swap = interfere
    with pytest.raises(TierConflict, match="not written by this directory"):
        tiered.move()
    assert manifest_of(tiered).log_start_offset == 0
    assert values(tiered.reader()) == list(range(40))


def manifest_folder(tiered: Tiered) -> str:
    tier = tiered.log.tier
    assert tier is not None
    return tier.record.folder


def test_another_directory_is_refused_until_it_takes_over() -> None:
    first = moved()
    other = Tiered(base=seeded_env(9), store=first.store)
    topic_id = first.directory.topic(TOPIC).topic_id
    other.directory = LogDir.open(PATH, env=other.env, options=WRITABLE)
    other.directory.create_topic(TOPIC, config={**TIERED, **EAGER}, topic_id=topic_id)
    for offset in range(40):
        other.base.clock.advance(1000)
        other.log.append([NewRecord(key=b"k", value=b"%d" % offset + b"." * 60)])
    with pytest.raises(TierConflict, match="--take-over"):
        other.move()
    assert values(other.log) == list(range(40))
    other.move(takes_over=True)
    assert manifest_of(other).writer == writer_of(other.directory)
    assert values(other.reader()) == list(range(40))
    with pytest.raises(TierConflict, match="--take-over"):
        first.move()


def test_a_lost_directory_continues_with_its_tier() -> None:
    lost = moved()
    end = manifest_of(lost).end_offset
    topic_id = lost.directory.topic(TOPIC).topic_id
    fresh = Tiered(base=seeded_env(9), store=lost.store)
    fresh.directory = LogDir.open(PATH, env=fresh.env, options=WRITABLE)
    fresh.directory.create_topic(TOPIC, config={**TIERED, **EAGER}, topic_id=topic_id)
    with pytest.raises(TierConflict, match="--take-over"):
        restore(fresh.directory, NAME)
    restore(fresh.directory, NAME, takes_over=True)
    assert values(fresh.log) == list(range(end))
    assert fresh.log.log_end_offset == end
    assert values(fresh.reader()) == list(range(end))
    fresh.fill(20)
    with pytest.raises(TierConflict, match="--take-over"):
        fresh.move()
    fresh.move(takes_over=True)
    fresh.reopen()
    assert values(fresh.log) == list(range(end + 20))
    assert list(verify(fresh.directory, [NAME])) == []


def test_a_store_from_a_backup_or_without_its_manifest_is_refused() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(20)
    tiered.move()
    before = manifest_of(tiered)
    tiered.store.objects = dict(tiered.store.objects)
    older = dict(tiered.store.objects)
    tiered.fill(10)
    tiered.move()
    tiered.store.objects = older  # as if the store was restored from a backup
    with pytest.raises(TierConflict, match="older state"):
        tiered.move()
    assert before.generation < manifest_of(tiered).generation
    key = next(key for key in older if key.endswith("manifest.json"))
    del older[key]
    with pytest.raises(TierConflict, match="manifest is missing"):
        tiered.move()
    (problem,) = verify(tiered.directory, [NAME])
    assert (problem.first_offset, problem.end_offset) == (0, manifest_of(tiered).end_offset)
    assert problem.text == "the manifest is missing"


# -- the exchange ------------------------------------------------------------------------------


def compacted(tiered: Tiered, old: list[TierSegment], keep: int) -> TierSegment:
    """Replace segments by one segment with every `keep`-th record, like a compaction."""
    view = tiered.log.tier
    assert view is not None
    scratch = "/scratch"
    tiered.disk.make_dirs(scratch)
    context = tiered.log.context
    base, end = old[0].base_offset, old[-1].end_offset
    data = bytearray()
    for record in tiered.log.records(base, end):
        if record.offset % keep == 0:
            data += build_batch([record], base_offset=record.offset, leader_epoch=0)
    local = SegmentContext(
        env=context.env,
        directory=scratch,
        topic_partition=context.topic_partition,
        topic_id=context.topic_id,
        config=context.config,
        pool=context.pool,
        maps=context.maps,
        report=context.report,
    )
    path = local.path(base, ".log")
    file = tiered.disk.open(path, create=True)
    file.pwrite(data, 0)
    file.sync()
    file.close()
    segment = ClosedSegment(local, base, end)
    from tidelog.storage.segment import zone_map_files

    zone_map_files.write(segment, by_kernels=False)
    source = CopySource(segment=segment, times=old[-1].times, note=old[-1].note, uid="c" * 32)
    return copy_segment(PartitionTier(tiered.store, view.record.folder), source)


def exchange(
    log_dir: LogDir, name: TopicPartition, old: Sequence[TierSegment], new: Sequence[TierSegment]
) -> None:
    """Replace `old` by `new` in a partition's manifest, as the cleaner of a tier does."""
    mover = Mover.open(log_dir, name, MoveOptions())
    mover.settle()
    now_ms = log_dir.env.clock.now_ms()
    mover.swap(lambda manifest: manifest.with_exchanged(old, new, now_ms))


def test_every_reader_sees_an_exchange_as_one_step() -> None:
    tiered = moved()
    old = list(manifest_of(tiered).segments[1:4])
    base, end = old[0].base_offset, old[-1].end_offset
    before = tiered.reader()
    new = compacted(tiered, old, 3)
    expected = [n for n in range(40) if not base <= n < end or n % 3 == 0]
    seen = []

    def look() -> None:
        seen.append(values(tiered.reader()))

    tiered.store.on_change = look
    exchange(tiered.directory, NAME, old, [new])
    tiered.store.on_change = None
    assert seen[-1] in (list(range(40)), expected)
    assert values(tiered.reader()) == expected
    assert values(before) == list(range(40)), "who planned before reads on"
    assert [one.segment for one in manifest_of(tiered).garbage] == old
    tiered.reopen(clean=False)
    assert values(tiered.log) == expected
    tiered.base.clock.advance(3_600_001)
    tiered.move()
    assert not any(row.folder in key for row in old for key in tiered.store.objects)
    assert list(verify(tiered.directory, [NAME])) == []
    assert values(tiered.reader()) == expected


def test_an_exchange_that_does_not_fit_changes_nothing() -> None:
    tiered = moved()
    rows = list(manifest_of(tiered).segments)
    new = compacted(tiered, rows[1:4], 2)
    for old, what in ((rows[1:3], "offsets"), ([rows[1], rows[3]], "adjacent"), ([], "old and")):
        with pytest.raises(InvalidRequest, match=what):
            exchange(tiered.directory, NAME, old, [new])
    exchange(tiered.directory, NAME, rows[1:4], [new])
    with pytest.raises(TierConflict, match="exchanged or"):
        exchange(tiered.directory, NAME, rows[1:4], [new])


@pytest.mark.parametrize("fails_after", [False, True])
def test_an_exchange_that_fails_anywhere_leaves_the_old_or_the_new(fails_after: bool) -> None:
    for number in range(1, 30):
        tiered = moved()
        old = list(manifest_of(tiered).segments[1:4])
        new = compacted(tiered, old, 3)
        base, end = old[0].base_offset, old[-1].end_offset
        expected = [n for n in range(40) if not base <= n < end or n % 3 == 0]
        tiered.store.fail_at = tiered.store.calls + number
        tiered.store.fails_after = fails_after
        try:
            exchange(tiered.directory, NAME, old, [new])
            break
        except StorageFailure:
            assert values(tiered.reader()) == list(range(40))
            tiered.move()
            assert values(tiered.reader()) in (list(range(40)), expected)
            assert list(verify(tiered.directory, [NAME])) == []
    else:
        raise AssertionError("it never came through")
    assert number > 3


# -- transactions and producers ----------------------------------------------------------------


def last_batches(states: ProducerStates) -> dict[int, ProducerEntry]:
    """Return each producer's entry with its last batch only.

    The tier returns no earlier batches, so they are not compared.
    """
    return {
        producer_id: dataclasses.replace(entry, batches=entry.batches[-1:])
        for producer_id, entry in states.producers.items()
    }


def test_aborted_transactions_and_producers_are_right_over_both() -> None:
    pair = Tiered().start(), Tiered().start(**EAGER)
    for each in pair:
        for number in range(12):
            each.base.clock.advance(1000)
            batch = build_batch(
                [NewRecord(value=b"%d." % number + b"." * 300)],
                producer_id=number % 3,
                producer_epoch=0,
                base_sequence=number // 3,
                transactional=True,
                default_timestamp=each.base.clock.now_ms(),
            )
            each.log.append_batches(batch)
            each.log.end_transaction(
                producer_id=number % 3,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=number % 2 == 0,
            )
        each.move()
    plain, tiered = pair
    assert tiered.log.local_start_offset > 18
    committed = IsolationLevel.READ_COMMITTED
    for reader, other in ((tiered.log, plain.log), (tiered.reader(), plain.reader())):
        expected = list(other.records(isolation=committed))
        assert list(reader.records(isolation=committed)) == expected
        assert last_batches(reader.producer_states()) == last_batches(other.producer_states())
    directory = f"{PATH}/{TOPIC}-0"
    tiered.directory.close()
    # The local snapshots are lost, so the snapshots in the tier are used.
    for entry in tiered.disk.list_dir(directory):
        if entry.name.endswith(".snapshot"):
            tiered.disk.remove(f"{directory}/{entry.name}")
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    found = tiered.log.producer_states().producers
    assert found.keys() == plain.log.producer_states().producers.keys()


def test_a_hard_stop_keeps_an_index_whose_transaction_began_in_the_tier() -> None:
    """No local snapshot lists the transactions that were open at the start of the local part."""
    tiered = Tiered().start(**{**EAGER, "internal.segment.bytes": "100000"})
    put(tiered.log, 1)
    transact(tiered.log, 5)
    tiered.log.roll()
    end(tiered.log, 5, commit=False)
    put(tiered.log, 1)
    tiered.move()
    assert tiered.log.local_start_offset == 2
    before = logs.read(tiered.base, f"{2:020d}.txnindex")
    tiered.disk.remove(path_of(f"{2:020d}.snapshot"))
    tiered.log.flush()
    tiered.reopen(clean=False)
    assert logs.read(tiered.base, f"{2:020d}.txnindex") == before
    put(tiered.log, 1)
    for view in (tiered.log, tiered.reader()):
        assert offsets(view.records(isolation=IsolationLevel.READ_COMMITTED)) == [0, 3, 4]


def test_a_commit_after_a_truncation_into_the_tier_needs_no_snapshot() -> None:
    """The local part begins at the tier's end and has no snapshot. No transaction was aborted."""
    tiered = Tiered().start(
        **{**EAGER, "internal.segment.bytes": "100000", "segment.ms": str(2**62)}
    )
    for _ in range(3):
        put(tiered.log, 1)
    tiered.log.roll()
    put(tiered.log, 1)
    tiered.move()
    assert tiered.log.truncate_to(2) == 2
    transact(tiered.log, 5)
    end(tiered.log, 5, commit=True)
    put(tiered.log, 1)
    expected = [0, 1, 2, 4]
    for clean in (True, False):
        for view in (tiered.log, tiered.reader()):
            assert offsets(view.records(isolation=IsolationLevel.READ_COMMITTED)) == expected
        tiered.reopen(clean=clean)
        put(tiered.log, 1)
        expected.append(expected[-1] + 1)


def test_a_missing_object_is_a_typed_error_that_names_it() -> None:
    tiered = moved()
    log_key = next(key for key in tiered.store.objects if key.endswith(".log"))
    del tiered.store.objects[log_key]
    for read in (
        lambda: list(tiered.reader().records()),
        lambda: list(tiered.log.records()),
        lambda: [list(part.batches()) for part in tiered.reader().slices(0)],
    ):
        with pytest.raises(MissingFile, match="not in the store") as caught:
            read()
        assert log_key in caught.value.path
        again = copy.copy(caught.value)  # A copy uses `__reduce_ex__`, as pickling does.
        assert (str(again), again.errno) == (str(caught.value), caught.value.errno)


def test_a_missing_local_file_is_a_typed_error_that_names_its_offsets() -> None:
    tiered = Tiered().start(**{"local.retention.bytes": "-1"})
    tiered.fill(20)
    victim = tiered.log.local_segments[1]
    reader = tiered.reader()
    tiered.disk.remove(victim.log_path)
    last = victim.end_offset - 1
    lost = f"offsets {victim.base_offset} to {last}: .* a segment or its end is gone"
    with pytest.raises(OffsetsGone, match=lost):
        list(reader.records())


def test_the_status_has_the_offsets_of_both_tiers() -> None:
    tiered = moved()
    tiered.fill(20)
    found = tier_status(tiered.directory, NAME)
    assert (found.log_start_offset, found.log_end_offset) == (0, 60)
    assert found.local_start_offset == found.tier_end_offset
    assert found.tier_segments == len(manifest_of(tiered).segments)
    assert found.waiting_segments == found.local_segments - 1 > 0
    with pytest.raises(Exception, match="has only partition 0, not 3"):
        tier_status(tiered.directory, TopicPartition(TOPIC, 3))
