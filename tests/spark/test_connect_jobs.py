"""Bootstrap, replay and mirror over Spark Connect, run by a separate program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.cluster import Processes, start_connect
from tests.spark.jobs.test_mirror import some
from tests.worlds.directories.topics import append, make

from tidelog.directory import Directory

pytestmark = pytest.mark.timeout(1800)

CHILD = Path(__file__).parent / "connect_jobs_child.py"
# Time limit in seconds; the program takes some 40 s on idle cores, and its speed does not change
# the results.
CHILD_TIMEOUT_S = 1500
TESTS = Path(__file__).parent.parent.parent


def run(processes: Processes, url: str, work: Path) -> dict[str, dict[str, object]]:
    variables = processes.environment()
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(TESTS)])
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps({"spark": url, "work": str(work)})],
        env=variables,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    found: dict[str, dict[str, object]] = json.loads(line.removeprefix("RESULT"))
    return found


def test_jobs_over_spark_connect(processes: Processes, tmp_path: Path) -> None:
    logs = make(f"{tmp_path}/logs", "events", 2)
    for partition in range(2):
        append(logs, "events", partition, some(partition, 0, 50 + partition))
    make(f"{tmp_path}/copy", "again", 2)
    Directory.open(f"{tmp_path}/target", writable=True).close()
    found = run(processes, start_connect(processes), tmp_path)
    assert found["bootstrap"] == {"told": [300, 300], "held": 300}
    assert found["replay"] == {"told": [[200, False], [200, True]], "equal": True, "count": 200}
    mirror = found["mirror"]
    assert mirror["equal"] == [True, True]
    assert mirror["lags"] == [0, 0, 0]
    assert mirror["records"] == 101 + 25
    assert mirror["sources"] == ["events", "events.late"]
    assert "events.late" in str(mirror["notes"])
    assert len(found["refused"]) == 3
    assert all("give an absolute path" in text for text in found["refused"])
