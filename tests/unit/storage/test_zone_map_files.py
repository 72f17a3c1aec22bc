"""Zone maps are written when a segment is finished, and verified against the log."""

import dataclasses
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from tests.faults import seeded_env
from tests.faults.hooked import HookedDisk
from tests.worlds.directories import staged
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    WRITABLE,
    batch,
    fill,
    names,
    new_log,
    path_of,
    put,
    read,
    reader_of,
    reopen,
    snapshot_of,
    watched,
    write,
)

from tidelog.env import Env, File
from tidelog.errors import CorruptData, CorruptIndex
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c
from tidelog.record.header import LEADER_EPOCH_AT, LOG_OVERHEAD
from tidelog.storage import files
from tidelog.storage.checks import DirectoryCheck
from tidelog.storage.clocks.zone_map import FileSum, ZoneMap
from tidelog.storage.directory.attach import attach
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.lost_times import lost_times
from tidelog.storage.segment.segment import Segment, iterate_batches
from tidelog.storage.segment.zone_map_files import ZoneCache
from tidelog.types import ClockName, NewRecord

FIRST = "00000000000000000000"
ZONES = f"{FIRST}.zones"
VERSION_AT = -10
RECORD, APPEND = ClockName.RECORD, ClockName.APPEND


def two_segments(config: dict[str, str] | None = None) -> Env:
    """Write records 0 to 2 into a finished segment, and record 3 into the active one."""
    env, directory, log = new_log(config)
    put(log, 10, 20)
    put(log, 15)
    log.roll()
    put(log, 30)
    directory.close()
    return env


def of_later_release(zones: bytes) -> bytes:
    """Return a map with the next version of the format."""
    later = bytearray(zones)
    assert later[VERSION_AT : VERSION_AT + 2] == b"\0\1"
    later[VERSION_AT + 1] = 2
    return bytes(later)


def closed(segments: Sequence[Segment]) -> list[ClosedSegment]:
    return [segment for segment in segments if isinstance(segment, ClosedSegment)]


def first_of(env: Env) -> tuple[ClosedSegment, LogDir]:
    """Open the directory for reading; return its finished segment, and the directory."""
    opened = LogDir.open(PATH, env=env)
    return closed(opened.reader(TOPIC, 0).segments)[0], opened


def without_numba(patch: pytest.MonkeyPatch) -> None:
    """Hide numba, as if it were not installed."""
    find = importlib.util.find_spec
    patch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find(name))


