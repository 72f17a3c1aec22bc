"""Authentication: each mechanism through three clients, and refused attempts."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.worlds.brokers.logins import (
    MECHANISMS,
    PASSWORD,
    SASL,
    add_users,
    is_closed,
    is_served,
    key_of,
    let_in,
    logged_in,
    place,
    plain,
    say,
    settings_in,
    shake,
)
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import ROUND_TRIPS, TIMEOUT_S, Key, create_topic

from tidelog.protocol.messages import (
    API_VERSIONS,
    BY_KEY,
    METADATA,
    SASL_AUTHENTICATE,
)
from tidelog.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tidelog.protocol.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.server.embedded import Broker
from tidelog.server.net.sasl_session import FRAME_BYTES_MAX
from tidelog.server.partitions.services import READ_THREADS

# A broker with two listeners: one without authentication, one with authentication.
broker = broker_fixture(settings_in, prepare=add_users, scope="module")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", ROUND_TRIPS)
def test_each_mechanism_through_each_client(broker: Broker, client: str, mechanism: str) -> None:
    topic = f"{client}-{mechanism}"
    create_topic(broker.bootstrap_servers, Key(), topic)
    found = ROUND_TRIPS[client](place(broker), key_of(mechanism), topic, b"hello")
    assert found == b"hello"


def test_reads_and_logins_have_separate_threads(broker: Broker) -> None:
    """Hashing passwords takes long: clients without credentials must not delay other clients."""
    gate = threading.Event()
    broker.call(lambda node: [node.reads.submit(gate.wait) for _ in range(READ_THREADS)])
    try:
        logged_in(broker).close()
    finally:
        gate.set()


# -- without a client library -------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_a_token(broker: Broker, version: int) -> None:
    with RawClient(place(broker)) as client:
        assert shake(client, "PLAIN").mechanisms == list(MECHANISMS)
        found = say(client, plain(), version)
        assert (found.error_code, bytes(found.auth_bytes)) == (0, b"")
        assert found.session_lifetime_ms == 0
        assert is_served(client)


def test_api_versions_is_allowed_once_before_a_handshake(broker: Broker) -> None:
    with RawClient(place(broker)) as client:
        client.send(API_VERSIONS, 0, ApiVersionsRequest())
        assert client.receive() is not None
        assert shake(client, "PLAIN").error_code == 0
        client.send(API_VERSIONS, 0, ApiVersionsRequest())
        assert is_closed(client)
    with RawClient(place(broker)) as client:
        assert client.ask(API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0
        client.send(API_VERSIONS, 0, ApiVersionsRequest())
        assert is_closed(client)


def test_a_handshake_of_version_0_is_followed_by_bare_tokens(broker: Broker) -> None:
    import socket

    head = b"\0\x11\0\0\0\0\0\x01\xff\xff\0\x05PLAIN"
    with socket.create_connection(("127.0.0.1", broker.ports[SASL]), TIMEOUT_S) as sock:
        reader = sock.makefile("rb")
        sock.sendall(len(head).to_bytes(4, "big") + head)
        size = int.from_bytes(reader.read(4), "big")
        assert reader.read(size)[4:6] == b"\0\0"
        sock.sendall(len(plain()).to_bytes(4, "big") + plain())
        assert reader.read(4) == b"\0\0\0\0"
        asked = b"\0\x03\0\x01\0\0\0\x02\xff\xff\0\0\0\0"
        sock.sendall(len(asked).to_bytes(4, "big") + asked)
        assert int.from_bytes(reader.read(4), "big") > 0


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (plain(password="wrong"), "Invalid username or password"),
        (plain(user="nobody"), "Invalid username or password"),
        (plain(user=""), "username not specified"),
        (plain(password=""), "password not specified"),
        (b"one\0two", "expected 3 tokens"),
        (b"\xff\0a\0b", "invalid credentials"),
        (b"", "expected 3 tokens"),
        (b"other" + plain(), "authorization id"),
    ],
)
def test_plain_refuses_invalid_credentials(broker: Broker, token: bytes, told: str) -> None:
    with RawClient(place(broker)) as client:
        shake(client, "PLAIN")
        found = say(client, token)
        assert found.error_code == 58
        assert told in (found.error_message or "")
        assert PASSWORD not in (found.error_message or "")
        assert is_closed(client)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "plain", "", "SCRAM-SHA-1"])
def test_other_mechanisms_are_refused_with_those_that_there_are(
    broker: Broker, mechanism: str
) -> None:
    with RawClient(place(broker)) as client:
        found = shake(client, mechanism)
        assert (found.error_code, found.mechanisms) == (33, list(MECHANISMS))
        assert is_closed(client)


def test_other_requests_get_no_response_before_a_login(broker: Broker) -> None:
    before = let_in(broker)
    for api in BY_KEY.values():
        if api.key in {17, 18, 36}:
            continue
        with RawClient(place(broker)) as client:
            client.send(api, api.last, api.request())
            assert is_closed(client), api.name
    assert let_in(broker) == before


def test_a_token_without_a_handshake_closes_and_a_second_handshake_is_refused(
    broker: Broker,
) -> None:
    with RawClient(place(broker)) as client:
        client.send(SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=plain()))
        assert is_closed(client)
    with RawClient(place(broker)) as client:
        shake(client, "PLAIN")
        assert shake(client, "PLAIN").error_code == 34
        assert is_closed(client)


def test_a_long_frame_closes_the_connection_only_before_a_login(broker: Broker) -> None:
    with RawClient(place(broker)) as client:
        shake(client, "PLAIN")
        client.send(
            SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=bytes(FRAME_BYTES_MAX))
        )
        assert is_closed(client)
    with logged_in(broker) as client:
        client.send(METADATA, 1, MetadataRequest(topics=None))
        assert client.receive() is not None
        client.send(
            SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=bytes(FRAME_BYTES_MAX))
        )
        found = client.receive()
        assert isinstance(found, SaslAuthenticateResponse)
        assert found.error_code == 34


def test_sasl_requests_are_refused_on_a_listener_without_sasl(broker: Broker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        assert shake(client, "PLAIN").error_code == 34
        assert say(client, plain()).error_code == 34


@examples(60)
@given(
    frames=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                lambda key, version, rest: bytes((0, key, 0, version)) + b"\0\0\0\1\xff\xff" + rest,
                st.sampled_from([17, 18, 36, 3, 0]),
                st.integers(0, 4),
                st.binary(max_size=60),
            ),
            st.just(b"\0\x11\0\1\0\0\0\1\xff\xff\0\x05PLAIN"),
            st.just(b"\0\x11\0\0\0\0\0\1\xff\xff\0\x0dSCRAM-SHA-256"),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_bytes_before_authentication_authenticate(broker: Broker, frames: list[bytes]) -> None:
    """The broker responds or disconnects. It authenticates no client, and keeps serving others."""
    import socket

    before = let_in(broker)
    with socket.create_connection(("127.0.0.1", broker.ports[SASL]), TIMEOUT_S) as sock:
        sock.sendall(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert let_in(broker) == before


def test_the_length_of_a_token_is_bounded_even_with_longer_frames(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with logged_in(broker) as client:
        assert shake(client, "PLAIN").error_code == 0
        token = plain(password="p" * FRAME_BYTES_MAX)
        assert say(client, token).error_code == 58
    assert f"token of {len(token)} bytes" in caplog.text  # the token was not parsed
