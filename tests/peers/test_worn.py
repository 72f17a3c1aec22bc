"""Truncations, rolls, deleted records and retention leave equal files in Kafka and tidelog."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.peers.ours import kafka_files, run_ours
from tests.peers.scripts import worn_script
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.repetition import rarely

pytestmark = pytest.mark.kafka

SEEDS_PER_TEST = 20
SEEDS = range(0, 4 * SEEDS_PER_TEST, SEEDS_PER_TEST)


def facts(answer: object) -> list[object]:
    """Return the log start, the log end and the segments from the result of a script's step."""
    state = cast("dict[str, object]", answer)
    segments = cast("list[dict[str, object]]", state["segments"])
    return [
        state["log_start_offset"],
        state["log_end_offset"],
        [(segment["base_offset"], segment["size_bytes"]) for segment in segments],
    ]


def compared_files(directory: Path) -> dict[str, bytes]:
    """Return logs and indexes, but no snapshots: the two sides keep different old snapshots."""
    return {
        name: content
        for name, content in kafka_files(directory).items()
        if name.endswith((".log", "index"))
    }


@pytest.mark.parametrize("first", [*SEEDS[:2], *map(rarely, SEEDS[2:])])
def test_a_worn_log_is_the_same(kafka_oracle: Oracle, quick_path: Path, first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        script = worn_script(seed, quick_path)
        watched = [step for each in script.steps for step in (each, {"do": "state"})]
        theirs = quick_path / f"kafka-{seed}" / "events-0"
        ours = quick_path / f"ours-{seed}" / "events-0"
        told = kafka_oracle.run(replace(script, steps=watched, directory=theirs))[1::2]
        made = run_ours(replace(script, steps=watched, directory=ours))[1::2]
        for number, (expected, found) in enumerate(zip(told, made, strict=True)):
            assert facts(found) == facts(expected), (seed, script.steps[number])
        assert compared_files(ours) == compared_files(theirs), f"seed {seed}"
