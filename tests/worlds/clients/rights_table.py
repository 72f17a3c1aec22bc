"""Tables of rights, drawn by seed, for two brokers: ACLs, rows, and the expected results.

One broker allows an operation only if an ACL allows it. The second broker also allows every
operation on resources that have no ACL. A row of a table is a user, a step that every client can
take, and a resource name.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tests.worlds.clients.rights_model import CLUSTER, EVERYBODY, ModelAcl, ModelAcls

from tidelog.server.security.operations import Operation, ResourceType

SEED: Final = 55
HERE: Final = "127.0.0.1"
ELSEWHERE: Final = "10.1.2.3"
BOSS: Final = "boss"
# A super user, for whom ACLs that deny operations have no effect.
CHIEF: Final = "chief"
OPEN: Final = "open"
TOPICS: Final = ("flights", "flight-log", "fleet", "fares", "secret", OPEN)
GROUPS: Final = ("crew", "crew-night", "ground")
IDS: Final = ("pay", "pay-late")
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ID = ResourceType.TRANSACTIONAL_ID


class Step(StrEnum):
    """Step of a client; Java's driver uses the same names."""

    SEE = "see"
    READ = "read"
    WRITE = "write"
    COMMITTED = "committed"
    COMMIT = "commit"
    BEGIN = "begin"
    NUMBER = "number"


# The rights that a user needs for each step with a real client. Each step needs Describe, because
# all clients first request metadata or the coordinator.
NEEDS: Final[Mapping[Step, tuple[ResourceType, tuple[Operation, ...]]]] = {
    Step.SEE: (TOPIC, (Operation.DESCRIBE,)),
    Step.READ: (TOPIC, (Operation.DESCRIBE, Operation.READ)),
    Step.WRITE: (TOPIC, (Operation.DESCRIBE, Operation.WRITE)),
    Step.COMMITTED: (GROUP, (Operation.DESCRIBE,)),
    Step.COMMIT: (GROUP, (Operation.DESCRIBE, Operation.READ)),
    Step.BEGIN: (ID, (Operation.DESCRIBE, Operation.WRITE)),
    Step.NUMBER: (ResourceType.CLUSTER, (Operation.IDEMPOTENT_WRITE,)),
}
NAMES: Final = {TOPIC: TOPICS, GROUP: GROUPS, ID: IDS, ResourceType.CLUSTER: (CLUSTER,)}


class Row(NamedTuple):
    """One line of the table."""

    user: str
    step: Step
    name: str
    is_allowed: bool


@dataclass(frozen=True)
class World:
    """One broker's ACLs, users and rows."""

    acls: ModelAcls
    users: tuple[str, ...]
    rows: tuple[Row, ...]

    def rows_of(self, user: str) -> list[Row]:
        """Return the rows of one user."""
        return [row for row in self.rows if row.user == user]

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of a broker, ours or Kafka's."""
        return {
            "super.users": ";".join(sorted(self.acls.super_users)),
            "allow.everyone.if.no.acl.found": str(self.acls.is_open).lower(),
        }


# -- drawing -------------------------------------------------------------------------------------

# Names and patterns for the tables: a star at the end makes a prefix; a star alone is the wildcard.
STRICT: Final = {
    TOPIC: (*TOPICS, "*", "f*", "fl*", "flight*", "se*"),
    GROUP: (*GROUPS, "*", "crew*"),
    ID: (*IDS, "*", "pay*"),
    ResourceType.CLUSTER: (CLUSTER,),
}
# Names and patterns for the tables without the wildcard: an ACL for `*` would give every name an
# ACL.
LOOSE: Final = {
    TOPIC: ("flights", "fleet", "flight*", "secret"),
    GROUP: ("crew", "crew-*"),
    ID: ("pay", "pay-l*"),
    ResourceType.CLUSTER: (CLUSTER,),
}
OPERATIONS: Final = {
    TOPIC: ["READ", "READ", "WRITE", "WRITE", "DESCRIBE", "ALL", "ALTER", "DELETE", "CREATE"],
    GROUP: ["READ", "READ", "DESCRIBE", "DELETE", "ALL"],
    ID: ["WRITE", "WRITE", "DESCRIBE", "ALL"],
    ResourceType.CLUSTER: ["IDEMPOTENT_WRITE", "ALL", "CREATE", "DESCRIBE"],
}
KINDS: Final = (TOPIC, TOPIC, TOPIC, GROUP, GROUP, ID, ID, ResourceType.CLUSTER)
HOSTS: Final = ("*", "*", "*", HERE, ELSEWHERE)


