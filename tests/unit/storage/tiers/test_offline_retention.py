"""`tidelog tier` beside a stopped broker keeps all records that the broker's defaults keep."""

from collections.abc import Mapping

import pytest
from tests.unit.storage.tiers.tiered import EAGER, Tiered, values
from tests.worlds.directories.logs import PATH, TOPIC

from tidelog.storage.directory.broker_files import (
    ALL_BROKERS,
    ClusterState,
    stored_defaults,
    write_cluster,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

WITHOUT_AGE = {key: text for key, text in EAGER.items() if key != "retention.ms"}
KEEP_ALL = {"log.retention.ms": "-1"}
OFFLINE = LogDirOptions(writable=True)


def backfilled(given: Mapping[str, str]) -> Tiered:
    """Write records with times of 1970 while the defaults have no retention time; then close."""
    tiered = Tiered()
    broker = LogDirOptions(create=True, topic_defaults=KEEP_ALL)
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=broker)
    tiered.directory.create_topic(TOPIC, config=given)
    for number in range(30):
        value = b"%d" % number + b"." * 60
        tiered.log.append([NewRecord(key=b"k", value=value, timestamp=number)])
    tiered.directory.close()
    return tiered


def offline(tiered: Tiered) -> Tiered:
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=OFFLINE)
    return tiered


def test_a_topic_without_an_age_limit_keeps_all_records_and_releases_local_copies() -> None:
    tiered = offline(backfilled(WITHOUT_AGE))

    report = tiered.move()

    assert report.keeps_all_ages
    assert report.deleted == []
    assert values(tiered.log) == list(range(30))
    assert report.copied == report.released == 5


def test_an_age_of_the_topics_own_counts() -> None:
    tiered = offline(backfilled(WITHOUT_AGE))
    tiered.directory.alter_config(TOPIC, {"retention.ms": "1000"})

    report = tiered.move()

    assert not report.keeps_all_ages
    assert report.deleted_count == 6  # includes the active segment


def test_a_size_of_the_topics_own_counts_without_an_age() -> None:
    tiered = offline(backfilled({**WITHOUT_AGE, "retention.bytes": "1000"}))

    report = tiered.move()

    assert report.keeps_all_ages
    assert report.deleted_count > 0
    assert tiered.log.log_start_offset < 30


@pytest.mark.parametrize(("retention_ms", "is_kept"), [("-1", True), ("1000", False)])
@pytest.mark.parametrize("who", [ALL_BROKERS, "7"])
def test_stored_settings_of_the_broker_apply(retention_ms: str, is_kept: bool, who: str) -> None:
    tiered = backfilled(WITHOUT_AGE)
    kept = ClusterState(settings={who: {"log.retention.ms": retention_ms}})
    write_cluster(tiered.disk, PATH, kept)
    offline(tiered)

    report = tiered.move()

    assert not report.keeps_all_ages
    assert (report.deleted == []) is is_kept


def test_settings_of_several_broker_ids_are_not_used() -> None:
    own = {"0": {"log.retention.ms": "1"}, "1": {"log.segment.bytes": "1000000"}}
    assert stored_defaults(ClusterState(settings=own)) == {}
    assert stored_defaults(ClusterState(settings={"0": own["0"]})) == {"log.retention.ms": "1"}
    noted = ClusterState(settings=own, topic_defaults={"log.retention.ms": "3"})
    assert stored_defaults(noted) == {"log.retention.ms": "3"}
    mixed = {ALL_BROKERS: {"max.connections": "5", "log.retention.ms": "2"}}
    assert stored_defaults(ClusterState(settings=mixed)) == {"log.retention.ms": "2"}
