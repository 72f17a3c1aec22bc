"""SCRAM users are deleted or get a new password during a session, with Kafka and our broker."""

from functools import partial
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.worlds.brokers.doors import Door
from tests.worlds.brokers.logins import PASSWORD, key_of
from tests.worlds.clients.login_talk import REFUSED, Visitor, doors
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import TIMEOUT_S
from tests.worlds.waiting import until_so

__all__ = ["doors"]
pytestmark = pytest.mark.kafka
USER: Final = "goer"
MECHANISM: Final = "SCRAM-SHA-256"
FIRST: Final = f"n,,n={USER},r={{nonce}}"
KIND: Final = ScramMechanism.SCRAM_SHA_256


def with_password(password: str) -> UserScramCredentialAlteration:
    info = ScramCredentialInfo(KIND, 4096)
    return UserScramCredentialUpsertion(USER, info, password.encode())


def alter(door: Door, change: UserScramCredentialAlteration) -> None:
    admin = AdminClient(key_of("PLAIN").librdkafka(door.bootstrap))
    for told in admin.alter_user_scram_credentials([change]).values():
        told.result(timeout=TIMEOUT_S)


def come_in(visitor: Visitor) -> bool:
    """Authenticate with the user's first password; return whether the broker accepts it.

    A connection that is already authenticated is authenticated again.
    """
    visitor.heard.clear()
    visitor.shake(MECHANISM)
    visitor.scram(MECHANISM, FIRST)
    return not any(codes(visitor))


def codes(visitor: Visitor) -> list[int]:
    """Return the received error codes."""
    return [said[1] for said in visitor.heard if isinstance(said, tuple)]


def is_let_in(door: Door) -> bool:
    with RawClient(door.bootstrap) as client:
        return come_in(Visitor(door, client))


def is_refused(door: Door) -> bool:
    return not is_let_in(door)


@pytest.mark.parametrize(
    "change",
    [UserScramCredentialDeletion(USER, KIND), with_password("another")],
    ids=["deleted", "another password"],
)
def test_a_deleted_users_connection_stays_until_its_reauthentication(
    doors: tuple[Door, Door], change: UserScramCredentialAlteration
) -> None:
    for door in doors:
        alter(door, with_password(PASSWORD))
        until_so(partial(is_let_in, door), "the new user comes in")
        with RawClient(door.bootstrap) as client:
            visitor = Visitor(door, client)
            assert come_in(visitor)
            alter(door, change)
            until_so(partial(is_refused, door), "the old password is refused")
            visitor.heard.clear()
            visitor.ask()
            assert visitor.heard == [("ask", True)]
            assert not come_in(visitor)
            assert codes(visitor)[-1] == REFUSED
            visitor.heard.clear()
            visitor.ask()
            assert visitor.heard == [("ask", False)]
