"""Spark sessions: start, settings for tidelog, and supported versions of Spark and Java.

Spark's workers run the `python3` on the PATH unless PYSPARK_PYTHON or spark.pyspark.python names
another Python. The workers' Python may lack tidelog, but Spark's own error does not say so clearly.
`start` sets PYSPARK_PYTHON for its sessions. For other sessions, `setup` sets PYSPARK_PYTHON for
workers that start afterwards, and checks the Python of a worker.

The data source is tested with the supported versions and refuses all other versions. The reason is
that Spark's Python data sources change from one version to the next, so with another version an
error might appear only while a query runs. Any process can get Spark's version from pyspark. Every
session, even a session of Spark Connect, reports Java's version (`check_session`). Without a
session, Java's version is read from the process that started Spark's Python (`driver_java`).

`workers` checks the Python and the packages of the workers.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType


SPARK_VERSIONS: Final = ("4.2", "4.3")
JAVA_VERSIONS: Final = ("17", "21")

_JAVA_QUERY: Final = (
    "SELECT java_method('java.lang.System', 'getProperty', 'java.specification.version') AS version"
)

_RELEASE: Final = re.compile(r'^JAVA_VERSION="([0-9.]+)', re.MULTILINE)

# Maximum number of ancestor processes that are checked. The driver's JVM is the parent of the
# planning process or, with Spark's daemon, its grandparent.
_PARENTS_MAX: Final = 4


def check_versions(spark: str, java: str | None) -> None:
    """Raise an error for an unsupported version of Spark or Java.

    Args:
        spark: Spark's version, e.g. `4.3.0`.
        java: Java's version, e.g. `17` or `17.0.15`. None if unknown: then only Spark's version is
            checked.

    Raises:
        UnsupportedVersion: The message has the supported versions and how to choose one.
    """
    if ".".join(spark.split(".")[:2]) not in SPARK_VERSIONS:
        versions = " and ".join(SPARK_VERSIONS)
        raise UnsupportedVersion(
            f"tidelog works with Spark {versions}, this is {spark}:"
            f" run `pip install 'pyspark~={SPARK_VERSIONS[-1]}.0'` on the driver and on all"
            " machines of the cluster, and in the Python environments that --archives ships"
        )
    if java is not None and java.split(".")[0] not in JAVA_VERSIONS:
        versions = " and ".join(JAVA_VERSIONS)
        raise UnsupportedVersion(
            f"tidelog works with Spark on Java {versions}, this is Java {java}: set JAVA_HOME to a"
            " Java of one of these versions for Spark's driver and executors"
        )


def check_driver() -> None:
    """Raise an error if the installed pyspark or the driver's Java has an unsupported version.

    Raises:
        UnsupportedVersion: The version of Spark or Java is not supported.
    """
    from pyspark import __version__

    check_versions(__version__, driver_java())


def check_session(spark: "SparkSession") -> None:
    """Raise an error if a session's Spark or Java is unsupported. Runs one small query.

    Raises:
        UnsupportedVersion: The version of Spark or Java is not supported.
    """
    check_versions(spark.version, None)
    row = spark.sql(_JAVA_QUERY).first()
    check_versions(spark.version, None if row is None else row["version"])


def refusing_source() -> "type[DataSource]":
    """Return a data source `tidelog` that only raises an error, used if the real source can't load.

    The error is UnsupportedVersion if Spark or Java is unsupported, and MissingDependency if a
    package is missing. If neither is the cause, the error of the failed import is raised.
    """
    from pyspark.sql.datasource import DataSource

    class RefusingSource(DataSource):
        """Data source whose methods raise an error."""

        @classmethod
        def name(cls) -> str:
            """Return the name for `format(...)`."""
            return "tidelog"

        def schema(self) -> "str":
            """Raise the error."""
            check_driver()
            try:
                importlib.import_module("tidelog.spark.source")
            except ModuleNotFoundError as error:
                from tidelog.spark.workers import missing

                raise missing(error.name or str(error)) from None
            raise AssertionError("the failed import now succeeds: restart Spark")

        def writer(self, schema: "StructType", overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's
            """Raise the error."""
            self.schema()
            raise AssertionError

    return RefusingSource


def driver_java(proc: Path = Path("/proc"), pid: int | None = None) -> str | None:
    """Return the version of the Java process among the nearest ancestors of a process.

    Args:
        proc: Root of the proc file system. Without a proc file system (macOS), the version is
            unknown.
        pid: Process whose ancestors are searched; None for this process.

    Returns:
        The version. None if no ancestor is a Java process, or if the version is unknown.
    """
    current = os.getpid() if pid is None else pid
    for _ in range(_PARENTS_MAX):
        try:
            # Format: `pid (name) state ppid ...`; the name may contain any character.
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


# Setting that makes Spark push filters down to a source. If this setting is false, Spark refuses a
# reader with the method `pushFilters`.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

LOCAL: Final = "local[*]"
_CONNECT: Final = "sc://"
_DESCRIPTION: Final = "spark.job.description"
_TOPICS_MAX: Final = 5

# Log configuration: one line per error, and no line of a lower level.
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

# Pattern of a tidelog error in Spark's message: alone, or as the last line of a traceback.
_OURS: Final = re.compile(r"(?:^|\s)(?:[\w.]*\btidelog\.[\w.]+)\.([A-Z]\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options of a session.

    Attributes:
        master: Spark's master, or `sc://HOST:PORT` for Spark Connect; None for all local cores.
        name: Name of the application in Spark's UI.
        time_zone: Spark's session time zone, for times without a zone and for times in output.
        conf: Settings of Spark, which take precedence over tidelog's.
    """

    master: str | None = None
    name: str = "tidelog"
    time_zone: str = "UTC"
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_connect(self) -> bool:
        """Whether the session belongs to a Spark Connect server."""
        return (self.master or "").startswith(_CONNECT)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in processes on this machine."""
        return (self.master or LOCAL).startswith("local")


def start(
    options: SessionOptions, directory: Path, *, messages: Path | None = None
) -> "SparkSession":
    """Start a session. Messages of Spark, its JVM and its workers are appended to a file.

    Args:
        options: Options of the session.
        directory: Folder for Spark's files, which is created if it is missing.
        messages: File for the messages; None for `spark.log` in the folder.

    Raises:
        UnsupportedVersion: The version of Spark or Java is not supported.
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
    """Return Spark's settings for a session that a command starts."""
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
    """Within the block, append the stderr of this process and of its new children to a file."""
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
    """Configure a session for tidelog, including filter pushdown, and return it.

    Workers that start afterwards run this process's Python, unless PYSPARK_PYTHON or a setting of
    Spark names another Python.

    Args:
        spark: The session.
        checks_workers: Whether to run one small task that checks that the workers' Python has
            tidelog.

    Raises:
        UnsupportedVersion: The version of Spark or Java is not supported.
        MissingDependency: The workers run another version of Python, or their Python lacks tidelog
            or has another version of tidelog; the message says what to set.
    """
    check_session(spark)
    use_this_python()
    spark.conf.set(PUSHDOWN, "true")
    if checks_workers:
        from tidelog.spark.workers import check_workers

        check_workers(spark)
    return spark


