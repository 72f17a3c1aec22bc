"""One pipeline on standalone, Spark Connect and local clusters, and with other versions of Spark.

The pipeline is a separate program (cluster_child.py), like users' programs, on a directory of one
topic: batch read by splits, streaming read into a directory sink, batch write.

Other versions of Spark and Java are tested if environment variables name them: TIDELOG_SPARK_42 (a
folder with pyspark 4.2), TIDELOG_JAVA_21 (the home of a Java 21), TIDELOG_JAVA_OTHER (the home of a
Java to be refused), TIDELOG_SPARK_ARCHIVE (a virtual environment with tidelog[spark,objects] and
venv-pack).
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.spark.cluster import SMALL, Processes, start_connect, start_standalone
from tests.worlds.directories.copies import copy_into
from tests.worlds.directories.logs import ANY_TIME
from tests.worlds.directories.random_logs import T0, TOPIC, make_log_dir
from tests.worlds.needs import variable
from tests.worlds.s3_server import S3Server, s3_server

from tidelog.env import Env, ManualClock
from tidelog.objects import open_store
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

__all__ = ["s3_server"]

pytestmark = pytest.mark.timeout(1800)
Result: TypeAlias = dict[str, object]

CHILD = Path(__file__).parent / "cluster_child.py"
# Time limit in seconds; the program takes some 30 s on idle cores, and its speed does not change
# the results.
CHILD_TIMEOUT_S = 1500


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    make_log_dir(str(tmp_path / "logs"), 31, steps=30, config={"internal.segment.bytes": "9000"})
    clock = ManualClock(T0)
    with LogDir.open(
        str(tmp_path / "target"), env=Env(clock=clock), options=LogDirOptions(create=True)
    ) as target:
        for name in ("copied", "again"):
            target.create_topic(name, partitions=2, config=ANY_TIME)
    return tmp_path


@dataclass(frozen=True, slots=True)
class Data:
    """The directory for the program; if it is in an object store, also the store's settings."""

    path: str
    store: dict[str, str] = field(default_factory=dict)


def run(processes: Processes, logs: Path, spark: str, data: Data | None = None) -> Result:
    """Run the program, which must succeed; return its result."""
    return result_of(start(processes, logs, spark, data))


def result_of(done: "subprocess.CompletedProcess[str]") -> Result:
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    found: Result = json.loads(line.removeprefix("RESULT"))
    return found


def start(
    processes: Processes, logs: Path, spark: str, data: Data | None = None
) -> subprocess.CompletedProcess[str]:
    conf = {"spark.pyspark.python": sys.executable}
    conf |= {} if spark.startswith("sc:") else SMALL
    given = asked(logs, spark, conf, data)
    return program(processes, logs, [sys.executable, str(CHILD), given])


def asked(logs: Path, spark: str, conf: dict[str, str], data: Data | None = None) -> str:
    """Return the JSON argument for the program."""
    where = data or Data(str(logs / "logs"))
    given = {
        "spark": spark,
        "conf": conf,
        "data": where.path,
        "store": where.store,
        "topic": TOPIC,
        "target": str(logs / "target"),
        "checkpoint": str(logs / "checkpoint"),
    }
    return json.dumps(given)


def program(
    processes: Processes, logs: Path, command: list[str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=processes.environment(),
        cwd=logs,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )


def check(found: Result, logs: Path) -> None:
    with LogDir.open(str(logs / "logs")) as log_dir:
        count = sum(len(list(log_dir.reader(TOPIC, number).records())) for number in range(2))
    read = found["read"]
    assert isinstance(read, list)
    assert read[0] == count
    assert found["copied"] == found["again"] == read


def test_standalone_reads_an_object_store(
    processes: Processes, logs: Path, s3_server: S3Server
) -> None:
    store = open_store(f"s3://{s3_server.bucket()}/logs", s3_server.options())
    copy_into(store, logs / "logs")
    data = Data(store.url, s3_server.options())
    found = run(processes, logs, start_standalone(processes), data)
    check(found, logs)
    places = found["workers"]
    assert isinstance(places, list)
    assert {Path(place).parts[-3] for place in places} == {"work-0", "work-1"}
    secret = s3_server.options()["secret_access_key"]
    assert not [log.name for log in processes.folder.rglob("std*") if secret in log.read_text()]


def test_connect(processes: Processes, logs: Path) -> None:
    check(run(processes, logs, start_connect(processes)), logs)


@pytest.mark.slow
def test_local(processes: Processes, logs: Path) -> None:
    check(run(processes, logs, "local[2]"), logs)


@pytest.mark.slow
def test_spark_4_2_on_java_21(processes: Processes, logs: Path) -> None:
    processes.home = Path(variable("TIDELOG_SPARK_42")) / "pyspark"
    processes.java_home = variable("TIDELOG_JAVA_21")
    found = run(processes, logs, "local[2]")
    check(found, logs)
    assert str(found["version"]).startswith("4.2.")


@pytest.mark.slow
def test_java_21(processes: Processes, logs: Path) -> None:
    """The newest Spark with Java 21; the other tests use the machine's own Java."""
    processes.java_home = variable("TIDELOG_JAVA_21")
    found = run(processes, logs, "local[2]")
    check(found, logs)
    assert str(found["java"]).startswith("21")


@pytest.mark.slow
def test_an_archive_brings_the_environment(processes: Processes, logs: Path) -> None:
    """Spark sends the environment as an archive (docs/deploy.md) to nodes that have only Python."""
    env = Path(variable("TIDELOG_SPARK_ARCHIVE"))
    packed = [str(env / "bin" / "venv-pack"), "-q", "-p", str(env), "-o", str(logs / "env.tar.gz")]
    subprocess.run(packed, check=True)
    processes.variables = {"PYTHONPATH": "", "PYSPARK_PYTHON": "/nowhere/python"}
    master = start_standalone(processes)
    conf = SMALL | {
        "spark.pyspark.python": "./env/bin/python",
        "spark.pyspark.driver.python": str(env / "bin" / "python"),
        "spark.executorEnv.NUMBA_CACHE_DIR": str(logs / "kernels"),
    }
    shown = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    submit = str(processes.home / "bin" / "spark-submit")
    command = [submit, "--master", master, "--archives", f"{logs / 'env.tar.gz'}#env", *shown]
    found = result_of(program(processes, logs, [*command, str(CHILD), asked(logs, master, {})]))
    check(found, logs)
    assert len(list(processes.folder.glob("work-*/app-*/*/env/bin/python"))) == 2


@pytest.mark.slow
def test_another_java_is_refused(processes: Processes, logs: Path) -> None:
    processes.java_home = variable("TIDELOG_JAVA_OTHER")
    done = start(processes, logs, "local[2]")
    assert done.returncode == 1
    assert "tidelog works with Spark on Java 17 and 21, this is Java" in done.stderr
