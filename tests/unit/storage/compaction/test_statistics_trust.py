"""Statistics that are stored between cleanings, and conditions under which they are trusted."""

import json
import sys
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from tests.faults.damage import DamageFileSystem
from tests.worlds.directories.logs import watched
from tests.worlds.repetition import rarely

from tidelog.env import Env
from tidelog.errors import CorruptFile, MissingDependency, UnsupportedVersion
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c
from tidelog.storage import files, log_files
from tidelog.storage.compaction.generations import (
    Demand,
    Generations,
)
from tidelog.storage.compaction.generations.estimates import KeySamples, MappedKeys
from tidelog.storage.compaction.generations.statistics import (
    STATISTICS_FILE,
    SegmentRow,
    Statistics,
    decode,
    encode,
    read_statistics,
    reconcile,
)
from tidelog.storage.compaction.job import (
    CleanedGroup,
    CleanedSource,
    CleaningJob,
    CleaningResult,
    CompactionRules,
    SourceSegment,
)
from tidelog.storage.open_files import DecodedFiles
from tidelog.types import NewRecord

SEED = bytes(16)
DIRECTORY = "/data/t-0"
DEMAND = Demand(cleanable_end=30, active_bytes=0, segment_bytes=1000, space_factor=99.0)


def _segment(base: int, end: int, size: int = 100, mtime_ms: int = 7) -> SourceSegment:
    return SourceSegment(
        base_offset=base,
        end_offset=end,
        size_bytes=size,
        last_modified_ms=mtime_ms,
        append_end=end,
    )


def _row(segment: SourceSegment, cleaned_to: int, records: int = 10) -> SegmentRow:
    return SegmentRow(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        last_modified_ms=segment.last_modified_ms,
        cleaned_to=cleaned_to,
        records=records,
    )


SEGMENTS = [_segment(0, 10), _segment(10, 20), _segment(20, 30)]


def _known() -> Statistics:
    rows = {s.base_offset: _row(s, 25) for s in SEGMENTS}
    return Statistics(seed=SEED, rows=rows, samples=KeySamples(1, {4: (3, 9), 8: (22, -5)}))


def test_encoded_statistics_are_decoded() -> None:
    found = decode(encode(_known()))
    assert (found.rows, found.seed) == (_known().rows, SEED)
    assert (found.samples.shift, sorted(found.samples)) == (1, [(4, 3, 9), (8, 22, -5)])


@pytest.mark.parametrize("place", [at if at % 28 == 0 else rarely(at) for at in range(0, 200, 7)])
def test_a_flipped_byte_is_found(place: int) -> None:
    data = bytearray(encode(_known()))
    data[place] ^= 0x40
    with pytest.raises(CorruptFile):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", [[1, 2]]),
        ("shift", 99),
        ("seed", "00"),
        ("samples", "AAA="),
        ("samples", "?"),
        ("swept", [1]),
        ("rows", [5]),
    ],
)
def test_nonsense_with_a_right_checksum_is_refused(name: str, value: object) -> None:
    content = json.loads(encode(_known()).partition(b"\n")[2])
    content[name] = value
    text = json.dumps(content).encode()
    with pytest.raises(CorruptFile):
        decode(f"{crc32c(text):08x}\n".encode() + text)


def test_a_later_version_is_refused() -> None:
    text = b'{"version": 2}'
    with pytest.raises(UnsupportedVersion):
        decode(f"{crc32c(text):08x}\n".encode() + text)


def test_facts_on_unchanged_segments_stay_proven() -> None:
    found = reconcile(_known(), SEGMENTS, 0)
    assert [row.cleaned_to for row in found.rows.values()] == [25, 25, 25]
    assert len(found.samples) == 2


@pytest.mark.parametrize(
    "other", [_segment(10, 20, size=99), _segment(10, 20, mtime_ms=8), _segment(10, 19)]
)
def test_a_changed_segment_invalidates_facts_proven_by_later_ones(other: SourceSegment) -> None:
    """The log may have been truncated in the changed segment, and then got other records."""
    found = reconcile(_known(), [SEGMENTS[0], other, SEGMENTS[2]], 0)
    assert [row.cleaned_to for row in found.rows.values()] == [10, 10, 20]
    assert found.rows[10].records < 0


