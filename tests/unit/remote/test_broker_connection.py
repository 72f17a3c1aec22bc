"""Waiting for a broker: one deadline for each response, cancellation, invalid addresses."""

import errno
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from tidelog.env import ManualClock
from tidelog.errors import ClusterFailure
from tidelog.protocol.messages import METADATA
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.remote.broker_connection import (
    BrokerConnection,
    Patience,
    SocketTransport,
    connect_socket,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_slow_response_has_one_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    clock = ManualClock()
    transport = SocketTransport(ours, Patience(timeout_s=30, clock=clock))
    transport.begin_answer()
    for _ in range(6):
        theirs.sendall(b"x")
        assert transport.receive(100)
        clock.advance(5001)
    theirs.sendall(b"x")
    with pytest.raises(TimeoutError, match="no complete response within 30 s"):
        transport.receive(100)
    transport.begin_answer()
    assert transport.receive(100), "the next one has its own"


def test_the_transport_waits_for_a_large_slow_response(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    clock = ManualClock()
    transport = SocketTransport(ours, Patience(timeout_s=30, clock=clock))
    transport.begin_answer()
    for _ in range(100):
        theirs.sendall(b"x" * 65536)
        left = 65536
        while left:
            left -= len(transport.receive(left))
        clock.advance(1000)


def test_a_stop_ends_the_wait_for_a_response(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    is_stopped = iter([False, True]).__next__
    transport = SocketTransport(pair[0], Patience(is_stopped=is_stopped))
    transport.begin_answer()
    with pytest.raises(InterruptedError, match="canceled while waiting"):
        transport.receive(100)


def test_a_stop_ends_the_wait_for_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        connect = partial(connect_socket, is_stopped=lambda: True)
        connect_socket(host, port).close()
        client = BrokerConnection(host, port, connect)
        with pytest.raises(ClusterFailure, match="canceled while waiting"):
            client.request(METADATA, MetadataRequest())
        client.close()


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("a..b", 9092),
        ("x" * 64 + ".example", 9092),
        ("\udcff", 9092),
        ("a\0b", 9092),
        ("127.0.0.1", 65536),
        ("127.0.0.1", -1),
        ("127.0.0.1", 0),
    ],
)
def test_an_invalid_address_is_a_failure_of_the_cluster(host: str, port: int) -> None:
    with pytest.raises(ClusterFailure, match="could not connect"):
        BrokerConnection(host, port, connect_socket).request(METADATA, MetadataRequest())


def test_a_refused_connection_has_no_error_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ClusterFailure) as caught:
        BrokerConnection("127.0.0.1", port, connect_socket).request(METADATA, MetadataRequest())
    assert caught.value.reason == "connection refused"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "can't resolve the host name (Name or service not known)",
        ),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host"),
        (OSError("host a has no IP address"), "host a has no IP address"),
    ],
)
def test_a_failed_connection_has_the_reason_without_a_number(error: OSError, reason: str) -> None:
    def connect(_host: str, _port: int) -> SocketTransport:
        raise error

    with pytest.raises(ClusterFailure) as caught:
        BrokerConnection("a", 9092, connect).request(METADATA, MetadataRequest())
    assert caught.value.reason == reason
