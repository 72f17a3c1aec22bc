"""Copying segments to the tier, deleting local files, and reading both as one log."""

from collections import defaultdict

import pytest
from tests.faults import DamageFileSystem
from tests.unit.storage.tiers.fake_store import FakeStore
from tests.unit.storage.tiers.tiered import EAGER, NAME, Tiered, values
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import MissingFile, OffsetsGone
from tidelog.record.header import LEADER_EPOCH_AT
from tidelog.storage.files import read_file, write_atomically
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.segment.segment import iterate_batches
from tidelog.storage.segment.zone_map_files import build_missing
from tidelog.storage.tier_manager.mover import tier_status
from tidelog.types import ClockName, NewRecord


def test_finished_segments_are_copied_and_local_ones_stay_without_local_retention() -> None:
    tiered = Tiered().start()
    tiered.fill(40)
    local = [segment.base_offset for segment in tiered.log.segments]
    report = tiered.move()
    assert report.copied == len(local) - 1
    assert report.released == 0
    assert [s.base_offset for s in tiered.log.segments] == local
    assert values(tiered.log) == list(range(40))


def test_local_files_are_deleted_and_the_log_has_the_same_records() -> None:
    tiered = Tiered().start(**{"local.retention.bytes": "0"})
    tiered.fill(40)
    end = tiered.log.segments[-1].base_offset
    report = tiered.move()
    assert report.released == report.copied > 3
    assert tiered.log.local_start_offset == end
    assert tiered.log.log_start_offset == 0
    assert values(tiered.log) == list(range(40))
    assert values(tiered.reader()) == list(range(40))
    tiered.reopen()
    assert values(tiered.log) == list(range(40))
    tiered.fill(30)
    tiered.move()
    assert values(tiered.reader()) == list(range(70))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("number", [1, 7, 20])
def test_records_that_are_deleted_during_a_move_stay_deleted(number: int, is_first: bool) -> None:
    """A broker carries out DeleteRecords requests while another thread copies segments."""
    tiered = Tiered().start()
    if not is_first:
        tiered.fill(10)
        tiered.move()
    tiered.fill(30)
    changes = 0

    def delete() -> None:
        nonlocal changes
        changes += 1
        if changes == number:
            tiered.log.delete_records(5)

    tiered.store.on_change = delete
    tiered.move()
    for is_clean in (True, False):
        assert tiered.log.log_start_offset == tiered.reader().log_start_offset == 5
        assert values(tiered.reader())[0] == 5
        tiered.reopen(clean=is_clean)


@pytest.mark.parametrize("magic", [0, 1])
def test_segments_that_begin_with_a_short_old_message_are_copied(magic: int) -> None:
    """A zone map identifies a batch by its first 61 bytes, but an old message may be shorter.

    Moved and local segments keep their zone maps, and a count reads no log.
    """
    tiered = Tiered().start()
    for number in range(4):
        records = [NewRecord(key=b"k", value=b"%d" % number, timestamp=number)] * 3
        old = build_legacy_set(records, magic=magic)
        tiered.log.append_batches(old, AppendTerms(takes_legacy=True))
        tiered.log.roll()
    report = tiered.move()
    assert (report.copied, report.stopped) == (4, None)
    tiered.reopen()
    assert not tiered.directory.reports
    assert all(segment.zones is not None for segment in tiered.reader().segments[:-1])


def test_lookups_by_time_search_both_tiers() -> None:
    plain, tiered = Tiered().start(), Tiered().start(**{"local.retention.bytes": "0"})
    for each in (plain, tiered):
        each.fill(60)
    tiered.move()
    start = plain.log.offset_for_time(0)
    assert start is not None
    for reader in (tiered.log, tiered.reader()):
        for ms in range(start.timestamp - 1000, start.timestamp + 62_000, 700):
            for clock in ClockName:
                expected = plain.log.offset_for_time(ms, clock=clock)
                assert reader.offset_for_time(ms, clock=clock) == expected
        assert reader.max_timestamp() == plain.log.max_timestamp()
        assert [reader.append_time_of(n) for n in range(60)] == [
            plain.log.append_time_of(n) for n in range(60)
        ]


