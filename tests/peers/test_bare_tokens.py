"""Tokens without a frame header (handshakes of version 0), and odd frames, with both brokers.

A test case is a series of frames. The test records error codes and tokens, and finally whether the
broker serves a request that requires authentication.
"""

import socket
from collections.abc import Callable
from typing import Final

import pytest
from tests.peers.test_login_answers import connected, take
from tests.worlds.brokers.doors import BEARER, Door
from tests.worlds.brokers.logins import PASSWORD, plain
from tests.worlds.clients.login_talk import NONCE, SCRAM, doors, last_message
from tests.worlds.clients.tokens import bearer, now_s

__all__ = ["doors"]
pytestmark = pytest.mark.kafka
CLOSED: Final = "closed"
NULL: Final = b"\xff\xff\xff\xff"
HEAD: Final = b"\0\0\0\1\xff\xff"
METADATA: Final = b"\0\3\0\1" + HEAD + bytes(4)
# Expired tokens are sent this many seconds after they expired; both brokers still accept them.
ENDED_S: Final = 5


class Talk:
    """A connection, and the responses received on this connection."""

    def __init__(self, door: Door, sock: socket.socket) -> None:
        assert door.token is not None
        self.token = door.token
        self._sock = sock
        self.heard: list[object] = []

    def say(self, frame: bytes) -> bytes | None:
        """Send a frame; return the response, None if the connection is closed."""
        try:
            self._sock.sendall(len(frame).to_bytes(4, "big") + frame)
        except ConnectionError:
            return None
        size = take(self._sock, 4)
        return take(self._sock, int.from_bytes(size, "big")) if len(size) == 4 else None

    def bare(self, token: bytes) -> "Talk":
        found = self.say(token)
        self.heard.append(CLOSED if found is None else found)
        return self

    def coded(self, frame: bytes) -> "Talk":
        """Send a request; record the error code of the response."""
        found = self.say(frame)
        self.heard.append(CLOSED if found is None else int.from_bytes(found[4:6], "big"))
        return self

    def shake(self, mechanism: str, version: int = 0) -> "Talk":
        name = mechanism.encode()
        begin = b"\0\x11" + version.to_bytes(2, "big") + HEAD
        return self.coded(begin + len(name).to_bytes(2, "big") + name)

    def show(self, token: bytes, version: int = 1) -> "Talk":
        """Send a token in a SaslAuthenticate."""
        begin = b"\0\x24" + version.to_bytes(2, "big") + HEAD
        return self.coded(begin + len(token).to_bytes(4, "big") + token)

    def log_in(self) -> "Talk":
        return self.shake("PLAIN", 1).show(plain())

    def bearer(self, **claims: object) -> "Talk":
        """Send a handshake, then a token without a header."""
        return self.shake(BEARER).bare(bearer(self.token(**claims)))

    def scram(self, mechanism: str, password: str) -> "Talk":
        """Send both SCRAM messages without a header; random parts of responses are not recorded."""
        self.shake(mechanism)
        first = f"n,,n={mechanism}-user,r={NONCE}"
        answer = self.say(first.encode())
        assert answer is not None
        final = last_message(mechanism, first, answer.decode(), password)
        ended = self.say(final.text().encode())
        self.heard.append(CLOSED if ended is None else ended[:2])
        return self


Story = Callable[[Talk], Talk]
WRONG: Final = plain(password="x")


def ended(talk: Talk) -> Talk:
    """Send a token that expired so recently that brokers accept it; the session ends at once."""
    return talk.bearer(iat=now_s() - 60, exp=now_s() - ENDED_S)


def by_scram(mechanism: str, password: str) -> Story:
    return lambda it: it.scram(mechanism, password)


# Each test case, and whether it authenticates the client.
STORIES: Final[dict[str, tuple[Story, bool]]] = {
    "plain": (lambda it: it.shake("PLAIN").bare(plain()), True),
    "a wrong password": (lambda it: it.shake("PLAIN").bare(WRONG), False),
    "nothing": (lambda it: it.shake("PLAIN").bare(b""), False),
    "a token in a request": (lambda it: it.shake("PLAIN").show(plain()), False),
    "a second handshake": (lambda it: it.shake("PLAIN").shake("PLAIN"), False),
    "no such mechanism": (lambda it: it.shake("GSSAPI"), False),
    **{name: (by_scram(name, PASSWORD), True) for name in SCRAM},
    **{f"{name}, wrong": (by_scram(name, "x"), False) for name in SCRAM},
    "a token": (lambda it: it.bearer(), True),
    "a token that has ended": (ended, False),
    "a bad token": (lambda it: it.shake(BEARER).bare(bearer("x.y.z")).bare(b"\x01"), False),
    "another's token": (lambda it: it.bearer().bearer(sub="bob"), False),
    "renewed bare": (lambda it: it.log_in().shake("PLAIN").bare(plain()), True),
    "not renewed bare": (lambda it: it.log_in().shake("PLAIN").bare(WRONG), False),
    "another mechanism": (lambda it: it.log_in().shake(SCRAM[0]).bare(b"n,,n=a,r=b"), False),
    "renewed in a request": (lambda it: it.shake("PLAIN").bare(plain()).log_in(), True),
    "bare for a request": (lambda it: it.shake("PLAIN", 1).bare(plain()), False),
    "no such version": (lambda it: it.shake("PLAIN", 1).show(plain(), 3), False),
    "no such API": (lambda it: it.shake("PLAIN", 1).coded(b"\x7f\xff\0\0" + HEAD), False),
    "no token": (lambda it: it.shake("PLAIN", 1).coded(b"\0\x24\0\1" + HEAD + NULL), False),
    "in a session a token": (lambda it: it.log_in().show(plain()), True),
    "in a session no such handshake": (lambda it: it.log_in().shake("PLAIN", 9), False),
    "in a session no such token": (lambda it: it.log_in().show(plain(), 9), False),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_same_is_heard(doors: tuple[Door, Door], name: str) -> None:
    story, is_in = STORIES[name]
    told = []
    for door in doors:
        with connected(door) as sock:
            talk = Talk(door, sock)
            story(talk)
            told.append([*talk.heard, talk.say(METADATA) is not None])
    kafka, ours = told
    assert ours == kafka
    assert ours[-1] is is_in
