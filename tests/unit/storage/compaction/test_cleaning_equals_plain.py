"""A cleaning writes exactly the bytes of the reference cleaning, which works record by record."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults.seeded import SeededEnv
from tests.unit.storage.compaction.plain_cleaning import Plain
from tests.unit.storage.compaction.segments import (
    VERSION,
    Log,
    logs,
    make_job,
    new_env,
    read,
    small_rules,
    write_log,
)

from tidelog.record.batch_walk import walk
from tidelog.storage import log_files
from tidelog.storage.compaction.job import CleanedGroup, Group
from tidelog.storage.compaction.worker import clean
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import Header, NewRecord

CLEANED_LOG = log_files.LOG_SUFFIX + log_files.CLEANED_SUFFIX


@st.composite
def groupings(draw: st.DrawFn, bases: list[int]) -> list[Group]:
    found, start = [], 0
    while start < len(bases):
        size = draw(st.integers(1, len(bases) - start))
        part = tuple(bases[start : start + size])
        found.append(Group(bases=part, drop_expired=draw(st.booleans())))
        start += size
    return [group for group in found if draw(st.integers(0, 4))]


@examples(60)
@given(log=logs(), data=st.data())
def test_all_is_left_that_the_rules_leave(log: Log, data: st.DataObject) -> None:
    env = new_env()
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=3))
    mtimes = data.draw(st.lists(st.sampled_from((5, 500, 10**6)), min_size=4, max_size=4))
    sources = write_log(env, log, sizes, mtimes=mtimes)
    strategy = data.draw(st.sampled_from(("offset", "offset", "timestamp", "header")))
    rules = small_rules(
        strategy=strategy,
        header=VERSION if strategy == "header" else "",
        verify_keys=data.draw(st.booleans()),
        hash_name=data.draw(st.sampled_from(("siphash", "siphash", "md5"))),
    )
    end = log.end_offset
    job = make_job(
        sources,
        map_from=data.draw(st.integers(0, end)),
        groups=data.draw(groupings([s.base_offset for s in sources])),
        aborted=log.aborted,
        rules=rules,
        map_to=end,
        log_start_offset=data.draw(st.just(0) | st.integers(0, end)),
        upper_bound_offset=data.draw(st.sampled_from((end, end + 9))),
        active_producers=data.draw(
            st.dictionaries(
                st.sampled_from((4, 5, 6)), st.tuples(st.integers(-1, end), st.integers(0, 1))
            )
        ),
    )
    if data.draw(st.booleans()):
        job = replace(job, map_to=data.draw(st.integers(job.map_from, end)))
    cleaned = clean(job, env)
    read_logs = {s.base_offset: read(env, s.base_offset, log_files.LOG_SUFFIX) for s in sources}
    plain = Plain(job, read_logs, job.map_to)
    expected = plain.run()
    assert cleaned.mapped_to == job.map_to
    assert {group.base_offset for group in cleaned.groups} == set(expected)
    for group in cleaned.groups:
        found = read(env, group.base_offset, CLEANED_LOG)
        wanted = expected[group.base_offset]
        assert [bytes(batch.view) for batch in walk(found)] == wanted
        assert group.bytes_after == len(found)
        # The header of an old format's wrapper message has no record count.
        assert group.records_after == sum(len(list(b.records())) for b in walk(found))
        assert _aborted(env, group) == plain.kept_aborted[group.base_offset]


@pytest.mark.parametrize("strategy", ["offset", "timestamp", "header"])
def test_four_records_of_a_key_in_every_order_of_versions(strategy: str) -> None:
    """Each start of the mapped range divides the records into older records and mapped records."""
    rules = small_rules(strategy=strategy, header=VERSION if strategy == "header" else "")
    for versions in product((1, 2, 3), repeat=4):
        log = Log()
        for version in versions:
            header = Header(VERSION, version.to_bytes(8, "big"))
            log.data([NewRecord(key=b"k", value=b"v", timestamp=version, headers=(header,))])
        for map_from in range(5):
            env = new_env()
            sources = write_log(env, log, [2])
            groups = [Group(bases=(base,), drop_expired=False) for base in (0, 2)]
            job = make_job(sources, map_from=map_from, groups=groups, rules=rules, map_to=4)
            clean(job, env)
            data = {each.base_offset: read(env, each.base_offset, ".log") for each in sources}
            for base, wanted in Plain(job, data, job.map_to).run().items():
                found = walk(read(env, base, CLEANED_LOG))
                assert [bytes(batch.view) for batch in found] == wanted, (versions, map_from)


def _aborted(env: SeededEnv, group: CleanedGroup) -> list[tuple[int, int]]:
    """Return producer id and marker offset of each entry in the index of aborted transactions."""
    if log_files.TXN_INDEX_SUFFIX not in group.suffixes:
        return []
    suffix = log_files.TXN_INDEX_SUFFIX + log_files.CLEANED_SUFFIX
    index = TxnIndex.decode(read(env, group.base_offset, suffix), group.base_offset)
    return [(txn.producer_id, txn.last_offset) for txn in index.entries]
