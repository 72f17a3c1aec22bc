"""Each user sends requests of each API to Kafka and our broker, and gets the same results.

Kafka runs its StandardAuthorizer. There are thousands of pairs of a user and a request, so each
test sends all requests of a user. Other tests take users with ACLs about administration, and run
the steps of admin_table with four admin clients (admin_clients).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pytest
from tests.peers.admin_clients import (
    Shown,
    Told,
    by_aiokafka,
    by_confluent,
    by_java,
    by_kafka_python,
)
from tests.peers.admin_table import ADMINISTRATORS, ROWS, Step, is_allowed
from tests.peers.rights_oddities import ODD, oddities
from tests.peers.rights_questions import questions
from tests.peers.rights_sides import Side, sides
from tests.worlds.clients.rights_talk import (
    PATIENCE_S,
    SUPER,
    USERS,
    Question,
    allow,
    creation,
    differences,
    everything,
    give_acls_again,
    logged_in,
    make_anew,
    shared,
)
from tests.worlds.kafka.oracle import Oracle

from tidelog.protocol.messages import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from tidelog.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tidelog.protocol.schema import Api

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["sides"]
pytestmark = pytest.mark.kafka

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")


@pytest.mark.parametrize("user", USERS)
def test_the_same_is_allowed_and_denied(sides: tuple[Side, Side], user: str) -> None:
    kafka, ours = sides
    with logged_in(kafka.bootstrap, user) as theirs, logged_in(ours.bootstrap, user) as own:
        asked = zip(questions(user, kafka.ids), questions(user, ours.ids), strict=True)
        found = [
            f"{first.name}, version {first.version}{text}"
            for first, second in asked
            for text in differences(kafka.tell(theirs, first), ours.tell(own, second))
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("user", ODD)
def test_odd_requests_are_refused_for_the_same_reason(sides: tuple[Side, Side], user: str) -> None:
    kafka, ours = sides
    found = []
    for first, second in zip(oddities(user, kafka.ids), oddities(user, ours.ids), strict=True):
        expected, told = answer_or_end(kafka, user, first), answer_or_end(ours, user, second)
        texts = differences(expected, told)
        found += [f"{first.name}, version {first.version}{text}" for text in texts]
    assert not found, "\n".join(found)


def answer_or_end(side: Side, user: str, question: Question) -> object:
    """Return the response, or `closed` if the broker closed the connection."""
    with logged_in(side.bootstrap, user) as client:
        try:
            return side.tell(client, question)
        except ConnectionError:
            return "closed"


# -- through admin clients -----------------------------------------------------------------------

ROWS_LEAST: Final = 600
# Results that show that a step was allowed. For the steps in WELL, some errors about the object
# also show that the step was allowed, such as the error that the topic already exists.
DONE: Final[set[Shown]] = {0, "OK", "settings", "folders", "rules"}
WELL: Final[Mapping[Step, set[Shown]]] = {
    Step.CREATE: {0, 36},
    Step.USERS: {91, "unknown"},
    Step.CHANGE_USERS: {91, "unknown"},
    Step.ELECT: {0, 84},
    Step.MOVE: {57},
    Step.REASSIGN: {3},
}


def test_the_table_is_large_and_each_step_is_allowed_to_some_only() -> None:
    assert len(ROWS) >= ROWS_LEAST
    for step in Step:
        assert {row.is_allowed for row in ROWS if row.step is step} == {True, False}, step


@pytest.fixture
def clients(kafka_oracle: Oracle) -> Mapping[str, Callable[[str, str], Told]]:
    """Return the clients by name; each takes a broker's address and a user."""
    return {
        "confluent-kafka": by_confluent,
        "kafka-python": by_kafka_python,
        "aiokafka": by_aiokafka,
        "Java": partial(by_java, kafka_oracle),
    }


def shown_at(side: Side, ask: Callable[[str, str], Told], user: str) -> Told:
    """Recreate the topic of the steps; return what a client shows at one broker."""
    make_anew(side.bootstrap)
    return ask(side.bootstrap, user)


@pytest.mark.parametrize("user", ADMINISTRATORS)
def test_admin_clients_show_the_same(
    sides: tuple[Side, Side], clients: Mapping[str, Callable[[str, str], Told]], user: str
) -> None:
    wrong = []
    for name, ask in clients.items():
        kafka, ours = (shown_at(side, ask, user) for side in sides)
        for step, shown in kafka.items():
            if shown != ours[step]:
                wrong.append(f"{name}, {step}: Kafka {shown!r}, ours {ours[step]!r}")
            if (shown in WELL.get(step, DONE)) != is_allowed(user, step):
                wrong.append(f"{name}, {step}: {shown!r}, though allowed: {is_allowed(user, step)}")
    assert not wrong, "\n".join(wrong)


# -- ACLs themselves ----------------------------------------------------------------------------


