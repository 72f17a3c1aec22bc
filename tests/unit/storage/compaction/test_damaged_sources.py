"""Damage in a source stops a cleaning. The error names the position, and no file is left behind."""

from dataclasses import replace

import pytest
from tests.unit.storage.compaction.segments import (
    Log,
    make_job,
    make_log,
    names,
    new_env,
    path,
    record,
    write_log,
)

from tidelog.errors import CorruptBatch, CorruptRecord
from tidelog.record.header import seal
from tidelog.storage.compaction.job import Group
from tidelog.storage.compaction.worker import clean
from tidelog.types import Codec


@pytest.mark.parametrize("in_tail", [False, True])
def test_a_wrong_checksum_stops_it_and_names_the_place(in_tail: bool) -> None:
    env, log = new_env(), make_log()
    sources = write_log(env, log, [10, 10])
    second = sources[1]
    position = len(log.batches[10]) + 70
    file = env.files.open(path(second.base_offset, ".log"), write=True)
    file.pwrite(b"\xff\xff\xff", position)
    job = make_job(sources, map_from=sources[2].base_offset if in_tail else 0)
    with pytest.raises(CorruptBatch) as caught:
        clean(job, env)
    assert caught.value.path == path(second.base_offset, ".log")
    assert caught.value.position == len(log.batches[10])
    assert names(env) == []


def test_files_of_groups_before_the_damage_are_removed() -> None:
    env = new_env()
    sources = write_log(env, make_log(), [10, 10])
    file = env.files.open(path(sources[1].base_offset, ".log"), write=True)
    file.pwrite(b"\xff\xff\xff", 70)
    groups = [Group(bases=(each.base_offset,), drop_expired=True) for each in sources]
    with pytest.raises(CorruptBatch):
        clean(make_job(sources, map_from=sources[2].base_offset, groups=groups), env)
    assert names(env) == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_wrong_checksum_of_unmapped_records_stops_a_cleaning(codec: Codec) -> None:
    env, log = new_env(), Log()
    log.data([record(1)], codec=codec)
    log.data([record(2)], producer_id=9, transactional=True)
    log.marker(9, commit=True)
    log.data([record(1)])
    sources = write_log(env, log, [4])
    position = sum(map(len, log.batches[:2]))
    file = env.files.open(path(0, ".log"), write=True)
    file.pwrite(b"\xff", position + len(log.batches[2]) - 1)
    with pytest.raises(CorruptBatch, match="CRC-32C is") as caught:
        clean(make_job(sources), env)
    assert caught.value.position == position


def test_a_segment_that_ends_in_a_batch_stops_it() -> None:
    env, log = new_env(), make_log()
    sources = write_log(env, log, [10])
    file = env.files.open(path(0, ".log"), write=True)
    file.truncate(sources[0].size_bytes - 1)
    for size in (sources[0].size_bytes, sources[0].size_bytes - 1):
        first = replace(sources[0], size_bytes=size)
        with pytest.raises(CorruptBatch) as caught:
            clean(make_job([first, *sources[1:]]), env)
        assert caught.value.path == path(0, ".log")
        assert names(env) == []


def test_an_invalid_record_stops_a_cleaning() -> None:
    env, log = new_env(), Log()
    log.data([record(n) for n in range(3)])
    damaged = bytearray(log.batches[0])
    damaged[61] = 200  # the first record's length
    seal(damaged, 0)
    log.batches[0] = bytes(damaged)
    sources = write_log(env, log, [])
    with pytest.raises((CorruptBatch, CorruptRecord)) as caught:
        clean(make_job(sources), env)
    assert caught.value.path == path(0, ".log")
    assert caught.value.position == 0
