"""Spark's own Kafka connector and our source give the same results for the same queries.

Both read the topics of the suite from one Kafka broker, in one session. The session runs in a
separate program, because Spark must be started with the connector's jars.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.cluster import Processes
from tests.spark.suite.cases import GAPS, PREFIX, SPAN_MS
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import ROOT, required_connector
from tests.worlds.records.samples import T0

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1500)]

CHILD = Path(__file__).parent / "connector_child.py"
# Time limit in seconds; the program takes some 40 s on idle cores, and its speed does not change
# the results.
CHILD_TIMEOUT_S = 1200
RECORDS = f"{PREFIX}records"
ALL = {"subscribePattern": f"{PREFIX}.*"}
ONE = {"subscribe": RECORDS}
# With this option our source converts start and end times to offsets, as the connector always
# does; the connector ignores the option.
POSITIONS = {**ONE, "timeRange": "positions"}
THIRD, LATE = str(T0 + SPAN_MS // 3), str(T0 + 9 * SPAN_MS // 10)
BEYOND = str(T0 + SPAN_MS)


def _by_partition(first: object, second: object) -> str:
    return json.dumps({RECORDS: {"0": first, "1": second}})


ASKS: dict[str, dict[str, str]] = {
    "all": ALL,
    "all with headers": {**ALL, "includeHeaders": "true"},
    "committed": {**ALL, "kafka.isolation.level": "read_committed", "includeHeaders": "true"},
    "small tasks": {
        **ALL,
        "kafka.isolation.level": "read_committed",
        "maxRecordsPerPartition": "7",
    },
    "many tasks": {**ALL, "minPartitions": "40"},
    "gaps": {"subscribe": GAPS, "maxRecordsPerPartition": "3"},
    "assigned": {"assign": json.dumps({RECORDS: [1], GAPS: [0]})},
    "two topics": {"subscribe": f"{RECORDS}, {PREFIX}nulls"},
    "offsets": {
        **ONE,
        "startingOffsets": _by_partition(10, -2),
        "endingOffsets": _by_partition(-1, 30),
    },
    "offsets beyond the end": {**ONE, "startingOffsets": _by_partition(100_000, -2)},
    "offsets of one partition alone": {
        **ONE,
        "startingOffsets": json.dumps({RECORDS: {"0": 10}}),
    },
    "times": {**POSITIONS, "startingTimestamp": THIRD, "endingTimestamp": LATE},
    "times by partition": {
        **POSITIONS,
        "startingOffsetsByTimestamp": _by_partition(int(THIRD), T0),
        "endingOffsetsByTimestamp": _by_partition(int(LATE), int(LATE)),
    },
    "an end that nothing reaches": {**POSITIONS, "endingTimestamp": BEYOND},
    "a start that nothing reaches": {**POSITIONS, "startingTimestamp": BEYOND},
    "a start that nothing reaches, from the end": {
        **POSITIONS,
        "startingTimestamp": BEYOND,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "times before offsets": {
        **POSITIONS,
        "startingTimestamp": THIRD,
        "startingOffsets": _by_partition(20, 20),
    },
    "from the latest": {**ONE, "startingOffsets": "latest"},
    "to the earliest": {**ONE, "endingOffsets": "earliest"},
    "two ways to name topics": {**ONE, **ALL},
    "a topic that is not there": {"subscribe": f"{PREFIX}nowhere"},
    "a stream": {
        **ALL,
        "stream": "true",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "90",
        "includeHeaders": "true",
    },
    "a committed stream": {
        "subscribe": f"{PREFIX}transactions",
        "stream": "true",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    },
}

REFUSED = {
    "offsets beyond the end",
    "offsets of one partition alone",
    "a start that nothing reaches",
    "from the latest",
    "to the earliest",
    "two ways to name topics",
    "a topic that is not there",
}
EMPTY = {"a start that nothing reaches, from the end"}


@pytest.fixture(scope="module")
def answers(
    filled_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, dict[str, object]]]:
    """Return the results of the connector and of our source, by query."""
    jars = required_connector()
    folder = tmp_path_factory.mktemp("connector")
    variables = Processes(folder).environment()
    variables["PYTHONPATH"] += f":{ROOT}"
    where = {"kafka.bootstrap.servers": filled_broker.bootstrap}
    asks = {name: {**where, **options} for name, options in ASKS.items()}
    asked = {"jars": str(jars), "folder": str(folder), "asks": asks}
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps(asked)],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    found: dict[str, dict[str, dict[str, object]]] = json.loads(line.removeprefix("RESULT"))
    return found


@pytest.mark.parametrize("ask", list(ASKS))
def test_the_connector_gives_the_same_rows(
    answers: dict[str, dict[str, dict[str, object]]], ask: str
) -> None:
    theirs, ours = answers[ask]["kafka"], answers[ask]["tidelog"]
    assert theirs.get("refused", False) == (ask in REFUSED), theirs.get("why")
    assert bool(theirs.get("rows")) == (ask not in REFUSED | EMPTY)
    assert ours.get("refused") == theirs.get("refused"), (ours.get("why"), theirs.get("why"))
    assert ours.get("schema") == theirs.get("schema")
    assert ours.get("rows") == theirs.get("rows")
