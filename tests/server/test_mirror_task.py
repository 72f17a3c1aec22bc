"""A mirror's task that writes to brokers stores a map row for every record, also in a retry."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.directories.topics import append, make

import tidelog
from tidelog.env import os_env
from tidelog.jobs.mirror.places import (
    change_settings,
    find_targets,
    read_configs,
    read_sources,
)
from tidelog.jobs.mirror.plan import plan_mirror
from tidelog.jobs.mirror.work import MirrorBrokerTask, Report, Routes, read_reports
from tidelog.jobs.offset_map import Partitioning
from tidelog.jobs.target_check import TargetLoses
from tidelog.server.embedded import Broker
from tidelog.spark.places import Place
from tidelog.spark.sink_options import SinkOptions
from tidelog.types import NewRecord

TASK_T0_MS = 1_700_000_000_000
WEEK_MS = "604800000"  # Kafka's default retention, which a mirror does not set at the target
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(first: int, count: int) -> pa.RecordBatch:
    """Return records of partition 0 of the source's topic, as in a mirror's query."""
    offsets = range(first, first + count)
    times = [(TASK_T0_MS + n) * 1_000 for n in offsets]
    return pa.RecordBatch.from_pydict(
        {
            "source": pa.array([0] * count, pa.int32()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array([b"%d" % n for n in offsets], pa.binary()),
            "headers": pa.array([None] * count, HEADERS),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def test_a_task_reports_the_records_that_it_sent(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic("all", partitions=1))
    options = SinkOptions(bootstrap=broker.bootstrap_servers, exactly_once=True)
    routes = Routes(
        pairs=((0, "orders", "all"),), counts=(("all", 1),), partitioning=Partitioning.KEPT
    )
    task = MirrorBrokerTask(options=options, routes=routes, mirror_id="m", batch_id=3)

    def sent() -> Report:
        (found,) = task([rows(100, 20), rows(120, 10)])
        (report,) = read_reports([str(text) for text in found.column("report")])
        return report

    first = sent()
    (row,) = first.noted.rows
    assert (row.source_start, row.source_end) == (100, 130)
    assert (row.target_start, row.target_end) == (0, 30)
    assert first.noted.copied == {(0, 0): (100, 130)}
    assert first.noted.records == 30
    again = sent()
    assert (first.was_done, again.was_done) == (False, True)
    assert again.noted == first.noted
    with RawClient(broker.bootstrap_servers) as client:
        *values, _marker = [record.value for record in client.read_all("all")]
    assert values == [b"%d" % n for n in range(100, 130)]


def test_topics_that_a_refused_mirror_created_are_deleted(tmp_path: Path) -> None:
    """To learn a broker's defaults, a mirror creates topics; if it is refused, it deletes them."""
    source = make(f"{tmp_path}/a", "old", retention_ms=WEEK_MS)
    make(source, "young", retention_ms=WEEK_MS)
    env, settings = os_env(), {**SETTINGS, "log.retention.ms": "60000"}
    now_ms = env.clock.now_ms()
    records = [NewRecord(value=b"of an hour ago", timestamp=now_ms - 3_600_000)]
    append(source, "old", 0, records, now_ms=now_ms)
    with tidelog.broker(str(tmp_path / "b"), settings=settings) as broker:
        target = f"kafka://{broker.bootstrap_servers}"
        plan = plan_mirror([source], {"young": "a-young", "old": "b-old"}, target, checkpoint="m")
        with pytest.raises(TargetLoses) as refused:
            find_targets(
                plan, read_sources(plan, env), env, create=True, force=False, is_new_from=0
            )
        with tidelog.connect(broker.bootstrap_servers) as there:
            assert not [name for name in there.topics() if not name.startswith("__")]
    notes = "\n".join(refused.value.__notes__)
    for topic in ("a-young", "b-old"):
        assert (
            f"topic {topic} had been created at {target} for this write and was deleted again"
            in notes
        )


@pytest.mark.parametrize("by", ["cluster", "directory"])
def test_settings_of_a_target_are_changed_and_reset(
    broker: Broker, tmp_path: Path, by: str
) -> None:
    place = Place(address=str(tmp_path / "target"))
    if by == "cluster":
        place = Place(address=broker.bootstrap_servers, is_broker=True)
        broker.call(
            lambda node: node.log_dir.create_topic(
                "t", partitions=1, config={"cleanup.policy": "compact"}
            )
        )
    else:
        make(place.address, "t", cleanup_policy="compact")
    changes = {"retention.ms": "5", "cleanup.policy": None}
    change_settings(place, "t", changes, os_env())
    config = read_configs(place, ["t"], os_env())["t"]
    assert (config.retention_ms, config.cleanup_policy) == (5, ("delete",))
