"""Home of Apache Kafka's jars and our Java classes: fetched and compiled once per checkout.

`kafka_home()` copies the jars that tools/kafka/pom.xml pins into `.cache/kafka` with Maven,
compiles tools/kafka/src, and reports what is missing if it fails. A folder's name is a hash of its
sources. A folder gets this name only when it is complete, so the next run never uses the remains of
an interrupted run. A file lock separates parallel test workers.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.worlds.class_archives import KAFKA, archived
from tests.worlds.needs import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "tools" / "kafka"
POM = TOOLS / "pom.xml"
CONNECTOR_POM = TOOLS / "connector.xml"
CACHE = ROOT / ".cache" / "kafka"
# The first fetch downloads 54 MB. A later fetch copies the jars from Maven's own cache.
FETCH_TIMEOUT_S = 540
# Maven's extra options in each attempt to download. Maven would keep a cached failure for a day; -U
# makes it try again.
FETCHES: tuple[tuple[str, ...], ...] = ((), ("-U",), ("-U",))
# Options of the JVMs of tests, for a quick start and little memory.
PLAIN_JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
QUICK_JVM = (*PLAIN_JVM, *archived(KAFKA))
# Our classes are in a jar, because Java archives only classes from jars.
TOOLS_JAR = "tidelog-tools.jar"


class Unavailable(Exception):
    """Kafka is not available here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class KafkaHome:
    """Folders of Kafka's jars and of our classes that use them."""

    jars: Path
    classes: Path

    def java_command(
        self,
        main_class: str,
        *arguments: str,
        jvm: Sequence[str] = QUICK_JVM,
        log_level: str = "ERROR",
    ) -> list[str]:
        """Return a command line that runs `main_class` on Kafka's class path; logs go to stderr."""
        return [
            _tool("java"),
            *jvm,
            f"-Dtidelog.log.level={log_level}",
            f"-Dlog4j2.configurationFile={TOOLS / 'log4j2.xml'}",
            "-cp",
            f"{self.classes / TOOLS_JAR}{os.pathsep}{self.jars}/*",
            main_class,
            *arguments,
        ]


def _tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / name if home else None
    if beside is not None and beside.exists():
        return str(beside)
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        told = (done.stdout + done.stderr).strip().splitlines()
        raise Unavailable(f"{command[0]} failed: {' | '.join(told[-3:])}")


@contextmanager
def _locked() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _made_from(kind: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """Return the folder that `make` fills from `sources`; if it exists, it is not filled again."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    target = CACHE / f"{kind}-{digest.hexdigest()[:12]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{kind}-new-") as fresh:
            filling = Path(fresh) / kind
            filling.mkdir()
            make(filling)
            filling.rename(target)
    return target


def _fetch_jars(target: Path, pom: Path = POM) -> None:
    *tries, last = ([_tool("mvn"), *again] for again in FETCHES)
    options = ["-q", "-B", "-f", str(pom), f"-DoutputDirectory={target}"]
    for mvn in tries:
        with suppress(Unavailable):
            _run([*mvn, *options, "dependency:copy-dependencies"])
            break
    else:
        _run([*last, *options, "dependency:copy-dependencies"])
    if not any(target.glob("kafka-clients-*.jar")):
        raise Unavailable("Maven brought no kafka-clients jar")


def _compile(jars: Path, sources: Sequence[Path], target: Path) -> None:
    command = [_tool("javac"), "--release", "17", "-Xlint:all,-processing,-classfile", "-Werror"]
    names = [str(source) for source in sources]
    _run([*command, "-d", str(target), "-cp", f"{jars}/*", *names])
    _run(
        [_tool("jar"), "--create", "--file", str(target / TOOLS_JAR), "-C", str(target), "tidelog"]
    )


@functools.cache
def _home_or_reason() -> KafkaHome | str:
    sources = sorted((TOOLS / "src").rglob("*.java"))
    try:
        _tool("java")
        with _locked():
            jars = _made_from("jars", [POM], _fetch_jars)
            classes = _made_from(
                "tools", [POM, *sources], functools.partial(_compile, jars, sources)
            )
    except Unavailable as missing:
        return str(missing)
    return KafkaHome(jars, classes)


def kafka_home() -> KafkaHome:
    """Return Kafka's jars and our classes; the first call fetches and compiles them.

    Raises:
        Unavailable: Java, Maven or the jars are not available; further calls repeat the error.
    """
    found = _home_or_reason()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


def required_connector() -> Path:
    """Return the folder of Spark's own Kafka connector; skip or fail the test if it is missing."""
    fetch = functools.partial(_fetch_jars, pom=CONNECTOR_POM)
    try:
        _tool("java")
        with _locked():
            return _made_from("connector", [CONNECTOR_POM], fetch)
    except Unavailable as missing:
        skip_or_fail(f"Apache Kafka's jars: {missing}")


def required_home() -> KafkaHome:
    """Return `kafka_home()` for a fixture; without it skip or fail the test."""
    try:
        return kafka_home()
    except Unavailable as missing:
        skip_or_fail(f"Apache Kafka's jars: {missing}")
