"""Changes are appended to `compaction-statistics`, and damage destroys no earlier state."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.damage import DamageFileSystem

from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage.compaction.generations import statistics
from tidelog.storage.compaction.generations.estimates import KeySamples, MappedKeys
from tidelog.storage.compaction.generations.statistics import (
    STATISTICS_FILE,
    SegmentRow,
    Statistics,
    apply_change,
    encode,
    encode_change,
)

SEED = bytes(range(16))
DIRECTORY = "/data/t-0"
PATH = f"{DIRECTORY}/{STATISTICS_FILE}"

OFFSETS = st.integers(0, 1 << 40)
ROWS = st.dictionaries(OFFSETS, st.integers(-1, 1000), max_size=5)
SAMPLES = st.dictionaries(
    st.integers(1, 60).map(lambda n: 4 * n), st.tuples(OFFSETS, st.integers(-500, 500)), max_size=9
)
NUMBERS = st.integers(0, 9)
COUNTS = st.none() | st.builds(
    MappedKeys, shift=NUMBERS, keys=OFFSETS, sampled=NUMBERS, lost=NUMBERS
)


def _row(base: int, records: int) -> SegmentRow:
    return SegmentRow(
        base_offset=base,
        end_offset=base + 10,
        size_bytes=100,
        last_modified_ms=7,
        cleaned_to=base,
        records=records,
    )


@st.composite
def states(draw: st.DrawFn) -> Statistics:
    shift = draw(st.integers(0, 2))
    return Statistics(
        seed=SEED,
        rows={base: _row(base, records) for base, records in draw(ROWS).items()},
        samples=KeySamples(shift, draw(SAMPLES)),
        swept_to=draw(OFFSETS),
        swept_ms=draw(st.integers(-1, 1 << 40)),
        planned_to=draw(OFFSETS),
        counted=draw(COUNTS),
    )


def _seen(known: Statistics) -> tuple[object, ...]:
    latest = dict(known.samples.latest)
    marks = (known.seed, known.swept_to, known.swept_ms, known.planned_to, known.counted)
    return (*marks, known.rows, known.samples.shift, latest)


@given(states(), states())
def test_a_change_describes_the_step_from_one_state_to_any_other(
    before: Statistics, after: Statistics
) -> None:
    was = _seen(before.copy())
    assert _seen(apply_change(before, encode_change(before, after))) == _seen(after)
    assert _seen(before) == was


@given(st.lists(states(), min_size=1, max_size=8))
def test_the_file_has_the_last_stored_state(steps: list[Statistics]) -> None:
    fs = DamageFileSystem()
    fs.make_dirs(DIRECTORY)
    stored = None
    for known in steps:
        stored, _ = statistics.write_statistics(fs, DIRECTORY, known, stored)
        found, problem = statistics.read_statistics(fs, DIRECTORY)
        assert found is not None
        assert (found.size_bytes, found.is_sound, problem) == (stored.size_bytes, True, "")
        assert _seen(found.statistics) == _seen(known)


def _large(swept_to: int) -> Statistics:
    samples = KeySamples(0, {key: (key, 100) for key in range(1, 200)})
    rows = {base: _row(base, 10) for base in range(0, 100, 10)}
    return Statistics(seed=SEED, rows=rows, samples=samples, swept_to=swept_to)


def _stored(count: int) -> tuple[DamageFileSystem, list[int]]:
    """Store states that differ in `swept_to`; return the disk, and the file size after each one."""
    fs = DamageFileSystem()
    fs.make_dirs(DIRECTORY)
    stored, ends = None, []
    for step in range(count):
        stored, _ = statistics.write_statistics(fs, DIRECTORY, _large(step), stored)
        ends.append(stored.size_bytes)
    return fs, ends


def test_changes_are_appended_until_they_take_as_much_as_the_whole() -> None:
    fs, ends = _stored(60)
    whole = len(encode(_large(0)))
    assert ends[0] == whole
    assert ends[1] - ends[0] < whole / 20
    assert max(ends) <= 2 * whole + 100
    # The file was replaced at least once: it became shorter.
    assert sum(after < before for before, after in pairwise(ends)) >= 1
    assert fs.stat(PATH).size == ends[-1]


def test_a_torn_entry_is_not_used_and_none_is_appended_after_it() -> None:
    _, ends = _stored(3)
    for size in range(ends[0], ends[2]):
        fs, _ = _stored(3)
        fs.open(PATH, write=True).truncate(size)
        found, problem = statistics.read_statistics(fs, DIRECTORY)
        assert found is not None
        # If only the line end is missing, the entry is complete.
        step = sum(end <= size + 1 for end in ends) - 1
        assert found.statistics.swept_to == step
        assert bool(problem) == (size not in (*ends, *(end - 1 for end in ends)))
        assert found.is_sound == (size in ends)
        statistics.write_statistics(fs, DIRECTORY, _large(9), found)
        again, problem = statistics.read_statistics(fs, DIRECTORY)
        assert again is not None
        assert (again.statistics.swept_to, again.is_sound, problem) == (9, True, "")


def test_no_change_after_a_flipped_byte_is_used() -> None:
    _, ends = _stored(3)
    for at in range(ends[0], ends[1]):
        fs, _ = _stored(3)
        file = fs.open(PATH, write=True)
        file.pwrite(bytes([file.pread(1, at)[0] ^ 0x10]), at)
        found, problem = statistics.read_statistics(fs, DIRECTORY)
        assert found is not None
        assert not found.is_sound
        assert found.statistics.swept_to == 0
        assert STATISTICS_FILE in problem


def test_zeros_that_a_crash_leaves_at_the_end_destroy_no_earlier_state() -> None:
    fs, ends = _stored(2)
    fs.open(PATH, write=True).truncate(ends[1] + 500)
    found, problem = statistics.read_statistics(fs, DIRECTORY)
    assert found is not None
    assert (found.statistics.swept_to, found.is_sound) == (1, False)
    assert f"from byte {ends[1]} on" in problem


def test_an_empty_file_has_no_statistics() -> None:
    fs, _ = _stored(1)
    fs.open(PATH, write=True).truncate(0)
    found, problem = statistics.read_statistics(fs, DIRECTORY)
    assert found is None
    assert STATISTICS_FILE in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [("gone", [-2]), ("gone", 5), ("lost", "AAAA"), ("lost", "?"), ("shift", 99), ("rows", [[1]])],
)
def test_nonsense_with_a_right_checksum_is_refused(name: str, value: object) -> None:
    content = json.loads(encode_change(_large(0), _large(1)).partition(b"\n")[2])
    content[name] = value
    text = json.dumps(content).encode()
    with pytest.raises(CorruptFile):
        apply_change(_large(0), b"%08x\n%b\n" % (crc32c(text), text))
