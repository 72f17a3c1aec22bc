"""Files of an audit, with rows or with its state; damaged files are never used."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults import DamageFileSystem, Keep, reopen

from tidelog.env import Env
from tidelog.errors import CorruptFile, InvalidRequest, UnsupportedVersion
from tidelog.jobs.audit.plan import gaps
from tidelog.jobs.audit.state import NOTE, Mark, Run, decode_run, new_state, read_state, write_state
from tidelog.jobs.audit.state_files import CHUNKS, read_rows, write_rows
from tidelog.record.kernels import key_rows
from tidelog.record.kernels.memory import Longs
from tidelog.storage.files import SMALL_FILE_LIMIT_BYTES

PATH = "/state/one.rows"
QUESTION: dict[str, object] = {"a": "here", "b": "there", "span_ms": 5}
RUN = Run(
    side="a",
    topic="t",
    partition=1,
    start=4,
    end=9,
    topic_id="f" * 32,
    files=("one.rows",),
    rows=3,
    records=5,
    unkeyed=1,
    unkeyed_sum=-7,
    span_ms=5,
    spans=((-1, 2, -(2**63)),),
    marks=(Mark(base_offset=0, start=0, end=50, sum=9, size=60, zones=4),),
)


@pytest.fixture
def env() -> Env:
    disk = DamageFileSystem()
    disk.make_dirs("/state")
    return Env(files=disk)


def digest_rows(seed: int, count: int) -> Longs:
    draw = np.random.default_rng(seed)
    rows = draw.integers(-(2**63), 2**63 - 1, (count, 9), np.int64)
    return rows[np.argsort(rows[:, key_rows.HASH_HIGH].view(np.uint64), kind="stable")]


@given(seed=st.integers(0, 99), count=st.integers(0, 50), cut=st.integers(0, CHUNKS))
@examples(30)
def test_rows_are_read_back_by_chunks(seed: int, count: int, cut: int) -> None:
    disk = DamageFileSystem()
    disk.make_dirs("/state")
    env = Env(files=disk)
    rows = digest_rows(seed, count)
    write_rows(env, PATH, digest_rows(seed + 1, 60))
    write_rows(env, PATH, rows)
    parts = [read_rows(env, PATH, 0, cut), read_rows(env, PATH, cut)]
    assert np.concatenate(parts).tolist() == rows.tolist()
    assert parts[0].flags.writeable


def content(env: Env, path: str) -> bytes:
    file = env.files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def put(env: Env, path: str, data: bytes) -> None:
    file = env.files.open(path, write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
    finally:
        file.close()


def test_any_flipped_bit_is_seen(env: Env) -> None:
    write_rows(env, PATH, digest_rows(1, 5))
    whole = content(env, PATH)
    places = [*range(5 * 72), *range(5 * 72, len(whole), 97), *range(len(whole) - 24, len(whole))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        put(env, PATH, bytes(damaged))
        with pytest.raises((CorruptFile, UnsupportedVersion)):
            read_rows(env, PATH)


@pytest.mark.parametrize("size", [0, 10, 72, 32_000])
def test_a_cut_file_is_seen(env: Env, size: int) -> None:
    write_rows(env, PATH, digest_rows(1, 5))
    put(env, PATH, content(env, PATH)[:size])
    with pytest.raises(CorruptFile):
        read_rows(env, PATH)


def test_a_state_is_read_back_and_other_files_of_rows_are_removed(env: Env) -> None:
    state = replace(new_state(env, QUESTION), runs=(RUN,))
    for name in ("one.rows", "two.rows", "note.txt"):
        put(env, f"/state/{name}", b"")
    write_state(env, "/state", state)
    assert read_state(env, "/state", QUESTION) == state
    names = {entry.name for entry in env.files.list_dir("/state")}
    assert names == {NOTE, "one.rows", "note.txt"}


@pytest.mark.parametrize("keep", Keep)
def test_a_crash_leaves_all_rows_of_the_note_on_disk(keep: Keep) -> None:
    disk = DamageFileSystem()
    disk.make_dirs("/state")
    env = Env(files=disk)
    put(env, "/state/one.rows", b"1")
    write_state(env, "/state", replace(new_state(env, QUESTION), runs=(RUN,)))
    put(env, "/state/two.rows", b"2")
    disk.settle()
    later = replace(new_state(env, QUESTION), runs=(replace(RUN, files=("two.rows",)),))
    write_state(env, "/state", later)
    for crash in disk.prefixes(keep):
        left = Env(files=reopen(crash))
        files = {entry.name for entry in left.files.list_dir("/state")}
        runs = read_state(left, "/state", QUESTION).runs
        assert runs, crash
        assert {name for run in runs for name in run.files} <= files, crash


def test_a_state_belongs_to_one_request(env: Env) -> None:
    write_state(env, "/state", new_state(env, QUESTION))
    with pytest.raises(InvalidRequest, match="span_ms=5, not 6"):
        read_state(env, "/state", QUESTION | {"span_ms": 6})


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"version": 1}', b'{"version": 2, "seed": "00"}', b"\xff" * 9]
)
def test_a_damaged_note_is_no_note(env: Env, text: bytes) -> None:
    put(env, f"/state/{NOTE}", text)
    found = read_state(env, "/state", QUESTION)
    assert (found.runs, len(found.seed)) == ((), 40)


def test_a_note_may_be_larger_than_other_small_files(env: Env) -> None:
    state = replace(new_state(env, QUESTION), runs=(RUN,))
    write_state(env, "/state", state)
    padding = b" " * SMALL_FILE_LIMIT_BYTES
    put(env, f"/state/{NOTE}", content(env, f"/state/{NOTE}") + padding)
    assert read_state(env, "/state", QUESTION) == state


def test_a_later_note_is_refused(env: Env) -> None:
    put(env, f"/state/{NOTE}", b'{"version": 3}')
    with pytest.raises(
        UnsupportedVersion, match=f"/state/{NOTE}: the state of an audit has version 3"
    ):
        read_state(env, "/state", QUESTION)


@pytest.mark.parametrize(
    "fields", [{}, {"side": "a", "files": 3, "spans": [], "marks": [], "lost": []}]
)
def test_an_invalid_run_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        decode_run(fields)


def test_gaps_are_the_offsets_in_no_run() -> None:
    runs = [
        replace(RUN, start=4, end=9),
        replace(RUN, start=9, end=12),
        replace(RUN, start=15, end=20),
    ]
    assert gaps(runs, 0, 25) == [(0, 4), (12, 15), (20, 25)]
    assert gaps(runs, 4, 20) == [(12, 15)]
    assert gaps([], 3, 3) == []
