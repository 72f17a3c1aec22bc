"""Searches by time in plain Python, by kernels and over arrays give the results of a full scan.

The logs have any log start, finished and active segments, batches of every codec, legacy messages
and gaps. Their times can be out of order, equal, missing or extreme. One test damages the log
before the search.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults import seeded_env
from tests.worlds.directories.logs import new_dir, new_records, path_of, read, reader_of, write
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.env import Env
from tidelog.errors import CorruptData
from tidelog.record.builder import build_batch
from tidelog.record.record import Record
from tidelog.storage.log.log_reader import LogView
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Codec, TimestampType

Answer: TypeAlias = tuple[int, int] | None
Search: TypeAlias = Callable[[LogView, int], Answer]

times = st.one_of(st.integers(0, 25), st.sampled_from((NO_TIMESTAMP, NO_TIMESTAMP, 5, INT64_MAX)))
targets = st.integers(0, 27) | st.sampled_from((INT64_MAX, INT64_MAX - 1))


def plain(reader: LogView, target: int) -> Answer:
    found = reader.offset_for_time(target)
    return None if found is None else (found.offset, found.timestamp)


def kernels(reader: LogView, target: int) -> Answer:
    reader.use_kernels()
    return plain(reader, target)


SEARCHES = pytest.mark.parametrize("search", [plain, kernels])


def by_reading(records: Sequence[Record], target: int) -> Answer:
    for record in records:
        if record.timestamp >= target:
            return record.offset, record.timestamp
    return None


@st.composite
def appends(draw: st.DrawFn, offset: int) -> bytearray:
    """Draw one batch or message set whose first offset is `offset` or slightly more."""
    chosen = new_records(draw(st.lists(times, min_size=1, max_size=4)), b"value")
    offset += draw(st.integers(0, 2))
    kind = draw(st.sampled_from(("plain", "plain", "plain", "packed", "gaps", "stamped", "legacy")))
    if kind == "legacy":
        return build_legacy_set(
            chosen,
            magic=1,
            codec=draw(st.sampled_from((Codec.NONE, Codec.GZIP))),
            base_offset=offset,
        )
    steps = draw(st.lists(st.integers(1, 3), min_size=len(chosen), max_size=len(chosen)))
    return build_batch(
        chosen,
        base_offset=offset,
        leader_epoch=0,
        codec=draw(st.sampled_from(tuple(Codec))) if kind == "packed" else Codec.NONE,
        timestamp_type=TimestampType(int(kind == "stamped")),
        append_time_ms=draw(st.integers(0, 25)) if kind == "stamped" else None,
        offset_deltas=[sum(steps[:n]) for n in range(len(chosen))] if kind == "gaps" else None,
    )


@st.composite
def logs(draw: st.DrawFn) -> Env:
    """Draw a directory with one log, closed cleanly."""
    env = seeded_env(1)
    interval = draw(st.sampled_from(("0", "150", "4096")))
    directory = new_dir(env, {"index.interval.bytes": interval})
    log = directory.log("t", 0)
    for _ in range(draw(st.integers(0, 14))):
        log.follower.append(draw(appends(log.log_end_offset)))
        if draw(st.integers(0, 4)) == 0:
            log.roll()
    if log.log_end_offset:
        log.delete_records(draw(st.just(0) | st.integers(0, log.log_end_offset)))
    directory.close()
    return env


@SEARCHES
@given(env=logs(), asked=st.lists(targets, min_size=1, max_size=8))
def test_every_search_has_the_result_of_a_full_scan(
    search: Search, env: Env, asked: list[int]
) -> None:
    reader = reader_of(env)
    records = list(reader.records())
    for target in asked:
        assert search(reader, target) == by_reading(records, target)


@SEARCHES
@given(env=logs())
def test_the_largest_time_is_that_of_reading(search: Search, env: Env) -> None:
    reader = reader_of(env)
    if search is not plain:
        reader.use_kernels()
    timed = [record for record in reader.records() if record.timestamp >= 0]
    first = max(timed, key=lambda record: (record.timestamp, -record.offset), default=None)
    found = reader.max_timestamp()
    assert (found and (found.offset, found.timestamp)) == (
        first and (first.offset, first.timestamp)
    )


@SEARCHES
@examples(60)
@given(env=logs(), data=st.data())
def test_damage_is_named_or_does_not_matter(search: Search, env: Env, data: st.DataObject) -> None:
    """A changed byte of a batch's body is reported, or doesn't change the result of the search."""
    before = reader_of(env)
    name = "00000000000000000000.log"
    content = bytearray(read(env, name))
    records = list(before.records())
    bodies = [
        place
        for position, batch in before.segments[0].walk_file(0, len(content))
        for place in range(position + (61 if batch.magic == 2 else 34), position + batch.size_bytes)
    ]
    if not bodies:
        return
    content[data.draw(st.sampled_from(bodies))] ^= data.draw(st.integers(1, 255))
    write(env, name, bytes(content))
    reader = reader_of(env)
    target = data.draw(targets)
    found, damage = answer_or_damage(search, reader, target)
    if damage is not None:
        assert damage.path == path_of(name)
        assert damage.position is not None
        return
    end = reader.log_end_offset  # damage in the last segment may end the log earlier
    right = by_reading([record for record in records if record.offset < end], target)
    assert found == right


def answer_or_damage(
    search: Search, reader: LogView, target: int
) -> tuple[Answer, CorruptData | None]:
    try:
        return search(reader, target), None
    except CorruptData as error:
        return None, error
