"""Compares Kafka's retention with ours: by the clock `record`, and by the default clock."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import OurLog, run_ours
from tests.peers.test_worn import compared_files, facts
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0
from tests.worlds.repetition import rarely

from tidelog.env import OsFileSystem
from tidelog.record.builder import build_batch
from tidelog.storage.segment.deletion_history import read_deletions
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

DAY_MS = 86_400_000
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "file.delete.delay.ms": "0"}
SEEDS_PER_TEST = 25
Step = dict[str, object]


def append(*times: int, now_ms: int) -> Step:
    records = [NewRecord(key=b"k", value=b"v" * 40, timestamp=time) for time in times]
    return {"do": "append", "data": bytes(build_batch(records)), "now_ms": now_ms}


def script(directory: Path, steps: list[Step], config: Mapping[str, str]) -> Script:
    return Script(directory, steps, {**ANY_TIME, **config}, now_ms=T0)


def aging_script(seed: int, directory: Path) -> Script:
    """Return a script of appends, rolls and retention; records have earlier and later times."""
    rng = random.Random(f"aging {seed}")
    config = {
        "retention.ms": rng.choice(("0", "500", "3000")),
        "segment.ms": rng.choice(("1000", "604800000")),
        "internal.segment.bytes": rng.choice(("400", "2000")),
    }
    now_ms = T0
    steps: list[Step] = []
    for _ in range(40):
        now_ms += rng.choice((0, 1, 300, 2_000))
        kind = rng.random()
        if kind < 0.6:
            spread = rng.choice((0, 600, 6_000))
            times = [now_ms + rng.randint(-spread, spread) for _ in range(rng.randint(1, 3))]
            # Only few batches lack timestamps. If a whole segment lacked them, retention would use
            # the file's modification time, which is years after this clock's time.
            steps.append(append(*(times if rng.random() < 0.95 else [-1]), now_ms=now_ms))
        elif kind < 0.75:
            steps.append({"do": "roll", "now_ms": now_ms})
        else:
            steps.append({"do": "retention", "now_ms": now_ms})
    return script(directory, steps, config)


@pytest.mark.parametrize("first", [0, *(rarely(part * SEEDS_PER_TEST) for part in range(1, 4))])
def test_the_clock_record_deletes_exactly_what_kafka_deletes(
    kafka_oracle: Oracle, quick_path: Path, first: int
) -> None:
    deleted = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        aging = aging_script(seed, quick_path)
        watched = [step for each in aging.steps for step in (each, {"do": "state"})]
        theirs = quick_path / f"kafka-{seed}" / "events-0"
        ours = quick_path / f"ours-{seed}" / "events-0"
        told = kafka_oracle.run(replace(aging, steps=watched, directory=theirs))
        by_record = {**aging.config, "tidelog.retention.clock": "record"}
        made = run_ours(replace(aging, steps=watched, directory=ours, config=by_record))
        for number, (expected, found) in enumerate(zip(told[1::2], made[1::2], strict=True)):
            assert facts(found) == facts(expected), (seed, aging.steps[number])
        deleted += sum(a.get("deleted", 0) for a in made[::2] if isinstance(a, dict))
        assert compared_files(ours) == compared_files(theirs), f"seed {seed}"
    assert deleted > SEEDS_PER_TEST, "retention had something to do"


@pytest.mark.parametrize(("beyond_ms", "goes"), [(-600_000, 0), (600_000, 1)])
def test_without_timestamps_the_files_own_time_counts_in_both(
    kafka_oracle: Oracle, quick_path: Path, beyond_ms: int, goes: int
) -> None:
    """By the clock `record`, the file's time counts only if no record of the segment has a time."""
    made_ms = int(quick_path.stat().st_mtime * 1_000)
    steps: list[Step] = [
        append(-1, -1, now_ms=T0),
        {"do": "roll", "now_ms": T0},
        append(T0 + 10**12, now_ms=T0),
        {"do": "retention", "now_ms": made_ms + 7 * DAY_MS + beyond_ms},
        {"do": "state"},
    ]
    asked = script(quick_path, steps, {"retention.ms": str(7 * DAY_MS)})
    told = kafka_oracle.run(replace(asked, directory=quick_path / "kafka" / "events-0"))
    by_record = {**asked.config, "tidelog.retention.clock": "record"}
    ours = replace(asked, directory=quick_path / "ours" / "events-0", config=by_record)
    made = run_ours(ours)
    assert made[3] == told[3] == {"deleted": goes}
    assert facts(made[-1]) == facts(told[-1])


