"""Kafka and our broker accept the same SCRAM users, apart from excessive lengths."""

from collections.abc import Mapping
from typing import Final

import pytest
from tests.worlds.brokers.doors import Door
from tests.worlds.brokers.logins import plain, say, shake
from tests.worlds.clients.login_talk import doors
from tests.worlds.clients.raw import RawClient

from tidelog.protocol.messages import ALTER_USER_SCRAM_CREDENTIALS
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)

__all__ = ["doors"]
pytestmark = pytest.mark.kafka
GOOD: Final[dict[str, object]] = {
    "name": "somebody",
    "mechanism": 1,
    "iterations": 4096,
    "salt": b"salt",
    "salted_password": bytes(32),
}
UNACCEPTABLE: Final = 93
# Values of a user's fields that only our broker refuses, each with the code that Kafka returns.
STRICTER: Final[dict[str, tuple[Mapping[str, object], int]]] = {
    "no salt": ({"salt": b""}, 0),
    "a long salt": ({"salt": bytes(1025)}, 0),
    "no salted password": ({"salted_password": b""}, -1),
    "a long salted password": ({"salted_password": bytes(1025)}, 0),
    "a long name": ({"name": "x" * 1025}, 0),
}


def response_to(door: Door, changes: Mapping[str, object]) -> tuple[int, str]:
    """Create a SCRAM user that is valid except for the changes; return the response."""
    one = ScramCredentialUpsertion(**(GOOD | dict(changes)))  # type: ignore[arg-type]  # each has its type
    with RawClient(door.bootstrap) as client:
        shake(client, "PLAIN")
        assert say(client, plain()).error_code == 0
        asked = AlterUserScramCredentialsRequest(upsertions=[one])
        (found,) = client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, asked).results
        return found.error_code, found.error_message or ""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"salted_password": b"x"},
        {"name": "a,b=c\n"},
        {"mechanism": 0},
        {"mechanism": 3},
        {"mechanism": -1},
        {"iterations": 4095},
        {"iterations": 16_385},
        {"iterations": -1},
        {"name": ""},
        {"mechanism": 0, "iterations": 1},
        {"name": "", "iterations": 1},
        {"salt": b"", "iterations": 1},
    ],
    ids=repr,
)
def test_both_brokers_respond_equally(
    doors: tuple[Door, Door], changes: Mapping[str, object]
) -> None:
    kafka, ours = (response_to(door, changes) for door in doors)
    assert ours == kafka


@pytest.mark.parametrize("what", STRICTER)
def test_empty_or_overlong_values_are_refused_by_tidelog_only(
    doors: tuple[Door, Door], what: str
) -> None:
    changes, code = STRICTER[what]
    assert [response_to(door, changes)[0] for door in doors] == [code, UNACCEPTABLE]
