"""Time ranges on both clocks give exactly the records of a full scan through the library.

The logs have create times that are out of order, equal, missing or extreme, a clock that pauses,
runs and is set back, several segments, transactions, and a log start. Splits have a few bytes, so
that they cut segments. There are no zone maps, or zone maps with a zone for each batch, or with
larger zones.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import PATH, TOPIC, batch, new_dir, new_records
from tests.worlds.directories.zoning import add_zones, gaps_up_to

from tidelog.errors import MissingTimestamps
from tidelog.scan import ReadOptions, RequestedRange, count, plan, to_table
from tidelog.scan.split import ScanStats
from tidelog.storage.clocks.zone_map import Limits
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import INT64_MAX, NO_TIMESTAMP, ClockName, Codec, IsolationLevel

EDGES = (NO_TIMESTAMP, 0, 1, INT64_MAX, INT64_MAX - 1)


@dataclass
class Row:
    """A record of the model."""

    offset: int
    value: bytes
    times: dict[ClockName, int | None]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, object]]:
    near = st.integers(-50, 50)
    append = st.tuples(
        st.just("append"),
        st.tuples(
            st.lists(near | st.sampled_from([("edge", e) for e in EDGES]), min_size=1, max_size=5),
            st.sampled_from((Codec.NONE, Codec.NONE, Codec.LZ4)),
        ),
    )
    return draw(
        st.lists(
            st.one_of(
                append,
                append,
                st.tuples(st.just("pass"), st.integers(0, 30)),
                st.tuples(st.just("back"), st.integers(1, 30)),
                st.tuples(st.just("roll"), st.none()),
                st.tuples(st.just("abort"), st.none()),
            ),
            max_size=25,
        )
    )


def build(
    taken: list[tuple[str, object]], config: dict[str, str], start: float
) -> tuple[SeededEnv, list[Row], int]:
    """Return a closed directory, its readable rows, and the clock's time before the first step."""
    env = seeded_env(3)
    middle = env.clock.now_ms()
    directory = new_dir(env, {"index.interval.bytes": "200", **config})
    log = directory.log(TOPIC, 0)
    stamps = config.get("message.timestamp.type") == "LogAppendTime"
    rows: list[Row] = []
    sequence = 0
    for name, value in taken:
        if name == "append":
            assert isinstance(value, tuple)
            given, codec = value
            picked = [t[1] if isinstance(t, tuple) else middle + t for t in given]
            records = new_records(picked, b"v%d" % len(rows))
            answer = log.append(records, codec=codec, batch_bytes=80)
            for number, time in enumerate(picked):
                seen = answer.append_time_ms if stamps else time
                times: dict[ClockName, int | None] = {
                    ClockName.RECORD: None if seen == NO_TIMESTAMP else seen,
                    ClockName.APPEND: answer.append_time_ms,
                }
                rows.append(Row(answer.base_offset + number, records[number].value or b"", times))
        elif name == "abort":
            fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
            log.append_batches(batch([middle], transactional=True, **fields))
            log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=False)
            sequence += 1
        elif name == "roll":
            log.roll()
        else:
            assert isinstance(value, int)
            env.clock.advance(value if name == "pass" else -value)
    first = int(log.log_end_offset * start)
    if first:
        log.delete_records(first)
    directory.close()
    return env, [row for row in rows if row.offset >= first], middle


CONFIGS = st.sampled_from(
    (
        {},
        {"internal.segment.bytes": "900"},
        {"message.timestamp.type": "LogAppendTime", "internal.segment.bytes": "900"},
        {"tidelog.append.time.granularity.ms": "1", "compression.type": "zstd"},
    )
)


def is_in(ms: int | None, begin: int, end: int) -> bool:
    """Whether a time is in [begin, end); the largest possible end means no end."""
    return ms is not None and begin <= ms and (ms < end or end == INT64_MAX)