class TestWriting:
    def test_a_roll_writes_the_map_of_the_finished_segment(self) -> None:
        env = two_segments()
        assert [name for name in names(env) if name.endswith(".zones")] == [ZONES]
        segment, _ = first_of(env)
        assert zone_map_files.build(segment) == read(env, ZONES)
        zones = segment.zones
        assert zones is not None
        assert (zones.total.data_records, zones.total.min_record_ms) == (3, 10)
        assert zones.total.max_record_ms == 20

    def test_the_files_beside_the_log_are_summed_as_they_stay(self) -> None:
        segment, _ = first_of(two_segments({"index.interval.bytes": "0"}))
        zones = segment.zones
        assert zones is not None
        assert set(zones.siblings) == {".index", ".timeindex", ".appendtime"}
        assert zones.siblings == zone_map_files.sum_siblings(segment.context, 0)

    def test_a_large_segment_gets_its_map_at_the_close(self) -> None:
        env, directory, log = new_log()
        put(log, 1, value=b"x" * 100_000)
        log.roll()
        assert ZONES not in names(env)
        directory.close()
        assert ZONES in names(env)

    def test_a_large_segment_gets_its_map_at_once_where_kernels_are_loaded(self) -> None:
        env, _, log = new_log()
        log.use_kernels()
        put(log, 1, value=b"x" * 100_000)
        log.roll()
        assert ZONES in names(env)

    def test_without_kernels_the_map_of_a_large_segment_is_built_on_request(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_numba(monkeypatch)
        env, directory, log = new_log()
        put(log, 1, value=b"x" * 100_000)
        log.roll()
        directory.close()
        assert ZONES not in names(env)
        directory, log = reopen(env)
        assert zone_map_files.build_missing(log.segments) == [0]
        assert zone_map_files.build_missing(log.segments) == []
        assert ZONES in names(env)

    def test_a_segment_that_retention_deletes_at_once_gets_none(self) -> None:
        env, directory, log = new_log({"retention.ms": "1000", "file.delete.delay.ms": "100000"})
        put(log, 10)
        env.clock.advance(10**9)
        assert log.apply_retention()
        assert not [name for name in names(env) if ".zones" in name]
        directory.close()

    def test_a_deletion_removes_the_zone_map(self) -> None:
        env, _, log = new_log({**SMALL, "file.delete.delay.ms": "1"})
        fill(log, 30)
        log.delete_records(log.log_end_offset)
        assert log.apply_retention()
        assert f"{ZONES}.deleted" in names(env)
        env.clock.advance(5)
        log.apply_retention()
        assert not [name for name in names(env) if name.endswith(".deleted")]

    def test_attached_segments_get_their_maps(self) -> None:
        env = seeded_env(1)
        staged.make_directory(env, partitions=1)
        with LogDir.open(staged.ROOT, env=env, options=staged.WRITABLE) as log_dir:
            attach(log_dir, staged.stage(env, 0, "a", 30))
            found = closed(log_dir.log(staged.TOPIC, 0).segments)
            assert len(found) > 2
            for segment in found:
                assert segment.zones_on(APPEND) is not None

    def test_a_cut_segment_loses_its_map(self) -> None:
        env, directory, log = new_log()
        put(log, 10)
        put(log, 20)
        log.roll()
        put(log, 30)
        log.truncate_to(1)
        assert ZONES not in names(env)
        put(log, 40)
        log.roll()
        zones = log.segments[0].zones
        assert zones is not None
        assert zones.total.max_record_ms == 40
        directory.close()


class TestBelieving:
    def test_a_missing_map_is_none_and_no_damage(self) -> None:
        env = two_segments()
        env.files.remove(f"{PATH}/{TOPIC}-0/{ZONES}")
        segment, opened = first_of(env)
        assert segment.zones is None
        assert not opened.reports

    @pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "of a later release"])
    def test_a_damaged_map_is_not_used_and_reported(self, damage: str) -> None:
        env = two_segments()
        data = read(env, ZONES)
        broken = {
            "cut": data[:-1],
            "flipped": data[:-30] + bytes((data[-30] ^ 1,)) + data[-29:],
            "empty": b"",
            "foreign": b"something else" * 50,
            "of a later release": of_later_release(data),
        }[damage]
        write(env, ZONES, broken)
        segment, opened = first_of(env)
        assert segment.zones is None
        assert any(ZONES in line and "not used" in line for line in opened.reports)
        _, log = reopen(env)
        assert zone_map_files.build_missing(log.segments) == [0]
        assert read(env, ZONES) == data

    def test_a_map_of_another_topic_is_not_used(self) -> None:
        env = two_segments()
        segment, opened = first_of(env)
        context = dataclasses.replace(segment.context, topic_id=UUID(int=77))
        assert ClosedSegment(context, 0, 3).zones is None
        assert any("topic id" in line for line in opened.reports)

    @pytest.mark.parametrize("position", ["first", "last"])
    def test_a_log_with_other_batches_has_no_map(self, position: str) -> None:
        env = two_segments()
        log = bytearray(read(env, f"{FIRST}.log"))
        second = int.from_bytes(log[8:12], "big") + 12
        at = 12 if position == "first" else second + 12
        log[at + 3] ^= 1  # the leader epoch, which no checksum covers
        write(env, f"{FIRST}.log", bytes(log))
        segment, opened = first_of(env)
        assert segment.zones is None
        assert any("another batch" in line for line in opened.reports)

    def test_a_log_of_another_size_has_no_map(self) -> None:
        env = two_segments()
        write(env, f"{FIRST}.log", read(env, f"{FIRST}.log")[:-1])
        segment, opened = first_of(env)
        assert segment.zones is None
        assert any("bytes" in line for line in opened.reports)

    def test_file_times_do_not_count(self) -> None:
        env = two_segments()
        for name in names(env):
            env.files.set_mtime(f"{PATH}/{TOPIC}-0/{name}", 1)
        segment, opened = first_of(env)
        assert segment.zones is not None
        assert not opened.reports

    def test_lost_append_times_leave_the_map_for_the_other_clock(self) -> None:
        env = two_segments()
        env.files.remove(f"{PATH}/{TOPIC}-0/{FIRST}.appendtime")
        segment, _ = first_of(env)
        assert segment.zones_on(RECORD) is not None
        assert segment.zones_on(APPEND) is None

    def test_a_disk_that_fails_costs_the_map_only(self) -> None:
        env, files = watched(two_segments())

        def fail(path: str) -> None:
            if path.endswith(".zones"):
                raise OSError(5, "Input/output error", path)

        files.before_open = fail
        segment, opened = first_of(env)
        assert segment.zones is None
        assert any("can't be read" in line for line in opened.reports)

    def test_in_passing_a_log_is_not_mapped_and_the_map_not_kept(self) -> None:
        env, files = watched(two_segments())
        segment, opened = first_of(env)
        files.mapped.clear()
        found = segment.passing_zones_on(RECORD)
        assert found is not None
        assert found.total.data_records == 3
        assert not [path for path in files.mapped if path.endswith(".log")]
        assert segment.loaded_zones is None
        kept = segment.zones
        assert segment.passing_zones_on(RECORD) is kept
        assert not opened.reports

    def test_without_append_times_a_zone_map_is_not_used_for_the_append_clock(self) -> None:
        env = two_segments()
        env.files.remove(f"{PATH}/{TOPIC}-0/{FIRST}.appendtime")
        segment, _ = first_of(env)
        assert segment.passing_zones_on(RECORD) is not None
        assert segment.passing_zones_on(APPEND) is None

    def test_a_check_in_passing_opens_the_log_by_its_name(self) -> None:
        """The file is opened by its name: an older handle would still read the replaced file."""
        env = two_segments()
        segment, opened = first_of(env)
        path = segment.log_path
        assert segment.context.pool.get(path).size() == segment.size_bytes
        changed = bytearray(read(env, f"{FIRST}.log"))
        changed[15] ^= 1  # the leader epoch, which no checksum covers
        write(env, "other", bytes(changed))
        env.files.rename(f"{PATH}/{TOPIC}-0/other", path)
        assert segment.passing_zones_on(RECORD) is None
        assert segment.passing_zones_on(RECORD) is None
        assert sum("another batch" in line for line in opened.reports) == 1

    def test_rows_that_are_damaged_later_cost_a_larger_read(self) -> None:
        env = two_segments()
        segment, opened = first_of(env)
        zones = segment.zones
        assert zones is not None
        data = bytearray(read(env, ZONES))
        data[80] ^= 1
        file: File = env.files.open(f"{PATH}/{TOPIC}-0/{ZONES}", write=True)
        file.pwrite(bytes(data), 0)
        assert [zone.data_records for zone in zones.select(lambda _: False)] == [3]
        assert any("a larger part" in line for line in opened.reports)


