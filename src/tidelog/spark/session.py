"""Spark sessions: starting one, settings for tidelog, and the supported versions of Spark and Java.

Spark's workers run the `python3` on the PATH unless PYSPARK_PYTHON names another, and that one may
lack tidelog; Spark's own message says little about it. Sessions that are started here have it set.
For sessions that others started, `setup` and the checks set or report what is still possible.

The source is tested on the supported versions and refuses all others, because Spark's Python data
sources change from one version to the next and would fail during the work, not at the start. Spark
tells its version in every process of ours. Java's version comes from the process that started
Spark's Python (`driver_java`) or, if there is a session, from Spark (`check_session`), which works
over Spark Connect too.

Not owned: Python and packages of the workers (`workers`).
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest, UnsupportedVersion
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType


SPARK_VERSIONS: Final = ("4.2", "4.3")


JAVA_VERSIONS: Final = ("17", "21")


_ASK_JAVA: Final = (
    "SELECT java_method('java.lang.System', 'getProperty', 'java.specification.version') AS version"
)


_RELEASE: Final = re.compile(r'^JAVA_VERSION="([0-9.]+)', re.MULTILINE)


# Planning runs in a child, or through Spark's daemon in a grandchild, of the driver's JVM.
_PARENTS_MAX: Final = 4


def check_versions(spark: str, java: str | None) -> None:
    """Refuse a Spark or a Java that this does not work with.

    Args:
        spark: Spark's version, e.g. `4.3.0`.
        java: Java's, e.g. `17` or `17.0.15`; None where it is not known, which passes.

    Raises:
        UnsupportedVersion: The text says which are right and how to choose them.
    """
    if ".".join(spark.split(".")[:2]) not in SPARK_VERSIONS:
        versions = " and ".join(SPARK_VERSIONS)
        raise UnsupportedVersion(
            f"tidelog works with Spark {versions}, this is {spark}:"
            f" pip install 'pyspark~={SPARK_VERSIONS[-1]}.0', on the driver, the cluster and in"
            " its archives alike"
        )
    if java is not None and java.split(".")[0] not in JAVA_VERSIONS:
        versions = " and ".join(JAVA_VERSIONS)
        raise UnsupportedVersion(
            f"tidelog works with Spark on Java {versions}, this is Java {java}: set JAVA_HOME to"
            " one of these where Spark's driver and executors start"
        )


def check_driver() -> None:
    """Refuse what this process runs under: the Spark that was imported, the Java that started it.

    Raises:
        UnsupportedVersion: As `check_versions`.
    """
    from pyspark import __version__

    check_versions(__version__, driver_java())


def check_session(spark: "SparkSession") -> None:
    """Refuse a session whose Spark or Java this does not work with; asks Spark by one small query.

    Raises:
        UnsupportedVersion: As `check_versions`.
    """
    check_versions(spark.version, None)
    row = spark.sql(_ASK_JAVA).first()
    check_versions(spark.version, None if row is None else row["version"])


def refusing_source() -> "type[DataSource]":
    """A data source `tidelog` that can do nothing but say why; for Sparks without our base classes.

    Where Spark is not to blame, the error that kept the real one from being imported comes up.
    """
    from pyspark.sql.datasource import DataSource

    class RefusingSource(DataSource):
        """Refuses every use."""

        @classmethod
        def name(cls) -> str:
            """What stands in `format(...)`."""
            return "tidelog"

        def schema(self) -> "str":
            """Raise what is wrong."""
            check_driver()
            try:
                importlib.import_module("tidelog.spark.source")
            except ModuleNotFoundError as error:
                from tidelog.spark.workers import missing

                raise missing(error.name or str(error)) from None
            raise AssertionError("it can be imported after all")

        def writer(self, schema: "StructType", overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's
            """Raise what is wrong."""
            self.schema()
            raise AssertionError

    return RefusingSource


def driver_java(proc: Path = Path("/proc"), pid: int | None = None) -> str | None:
    """Version of the Java among a process's parents.

    Args:
        proc: Where the system tells of processes; what has none (macOS) leaves it unknown.
        pid: Whose parents; this process's where None.

    Returns:
        None where no parent is a Java, or where it does not say which it is.
    """
    current = os.getpid() if pid is None else pid
    for _ in range(_PARENTS_MAX):
        try:
            # `pid (name) state ppid ...`, where the name may hold anything.
            fields = (proc / str(current) / "stat").read_text().rpartition(")")[2].split()
            current = int(fields[1])
            program = (proc / str(current) / "exe").readlink()
        except (OSError, ValueError, IndexError):
            return None
        if program.name == "java":
            return _release_of(program.parent.parent)
    return None


def _release_of(home: Path) -> str | None:
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if match is None else match[1]


# With it Spark hands filters to the source; the source then has a reader that takes them.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


LOCAL: Final = "local[*]"


_CONNECT: Final = "sc://"


_DESCRIPTION: Final = "spark.job.description"


_TOPICS_SHOWN: Final = 5


# One line for each mistake, not Spark's whole log.
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
"""


_STDERR: Final = 2


