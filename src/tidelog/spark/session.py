"""Sessions: how the commands start one, and what any session should have set for tidelog.

Spark's workers run whatever `python3` stands on the PATH unless PYSPARK_PYTHON says otherwise, and
that one may lack tidelog; Spark itself says little of it. So whoever starts a session here has it
set, and a session that others have started is told what can still be told.
"""

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With it Spark hands filters to the source; the source then has a reader that takes them.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def setup(spark: "SparkSession") -> "SparkSession":
    """Set in a session what tidelog gains by: filters reach the source. The session itself.

    Workers that start after this run this Python where nothing else was chosen.
    """
    use_this_python()
    spark.conf.set(PUSHDOWN, "true")
    return spark


def use_this_python() -> None:
    """Let workers of sessions started from here run this Python, unless another was chosen."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