@given(
    taken=steps(),
    config=CONFIGS,
    start=st.sampled_from((0, 0, 0.3, 0.7)),
    clock=st.sampled_from(list(ClockName)),
    a=st.integers(-60, 60),
    length=st.integers(0, 80),
    split_bytes=st.sampled_from((1, 100, 500, 1 << 20)),
    edge=st.sampled_from((None, None, (0, INT64_MAX), (INT64_MAX - 1, INT64_MAX), (0, 1))),
)
def test_a_range_contains_exactly_its_records(
    taken: list[tuple[str, object]],
    config: dict[str, str],
    start: float,
    clock: ClockName,
    a: int,
    length: int,
    split_bytes: int,
    edge: tuple[int, int] | None,
) -> None:
    env, rows, middle = build(taken, config, start)
    begin, end = edge or (middle + a, middle + a + length)
    splits = plan(
        PATH,
        TOPIC,
        requested_range=RequestedRange(start_ms=begin, end_ms=end),
        clock=clock,
        isolation=IsolationLevel.READ_COMMITTED,
        split_bytes=split_bytes,
        env=env,
    )
    stats = ScanStats()
    table = to_table(splits, ["offset", "value"], options=ReadOptions(env=env, rows=3), stats=stats)
    found = list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    expected = [(row.offset, row.value) for row in rows if is_in(row.times[clock], begin, end)]
    assert found == expected
    assert stats.rows == len(expected)


def zone_rows(
    taken: list[tuple[str, object]],
    config: dict[str, str],
    start: float,
    forgotten: set[int],
    limits: Limits,
) -> tuple[SeededEnv, list[Row], int]:
    """Return the result of `build`, with all records in finished segments that have zone maps.

    The append times of the segments in `forgotten` are removed.
    """
    env, rows, middle = build([*taken, ("roll", None)], config, start)
    with LogDir.open(PATH, env=env) as directory:
        spans = [(s.base_offset, s.end_offset) for s in directory.reader(TOPIC, 0).segments[:-1]]
    add_zones(PATH, TOPIC, env, limits=limits, forget=forgotten)
    stamps = config.get("message.timestamp.type") == "LogAppendTime"
    lost = [span for number, span in enumerate(spans) if number in forgotten]
    for row in rows:
        if not stamps and any(first <= row.offset < end for first, end in lost):
            row.times[ClockName.APPEND] = None
    return env, rows, middle


ZONED = {
    "taken": steps(),
    "config": CONFIGS,
    "start": st.sampled_from((0, 0, 0.3, 0.7)),
    "clock": st.sampled_from(list(ClockName)),
    "a": st.integers(-60, 60),
    "length": st.integers(1, 80),
    "edge": st.sampled_from((None, None, (0, INT64_MAX), (INT64_MAX - 1, INT64_MAX), (0, 1))),
    "sizes": st.sampled_from(
        (
            (Limits(1, block_rows=2), 0),
            (Limits(200, block_rows=1), 0),
            (Limits(1), 150),
            (Limits(), 9),
        )
    ),
    "forgotten": st.sets(st.integers(0, 3), max_size=2),
}


@given(**ZONED, split_bytes=st.sampled_from((1, 300, 1 << 20)))
def test_zone_maps_change_no_result_and_count_all_records_without_a_time(
    taken: list[tuple[str, object]],
    config: dict[str, str],
    start: float,
    clock: ClockName,
    a: int,
    length: int,
    edge: tuple[int, int] | None,
    sizes: tuple[Limits, int],
    forgotten: set[int],
    split_bytes: int,
) -> None:
    limits, gap_bytes = sizes
    env, rows, middle = zone_rows(taken, config, start, forgotten, limits)
    with gaps_up_to(gap_bytes):
        begin, end = edge or (middle + a, middle + a + length)
        splits = plan(
            PATH,
            TOPIC,
            requested_range=RequestedRange(start_ms=begin, end_ms=end),
            clock=clock,
            isolation=IsolationLevel.READ_COMMITTED,
            split_bytes=split_bytes,
            env=env,
        )
    stats = ScanStats()
    table = to_table(splits, ["offset"], options=ReadOptions(env=env, rows=3), stats=stats)
    times = [(row.offset, row.times[clock]) for row in rows]
    expected = [offset for offset, ms in times if is_in(ms, begin, end)]
    assert table["offset"].to_pylist() == expected
    assert stats.without_time == sum(ms is None for _, ms in times)
    if stats.without_time:
        with pytest.raises(MissingTimestamps):
            to_table(splits, ["offset"], options=ReadOptions(env=env, strict=True))


