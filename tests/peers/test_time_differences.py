"""Lookups by time in the same files: Kafka's result is wrong, and ours is right.

Each test asserts Kafka's result too: if it changes, docs/differences.md has to change.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.offset_logs import MAX_TIMESTAMP
from tests.peers.ours import Step, run_ours
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0

from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

HOUR = 3_600_000
INDEXED = {"index.interval.bytes": "0", "retention.ms": str(24 * HOUR)}
FIRST = f"{0:020d}"


def put(*times: int, now_ms: int = T0) -> Step:
    """Return a step that appends one batch."""
    records = [NewRecord(key=b"k", value=b"v" * 20, timestamp=time) for time in times]
    return {"do": "append", "data": bytes(build_batch(records)), "now_ms": now_ms}


def ask(*times: int) -> Step:
    return {"do": "offsets_for_times", "timestamps": list(times)}


def offsets(answer: object) -> list[int | None]:
    assert isinstance(answer, list)
    return [None if found is None else found[0] for found in answer]


def written(oracle: Oracle, folder: Path, steps: Sequence[Step], config: dict[str, str]) -> Path:
    """Return a partition that Kafka wrote and closed."""
    directory = folder / "written" / "events-0"
    oracle.run_well(Script(directory, steps, config, now_ms=T0))
    return directory


def both(
    oracle: Oracle, folder: Path, source: Path, steps: Sequence[Step], config: dict[str, str]
) -> tuple[list[object], list[object]]:
    """Return Kafka's results and ours; each side reads a copy with the same modification times."""
    scripts = []
    for side in ("kafka", "ours"):
        copy = folder / side / "events-0"
        shutil.copytree(source, copy)
        scripts.append(Script(copy, steps, config, now_ms=T0))
    return oracle.run(scripts[0]), run_ours(scripts[1])


def test_append_time_runs_back_with_kafkas_clock_and_not_with_ours(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    steps = [put(T0, now_ms=T0 + HOUR), put(T0, now_ms=T0)]
    script = Script(quick_path / "kafka" / "events-0", steps, config, now_ms=T0 + HOUR)
    kafka_oracle.run_well(script)
    ours = replace(script, directory=quick_path / "ours" / "events-0")
    run_ours(ours)

    def stamps(directory: Path) -> list[int]:
        data = (directory / f"{FIRST}.log").read_bytes()
        return [batch.max_timestamp for batch in walk(data)]

    assert stamps(script.directory) == [T0 + HOUR, T0]
    assert stamps(ours.directory) == [T0 + HOUR, T0 + HOUR]


def test_a_segment_without_times_hides_later_records_from_kafka(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """Kafka treats the file's modification time as the segment's largest timestamp."""
    steps = [put(-1, -1), {"do": "roll"}, put(T0)]
    source = written(kafka_oracle, quick_path, steps, {})
    kafka, ours = both(kafka_oracle, quick_path, source, [ask(T0)], {})
    assert offsets(kafka[0]) == [None]
    assert offsets(ours[0]) == [2]


def test_a_time_index_that_lost_its_end_hides_records_from_kafka(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """The index is valid: only whole entries at the file's end are missing."""
    steps = [put(T0 + n) for n in range(5)]
    source = written(kafka_oracle, quick_path, [*steps, {"do": "roll"}, put(T0 - 1)], INDEXED)
    index = source / f"{FIRST}.timeindex"
    index.write_bytes(index.read_bytes()[:12])
    kafka, ours = both(kafka_oracle, quick_path, source, [ask(T0 + 3, T0 + 4)], INDEXED)
    assert offsets(kafka[0]) == [None, None]
    assert offsets(ours[0]) == [3, 4]


def test_kafka_deletes_recent_records_after_a_time_index_of_zeros(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """A crash leaves the index's preallocated zeros; Kafka reads them as 1970 (KAFKA-10207)."""
    steps = [*(put(T0 + n) for n in range(5)), {"do": "roll"}, put(T0)]
    source = written(kafka_oracle, quick_path, steps, INDEXED)
    index = source / f"{FIRST}.timeindex"
    index.write_bytes(index.read_bytes() + bytes(12 * 20))
    asked: list[Step] = [ask(T0 + 3), {"do": "retention"}, {"do": "state"}]
    kafka, ours = both(kafka_oracle, quick_path, source, asked, INDEXED)
    assert offsets(kafka[0]) == [None]
    assert kafka[1] == {"deleted": 1}
    assert offsets(ours[0]) == [3]
    assert ours[1] == {"deleted": 0}


def test_the_largest_timestamp_of_records_without_times_is_a_record_to_kafka(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    source = written(kafka_oracle, quick_path, [put(-1), put(-1, -1)], {})
    script = Script(source, [ask(MAX_TIMESTAMP)], {}, now_ms=T0)
    (kafka,) = kafka_oracle.run(script)
    assert isinstance(kafka, list)
    assert kafka[0][:2] == [0, -1]
    with LogDir.open(str(source.parent)) as ours:
        assert ours.reader("events", 0).max_timestamp() is None
