"""A running mirror follows new topics, partitions and settings, from and to a broker."""

from pathlib import Path

import pytest
from tests.worlds.directories.topics import grow, make
from tests.worlds.kafka.either import AnyBroker
from tests.worlds.waiting import until_equal

from tidelog.directory import Directory
from tidelog.env import os_env
from tidelog.errors import InvalidPartitions, UnknownTopic
from tidelog.jobs.mirror.options import Settings
from tidelog.jobs.mirror.places import (
    Growth,
    find_targets,
    first_map,
    first_offsets,
    read_sources,
    with_topics,
)
from tidelog.jobs.mirror.plan import plan_mirror
from tidelog.jobs.offset_map import CopiedRange, OffsetMap, SourcePartition
from tidelog.remote.cluster import connect
from tidelog.remote.topics import add_partitions

pytestmark = pytest.mark.kafka
NAME = "growth.{topic}"


@pytest.mark.parametrize("to_broker", [True, False])
def test_new_topics_and_partitions_are_created_at_the_target(
    either_broker: AnyBroker, tmp_path: Path, to_broker: bool
) -> None:
    """The mirror creates new topics and partitions at a broker, and in a directory."""
    env, place = os_env(), f"kafka://{either_broker.bootstrap}"
    first, late = f"growing-{to_broker}.a", f"growing-{to_broker}.b"
    if to_broker:
        source, target = make(f"{tmp_path}/a", first, 1), place
    else:
        either_broker.create_topic(first, 1)
        source, target = place, f"{tmp_path}/b"
        Directory.open(target, writable=True).close()
    asked = plan_mirror(
        [source], (), target, pattern=f"growing-{to_broker}\\..*", name=NAME, checkpoint="m"
    )
    plan = with_topics(asked, env)
    assert [pair.topic for pair in plan.pairs] == [first]
    sources = read_sources(plan, env)
    targets, _ = find_targets(plan, sources, env, create=True, force=False, is_new_from=0)
    found = first_map(plan, sources, targets, first_offsets(plan, sources))
    growth = Growth(plan=plan, env=env, create=True, settings=Settings.SYNC)
    found, _ = growth.look(found)
    if to_broker:
        grow(source, first, 3)
        make(source, late, 2, segment_bytes="1048576")
    else:
        with connect(either_broker.bootstrap) as cluster:
            add_partitions(cluster, first, 3)
        either_broker.create_topic(late, 2, **{"segment.bytes": "1048576"})
    found, notes = growth.look(found)
    assert [note.split(" ")[0] for note in notes[:2]] == [first, late]
    assert found.partition_counts == {f"growth.{first}": 3, f"growth.{late}": 2}
    assert found.copied[SourcePartition(0, 2)] == CopiedRange(0, 0)
    assert growth.look(found)[0] is found
    if not to_broker:
        with Directory.open(target) as directory:
            assert directory.topic(f"growth.{first}").partitions == 3
            assert directory.topic(f"growth.{late}").given["segment.bytes"] == "1048576"
        return
    check_settings(either_broker, growth, found, source, late)
    check_refused(either_broker, f"growth.{first}")


def check_settings(
    either_broker: AnyBroker, growth: Growth, found: OffsetMap, source: str, topic: str
) -> None:
    """Assert that a copy at a broker has the source's settings, also after the source changed."""
    with connect(either_broker.bootstrap) as cluster:
        assert cluster.topic_settings(f"growth.{topic}")["segment.bytes"] == "1048576"
        with Directory.open(source, writable=True) as directory:
            directory.alter_config(topic, {"segment.bytes": "2097152"})
        growth._compared_ms = None  # so that settings are compared now, not in a minute
        assert "segment.bytes=1048576 (source: 2097152)" in growth.look(found)[1][-1]
        # A broker shows a change a moment after its controller has made it.
        until_equal("2097152", lambda: cluster.topic_settings(f"growth.{topic}")["segment.bytes"])


def check_refused(either_broker: AnyBroker, topic: str) -> None:
    """Assert that our own errors are raised if partitions can't be added."""
    with connect(either_broker.bootstrap) as cluster:
        assert cluster.topics()[topic] == 3
        with pytest.raises(InvalidPartitions):
            add_partitions(cluster, topic, 2)
        with pytest.raises(UnknownTopic):
            add_partitions(cluster, "growth.nowhere", 2)
