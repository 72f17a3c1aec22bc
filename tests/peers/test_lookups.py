"""Lookups by time in one directory: tidelog's results equal Kafka's, or are more exact."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import run_ours
from tests.peers.scripts import client_script, follower_script
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0
from tests.worlds.repetition import rarely

from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.types import INT64_MAX, NewRecord

pytestmark = pytest.mark.kafka

SEEDS = [range(12), rarely(range(12, 30))]

Found = tuple[int, int] | None


def written(directory: Path) -> list[tuple[int, int]]:
    """Return offset and timestamp of every record on disk, in order."""
    return [
        (record.offset, record.timestamp)
        for log in sorted(directory.glob("*.log"))
        for batch in walk(log.read_bytes())
        for record in batch.records()
    ]


def has_timeless_segment(directory: Path) -> bool:
    """Whether a segment has no record with a time.

    Kafka takes the file's modification time as the largest timestamp of such a segment. It
    searches the segment, finds no match, and does not search later segments.
    """
    return any(
        log.stat().st_size and all(batch.max_timestamp == -1 for batch in walk(log.read_bytes()))
        for log in directory.glob("*.log")
    )


def by_full_scan(records: Sequence[tuple[int, int]], target: int, start: int) -> Found:
    """Return the first record from offset `start` on with a time of at least `target`."""
    return next(((o, t) for o, t in records if o >= start and t >= target), None)


def times_to_ask(records: Sequence[tuple[int, int]]) -> list[int]:
    """Return each time in the log with the times 1 ms before and after it, and extreme times."""
    around = {t + d for _, t in records for d in (-1, 0, 1)}
    return sorted({time for time in around if time >= 0} | {0, T0, INT64_MAX})


def ask(answers: Sequence[object]) -> list[Found]:
    """Return offset and time of each lookup in the last step; None for a lookup without match."""
    last = answers[-1]
    assert isinstance(last, list)
    return [None if found is None else (found[0], found[1]) for found in last]


def two_copies(script: Script, folder: Path) -> tuple[Script, Script]:
    """Return scripts on two copies of the same directory."""
    copies = [folder / side / "events-0" for side in ("kafka", "ours")]
    for copy in copies:
        shutil.copytree(script.directory, copy)
    return replace(script, directory=copies[0]), replace(script, directory=copies[1])


@pytest.mark.parametrize("make", [client_script, follower_script])
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_results_are_exact_and_equal_to_kafkas(
    kafka_oracle: Oracle, quick_path: Path, seeds: range, make: Callable[[int, Path], Script]
) -> None:
    agreed = 0
    for seed in seeds:
        folder = quick_path / str(seed)
        script = make(seed, folder / "events-0")
        kafka_oracle.run(script)
        records = written(script.directory)
        times = times_to_ask(records)
        asked = replace(script, steps=[{"do": "offsets_for_times", "timestamps": times}])
        expected = [by_full_scan(records, time, 0) for time in times]
        theirs, ours = two_copies(asked, folder)
        assert ask(run_ours(ours)) == expected, f"seed {seed}"
        told = ask(kafka_oracle.run(theirs))
        if has_timeless_segment(ours.directory):
            told = [found or better for found, better in zip(told, expected, strict=True)]
        else:
            agreed += 1
        assert told == expected, f"seed {seed}"
    assert agreed > len(seeds) // 2


def test_a_match_in_a_later_segment_is_found_where_kafka_gives_up(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """Kafka searches only the first segment with a late enough record. This record is deleted."""
    early = [NewRecord(key=b"k", value=b"early", timestamp=T0 + 500)]
    late = [NewRecord(key=b"k", value=b"late", timestamp=T0 + 400)]
    plain = [NewRecord(key=b"k", value=b"plain", timestamp=T0)]
    steps: list[dict[str, object]] = [
        {"do": "append", "data": bytes(build_batch(early))},
        {"do": "append", "data": bytes(build_batch(plain))},
        {"do": "roll"},
        {"do": "append", "data": bytes(build_batch(late))},
        {"do": "delete_records", "offset": 1},
        {"do": "offsets_for_times", "timestamps": [T0 + 300]},
    ]
    script = Script(quick_path / "kafka" / "events-0", steps, now_ms=T0)
    assert ask(kafka_oracle.run(script)) == [None]
    assert ask(run_ours(replace(script, directory=quick_path / "ours" / "events-0"))) == [
        (2, T0 + 400)
    ]
