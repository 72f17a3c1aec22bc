"""Changes of a running broker's settings apply at once, to topics too, and survive restarts."""

from pathlib import Path

import pytest
from tests.worlds.brokers.running import start_with
from tests.worlds.clients.raw import RawClient

from tidelog.error_codes import ErrorCode
from tidelog.errors import ConfigError
from tidelog.protocol.messages import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)
from tidelog.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
)
from tidelog.protocol.messages.shared import ConfigValue
from tidelog.record.builder import build_batch
from tidelog.server.embedded import Broker
from tidelog.storage.directory.broker_files import CLUSTER_FILE
from tidelog.types import NewRecord

BROKER, TOPIC = 4, 2
SET, DELETE, APPEND, SUBTRACT = range(4)
ALL, OWN = "", "0"
DYNAMIC, DYNAMIC_DEFAULT = ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER
STATIC, DEFAULT = ConfigSource.STATIC_BROKER, ConfigSource.DEFAULT
TOO_LARGE = 10
Change = tuple[str, int, str | None]


def alter(
    broker: Broker, who: str, *changes: Change, trial: bool = False, kind: int = BROKER
) -> tuple[int, str]:
    """Change settings of the broker, of all brokers, or of a topic; return error code and text."""
    resource = IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=who,
        configs=[
            IncrementallyAlteredConfig(name=name, config_operation=operation, value=value)
            for name, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=trial)
    with RawClient(broker.bootstrap_servers) as asking:
        (told,) = asking.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return told.error_code, told.error_message or ""


def described(broker: Broker, name: str, key: str, kind: int = BROKER) -> DescribedConfig:
    """Return one setting from DescribeConfigs."""
    (found,) = all_described(broker, name, key, kind=kind)
    return found


def all_described(
    broker: Broker, name: str, *keys: str, kind: int = BROKER
) -> list[DescribedConfig]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    with RawClient(broker.bootstrap_servers) as asking:
        (told,) = asking.ask(DESCRIBE_CONFIGS, 4, request).results
    assert told.error_code == 0
    return told.configs


def layers(found: DescribedConfig) -> list[tuple[str, str | None, int]]:
    return [(layer.name, layer.value, layer.source) for layer in found.synonyms]


def test_settings_of_a_broker_precede_those_of_all_brokers_and_of_the_start(data: str) -> None:
    name = "max.connections"
    with start_with(data, max_connections="700") as broker:
        assert alter(broker, ALL, (name, SET, "800")) == (0, "")
        found = described(broker, OWN, name)
        assert (found.value, found.config_source) == ("800", DYNAMIC_DEFAULT)
        assert not found.read_only
        assert alter(broker, OWN, (name, SET, "900")) == (0, "")
        expected = [(name, "900", DYNAMIC), (name, "800", DYNAMIC_DEFAULT), (name, "700", STATIC)]
        assert layers(described(broker, OWN, name))[:3] == expected
        assert [(one.name, one.value) for one in all_described(broker, ALL)] == [(name, "800")]
        assert broker.call(lambda node: node.config.max_connections) == 900
    with start_with(data, max_connections="700") as broker:
        assert layers(described(broker, OWN, name))[:3] == expected
        assert broker.call(lambda node: node.config.max_connections) == 900
        assert alter(broker, OWN, (name, DELETE, None)) == (0, "")
        assert broker.call(lambda node: node.config.max_connections) == 800
        assert alter(broker, ALL, (name, DELETE, None)) == (0, "")
        assert broker.call(lambda node: node.config.max_connections) == 700
        assert all_described(broker, ALL) == []


def test_listeners_chosen_at_the_start_are_described(data: str) -> None:
    with start_with(data) as broker:
        found = described(broker, OWN, "listeners")
        assert found.value == f"PLAINTEXT://{broker.bootstrap_servers}"
        assert found.config_source == STATIC
        assert found.value == described(broker, OWN, "advertised.listeners").value


def codes(broker: Broker, topic: str) -> int:
    """Append a batch of some 2,000 bytes; return the error code."""
    with RawClient(broker.bootstrap_servers) as client:
        batch = bytes(build_batch([NewRecord(value=b"v" * 2000)]))
        return client.produce(topic, batch).error_code


