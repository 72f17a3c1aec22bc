"""Topics that a write or a job creates if missing are checked first and created later."""

from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import tidelog
from tidelog.env import os_env
from tidelog.errors import ConfigError, DirectoryLocked, InvalidRequest, InvalidTopic
from tidelog.jobs.place_topics import NewTarget, drop_empty_topic, find_or_plan, new_target
from tidelog.spark.places import Place
from tidelog.spark.sink import make_stream_writer, make_writer
from tidelog.spark.source import TidelogSource

ROWS = StructType([StructField("value", BinaryType())])


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "log")
    with tidelog.open(path, writable=True) as directory:
        directory.create_topic("there", partitions=2, config={"retention.ms": "5000"})
    return path


def write(root: str, topic: str, **options: str) -> None:
    given = {"path": root, "topic": topic, "lockWaitMs": "0", **options}
    make_writer(given, ROWS, overwrite=False)


def test_a_missing_topic_is_made_with_its_settings(root: str) -> None:
    write(root, "new", createPartitions="3", createConfig='{"retention.ms": 7}')
    make_stream_writer({"path": root, "topic": "more", "createPartitions": "1"}, ROWS)
    with tidelog.open(root) as directory:
        info = directory.topic("new")
        assert (info.partitions, info.given) == (3, {"retention.ms": "7"})
        assert directory.topic("more").partitions == 1


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_stream_appends_in_every_output_mode(root: str, *, is_complete: bool) -> None:
    """Spark requests a writer that overwrites if the output mode is `complete`."""
    given = {"path": root, "topic": "there"}
    writer = TidelogSource(given).streamWriter(ROWS, overwrite=is_complete)
    assert type(writer) is type(make_stream_writer(given, ROWS))


def test_settings_of_a_new_topic_may_have_units(root: str) -> None:
    config = '{"retention.ms": "7d", "segment.bytes": "1MiB"}'
    write(root, "new", createPartitions="1", createConfig=config)
    with tidelog.open(root) as directory:
        given = directory.topic("new").given
        assert given == {"retention.ms": "604800000", "segment.bytes": "1048576"}


def test_an_existing_topic_is_not_changed(root: str) -> None:
    write(root, "there", createPartitions="9", createConfig='{"retention.ms": "1"}')
    with tidelog.open(root) as directory:
        assert directory.topic("there").partitions == 2


@pytest.mark.parametrize(
    ("topic", "options", "error"),
    [
        ("new", {"createPartitions": "1", "createConfig": '{"retention.ms": "no"}'}, ConfigError),
        ("new", {"createPartitions": "1", "createConfig": '{"x": [1]}'}, InvalidRequest),
        ("new", {"createPartitions": "0"}, InvalidRequest),
        ("new", {"createConfig": "{}"}, InvalidRequest),
        ("n/w", {"createPartitions": "1"}, InvalidTopic),
    ],
)
def test_a_refused_topic_is_not_created(
    root: str, topic: str, options: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        write(root, topic, **options)
    with tidelog.open(root) as directory:
        assert list(directory.topics()) == ["there"]


def test_rows_that_name_their_topics_need_topics_that_exist(root: str) -> None:
    with pytest.raises(InvalidRequest, match="needs the option topic"):
        make_writer({"path": root, "createPartitions": "1"}, ROWS, overwrite=False)


def test_only_the_lock_holder_creates_topics(root: str) -> None:
    with tidelog.open(root, writable=True), pytest.raises(DirectoryLocked):
        write(root, "new", createPartitions="1")


def test_a_job_plans_a_missing_topic_without_making_anything(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "nowhere"))
    new = NewTarget(partitions=3, config={"retention.ms": "7"})
    target, is_new = find_or_plan(place, "new", new)
    assert (target.partitions, target.config.retention_ms, is_new) == (3, 7, True)
    with pytest.raises(ConfigError):
        find_or_plan(place, "new", NewTarget(partitions=3, config={"retention.ms": "no"}))
    assert not os_env().files.exists(place.address)


@pytest.mark.parametrize(
    ("partitions", "config", "told"),
    [
        (3, {}, "there exists with 2 partitions, not 3"),
        (2, {"retention.ms": "7"}, "there exists with retention.ms=5000, not 7"),
        (2, {"cleanup.policy": "compact"}, "cleanup.policy=delete, not compact"),
    ],
)
def test_an_existing_topic_with_other_settings_is_refused(
    root: str, partitions: int, config: dict[str, str], told: str
) -> None:
    """If a topic exists with other settings than requested, the write is refused."""
    with pytest.raises(InvalidRequest, match=told):
        find_or_plan(Place(root), "there", NewTarget(partitions=partitions, config=config))


def test_an_existing_topic_as_requested_is_used(root: str) -> None:
    new = NewTarget(partitions=2, config={"retention.ms": "5000"})
    target, is_new = find_or_plan(Place(root), "there", new)
    assert (target.partitions, is_new) == (2, False)


def test_settings_without_a_number_of_partitions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="give its number of partitions"):
        new_target(None, {"retention.ms": "7"})


def test_a_topic_created_for_a_failed_load_is_deleted_if_it_is_empty(root: str) -> None:
    with tidelog.open(root, writable=True) as directory:
        directory.create_topic("full")
        directory.append("full", [tidelog.NewRecord(value=b"v")])
    place, env = Place(root), os_env()
    assert not drop_empty_topic(place, "full", env)
    assert drop_empty_topic(place, "there", env)
    assert not drop_empty_topic(place, "nowhere", env)
    with tidelog.open(root) as directory:
        assert list(directory.topics()) == ["full"]


def test_a_missing_topic_is_planned_with_the_defaults_of_its_directory(tmp_path: Path) -> None:
    """A broker's defaults apply to a topic that a job creates in the broker's directory."""
    path = str(tmp_path / "log")
    with tidelog.broker(path, settings={"log.retention.ms": "60000"}):
        pass
    place = Place(path)
    target, is_new = find_or_plan(place, "new", NewTarget(partitions=1))
    assert (target.config.retention_ms, is_new) == (60_000, True)
    own = NewTarget(partitions=1, config={"retention.ms": "7"})
    assert find_or_plan(place, "new", own)[0].config.retention_ms == 7
