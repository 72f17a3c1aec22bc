"""Settings of single groups: they reach members, survive restarts, and respect bounds."""

from pathlib import Path

import pytest
from tests.worlds.brokers.running import start_with
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until

from tidelog.config.group import HEARTBEAT, SESSION
from tidelog.errors import ConfigError
from tidelog.protocol.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
)
from tidelog.protocol.messages.modern_groups import ConsumerGroupHeartbeatRequest
from tidelog.server.api import configs
from tidelog.server.embedded import Broker
from tidelog.storage.directory.broker_files import CLUSTER_FILE

GROUP = 32
INVALID_CONFIG = 40
# Error codes while the offsets topic is being created or loaded.
LOADING = (14, 15, 16)
SET, DELETE = range(2)


def answered(
    broker: Broker, group: str, name: str, operation: int, value: str | None
) -> tuple[int, str | None]:
    """Change one setting of a group; return the error code and message."""
    change = IncrementallyAlteredConfig(name=name, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP, resource_name=group, configs=[change]
    )
    with RawClient(broker.bootstrap_servers) as asking:
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (response,) = asking.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return response.error_code, response.error_message


def alter(broker: Broker, group: str, name: str, operation: int, value: str | None) -> int:
    """Change one setting of a group; return the error code."""
    return answered(broker, group, name, operation, value)[0]


def heartbeat_interval_ms(broker: Broker, group: str) -> int:
    """Return the heartbeat interval in the response to a joining member."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    with RawClient(broker.bootstrap_servers) as asking:
        asking.ask(FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[group]))
        told = until(
            lambda: asking.ask(CONSUMER_GROUP_HEARTBEAT, 1, request),
            lambda told: told.error_code not in LOADING,
        )
    assert told.error_code == 0, told.error_message
    return told.heartbeat_interval_ms


def test_members_get_group_settings_also_after_a_restart(data: str) -> None:
    with start_with(data) as broker:
        assert alter(broker, "own", HEARTBEAT, SET, "9000") == 0
        assert alter(broker, "own", SESSION, SET, "50000") == 0
        assert alter(broker, "back", HEARTBEAT, SET, "9000") == 0
        assert alter(broker, "back", HEARTBEAT, DELETE, None) == 0
        assert heartbeat_interval_ms(broker, "own") == 9000
        assert heartbeat_interval_ms(broker, "back") == 5000
    with start_with(data) as broker:
        assert heartbeat_interval_ms(broker, "own") == 9000
    with start_with(data, group_consumer_max_heartbeat_interval_ms="7000") as broker:
        assert heartbeat_interval_ms(broker, "own") == 7000


def test_values_outside_the_brokers_bounds_are_refused(data: str) -> None:
    least, most = (f"group.consumer.{end}.heartbeat.interval.ms" for end in ("min", "max"))
    refusals = {
        "2999": f"{HEARTBEAT} must be greater than or equal to {least}",
        "9001": f"{HEARTBEAT} must be less than or equal to {most}",
    }
    given = {least.replace(".", "_"): "3000", most.replace(".", "_"): "9000"}
    with start_with(data, **given) as broker:
        for value in ("3000", "9000"):
            assert answered(broker, "own", HEARTBEAT, SET, value) == (0, None)
        for value, text in refusals.items():
            assert answered(broker, "own", HEARTBEAT, SET, value) == (INVALID_CONFIG, text)
        assert heartbeat_interval_ms(broker, "own") == 9000


def test_a_trial_changes_no_setting(data: str) -> None:
    change = IncrementallyAlteredConfig(name=HEARTBEAT, config_operation=SET, value="9000")
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP, resource_name="own", configs=[change]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    with start_with(data) as broker:
        with RawClient(broker.bootstrap_servers) as asking:
            (response,) = asking.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        assert response.error_code == 0
        assert heartbeat_interval_ms(broker, "own") == 5000


def test_groups_with_settings_are_bounded(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "GROUPS_MAX", 2)
    with start_with(data) as broker:
        assert [alter(broker, name, HEARTBEAT, SET, "9000") for name in "abc"] == [0, 0, 44]
        assert alter(broker, "b", HEARTBEAT, SET, "8000") == 0
        assert alter(broker, "b" * 250, HEARTBEAT, DELETE, None) == 0
        assert alter(broker, "a", HEARTBEAT, DELETE, None) == 0
        assert alter(broker, "c" * 250, HEARTBEAT, SET, "9000") == 44
        assert alter(broker, "c" * 249, HEARTBEAT, SET, "9000") == 0


def test_an_impossible_stored_group_setting_stops_the_start(data: str) -> None:
    with start_with(data) as broker:
        alter(broker, "g", HEARTBEAT, SET, "9000")
    path = Path(data) / CLUSTER_FILE
    path.write_text(path.read_text().replace("9000", "often"))
    with pytest.raises(ConfigError, match=HEARTBEAT), start_with(data):
        pass