def test_defaults_of_topics_apply_at_once_and_after_a_restart(data: str) -> None:
    with start_with(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
        broker.call(
            lambda node: node.log_dir.create_topic(
                "own", partitions=1, config={"max.message.bytes": "100000"}
            )
        )
        assert (codes(broker, "t"), codes(broker, "own")) == (0, 0)
        assert alter(broker, ALL, ("message.max.bytes", SET, "1000")) == (0, "")
        assert (codes(broker, "t"), codes(broker, "own")) == (TOO_LARGE, 0)
        broker.call(lambda node: node.log_dir.create_topic("later", partitions=1))
        assert codes(broker, "later") == TOO_LARGE
        found = described(broker, "t", "max.message.bytes", TOPIC)
        assert (found.value, found.config_source) == ("1000", DYNAMIC_DEFAULT)
    with start_with(data) as broker:
        assert (codes(broker, "t"), codes(broker, "own")) == (TOO_LARGE, 0)
        assert alter(broker, ALL, ("message.max.bytes", DELETE, None)) == (0, "")
        assert codes(broker, "t") == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("1", "expected 0"),
        ("2147483647", "expected 0"),
        ("12345678901", "must be an integer"),
        ("none", "must be an integer"),
    ],
)
def test_a_name_that_is_not_of_this_broker_is_refused(data: str, name: str, words: str) -> None:
    with start_with(data) as broker:
        code, text = alter(broker, name, ("max.connections", SET, "800"))
    assert code == ErrorCode.INVALID_REQUEST
    assert words in text
    assert name in text


def test_lists_grow_and_shrink(data: str) -> None:
    name = "log.cleanup.policy"
    with start_with(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
        alter(broker, OWN, (name, APPEND, "compact"))
        assert described(broker, OWN, name).value == "delete,compact"
        assert broker.call(lambda node: node.log_dir.topic("t").config.is_compacted)
        alter(broker, OWN, (name, SUBTRACT, "delete"))
        assert described(broker, OWN, name).value == "compact"


def test_alter_configs_resets_settings_that_it_does_not_name(data: str) -> None:
    with start_with(data) as broker, RawClient(broker.bootstrap_servers) as asking:
        alter(broker, OWN, ("max.connections", SET, "900"), ("log.retention.ms", SET, "7"))
        kept = AlterConfigsResource(
            resource_type=BROKER,
            resource_name=OWN,
            configs=[ConfigValue(name="max.connections", value="901")],
        )
        asking.ask(ALTER_CONFIGS, 2, AlterConfigsRequest(resources=[kept]))
        assert described(broker, OWN, "max.connections").value == "901"
        assert described(broker, OWN, "log.retention.ms").config_source == DEFAULT


def test_settings_without_effect_are_stored_and_described(data: str) -> None:
    """The broker accepts Kafka's settings that have no effect in it, because tools may set them."""
    threads, relogin = "background.threads", "sasl.kerberos.min.time.before.relogin"
    with start_with(data, background_threads="8") as broker:
        changes = [(threads, SET, "9"), (relogin, SET, "58000")]
        assert alter(broker, OWN, *changes) == (0, "")
        assert alter(broker, ALL, (threads, SET, "7")) == (0, "")
        assert alter(broker, ALL, (relogin, SET, "58000"))[0] == 42
    with start_with(data, background_threads="8") as broker:
        assert [layer[1:] for layer in layers(described(broker, OWN, threads))] == [
            ("9", DYNAMIC),
            ("7", DYNAMIC_DEFAULT),
            ("8", STATIC),
            ("10", DEFAULT),
        ]
        found = described(broker, OWN, relogin)
        assert (found.value, found.config_source, found.read_only) == ("58000", DYNAMIC, False)
        assert alter(broker, OWN, (threads, DELETE, None), (relogin, DELETE, None)) == (0, "")
        assert alter(broker, ALL, (threads, DELETE, None)) == (0, "")
        assert described(broker, OWN, threads).value == "8"


@pytest.mark.parametrize("who", [ALL, OWN])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("node.id", SET, "5"), 42),
        (("log.retention.hours", SET, "5"), 42),
        (("log.cleaner.threads", SET, "2"), 42),
        (("no.such.setting", SET, "5"), 42),
        (("max.connections", SET, "no number"), 42),
        (("background.threads", SET, "no number"), 42),
        (("max.connections", SET, "-1"), 42),
        (("max.connections", SET, None), 42),
        (("max.connections", APPEND, "5"), 40),
        (("log.segment.bytes", SET, "5"), 42),
        (("log.cleaner.dedupe.buffer.size", SET, "5"), 42),
    ],
)
def test_a_refused_change_changes_nothing(data: str, who: str, change: Change, code: int) -> None:
    with start_with(data) as broker:
        before = broker.call(lambda node: node.config)
        told, text = alter(broker, who, ("producer.id.expiration.ms", SET, "5000"), change)
        assert (told, bool(text)) == (code, True)
        assert broker.call(lambda node: node.config) is before
    assert not Path(data, CLUSTER_FILE).exists()


