"""Kafka and our broker accept the same SCRAM users, but ours refuses empty and very long values."""

from collections.abc import Iterable, Mapping
from typing import Final

import pytest
from tests.worlds.brokers.doors import Door
from tests.worlds.brokers.logins import plain, say, shake
from tests.worlds.clients.login_talk import doors
from tests.worlds.clients.raw import RawClient

from tidelog.protocol.messages import ALTER_USER_SCRAM_CREDENTIALS
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
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


DELETION, SETTING = "delete", "set"
USER: Final = "SCRAM-SHA-256-user"
# A request's changes: kind, name, mechanism, and iterations of a new credential.
Change = tuple[str, str, int, int]
REQUESTS: Final[dict[str, list[Change]]] = {
    "two mechanisms": [(SETTING, "x", 1, 4096), (SETTING, "x", 2, 4096)],
    "a valid and an invalid change": [(SETTING, "x", 1, 4096), (SETTING, "x", 1, 1)],
    "an invalid and a valid change": [(SETTING, "x", 1, 1), (SETTING, "x", 1, 4096)],
    "two invalid changes": [(SETTING, "x", 3, 4096), (SETTING, "x", 1, 1)],
    "two deletions": [(DELETION, "x", 1, 0), (DELETION, "x", 0, 0)],
    "two equal deletions": [(DELETION, "x", 1, 0), (DELETION, "x", 1, 0)],
    "an existing user": [(DELETION, USER, 1, 0), (DELETION, USER, 0, 0)],
    "deletions without a name": [(DELETION, "", 1, 0), (DELETION, "", 0, 0)],
    "a missing user": [(DELETION, "x", 1, 0), (SETTING, "x", 1, 4096)],
    "an unknown mechanism": [(DELETION, "x", 0, 0), (SETTING, "x", 1, 1)],
    "several users": [
        (DELETION, "x", 1, 0),
        (SETTING, "y", 1, 4096),
        (SETTING, "z", 1, 1),
        (SETTING, "y", 1, 4096),
    ],
}


def responses_to(door: Door, changes: Iterable[Change]) -> list[tuple[str, int, str | None]]:
    """Send several changes in one request; return the results in the response's order."""
    request = AlterUserScramCredentialsRequest(
        deletions=[
            ScramCredentialDeletion(name=name, mechanism=mechanism)
            for kind, name, mechanism, _ in changes
            if kind == DELETION
        ],
        upsertions=[
            ScramCredentialUpsertion(
                name=name,
                mechanism=mechanism,
                iterations=iterations,
                salt=b"salt",
                salted_password=bytes(32),
            )
            for kind, name, mechanism, iterations in changes
            if kind == SETTING
        ],
    )
    with RawClient(door.bootstrap) as client:
        shake(client, "PLAIN")
        assert say(client, plain()).error_code == 0
        found = client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, request).results
        return [(each.user, each.error_code, each.error_message) for each in found]


@pytest.mark.parametrize("what", REQUESTS)
def test_a_users_first_error_is_the_response_to_several_changes(
    doors: tuple[Door, Door], what: str
) -> None:
    kafka, ours = (sorted(responses_to(door, REQUESTS[what])) for door in doors)
    assert ours == kafka


def test_only_tidelog_keeps_the_order_of_users(doors: tuple[Door, Door]) -> None:
    changes: list[Change] = [(DELETION, f"d{number}", 1, 0) for number in (5, 3, 8, 1)]
    kafka, ours = ([name for name, *_ in responses_to(door, changes)] for door in doors)
    assert (kafka, ours) == (["d5", "d8", "d1", "d3"], ["d5", "d3", "d8", "d1"])


@pytest.mark.parametrize("what", STRICTER)
def test_empty_or_overlong_values_are_refused_by_tidelog_only(
    doors: tuple[Door, Door], what: str
) -> None:
    changes, code = STRICTER[what]
    assert [response_to(door, changes)[0] for door in doors] == [code, UNACCEPTABLE]
