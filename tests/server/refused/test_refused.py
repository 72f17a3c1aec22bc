"""Clients report refused authentication, with our broker and, in the sweep, with Kafka."""

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import product
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet
from tests.server.refused import clients
from tests.worlds.brokers.doors import (
    BEARER,
    Door,
    kafkas_sasl,
    kafkas_tls,
    our_sasl,
    our_tls,
    secrets_of,
)
from tests.worlds.brokers.logins import MECHANISMS, is_closed, is_served, plain, say, shake
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import TIMEOUT_S, Key
from tests.worlds.clients.tokens import BearerKey, bearer
from tests.worlds.waiting import until

AT_KAFKA: Final = [pytest.mark.kafka, pytest.mark.slow]
BROKERS: Final = pytest.mark.parametrize("at", ["ours", pytest.param("kafka", marks=AT_KAFKA)])
JAVA: Final = pytest.param("java", marks=pytest.mark.kafka)
PYTHON: Final = ("librdkafka", "kafka-python", "aiokafka")
BY_CLIENT: Final = pytest.mark.parametrize("client", [*PYTHON, JAVA])
KEYS: Final = (
    *(f"{name}-{wrong}" for name in MECHANISMS for wrong in ("password", "user")),
    *(f"{BEARER}-{wrong}" for wrong in ("stranger", "expired", "audience")),
)
STRANGER: Final = f"{BEARER}-stranger"
Opens = Callable[..., AbstractContextManager[Door]]


@pytest.fixture(scope="module")
def door_at(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], Door]]:
    """Yield a function that returns a broker by authentication (`sasl`, `tls`) and kind.

    Each broker is started at its first use.
    """
    ours: dict[str, Opens] = {"sasl": our_sasl, "tls": our_tls}
    kafkas: dict[str, Opens] = {"sasl": kafkas_sasl, "tls": kafkas_tls}
    found: dict[tuple[str, str], Door] = {}
    with ExitStack() as stack:

        def get(kind: str, at: str) -> Door:
            if (kind, at) not in found:
                folder = tmp_path_factory.mktemp(f"refused-{kind}-{at}")
                needed = map(request.getfixturevalue, ("kafka_jars", "kafka_oracle"))
                made = ours[kind](folder) if at == "ours" else kafkas[kind](*needed, folder)
                found[kind, at] = stack.enter_context(made)
            return found[kind, at]

        yield get


def refuse(client: str, door: Door, key: Key, request: pytest.FixtureRequest) -> None:
    """Assert that a client with this key is refused."""
    if client == "java":
        clients.java_is_refused(door.bootstrap, key, request.getfixturevalue("kafka_oracle"))
    elif client == "aiokafka":
        clients.aiokafka_is_refused(door.bootstrap, key, request.getfixturevalue("caplog"))
    elif client == "kafka-python":
        clients.kafka_python_is_refused(door.bootstrap, key)
    else:
        clients.librdkafka_is_refused(door.bootstrap, key)