def draw_acl(
    rng: random.Random, principal: str, patterns: Mapping[ResourceType, Sequence[str]]
) -> ModelAcl:
    """Draw an ACL for a principal; three of four ACLs allow an operation, the others deny it."""
    kind = rng.choice(KINDS)
    pattern = rng.choice(patterns[kind])
    is_prefix = len(pattern) > 1 and pattern.endswith("*")
    return ModelAcl(
        principal=principal,
        kind=kind,
        name=pattern.removesuffix("*") if is_prefix else pattern,
        is_prefix=is_prefix,
        host=rng.choice(HOSTS),
        operation=Operation[rng.choice(OPERATIONS[kind])],
        allows=rng.random() < 0.75,
    )


def draw_acls(rng: random.Random, users: Sequence[str], *, is_open: bool) -> ModelAcls:
    """Draw ACLs for each user and for all users; let all users read the topic `open`."""
    patterns = LOOSE if is_open else STRICT
    most = 3 if is_open else 9
    drawn = [
        draw_acl(rng, f"User:{user}", patterns)
        for user in users
        for _ in range(rng.randint(1, most))
    ]
    drawn += [draw_acl(rng, EVERYBODY, LOOSE) for _ in range(2)]
    drawn.append(_acl(EVERYBODY, TOPIC, OPEN, Operation.READ, allows=True))
    for kind in (TOPIC, GROUP, ID):
        name = NAMES[kind][0] if is_open else "*"
        drawn.append(_acl(f"User:{CHIEF}", kind, name, Operation.ALL, allows=False))
    chiefs = frozenset({f"User:{BOSS}", f"User:{CHIEF}", "User:ANONYMOUS"})
    return ModelAcls(tuple(dict.fromkeys(drawn)), chiefs, is_open)


def _acl(
    principal: str, kind: ResourceType, name: str, operation: Operation, *, allows: bool
) -> ModelAcl:
    return ModelAcl(
        principal=principal,
        kind=kind,
        name=name,
        is_prefix=False,
        host="*",
        operation=operation,
        allows=allows,
    )


def _allows(acls: ModelAcls, user: str, step: Step, name: str) -> bool:
    kind, operations = NEEDS[step]
    principal = f"User:{user}"
    if step is Step.NUMBER and acls.may_somewhere(principal, HERE, Operation.WRITE, TOPIC):
        return True
    return all(acls.may(principal, HERE, operation, kind, name) for operation in operations)


def _rows(acls: ModelAcls, user: str) -> Iterator[Row]:
    """Yield a user's rows. A user without access to topic `open` gets only rows about topics."""
    reads_open = _allows(acls, user, Step.READ, OPEN)
    for step, (kind, _) in NEEDS.items():
        if kind is TOPIC or reads_open:
            for name in NAMES[kind]:
                yield Row(user, step, name, _allows(acls, user, step, name))


def _world(name: str, users: Sequence[str], *, is_open: bool) -> World:
    acls = draw_acls(random.Random(f"{name} {SEED}"), users, is_open=is_open)
    everybody = (*users, CHIEF)
    rows = tuple(row for user in everybody for row in _rows(acls, user))
    return World(acls, everybody, rows)


WORLDS: Final[Mapping[str, World]] = {
    "strict": _world("strict", [f"u{number}" for number in range(14)], is_open=False),
    "loose": _world("loose", [f"v{number}" for number in range(6)], is_open=True),
}
