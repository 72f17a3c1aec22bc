"""What was changed while a broker ran and kept holds from a start's first opening on."""

import asyncio
from collections.abc import Mapping

import pytest
from tests.faults import SeededEnv, seeded_env

from tidelog.config import BrokerConfig
from tidelog.errors import CorruptFile
from tidelog.server.node import Node
from tidelog.server.server import open_node
from tidelog.storage import files
from tidelog.storage.cluster_file import ALL_BROKERS, CLUSTER_FILE, ClusterState, write_cluster
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

PATH = "/data"
DAY_MS = 86_400_000
KEPT = {
    "log.retention.ms": "-1",
    "log.segment.bytes": "20000000",
    "producer.id.expiration.ms": str(7 * DAY_MS),
}


def started(env: SeededEnv) -> Node:
    return open_node(PATH, BrokerConfig(), env=env)


def stopped(env: SeededEnv, *, kill: bool, kept: Mapping[str, str] = KEPT) -> None:
    """A broker with a backfilled record, whose settings were changed, is no more."""
    node = started(env)
    node.log_dir.create_topic("t")
    node.log_dir.log("t", 0).append([NewRecord(value=b"of 1970", timestamp=0)])
    write_cluster(env.files, PATH, ClusterState(settings={ALL_BROKERS: kept}))
    if kill:
        node.log_dir.abandon()
    else:
        node.close()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_backfill_survives_a_start_where_it_was_to_be_kept(kill: bool) -> None:
    env = seeded_env(1)
    stopped(env, kill=kill)

    node = started(env)

    log = node.partitions.get("t", 0).log
    assert log.apply_retention() == []
    assert [record.value for record in log.records()] == [b"of 1970"]
    assert node.log_dir.topic("t").config.retention_ms == -1
    node.close()


def test_recovery_itself_goes_by_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    env = seeded_env(1)
    stopped(env, kill=True)
    seen = list[tuple[int, int]]()
    opening = Log.open_writable

    def watched(context: object, options: object) -> Log:
        log = opening(context, options)  # type: ignore[arg-type]
        expiration_ms = log._options.producer_expiration_ms()
        seen.append((log.context.config.segment_bytes, expiration_ms))
        return log

    monkeypatch.setattr(Log, "open_writable", watched)
    started(env).close()

    assert seen == [(20_000_000, 7 * DAY_MS)]


def test_an_opening_behind_a_change_goes_by_it() -> None:
    env = seeded_env(1)

    async def story() -> None:
        node = started(env)
        assert node.log_dir.producer_expiration_ms == DAY_MS
        node.log_dir.create_topic("t")
        log = node.log_dir.log("t", 0)
        settings = {ALL_BROKERS: {"producer.id.expiration.ms": "5000"}}
        await node._heed(ClusterState(settings=settings))
        assert node.log_dir.producer_expiration_ms == 5000
        assert log._options.producer_expiration_ms() == 5000
        node.close()

    asyncio.run(story())


def test_what_can_not_be_read_stops_a_start_and_leaves_a_clean_directory() -> None:
    env = seeded_env(1)
    stopped(env, kill=True)
    files.write_atomically(env.files, f"{PATH}/{CLUSTER_FILE}", b"no JSON")

    with pytest.raises(CorruptFile):
        started(env)

    assert files.take_clean_shutdown(env.files, PATH)


def test_what_can_not_be_read_is_reported_where_no_broker_starts() -> None:
    env = seeded_env(1)
    stopped(env, kill=False)
    files.write_atomically(env.files, f"{PATH}/{CLUSTER_FILE}", b"no JSON")
    with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as log_dir:
        assert [line for line in log_dir.reports if CLUSTER_FILE in line]
        assert not any(log_dir.knows_age_limit(name) for name in log_dir.topics())
