"""Log-ins, renewed ones and attempts at them, at Kafka and at ours: the same to the last answer.

Each story is a connection of its own. It ends where the broker closes it.
"""

from typing import Final

import pytest
from tests.peers.login_talk import (
    ILLEGAL,
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


ENABLED: Final = (*MECHANISMS, BEARER)

# -- sessions that are renewed -------------------------------------------------------------------


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
    """Whatever comes behind its handshake, the connection is closed without a word."""

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
    """Kafka, which tells who has not logged in yet, closes without a word."""

    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.heard.clear()
        visitor.shake("GSSAPI")

    kafka, ours = (heard(door, story) for door in doors)
    assert kafka == ["closed"]
    assert ours == [("shake", UNSUPPORTED, sorted(ENABLED)), ("ask", False)]


@pytest.mark.parametrize("mechanism", ENABLED)
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


@pytest.mark.parametrize("mechanism", ENABLED)
@pytest.mark.parametrize("is_renewal", [False, True])
def test_what_comes_instead_of_a_token(
    doors: tuple[Door, Door], mechanism: str, *, is_renewal: bool
) -> None:
    """Another handshake is refused by both; other requests Kafka alone answers, with an error."""

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
