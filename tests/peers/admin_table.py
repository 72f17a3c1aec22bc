"""A table of administration rights: the users of rights_talk, and steps of admin clients.

A row is a user and a step. `tests.worlds.clients.rights_model` gives the expected result; the tests
compare the results that the same client gets from two brokers.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from tests.worlds.clients.rights_model import EVERYBODY, ModelAcl, ModelAcls
from tests.worlds.clients.rights_talk import CLUSTER, FOR_ALL, GROUP, GROUPS, MADE, TOPIC, USERS
from tests.worlds.clients.rights_talk import AclFields as Written

from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType

HERE: Final = "127.0.0.1"
# A user without any objects.
SOMEONE: Final = "someone"
NOWHERE: Final = "nowhere"
SEEN: Final = "flights"
BROKER_ID: Final = 1
BROKER_KEY: Final = "log.cleaner.backoff.ms"
NO_FOLDER: Final = "/not/here"


class Step(StrEnum):
    """Step of a client; Java's driver uses the same names."""

    GROW = "grow"
    SET = "set"
    SET_ALL = "set-all"
    DELETE = "delete"
    CREATE = "create"
    LOOK = "look"
    TRIM = "trim"
    PRODUCERS = "producers"
    FORGET_OFFSETS = "forget-offsets"
    FORGET = "forget"
    RULES = "rules"
    ADD_RULE = "add-rule"
    DROP_RULE = "drop-rule"
    USERS = "users"
    CHANGE_USERS = "change-users"
    QUOTAS = "quotas"
    CHANGE_QUOTAS = "change-quotas"
    ELECT = "elect"
    LOOK_AT_BROKER = "look-at-broker"
    SET_BROKER = "set-broker"
    DIRS = "dirs"
    MOVE = "move"
    REASSIGN = "reassign"
    ONGOING = "ongoing"
    RESOURCES = "resources"
    QUORUM = "quorum"


class Need(NamedTuple):
    """A right that a step needs."""

    kind: ResourceType
    name: str
    operation: Operation


def _of(kind: ResourceType, name: str, *words: str) -> tuple[Need, ...]:
    return tuple(Need(kind, name, Operation[word]) for word in words)


def _of_cluster(word: str) -> tuple[Need, ...]:
    return _of(ResourceType.CLUSTER, CLUSTER, word)


# The rights that each step needs with a real client, including those for the client's earlier
# requests (metadata, a group's coordinator).
NEEDS: Final[Mapping[Step, tuple[Need, ...]]] = {
    Step.GROW: _of(TOPIC, MADE, "ALTER"),
    Step.SET: _of(TOPIC, MADE, "ALTER_CONFIGS"),
    Step.SET_ALL: _of(TOPIC, MADE, "ALTER_CONFIGS"),
    Step.DELETE: _of(TOPIC, MADE, "DESCRIBE", "DELETE"),
    Step.CREATE: _of(TOPIC, MADE, "CREATE"),
    Step.LOOK: _of(TOPIC, SEEN, "DESCRIBE_CONFIGS"),
    Step.TRIM: _of(TOPIC, SEEN, "DESCRIBE", "DELETE"),
    Step.PRODUCERS: _of(TOPIC, SEEN, "DESCRIBE", "READ"),
    Step.FORGET_OFFSETS: (*_of(GROUPS, GROUP, "DESCRIBE", "DELETE"), *_of(TOPIC, SEEN, "READ")),
    Step.FORGET: _of(GROUPS, GROUP, "DESCRIBE", "DELETE"),
    **dict.fromkeys(
        (Step.RULES, Step.USERS, Step.DIRS, Step.ONGOING, Step.QUORUM), _of_cluster("DESCRIBE")
    ),
    **dict.fromkeys(
        (Step.ADD_RULE, Step.DROP_RULE, Step.CHANGE_USERS, Step.ELECT, Step.MOVE, Step.REASSIGN),
        _of_cluster("ALTER"),
    ),
    **dict.fromkeys(
        (Step.QUOTAS, Step.LOOK_AT_BROKER, Step.RESOURCES), _of_cluster("DESCRIBE_CONFIGS")
    ),
    **dict.fromkeys((Step.CHANGE_QUOTAS, Step.SET_BROKER), _of_cluster("ALTER_CONFIGS")),
}
# For some steps, the cluster right that is sufficient in place of the rights in NEEDS.
INSTEAD: Final[Mapping[Step, Need]] = {
    Step.CREATE: Need(ResourceType.CLUSTER, CLUSTER, Operation.CREATE),
    Step.DELETE: Need(ResourceType.CLUSTER, CLUSTER, Operation.DELETE),
}
# Users with ACLs on topics, groups or the cluster, and users with all rights or none.
ADMINISTRATORS: Final = tuple(
    name
    for name in USERS
    if name.startswith(("topic-", "group-", "cluster-", "but-"))
    or name in {"nobody", "all", "by-prefix"}
)


class Row(NamedTuple):
    """One line of the table."""

    user: str
    step: Step
    is_allowed: bool


def _acl(principal: str, written: Written) -> ModelAcl:
    kind, name, pattern, host, operation, permission = written
    return ModelAcl(
        principal=principal,
        kind=kind,
        name=name,
        is_prefix=pattern is PatternType.PREFIXED,
        host=host,
        operation=operation,
        allows=permission is Permission.ALLOW,
    )


ACLS: Final = ModelAcls(
    tuple(
        _acl(principal, written)
        for principal, some in (
            *((f"User:{user}", some) for user, some in USERS.items()),
            (EVERYBODY, FOR_ALL),
        )
        for written in some
    ),
    super_users=frozenset(),
    is_open=False,
)


def is_allowed(user: str, step: Step) -> bool:
    """Whether the user may take the step."""

    def may(need: Need) -> bool:
        return ACLS.may(f"User:{user}", HERE, need.operation, need.kind, need.name)

    if step in INSTEAD and may(INSTEAD[step]):
        return True
    return all(map(may, NEEDS[step]))


ROWS: Final = tuple(
    Row(user, step, is_allowed(user, step)) for user in ADMINISTRATORS for step in Step
)
