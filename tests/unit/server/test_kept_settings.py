"""After a restart, changed settings have an effect even while the broker opens partitions."""

import asyncio
import errno
from collections.abc import Mapping

import pytest
from tests.faults import DamageFileSystem, SeededEnv, seeded_env

from tidelog.config import BrokerConfig
from tidelog.env import File
from tidelog.errors import CorruptFile
from tidelog.record.builder import build_batch
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.storage import files, text_files
from tidelog.storage.directory.broker_files import (
    ALL_BROKERS,
    CLUSTER_FILE,
    ClusterState,
    read_cluster,
    write_cluster,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
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
    """Write a record of 1970, change the broker's stored settings, and stop or kill the broker."""
    node = started(env)
    node.log_dir.create_topic("t")
    node.log_dir.log("t", 0).append([NewRecord(value=b"of 1970", timestamp=0)])
    write_cluster(env.files, PATH, ClusterState(settings={ALL_BROKERS: kept}))
    if kill:
        node.log_dir.abandon()
    else:
        node.close()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_backfill_survives_a_restart_if_the_setting_keeps_it(kill: bool) -> None:
    env = seeded_env(1)
    stopped(env, kill=kill)

    node = started(env)

    log = node.partitions.get("t", 0).log
    assert log.apply_retention() == []
    assert [record.value for record in log.records()] == [b"of 1970"]
    assert node.log_dir.topic("t").config.retention_ms == -1
    node.close()


@pytest.mark.parametrize("kept", [KEPT, {}], ids=["kept", "not changed"])
def test_recovery_uses_the_stored_settings(kept: Mapping[str, str]) -> None:
    """The stored setting keeps inactive producers for seven days, the default only for one."""
    env = seeded_env(1)
    node = started(env)
    node.log_dir.create_topic("t")
    sent = [NewRecord(value=b"v", timestamp=env.clock.now_ms())]
    batch = build_batch(sent, producer_id=7, producer_epoch=0, base_sequence=0)
    node.partitions.get("t", 0).append(batch)
    if kept:
        write_cluster(env.files, PATH, ClusterState(settings={ALL_BROKERS: kept}))
    node.log_dir.abandon()
    env.clock.advance(2 * DAY_MS)

    node = started(env)

    producers = node.partitions.get("t", 0).log.producer_states()
    assert (producers.find(7) is not None) == bool(kept)
    node.close()


def test_a_change_has_effect_from_then_on() -> None:
    env = seeded_env(1)

    async def story() -> None:
        node = started(env)
        assert node.log_dir.open_partitions.producer_expiration_ms == DAY_MS
        settings = {ALL_BROKERS: {"producer.id.expiration.ms": "5000"}}
        await node.cluster.change(lambda state: state._replace(settings=settings))
        assert node.log_dir.open_partitions.producer_expiration_ms == 5000
        node.close()

    asyncio.run(story())


def test_an_unreadable_settings_file_stops_the_start_and_leaves_a_clean_directory() -> None:
    env = seeded_env(1)
    stopped(env, kill=True)
    files.write_atomically(env.files, f"{PATH}/{CLUSTER_FILE}", b"no JSON")

    with pytest.raises(CorruptFile):
        started(env)

    assert text_files.take_clean_shutdown(env.files, PATH)


def test_an_unreadable_settings_file_is_reported_without_a_broker() -> None:
    env = seeded_env(1)
    stopped(env, kill=False)
    files.write_atomically(env.files, f"{PATH}/{CLUSTER_FILE}", b"no JSON")
    with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as log_dir:
        assert [line for line in log_dir.reports if CLUSTER_FILE in line]
        assert not any(log_dir.knows_age_limit(name) for name in log_dir.topics())


def offline_defaults(env: SeededEnv) -> tuple[Mapping[str, str], int]:
    """Return, without a broker, the directory's topic defaults and `retention.ms` of topic `t`."""
    with LogDir.open(PATH, env=env, options=LogDirOptions(writable=True)) as log_dir:
        defaults = read_cluster(env.files, PATH).topic_defaults or {}
        said = any(name.startswith("log.retention.") for name in defaults)
        assert log_dir.knows_age_limit("t") == said
        return defaults, log_dir.topic("t").config.retention_ms


def test_readers_know_the_defaults_that_a_broker_had() -> None:
    env = seeded_env(1)
    started(env).close()
    given = {"log.retention.ms": "1000", "log.cleanup.policy": "compact,delete"}
    node = open_node(PATH, BrokerConfig.parse(given)[0], env=env)
    node.log_dir.create_topic("t")
    node.close()

    with LogDir.open(PATH, env=env) as reader:
        config = reader.topic("t").config
        assert (config.retention_ms, config.is_compacted) == (1000, True)
        assert reader.knows_age_limit("t")


def test_start_settings_of_a_stopped_broker_apply_offline() -> None:
    env = seeded_env(1)
    started(env).close()
    assert not env.files.exists(f"{PATH}/{CLUSTER_FILE}")  # written only if settings were changed
    given = {"log.retention.ms": "-1", "tidelog.retention.clock": "append"}
    node = open_node(PATH, BrokerConfig.parse(given)[0], env=env)
    node.log_dir.create_topic("t")
    node.close()

    assert offline_defaults(env) == (given, -1)

    started(env).close()
    assert offline_defaults(env) == ({}, 7 * DAY_MS)


def test_settings_of_the_last_broker_id_apply_after_a_change_of_the_id() -> None:
    env = seeded_env(1)
    node = started(env)
    node.log_dir.create_topic("t")
    node.close()
    settings = {"0": {"log.retention.ms": "1"}, ALL_BROKERS: {"log.segment.bytes": "20000000"}}
    write_cluster(env.files, PATH, ClusterState(settings=settings))

    open_node(PATH, BrokerConfig(node_id=5), env=env).close()

    assert offline_defaults(env) == ({"log.segment.bytes": "20000000"}, 7 * DAY_MS)


def test_a_change_while_the_broker_runs_is_noted_with_it() -> None:
    env = seeded_env(1)

    async def story() -> None:
        config, _ = BrokerConfig.parse({"log.retention.hours": "1"})
        node = open_node(PATH, config, env=env)
        node.log_dir.create_topic("t")
        changed = ClusterState(settings={"0": {"log.retention.ms": "9"}})
        await node.cluster.change(lambda _: changed)
        assert node.cluster.state == changed
        node.close()

    asyncio.run(story())

    want = {"log.retention.hours": "1", "log.retention.ms": "9"}
    assert offline_defaults(env) == (want, 9)


class FullDisk(DamageFileSystem):
    """Disk without room for the file of settings while `is_full`."""

    is_full = False

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if create and self.is_full and CLUSTER_FILE in path:
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().open(path, write=write, create=create)


def test_a_full_disk_keeps_no_broker_from_starting() -> None:
    disk = FullDisk()
    env = seeded_env(1, files=disk)
    node = started(env)
    node.log_dir.create_topic("t")
    node.close()

    disk.is_full = True
    config, _ = BrokerConfig.parse({"log.retention.ms": "-1"})
    open_node(PATH, config, env=env).close()
    disk.is_full = False

    assert offline_defaults(env) == ({}, 7 * DAY_MS)
