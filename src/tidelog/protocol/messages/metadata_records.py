"""Records in which Kafka's controllers keep users, rules, quotas, each behind its frame.

The frame: three unsigned varints, the frame's version, the record's key (`apiKey`), its version.
All of these are of version 0, with compact lengths and tagged fields.

Source: Kafka 4.3's own records in `__cluster_metadata`.
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.protocol.schema import (
    BOOLEAN,
    BYTES,
    FLOAT64,
    INT8,
    INT32,
    STRING,
    UUID16,
    array,
    nullable_string,
    struct,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True, repr=False)
class UserScramCredentialRecord:
    """Key 11: a user's credential. It has no `repr`: nobody is to read it in a log."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    salt: Buffer = wire(BYTES)
    stored_key: Buffer = wire(BYTES)
    server_key: Buffer = wire(BYTES)
    iterations: int = wire(INT32)


@dataclass(slots=True, kw_only=True)
class RemoveUserScramCredentialRecord:
    """Key 22: a user has no such credential any more."""

    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@dataclass(slots=True, kw_only=True)
class AccessControlEntryRecord:
    """Key 18: a rule."""

    id: UUID = wire(UUID16)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    pattern_type: int = wire(INT8)
    principal: str = wire(STRING)
    host: str = wire(STRING)
    operation: int = wire(INT8)
    permission_type: int = wire(INT8)


@dataclass(slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    """Key 19: a rule is gone."""

    id: UUID = wire(UUID16)


@dataclass(slots=True, kw_only=True)
class EntityData:
    """A part of whom a quota is for; a name of None is the default."""

    entity_type: str = wire(STRING)
    entity_name: str | None = wire(nullable_string())


@dataclass(slots=True, kw_only=True)
class ClientQuotaRecord:
    """Key 14: a value of a quota, or that there is none any more."""

    entity: list[EntityData] = wire(array(struct(EntityData)))
    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOLEAN)