@given(**ZONED, offsets=st.none() | st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_a_count_is_that_of_the_records(
    taken: list[tuple[str, object]],
    config: dict[str, str],
    start: float,
    clock: ClockName,
    a: int,
    length: int,
    edge: tuple[int, int] | None,
    sizes: tuple[Limits, int],
    forgotten: set[int],
    offsets: tuple[int, int] | None,
) -> None:
    limits, gap_bytes = sizes
    env, rows, middle = zone_rows(taken, config, start, forgotten, limits)
    with gaps_up_to(gap_bytes):
        begin, end = edge or (middle + a, middle + a + length)
        first, behind = sorted(offsets or (0, INT64_MAX))
        log_range = (rows[0].offset, rows[-1].offset + 1) if rows else (0, 0)
        first, behind = max(first, log_range[0]), min(behind, log_range[1])
        if first > behind:
            return
        wanted = RequestedRange(start_offset=first, end_offset=behind)
        timed = replace(wanted, start_ms=begin, end_ms=end)
        committed = IsolationLevel.READ_COMMITTED
        found = count(PATH, TOPIC, requested_range=timed, clock=clock, isolation=committed, env=env)
        whole = count(PATH, TOPIC, requested_range=wanted, isolation=committed, env=env)
    inside = [r for r in rows if first <= r.offset < behind]
    times = [row.times[clock] for row in inside]
    assert found.records == sum(is_in(ms, begin, end) for ms in times)
    assert found.without_time == sum(ms is None for ms in times)
    assert (whole.records, whole.without_time) == (len(inside), 0)


@given(
    taken=steps(), config=CONFIGS, clock=st.sampled_from(list(ClockName)), a=st.integers(-60, 60)
)
def test_a_lookup_names_the_first_record_of_its_range(
    taken: list[tuple[str, object]], config: dict[str, str], clock: ClockName, a: int
) -> None:
    env, rows, middle = build(taken, config, 0)
    with LogDir.open(PATH, env=env) as directory:
        reader = directory.reader(TOPIC, 0)
        found = reader.offset_for_time(middle + a, clock=clock)
        every = {row.offset: row for row in rows}
        late = [
            row for row in rows if (time := row.times[clock]) is not None and time >= middle + a
        ]
        if found is not None and found.offset not in every:
            # As in Kafka, a lookup may find an aborted record or a marker, which also have times.
            assert not late or found.offset < late[0].offset
        else:
            assert (found and found.offset) == (late[0].offset if late else None)


@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_records_without_a_time_are_counted_and_strict_makes_them_an_error(
    split_bytes: int,
) -> None:
    env, rows, middle = build(
        [("append", ([("edge", -1), 0, ("edge", -1)], Codec.NONE)), ("append", ([5], Codec.NONE))],
        {},
        0,
    )
    assert len(rows) == 4
    splits = plan(
        PATH,
        TOPIC,
        requested_range=RequestedRange(start_ms=middle, end_ms=middle + 50),
        split_bytes=split_bytes,
        env=env,
    )
    stats = ScanStats()
    table = to_table(splits, ["offset"], options=ReadOptions(env=env), stats=stats)
    assert table["offset"].to_pylist() == [1, 3]
    assert stats.without_time == 2
    with pytest.raises(MissingTimestamps):
        to_table(splits, ["offset"], options=ReadOptions(env=env, strict=True))
