"""Log-ins, renewed ones and attempts at them, at Kafka and at ours: the same to the last answer.

Each story is a connection of its own. It ends where the broker closes it.
"""

from typing import Final

import pytest
from tests.peers.login_talk import (
    ILLEGAL,
    LET_IN,
    REFUSED,
    UNSUPPORTED,
    Visitor,
    doors,
    heard,
    same,
)
from tests.server.logins import MECHANISMS
from tests.server.refused.doors import BEARER, Door

__all__ = ["doors"]
pytestmark = pytest.mark.kafka


# -- sessions that are renewed -------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*MECHANISMS, BEARER])
def test_a_session_is_renewed(doors: tuple[Door, Door], mechanism: str) -> None:
    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.ask()
        visitor.log_in(mechanism)

    told = same(doors, story)
    assert told[-1] == ("ask", True)


@pytest.mark.parametrize("mechanism", [*MECHANISMS, BEARER])
def test_a_session_is_not_renewed_by_a_wrong_secret(
    doors: tuple[Door, Door], mechanism: str
) -> None:
    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.log_in(mechanism, "hunter2")

    told = same(doors, story)
    assert told[-1] == ("ask", False)
    assert any(said[:2] == ("say", 58) for said in told if isinstance(said, tuple))


PAIRS: Final = [
    (first, second)
    for first in (*MECHANISMS, BEARER)
    for second in (*MECHANISMS, BEARER, "GSSAPI")
    if first != second
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_session_is_not_renewed_by_another_mechanism(
    doors: tuple[Door, Door], first: str, second: str
) -> None:
    """Kafka closes without a word, at the handshake or the token; here the client hears why."""

    def story(visitor: Visitor) -> None:
        visitor.log_in(first)
        visitor.heard.clear()
        visitor.shake(second)
        visitor.prove(second)

    kafka, ours = (heard(door, story) for door in doors)
    assert kafka[-1] == "closed"
    assert not any(what in kafka for what in (("ask", True), *LET_IN))
    if second == "GSSAPI":
        assert ours[0] == ("shake", UNSUPPORTED, sorted((*MECHANISMS, BEARER)))
    else:
        why = "Cannot change principals or mechanisms during re-authentication"
        assert ("say", REFUSED, 0, why) in ours
    assert ours[-1] in (("ask", False), "closed")


@pytest.mark.parametrize("mechanism", [*MECHANISMS, BEARER])
def test_what_may_not_come_while_a_session_is_renewed(
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


@pytest.mark.parametrize("mechanism", [*MECHANISMS, BEARER])
@pytest.mark.parametrize("is_renewal", [False, True])
def test_what_comes_instead_of_a_token_is_answered_by_kafka_alone(
    doors: tuple[Door, Door], mechanism: str, *, is_renewal: bool
) -> None:
    """With an error, and closed then; by ours closed at once."""

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

    kafka, ours = (heard(door, shakes_again) for door in doors)
    assert kafka == [("shake", ILLEGAL, []), ("ask", False)]
    assert ours == ["closed"]
    kafka, ours = (heard(door, asks) for door in doors)
    assert kafka == [("ask", True), ("ask", False)]
    assert ours == [("ask", False), ("ask", False)]
