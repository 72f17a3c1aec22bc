"""Parts that Spark processes in rounds: their rows, and the reports to a listener."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self, cast

import pyarrow as pa
import pytest
from tests.worlds.waiting import until_so

from tidelog.spark import parts
from tidelog.spark.parts import run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Reports:
    """Listener that stores all reports of progress."""

    heard: list[tuple[int, int]] = field(default_factory=list)

    def note(self, text: str) -> None: ...

    def at(self, done: int, planned: int) -> None:
        self.heard.append((done, planned))


Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(slots=True)
class Session:
    """Session in which one task of a round ends and is reported before the other tasks end."""

    reports: Reports
    numbers: range = range(0)
    mapper: Mapper | None = None

    @property
    def sparkContext(self) -> SimpleNamespace:  # noqa: N802 - Spark's name
        stage = SimpleNamespace(numCompletedTasks=1)
        return SimpleNamespace(
            statusTracker=lambda: SimpleNamespace(
                getActiveStageIds=lambda: [7], getStageInfo=lambda _number: stage
            )
        )

    def range(self, start: int, end: int, _step: int, _count: int) -> Self:
        self.numbers = range(start, end)
        return self

    def mapInArrow(self, mapper: Mapper, _schema: str) -> Self:
        self.mapper = mapper
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        count = len(self.reports.heard)
        until_so(lambda: len(self.reports.heard) > count, "a report of the round's first part")
        assert self.mapper is not None
        batches = [pa.record_batch({"id": [number]}) for number in reversed(self.numbers)]
        return pa.Table.from_batches(self.mapper(iter(batches)))


def test_finished_parts_of_all_rounds_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS_AT_ONCE", 2)
    reports = Reports()
    session = cast("SparkSession", Session(reports))
    rows = run_parts(session, "abc", lambda part: (part * 2,), "text string", listener=reports)
    assert [row["text"] for row in rows] == ["aa", "bb", "cc"]
    assert list(dict.fromkeys(reports.heard)) == [(1, 3), (2, 3), (3, 3)]
