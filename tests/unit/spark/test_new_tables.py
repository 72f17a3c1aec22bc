"""Batch writes that would fill a new table of Spark's catalog are refused in their tasks."""

import pytest

from tidelog.errors import InvalidRequest
from tidelog.spark import sink_options
from tidelog.spark.sink_options import refuse_new_table

EXECUTION, ROOT = "spark.sql.execution.id", "spark.sql.execution.root.id"


class FakeTask:
    """Stand-in for Spark's TaskContext, with the local properties of a task."""

    def __init__(self, properties: dict[str, str] | None) -> None:
        self.properties = properties

    def get(self) -> "FakeTask | None":
        return None if self.properties is None else self

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        assert self.properties is not None
        return self.properties.get(key)


def refuse(monkeypatch: pytest.MonkeyPatch, properties: dict[str, str] | None) -> None:
    monkeypatch.setattr(sink_options, "TaskContext", FakeTask(properties))
    refuse_new_table()


@pytest.mark.parametrize(
    "properties",
    [
        None,  # not in a task
        {},
        {EXECUTION: "4"},
        {EXECUTION: "4", ROOT: "4"},  # `save`
        {EXECUTION: "5", ROOT: "4", sink_options.BATCH_ID: "0"},  # `save` in `foreachBatch`
    ],
)
def test_a_write_to_a_topic_is_accepted(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str] | None
) -> None:
    refuse(monkeypatch, properties)


def test_a_write_to_a_new_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="Nothing was written"):
        refuse(monkeypatch, {EXECUTION: "5", ROOT: "4"})
