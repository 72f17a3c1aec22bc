"""Authorization by ACLs: results of Kafka's authorizer, and comparison with a plain model.

The expected results are those of Kafka 4.3's StandardAuthorizer, as described in Kafka's
documentation, KIP-11 and KIP-290.
"""

import tracemalloc
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples

from tidelog.server.security import authorizer
from tidelog.server.security.authorizer import (
    REMEMBERED_NAME_MAX,
    Acl,
    AclFilter,
    Authorizer,
    RuleTable,
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
# For each operation, the operations that it implies if it is allowed.
ALSO = {
    "READ": {"DESCRIBE"},
    "WRITE": {"DESCRIBE"},
    "DELETE": {"DESCRIBE"},
    "ALTER": {"DESCRIBE"},
    "ALTER_CONFIGS": {"DESCRIBE_CONFIGS"},
}


def acl(
    permission: Permission = ALLOW,
    operation: Operation = Operation.READ,
    name: str = "flights",
    *,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> Acl:
    """Return an ACL. By default, it allows alice to read the topic flights."""
    return Acl(
        resource_type=kind,
        name=name,
        pattern=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def may(*acls: Acl, operation: Operation = Operation.READ, name: str = "flights") -> bool:
    """Return whether alice may perform an operation on a topic under these ACLs."""
    return Authorizer(acls).may(ALICE, operation, TOPIC, name)


@pytest.mark.parametrize("wanted", WANTED, ids=lambda found: found.name)
@pytest.mark.parametrize("granted", GRANTED, ids=lambda found: found.name)
def test_an_allowed_operation_allows_the_implied_ones(
    granted: Operation, wanted: Operation
) -> None:
    """If an operation is allowed, so are the operations that it implies, but no others."""
    expected = granted.name in {"ALL", wanted.name} or wanted.name in ALSO.get(granted.name, ())
    assert may(acl(ALLOW, granted), operation=wanted) is expected


@pytest.mark.parametrize("wanted", WANTED, ids=lambda found: found.name)
@pytest.mark.parametrize("denied", GRANTED, ids=lambda found: found.name)
def test_a_denied_operation_denies_no_other(denied: Operation, wanted: Operation) -> None:
    """If one of the allowed operations is denied, the others stay allowed, unless ALL is denied."""
    expected = denied.name not in {"ALL", wanted.name}
    found = may(acl(ALLOW, Operation.ALL), acl(DENY, denied), operation=wanted)
    assert found is expected


STAR = "*"
ROWS = [
    # ACLs; requested name; allowed
    ((), "flights", False),
    ((acl(),), "flights", True),
    ((acl(),), "flight", False),
    ((acl(),), "flights2", False),
    ((acl(),), "Flights", False),
    ((acl(name=STAR),), "flights", True),
    ((acl(name=STAR),), STAR, True),
    ((acl(name=STAR, pattern=PREFIXED),), "flights", False),
    ((acl(name=STAR, pattern=PREFIXED),), "*a", True),
    ((acl(name="fli", pattern=PREFIXED),), "flights", True),
    ((acl(name="flights", pattern=PREFIXED),), "flights", True),
    ((acl(name="flights2", pattern=PREFIXED),), "flights", False),
    ((acl(name="lights", pattern=PREFIXED),), "flights", False),
    ((acl(name="fli"),), "flights", False),
    ((acl(principal="User:bob"),), "flights", False),
    ((acl(principal="User:*"),), "flights", True),
    ((acl(principal="Group:*"),), "flights", False),
    ((acl(principal="User:alic"),), "flights", False),
    ((acl(principal="user:alice"),), "flights", False),
    ((acl(host="10.0.0.1"),), "flights", True),
    ((acl(host="10.0.0.2"),), "flights", False),
    ((acl(host="10.0.0.*"),), "flights", False),
    ((acl(kind=GROUP),), "flights", False),
    ((acl(operation=Operation.WRITE),), "flights", False),
    ((acl(), acl(DENY)), "flights", False),
    ((acl(), acl(DENY, name=STAR)), "flights", False),
    ((acl(), acl(DENY, name="f", pattern=PREFIXED)), "flights", False),
    ((acl(), acl(DENY, name="g", pattern=PREFIXED)), "flights", True),
    ((acl(), acl(DENY, principal="User:*")), "flights", False),
    ((acl(), acl(DENY, principal="User:bob")), "flights", True),
    ((acl(), acl(DENY, host="10.0.0.1")), "flights", False),
    ((acl(), acl(DENY, host="10.0.0.2")), "flights", True),
    ((acl(), acl(DENY, Operation.WRITE)), "flights", True),
    ((acl(), acl(DENY, Operation.DESCRIBE)), "flights", True),
    ((acl(), acl(DENY, Operation.ALL)), "flights", False),
    ((acl(ALLOW, Operation.ALL), acl(DENY)), "flights", False),
    ((acl(name=STAR), acl(DENY)), "flights", False),
    ((acl(name=STAR), acl(DENY)), "other", True),
    ((acl(name="f", pattern=PREFIXED), acl(DENY)), "flights", False),
    ((acl(name="f", pattern=PREFIXED), acl(DENY)), "fleet", True),
    ((acl(DENY), acl(name="fl", pattern=PREFIXED), acl(name=STAR)), "flights", False),
]


@pytest.mark.parametrize(("acls", "name", "is_allowed"), ROWS)
def test_names_principals_hosts(acls: tuple[Acl, ...], name: str, *, is_allowed: bool) -> None:
    assert may(*acls, name=name) is is_allowed


SHORT, LONG = "2001:db8::5", "2001:db8:0:0:0:0:0:5"


@pytest.mark.parametrize("host", [SHORT, LONG, "2001:0DB8::0005"])
@pytest.mark.parametrize("permission", [ALLOW, DENY])
def test_an_acl_applies_to_an_ipv6_address_in_each_notation(
    host: str, permission: Permission
) -> None:
    """ACLs from Kafka have the long notation, which Kafka compares with the address as text."""
    rules = (acl(permission, host=host), acl(host=STAR))[: 1 if permission is ALLOW else 2]
    for client_host, applies in ((SHORT, True), ("2001:db8::6", False), ("10.0.0.1", False)):
        client = Client("User:alice", client_host)
        is_allowed = applies is (permission is ALLOW)
        assert Authorizer(rules).may(client, Operation.READ, TOPIC, "flights") is is_allowed
        assert Authorizer(rules).may_any(client, Operation.READ, TOPIC) is is_allowed


def test_each_ipv6_address_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing takes microseconds, and one decision compares the hosts of all ACLs of a topic."""
    parsed: list[str] = []

    def parse(text: str) -> IPv6Address:
        parsed.append(text)
        return IPv6Address(text)

    monkeypatch.setattr(authorizer, "IPv6Address", parse)
    hosts = [f"2001:db8:7::{number:x}" for number in range(50)]
    found = Authorizer([acl(name=STAR, host=host) for host in hosts])
    client = Client("User:alice", "2001:db8:7:0::ffff")
    for name in ("flights", "hotels"):
        assert not found.may(client, Operation.READ, TOPIC, name)
    assert sorted(parsed) == sorted([*hosts, client.host])


def test_super_users_may_do_everything_despite_denials() -> None:
    found = Authorizer([acl(DENY)], super_users=["User:alice"])
    assert found.may(ALICE, Operation.READ, TOPIC, "flights")
    assert not found.may(Client("User:bob", "h"), Operation.READ, TOPIC, "flights")
    assert parse_super_users("User:a; User:CN=b,O=c ;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ValueError, match="alice"):
        parse_super_users("alice")


def test_the_setting_decides_for_resources_without_acls() -> None:
    found = Authorizer([acl(principal="User:bob")], allows_without_rules=True)
    assert found.may(ALICE, Operation.READ, TOPIC, "other")
    assert not found.may(ALICE, Operation.READ, TOPIC, "flights")
    assert found.may(ALICE, Operation.READ, GROUP, "flights")


def test_cached_results_are_dropped_with_the_acls() -> None:
    found = Authorizer([acl()])
    assert found.may(ALICE, Operation.READ, TOPIC, "flights")
    found.use(RuleTable([]))
    assert not found.may(ALICE, Operation.READ, TOPIC, "flights")


def test_long_names_are_authorized_but_not_cached() -> None:
    found = Authorizer([acl(name="f", pattern=PREFIXED)])
    tracemalloc.start()
    try:
        for number in range(2000):
            assert found.may(ALICE, Operation.READ, TOPIC, f"f{number}" * REMEMBERED_NAME_MAX)
        assert tracemalloc.get_traced_memory()[0] < 100 * REMEMBERED_NAME_MAX
    finally:
        tracemalloc.stop()


ANY_ROWS = [
    ((), False),
    ((acl(),), True),
    ((acl(name="f", pattern=PREFIXED),), True),
    ((acl(name=STAR),), True),
    ((acl(kind=GROUP),), False),
    ((acl(operation=Operation.WRITE),), False),
    ((acl(), acl(DENY)), False),
    ((acl(), acl(DENY, name=STAR)), False),
    ((acl(name=STAR), acl(DENY, name="a")), True),
    ((acl(), acl(DENY, name="f", pattern=PREFIXED)), False),
    ((acl(name="f", pattern=PREFIXED), acl(DENY)), True),
    ((acl(name="f", pattern=PREFIXED), acl(DENY, name="fl", pattern=PREFIXED)), True),
    ((acl(name="fl", pattern=PREFIXED), acl(DENY, name="f", pattern=PREFIXED)), False),
    ((acl(), acl(DENY, principal="User:bob")), True),
    ((acl(), acl(DENY, host="10.0.0.9")), True),
]


class Counted(frozenset[Acl]):
    """ACLs that count how often they are searched."""

    searches = 0

    def __iter__(self) -> Iterator[Acl]:
        self.searches += 1
        return super().__iter__()


def test_a_search_through_all_acls_is_cached_with_its_client() -> None:
    """A search through 100,000 ACLs takes 40 ms, and any client can cause it by InitProducerId."""
    found, table = Authorizer(), RuleTable([acl()])
    table.acls = acls = Counted(table.acls)
    found.use(table)
    for _ in range(3):
        assert found.may_any(ALICE, Operation.READ, TOPIC)
        assert not found.may_any(Client("User:bob", "10.0.0.1"), Operation.READ, TOPIC)
    assert acls.searches == 2
    found.use(RuleTable([]))
    assert not found.may_any(ALICE, Operation.READ, TOPIC)


@pytest.mark.parametrize(("acls", "is_allowed"), ANY_ROWS)
def test_whether_there_is_any_resource(acls: tuple[Acl, ...], *, is_allowed: bool) -> None:
    assert Authorizer(acls).may_any(ALICE, Operation.READ, TOPIC) is is_allowed


def test_operations_as_bits() -> None:
    found = Authorizer([acl(operation=Operation.ALTER)])
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
    acls = [
        acl(),
        acl(kind=GROUP),
        acl(name="fl", pattern=PREFIXED),
        acl(DENY, name=STAR),
    ]
    assert sum(map(asked.passes, acls)) == count


NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
ACLS = st.builds(
    acl,
    st.sampled_from([ALLOW, DENY]),
    st.sampled_from(GRANTED),
    NAMES,
    pattern=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*"]),
    host=st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    kind=st.sampled_from([TOPIC, GROUP]),
)


@examples(300)
@given(
    acls=st.lists(ACLS, max_size=8),
    wanted=st.sampled_from(WANTED),
    name=NAMES,
    allows=st.booleans(),
)
def test_the_authorizer_equals_a_scan_of_all_acls(
    acls: list[Acl], wanted: Operation, name: str, *, allows: bool
) -> None:
    about = [
        acl
        for acl in acls
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
    found = Authorizer(acls, allows_without_rules=allows)
    assert found.may(ALICE, wanted, TOPIC, name) is expected
