"""A worker's Python that differs from the driver's is reported before a query fails."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row

import tidelog
from tidelog.errors import MissingDependency
from tidelog.spark.workers import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Probe = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass
class FakeSpark:
    """A session whose only worker runs in this process.

    Attributes:
        claims: Version of tidelog that the worker reports, "" for none, None for the real version.
        fails: Text of the error that the worker's job raises; empty if the job succeeds.
    """

    claims: str | None = None
    fails: str = ""

    def range(self, _count: int, *, numPartitions: int) -> "FakeSpark":
        assert numPartitions == 1
        return self

    def mapInArrow(self, probe: Probe, schema: str) -> "FakeSpark":
        assert schema.count(",") == 2
        self.probe = probe
        return self

    def collect(self) -> list[Row]:
        if self.fails:
            raise PySparkRuntimeError(self.fails)
        one = pa.RecordBatch.from_pydict({"id": [0]})
        (found,) = [row for batch in self.probe(iter([one])) for row in batch.to_pylist()]
        if self.claims is not None:
            found["tidelog"] = self.claims
        return [Row(**found)]


def check(spark: FakeSpark) -> None:
    check_workers(cast("SparkSession", spark))


def test_equal_workers_pass_the_check() -> None:
    check(FakeSpark())


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ("", "which has no tidelog: before the session starts, set spark.pyspark.python"),
        ("0.0.1", r"tidelog 0\.0\.1, not "),
    ],
)
def test_workers_with_another_tidelog_or_none_are_an_error(claims: str, said: str) -> None:
    with pytest.raises(MissingDependency, match=said) as caught:
        check(FakeSpark(claims))
    assert "python" in str(caught.value)
    assert claims != tidelog.__version__


def test_workers_with_another_python_are_an_error() -> None:
    told = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than 3.11"
    with pytest.raises(MissingDependency, match=r"workers differs from this Python .*MISMATCH"):
        check(FakeSpark(fails=told))


def test_other_errors_are_sparks() -> None:
    with pytest.raises(PySparkRuntimeError, match="lost executor"):
        check(FakeSpark(fails="lost executor 3"))
