"""A bootstrap's checks and messages that need no Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tidelog.directory import Directory
from tidelog.env import os_env
from tidelog.errors import InvalidRequest
from tidelog.jobs.bootstrap.job import Bootstrap, written_before
from tidelog.spark.directory_sink import numbered_commit_id
from tidelog.spark.places import Place
from tidelog.storage import commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"to": Place("one:1", is_broker=True)},
            "a table can only be loaded into a local directory",
        ),
        ({"to": Place("s3://bucket/logs")}, "a table can only be loaded into a local directory"),
        ({"order": "size"}, "order is 'size'; give one of time, key, none"),
        ({"order": "time"}, "order 'time' needs a column for the time"),
        ({"order": "key"}, "order 'key' needs a column for the key"),
        ({"job_id": ""}, "a job id must have 1 to 200 characters"),
        ({"sink": {"Path": "b"}}, "sink: option Path would change the place to which"),
        ({"sink": {"txnVersion": "3"}}, "option txnVersion is set by the job"),
        ({"config": {"retention.ms": "-1"}}, "settings apply only to a topic that the job creates"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Bootstrap("t", **({"to": Place(str(tmp_path))} | options))  # type: ignore[arg-type] # options by name


def test_a_completed_job_removes_the_files_of_its_killed_drivers(tmp_path: Path) -> None:
    path = str(tmp_path)
    with Directory.open(path, writable=True) as directory:
        directory.create_topic("t")
    commits.note(
        os_env().files, path, {commits.topic_writer("app/bootstrap-x", "t"): commits.Mark(0, 5)}
    )
    mine = tmp_path / "t-0" / f"{numbered_commit_id('bootstrap-x', 0, 't')}-1-aa-0.log.staging"
    other = tmp_path / "t-0" / f"{numbered_commit_id('bootstrap-y', 0, 't')}-1-aa-0.log.staging"
    for file in (mine, other):
        file.write_bytes(b"")
    outcome = Bootstrap("t", to=Place(path), job_id="x").run(cast("DataFrame", None))
    assert outcome.was_done
    assert outcome.partitions == ()
    assert not mine.exists()
    assert other.exists()


def test_a_job_counts_each_topic_by_itself(tmp_path: Path) -> None:
    path, env = str(tmp_path), os_env()
    mark = commits.Mark(0, 5, "", (("t", 0, 0, 9, 5),))
    commits.note(env.files, path, {commits.topic_writer("app/bootstrap-x", "t"): mark})
    assert written_before(path, "t", "app/bootstrap-x", env=env) is not None
    assert written_before(path, "u", "app/bootstrap-x", env=env) is None
