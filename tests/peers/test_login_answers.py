"""Authentication, reauthentication and failed attempts: Kafka and our broker respond equally.

Each test case has a separate connection; if the broker closes the connection, the case ends.
"""

import contextlib
import socket
from typing import Final

import pytest
from tests.worlds.brokers.doors import BEARER, Door
from tests.worlds.brokers.logins import MECHANISMS
from tests.worlds.clients.login_talk import (
    ILLEGAL,
    UNSUPPORTED,
    Visitor,
    doors,
    heard,
    same,
)
from tests.worlds.waiting import PATIENCE_S

__all__ = ["doors"]
pytestmark = pytest.mark.kafka
ENABLED: Final = (*MECHANISMS, BEARER)

# -- reauthentication ----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ENABLED)
def test_a_session_is_renewed(doors: tuple[Door, Door], mechanism: str) -> None:
    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.ask()
        visitor.log_in(mechanism)

    told = same(doors, story)
    assert told[-1] == ("ask", True)


@pytest.mark.parametrize("mechanism", ENABLED)
def test_a_session_is_not_renewed_by_a_wrong_secret(
    doors: tuple[Door, Door], mechanism: str
) -> None:
    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.log_in(mechanism, "hunter2")

    told = same(doors, story)
    assert told[-1] == ("ask", False)
    assert any(said[:2] == ("say", 58) for said in told if isinstance(said, tuple))


PAIRS: Final = [(first, second) for first in ENABLED for second in ENABLED if first != second]


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("proves", [True, False])
def test_a_session_is_not_renewed_by_another_mechanism(
    doors: tuple[Door, Door], first: str, second: str, *, proves: bool
) -> None:
    """After a handshake with another mechanism, the broker closes the connection in any case."""

    def story(visitor: Visitor) -> None:
        visitor.log_in(first)
        visitor.heard.clear()
        visitor.shake(second)
        if proves:
            visitor.prove(second)

    end = "closed" if proves else ("ask", False)
    assert same(doors, story) == [("shake", 0, sorted(ENABLED)), end]


@pytest.mark.parametrize("mechanism", ENABLED)
def test_a_mechanism_that_is_not_enabled_is_refused_at_a_renewal_by_ours_alone(
    doors: tuple[Door, Door], mechanism: str
) -> None:
    """If an authenticated client requests an unsupported mechanism, only Kafka sends no error."""

    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.heard.clear()
        visitor.shake("GSSAPI")

    kafka, ours = (heard(door, story) for door in doors)
    assert kafka == ["closed"]
    assert ours == [("shake", UNSUPPORTED, sorted(ENABLED)), ("ask", False)]


@pytest.mark.parametrize("mechanism", ENABLED)
def test_invalid_messages_during_a_reauthentication_get_equal_responses(
    doors: tuple[Door, Door], mechanism: str
) -> None:
    def says_without_a_handshake(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.prove(mechanism)

    def says_nothing(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.shake(mechanism)
        visitor.say(b"")

    for story in (says_without_a_handshake, says_nothing):
        same(doors, story)


@pytest.mark.parametrize("mechanism", ENABLED)
@pytest.mark.parametrize("is_renewal", [False, True])
def test_requests_instead_of_a_token_are_refused(
    doors: tuple[Door, Door], mechanism: str, *, is_renewal: bool
) -> None:
    """Both refuse a second handshake. To other requests only Kafka responds, with an error."""

    def begun(visitor: Visitor) -> None:
        if is_renewal:
            visitor.log_in(mechanism)
        visitor.shake(mechanism)
        visitor.heard.clear()

    def shakes_again(visitor: Visitor) -> None:
        begun(visitor)
        visitor.shake(mechanism)

    def asks(visitor: Visitor) -> None:
        begun(visitor)
        visitor.ask()

    assert same(doors, shakes_again) == [("shake", ILLEGAL, []), ("ask", False)]
    kafka, ours = (heard(door, asks) for door in doors)
    assert kafka == [("ask", True), ("ask", False)]
    assert ours == [("ask", False), ("ask", False)]


# -- before authentication -----------------------------------------------------------------------

VERSIONS: Final = b"\0\x12\0\0\0\0\0\1\xff\xff"
NEWER_VERSIONS: Final = b"\0\x12\x00\x63\0\0\0\1\xff\xff\0"
SHAKE: Final = b"\0\x11\0\1\0\0\0\1\xff\xff\0\5PLAIN"
# Frames, and how many of these frames get a response before the broker closes the connection.
OPENINGS: Final = {
    "versions": ([VERSIONS, SHAKE], 2),
    "versions twice": ([VERSIONS, VERSIONS], 1),
    "newer versions": ([NEWER_VERSIONS, NEWER_VERSIONS, VERSIONS, SHAKE], 4),
    "metadata": ([b"\0\3\0\1\0\0\0\1\xff\xff\0\0\0\0"], 0),
    "a token": ([b"\0\x24\0\1\0\0\0\1\xff\xff\0\0\0\0"], 0),
    "a token behind versions": ([VERSIONS, b"\0\x24\0\1\0\0\0\1\xff\xff\0\0\0\0"], 1),
    "a handshake of a version that is not there": ([b"\0\x11\0\2\0\0\0\1\xff\xff\0\5PLAIN"], 0),
    "a handshake without a mechanism": ([b"\0\x11\0\1\0\0\0\1\xff\xff\xff\xff"], 0),
    "a handshake that is cut": ([SHAKE[:-1]], 0),
    "a handshake with an end": ([SHAKE + bytes(60_000)], 1),
    "an API that nobody knows": ([b"\x7f\xff\0\0\0\0\0\1\xff\xff"], 0),
    "a token of Kerberos": ([b"\x60\x82\1\2" + bytes(50)], 0),
    "nothing": ([b""], 0),
    "half a header": ([b"\0\x11\0"], 0),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_both_brokers_respond_to_the_same_requests_before_authentication(
    doors: tuple[Door, Door], name: str
) -> None:
    frames, count = OPENINGS[name]
    assert [answered(door, frames) for door in doors] == [count, count]


def test_a_size_below_0_closes(doors: tuple[Door, Door]) -> None:
    for door in doors:
        with connected(door) as sock:
            sock.sendall(b"\xff\xff\xff\xfb")
            assert take(sock, 4) == b""


def test_kafka_accepts_longer_frames_of_a_login(doors: tuple[Door, Door]) -> None:
    assert [answered(door, [SHAKE + bytes(70_000)]) for door in doors] == [1, 0]


def answered(door: Door, frames: list[bytes]) -> int:
    """Return how many of the frames get a response before the connection is closed."""
    with connected(door) as sock:
        for count, frame in enumerate(frames):
            with contextlib.suppress(ConnectionError):
                sock.sendall(len(frame).to_bytes(4, "big") + frame)
            size = take(sock, 4)
            if len(size) < 4:
                return count
            take(sock, int.from_bytes(size, "big"))
        return len(frames)


def connected(door: Door) -> socket.socket:
    host, _, port = door.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def take(sock: socket.socket, size: int) -> bytes:
    """Return `size` bytes, fewer if the connection is closed."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while len(found) < size and (more := sock.recv(size - len(found))):
            found += more
    return found
