"""Descriptions of settings: values, sources and synonyms."""

from tidelog.config import BROKER_CONFIGS, TOPIC_CONFIGS, BrokerConfig, TopicConfig
from tidelog.config.broker import DYNAMIC_CONFIGS
from tidelog.protocol.messages.configs import ConfigSource
from tidelog.server.admin.config_display import (
    TYPES,
    ConfigEntry,
    describe_broker,
    describe_group,
    describe_topic,
)

DEFAULT, TOPIC, STATIC = ConfigSource.DEFAULT, ConfigSource.TOPIC, ConfigSource.STATIC_BROKER


def topic_setting(name: str, given: dict[str, str], broker: dict[str, str]) -> ConfigEntry:
    """Return one setting of a topic."""
    config = TopicConfig.parse(given, broker=broker)[0]
    entries = {entry.name: entry for entry in describe_topic(given, config, broker)}
    return entries[name]


def layers(setting: ConfigEntry) -> list[tuple[str, str, ConfigSource]]:
    """Return the synonyms of a setting as tuples."""
    return [(layer.name, layer.value, layer.source) for layer in setting.synonyms]


def test_topic_wins_over_broker_and_default() -> None:
    broker = {"log.retention.ms": "9", "log.retention.minutes": "3"}
    found = topic_setting("retention.ms", {"retention.ms": "5"}, broker)
    assert (found.value, found.source) == ("5", TOPIC)
    assert layers(found) == [
        ("retention.ms", "5", TOPIC),
        ("log.retention.ms", "9", STATIC),
        ("log.retention.minutes", "3", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


def test_coarser_name_of_the_broker_sets_it() -> None:
    found = topic_setting("retention.ms", {}, {"log.retention.hours": "2"})
    assert (found.value, found.source) == ("7200000", STATIC)


def test_an_unset_topic_setting_has_its_default() -> None:
    assert layers(topic_setting("segment.bytes", {}, {})) == [
        ("log.segment.bytes", "1073741824", DEFAULT)
    ]
    # As in Kafka, an unset setting with several broker names has no synonyms.
    assert layers(topic_setting("segment.ms", {}, {})) == []
    assert layers(topic_setting("remote.storage.enable", {}, {})) == []
    assert topic_setting("tidelog.retention.clock", {}, {}).value == "record-capped"


def test_every_type_has_kafkas_number() -> None:
    keys = (*TOPIC_CONFIGS, *BROKER_CONFIGS)
    assert [key.name for key in keys if key.kind.type_name not in TYPES] == []


def test_settings_without_effect_show_the_given_value_or_kafkas_default() -> None:
    given = {"num.io.threads": "3", "broker.rack": "r1", "log.retention.hours": "2"}
    found = describe_broker(BrokerConfig.parse(given)[0], {"broker.id": "7"})
    by_name = {setting.name: setting for setting in found}
    assert layers(by_name["num.io.threads"]) == [
        ("num.io.threads", "3", STATIC),
        ("num.io.threads", "8", DEFAULT),
    ]
    assert layers(by_name["num.network.threads"]) == [("num.network.threads", "3", DEFAULT)]
    assert (by_name["broker.id"].value, by_name["broker.id"].source) == ("7", STATIC)
    assert layers(by_name["broker.rack"]) == [("broker.rack", "r1", STATIC)]
    assert (by_name["process.roles"].value, by_name["process.roles"].synonyms) == (None, ())
    assert by_name["transaction.state.log.replication.factor"].kind == TYPES["short"]
    assert by_name["log.retention.hours"].kind == TYPES["int"]


def test_a_given_value_that_equals_the_default_has_its_own_source() -> None:
    """As in Kafka, the source of a given value is not DEFAULT, even if the value is the default."""
    given = {"num.partitions": "1", "num.io.threads": "8"}
    found = describe_broker(BrokerConfig.parse(given)[0], {})
    by_name = {setting.name: setting for setting in found}
    for name, text in given.items():
        assert layers(by_name[name]) == [(name, text, STATIC), (name, text, DEFAULT)]
    said = {setting.name for setting in found if setting.source == STATIC}
    assert said == given.keys()


def test_a_group_setting_has_the_brokers_configured_value_as_its_default() -> None:
    name, behind = "consumer.session.timeout.ms", "group.consumer.session.timeout.ms"
    found = describe_group({}, BrokerConfig.parse({behind: "45000"})[0])
    (shown,) = (setting for setting in found if setting.name == name)
    assert layers(shown) == [(behind, "45000", STATIC), (behind, "45000", DEFAULT)]


def test_broker_shows_its_own_and_topics_defaults_each_once() -> None:
    config = BrokerConfig.parse({"num.partitions": "3", "log.retention.ms": "7"})[0]
    found = describe_broker(config, {"log.dirs": "/data"})
    by_name = {setting.name: setting for setting in found}
    assert len(by_name) == len(found)
    assert (by_name["num.partitions"].value, by_name["num.partitions"].source) == ("3", STATIC)
    assert layers(by_name["num.partitions"]) == [
        ("num.partitions", "3", STATIC),
        ("num.partitions", "1", DEFAULT),
    ]
    assert (by_name["log.retention.ms"].value, by_name["log.retention.ms"].source) == ("7", STATIC)
    assert by_name["log.retention.minutes"].value is None
    assert by_name["log.retention.hours"].value == "168"
    assert by_name["log.dirs"].value == "/data"
    assert by_name["tidelog.retention.clock"].value == "record-capped"
    changeable = {setting.name for setting in found if not setting.is_read_only}
    assert changeable == DYNAMIC_CONFIGS
    assert not changeable & {"num.partitions", "log.retention.hours", "listeners"}
