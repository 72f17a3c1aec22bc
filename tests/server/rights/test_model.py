"""The model of the table and our authorizer give the same results as Kafka's StandardAuthorizer."""

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from tests.worlds.clients.rights_model import CLUSTER, EVERYBODY, ModelAcl, ModelAcls
from tests.worlds.clients.rights_table import (
    ELSEWHERE,
    GROUPS,
    HERE,
    IDS,
    LOOSE,
    STRICT,
    TOPICS,
    WORLDS,
    draw_acl,
)
from tests.worlds.kafka.oracle import Oracle

from tidelog.server.security.authorizer import Acl, Authorizer
from tidelog.server.security.operations import (
    Client,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

pytestmark = pytest.mark.kafka

QUICK, SEEDS = 20, 200
USERS: Final = ("ann", "bob", "boss")
HOSTS: Final = (HERE, ELSEWHERE, "::1")
OPERATIONS: Final = tuple(each for each in Operation if each > Operation.ANY)
NAMES: Final = {
    ResourceType.TOPIC: (*TOPICS, "f", "hardcode", "other"),
    ResourceType.GROUP: (*GROUPS, "c", "hardcode"),
    ResourceType.TRANSACTIONAL_ID: (*IDS, "p", "hardcode"),
    ResourceType.CLUSTER: (CLUSTER,),
}


class Question(NamedTuple):
    """Whether a user may do an operation on a resource.

    If `name` is None: whether the user may do it on at least one resource of this type.
    """

    user: str
    host: str
    operation: Operation
    kind: ResourceType
    name: str | None


def questions(*users: str) -> Iterator[Question]:
    """Yield all questions. Those without a name are about the right to write to some topic."""
    for user in users:
        for host in HOSTS:
            for kind, names in NAMES.items():
                for operation in OPERATIONS:
                    for name in names:
                        yield Question(user, host, operation, kind, name)
            yield Question(user, host, Operation.WRITE, ResourceType.TOPIC, None)


def by_model(acls: ModelAcls, asked: Question) -> bool:
    """Return the model's result."""
    user, host, operation, kind, name = asked
    if name is None:
        return acls.may_somewhere(f"User:{user}", host, operation, kind)
    return acls.may(f"User:{user}", host, operation, kind, name)


def by_ours(authorizer: Authorizer, asked: Question) -> bool:
    """Return the result of our authorizer."""
    who = Client(f"User:{asked.user}", asked.host)
    if asked.name is None:
        return authorizer.may_any(who, asked.operation, asked.kind)
    return authorizer.may(who, asked.operation, asked.kind, asked.name)


def by_kafka(oracle: Oracle, acls: ModelAcls, asked: list[Question]) -> object:
    """Return the results of Kafka's authorizer."""
    on_the_wire = [acl.on_the_wire() for acl in acls.acls]
    return oracle.ask(
        "authorize",
        super_users=";".join(acls.super_users),
        is_open=str(acls.is_open).lower(),
        rules=[
            [
                acl.resource_type,
                acl.resource_name,
                acl.resource_pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            ]
            for acl in on_the_wire
        ],
        asked=[list(each) for each in asked],
    )


def our_authorizer(acls: ModelAcls) -> Authorizer:
    """Return our authorizer with these ACLs."""
    return Authorizer(
        [_acl(acl) for acl in acls.acls],
        super_users=acls.super_users,
        allows_without_rules=acls.is_open,
    )


def _acl(acl: ModelAcl) -> Acl:
    return Acl(
        resource_type=acl.kind,
        name=acl.name,
        pattern=PatternType.PREFIXED if acl.is_prefix else PatternType.LITERAL,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=Permission.ALLOW if acl.allows else Permission.DENY,
    )


def differences(oracle: Oracle, acls: ModelAcls, asked: list[Question]) -> list[object]:
    """Return the questions to which the model, our authorizer and Kafka give different results."""
    authorizer = our_authorizer(acls)
    told = by_kafka(oracle, acls, asked)
    assert isinstance(told, list)
    said = [(by_model(acls, each), by_ours(authorizer, each)) for each in asked]
    return [
        (each, kafka, pair)
        for each, kafka, pair in zip(asked, told, said, strict=True)
        if pair != (kafka, kafka)
    ]


@pytest.mark.parametrize("name", WORLDS)
def test_acls_of_the_table(kafka_oracle: Oracle, name: str) -> None:
    world = WORLDS[name]
    asked = list(questions(*world.users, "stranger"))
    assert not differences(kafka_oracle, world.acls, asked)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.slow) for seed in range(SEEDS)],
)
def test_drawn_acls(kafka_oracle: Oracle, seed: int) -> None:
    rng = random.Random(f"rules {seed}")
    is_open = rng.random() < 0.5
    principals = [EVERYBODY, *(f"User:{user}" for user in USERS)]
    drawn = [
        _widened(rng, draw_acl(rng, rng.choice(principals), rng.choice([STRICT, LOOSE])))
        for _ in range(rng.randint(0, 25))
    ]
    acls = ModelAcls(tuple(dict.fromkeys(drawn)), frozenset({"User:boss"}), is_open)
    asked = rng.sample(list(questions(*USERS, "stranger")), 1500)
    some = Question("ann", HERE, Operation.WRITE, ResourceType.TOPIC, None)
    assert not differences(kafka_oracle, acls, [*asked, some])


def _widened(rng: random.Random, acl: ModelAcl) -> ModelAcl:
    """Return the ACL with a random choice of allow or deny, and often with another operation."""
    if rng.random() < 0.6:
        acl = acl._replace(operation=rng.choice(OPERATIONS))
    return acl._replace(allows=rng.random() < 0.6)
