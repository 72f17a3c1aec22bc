"""Measures the five rows of KIP-33's use-case table on both clocks, with real logs.

Each test prints its table (`pytest -s`) and compares it with docs/use-cases.md, so the page shows
actual results. A Kafka topic has only one clock, so KIP-33 chose a clock for each row. In tidelog,
one log has both clocks. Random draws are seeded and the test controls the clock, so the numbers
don't change.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import PATH, TOPIC, new_dir, reader_of

from tidelog.scan import ReadOptions, RequestedRange, plan, to_table
from tidelog.scan.latency import latency
from tidelog.storage.log.log_reader import LogView
from tidelog.types import INT64_MAX, ClockName, NewRecord

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "use-cases.md").read_text()
T0 = 1_360_342_800_000
SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
SEGMENTS = {"internal.segment.bytes": "20000", "index.interval.bytes": "500"}


@dataclass(frozen=True, slots=True)
class Event:
    """One record: its number, create time and append time, in ms."""

    number: int
    create_ms: int
    append_ms: int


def arrivals(made: Sequence[tuple[int, int]]) -> list[Event]:
    """Return an event for each (create time, delay), in the order of arrival."""
    events = [Event(n, create, create + delay) for n, (create, delay) in enumerate(made)]
    return sorted(events, key=lambda event: (event.append_ms, event.number))


def take_events(events: Sequence[Event], config: dict[str, str] | None = None) -> SeededEnv:
    """Append the events at their arrival times; return the `Env` with the closed directory."""
    env = seeded_env(33, now_ms=events[0].append_ms)
    with new_dir(env, {**SEGMENTS, **(config or {})}) as directory:
        log = directory.log(TOPIC, 0)
        for event in events:
            env.clock.set(event.append_ms)
            log.append([NewRecord(value=b"%d" % event.number, timestamp=event.create_ms)])
    return env


def position(reader: LogView, time_ms: int, clock: ClockName) -> int:
    """Return the first offset at or after a time, the log end if there is none."""
    found = reader.offset_for_time(time_ms, clock=clock)
    return reader.log_end_offset if found is None else found.offset


def in_range(env: SeededEnv, start_ms: int, clock: ClockName) -> list[int]:
    """Return the offsets of exactly the records at or after a time."""
    splits = plan(
        PATH,
        TOPIC,
        requested_range=RequestedRange(start_ms=start_ms, end_ms=INT64_MAX),
        clock=clock,
        env=env,
    )
    table = to_table(splits, ["offset"], options=ReadOptions(env=env))
    return [int(offset) for offset in table["offset"].to_numpy()]


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; check that docs/use-cases.md contains it."""
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
    print(f"\n{title}\n\n{text}")
    assert text in PAGE, f"docs/use-cases.md does not show this:\n{text}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of reading from a position: counts of read, missed and unwanted records."""

    read: int
    missed: int
    unwanted: int


def judge(read: Sequence[int], wanted: Sequence[int]) -> Outcome:
    """Compare the offsets that were read with the wanted offsets."""
    got, needed = set(read), set(wanted)
    return Outcome(len(got), len(needed - got), len(got - needed))


def from_offset(events: Sequence[Event], offset: int) -> range:
    return range(offset, len(events))


SEARCH_COLUMNS = ("method", "clock", "records read", "missed", "unwanted")


def search_row(question: str, clock: ClockName, outcome: Outcome) -> tuple[object, ...]:
    return question, clock.value, outcome.read, outcome.missed, outcome.unwanted


