"""One small local Spark session for all tests here, and nothing of it left behind."""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pyspark is imported by the fixture alone: collecting these tests starts nothing.
# Sessions here live for some small queries: what the JVM's second compiler makes of them would be
# done when they are through. A quarter of the CPU time of a stream of twelve batches.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # A task of a write that is aborted cleans up when its rows end, however busy the machine.
    "spark.python.task.killTimeout": "60s",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs Spark; its own warnings (pandas 3) are not ours."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on two cores, in which a failed task is tried once more."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2,2]").appName("tidelog tests")
        warehouse = tmp_path_factory.mktemp("warehouse")
        builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
