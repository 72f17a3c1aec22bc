"""Archives of loaded classes, which halve the start time of the tests' JVMs.

`python -m tests.worlds.class_archives` creates the missing archives for Kafka and Spark in about 20
s. Each version of Java, Kafka and Spark needs its own archives. Without a matching archive Java
starts normally. Source: JEP 350 (dynamic archives).
"""

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ARCHIVES: Final = ROOT / ".cache" / "java"
KAFKA: Final = "kafka"
SPARK: Final = "spark"
MAKE_TIMEOUT_S: Final = 180
# Option that switches off Java's messages about archives, which would appear in the output that
# tests read.
_QUIET: Final = "-Xlog:disable"
_SESSION: Final = """
import sys, tempfile
import tidelog
from pyspark.sql import SparkSession
from tests.worlds.spark.settings import SETTINGS
from tidelog.types import NewRecord

builder = SparkSession.builder.master("local[2,2]")
for name, value in {**SETTINGS, "spark.driver.extraJavaOptions": sys.argv[1]}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
with tempfile.TemporaryDirectory() as folder:
    with tidelog.open(folder, writable=True) as log:
        log.create_topic("t", partitions=2)
        log.append("t", [NewRecord(value=b"v")])
    rows = spark.read.format("tidelog").option("path", folder).option("subscribe", "t").load()
    rows.groupBy("topic").count().collect()
    rows.write.format("tidelog").option("path", folder).option("topic", "t").mode("append").save()
machine = spark.sparkContext._gateway.proc
spark.stop()
machine.stdin.close()
sys.exit(machine.wait())
"""


def archived(name: str) -> tuple[str, ...]:
    """Return the options with which Java uses this archive; no options if Java is missing."""
    path = _path_of(name)
    return () if path is None else (f"-XX:SharedArchiveFile={path}", _QUIET)


@cache
def _path_of(name: str) -> Path | None:
    java = _java()
    if java is None:
        return None
    facts = [java, java.stat().st_mtime_ns]
    if name == SPARK:
        found = importlib.util.find_spec("pyspark")
        if found is None or not found.submodule_search_locations:
            return None
        jars = Path(found.submodule_search_locations[0], "jars")
        facts += [jars, jars.stat().st_mtime_ns if jars.exists() else 0]
    else:
        facts += [(ROOT / "tools" / "kafka" / "pom.xml").read_bytes(), ROOT]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    return ARCHIVES / f"{name}-{digest}.jsa"


def _java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / "java" if home else None
    found = str(beside) if beside is not None and beside.exists() else shutil.which("java")
    return None if found is None else Path(found).resolve()


def _make(name: str, fill: Callable[[str, Path], None]) -> None:
    path = _path_of(name)
    if path is None or path.exists():
        return
    print(f"making an archive of {name}'s classes", file=sys.stderr, flush=True)
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVES, prefix=f"{name}-new-") as fresh:
        made = Path(fresh) / path.name
        try:
            fill(f"-XX:ArchiveClassesAtExit={made}", Path(fresh))
            made.rename(path)
        except Exception as error:  # noqa: BLE001 - tests can do without an archive
            print(f"no archive of {name}'s classes: {type(error).__name__}", file=sys.stderr)


def _run_kafka(option: str, folder: Path) -> None:
    from tests.worlds.kafka.broker import Broker
    from tests.worlds.kafka.home import PLAIN_JVM, kafka_home
    from tests.worlds.kafka.oracle import Oracle

    home = kafka_home()
    with Oracle(home) as oracle:
        broker = Broker(home, oracle, folder, jvm=(*PLAIN_JVM, option, _QUIET))
        broker.start()
        try:
            broker.create_topic("t", 1)
        finally:
            broker.stop()


def _run_spark(option: str, folder: Path) -> None:
    from tests.worlds.spark.settings import PLAIN_JVM

    options = f"{PLAIN_JVM} {option} {_QUIET}"
    with (folder / "log").open("w") as log:
        session = subprocess.Popen(
            [sys.executable, "-c", _SESSION, options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            session.wait(MAKE_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):  # after a timeout this ends the JVM, too
                os.killpg(session.pid, signal.SIGKILL)
            session.wait()


def main() -> None:
    """Create missing archives; ignore failures."""
    _make(KAFKA, _run_kafka)
    _make(SPARK, _run_spark)


if __name__ == "__main__":
    main()
