"""ACL decisions. No input or output.

An ACL allows or denies an operation on a resource. It has four parts:

- a resource, a prefix of resource names, or `*` for all resources;
- a principal or `User:*`;
- an address, in any notation, or `*`;
- an operation or ALL.

One matching DENY outweighs every ALLOW. If no ACL exists for a resource,
`allow.everyone.if.no.acl.found` decides. If the resource has ACLs but none of these ACLs matches
the request, the request is denied. Super users are always allowed.

ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS.
DENY implies nothing.

Source: Kafka 4.3's StandardAuthorizer and Authorizer.authorizeByResourceType; KIP-11, KIP-290.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from ipaddress import IPv6Address
from operator import attrgetter
from typing import Final

from tidelog.lazy_dataclass import dataclass
from tidelog.server.security.operations import (
    CLUSTER_NAME,
    Client,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

WILDCARD: Final = "*"
ALL_USERS: Final = "User:*"
# Maximum number of cached decisions. Each decision is for one principal, address, operation and
# resource.
REMEMBERED_MAX: Final = 10_000
# Maximum number of hosts whose addresses are cached.
ADDRESSES_MAX: Final = 100_000
# Maximum length of a resource name for which decisions are cached. Topic names have at most 249
# characters, but a client may send a name of 32,767 bytes.
REMEMBERED_NAME_MAX: Final = 256

# Keys and values are operations. An ACL that allows one of the operations in a value also allows
# the operation that is the key.
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """Access control entry, which allows or denies an operation of a principal on a resource."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def is_about(self, name: str) -> bool:
        """Whether the resource pattern matches a name. The resource type is not compared."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in {name, WILDCARD}

    def is_for(self, client: "Client") -> bool:
        """Whether the ACL is for this client's principal and address."""
        if self.principal not in {client.principal, ALL_USERS}:
            return False
        if self.host in {client.host, WILDCARD}:
            return True
        is_ipv6 = ":" in client.host and ":" in self.host
        return is_ipv6 and _address(self.host) == _address(client.host)

    def fits(self, client: "Client", operation: Operation) -> bool:
        """Whether the ACL applies to this client and operation."""
        if not self.is_for(client):
            return False
        if self.operation in {operation, Operation.ALL}:
            return True
        implied_by = _IMPLIED_BY.get(operation, frozenset())
        return self.permission is Permission.ALLOW and self.operation in implied_by


@lru_cache(maxsize=ADDRESSES_MAX)
def _address(host: str) -> str:
    """Return an IPv6 address in its shortest notation, and any other text unchanged.

    Results are cached, because a decision compares the hosts of many ACLs with the client's host.
    ACLs from Kafka have the notation `2001:db8:0:0:0:0:0:5`, the only one that Kafka compares with
    a client's address.
    """
    try:
        return str(IPv6Address(host))
    except ValueError:
        return host


