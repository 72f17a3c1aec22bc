"""Which Spark and which Java this works with, and what is said to others.

The source is tested on these and refuses the rest, since Spark's Python data sources change from
one version to the next and fail on the way, not at the start. Spark itself tells its version in
every process of ours; Java's is told by the process that started Spark's Python (`driver_java`) or,
where there is a session, by Spark (`check_session`), which works over Spark Connect too.
"""

import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tidelog.errors import UnsupportedVersion

if TYPE_CHECKING:
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
        wanted = " and ".join(SPARK_VERSIONS)
        raise UnsupportedVersion(
            f"tidelog works with Spark {wanted}, this is {spark}:"
            f" pip install 'pyspark~={SPARK_VERSIONS[-1]}.0', on the driver, the cluster and in"
            " its archives alike"
        )
    if java is not None and java.split(".")[0] not in JAVA_VERSIONS:
        wanted = " and ".join(JAVA_VERSIONS)
        raise UnsupportedVersion(
            f"tidelog works with Spark on Java {wanted}, this is Java {java}: set JAVA_HOME to one"
            " of these where Spark's driver and executors start"
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
        found = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if found is None else found[1]