def acl(**changes: int | str) -> AclCreation:
    """Return an otherwise valid ACL with some changes."""
    found = creation("ruled", allow("READ", name="ruled"))
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]  # each by its own name


CREATIONS: Final = [
    acl(),
    acl(),
    *(acl(resource_type=kind) for kind in range(-1, 9)),
    acl(resource_type=4, resource_name="kafka-cluster", operation=9),
    acl(resource_type=4, resource_name="kafka-cluster", resource_pattern_type=4, operation=9),
    *(acl(resource_pattern_type=kind) for kind in range(-1, 6)),
    *(acl(operation=number) for number in range(-1, 17)),
    *(acl(permission_type=number) for number in range(-1, 5)),
    *(acl(resource_name=name) for name in ("", "*", "a b", "ä", "x" * 300)),
    *(acl(resource_name=name, resource_pattern_type=4) for name in ("", "*", "p")),
    *(acl(principal=name) for name in ("", "ruled", "User:", ":ruled", "User:*", "Group:g")),
    *(acl(principal=name) for name in ("User:ru:led", "user:ruled", "User:CN=a,O=b")),
    *(acl(host=name) for name in ("", "*", "10.0.0.1", "10.0.0.0/8", "::1", "a.example")),
]
FILTERS: Final = [
    *(("resource_type_filter", kind) for kind in range(-1, 9)),
    *(("resource_name_filter", name) for name in (None, "", "*", "p", "ruled", "other")),
    *(("pattern_type_filter", kind) for kind in range(-1, 6)),
    *(("principal_filter", name) for name in (None, "", "User:ruled", "User:*", "ruled", "x:y")),
    *(("host_filter", name) for name in (None, "", "*", "10.0.0.1")),
    *(("operation", number) for number in range(-1, 17)),
    *(("permission_type", number) for number in range(-1, 5)),
]


def matching(name: str | None) -> list[DescribeAclsRequest]:
    """Return requests for the ACLs of a name, with each way of matching it."""
    asked = dataclasses.replace(everything(), resource_name_filter=name)
    return [dataclasses.replace(asked, pattern_type_filter=kind) for kind in (1, 2, 3, 4)]


class AclTalk:
    """Sends requests about ACLs to one broker; records each response or disconnection."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = logged_in(bootstrap, SUPER)
        self.told: list[object] = []

    def ask(self, api: Api[Request, Response], version: int, message: Request) -> None:
        """Send a request and record the response."""
        what = f"{api.name}, version {version}: {message}"
        try:
            answer = shared(self._client.ask(api, version, message), {})
        except ConnectionError:
            answer = "closed"
            self._client.close()
            self._client = logged_in(self._bootstrap, SUPER)
        self.told.append({what: answer})

    def _await_last(self) -> None:
        """Create a last ACL, and wait until it is visible, which is after Kafka's response."""
        last = acl(resource_name="last", principal="User:last")
        self.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=[last]))
        end = time.monotonic() + PATIENCE_S
        while not self._client.ask(DESCRIBE_ACLS, 3, everything("User:last")).resources:
            assert time.monotonic() < end, "a rule never came"

    def run(self) -> list[object]:
        """Create, describe and delete ACLs."""
        for asked in CREATIONS:
            self.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=[asked]))
        for version in (1, 2, 3):
            self.ask(CREATE_ACLS, version, CreateAclsRequest(creations=CREATIONS[:2]))
        self._await_last()
        named = (matching(name) for name in (None, "*", "p", "plum", "ruled", ""))
        wanted = [
            *(dataclasses.replace(everything(), **{name: value}) for name, value in FILTERS),  # type: ignore[arg-type]  # the same
            *(each for some in named for each in some),
        ]
        for each in wanted:
            self.ask(DESCRIBE_ACLS, 3, each)
        self.ask(DESCRIBE_ACLS, 1, everything())
        for name, value in FILTERS:
            given = everything("User:ruled")
            names = [field.name for field in dataclasses.fields(DeleteAclsFilter)]
            every = DeleteAclsFilter(**{each: getattr(given, each) for each in names})
            going = dataclasses.replace(every, **{name: value})  # type: ignore[arg-type]  # the same
            self.ask(DELETE_ACLS, 3, DeleteAclsRequest(filters=[going, every]))
            self.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=CREATIONS[:1]))
        self._client.close()
        return self.told


def test_acls_are_created_described_and_deleted_equally(sides: tuple[Side, Side]) -> None:
    """Restore the users' ACLs at the end, because other tests may run later."""
    kafka, ours = sides
    try:
        expected, found = AclTalk(kafka.bootstrap).run(), AclTalk(ours.bootstrap).run()
    finally:
        for side in sides:
            give_acls_again(side.bootstrap)
    texts = [text for pair in zip(expected, found, strict=True) for text in differences(*pair)]
    assert not texts, "\n".join(texts)
