"""Settings of the broker: their table, and which settings are accepted, noted or refused."""

import pytest

from tidelog.config import BROKER_CONFIGS, TOPIC_CONFIGS, BrokerConfig, Durability, NoteKind
from tidelog.config.unused_keys import FORMER, NOT_SERVED, WITHOUT_EFFECT
from tidelog.errors import ConfigError, ConfigErrors


def test_no_name_is_in_two_tables() -> None:
    names = [key.name for key in BROKER_CONFIGS]
    topics = {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}
    assert len(names) == len(set(names))
    assert not set(names) & WITHOUT_EFFECT.keys()
    assert not set(names) & topics
    assert not set(names) & (WITHOUT_EFFECT.keys() | topics)


def test_values_and_topic_defaults() -> None:
    config, notes = BrokerConfig.parse(
        {"node.id": " 7 ", "tidelog.durability": "fsync", "log.retention.hours": "2"}
    )
    assert config.node_id == 7
    assert config.tidelog_durability is Durability.FSYNC
    assert config.topic_defaults == {"log.retention.hours": "2"}
    assert [note.kind for note in notes] == [NoteKind.RENAMED]
    assert config.text("node.id") == "7"


def test_a_setting_without_effect_is_noted() -> None:
    _, notes = BrokerConfig.parse({"process.roles": "broker,controller"})
    assert [(note.given, note.kind) for note in notes] == [("process.roles", NoteKind.NO_EFFECT)]


def test_a_setting_without_effect_is_kept_if_its_type_is_right() -> None:
    config, _ = BrokerConfig.parse({"num.io.threads": " 3 ", "controller.quorum.voters": "1@a:1"})
    assert config.without_effect == {"num.io.threads": "3", "controller.quorum.voters": "1@a:1"}
    with pytest.raises(ConfigError, match=r"num\.io\.threads"):
        BrokerConfig.parse({"num.io.threads": "many"})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num.partition": "3"}, "did you mean num.partitions?"),
        ({"log.retention.hour": "3"}, "did you mean log.retention.hours?"),
        ({"num.partitions": "0"}, "must be a whole number >= 1"),
        ({"default.replication.factor": "3"}, "from 1 to 1"),
        ({"tidelog.durability": "disk"}, "one of page-cache, fsync"),
        ({"log.roll.hours": "soon"}, "log.roll.hours"),
        ({"cleanup.policies": "x"}, "unknown broker setting"),
        ({"ssl.cipher.suites": "x"}, "is a Kafka setting that this broker does not support"),
    ],
)
def test_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given)
    assert text in str(caught.value)


def test_all_errors_are_reported() -> None:
    given = {"num.partitions": "two", "node.id": "3", "foo": "1", "log.retention.hours": "x"}
    with pytest.raises(ConfigErrors) as caught:
        BrokerConfig.parse(given)
    assert [error.key for error in caught.value.errors] == [
        "num.partitions",
        "foo",
        "log.retention.hours",
    ]
    assert caught.value.key == "num.partitions"
    assert str(caught.value) == "; ".join(map(str, caught.value.errors))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metric.reporters", "a.B"),
        ("replica.lag.time.max.ms", "10000"),
        ("security.inter.broker.protocol", "SSL"),
        ("zookeeper.connect", "localhost:2181"),
        ("broker.id.generation.enable", "true"),
    ],
)
def test_more_of_kafkas_settings_are_taken_with_a_note(name: str, text: str) -> None:
    config, notes = BrokerConfig.parse({name: text})
    assert config.without_effect == {name: text}
    assert [str(note) for note in notes] == [f"{name}: has no effect in tidelog"]


@pytest.mark.parametrize("name", ["controller.listener.names", "control.plane.listener.name"])
def test_ignored_listeners_of_a_controller_are_noted(name: str) -> None:
    _, notes = BrokerConfig.parse({name: "CONTROLLER"})
    assert [str(note) for note in notes] == [f"{name}: its listeners are ignored"]


def test_a_password_without_effect_is_not_kept() -> None:
    config, _ = BrokerConfig.parse({"ssl.keystore.password": "secret"})
    assert "secret" not in repr(config)
    assert not WITHOUT_EFFECT.keys() & (NOT_SERVED | FORMER)


def test_kafkas_older_name_of_the_directory() -> None:
    config, notes = BrokerConfig.parse({"log.dir": "a"})
    assert (config.log_dir, notes) == ("a", [])