def test_a_trial_changes_nothing(data: str) -> None:
    with start_with(data) as broker:
        assert alter(broker, OWN, ("max.connections", SET, "5"), trial=True) == (0, "")
        assert alter(broker, OWN, ("max.connections", SET, "0"), trial=True)[0] == 42
        assert described(broker, OWN, "max.connections").config_source == DEFAULT


def test_connections_are_bounded_from_then_on(data: str) -> None:
    with start_with(data) as broker, RawClient(broker.bootstrap_servers) as first:
        alter(broker, OWN, ("max.connections.per.ip", SET, "1"))
        with RawClient(broker.bootstrap_servers) as second, pytest.raises(ConnectionError):
            second.producer_id()
        assert first.producer_id() >= 0


def test_a_failing_disk_leaves_all_settings_unchanged(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "no room")

    with start_with(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
        with monkeypatch.context() as patch:
            patch.setattr("tidelog.server.admin.metadata_log.write_cluster", fail)
            code, _ = alter(broker, OWN, ("message.max.bytes", SET, "1000"))
        assert code == 56
        assert codes(broker, "t") == 0
        assert described(broker, OWN, "message.max.bytes").config_source == DEFAULT


def test_a_stored_setting_that_is_invalid_stops_the_start(data: str) -> None:
    Path(data).mkdir()
    text = b'{"version": 1, "quotas": [], "settings": {"0": {"node.id": "5"}}}'
    Path(data, CLUSTER_FILE).write_bytes(text)
    with pytest.raises(ConfigError, match=r"node\.id"):
        start_with(data)
    Path(data, CLUSTER_FILE).unlink()
    start_with(data).close()


def test_another_brokers_settings_are_not_ours(data: str) -> None:
    Path(data).mkdir()
    text = b'{"version": 1, "quotas": [], "settings": {"5": {"max.connections": "9"}}}'
    Path(data, CLUSTER_FILE).write_bytes(text)
    with start_with(data) as broker:
        assert described(broker, OWN, "max.connections").config_source == DEFAULT


THROTTLED = "leader.replication.throttled.replicas"
INVALID_CONFIG = 40
# Two list values, each a little longer than half of the protocol's maximum string length.
HALVES = [",".join(f"{half}{n:04}:0" for n in range(2100)) for half in (1, 2)]


def test_a_list_does_not_grow_beyond_the_length_of_a_response(data: str) -> None:
    with start_with(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t"))
        assert alter(broker, "t", (THROTTLED, APPEND, HALVES[0]), kind=TOPIC) == (0, "")
        before = described(broker, "t", THROTTLED, TOPIC).value
        code, text = alter(broker, "t", (THROTTLED, APPEND, HALVES[1]), kind=TOPIC)
        assert code == INVALID_CONFIG
        assert len(text) < 2000
        assert described(broker, "t", THROTTLED, TOPIC).value == before
    with start_with(data) as broker:
        assert described(broker, "t", THROTTLED, TOPIC).value == before


def test_a_refused_long_value_gets_a_response(data: str) -> None:
    long = "x" * 32_760
    with start_with(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("t"))
        for name in ("cleanup.policy", "retention.ms", long):
            code, text = alter(broker, "t", (name, SET, long), kind=TOPIC)
            assert code == INVALID_CONFIG
            assert text
        assert alter(broker, ALL, (long, SET, "1"))[0]
        assert alter(broker, long, ("max.connections", SET, "1"))[0]


def test_a_value_that_is_too_long_is_described_as_null(data: str) -> None:
    users = ";".join(f"User:{n:07}" for n in range(4000))
    with start_with(data, super_users=users) as broker:
        assert described(broker, OWN, "super.users").value is None
        assert described(broker, OWN, "max.connections").value is not None