def test_a_segment_before_lost_offsets_stays_local() -> None:
    """In a manifest, a segment ends where the next one begins, which would hide lost offsets."""
    tiered = Tiered().start(**EAGER)
    tiered.fill(40)
    bases = [segment.base_offset for segment in tiered.log.segments]
    path = tiered.log.segments[2].log_path
    tiered.directory.close()
    tiered.disk.remove(path)
    tiered.reopen()
    gone = f"offsets {bases[2]} to {bases[3] - 1}"
    for _ in range(2):
        report = tiered.move()
        assert gone in (report.stopped or "")
        assert tiered.log.local_start_offset == bases[1]
        for reader in (tiered.log, tiered.reader()):
            with pytest.raises(OffsetsGone, match=gone):
                values(reader)


def test_eager_settings_are_those_of_the_tests() -> None:
    assert EAGER["local.retention.bytes"] == "0"


def test_a_folder_with_a_log_is_complete() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    seen: list[tuple[str, set[str]]] = []
    tiered.store.on_change = lambda: seen.extend(with_log(tiered.store).items())
    assert tiered.move().copied > 1
    whole = with_log(tiered.store)
    assert len(seen) > len(whole)
    assert all(suffixes == whole[folder] for folder, suffixes in seen)


def with_log(store: FakeStore) -> dict[str, set[str]]:
    """Return the folders that contain a log, and the suffixes of the files in each."""
    folders = defaultdict[str, set[str]](set)
    for key in store.objects:
        folder, _, name = key.rpartition("/")
        folders[folder].add(name.rpartition(".")[2])
    return {folder: suffixes for folder, suffixes in folders.items() if "log" in suffixes}


def test_no_changed_byte_of_a_log_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory maps are copies here, as for small files, so they don't show a later change."""
    mapped = DamageFileSystem.map
    monkeypatch.setattr(DamageFileSystem, "map", lambda *given: memoryview(bytes(mapped(*given))))
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    segments = tiered.log.finished_segments()
    build_missing(segments)
    assert values(tiered.log) == list(range(24))
    damaged = segments[2]
    for position in range(damaged.size_bytes):
        flip(tiered, damaged.log_path, position)
        report = tiered.move()
        assert report.copied == (0 if position else 2)
        assert (report.stopped or "").startswith(f"{damaged.log_path}, position ")
        assert "later ones stay local; `tidelog doctor`" in (report.stopped or "")
        flip(tiered, damaged.log_path, position)
    assert tiered.log.local_segments[0].base_offset == damaged.base_offset
    assert tiered.move().copied == len(segments) - 2
    assert values(tiered.reader()) == list(range(24))


@pytest.mark.parametrize("cut_bytes", [1, 70, 500])
def test_a_log_that_became_shorter_or_longer_is_not_copied(cut_bytes: int) -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    segment = tiered.log.finished_segments()[2]
    content = read_file(tiered.disk, segment.log_path)
    for changed in (content[:-cut_bytes], content + content[-cut_bytes:]):
        write_atomically(tiered.disk, segment.log_path, changed)
        assert segment.log_path in (tiered.move().stopped or "")
        assert tiered.log.local_segments[0].base_offset == segment.base_offset
    write_atomically(tiered.disk, segment.log_path, content)
    assert tiered.move().stopped is None
    assert values(tiered.reader()) == list(range(24))


def test_a_log_file_that_was_removed_is_a_typed_error_that_names_it() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    segment = tiered.log.finished_segments()[2]
    assert segment.size_bytes
    tiered.disk.remove(segment.log_path)
    with pytest.raises(MissingFile) as caught:
        tiered.move()
    assert caught.value.path == segment.log_path
    assert tiered.log.local_segments[0].base_offset == 0


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_append_times_that_could_be_restored_stay_local(is_lost: bool) -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    tiered.log.roll()
    times = {offset: tiered.log.append_time_of(offset) for offset in range(24)}
    segments = tiered.log.finished_segments()
    path = segments[2].context.path(segments[2].base_offset, ".appendtime")
    data = read_file(tiered.disk, path)
    if is_lost:
        tiered.disk.remove(path)
    else:
        flip(tiered, path, len(data) - 5)
    tiered.reopen()
    report = tiered.move()
    assert report.copied == 2
    assert (report.stopped or "").startswith(f"{path}: ")
    assert "--accept-lost-times" in (report.stopped or "")
    status = tier_status(tiered.directory, NAME, checks_times=True)
    assert status.refused == report.stopped
    assert tier_status(tiered.directory, NAME).refused is None
    write_atomically(tiered.disk, path, data)
    assert tiered.reopen().move().copied == len(segments) - 2
    assert tier_status(tiered.directory, NAME, checks_times=True).refused is None
    assert {offset: tiered.log.append_time_of(offset) for offset in times} == times


