"""Kafka trusts damaged indexes, so it deletes or misses records. tidelog keeps and finds them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import run_ours
from tests.peers.test_retention_clocks import Step, append, script
from tests.peers.test_worn import facts
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
FIRST_TIMES = f"{0:020d}.timeindex"
CONFIG = {
    "retention.ms": str(24 * HOUR_MS),
    "index.interval.bytes": "0",
    "tidelog.retention.clock": "record",
}
KAFKA_CONFIG = {key: text for key, text in CONFIG.items() if not key.startswith("tidelog")}

Change = Callable[[bytes], bytes]


def damaged_pair(oracle: Oracle, folder: Path, change: Change) -> tuple[Script, Script]:
    """Return scripts for Kafka and for tidelog, on copies of a log with a changed time index."""
    steps = [append(T0 + hour * HOUR_MS, now_ms=T0 + hour * HOUR_MS) for hour in range(4)]
    steps.append({"do": "roll", "now_ms": T0 + 4 * HOUR_MS})
    steps.append(append(T0 + 4 * HOUR_MS, now_ms=T0 + 4 * HOUR_MS))
    theirs = script(folder / "kafka" / "events-0", steps, KAFKA_CONFIG)
    oracle.run(theirs)
    index = theirs.directory / FIRST_TIMES
    index.write_bytes(change(index.read_bytes()))
    directory = folder / "ours" / "events-0"
    shutil.copytree(theirs.directory, directory)
    theirs = replace(theirs, steps=(), now_ms=T0 + 5 * HOUR_MS)
    return theirs, replace(theirs, directory=directory, config={**theirs.config, **CONFIG})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data + bytes(120), id="a tail of zeros (KAFKA-10207)"),
        pytest.param(
            lambda data: (5).to_bytes(8, "big") + bytes(4), id="of another log, far in the past"
        ),
    ],
)
def test_only_kafka_deletes_records_because_of_a_wrong_time_index(
    kafka_oracle: Oracle, quick_path: Path, change: Change
) -> None:
    theirs, ours = damaged_pair(kafka_oracle, quick_path, change)
    steps: list[Step] = [{"do": "retention", "now_ms": T0 + 5 * HOUR_MS}, {"do": "state"}]
    told = kafka_oracle.run(replace(theirs, steps=steps))
    made = run_ours(replace(ours, steps=steps))
    assert facts(told[-1])[0] == 4, "four records of the last hours are gone"
    assert facts(made[-1])[0] == 0


def test_only_kafka_misses_records_after_a_truncated_time_index(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    theirs, ours = damaged_pair(kafka_oracle, quick_path, lambda data: data[:12])
    wanted = T0 + 3 * HOUR_MS
    steps: list[Step] = [{"do": "offsets_for_times", "timestamps": [wanted]}]
    (told,) = kafka_oracle.run(replace(theirs, steps=steps))
    (made,) = run_ours(replace(ours, steps=steps))
    assert told == [[4, T0 + 4 * HOUR_MS, 0]], "an hour later than the first match"
    assert made == [[3, wanted, 0]]
