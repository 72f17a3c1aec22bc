"""Real Kafka and our broker respond equally to changes of a running broker's settings.

Texts about values are not compared, because the brokers word them differently. If a setting was set
under a second name that has another unit, the setting's synonyms are not compared either.
"""

from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import until_equal

import tidelog
from tidelog.config.unused_keys import WITHOUT_EFFECT
from tidelog.protocol.messages import (
    ALTER_CONFIGS,
    CREATE_TOPICS,
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
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

if TYPE_CHECKING:
    from tidelog.server.embedded import Broker as Ours

pytestmark = pytest.mark.kafka

TOPIC, BROKER, LOGGER, CLIENT_METRICS = 2, 4, 8, 16
INVALID_REQUEST = 42
LEAST = "min.insync.replicas"
SET, DELETE, APPEND, SUBTRACT = range(4)
OWN, ALL = "1", ""
Change = tuple[str, int, str | None]
# Settings that are independent of the other settings of these tests.
PER_IP, LEVEL, EXPIRATION = (
    "max.connections.per.ip",
    "compression.lz4.level",
    "producer.id.expiration.ms",
)
# Settings without effect in our broker.
THREADS, RELOGIN = "num.replica.fetchers", "sasl.kerberos.min.time.before.relogin"
KEYS = (PER_IP, LEVEL, EXPIRATION, THREADS, RELOGIN, "max.connections")

# Our broker, with the node id of the tests' Kafka.
ours = broker_fixture({"node.id": OWN}, is_temporary=True, scope="module")


def alter(client: RawClient, who: str, *changes: Change, trial: bool = False) -> tuple[int, str]:
    """Change settings; return the error code, and the error text unless it is about a value."""
    resource = IncrementalAlterConfigsResource(
        resource_type=BROKER,
        resource_name=who,
        configs=[
            IncrementallyAlteredConfig(name=name, config_operation=operation, value=value)
            for name, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=trial)
    (told,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    text = told.error_message or ""
    is_about_value = "Invalid value" in text or "must be" in text
    return told.error_code, "" if is_about_value else text


def replace(client: RawClient, who: str, **texts: str) -> object:
    """Set these settings, and reset all other settings, by one AlterConfigs request."""
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name=who,
        configs=[
            ConfigValue(name=name.replace("_", "."), value=text) for name, text in texts.items()
        ],
    )
    (told,) = client.ask(ALTER_CONFIGS, 2, AlterConfigsRequest(resources=[resource])).responses
    return told.error_code, told.error_message


def shown(client: RawClient, who: str) -> object:
    """Return each setting with its value, its source, whether it is read-only, and synonyms."""
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=who, configuration_keys=list(KEYS)
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (told,) = client.ask(DESCRIBE_CONFIGS, 4, request).results
    return told.error_code, sorted(
        (
            found.name,
            found.value,
            found.config_source,
            found.read_only,
            [(layer.name, layer.value, layer.source) for layer in found.synonyms],
        )
        for found in told.configs
    )


@pytest.mark.parametrize(
    ("who", "changes"),
    [
        (OWN, [(PER_IP, SET, "5000")]),
        (ALL, [(PER_IP, SET, "5000")]),
        (OWN, [("node.id", SET, "5")]),
        (ALL, [("node.id", SET, "5")]),
        (OWN, [("node.id", DELETE, None)]),
        (OWN, [("process.roles", SET, "broker")]),
        (OWN, [(PER_IP, DELETE, None)]),
        (OWN, [(PER_IP, SET, None)]),
        (OWN, [(PER_IP, SET, "5"), (PER_IP, DELETE, None)]),
        (OWN, [(PER_IP, APPEND, "5")]),
        (OWN, [(PER_IP, SUBTRACT, "5")]),
        (OWN, [(PER_IP, SET, "x")]),
        (ALL, [(PER_IP, SET, "-1")]),
        (OWN, [(THREADS, SET, "2")]),
        (ALL, [(THREADS, SET, "2")]),
        (OWN, [(THREADS, SET, "many")]),
        (OWN, [(RELOGIN, SET, "58000")]),
        (ALL, [(RELOGIN, SET, "58000")]),
        (OWN, [("log.segment.bytes", SET, "5")]),
        (OWN, [("compression.type", SET, "nope")]),
        (OWN, [("log.roll.ms", SET, "")]),
        (OWN, [("log.retention.hours", SET, "5")]),
        (OWN, [(PER_IP, SET, "5"), ("num.partitions", SET, "5")]),
        ("2", [(PER_IP, SET, "5")]),
        ("x", [(PER_IP, SET, "5")]),
        (OWN, []),
    ],
    ids=repr,
)
def test_each_change_has_the_same_result(
    clients: tuple[RawClient, RawClient], who: str, changes: list[Change]
) -> None:
    kafka, own = (alter(client, who, *changes, trial=True) for client in clients)
    assert own == kafka


def test_threads_may_become_any_number(clients: tuple[RawClient, RawClient]) -> None:
    change: Change = (THREADS, SET, "9")
    codes = [alter(client, OWN, change, trial=True)[0] for client in clients]
    assert codes == [INVALID_REQUEST, 0]


def test_changed_settings_are_described_equally(clients: tuple[RawClient, RawClient]) -> None:
    kafka, own = clients

    def agree() -> None:
        for who in (OWN, ALL):
            until_equal(shown(own, who), partial(shown, kafka, who))

    steps: list[tuple[str, Change]] = [
        (ALL, (PER_IP, SET, "5000")),
        (OWN, (PER_IP, SET, "6000")),
        (OWN, (LEVEL, SET, "5")),
        (OWN, (THREADS, SET, "2")),
        (OWN, (RELOGIN, SET, "58000")),
        (ALL, (EXPIRATION, SET, "86400001")),
        (ALL, (PER_IP, DELETE, None)),
    ]
    try:
        for who, change in steps:
            assert alter(own, who, change) == alter(kafka, who, change)
            agree()
        assert replace(own, OWN, max_connections="100000") == replace(
            kafka, OWN, max_connections="100000"
        )
        agree()
    finally:
        for client in clients:
            replace(client, OWN)
            alter(client, ALL, (PER_IP, DELETE, None), (EXPIRATION, DELETE, None))
    agree()


def described(client: RawClient, kind: int, name: str) -> dict[str, DescribedConfig]:
    """Return all settings of one resource, by name."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (told,) = client.ask(DESCRIBE_CONFIGS, 4, request).results
    assert told.error_code == 0
    return {found.name: found for found in told.configs}


def defaults(found: DescribedConfig) -> list[tuple[str, str | None]]:
    """Return name and value of those synonyms of a setting whose source is the default."""
    return [
        (layer.name, layer.value)
        for layer in found.synonyms
        if layer.source == ConfigSource.DEFAULT
    ]


def test_settings_have_kafkas_types_and_those_without_effect_its_defaults(
    clients: tuple[RawClient, RawClient],
) -> None:
    kafka, own = (described(client, BROKER, OWN) for client in clients)
    types = {name: found.config_type for name, found in own.items() if name in kafka}
    assert types == {name: kafka[name].config_type for name in types}
    assert own.keys() >= WITHOUT_EFFECT.keys()
    # Our list of group protocols differs from Kafka's, because it has only the protocols that we
    # serve.
    alike = WITHOUT_EFFECT.keys() - {"group.coordinator.rebalance.protocols"}
    assert {name: defaults(own[name]) for name in alike} == {
        name: defaults(kafka[name]) for name in alike
    }
    assert (own["broker.id"].value, own["broker.rack"].value) == (
        kafka["broker.id"].value,
        kafka["broker.rack"].value,
    )


def test_a_setting_set_to_its_default_is_described_as_set(kafka_broker: Broker) -> None:
    """Both brokers are started with `num.partitions=1`, which is also the default."""
    with (
        tidelog.broker(settings={"node.id": OWN, "num.partitions": "1"}) as broker,
        RawClient(broker.bootstrap_servers) as own,
        RawClient(kafka_broker.bootstrap) as kafka,
    ):
        found = [described(client, BROKER, OWN)["num.partitions"] for client in (kafka, own)]
    layers = [[(one.name, one.value, one.source) for one in each.synonyms] for each in found]
    assert layers[0] == layers[1]
    assert len(layers[1]) == 2
    assert [each.config_source for each in found] == [ConfigSource.STATIC_BROKER] * 2


def test_settings_of_a_new_topic_have_kafkas_order(
    clients: tuple[RawClient, RawClient],
) -> None:
    topic = CreatableTopic(name="in-order", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)
    told = [client.ask(CREATE_TOPICS, 7, request).topics[0].configs or [] for client in clients]
    kafka, own = ([found.name for found in each] for each in told)
    assert kafka
    assert [name for name in own if name in kafka] == [name for name in kafka if name in own]


def test_only_kafka_sets_min_insync_replicas_in_a_new_cluster(
    clients: tuple[RawClient, RawClient], kafka_broker: Broker, ours: "Ours"
) -> None:
    """A feature of Kafka sets the value. tidelog lacks the feature; its default is the same."""
    kafka_broker.create_topic("in-step")
    ours.call(lambda node: node.log_dir.create_topic("in-step", partitions=1))
    kafka, own = (described(client, TOPIC, "in-step")[LEAST] for client in clients)
    assert (kafka.value, own.value) == ("1", "1")
    assert kafka.config_source == ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert own.config_source == ConfigSource.DEFAULT


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [(LOGGER, OWN, ("root", SET, "INFO")), (CLIENT_METRICS, "m", ("interval.ms", SET, "60000"))],
)
def test_loggers_and_client_metrics_are_kafkas_alone(
    clients: tuple[RawClient, RawClient], kind: int, name: str, change: Change
) -> None:
    """Our broker refuses settings of loggers and client metrics, and changes nothing."""
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[asked])
    kafka, own = (client.ask(DESCRIBE_CONFIGS, 4, request).results[0] for client in clients)
    assert (kafka.error_code, own.error_code) == (0, INVALID_REQUEST)
    assert kafka.configs
    assert not own.configs
    setting, operation, value = change
    configs = [IncrementallyAlteredConfig(name=setting, config_operation=operation, value=value)]
    resource = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    trial = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    codes = [
        client.ask(INCREMENTAL_ALTER_CONFIGS, 1, trial).responses[0].error_code
        for client in clients
    ]
    assert codes == [0, INVALID_REQUEST]
