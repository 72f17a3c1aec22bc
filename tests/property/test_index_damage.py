"""No damage of an index hides, changes or deletes a record; damage is detected and repaired."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import SeededEnv
from tests.property.test_repair import DAMAGES, Damage, answers, cut, flip
from tests.worlds.directories.logs import PATH, WRITABLE, snapshot_of, write
from tests.worlds.directories.sick import PARTITION, mend, mended_log

from tidelog.errors import CorruptIndex
from tidelog.storage import log_files
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import IsolationLevel

INDEXES = (log_files.OFFSET_INDEX_SUFFIX, log_files.TIME_INDEX_SUFFIX)
EXPECTED = answers(mended_log())


def finished_bases(env: SeededEnv) -> list[int]:
    return all_bases(env)[:-1]


def last_base(env: SeededEnv) -> int:
    return all_bases(env)[-1]


def all_bases(env: SeededEnv) -> list[int]:
    parsed = (log_files.parse_file_name(entry.name) for entry in env.files.list_dir(PARTITION))
    return sorted(found[0] for found in parsed if found and found[1] == log_files.LOG_SUFFIX)


def hurt(env: SeededEnv, name: str, damage: Damage, source: random.Random) -> bool:
    """Damage a file; return whether the damage changed it."""
    file = env.files.open(f"{PARTITION}/{name}")
    data = file.pread(file.size(), 0)
    file.close()
    changed = damage(source, data)
    env.files.remove(f"{PARTITION}/{name}")
    if changed is not None:
        write(env, name, changed)
    return changed != data


@given(
    damage=st.sampled_from(DAMAGES),
    suffixes=st.sets(st.sampled_from(INDEXES), min_size=1),
    seed=st.integers(0, 2**32),
    writes=st.booleans(),
)
def test_damaged_indexes_of_finished_segments_change_no_result(
    damage: Damage, suffixes: set[str], seed: int, writes: bool
) -> None:
    env, source = mended_log(), random.Random(seed)
    is_hurt = False
    for base in finished_bases(env):
        for suffix in sorted(suffixes):
            is_hurt |= hurt(env, log_files.file_name(base, suffix), damage, source)
    before = snapshot_of(env)
    if writes:
        with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
            directory.log("t", 0).apply_retention()
    assert answers(env) == EXPECTED
    for path, data in snapshot_of(env).items():
        if path.endswith((log_files.LOG_SUFFIX, log_files.APPEND_TIME_SUFFIX)):
            assert data == before[path]
    with LogDir.open(PATH, env=env) as directory:
        for segment in directory.reader("t", 0).segments:
            _ = segment.offset_index, segment.time_index
        # If an index is missing, opening for writing creates it again, so nothing is reported.
        assert bool(directory.reports) == (is_hurt and not (writes and damage(source, b"") is None))


@given(
    damage=st.sampled_from(DAMAGES),
    suffixes=st.sets(st.sampled_from(INDEXES), min_size=1),
    seed=st.integers(0, 2**32),
)
def test_damaged_indexes_without_a_zone_map_change_no_result(
    damage: Damage, suffixes: set[str], seed: int
) -> None:
    """Other programs write no zone maps, so index entries can be checked only against the log."""
    env, source = mended_log(), random.Random(seed)
    finished = finished_bases(env)
    for base in finished:
        env.files.remove(f"{PARTITION}/{log_files.file_name(base, log_files.ZONES_SUFFIX)}")
    for base in (*finished, last_base(env)):
        for suffix in sorted(suffixes):
            hurt(env, log_files.file_name(base, suffix), damage, source)
    assert answers(env) == EXPECTED


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_index_of_aborted_transactions_shows_no_aborted_record(seed: int) -> None:
    env, source = mended_log(), random.Random(seed)
    base = finished_bases(env)[seed % 2]
    damage = source.choice([flip, cut])
    if not hurt(env, log_files.file_name(base, log_files.TXN_INDEX_SUFFIX), damage, source):
        return
    with LogDir.open(PATH, env=env) as directory:
        log = directory.reader("t", 0)
        with pytest.raises(CorruptIndex):
            list(log.records(isolation=IsolationLevel.READ_COMMITTED))
        assert [record.offset for record in log.records()]
    mend(env)
    assert answers(env) == EXPECTED
