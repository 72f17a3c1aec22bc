"""The broker logs useful lines at info level, but no line for each request."""

import logging
from pathlib import Path

import pytest
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until_so

import tidelog
from tidelog.protocol.messages import DELETE_TOPICS, FIND_COORDINATOR, JOIN_GROUP, METADATA
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest, JoinGroupRequest
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.protocol.messages.topics import DeleteTopicsRequest
from tidelog.server.net import connection


def lines(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_a_start_logs_settings_listeners_and_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog")
    given = {**SETTINGS, "max.connections.per.ip": "7", "ssl.key.password": "secret"}
    with tidelog.broker(str(tmp_path), settings=given) as broker:
        told = lines(caplog)
        assert "max.connections.per.ip=7" in told
        assert "offsets.topic.num.partitions=3" in told
        assert "secret" not in told
        assert "num.network.threads" not in told  # the default
        assert f"on {broker.bootstrap_servers}" in told
        assert "opened in" in told
        assert "topics: 0" in told
        with RawClient(broker.bootstrap_servers) as client:
            client.auto_create("t")
    assert "stopping: syncing and closing the partitions" in lines(caplog)
    assert "stopped after" in lines(caplog)
    caplog.clear()
    with tidelog.broker(str(tmp_path), settings=SETTINGS):
        assert "topics: 1" in lines(caplog)
        assert "recovered" not in lines(caplog)


def test_topics_and_generations_are_logged_and_requests_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        tidelog.broker(str(tmp_path), settings=SETTINGS) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        caplog.set_level(logging.INFO, "tidelog")
        client.auto_create("orders")
        until_so(lambda: "topic orders created, partitions: 1" in lines(caplog))

        def joins() -> bool:
            protocol = GroupProtocol(name="range", metadata=b"")
            asked = JoinGroupRequest(
                group_id="readers",
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                protocol_type="consumer",
                protocols=[protocol],
            )
            client.ask(FIND_COORDINATOR, 0, FindCoordinatorRequest(key="readers"))
            return not client.ask(JOIN_GROUP, 3, asked).error_code

        until_so(joins)
        assert "group readers: generation 1, members: 1" in lines(caplog)
        client.ask(DELETE_TOPICS, 3, DeleteTopicsRequest(topic_names=["orders"], timeout_ms=5000))
        assert "topic orders deleted" in lines(caplog)
        caplog.clear()
        for _ in range(100):
            client.ask(METADATA, 9, MetadataRequest(topics=[]))
        assert not caplog.records


def test_a_slow_request_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SLOW_S", 0.0)
    caplog.set_level(logging.INFO, "tidelog")
    with (
        tidelog.broker(str(tmp_path), settings=SETTINGS) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.ask(METADATA, 9, MetadataRequest(topics=[]))
        until_so(lambda: "slow request from 127.0.0.1: Metadata, " in lines(caplog))
    assert "Metadata" in lines(caplog)


def test_a_refused_connection_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {**SETTINGS, "max.connections.per.ip": "1"}
    with (
        tidelog.broker(str(tmp_path), settings=given) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.ask(METADATA, 9, MetadataRequest(topics=[]))
        with RawClient(broker.bootstrap_servers):
            line = "refused a connection from 127.0.0.1: open connections of this address 1 of 1"
            until_so(lambda: line in lines(caplog))