class TestForeignDirectories:
    def reader(self, env: Env) -> LogView:
        found = reader_of(env)
        assert closed(found.segments)
        return found

    def without_maps(self) -> Env:
        env = two_segments()
        env.files.remove(f"{PATH}/{TOPIC}-0/{ZONES}")
        return env

    def test_a_map_is_built_in_memory(self) -> None:
        env = self.without_maps()
        before = snapshot_of(env)
        segment, _ = first_of(env)
        zones = zone_map_files.load_or_build(segment)
        assert zones is not None
        assert zones.total.data_records == 3
        assert snapshot_of(env) == before

    def test_a_cache_keeps_it_outside(self) -> None:
        env = self.without_maps()
        before = snapshot_of(env)
        cache = ZoneCache(env.files, "/cache")
        segment, _ = first_of(env)
        assert zone_map_files.load_or_build(segment, cache) is not None
        assert snapshot_of(env) == before
        (entry,) = env.files.list_dir("/cache")
        assert set(entry.name.removesuffix(".zones")) <= set("0123456789abcdef-")
        again, _ = first_of(env)
        found = cache.load(again)
        assert found is not None
        assert found.total.data_records == 3

    def test_a_cached_map_of_a_log_that_has_changed_is_not_used(self) -> None:
        env = self.without_maps()
        cache = ZoneCache(env.files, "/cache")
        segment, _ = first_of(env)
        zone_map_files.load_or_build(segment, cache)
        write(env, f"{FIRST}.log", read(env, f"{FIRST}.log")[:-1])
        changed, _ = first_of(env)
        assert cache.load(changed) is None

    def test_a_cached_map_of_a_later_release_is_not_used(self) -> None:
        env = self.without_maps()
        cache = ZoneCache(env.files, "/cache")
        segment, _ = first_of(env)
        zone_map_files.load_or_build(segment, cache)
        path = cache.path_of(segment)
        later = of_later_release(files.read_file(env.files, path))
        files.write_atomically(env.files, path, later)
        assert cache.load(first_of(env)[0]) is None

    def test_a_cache_that_cannot_be_written_is_reported(self) -> None:
        env, files = watched(self.without_maps())

        def refuse(path: str) -> None:
            if path.startswith("/cache"):
                raise OSError(30, "Read-only file system", path)

        files.before_open = refuse
        segment, opened = first_of(env)
        assert zone_map_files.load_or_build(segment, ZoneCache(files, "/cache")) is not None
        assert any("be cached" in line for line in opened.reports)

    def damaged(self, at: int = 70) -> Env:
        env = self.without_maps()
        log = bytearray(read(env, f"{FIRST}.log"))
        log[at] ^= 1
        write(env, f"{FIRST}.log", bytes(log))
        return env

    def test_a_damaged_log_has_no_map(self) -> None:
        segment, opened = first_of(self.damaged())
        assert zone_map_files.load_or_build(segment) is None
        assert any("no zone map" in line for line in opened.reports)

    @pytest.mark.parametrize("by_kernels", [False, True])
    def test_a_map_is_not_built_over_a_wrong_checksum(self, by_kernels: bool) -> None:
        segment, _ = first_of(self.damaged(-2))  # in the last value, so that records can be read
        with pytest.raises(CorruptData, match="CRC-32C"):
            zone_map_files.build(segment, by_kernels=by_kernels)