# What Spark's message says of an error of ours: alone, or as the last line of a traceback.
_OURS: Final = re.compile(r"(?:^|\s)(?:[\w.]*\btidelog\.[\w.]+)\.([A-Z]\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session is started.

    Attributes:
        master: Spark's master, or `sc://HOST:PORT` for Spark Connect; all cores of here where None.
        name: What Spark's pages call it.
        time_zone: Where times without a zone are meant.
        conf: Settings of Spark, which win over ours.
    """

    master: str | None = None
    name: str = "tidelog"
    time_zone: str = "UTC"
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_connect(self) -> bool:
        """Whether the session is that of a Spark Connect server."""
        return (self.master or "").startswith(_CONNECT)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in this machine's own processes."""
        return (self.master or LOCAL).startswith("local")


def start(
    options: SessionOptions, directory: Path, *, messages: Path | None = None
) -> "SparkSession":
    """A session; what Spark, its JVM and its workers say goes to a file, not to the terminal.

    Args:
        options: How.
        directory: Folder for what Spark keeps; made where it is missing.
        messages: That file; `spark.log` in the folder where None.

    Raises:
        UnsupportedVersion: Its Spark or Java is none that tidelog works with.
    """
    from pyspark.sql import SparkSession

    directory.mkdir(parents=True, exist_ok=True)
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING, encoding="utf-8")
    use_this_python()
    builder = SparkSession.builder.appName(options.name)
    if options.is_connect:
        builder = builder.remote(options.master or "")
    else:
        builder = builder.master(options.master or LOCAL)
    for name, value in settings(options, directory, logging).items():
        builder = builder.config(name, value)
    with stderr_to(messages or directory / "spark.log"):
        session = builder.getOrCreate()
        check_session(session)
        return session


def settings(options: SessionOptions, directory: Path, logging: Path) -> dict[str, str]:
    """Spark's settings for a session of a command."""
    values = {
        "spark.sql.session.timeZone": options.time_zone,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        PUSHDOWN: "true",
    }
    if not options.is_connect:
        properties = f"-Dlog4j2.configurationFile={logging.resolve().as_uri()}"
        values |= {
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": properties,
            "spark.sql.warehouse.dir": str((directory / "warehouse").resolve()),
        }
    if options.is_local:
        values |= {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str((directory / "tmp").resolve()),
        }
    return values | dict(options.conf)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write their messages to a file."""
    saved = os.dup(_STDERR)
    with path.open("ab") as file:
        os.dup2(file.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(saved, _STDERR)
        os.close(saved)


@reads_arguments()
def setup(spark: "SparkSession", *, checks_workers: bool = True) -> "SparkSession":
    """Set in a session what tidelog gains by: filters reach the source. The session itself.

    Workers that start after this run this Python where nothing else was chosen.

    Args:
        spark: The session.
        checks_workers: Run one small task to see whether the workers' Python has tidelog.

    Raises:
        UnsupportedVersion: Its Spark or Java is none that tidelog works with.
        MissingDependency: The workers' Python lacks tidelog; the text says what to set.
    """
    check_session(spark)
    use_this_python()
    spark.conf.set(PUSHDOWN, "true")
    if checks_workers:
        from tidelog.spark.workers import check_workers

        check_workers(spark)
    return spark


def is_connect(spark: "SparkSession") -> bool:
    """Whether a session is that of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def described(spark: "SparkSession", job: str, topics: Iterable[object]) -> Iterator[None]:
    """Let Spark's UI show the name of a job and of its topics for what runs within.

    The thread's description is restored behind it. A session of Spark Connect can set none.

    Args:
        spark: The session.
        job: The job's name, as the command has it.
        topics: Names of its topics or partitions.
    """
    context: SparkContext | None = None
    with suppress(Exception):  # each release of Spark Connect refuses it by another error
        context = spark.sparkContext
    if context is None:
        yield
        return
    names = sorted(set(map(str, topics)))
    more = len(names) - _TOPICS_SHOWN
    listed = ", ".join(names[:_TOPICS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(f"tidelog {job}: {listed}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type] # None removes it


def check_shared_places(spark: "SparkSession", places: Iterable[Place]) -> None:
    """See that paths mean the same to this process and, over Spark Connect, to the server.

    Jobs plan here and read and write there. What is there is not compared: a path that both have
    is taken for one directory.

    Raises:
        InvalidRequest: A path that depends on where a process runs.
    """
    if not is_connect(spark):
        return
    for place in places:
        is_path = not place.is_broker and "://" not in place.address
        if is_path and not Path(place.address).is_absolute():
            raise InvalidRequest(
                f"{place}: over Spark Connect the server reads it too: give an absolute path, to a"
                " directory that both machines have there"
            )


def use_this_python() -> None:
    """Let workers of sessions started from here run this Python, unless another was chosen."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def our_words(text: str) -> tuple[str, str] | None:
    """Name and text of the error of tidelog's that a message of Spark's holds, None for none.

    A task's error reaches the driver as a traceback in text; the last one of ours is the cause.
    """
    matches = _OURS.findall(text)
    return (matches[-1][0], matches[-1][1].strip()) if matches else None