def life_of_a_future_record() -> list[Step]:
    """Return steps that append a record a year ahead and other records, and later run retention."""
    return [
        append(T0 + 365 * DAY_MS, now_ms=T0),
        {"do": "roll", "now_ms": T0},
        append(T0, now_ms=T0),
        {"do": "roll", "now_ms": T0},
        append(T0 + 10 * DAY_MS, now_ms=T0 + 10 * DAY_MS),
        {"do": "retention", "now_ms": T0 + 10 * DAY_MS},
        {"do": "state"},
    ]


def test_a_future_timestamp_shields_all_in_kafka_and_nothing_here(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    asked = script(quick_path, life_of_a_future_record(), {"retention.ms": str(7 * DAY_MS)})
    told = kafka_oracle.run(replace(asked, directory=quick_path / "kafka" / "events-0"))
    made = run_ours(replace(asked, directory=quick_path / "ours" / "events-0"))
    assert facts(told[-1])[0] == 0, "Kafka keeps all three segments for a year"
    assert facts(made[-1])[0] == 2, "the append times of the first two are ten days old"


def test_both_delete_old_timestamps_at_once(kafka_oracle: Oracle, quick_path: Path) -> None:
    steps: list[Step] = [
        append(T0 - 30 * DAY_MS, now_ms=T0),
        {"do": "roll", "now_ms": T0},
        append(T0, now_ms=T0),
        {"do": "retention", "now_ms": T0},
        {"do": "state"},
    ]
    asked = script(quick_path, steps, {"retention.ms": str(7 * DAY_MS)})
    told = kafka_oracle.run(replace(asked, directory=quick_path / "kafka" / "events-0"))
    made = run_ours(replace(asked, directory=quick_path / "ours" / "events-0"))
    assert facts(told[-1]) == facts(made[-1])
    assert facts(made[-1])[0] == 1


def test_kafka_keeps_the_record_of_deletions(kafka_oracle: Oracle, quick_path: Path) -> None:
    directory = quick_path / "events-0"
    config = {"retention.ms": str(7 * DAY_MS)}
    steps: list[Step] = [
        append(T0 - 30 * DAY_MS, now_ms=T0),
        {"do": "roll", "now_ms": T0},
        append(T0, now_ms=T0),
        {"do": "retention", "now_ms": T0},
    ]
    run_ours(script(directory, steps, config))
    events, problems = read_deletions(OsFileSystem(), str(directory))
    assert [(event.rule, event.start_offset, event.end_offset) for event in events] == [
        ("time", 0, 1)
    ]
    assert problems == []
    before = (directory / "deletion-history").read_bytes()
    theirs: list[Step] = [append(T0 + 2, now_ms=T0 + 2) | {"leader_epoch": 1}]
    answers = kafka_oracle.run(replace(script(directory, theirs, config), now_ms=T0 + 2))
    assert not any("error" in answer for answer in answers if isinstance(answer, dict))
    assert (directory / "deletion-history").read_bytes() == before


def test_kafka_keeps_the_notes_and_its_appends_get_new_ones(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    directory = quick_path / "events-0"
    config = {"retention.ms": str(7 * DAY_MS)}
    first: list[Step] = [append(T0, now_ms=T0), {"do": "roll", "now_ms": T0}]
    run_ours(script(directory, [*first, append(T0 + 1, now_ms=T0 + 1)], config))
    notes = (directory / "segment-notes").read_bytes()
    theirs: list[Step] = [
        append(T0 + 2, now_ms=T0 + 2) | {"leader_epoch": 1},
        {"do": "roll", "now_ms": T0 + 2},
    ]
    asked = replace(script(directory, theirs, config), now_ms=T0 + 2)
    answers = kafka_oracle.run(asked)
    assert not any("error" in answer for answer in answers if isinstance(answer, dict))
    assert (directory / "segment-notes").read_bytes() == notes
    ours = OurLog(replace(script(directory, [], config), now_ms=T0 + 2 * DAY_MS))
    reasons = (directory / "segment-notes").read_text().splitlines()[1:]
    ours.end("close")
    assert [line.split()[3] for line in reasons] == ["request", "open", "unknown"]
