"""Real Kafka and our broker respond equally to changes of single groups' settings."""

from functools import partial
from typing import Final

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import SETTINGS
from tests.worlds.waiting import until_equal

from tidelog.config.group import ASSIGNMENT, HEARTBEAT, SESSION
from tidelog.protocol.messages import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from tidelog.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
    ListConfigResourcesRequest,
)
from tidelog.protocol.messages.shared import ConfigValue

pytestmark = pytest.mark.kafka

GROUP: Final = 32
SET, DELETE, APPEND = range(3)
# Timeout in ms, so long that no member expires: Kafka's upper bound in these tests.
LONG: Final = SETTINGS["group.consumer.max.session.timeout.ms"]
Change = tuple[str, int, str | None]

# Our broker, with the group settings of the tests' Kafka.
ours = broker_fixture(
    {"node.id": "1"}
    | {name: text for name, text in SETTINGS.items() if name.startswith("group.consumer.")},
    is_temporary=True,
    scope="module",
)


def alter(client: RawClient, group: str, *changes: Change, trial: bool = False) -> object:
    """Change a group's settings; return the error code and the comparable part of the text."""
    configs = [
        IncrementallyAlteredConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP, resource_name=group, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=trial)
    (told,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    text = told.error_message or ""
    return told.error_code, text.partition(":")[0] if "Invalid value" in text else text


def replace(client: RawClient, group: str, *given: tuple[str, str]) -> object:
    """Set these settings, and reset all other settings, by one AlterConfigs request."""
    configs = [ConfigValue(name=name, value=text) for name, text in given]
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    (told,) = client.ask(ALTER_CONFIGS, 2, AlterConfigsRequest(resources=[resource])).responses
    return told.error_code, told.error_message


def shown(client: RawClient, group: str) -> object:
    """Return value, source and synonyms of the settings that both brokers have."""
    names = [SESSION, HEARTBEAT, ASSIGNMENT]
    resource = DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=names
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (told,) = client.ask(DESCRIBE_CONFIGS, 4, request).results
    return (
        told.error_code,
        told.error_message,
        sorted(
            (
                found.name,
                found.value,
                found.config_source,
                found.config_type,
                found.read_only,
                [(layer.name, layer.value, layer.source) for layer in found.synonyms],
            )
            for found in told.configs
        ),
    )


def listed(client: RawClient) -> list[str]:
    """Return the groups that have settings, without groups of other tests."""
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    told = client.ask(LIST_CONFIG_RESOURCES, 1, request)
    names = [found.resource_name for found in told.config_resources]
    return sorted(name for name in names if name.startswith("settings-"))


@pytest.mark.parametrize(
    ("group", "changes"),
    [
        ("g", [(SESSION, SET, LONG)]),
        ("g", [(SESSION, SET, "40000")]),
        ("g", [(SESSION, SET, "999999999")]),
        ("g", [(SESSION, SET, "x")]),
        ("g", [(SESSION, SET, "-5")]),
        ("g", [(SESSION, SET, None)]),
        ("g", [(SESSION, APPEND, "50000")]),
        ("g", [(SESSION, DELETE, None)]),
        ("g", [(SESSION, SET, LONG), (SESSION, DELETE, None)]),
        ("g", [(HEARTBEAT, SET, "4000")]),
        ("g", [(HEARTBEAT, SET, "16000")]),
        ("g", [(ASSIGNMENT, SET, "15001")]),
        ("g", [(SESSION, SET, "50000"), (HEARTBEAT, SET, "x")]),
        ("g", [("nope", SET, "5")]),
        ("g", [("nope", DELETE, None)]),
        ("g", [("cleanup.policy", APPEND, "compact")]),
        ("g", []),
        ("", [(SESSION, SET, LONG)]),
    ],
    ids=repr,
)
def test_each_change_has_the_same_result(
    clients: tuple[RawClient, RawClient], group: str, changes: list[Change]
) -> None:
    kafka, own = (alter(client, group, *changes, trial=True) for client in clients)
    assert own == kafka


def test_changed_settings_are_described_and_listed(clients: tuple[RawClient, RawClient]) -> None:
    kafka, own = clients

    def agree() -> None:
        for group in ("settings-a", "settings-b", ""):
            until_equal(shown(own, group), partial(shown, kafka, group))
        until_equal(listed(own), partial(listed, kafka))

    agree()
    for client in clients:
        alter(client, "settings-a", (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"))
        alter(client, "settings-b", (ASSIGNMENT, SET, "77"))
    assert listed(own) == ["settings-a", "settings-b"]
    agree()
    for client in clients:
        alter(client, "settings-a", (SESSION, DELETE, None))
    agree()
    assert replace(own, "settings-b", (SESSION, "51000")) == replace(
        kafka, "settings-b", (SESSION, "51000")
    )
    agree()
    for client in clients:
        alter(client, "settings-a", (HEARTBEAT, DELETE, None))
        alter(client, "settings-b", (SESSION, DELETE, None))
    assert listed(own) == []
    agree()


def test_settings_of_other_protocols_are_unknown(clients: tuple[RawClient, RawClient]) -> None:
    kafka, own = (alter(c, "g", ("streams.session.timeout.ms", SET, "50000")) for c in clients)
    assert kafka == (0, "")
    assert own == (40, "Unknown group config name: streams.session.timeout.ms")
