"""Limits of connections, in total and per address, and the cost of a failed authentication."""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.worlds.brokers.logins import (
    is_closed,
    place,
    plain,
    settings_in,
    shake,
)
from tests.worlds.clients.raw import RawClient
from tests.worlds.clocks import AheadClock
from tests.worlds.waiting import PATIENCE_S, Patience, until_so

import tidelog
from tidelog.config import BrokerConfig
from tidelog.env import os_env
from tidelog.errors import ConfigError
from tidelog.protocol.messages import INCREMENTAL_ALTER_CONFIGS, METADATA, SASL_AUTHENTICATE
from tidelog.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
)
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.server.embedded import Broker

OVERRIDES: Final = "max.connections.per.ip.overrides"


def stays(broker: Broker) -> RawClient | None:
    """Return a new connection; None if the broker closed it at once."""
    client = RawClient(broker.bootstrap_servers)
    try:
        client.ask(METADATA, 9, MetadataRequest(topics=[]))
    except ConnectionError:
        client.close()
        return None
    return client


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"max.connections": "2"}, 2),
        ({"max.connections.per.ip": "3"}, 3),
        ({"max.connections.per.ip": "0"}, 0),
        ({"max.connections.per.ip": "1", OVERRIDES: "127.0.0.1:3"}, 3),
        ({"max.connections.per.ip": "9", OVERRIDES: "10.0.0.1:9, 127.0.0.1:1"}, 1),
        ({"max.connections.per.ip": "2", OVERRIDES: "10.0.0.1:9"}, 2),
        ({"max.connections": "1", OVERRIDES: "127.0.0.1:3"}, 1),
    ],
)
def test_so_many_may_be_connected(settings: dict[str, str], count: int) -> None:
    with tidelog.broker(settings=settings) as running:
        found = [stays(running) for _ in range(count + 2)]
        let_in = [client for client in found if client is not None]
        assert len(let_in) == count
        assert running.call(lambda node: node.metrics.connections_refused) == 2
        if let_in:
            # When a client disconnects, another one can connect.
            let_in.pop().close()
            patience = Patience()
            while (again := stays(running)) is None:
                patience.check()
            let_in.append(again)
        for client in let_in:
            client.close()


def test_the_numbers_can_be_changed_while_it_runs() -> None:
    with tidelog.broker(settings={"max.connections.per.ip": "1"}) as running:
        first = stays(running)
        assert first is not None
        assert stays(running) is None
        wider = IncrementallyAlteredConfig(name=OVERRIDES, config_operation=0, value="127.0.0.1:2")
        resource = IncrementalAlterConfigsResource(
            resource_type=4, resource_name="", configs=[wider]
        )
        asked = IncrementalAlterConfigsRequest(resources=[resource])
        (said,) = first.ask(INCREMENTAL_ALTER_CONFIGS, 1, asked).responses
        assert said.error_code == 0, said.error_message
        second = stays(running)
        assert second is not None
        assert stays(running) is None
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("127.0.0.1:1", ("127.0.0.1:1",)),
        ("[::1]:5,10.0.0.1:0", ("::1:5", "10.0.0.1:0")),
        ("0:0:0:0:0:0:0:1:7", ("::1:7",)),
    ],
)
def test_numbers_of_addresses(text: str, found: tuple[str, ...]) -> None:
    assert BrokerConfig.parse({OVERRIDES: text})[0].max_connections_per_ip_overrides == found


@pytest.mark.parametrize("text", ["127.0.0.1", "a.example:3", "127.0.0.1:-1", "127.0.0.1:x", ":3"])
def test_numbers_of_addresses_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="overrides"):
        BrokerConfig.parse({OVERRIDES: text})


def test_the_response_to_a_failed_login_is_delayed(tmp_path: Path) -> None:
    clock = AheadClock()
    env = replace(os_env(), clock=clock)
    settings = settings_in(tmp_path, connection_failed_authentication_delay_ms="5000000")
    with (
        tidelog.broker(settings=settings, env=env) as running,
        RawClient(place(running)) as client,
    ):
        shake(client, "PLAIN")
        client.send(
            SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=plain(password="wrong"))
        )
        until_so(
            lambda: bool(running.call(lambda node: node.metrics.logins.get(("PLAIN", "failed"))))
        )
        assert not client.has_answer()
        clock.ahead_ms = 5_000_001
        running.call(lambda node: node.timers.run_due())
        said = client.receive()
        assert isinstance(said, SaslAuthenticateResponse)
        assert said.error_code == 58
        assert is_closed(client)


def test_bytes_that_are_no_request_count_as_malformed() -> None:
    with tidelog.broker() as running:
        host, _, port = running.bootstrap_servers.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):  # the broker may close before it has read all
                assert raw.recv(1) == b""
        assert running.call(lambda node: node.metrics.malformed_requests) == 1
