"""Authentication in tests: settings and users of a broker, and authenticated connections."""

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import TIMEOUT_S, Key

from tidelog.protocol.messages import (
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidelog.server.embedded import Broker

PASSWORD = "correct horse"
SASL = "SASL_PLAINTEXT"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "connection.failed.authentication.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}


def settings_in(folder: Path, **more: str) -> dict[str, str]:
    """Return a broker's settings; write the file of PLAIN users, which contains one user."""
    users = folder / "users"
    users.write_text(f"# users\nPLAIN-user={PASSWORD}\n")
    found = SETTINGS | {"tidelog.sasl.plain.users.file": str(users)}
    return found | {name.replace("_", "."): value for name, value in more.items()}


def add_users(broker: Broker) -> None:
    """Add a SCRAM user for each mechanism, named after the mechanism."""
    add_scram_users({"bootstrap.servers": broker.bootstrap_servers})


def add_scram_users(settings: Mapping[str, str | int | float | bool]) -> None:
    """Add a SCRAM user for each mechanism, through an admin client with these settings."""
    admin = AdminClient(dict(settings))
    kinds = {
        "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
        "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
    }
    made = admin.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion(
                f"{name}-user", ScramCredentialInfo(kind, 4096), PASSWORD.encode()
            )
            for name, kind in kinds.items()
        ]
    )
    for user in made.values():
        user.result(timeout=TIMEOUT_S)


def place(broker: Broker) -> str:
    """Return the address of the listener with SASL."""
    return f"127.0.0.1:{broker.ports[SASL]}"


def key_of(mechanism: str) -> Key:
    """Return valid credentials of the user named after a mechanism."""
    return Key(protocol=SASL, mechanism=mechanism, user=f"{mechanism}-user", password=PASSWORD)


def shake(client: RawClient, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
    """Send a SASL handshake; return the response."""
    client.send(SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))
    found = client.receive()
    assert isinstance(found, SaslHandshakeResponse)
    return found


def say(client: RawClient, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
    """Send a SASL token; return the response."""
    client.send(SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=token))
    found = client.receive()
    assert isinstance(found, SaslAuthenticateResponse)
    return found


def plain(user: str = "PLAIN-user", password: str = PASSWORD) -> bytes:
    """Return a PLAIN token."""
    return f"\0{user}\0{password}".encode()


def logged_in(broker: Broker, token: bytes | None = None) -> RawClient:
    """Return a connection that has authenticated by PLAIN."""
    client = RawClient(place(broker))
    assert shake(client, "PLAIN").error_code == 0
    assert say(client, plain() if token is None else token).error_code == 0
    return client


def let_in(broker: Broker) -> int:
    """Return the number of successful authentications."""
    counts = broker.call(lambda node: dict(node.metrics.logins))
    return sum(count for (_, outcome), count in counts.items() if outcome == "ok")


def is_served(client: RawClient) -> bool:
    """Whether an ordinary request gets a response."""
    client.send(METADATA, 9, MetadataRequest(topics=[]))
    try:
        return client.receive() is not None
    except ConnectionError:
        return False


def is_closed(client: RawClient) -> bool:
    """Whether the broker has closed the connection."""
    try:
        client.receive()
    except ConnectionError:
        return True
    return False
