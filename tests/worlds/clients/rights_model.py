"""Slow model of authorization that reads every ACL for each question.

The broker's own authorizer indexes ACLs by name and caches results. The model and the authorizer
share only Kafka's numbers of operations and types; test_model.py compares both with Kafka's
authorizer.

Source: KIP-11, KIP-290; behavior of Kafka 4.3's StandardAuthorizer.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.protocol.messages.security import AclCreation
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType

CLUSTER: Final = "kafka-cluster"
EVERYBODY: Final = "User:*"
ANYTHING: Final = "*"
# Name that stands for every name without an ACL; Kafka's authorizer uses this name, too.
UNHEARD_OF: Final = "hardcode"

# An ACL that allows an operation (the key) also allows a second operation (the value).
BRINGS: Final = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


class ModelAcl(NamedTuple):
    """One ACL; with `is_prefix`, `name` is a prefix of names."""

    principal: str
    kind: ResourceType
    name: str
    is_prefix: bool
    host: str
    operation: Operation
    allows: bool

    def is_about(self, kind: ResourceType, name: str) -> bool:
        """Whether the ACL applies to a resource."""
        if kind is not self.kind:
            return False
        return name.startswith(self.name) if self.is_prefix else self.name in (ANYTHING, name)

    def is_for(self, principal: str, host: str) -> bool:
        """Whether the ACL applies to a principal at a host."""
        return self.principal in (EVERYBODY, principal) and self.host in (ANYTHING, host)

    def covers(self, operation: Operation) -> bool:
        """Whether the ACL applies to an operation."""
        if self.operation in (Operation.ALL, operation):
            return True
        return self.allows and BRINGS.get(self.operation) is operation

    def on_the_wire(self) -> AclCreation:
        """Return the ACL in the form of CreateAcls."""
        return AclCreation(
            resource_type=self.kind,
            resource_name=self.name,
            resource_pattern_type=PatternType.PREFIXED if self.is_prefix else PatternType.LITERAL,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=Permission.ALLOW if self.allows else Permission.DENY,
        )


@dataclass(frozen=True)
class ModelAcls:
    """All ACLs of a broker, and the broker's settings for authorization."""

    acls: tuple[ModelAcl, ...]
    super_users: frozenset[str]
    is_open: bool

    def may(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether a principal may do an operation on a resource."""
        if principal in self.super_users:
            return True
        about = [acl for acl in self.acls if acl.is_about(kind, name)]
        if not about:
            return self.is_open
        said = {r.allows for r in about if r.is_for(principal, host) and r.covers(operation)}
        return said == {True}

    def may_somewhere(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether a principal may do an operation on at least one possible name."""
        names = {acl.name for acl in self.acls if acl.kind is kind} - {ANYTHING}
        tried = (*names, *(f"{name}~" for name in names), UNHEARD_OF)
        return any(self.may(principal, host, operation, kind, name) for name in tried)