def test_a_map_that_two_threads_want_is_written_once(tmp_path: Path) -> None:
    disk = HookedDisk()
    renamed: list[str] = []
    with LogDir.open(str(tmp_path), env=Env(files=disk), options=WRITABLE) as directory:
        directory.create_topic(TOPIC)
        log = directory.log(TOPIC, 0)
        other = threading.Thread(target=lambda: zone_map_files.build_missing(log.segments))

        def hook(call: str, path: str) -> None:
            if call == "rename" and path.endswith(".zones.tmp"):
                renamed.append(path)
                if len(renamed) == 1:
                    other.start()
                    # Without the lock, this would be enough time for the second thread to write the
                    # map.
                    other.join(0.2)

        disk.hook = hook
        log.append([NewRecord(value=b"v")])
        log.roll()
        other.join()
        assert len(renamed) == 1
        assert closed(log.segments)[0].zones_on(APPEND) is not None


def flip(env: Env, name: str, at: int) -> None:
    data = bytearray(read(env, name))
    data[at] ^= 1
    write(env, name, bytes(data))


def loss_of(env: Env) -> str | None:
    loss = lost_times(first_of(env)[0])
    return None if loss is None else loss.reason


class TestFactsOfAnOldMap:
    """If a map is replaced, the new map keeps the facts that only the old map has."""

    @pytest.mark.parametrize("damage", ["removed", "cut", "flipped"])
    def test_lost_append_times_stay_lost_until_the_file_is_restored(self, damage: str) -> None:
        env = two_segments()
        name = f"{FIRST}.appendtime"
        data = read(env, name)
        assert loss_of(env) is None
        if damage == "removed":
            env.files.remove(path_of(name))
        elif damage == "cut":
            write(env, name, data[:-20])
        else:
            flip(env, name, 50)
        loss = loss_of(env)
        assert loss is not None
        before = read(env, ZONES)
        for _ in range(2):
            directory, log = reopen(env)
            assert zone_map_files.build_missing(log.segments) in ([0], [])
            directory.close()
            assert read(env, ZONES) != before
            assert loss_of(env) == loss
        write(env, name, data)
        assert loss_of(env) is None
        directory, log = reopen(env)
        assert zone_map_files.build_missing(log.segments) == [0]
        directory.close()
        assert read(env, ZONES) == before

    def test_damage_before_the_first_map_is_a_loss(self) -> None:
        env = two_segments()
        env.files.remove(path_of(ZONES))
        flip(env, f"{FIRST}.appendtime", 50)
        directory, log = reopen(env)
        assert zone_map_files.build_missing(log.segments) == [0]
        directory.close()
        assert (loss_of(env) or "").startswith("row 1: wrong checksum")

    def test_a_damaged_index_of_aborted_transactions_is_not_accepted_beside_lost_times(
        self,
    ) -> None:
        env, directory, log = new_log({"segment.ms": str(2**62)})
        put(log, env.clock.now_ms())
        data = build_batch(
            [NewRecord(value=b"")],
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append_batches(data)
        log.end_transaction(producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=False)
        log.roll()
        directory.close()
        flip(env, f"{FIRST}.txnindex", 9)
        env.files.remove(path_of(f"{FIRST}.appendtime"))
        directory, log = reopen(env)
        zone_map_files.build_missing(log.segments)
        directory.close()
        with pytest.raises(CorruptIndex):
            _ = first_of(env)[0].txn_index

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_changed_log_keeps_its_map_at_a_close(self, number: int) -> None:
        env, directory, log = new_log()
        put(log, 1, value=b"x" * 50_000)
        put(log, 2, value=b"y" * 50_000)
        log.roll()
        segment = log.finished_segments()[0]
        zone_map_files.build_missing([segment])
        before = read(env, ZONES)
        positions = [at for at, _ in iterate_batches(segment, 0, segment.size_bytes)]
        flip(env, f"{FIRST}.log", positions[number] + LEADER_EPOCH_AT)
        segment.unload()
        directory.close()
        assert read(env, ZONES) == before
        (report,) = [each for each in directory.reports if "were changed after" in each]
        assert f"{FIRST}.log" in report

    def test_removing_the_map_accepts_a_log_that_another_program_rewrote(self) -> None:
        env = two_segments()
        name = f"{FIRST}.log"
        data = read(env, name)
        size = LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big")
        rewritten = batch([11, 20])  # of the same size as the first batch
        write(env, name, bytes(rewritten) + data[size:])
        check = DirectoryCheck(env.files, PATH, clock=env.clock)
        (finding,) = (each for each in [*check.load(), *check.findings()] if each.position == 0)
        assert finding.remedy.endswith("remove the segment's .zones file instead")
        segment, opened = first_of(env)
        assert not zone_map_files.write(segment)
        env.files.remove(path_of(ZONES))
        segment, opened = first_of(env)
        assert zone_map_files.write(segment)
        assert not opened.reports

    def test_a_restored_index_keeps_the_facts_of_the_map(self) -> None:
        env = two_segments()
        before = read(env, ZONES)
        env.files.remove(path_of(f"{FIRST}.index"))
        env.files.remove(path_of(f"{FIRST}.appendtime"))
        loss = loss_of(env)
        assert loss is not None
        directory, _ = reopen(env)
        directory.close()
        assert loss_of(env) == loss
        index = read(env, f"{FIRST}.index")
        zones = ZoneMap.decode(read(env, ZONES))
        assert zones.siblings[".index"] == FileSum(len(index), crc32c(index))
        assert list(zones.zones()) == list(ZoneMap.decode(before).zones())
        zones.verify()

    def test_a_rebuilt_index_with_other_entries_fits_the_map(self) -> None:
        env = two_segments({"index.interval.bytes": "0"})
        directory, _ = reopen(env)
        directory.alter_config(TOPIC, {"index.interval.bytes": "4096"})
        directory.close()
        env.files.remove(path_of(f"{FIRST}.index"))
        before = ZoneMap.decode(read(env, ZONES)).siblings
        directory, log = reopen(env)
        (report,) = directory.reports
        assert report.endswith(f"{FIRST}.index: missing; rebuilt from the log")
        index = read(env, f"{FIRST}.index")
        zones = closed(log.segments)[0].zones
        assert zones is not None
        assert zones.siblings == {**before, ".index": FileSum(len(index), crc32c(index))}
        assert zones.siblings != before

    def test_a_recovery_that_writes_another_index_keeps_the_map(self) -> None:
        env = two_segments({"index.interval.bytes": "0"})
        directory, _ = reopen(env)
        directory.alter_config(TOPIC, {"index.interval.bytes": "4096"})
        directory.close()
        zones = read(env, ZONES)
        before = ZoneMap.decode(zones).siblings
        env.files.remove(f"{PATH}/{files.CLEAN_SHUTDOWN_FILE}")
        env.files.remove(f"{PATH}/{files.RECOVERY_POINT_CHECKPOINT_FILE}")
        reopen(env)
        index = read(env, f"{FIRST}.index")
        after = ZoneMap.decode(read(env, ZONES))
        assert after.siblings == {**before, ".index": FileSum(len(index), crc32c(index))}
        assert after.siblings != before
        assert list(after.zones()) == list(ZoneMap.decode(zones).zones())

    def test_a_map_of_a_later_release_is_removed_where_it_would_be_changed(self) -> None:
        env = two_segments()
        later = of_later_release(read(env, ZONES))
        context = first_of(env)[0].context
        for is_rebuilt in (False, True):
            write(env, ZONES, later)
            if is_rebuilt:
                zone_map_files.renew_sums(context, 0, [".index"])
            else:
                zone_map_files.drop_unfit(context, 0)
            assert ZONES not in names(env)

    @pytest.mark.parametrize("damage", ["removed", "flipped"])
    def test_a_log_is_compared_with_the_map_in_memory_if_its_file_is_lost(
        self, damage: str
    ) -> None:
        env = two_segments()
        segment, _ = first_of(env)
        assert segment.zones is not None
        if damage == "removed":
            env.files.remove(path_of(ZONES))
        else:
            flip(env, ZONES, 30)
        assert zone_map_files.unchanged_map(segment) is segment.zones
        flip(env, f"{FIRST}.log", LEADER_EPOCH_AT)
        with pytest.raises(CorruptData, match="were changed after"):
            zone_map_files.unchanged_map(segment)

    def test_append_times_of_another_file_are_accepted_if_none_are_lost(self) -> None:
        env = two_segments()
        name = f"{FIRST}.appendtime"
        times = first_of(env)[0].read_append_times()
        last = times.rows()[-1].offset
        times.truncate_to(last)
        times.mark_unknown(last, 1)
        data = times.encode()
        assert data != read(env, name)
        write(env, name, data)
        assert loss_of(env) is None
        directory, log = reopen(env)
        zone_map_files.build_missing(log.segments)
        directory.close()
        zones = ZoneMap.decode(read(env, ZONES))
        assert zones.siblings[".appendtime"] == FileSum(len(data), crc32c(data))


def test_the_active_segment_has_none() -> None:
    _, _, log = new_log()
    log.append([NewRecord(value=b"v")])
    assert log.segments[-1].zones is None
    assert log.segments[-1].zones_on(RECORD) is None
    assert zone_map_files.build_missing(log.segments) == []