def test_row_1_search_by_timestamp() -> None:
    """1,200 records, one a second; each 50th is 5 to 10 minutes late; some clocks are ahead."""
    dice = random.Random(1)
    skew_ms = 30 * SECOND
    made = []
    for number in range(1_200):
        delay = dice.randrange(2 * SECOND)
        if number % 50 == 7:
            delay = dice.randrange(5 * MINUTE, 10 * MINUTE)
        if number % 10 == 3:
            delay -= dice.randrange(skew_ms)  # this producer's clock is ahead
        made.append((T0 + number * SECOND, delay))
    events = arrivals(made)
    env = take_events(events)
    since_ms = T0 + 10 * MINUTE
    wanted = [offset for offset, event in enumerate(events) if event.create_ms >= since_ms]
    reader = reader_of(env)
    asked = [
        ("read from the offset of T", ClockName.RECORD, since_ms),
        ("read from the offset of T", ClockName.APPEND, since_ms),
        ("read from the offset of T - 30 s", ClockName.APPEND, since_ms - skew_ms),
    ]
    found = {}
    for question, clock, time_ms in asked:
        read = from_offset(events, position(reader, time_ms, clock))
        found[question, clock] = judge(read, wanted)
    exact = judge(in_range(env, since_ms, ClockName.RECORD), wanted)
    rows = [search_row(question, clock, outcome) for (question, clock), outcome in found.items()]
    show(
        "1. Search by timestamp",
        SEARCH_COLUMNS,
        [*rows, search_row("read the range T..", ClockName.RECORD, exact)],
    )
    assert found["read from the offset of T", ClockName.RECORD].missed == 0
    assert found["read from the offset of T", ClockName.APPEND].missed > 0
    assert found["read from the offset of T - 30 s", ClockName.APPEND].missed == 0
    assert (exact.missed, exact.unwanted) == (0, 0)


def test_row_1_the_proposals_own_case() -> None:
    """m1 and m2 have the same create time, so a search for it returns m1, which is read again."""
    between = 500
    made = [(T0, 0), *((T0 + n, SECOND) for n in range(1, between + 1)), (T0, 10 * MINUTE)]
    events = arrivals(made)
    reader = reader_of(take_events(events))
    m2 = len(events) - 1
    again = {
        clock.value: m2 - position(reader, time_ms, clock)
        for clock, time_ms in (
            (ClockName.RECORD, events[m2].create_ms),
            (ClockName.APPEND, events[m2].append_ms),
        )
    }
    rows = [(f"{ClockName(clock).time_name} of m2", clock, count) for clock, count in again.items()]
    show("1. m1 and m2", ("time to search for", "clock", "records read again"), rows)
    assert again == {"record": m2, "append": 0}


def test_row_2_bootstrap() -> None:
    """30 days of a database are loaded at once, unordered; then only the last 3 days are read."""
    dice = random.Random(2)
    loaded_ms = T0 + 30 * DAY
    made = [(T0 + dice.randrange(30 * DAY), 0) for _ in range(1_000)]
    dump = [(create, loaded_ms + n * 10 - create) for n, (create, _) in enumerate(made)]
    live = [(loaded_ms + 20 * SECOND + n * SECOND, 50) for n in range(200)]
    events = arrivals([*dump, *live])
    env = take_events(events)
    since_ms = loaded_ms - 3 * DAY
    wanted = [offset for offset, event in enumerate(events) if event.create_ms >= since_ms]
    reader = reader_of(env)
    outcomes = {
        clock: judge(from_offset(events, position(reader, since_ms, clock)), wanted)
        for clock in ClockName
    }
    exact = judge(in_range(env, since_ms, ClockName.RECORD), wanted)
    rows = [
        search_row("read from the offset of 3 days ago", clock, outcome)
        for clock, outcome in outcomes.items()
    ]
    rows.append(search_row("read the range of the last 3 days", ClockName.RECORD, exact))
    show("2. Bootstrap", SEARCH_COLUMNS, rows)
    assert outcomes[ClockName.APPEND].unwanted == len(events) - len(wanted)
    assert all(outcome.missed == 0 for outcome in outcomes.values())
    assert (exact.missed, exact.unwanted) == (0, 0)