def test_the_checkpoint_is_used_if_statistics_are_lost() -> None:
    found = reconcile(Statistics(seed=SEED), SEGMENTS, 20)
    assert [row.cleaned_to for row in found.rows.values()] == [20, 20, 20]


def test_samples_of_removed_segments_are_dropped() -> None:
    found = reconcile(_known(), SEGMENTS[:2], 0)
    assert sorted(found.samples) == [(4, 3, 9)]


def _machine() -> tuple[DamageFileSystem, Env, list[SourceSegment]]:
    """Create three segments of ten records.

    The first segment has ten keys. The other two segments have five of these keys each, and each
    key twice.
    """
    machine = DamageFileSystem()
    fs = machine
    fs.make_dirs(DIRECTORY)
    segments = []
    for number in range(3):
        keys = [b"%d" % (key if number else key % 10) for key in range(10)]
        if number:
            keys = [b"%d" % (key // 2) for key in range(10)]
        batch = build_batch(
            [NewRecord(key=key, value=b"x" * 50, timestamp=1) for key in keys],
            base_offset=number * 10,
        )
        path = f"{DIRECTORY}/{log_files.log_file_name(number * 10)}"
        file = fs.open(path, create=True)
        file.pwrite(bytes(batch), 0)
        file.close()
        segments.append(_segment(number * 10, number * 10 + 10, len(batch)))
    return machine, Env(files=machine, random=Random(1)), segments


def test_the_sample_estimates_live_keys() -> None:
    _, env, segments = _machine()
    made = Generations.load(env, DIRECTORY, segments, 0)
    made.sample(30)
    facts = made.facts(0)
    assert [each.keys for each in facts] == [5, 0, 5]
    assert [each.records for each in facts] == [10, 10, 10]
    assert made.bytes_read == sum(each.size_bytes for each in segments)


def test_stored_statistics_need_no_read_of_the_log() -> None:
    _, env, segments = _machine()
    made = Generations.load(env, DIRECTORY, segments, 0)
    made.sample(30)
    assert made.store() > 0
    assert made.store() == 0
    again = Generations.load(env, DIRECTORY, segments, 0)
    again.sample(30)
    assert again.bytes_read == 0
    assert again.facts(0) == made.facts(0)


def test_the_decoded_file_of_statistics_is_cached() -> None:
    machine, surroundings, segments = _machine()
    env, watch = watched(surroundings)
    kept, path = DecodedFiles(), f"{DIRECTORY}/{STATISTICS_FILE}"
    made = Generations.load(env, DIRECTORY, segments, 0, kept)
    made.sample(30)
    made.store()
    again = Generations.load(env, DIRECTORY, segments, 0, kept)
    again.sample(30)
    assert (again.bytes_read, again.facts(0)) == (0, made.facts(0))
    # Changes that are not stored are not visible to the next load.
    _note(again, segments, 0, 5)
    third = Generations.load(env, DIRECTORY, segments, 0, kept)
    assert third.facts(0) == made.facts(0)
    assert path not in watch.read_bytes
    # A file that another process wrote is detected by its size.
    files.write_atomically(machine, path, b"00000000\n{}")
    other = Generations.load(env, DIRECTORY, segments, 0, kept)
    assert (len(other.problems), watch.read_bytes[path]) == (1, 11)


def test_a_damaged_file_is_reported() -> None:
    machine, env, segments = _machine()
    files.write_atomically(machine, f"{DIRECTORY}/{STATISTICS_FILE}", b"00000000\n{}")
    made = Generations.load(env, DIRECTORY, segments, 0)
    assert len(made.problems) == 1
    assert STATISTICS_FILE in made.problems[0]


def test_a_damaged_segment_is_left_out_of_the_sample() -> None:
    machine, env, segments = _machine()
    file = machine.open(f"{DIRECTORY}/{log_files.log_file_name(10)}", write=True)
    file.pwrite(b"\x09", 16)
    made = Generations.load(env, DIRECTORY, segments, 0)
    made.sample(30)
    assert [each.records for each in made.facts(0)] == [10, None, 10]
    assert len(made.problems) == 1


def test_without_numpy_the_sample_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, env, segments = _machine()
    made = Generations.load(env, DIRECTORY, segments, 0)
    monkeypatch.delitem(sys.modules, "tidelog.storage.compaction.generations.sampling", False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingDependency, match=r"pip install .tidelog\[arrow\]"):
        made.sample(30)


def _cleaned(mapped_to: int, tombstones: int = 0) -> CleaningResult:
    source = CleanedSource(
        base_offset=0,
        bytes_before=100,
        bytes_after=50,
        records_before=10,
        records_after=5,
        tombstones_after=tombstones,
        markers_after=0,
    )
    second = replace(source, base_offset=10, bytes_after=0, records_after=0, tombstones_after=0)
    group = CleanedGroup(base_offset=0, end_offset=20, sources=(source, second), suffixes=(".log",))
    return CleaningResult(
        groups=(group,), mapped_to=mapped_to, keys=5, bytes_read=1, bytes_written=50
    )


def _noted(mapped_to: int, tombstones: int = 0) -> Generations:
    _, env, segments = _machine()
    made = Generations.load(env, DIRECTORY, segments, 0)
    made.sample(30)
    after = [_segment(0, 20, 50), segments[2]]
    made.note(_job(0), _cleaned(mapped_to, tombstones), after, is_full=False)
    return made


def test_a_cleaning_raises_the_proven_offsets() -> None:
    made = _noted(30)
    assert [each.cleaned_to for each in made.facts(0)] == [30, 20]
    assert made.clean_end(0) == 20
    assert (made.row(0).runs, made.row(0).freed_bytes) == (1, 150)


def test_a_full_map_proves_less() -> None:
    assert _noted(15).row(0).cleaned_to == 15


def test_tombstones_that_stay_are_due_after_their_retention() -> None:
    made = _noted(30, tombstones=1)
    assert not made.facts(1059)[0].has_due
    assert made.facts(1060)[0].has_due
    assert not _noted(30).facts(9999)[0].has_due


def test_a_log_is_swept_for_its_tombstones_once_they_have_had_their_time() -> None:
    made = _noted(30, tombstones=1)
    assert not made.plan(DEMAND, 1059, 60).is_due
    plan = made.plan(DEMAND, 1060, 60)
    assert plan.is_full
    assert [(group.bases, group.drop_expired) for group in plan.groups] == [((0, 20), True)]


def _counting(machine: DamageFileSystem, env: Env) -> Generations:
    """Return statistics of a log with ten keys; the last record of each key has 50 bytes.

    The sample contains about half of all keys: here four keys, two of them in the last segment.
    """
    samples = KeySamples(1, {2: (3, 50), 4: (7, 50), 6: (21, 50), 8: (23, 50)})
    rows = {each.base_offset: _row(each, each.base_offset) for each in SEGMENTS}
    rows = {base: replace(row, record_bytes=100) for base, row in rows.items()}
    known = Statistics(seed=SEED, rows=rows, samples=samples)
    files.write_atomically(machine, f"{DIRECTORY}/{STATISTICS_FILE}", encode(known))
    return Generations.load(env, DIRECTORY, SEGMENTS, 0)


def _job(map_from: int) -> CleaningJob:
    return CleaningJob(
        directory=DIRECTORY,
        topic="t",
        partition=0,
        topic_id=UUID(int=0),
        sources=(),
        groups=(),
        map_from=map_from,
        map_to=30,
        log_start_offset=0,
        upper_bound_offset=30,
        now_ms=1000,
        rules=CompactionRules(delete_retention_ms=60),
        seed=bytes(16),
    )


def _note(made: Generations, segments: list[SourceSegment], map_from: int, keys: int) -> None:
    after = [_segment(0, 20, 50), segments[2]]
    made.note(_job(map_from), replace(_cleaned(30), keys=keys), after, is_full=False)


def test_the_keys_of_a_map_correct_the_live_size() -> None:
    """The sample estimates eight keys. The map had ten keys, so the statistics store ten."""
    machine, env, _ = _machine()
    made = _counting(machine, env)
    before = made.plan(DEMAND, 0, 60).space
    assert before.live_bytes == 400
    assert before.bound_bytes == pytest.approx(99 * 400 * 0.9)
    _note(made, SEGMENTS, 0, 10)
    made.store()
    again = Generations.load(env, DIRECTORY, [_segment(0, 20, 50), SEGMENTS[2]], 0)
    for known in (made, again):
        after = known.plan(DEMAND, 0, 60).space
        assert (after.live_bytes, after.bound_bytes) == (500, 99 * 500)


def test_the_count_of_mapped_keys_is_stored() -> None:
    counted = MappedKeys(shift=1, keys=10, sampled=4, lost=2)
    assert decode(encode(replace(_known(), counted=counted))).counted == counted
    assert decode(encode(_known())).counted is None


def test_keys_that_leave_the_sample_make_a_count_worth_less() -> None:
    counted = MappedKeys(shift=1, keys=4, sampled=2)
    found = reconcile(replace(_known(), counted=counted), SEGMENTS[:2], 0)
    assert found.counted == replace(counted, lost=1)


def test_a_map_of_segments_that_were_not_sampled_is_not_counted() -> None:
    machine, env, _ = _machine()
    known = _known()
    known.rows[10] = replace(known.rows[10], records=-1)
    files.write_atomically(machine, f"{DIRECTORY}/{STATISTICS_FILE}", encode(known))
    made = Generations.load(env, DIRECTORY, SEGMENTS, 0)
    _note(made, SEGMENTS, 0, 10)
    made.store()
    found, _ = read_statistics(machine, DIRECTORY)
    assert found is not None
    assert found.statistics.counted is None


@pytest.mark.parametrize(("is_sampled", "counted"), [(False, 10), (True, None)])
def test_a_waiting_segment_prevents_a_count_only_if_it_was_sampled(
    is_sampled: bool, counted: int | None
) -> None:
    """If a sampled segment may have a mapped key's last record, no count of keys is stored."""
    machine, env, _ = _machine()
    known, waiting = _known(), _segment(30, 40)
    known.rows[30] = _row(waiting, 30, 10 if is_sampled else -1)
    files.write_atomically(machine, f"{DIRECTORY}/{STATISTICS_FILE}", encode(known))
    made = Generations.load(env, DIRECTORY, [*SEGMENTS, waiting], 0)
    after = [_segment(0, 20, 50), SEGMENTS[2], waiting]
    made.note(_job(0), replace(_cleaned(30), keys=10), after, is_full=False)
    made.store()
    found, _ = read_statistics(machine, DIRECTORY)
    assert found is not None
    kept = found.statistics.counted
    assert (kept and kept.keys) == counted


def test_the_first_look_behind_a_roll_expects_the_next_one_as_late() -> None:
    """The first check after a roll finds an active segment of 300 bytes.

    So at the next check, the segment after the active one may have 300 bytes, too.
    """
    _, env, segments = _machine()
    made = Generations.load(env, DIRECTORY, segments, 0)
    made.sample(30)
    demand = replace(DEMAND, active_bytes=300)
    size = sum(each.size_bytes for each in segments)
    assert made.plan(demand, 0, 60).space.log_bytes == size + 1000 + 300
    later = replace(demand, active_bytes=800)
    assert made.plan(later, 0, 60).space.log_bytes == size + 1000


def test_the_active_segments_size_does_not_affect_a_log_whose_records_must_age() -> None:
    """Records must first grow older, so the active segment doesn't cause the next inspection."""
    _, env, segments = _machine()
    made = Generations.load(env, DIRECTORY, segments, 0)
    made.sample(20)
    demand = replace(DEMAND, cleanable_end=20, active_bytes=300)
    size = sum(each.size_bytes for each in segments)
    assert made.plan(demand, 0, 60).space.log_bytes == size + 1000