# Sort key of ACLs in responses.
IN_ORDER: Final = attrgetter(*(each.name for each in fields(Acl)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Filter for ACLs: None and ANY match everything.

    If the filter's pattern is MATCH, the filter matches every ACL that applies to a resource with
    the filter's name. If the filter has another pattern, it matches only ACLs with the same name as
    the filter.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def passes(self, acl: Acl) -> bool:
        """Whether an ACL matches the filter."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self._passes_name(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
        )

    def _passes_name(self, acl: Acl) -> bool:
        if self.pattern not in {PatternType.ANY, PatternType.MATCH, acl.pattern}:
            return False
        if self.name is None:
            return True
        if self.pattern is PatternType.MATCH:
            return acl.is_about(self.name)
        return self.name == acl.name


class _Rules:
    """ACLs of one resource type, by resource pattern."""

    def __init__(self) -> None:
        self.literal: dict[str, dict[Acl, None]] = {}
        self.prefixed: dict[str, dict[Acl, None]] = {}
        # Distinct lengths of the names in prefixed ACLs, including ACLs that have been removed. The
        # name length of a removed ACL does no harm: it causes one lookup that finds no ACL.
        self.prefix_lengths: list[int] = []

    def _by_name(self, acl: Acl) -> dict[str, dict[Acl, None]]:
        return self.prefixed if acl.pattern is PatternType.PREFIXED else self.literal

    def add(self, acl: Acl) -> None:
        """Add an ACL."""
        self._by_name(acl).setdefault(acl.name, {})[acl] = None
        if acl.pattern is PatternType.PREFIXED and len(acl.name) not in self.prefix_lengths:
            insort(self.prefix_lengths, len(acl.name))

    def remove(self, acl: Acl) -> None:
        """Remove an ACL, which must be present."""
        acls = self._by_name(acl)
        del acls[acl.name][acl]
        if not acls[acl.name]:
            del acls[acl.name]

    def about(self, name: str) -> Iterator[Acl]:
        """Iterate over the ACLs whose resource patterns match a name."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.prefix_lengths:
            if length > len(name):
                return
            yield from self.prefixed.get(name[:length], ())


class RuleTable:
    """ACLs by resource.

    Any thread may create a table. Once an authorizer has the table, only that authorizer uses it.

    Attributes:
        acls: All ACLs.
    """

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.acls = frozenset(acls)
        self._by_type: dict[ResourceType, _Rules] = {}
        for acl in self.acls:
            self._add(acl)

    def _add(self, acl: Acl) -> None:
        self._by_type.setdefault(acl.resource_type, _Rules()).add(acl)

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        """Add `added`, which must be absent, and remove `removed`, which must be present."""
        self.acls = self.acls.difference(removed).union(added)
        for acl in removed:
            self._by_type[acl.resource_type].remove(acl)
        for acl in added:
            self._add(acl)

    def about(self, kind: ResourceType, name: str) -> Iterable[Acl]:
        """Return the ACLs that apply to a resource."""
        rules = self._by_type.get(kind)
        return () if rules is None else rules.about(name)


class Authorizer:
    """All ACLs, and the decisions based on them. Not thread-safe."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Iterable[str] = (),
        allows_without_rules: bool = False,
    ) -> None:
        """Create an authorizer with these ACLs.

        Args:
            acls: Initial ACLs.
            super_users: Principals that are always allowed.
            allows_without_rules: Whether every client may use a resource that has no ACL.
        """
        self._super_users = frozenset(super_users)
        self._allows_without_rules = allows_without_rules
        self._table = RuleTable(acls)
        # Decisions by client, operation, resource type and name. The name is None for `may_any`.
        self._remembered: dict[tuple[Client, Operation, ResourceType, str | None], bool] = {}

    @property
    def acls(self) -> frozenset[Acl]:
        """All ACLs."""
        return self._table.acls

    def use(self, table: RuleTable) -> None:
        """Replace all ACLs by the ACLs of a table."""
        self._table = table
        self._remembered = {}

    def change(self, added: Collection[Acl], removed: Collection[Acl]) -> None:
        """Add `added`, which must be absent, and remove `removed`, which must be present."""
        self._table.change(added, removed)
        self._remembered = {}

    def may(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether a client may perform an operation on a resource."""
        if len(name) > REMEMBERED_NAME_MAX:
            return self._decide(client, operation, kind, name)
        question = (client, operation, kind, name)
        decision = self._remembered.get(question)
        if decision is None:
            decision = self._decide(client, operation, kind, name)
            self._remember(question, is_allowed=decision)
        return decision

    def _remember(
        self, question: tuple[Client, Operation, ResourceType, str | None], *, is_allowed: bool
    ) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[question] = is_allowed

    def _decide(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> bool:
        if client.principal in self._super_users:
            return True
        is_named = is_allowed = False
        for acl in self._table.about(kind, name):
            is_named = True
            if acl.fits(client, operation):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed if is_named else self._allows_without_rules

    def operations_bits(self, client: Client, kind: ResourceType, name: str, possible: int) -> int:
        """Return the allowed operations among `possible`.

        In `possible` and in the result, bit N stands for operation N.
        """
        return sum(
            1 << operation
            for operation in Operation
            if possible >> operation & 1 and self.may(client, operation, kind, name)
        )

    def may_cluster(self, client: Client, operation: Operation) -> bool:
        """Whether a client may perform an operation on the cluster."""
        return self.may(client, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_any(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """Whether a client may perform an operation on some resource of a type.

        As in Kafka, the search through the ACLs considers only ACLs of the operation itself or of
        ALL, not ACLs of operations that imply it. First, the operation is checked on a resource
        with the name `hardcode`, which is Kafka's placeholder for a resource without ACLs of its
        own.
        """
        question = (client, operation, kind, None)
        decision = self._remembered.get(question)
        if decision is None:
            decision = self._decide_any(client, operation, kind)
            self._remember(question, is_allowed=decision)
        return decision

    def _decide_any(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        if self.may(client, operation, kind, "hardcode"):
            return True
        allowed: list[Acl] = []
        denied: dict[PatternType, set[str]] = {
            PatternType.LITERAL: set(),
            PatternType.PREFIXED: set(),
        }
        for acl in self.acls:
            if acl.resource_type is not kind or acl.operation not in {operation, Operation.ALL}:
                continue
            if not acl.is_for(client):
                continue
            if acl.permission is Permission.ALLOW:
                allowed.append(acl)
            else:
                denied[acl.pattern].add(acl.name)
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        return any(_has_effect(acl, denied) for acl in allowed)


def _has_effect(acl: Acl, denied: dict[PatternType, set[str]]) -> bool:
    """Whether an ACL that allows an operation covers at least one name that is not denied."""
    if acl.pattern is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return True
        if acl.name in denied[PatternType.LITERAL]:
            return False
    return not any(acl.name.startswith(prefix) for prefix in denied[PatternType.PREFIXED])


def parse_super_users(text: str) -> frozenset[str]:
    """Parse principals such as `User:a;User:b`; raises ValueError if any is not TYPE:NAME."""
    principals = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not kind or not colon or not name:
            raise ValueError(principal)
    return principals