def test_row_3_failover() -> None:
    """Clusters A and B get the same records in different orders; a consumer of A continues at B."""
    dice = random.Random(3)
    created = [T0 + number * 200 for number in range(1_500)]
    a = arrivals([(create, dice.randrange(20 * SECOND)) for create in created])
    b = arrivals([(create, dice.randrange(2 * SECOND)) for create in created])
    consumed = 1_000
    last = a[consumed - 1]
    latency_a = max(event.append_ms - event.create_ms for event in a)
    there = {event.number: offset for offset, event in enumerate(b)}
    wanted = [there[event.number] for event in a[consumed:]]
    reader = reader_of(take_events(b))
    asked = [
        ("create time of the last record", ClockName.RECORD, last.create_ms),
        (
            "create time of the last record - largest latency of A",
            ClockName.RECORD,
            last.create_ms - latency_a,
        ),
        ("A's append time of the last record", ClockName.APPEND, last.append_ms),
        (
            "A's append time of the last record - largest latency of A",
            ClockName.APPEND,
            last.append_ms - latency_a,
        ),
    ]
    rows, missed = [], []
    for question, clock, time_ms in asked:
        outcome = judge(from_offset(b, position(reader, time_ms, clock)), wanted)
        missed.append(outcome.missed)
        rows.append((question, clock.value, outcome.missed, outcome.unwanted))
    columns = ("time to search for on B", "clock", "missed", "read twice")
    show("3. Failover", columns, rows)
    assert missed[0] > 0
    assert missed[1] == missed[3] == 0


def test_row_4_lag_by_time() -> None:
    """Lag by time: how long the next record has waited, at each position of a consumer."""
    dice = random.Random(4)
    made = [(T0 + n * SECOND, dice.randrange(30 * SECOND)) for n in range(600)]
    events = arrivals(made)
    env = take_events(events)
    now_ms = events[-1].append_ms + MINUTE
    reader = reader_of(env)
    rows = []
    for clock in ClockName:
        lags = [now_ms - time_at(reader, offset, clock) for offset in range(len(events))]
        truth = [now_ms - event.append_ms for event in events]
        wrong = max(abs(lag - true) for lag, true in zip(lags, truth, strict=True))
        grows = [later - lag for lag, later in itertools.pairwise(lags) if later > lag]
        largest = max(grows, default=0)
        rows.append((clock.value, seconds(wrong), len(grows), seconds(largest)))
        if clock is ClockName.APPEND:
            assert (wrong, grows) == (0, [])
        else:
            assert wrong > 20 * SECOND
    columns = ("clock", "largest error", "steps forward with growing lag", "largest growth")
    show("4. Lag by time", columns, rows)


def seconds(ms: int) -> str:
    return f"{ms / SECOND:.1f} s"


def time_at(reader: LogView, offset: int, clock: ClockName) -> int:
    """Return the time on a clock of the record at an offset."""
    if clock is ClockName.RECORD:
        return next(iter(reader.records(offset, offset + 1))).timestamp
    known = reader.append_time_of(offset)
    assert known is not None
    return known


def test_row_5_latency() -> None:
    """Latency from zone maps, for both timestamp types, compared with sums over all records."""
    dice = random.Random(5)
    made = [(T0 + n * 300, int(dice.expovariate(1 / 800))) for n in range(1_500)]
    events = arrivals(made)
    truth = sorted(event.append_ms - event.create_ms for event in events)
    rows: list[tuple[object, ...]] = [
        ("every record", "", *(truth[int(len(truth) * p)] for p in (0.5, 0.99)), truth[-1])
    ]
    for kind in ("CreateTime", "LogAppendTime"):
        env = take_events(events, {"message.timestamp.type": kind})
        found = latency(PATH, TOPIC, env=env)[TOPIC]
        total = found.total
        assert total.count == len(events)
        assert total.max_ms == truth[-1]
        median, high = total.percentile(50), total.percentile(99)
        rows.append((f"zone maps, {kind}", found.from_zone_maps, median, high, total.max_ms))
        for percent, exact in ((50, truth[len(truth) // 2]), (99, truth[len(truth) * 99 // 100])):
            told = total.percentile(percent)
            assert told is not None
            assert abs(told - exact) <= exact * 0.05 + 1
    columns = ("source", "records counted by zone maps", "median ms", "99 % ms", "largest ms")
    show("5. Latency, append time - create time", columns, rows)
