"""Tables as of a time and diffs between two times, compared with a dict filled record by record.

Cases: create times out of order and missing, a clock that pauses and runs, tombstones, records
without a key, transactions that commit, abort and stay open, missing and invalid versions in
headers, segments that roll. The keys are read all at once, or in several shares of the keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import PATH, TOPIC, WRITABLE, new_dir

from tidelog.env import Env
from tidelog.errors import InexactTable, OffsetsGone
from tidelog.keyed import Diff, Table, checked
from tidelog.record.builder import build_batch
from tidelog.scan.keyed_table import TableStats
from tidelog.scan.source import DirectoryRecords
from tidelog.scan.table_rules import HEADER_KEY, STRATEGY_KEY
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import CLEANER_CHECKPOINT_FILE, write_atomically
from tidelog.storage.segment.compaction_history import HISTORY_FILE
from tidelog.types import NO_TIMESTAMP, ClockName, Header, NewRecord, TopicPartition

VERSION = "v"
NUMBERS = (-(2**63), -1, 0, 7)
VERSIONS = (None, b"", b"\0" * 7, *((n).to_bytes(8, "big", signed=True) for n in NUMBERS))


class Step(NamedTuple):
    """One change of the log."""

    name: str
    key: bytes | None = None
    value: bytes | None = None
    time: int = 0
    version: bytes | None = None


class Seen(NamedTuple):
    """A committed record of the model."""

    key: bytes | None
    value: bytes | None
    offset: int
    record_ms: int
    append_ms: int
    version: bytes | None

    def time(self, clock: ClockName) -> int:
        return self.record_ms if clock is ClockName.RECORD else self.append_ms


def step() -> st.SearchStrategy[Step]:
    puts = st.builds(
        Step,
        st.sampled_from(["put", "put", "put", "transaction"]),
        st.sampled_from([None, b"", b"a", b"b", b"c", b"d"]),
        st.sampled_from([None, b"", b"1", b"2"]),
        st.integers(-20, 20),
        st.sampled_from(VERSIONS),
    )
    others = st.builds(
        Step,
        st.sampled_from(["commit", "abort", "roll", "pass"]),
        time=st.integers(0, 10),
    )
    return st.one_of(puts, puts, puts, others)


@dataclass
class Model:
    """The committed records, and the records of the open transaction, in order."""

    committed: list[Seen] = field(default_factory=list)
    open: list[Seen] = field(default_factory=list)

    def visible(self) -> list[Seen]:
        """Return the records visible to read_committed, which end at the first open transaction."""
        first = self.open[0].offset if self.open else None
        found = sorted(self.committed, key=lambda seen: seen.offset)
        return [seen for seen in found if first is None or seen.offset < first]

    def table(self, strategy: str, at_ms: int | None, clock: ClockName) -> dict[bytes, Seen]:
        """Return the winner of each key."""
        best: dict[bytes, Seen] = {}
        for seen in self.visible():
            if seen.key is None:
                continue
            if at_ms is not None and seen.time(clock) > at_ms:
                continue
            before = best.get(seen.key)
            if before is None or rank(before, strategy) <= rank(seen, strategy):
                best[seen.key] = seen
        return {key: seen for key, seen in best.items() if seen.value is not None}


def rank(seen: Seen, strategy: str) -> int:
    """Return the value by which a strategy ranks a record; the offset decides between equals."""
    if strategy == "timestamp":
        return seen.record_ms
    if strategy == "header":
        is_version = seen.version is not None and len(seen.version) == 8
        told = int.from_bytes(seen.version or b"", "big", signed=True)
        # A record with the lowest version still outranks a record without a version.
        return max(told, 1 - 2**63) if is_version else -(2**63)
    return 0


def play_steps(
    taken: list[Step], strategy: str, given: Mapping[str, str] | None = None
) -> tuple[SeededEnv, Model, int]:
    """Return a closed directory, its model, and the time in the middle of the steps."""
    env = seeded_env(5)
    middle = env.clock.now_ms()
    config = {"index.interval.bytes": "200", "internal.segment.bytes": "700", **(given or {})}
    if strategy != "offset":
        config[STRATEGY_KEY] = strategy
    if strategy == "header":
        config[HEADER_KEY] = VERSION
    directory = new_dir(env, config)
    log = directory.log(TOPIC, 0)
    model, sequence = Model(), 0
    for one in taken:
        if one.name == "pass":
            env.clock.advance(one.time)
        elif one.name == "roll":
            log.roll()
        elif one.name in ("commit", "abort"):
            if model.open:
                is_commit = one.name == "commit"
                log.end_transaction(
                    producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=is_commit
                )
                model.committed += model.open if is_commit else []
                model.open = []
        else:
            headers = () if one.version is None else (Header(VERSION, one.version),)
            ms = middle + one.time
            record = NewRecord(key=one.key, value=one.value, timestamp=ms, headers=headers)
            is_in_txn = one.name == "transaction"
            if is_in_txn:
                batch = build_batch(
                    [record],
                    transactional=True,
                    producer_id=5,
                    producer_epoch=0,
                    base_sequence=sequence,
                )
                answer = log.append_batches(batch)
                sequence += 1
            else:
                answer = log.append([record])
            seen = Seen(
                one.key, one.value, answer.base_offset, ms, answer.append_time_ms, one.version
            )
            (model.open if is_in_txn else model.committed).append(seen)
    directory.close()
    return env, model, middle


def records_of(env: Env) -> DirectoryRecords:
    return DirectoryRecords(PATH, env, threads=1, split_bytes=300)


STRATEGIES = st.sampled_from(["offset", "offset", "timestamp", "header"])
TIMES = st.one_of(st.none(), st.integers(-25, 40))


@given(
    taken=st.lists(step(), max_size=40),
    strategy=STRATEGIES,
    clock=st.sampled_from(list(ClockName)),
    at=TIMES,
)
def test_a_table_has_the_winner_of_each_key(
    taken: list[Step], strategy: str, clock: ClockName, at: int | None
) -> None:
    env, model, middle = play_steps(taken, strategy)
    at_ms = None if at is None else middle + at
    table = Table(
        source=records_of(env),
        topic=TOPIC,
        at_ms=at_ms,
        clock=clock,
        columns=("key", "value", "offset"),
    )
    assert table.doubts() == []
    stats = TableStats()
    rows = table.to_arrow(stats=stats).read_all().to_pylist()
    expected = model.table(strategy, at_ms, clock)
    assert {row["key"]: (row["value"], row["offset"]) for row in rows} == {
        key: (seen.value, seen.offset) for key, seen in expected.items()
    }
    assert [row["offset"] for row in rows] == sorted(seen.offset for seen in expected.values())
    assert stats.keys - stats.deleted == len(rows)
    counted = [seen for seen in model.visible() if at_ms is None or seen.time(clock) <= at_ms]
    assert stats.without_key == sum(seen.key is None for seen in counted)


@given(
    taken=st.lists(step(), max_size=40),
    strategy=STRATEGIES,
    clock=st.sampled_from(list(ClockName)),
    before=st.integers(-25, 40),
    length=st.one_of(st.none(), st.integers(0, 30)),
)
def test_a_diff_equals_the_difference_of_two_tables(
    taken: list[Step], strategy: str, clock: ClockName, before: int, length: int | None
) -> None:
    env, model, middle = play_steps(taken, strategy)
    before_ms = middle + before
    after_ms = None if length is None else before_ms + length
    rows = Diff(
        source=records_of(env), topic=TOPIC, before_ms=before_ms, after_ms=after_ms, clock=clock
    ).to_table()
    old = model.table(strategy, before_ms, clock)
    new = model.table(strategy, after_ms, clock)
    expected: dict[bytes, tuple[str, bytes | None, bytes | None, int | None, int]] = {}
    for key in old.keys() | new.keys():
        had, has = old.get(key), new.get(key)
        if had is None:
            assert has is not None
            expected[key] = ("added", None, has.value, None, has.offset)
        elif has is None:
            expected[key] = ("deleted", had.value, None, had.offset, -1)
        elif had.value != has.value:
            expected[key] = ("changed", had.value, has.value, had.offset, has.offset)
    found = {
        row["key"]: (
            row["change"],
            row["before"],
            row["after"],
            row["beforeOffset"],
            # For a deletion, `afterOffset` is the tombstone's offset, which is in neither table.
            -1 if row["change"] == "deleted" else row["afterOffset"],
        )
        for row in rows.to_pylist()
    }
    assert found == expected
    assert len(rows) == len(expected)


@given(
    taken=st.lists(
        step().filter(lambda one: one.key is not None or one.name not in ("put", "transaction")),
        max_size=40,
    ),
    strategy=STRATEGIES,
    clock=st.sampled_from(list(ClockName)),
    at=st.integers(-25, 60),
    wait_ms=st.sampled_from([0, 100]),
)
def test_a_compacted_past_is_exact_or_refused(
    taken: list[Step],
    strategy: str,
    clock: ClockName,
    at: int,
    wait_ms: int,
) -> None:
    config = {"cleanup.policy": "compact", "delete.retention.ms": "50"}
    env, model, middle = play_steps([*taken, Step("roll")], strategy, config)
    for _ in range(2):
        clean(env)
        env.clock.advance(wait_ms)
    at_ms = middle + at
    table = Table(source=records_of(env), topic=TOPIC, at_ms=at_ms, clock=clock)
    expected = {key: seen.offset for key, seen in model.table(strategy, at_ms, clock).items()}
    try:
        rows = table.to_table().to_pylist()
    except InexactTable as error:
        since = error.exact_since_ms
        assert since is not None
        assert since > at_ms
        at_ms = since
        later = Table(source=records_of(env), topic=TOPIC, at_ms=at_ms, clock=clock)
        rows = later.to_table().to_pylist()
        expected = {key: seen.offset for key, seen in model.table(strategy, at_ms, clock).items()}
    assert {row["key"]: row["offset"] for row in rows} == expected


def test_a_table_from_before_a_compaction_reports_since_when_tables_are_exact() -> None:
    taken = [Step("put", b"a", b"1", 0), Step("put", b"a", b"2", 10), Step("roll")]
    env, _, middle = play_steps(taken, "offset", {"cleanup.policy": "compact"})
    clean(env)
    with pytest.raises(
        InexactTable, match="records were compacted or erased; the table is exact from"
    ) as caught:
        Table(source=records_of(env), topic=TOPIC, at_ms=middle + 5).to_table()
    assert caught.value.exact_since_ms == middle + 10
    rows = Table(source=records_of(env), topic=TOPIC, at_ms=middle + 10).to_table()
    assert rows["value"].to_pylist() == [b"2"]
    # If there is no history, two facts together show that a record was removed: the checkpoint of
    # another cleaner, and a gap in the offsets.
    env.files.remove(f"{PATH}/{TOPIC}-0/{HISTORY_FILE}")
    with pytest.raises(InexactTable, match="keeps no history"):
        Table(source=records_of(env), topic=TOPIC, at_ms=middle + 10).to_table()
    # A cleaner that has compacted only other partitions has removed no record of this partition.
    write_atomically(env.files, f"{PATH}/{CLEANER_CHECKPOINT_FILE}", b"0\n1\nother 0 9\n")
    rows = Table(source=records_of(env), topic=TOPIC, at_ms=middle + 10).to_table()
    assert rows["value"].to_pylist() == [b"2"]


@pytest.mark.parametrize("later_ms", [None, 10])
def test_a_compaction_beyond_the_planned_end_is_an_error(later_ms: int | None) -> None:
    """Such a compaction removes records whose newer versions are after the planned end."""
    put = [Step("put", b"a", b"1"), Step("put", b"a", b"2"), Step("put", b"b", b"1"), Step("roll")]
    env, _, middle = play_steps(put, "offset", {"cleanup.policy": "compact"})
    at_ms = None if later_ms is None else middle + later_ms
    table = Table(source=records_of(env), topic=TOPIC, at_ms=at_ms, columns=("key", "value"))
    splits = table.plan()
    clean(env)  # this compaction does not go beyond the planned end
    found = pa.Table.from_batches(list(table._rows(splits, TableStats())))
    assert found["key"].to_pylist() == [b"a", b"b"]
    overwrite(env, [b"a"], middle)
    clean(env)
    with pytest.raises(OffsetsGone, match="compacted up to"):
        list(table._rows(splits, TableStats()))
    marked = replace(table, inexact="mark")
    assert [row.num_rows for row in marked._rows(splits, TableStats())] == [1]
    assert table.to_table()["value"].to_pylist() == [b"1", b"3"]


def test_an_inexact_query_is_refused_before_duckdb_reads() -> None:
    """The error must come early: DuckDB would raise it only while it reads, with another text."""
    taken = [Step("put", b"a", b"1", 0), Step("put", b"a", b"2", 10), Step("roll")]
    env, _, middle = play_steps(taken, "offset", {"cleanup.policy": "compact"})
    clean(env)
    table = Table(source=records_of(env), topic=TOPIC, at_ms=middle)
    diff = Diff(source=records_of(env), topic=TOPIC, before_ms=middle, after_ms=middle + 9)
    assert repr(table).endswith(f", {TOPIC} as of 2013-02-08 17:00:00 UTC, record clock)")
    assert repr(replace(table, at_ms=None)).endswith(f", {TOPIC} as of now)")
    assert f", {TOPIC} from 2013-02-08 17:00:00 " in repr(diff)
    for question in (table, diff):
        with pytest.raises(InexactTable):
            question.to_duckdb()
    rows = replace(table, at_ms=None).to_duckdb()
    assert [str(name) for name in rows.columns] == list(table.schema.names)


def test_a_damaged_checkpoint_of_the_cleaner_is_no_matter_of_tables() -> None:
    env, _, _ = play_steps([Step("put", b"a", b"1")], "offset", {"cleanup.policy": "compact"})
    write_atomically(env.files, f"{PATH}/{CLEANER_CHECKPOINT_FILE}", b"no number")
    assert Table(source=records_of(env), topic=TOPIC).to_table()["key"].to_pylist() == [b"a"]


def test_a_compaction_between_two_shares_is_an_error() -> None:
    """A table with many keys reads the log several times, also after it has returned rows."""
    env = seeded_env(6)
    new_dir(env, {"cleanup.policy": "compact"}).close()
    overwrite(env, [b"a"], 7)
    table, name = Table(source=records_of(env), topic=TOPIC), TopicPartition(TOPIC, 0)
    stats, splits = TableStats(readings=1), table.plan()[name]

    def shares() -> Iterator[pa.RecordBatch]:
        yield from table.to_arrow()
        overwrite(env, [b"a"], 7)
        clean(env)
        stats.readings += 1

    rows = checked(table, name, splits, shares(), stats)
    assert next(rows).num_rows == 1
    with pytest.raises(OffsetsGone, match="compacted up to"):
        next(rows)


def overwrite(env: SeededEnv, keys: Sequence[bytes], time_ms: int) -> None:
    """Append newer records of keys, in a segment of their own."""
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        log = directory.log(TOPIC, 0)
        log.append([NewRecord(key=key, value=b"3", timestamp=time_ms) for key in keys])
        log.roll()


def clean(env: SeededEnv) -> None:
    """Compact everything that can be compacted."""
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.log(TOPIC, 0).flush()
        worker = InProcess(env)
        name = TopicPartition(TOPIC, 0)
        clean_partition(directory, name, worker, CleanerOptions(is_asked=True))


@pytest.mark.parametrize("keys", [5_000])
def test_keys_that_do_not_fit_into_memory_are_taken_in_shares(keys: int) -> None:
    env = seeded_env(6)
    directory = new_dir(env, {})
    log = directory.log(TOPIC, 0)
    for value in (b"old", b"new"):
        log.append([NewRecord(key=b"key %d" % n, value=value) for n in range(keys)])
    log.append([NewRecord(key=b"key %d" % n, value=None) for n in range(0, keys, 2)])
    directory.close()
    stats = TableStats()
    table = Table(
        source=records_of(env), topic=TOPIC, columns=("key", "value"), memory_bytes=100_000
    )
    rows = table.to_arrow(stats=stats).read_all()
    assert set(rows["key"].to_pylist()) == {b"key %d" % n for n in range(1, keys, 2)}
    assert rows["value"].to_pylist() == [b"new"] * (keys // 2)
    assert stats.readings > 1
    assert (stats.keys, stats.deleted) == (keys, keys // 2)


def test_records_without_a_time_leave_a_table_as_of_a_time_in_doubt() -> None:
    env = seeded_env(7)
    directory = new_dir(env, {})
    log = directory.log(TOPIC, 0)
    log.append([NewRecord(key=b"a", value=b"1", timestamp=NO_TIMESTAMP)])
    directory.close()
    assert Table(source=records_of(env), topic=TOPIC).to_table()["key"].to_pylist() == [b"a"]
    at_ms = env.clock.now_ms()
    stats = TableStats()
    marked = Table(source=records_of(env), topic=TOPIC, at_ms=at_ms, inexact="mark")
    assert len(marked.to_arrow(stats=stats).read_all()) == 0
    assert stats.without_time == 1
