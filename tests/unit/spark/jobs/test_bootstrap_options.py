"""What a bootstrap can't be asked for, said before Spark is needed."""

from pathlib import Path

import pytest

from tidelog.errors import InvalidRequest
from tidelog.spark.jobs.bootstrap import Bootstrap, BootstrapOptions
from tidelog.spark.jobs.record_columns import RecordColumns
from tidelog.spark.places import Place

NOTHING = RecordColumns()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"to": Place("one:1", is_broker=True)}, "segments are attached to a directory"),
        ({"to": Place("s3://bucket/logs")}, "segments are attached to a directory"),
        ({"order": "size"}, "order 'size': time, key, none"),
        ({"order": "time"}, "order 'time' needs a column for the time"),
        ({"order": "key"}, "order 'key' needs a column for the key"),
        ({"job_id": ""}, "a job's id has 1 to 200 characters"),
        ({"config": {"retention.ms": "-1"}}, "settings are for a topic that is made"),
    ],
)
def test_what_can_not_be(tmp_path: Path, options: dict[str, object], told: str) -> None:
    given = {"topic": "t", "to": Place(str(tmp_path)), "columns": NOTHING} | options
    with pytest.raises(InvalidRequest, match=told):
        Bootstrap(BootstrapOptions(**given))  # type: ignore[arg-type]