def test_lost_append_times_are_unknown_in_the_tier_if_that_is_accepted() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    tiered.log.roll()
    segments = tiered.log.finished_segments()
    lost = range(segments[2].base_offset, segments[2].end_offset)
    times = {n: None if n in lost else tiered.log.append_time_of(n) for n in range(24)}
    tiered.disk.remove(segments[2].context.path(lost.start, ".appendtime"))
    tiered.reopen()
    report = tiered.move(accepts_lost_times=True)
    assert (report.copied, report.stopped) == (len(segments), None)
    assert {offset: tiered.log.append_time_of(offset) for offset in times} == times


@pytest.mark.parametrize("loses_times", [False, True])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_changed_log_is_not_copied_by_a_process_that_loads_the_map_afterwards(
    number: int, loses_times: bool
) -> None:
    """A zone map whose first or last batch or append times differ from the log is not rebuilt."""
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    tiered.log.roll()
    segments = tiered.log.finished_segments()
    build_missing(segments)
    damaged = segments[2]
    positions = [at for at, _ in iterate_batches(damaged, 0, damaged.size_bytes)]
    flip(tiered, damaged.log_path, positions[number] + LEADER_EPOCH_AT)
    if loses_times:
        tiered.disk.remove(damaged.context.path(damaged.base_offset, ".appendtime"))
    report = tiered.reopen().move(accepts_lost_times=True)
    assert report.copied == 2
    assert (report.stopped or "").startswith(f"{damaged.log_path}, position ")
    flip(tiered, damaged.log_path, positions[number] + LEADER_EPOCH_AT)
    assert tiered.reopen().move(accepts_lost_times=True).copied == len(segments) - 2


def test_a_map_of_another_log_is_built_again() -> None:
    """The checksum of every zone differs, so the log was rewritten and is not damaged."""
    tiered = Tiered().start(**EAGER | {"internal.segment.bytes": "100000"})
    tiered.fill(400)
    tiered.log.roll()
    (segment,) = tiered.log.finished_segments()
    build_missing([segment])
    for position, _ in iterate_batches(segment, 0, segment.size_bytes):
        flip(tiered, segment.log_path, position + LEADER_EPOCH_AT + 3)
    assert tiered.reopen().move().copied == 1


@pytest.mark.parametrize("suffix", [".zones", ".index", ".timeindex"])
def test_no_changed_byte_of_a_derived_file_is_copied(suffix: str) -> None:
    """The files are damaged after the log has loaded them."""
    tiered = Tiered().start(**EAGER)
    tiered.fill(24)
    segments = tiered.log.finished_segments()
    build_missing(segments)
    assert values(tiered.log) == list(range(24))
    for segment in segments:
        assert segment.offset_index.entry_count
        assert segment.time_index.entry_count
    paths = [segment.context.path(segment.base_offset, suffix) for segment in segments]
    sound = [read_file(tiered.disk, path) for path in paths]
    if suffix != ".zones":
        slot = [".index", ".timeindex"].index(suffix)
        sound = [bytes(segment.rebuild_indexes()[slot].encoded) for segment in segments]
    for number, path in enumerate(paths):
        for position in range(number, len(sound[number]), len(paths)):
            flip(tiered, path, position)
    assert tiered.move().copied == len(segments)
    objects = {key.rpartition("/")[2]: one[0] for key, one in tiered.store.objects.items()}
    assert [objects[path.rpartition("/")[2]] for path in paths] == sound
    assert values(tiered.reader()) == list(range(24))


def flip(tiered: Tiered, path: str, position: int) -> None:
    """Flip a bit of a file in place."""
    file = tiered.disk.open(path, write=True)
    byte = file.pread(1, position)[0] ^ 1 << position % 8
    file.pwrite(bytes([byte]), position)
    file.close()
