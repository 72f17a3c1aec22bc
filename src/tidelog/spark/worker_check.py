"""Whether a session's workers run a Python that has tidelog: asked of one of them, by a tiny job.

Spark runs what stands on each machine's PATH unless it was told otherwise, and says of a wrong
Python only that a module is missing, or that versions differ.
"""

import re
import sys
from typing import TYPE_CHECKING, Final

from tidelog.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

_PROBED: Final = "path string, version string, tidelog string"
_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH.*|Python in worker has different version.*")
_HINT: Final = (
    "set spark.pyspark.python (or PYSPARK_PYTHON) to one with 'tidelog[spark]' installed before"
    " the session starts; docs/deploy.md"
)


def check_workers(spark: "SparkSession") -> None:
    """Run one small task; it also starts a worker, which later queries use.

    Raises:
        MissingDependency: The worker's Python has no tidelog, or another version of it, or is of
            another version than the driver's.
    """
    from pyspark.errors import PySparkException

    from tidelog import __version__

    try:
        (row,) = spark.range(1, numPartitions=1).mapInArrow(_probe(), _PROBED).collect()
    except PySparkException as error:
        found = _MISMATCH.search(str(error))
        if found is None:
            raise
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingDependency(
            f"Spark's workers run another Python than this one ({here}): {found[0]}; {_HINT}"
        ) from error
    if row.tidelog != __version__:
        what = f"tidelog {row.tidelog}, not {__version__}" if row.tidelog else "no tidelog"
        raise MissingDependency(
            f"Spark's workers run {row.path} (Python {row.version}), which has {what}: {_HINT}"
        )


def _probe() -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """What the worker runs. Made in here, so that it is sent as code: it may lack this module."""

    def probe(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import platform
        import sys

        import pyarrow as pa

        try:
            from tidelog import __version__ as found
        except ImportError:
            found = ""
        for _ in batches:
            columns = [[sys.executable], [platform.python_version()], [found]]
            names = ["path", "version", "tidelog"]
            yield pa.RecordBatch.from_arrays([pa.array(one) for one in columns], names)

    return probe