def broker_log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines of our broker."""
    records = list(caplog.records)
    return [each.getMessage() for each in records if each.name.startswith("tidelog")]


def marks_of(client: str, at: str) -> list[pytest.MarkDecorator]:
    if at == "kafka":
        return AT_KAFKA
    return [pytest.mark.kafka] if client == "java" else []


def bad_log_ins() -> Iterator[ParameterSet]:
    """Yield each kind of invalid credentials with each client and broker.

    One case is left out, aiokafka with a bad token at Kafka: aiokafka ignores Kafka's error and
    starts as if the token were valid.
    """
    for name, client, at in product(KEYS, (*PYTHON, "java"), ("ours", "kafka")):
        if not (at == "kafka" and client == "aiokafka" and name.startswith(BEARER)):
            yield pytest.param(name, client, at, marks=marks_of(client, at))


@pytest.mark.parametrize(("name", "client", "at"), list(bad_log_ins()))
def test_a_bad_login_is_refused(
    door_at: Callable[[str, str], Door],
    name: str,
    client: str,
    at: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = door_at("sasl", at)
    key = door.bad[name]
    with RawClient(door.bootstrap) as steady:
        shake(steady, "PLAIN")
        assert say(steady, plain()).error_code == 0
        refuse(client, door, key, request)
        assert is_served(steady)
    if at == "ours":
        lines = broker_log_lines(caplog)
        begin = f"authentication of 127.0.0.1 with {key.mechanism} failed: "
        # aiokafka treats the response to an invalid token as success, and sends a request.
        early = ": request before authentication"
        is_told = client == "aiokafka" and key.mechanism == BEARER
        assert any((early in line) if is_told else line.startswith(begin) for line in lines), lines
        assert not any(secret in line for line in lines for secret in secrets_of(key))


@BROKERS
@pytest.mark.kafka
@pytest.mark.parametrize("name", [*MECHANISMS, BEARER])
def test_java_authenticates_with_a_valid_secret(
    door_at: Callable[[str, str], Door], name: str, at: str, request: pytest.FixtureRequest
) -> None:
    """These settings work with a valid secret, so other tests' refusals are due to the secret."""
    door = door_at("sasl", at)
    clients.java_is_let_in(door.bootstrap, door.good[name], request.getfixturevalue("kafka_oracle"))


@BROKERS
def test_only_kafka_responds_between_a_bad_token_and_the_disconnect(
    door_at: Callable[[str, str], Door], at: str
) -> None:
    """Kafka responds to a request after a bad token with an error, which aiokafka ignores."""
    key = door_at("sasl", at).bad[STRANGER]
    assert isinstance(key, BearerKey)
    with RawClient(door_at("sasl", at).bootstrap) as client:
        shake(client, BEARER)
        assert say(client, bearer(key.made)).auth_bytes
        assert is_served(client) == (at == "kafka")
        assert is_closed(client)


class Steady:
    """A TLS connection that stays open while other clients are refused."""

    def __init__(self, door: Door) -> None:
        (key,) = door.good.values()
        context = key.context()
        assert context is not None
        host, port = door.bootstrap.split(":")
        tcp = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._sock = context.wrap_socket(tcp, server_hostname=host)

    def is_served(self) -> bool:
        """Whether ApiVersions gets a response."""
        self._sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
        return self._take(int.from_bytes(self._take(4), "big"))[:4] == b"\0\0\0\1"

    def _take(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (more := self._sock.recv(size - len(found))):
            found += more
        return found

    def __enter__(self) -> "Steady":
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


@BROKERS
@BY_CLIENT
@pytest.mark.parametrize("name", ["none", "authority"])
def test_a_bad_certificate_is_refused(
    door_at: Callable[[str, str], Door],
    name: str,
    client: str,
    at: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = door_at("tls", at)
    key = door.bad[name]
    with Steady(door) as steady:
        refuse(client, door, key, request)
        assert steady.is_served()
    if at == "ours":
        # The client may notice the failure before the broker has logged it.
        begin = "TLS handshake with 127.0.0.1 failed: "
        lines = until(
            lambda: broker_log_lines(caplog),
            lambda lines: any(line.startswith(begin) for line in lines),
        )
        assert not any(secret in line for line in lines for secret in secrets_of(key))


@BROKERS
@BY_CLIENT
def test_a_certificate_of_a_user_without_rights_is_denied(
    door_at: Callable[[str, str], Door], client: str, at: str, request: pytest.FixtureRequest
) -> None:
    door = door_at("tls", at)
    assert door.powerless is not None
    with Steady(door) as steady:
        if client == "java":
            oracle = request.getfixturevalue("kafka_oracle")
            clients.java_is_denied(door.bootstrap, door.powerless, oracle)
        else:
            BY_NAME[client](door.bootstrap, door.powerless)
        assert steady.is_served()


BY_NAME: Final = {
    "librdkafka": clients.librdkafka_is_denied,
    "kafka-python": clients.kafka_python_is_denied,
    "aiokafka": clients.aiokafka_is_denied,
}