def is_connect(spark: "SparkSession") -> bool:
    """Whether a session uses a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def context_of(spark: "SparkSession") -> "SparkContext | None":
    """Return the session's SparkContext; None over Spark Connect, where a session has none."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - the class of the error depends on Spark's release
        return None


@contextmanager
def described(spark: "SparkSession", job: str, topics: Iterable[object]) -> Iterator[None]:
    """In Spark's UI, show a job's name and topics for the queries that the block runs.

    The description of the thread is restored afterwards. Has no effect over Spark Connect, which
    can't set a description.

    Args:
        spark: The session.
        job: Name of the job, as in its command.
        topics: Names of the job's topics or partitions.
    """
    context = context_of(spark)
    if context is None:
        yield
        return
    names = sorted(set(map(str, topics)))
    more = len(names) - _TOPICS_MAX
    listed = ", ".join(names[:_TOPICS_MAX]) + (f" and {more} more" if more > 0 else "")
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(f"tidelog {job}: {listed}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type] # None removes it


def check_shared_places(spark: "SparkSession", places: Iterable[Place]) -> None:
    """Refuse relative paths if the session uses a Spark Connect server.

    Jobs plan in this process, and read and write on the server, so a path must name the same
    directory on both machines. An absolute path is assumed to name the same directory on both; the
    contents are not compared.

    Raises:
        InvalidRequest: The session uses a Spark Connect server, and a path is relative.
    """
    if not is_connect(spark):
        return
    for place in places:
        is_path = not place.is_broker and "://" not in place.address
        if is_path and not Path(place.address).is_absolute():
            raise InvalidRequest(
                f"{place}: the Spark Connect server reads it, too; give an absolute path that"
                " exists on both machines"
            )


def use_this_python() -> None:
    """Make Spark's workers run this process's Python, unless PYSPARK_PYTHON is set."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def our_words(text: str) -> tuple[str, str] | None:
    """Return class name and text of a tidelog error in Spark's message; None if there is none.

    A task's error reaches the driver as the text of a traceback. The last tidelog error in this
    text is the cause.
    """
    matches = _OURS.findall(text)
    return (matches[-1][0], matches[-1][1].strip()) if matches else None
