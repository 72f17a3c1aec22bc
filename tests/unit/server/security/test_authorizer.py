"""Authorization by ACLs: results of Kafka's authorizer, and comparison with a plain model.

The rows follow Kafka 4.3's StandardAuthorizer as described in its documentation, KIP-11 and
KIP-290.
"""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.server.security.authorizer import (
    REMEMBERED_NAME_MAX,
    Acl,
    AclFilter,
    Authorizer,
    parse_super_users,
)
from tidelog.server.security.operations import (
    Client,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE = Client("User:alice", "10.0.0.1")
WANTED = [operation for operation in Operation if operation > Operation.ALL]
GRANTED = [operation for operation in Operation if operation >= Operation.ALL]
# Operations that an allowed operation implies.
ALSO = {
    "READ": {"DESCRIBE"},
    "WRITE": {"DESCRIBE"},
    "DELETE": {"DESCRIBE"},
    "ALTER": {"DESCRIBE"},
    "ALTER_CONFIGS": {"DESCRIBE_CONFIGS"},
}


def rule(
    permission: Permission = ALLOW,
    operation: Operation = Operation.READ,
    name: str = "flights",
    *,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> Acl:
    """Return a rule, by default that alice may read topic flights."""
    return Acl(
        resource_type=kind,
        name=name,
        pattern=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def may(*rules: Acl, operation: Operation = Operation.READ, name: str = "flights") -> bool:
    """Return whether alice may perform an operation on a topic under these rules."""
    return Authorizer(rules).may(ALICE, operation, TOPIC, name)


@pytest.mark.parametrize("wanted", WANTED, ids=lambda found: found.name)
@pytest.mark.parametrize("granted", GRANTED, ids=lambda found: found.name)
def test_an_allowed_operation_allows_the_implied_ones(
    granted: Operation, wanted: Operation
) -> None:
    """For each pair of operations: allowing one grants it and the operations that it implies."""
    expected = granted.name in {"ALL", wanted.name} or wanted.name in ALSO.get(granted.name, ())
    assert may(rule(ALLOW, granted), operation=wanted) is expected


@pytest.mark.parametrize("wanted", WANTED, ids=lambda found: found.name)
@pytest.mark.parametrize("denied", GRANTED, ids=lambda found: found.name)
def test_a_denied_operation_denies_no_other(denied: Operation, wanted: Operation) -> None:
    """Even if all operations are allowed, denying one of them denies no other operation."""
    expected = denied.name not in {"ALL", wanted.name}
    found = may(rule(ALLOW, Operation.ALL), rule(DENY, denied), operation=wanted)
    assert found is expected


STAR = "*"
ROWS = [
    # rules; requested name; allowed
    ((), "flights", False),
    ((rule(),), "flights", True),
    ((rule(),), "flight", False),
    ((rule(),), "flights2", False),
    ((rule(),), "Flights", False),
    ((rule(name=STAR),), "flights", True),
    ((rule(name=STAR),), STAR, True),
    ((rule(name=STAR, pattern=PREFIXED),), "flights", False),
    ((rule(name=STAR, pattern=PREFIXED),), "*a", True),
    ((rule(name="fli", pattern=PREFIXED),), "flights", True),
    ((rule(name="flights", pattern=PREFIXED),), "flights", True),
    ((rule(name="flights2", pattern=PREFIXED),), "flights", False),
    ((rule(name="lights", pattern=PREFIXED),), "flights", False),
    ((rule(name="fli"),), "flights", False),
    ((rule(principal="User:bob"),), "flights", False),
    ((rule(principal="User:*"),), "flights", True),
    ((rule(principal="Group:*"),), "flights", False),
    ((rule(principal="User:alic"),), "flights", False),
    ((rule(principal="user:alice"),), "flights", False),
    ((rule(host="10.0.0.1"),), "flights", True),
    ((rule(host="10.0.0.2"),), "flights", False),
    ((rule(host="10.0.0.*"),), "flights", False),
    ((rule(kind=GROUP),), "flights", False),
    ((rule(operation=Operation.WRITE),), "flights", False),
    ((rule(), rule(DENY)), "flights", False),
    ((rule(), rule(DENY, name=STAR)), "flights", False),
    ((rule(), rule(DENY, name="f", pattern=PREFIXED)), "flights", False),
    ((rule(), rule(DENY, name="g", pattern=PREFIXED)), "flights", True),
    ((rule(), rule(DENY, principal="User:*")), "flights", False),
    ((rule(), rule(DENY, principal="User:bob")), "flights", True),
    ((rule(), rule(DENY, host="10.0.0.1")), "flights", False),
    ((rule(), rule(DENY, host="10.0.0.2")), "flights", True),
    ((rule(), rule(DENY, Operation.WRITE)), "flights", True),
    ((rule(), rule(DENY, Operation.DESCRIBE)), "flights", True),
    ((rule(), rule(DENY, Operation.ALL)), "flights", False),
    ((rule(ALLOW, Operation.ALL), rule(DENY)), "flights", False),
    ((rule(name=STAR), rule(DENY)), "flights", False),
    ((rule(name=STAR), rule(DENY)), "other", True),
    ((rule(name="f", pattern=PREFIXED), rule(DENY)), "flights", False),
    ((rule(name="f", pattern=PREFIXED), rule(DENY)), "fleet", True),
    ((rule(DENY), rule(name="fl", pattern=PREFIXED), rule(name=STAR)), "flights", False),
]


@pytest.mark.parametrize(("rules", "name", "is_allowed"), ROWS)
def test_names_principals_hosts(rules: tuple[Acl, ...], name: str, *, is_allowed: bool) -> None:
    assert may(*rules, name=name) is is_allowed


def test_super_users_may_everything_whatever_is_denied() -> None:
    found = Authorizer([rule(DENY)], super_users=["User:alice"])
    assert found.may(ALICE, Operation.READ, TOPIC, "flights")
    assert not found.may(Client("User:bob", "h"), Operation.READ, TOPIC, "flights")
    assert parse_super_users("User:a; User:CN=b,O=c ;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ValueError, match="alice"):
        parse_super_users("alice")


def test_the_setting_decides_for_resources_without_acls() -> None:
    found = Authorizer([rule(principal="User:bob")], allows_without_rules=True)
    assert found.may(ALICE, Operation.READ, TOPIC, "other")
    assert not found.may(ALICE, Operation.READ, TOPIC, "flights")
    assert found.may(ALICE, Operation.READ, GROUP, "flights")


def test_answers_that_are_remembered_go_with_the_rules() -> None:
    found = Authorizer([rule()])
    assert found.may(ALICE, Operation.READ, TOPIC, "flights")
    found.replace([])
    assert not found.may(ALICE, Operation.READ, TOPIC, "flights")


def test_long_names_are_answered_and_not_kept() -> None:
    found = Authorizer([rule(name="f", pattern=PREFIXED)])
    tracemalloc.start()
    try:
        for number in range(2000):
            assert found.may(ALICE, Operation.READ, TOPIC, f"f{number}" * REMEMBERED_NAME_MAX)
        assert tracemalloc.get_traced_memory()[0] < 100 * REMEMBERED_NAME_MAX
    finally:
        tracemalloc.stop()


ANY_ROWS = [
    ((), False),
    ((rule(),), True),
    ((rule(name="f", pattern=PREFIXED),), True),
    ((rule(name=STAR),), True),
    ((rule(kind=GROUP),), False),
    ((rule(operation=Operation.WRITE),), False),
    ((rule(), rule(DENY)), False),
    ((rule(), rule(DENY, name=STAR)), False),
    ((rule(name=STAR), rule(DENY, name="a")), True),
    ((rule(), rule(DENY, name="f", pattern=PREFIXED)), False),
    ((rule(name="f", pattern=PREFIXED), rule(DENY)), True),
    ((rule(name="f", pattern=PREFIXED), rule(DENY, name="fl", pattern=PREFIXED)), True),
    ((rule(name="fl", pattern=PREFIXED), rule(DENY, name="f", pattern=PREFIXED)), False),
    ((rule(), rule(DENY, principal="User:bob")), True),
    ((rule(), rule(DENY, host="10.0.0.9")), True),
]


@pytest.mark.parametrize(("rules", "is_allowed"), ANY_ROWS)
def test_whether_there_is_any_resource(rules: tuple[Acl, ...], *, is_allowed: bool) -> None:
    assert Authorizer(rules).may_any(ALICE, Operation.READ, TOPIC) is is_allowed


def test_operations_as_bits() -> None:
    found = Authorizer([rule(operation=Operation.ALTER)])
    possible = sum(1 << operation for operation in (3, 7, 8))
    assert found.operations_bits(ALICE, TOPIC, "flights", possible) == 1 << 7 | 1 << 8


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (AclFilter(), 4),
        (AclFilter(resource_type=GROUP), 1),
        (AclFilter(name="flights"), 2),
        (AclFilter(name="flights", pattern=LITERAL), 2),
        (AclFilter(name="flights", pattern=PatternType.MATCH), 4),
        (AclFilter(name="fleet", pattern=PatternType.MATCH), 2),
        (AclFilter(name="fl", pattern=PREFIXED), 1),
        (AclFilter(pattern=PREFIXED), 1),
        (AclFilter(principal="User:alice"), 4),
        (AclFilter(principal="User:*"), 0),
        (AclFilter(host="*"), 4),
        (AclFilter(operation=Operation.ALL), 0),
        (AclFilter(operation=Operation.READ), 4),
        (AclFilter(permission=DENY), 1),
    ],
)
def test_filters(asked: AclFilter, count: int) -> None:
    rules = [
        rule(),
        rule(kind=GROUP),
        rule(name="fl", pattern=PREFIXED),
        rule(DENY, name=STAR),
    ]
    assert sum(map(asked.passes, rules)) == count


NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
RULES = st.builds(
    rule,
    st.sampled_from([ALLOW, DENY]),
    st.sampled_from(GRANTED),
    NAMES,
    pattern=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*"]),
    host=st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    kind=st.sampled_from([TOPIC, GROUP]),
)


@settings(max_examples=300)
@given(
    rules=st.lists(RULES, max_size=8),
    wanted=st.sampled_from(WANTED),
    name=NAMES,
    allows=st.booleans(),
)
def test_the_same_as_looking_at_all_rules(
    rules: list[Acl], wanted: Operation, name: str, *, allows: bool
) -> None:
    about = [
        acl
        for acl in rules
        if acl.resource_type is TOPIC
        and (name.startswith(acl.name) if acl.pattern is PREFIXED else acl.name in (name, STAR))
    ]
    fitting = [
        acl
        for acl in about
        if acl.principal in ("User:alice", "User:*") and acl.host in ("10.0.0.1", STAR)
    ]
    denied = any(
        acl.permission is DENY and acl.operation.name in ("ALL", wanted.name) for acl in fitting
    )
    allowed = any(
        acl.permission is ALLOW
        and (
            acl.operation.name in ("ALL", wanted.name)
            or wanted.name in ALSO.get(acl.operation.name, ())
        )
        for acl in fitting
    )
    expected = not denied and (allowed if about else allows)
    found = Authorizer(rules, allows_without_rules=allows)
    assert found.may(ALICE, wanted, TOPIC, name) is expected
