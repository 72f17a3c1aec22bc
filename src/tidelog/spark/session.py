"""Sessions: how the commands start one, and what any session should have set for tidelog.

Spark's workers run whatever `python3` stands on the PATH unless PYSPARK_PYTHON says otherwise, and
that one may lack tidelog; Spark itself says little of it. So whoever starts a session here has it
set, and a session that others have started is told what can still be told.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest
from tidelog.spark.places import Place
from tidelog.spark.versions import check_session
from tidelog.spark.worker_check import check_workers

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

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
    found = {
        "spark.sql.session.timeZone": options.time_zone,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        PUSHDOWN: "true",
    }
    if not options.is_connect:
        properties = f"-Dlog4j2.configurationFile={logging.resolve().as_uri()}"
        found |= {
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": properties,
            "spark.sql.warehouse.dir": str((directory / "warehouse").resolve()),
        }
    if options.is_local:
        found |= {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str((directory / "tmp").resolve()),
        }
    return found | dict(options.conf)


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
    shown = ", ".join(names[:_TOPICS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(f"tidelog {job}: {shown}")
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
    found = _OURS.findall(text)
    return (found[-1][0], found[-1][1].strip()) if found else None
