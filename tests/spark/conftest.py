"""One small local Spark session and one Kafka for all tests of this folder."""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cluster import Processes
from tests.worlds.kafka.either import either_broker, kafka_broker, mortal_broker
from tests.worlds.spark.settings import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["either_broker", "kafka_broker", "mortal_broker"]

# Only the fixture imports pyspark, so that collecting these tests doesn't load it.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder for Spark, and ignore Spark's own warnings (pandas 3)."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on two cores, in which Spark retries a failed task once."""
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


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Spark's processes, in a folder of their own, stopped at the end."""
    folder = tmp_path / "processes"
    folder.mkdir()
    found = Processes(folder)
    try:
        yield found
    finally:
        found.stop()
