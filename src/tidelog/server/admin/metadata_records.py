"""Converts changes of users, ACLs and quotas to Kafka's metadata records, and back.

Source: Kafka 4.3's records in `__cluster_metadata`; docs/decisions/0019.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.errors import CorruptFile, CorruptMessage, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.protocol.messages.state_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from tidelog.protocol.wire import Reader, Writer
from tidelog.storage.directory.broker_files import (
    AclRow,
    Entity,
    Quotas,
    ScramCredential,
    SecurityState,
)
from tidelog.storage.files import random_topic_id

Record: TypeAlias = (
    UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | ClientQuotaRecord
)

FRAME_VERSION: Final = 1
_VERSION: Final = 0

_KINDS: Final[Mapping[int, type[Record]]] = {
    11: UserScramCredentialRecord,
    14: ClientQuotaRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    22: RemoveUserScramCredentialRecord,
}

_KEYS: Final = {kind: key for key, kind in _KINDS.items()}


def encode(record: Record) -> bytes:
    """Encode a record's value."""
    kind: type[Record] = type(record)
    writer = Writer()
    for number in (FRAME_VERSION, _KEYS[kind], _VERSION):
        writer.unsigned_varint(number)
    struct_codec(kind, _VERSION, flexible=True).write(writer, record)
    return b"".join(writer.parts())


def decode(value: bytes) -> Record:
    """Decode a record's value.

    Raises:
        CorruptFile: The value is invalid. The error's text does not show the value.
        UnsupportedVersion: The record's type or version is unknown, so a later release wrote the
            record.
    """
    try:
        reader = Reader(value)
        frame, key, version = (reader.unsigned_varint() for _ in range(3))
        kind = _KINDS.get(key)
        if kind is None or (frame, version) != (FRAME_VERSION, _VERSION):
            text = f"record {key} v{version} in frame v{frame} is not known"
            raise UnsupportedVersion(text)
        record = struct_codec(kind, _VERSION, flexible=True).read(reader)
    except CorruptMessage:
        raise CorruptFile("invalid record") from None
    if reader.left:
        raise CorruptFile("record with extra bytes at its end")
    return record


@dataclass(slots=True)
class MetadataImage:
    """State that results from all records so far. Each further record modifies it.

    Attributes:
        scram: Credentials by user and number of the mechanism.
        acls: ACLs by id.
        quotas: Quotas by entity.
    """

    scram: dict[tuple[str, int], ScramCredential] = field(default_factory=dict)
    acls: dict[UUID, AclRow] = field(default_factory=dict)
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)

    @property
    def record_count(self) -> int:
        """Number of records in a snapshot."""
        return len(self.scram) + len(self.acls) + sum(map(len, self.quotas.values()))

    @property
    def security(self) -> SecurityState:
        """Users and ACLs."""
        return SecurityState(dict(self.scram), frozenset(self.acls.values()))

    def copied_quotas(self) -> Quotas:
        """Return a copy of the quotas of all entities."""
        return self.copy().quotas

    def copy(self) -> "MetadataImage":
        """Return a deep copy."""
        quotas = {entity: dict(values) for entity, values in self.quotas.items()}
        return MetadataImage(dict(self.scram), dict(self.acls), quotas)

    def replay(self, record: Record) -> None:
        """Apply a record to the state."""
        match record:
            case UserScramCredentialRecord():
                self.scram[record.name, record.mechanism] = ScramCredential(
                    bytes(record.salt),
                    record.iterations,
                    bytes(record.stored_key),
                    bytes(record.server_key),
                )
            case RemoveUserScramCredentialRecord():
                self.scram.pop((record.name, record.mechanism), None)
            case AccessControlEntryRecord():
                self.acls[record.id] = _row_of(record)
            case RemoveAccessControlEntryRecord():
                self.acls.pop(record.id, None)
            case ClientQuotaRecord():
                self._replay_quota(record)

    def _replay_quota(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        values = self.quotas.setdefault(entity, {})
        values.pop(record.key, None)
        if not record.remove:
            values[record.key] = record.value
        if not values:
            del self.quotas[entity]

    def snapshot(self) -> Iterator[Record]:
        """Iterate over the records of the complete state: users, ACLs, then quotas, each sorted."""
        for (user, mechanism), credential in sorted(self.scram.items(), key=lambda item: item[0]):
            yield _credential(user, mechanism, credential)
        for acl_id, row in sorted(self.acls.items()):
            yield _rule(acl_id, row)
        for entity, values in sorted(self.quotas.items(), key=repr):
            for key, value in sorted(values.items()):
                yield _quota(entity, key, value)

    def security_changes(self, now: SecurityState, source: random.Random) -> Iterator[Record]:
        """Iterate over the records that change users and ACLs to `now`.

        Records of users come before records of ACLs. Within users and within ACLs, removals come
        before other changes.
        """
        for user, mechanism in sorted(self.scram.keys() - now.scram.keys()):
            yield RemoveUserScramCredentialRecord(name=user, mechanism=mechanism)
        for (user, mechanism), credential in sorted(now.scram.items(), key=lambda item: item[0]):
            if self.scram.get((user, mechanism)) != credential:
                yield _credential(user, mechanism, credential)
        ids = {row: acl_id for acl_id, row in self.acls.items()}
        for row in sorted(ids.keys() - now.acls):
            yield RemoveAccessControlEntryRecord(id=ids[row])
        for row in sorted(now.acls - ids.keys()):
            yield _rule(random_topic_id(source), row)

    def quota_changes(self, now: Quotas) -> Iterator[Record]:
        """Iterate over the records that change quotas to `now`."""
        for entity in sorted(self.quotas.keys() | now.keys(), key=repr):
            before, after = self.quotas.get(entity, {}), now.get(entity, {})
            for key in sorted(before.keys() | after.keys()):
                if before.get(key) != after.get(key):
                    yield _quota(entity, key, after.get(key))


def _credential(
    user: str, mechanism: int, credential: ScramCredential
) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def _rule(acl_id: UUID, row: AclRow) -> AccessControlEntryRecord:
    kind, name, pattern, principal, host, operation, permission = row
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def _row_of(record: AccessControlEntryRecord) -> AclRow:
    pattern = (record.resource_type, record.resource_name, record.pattern_type)
    return (*pattern, record.principal, record.host, record.operation, record.permission_type)


def _quota(entity: Entity, key: str, value: float | None) -> ClientQuotaRecord:
    return ClientQuotaRecord(
        entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity],
        key=key,
        value=0.0 if value is None else value,
        remove=value is None,
    )
