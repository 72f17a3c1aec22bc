"""Producers that repeat unacknowledged batches after a restart: Kafka's responses, and ours."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import run_ours
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0

from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

IN_FLIGHT = 5
OUT_OF_ORDER = 45


def sent_twice(oracle: Oracle, folder: Path, first_ms: int) -> tuple[list[object], list[object]]:
    """Append batches, restart, and append the same batches again.

    Return Kafka's responses and ours to the second appends.
    """
    batches = [
        build_batch(
            [NewRecord(value=b"v", timestamp=first_ms + n)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=n,
        )
        for n in range(IN_FLIGHT)
    ]
    steps = [{"do": "append", "data": bytes(each)} for each in batches]
    config = {"retention.ms": "-1"}
    kafka = Script(folder / "kafka" / "again-0", [*steps, {"do": "roll"}], config, now_ms=T0)
    ours = replace(kafka, directory=folder / "ours" / "again-0")
    oracle.run_well(kafka)
    run_ours(ours)
    return oracle.run(replace(kafka, steps=steps)), run_ours(replace(ours, steps=steps))


def places(answers: list[object]) -> list[object]:
    """Return the first offset or the error code in each response."""
    found = []
    for answer in answers:
        assert isinstance(answer, dict)
        found.append(answer["code"] if "error" in answer else answer["first_offset"])
    return found


def test_old_records_are_written_twice_by_kafka_and_known_to_us(
    kafka_oracle: Oracle, tmp_path: Path
) -> None:
    theirs, ours = sent_twice(kafka_oracle, tmp_path, first_ms=0)
    assert places(theirs) == [5, 6, 7, 8, 9]
    assert places(ours) == [0, 1, 2, 3, 4]


def test_all_but_the_last_batch_are_refused_by_kafka_and_known_to_us(
    kafka_oracle: Oracle, tmp_path: Path
) -> None:
    theirs, ours = sent_twice(kafka_oracle, tmp_path, first_ms=T0)
    assert places(theirs) == [OUT_OF_ORDER] * 4 + [4]
    assert places(ours) == [0, 1, 2, 3, 4]
