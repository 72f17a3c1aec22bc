"""TLS with three clients: client certificates, reloaded certificates, refused connections."""

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.worlds.brokers.certificates import Authority
from tests.worlds.brokers.logins import PASSWORD
from tests.worlds.clients.secured import ROUND_TRIPS, TIMEOUT_S, Key, create_topic

import tidelog
from tidelog.errors import ConfigError
from tidelog.server.embedded import Broker

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Streams$/$1/U,RULE:^CN=.*$/other/",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}


class World:
    """A broker with three listeners, and its users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.server = self.authority.issue("server", password="key-word")
        self.client = self.authority.issue("alice", unit="Streams")
        (folder / "users").write_text(f"bob={PASSWORD}\n")

    @property
    def settings(self) -> dict[str, str]:
        """The broker's settings."""
        return SETTINGS | {
            "ssl.keystore.location": str(self.server),
            "ssl.key.password": "key-word",
            "ssl.truststore.location": str(self.authority.path),
            "tidelog.sasl.plain.users.file": str(self.folder / "users"),
        }

    def key(self, protocol: str) -> Key:
        """Return valid credentials for a listener."""
        authority = self.authority.path
        if protocol == "SSL":
            return Key(protocol="SSL", authority=authority, certificate=self.client)
        return Key(
            protocol=protocol,
            mechanism="PLAIN",
            user="bob",
            password=PASSWORD,
            authority=authority,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The broker's files."""
    return World(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(world: World) -> Iterator[Broker]:
    """The broker of `world`."""
    with tidelog.broker(settings=world.settings) as running:
        yield running


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize("client", ROUND_TRIPS)
def test_each_door_through_each_client(
    broker: Broker, world: World, client: str, protocol: str
) -> None:
    topic = f"{client}-{protocol}"
    create_topic(broker.bootstrap_servers, Key(), topic)
    place = f"127.0.0.1:{broker.ports[protocol]}"
    # More bytes than a transport accepts in one write.
    value = bytes(range(256)) * 3000
    assert ROUND_TRIPS[client](place, world.key(protocol), topic, value) == value


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connect and complete the TLS handshake; return the connection."""
    sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    return context.wrap_socket(sock, server_hostname="127.0.0.1")


def serial_number(port: int, context: ssl.SSLContext) -> str:
    """Return the serial number of the broker's certificate."""
    with connected(port, context) as sock:
        found = sock.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def is_let_in(port: int, context: ssl.SSLContext) -> bool:
    """Whether ApiVersions gets a response."""
    frame = b"\0\x12\0\0\0\0\0\1\xff\xff"
    try:
        with connected(port, context) as sock:
            sock.sendall(len(frame).to_bytes(4, "big") + frame)
            return len(sock.recv(4)) > 0
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_client_certificate_of_a_trusted_authority_is_required(
    broker: Broker, world: World, tmp_path: Path
) -> None:
    port = broker.ports["SSL"]
    good = world.key("SSL").context()
    assert good is not None
    assert is_let_in(port, good)
    stranger = Authority(tmp_path).issue("mallory")
    for key in (
        Key(authority=world.authority.path),
        Key(authority=world.authority.path, certificate=stranger),
    ):
        context = key.context()
        assert context is not None
        assert not is_let_in(port, context)


def test_old_versions_are_not_spoken(broker: Broker, world: World) -> None:
    context = world.key("SSL").context()
    assert context is not None
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert not is_let_in(broker.ports["SSL"], context)


def test_bytes_that_are_no_tls_close(broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", broker.ports["SSL"]), TIMEOUT_S) as sock:
        sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff" * 100)
        with suppress(ConnectionError):
            while sock.recv(1 << 16):
                pass


def test_certificates_are_read_again_while_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    with tidelog.broker(settings=world.settings) as running:
        port = running.ports["SSL"]
        context = world.key("SSL").context()
        assert context is not None
        first = serial_number(port, context)
        world.authority.issue("server", password="key-word")
        second = serial_number(port, context)
        assert second != first
        world.server.write_text("no certificate at all\n")
        with caplog.at_level(logging.WARNING):
            assert serial_number(port, context) == second
        assert "can't load new certificates" in caplog.text
        world.authority.issue("server", password="key-word")
        assert is_let_in(port, context)
        # The trust store is also reloaded: after its replacement, the old authority's client
        # certificate is no longer trusted.
        other = Authority(tmp_path / ".", "other")
        world.authority.path.write_bytes(other.path.read_bytes())
        assert not is_let_in(port, context)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ssl.keystore.location": ""}, "ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "ssl.keystore.location"),
        ({"ssl.key.password": "wrong"}, "ssl.keystore.location"),
        ({"ssl.truststore.location": ""}, "ssl.truststore.location"),
        ({"ssl.enabled.protocols": ""}, "ssl.enabled.protocols"),
        ({"ssl.principal.mapping.rules": "RULE:a"}, "ssl.principal.mapping.rules"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms"),
        ({"tidelog.sasl.plain.users.file": ""}, "tidelog.sasl.plain.users.file"),
    ],
)
def test_a_listener_with_incomplete_settings_does_not_open(
    world: World, change: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tidelog.broker(settings=world.settings | change)
    assert told in str(caught.value)
    assert "key-word" not in str(caught.value)
