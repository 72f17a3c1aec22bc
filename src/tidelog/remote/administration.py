"""Functions for users, ACLs, quotas and deletion of records in a cluster.

confluent-kafka sends all requests except requests for quotas, which librdkafka does not support.
Requests for quotas are encoded by `tidelog.protocol` and sent over a separate plain-text
connection.

Source: Kafka's protocol guide, APIs 21, 29, 30, 31, 48, 49, 50 and 51.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import Enum
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,  # noqa: TID251 - confluent-kafka's stubs allow no None in filters
    Final,
    TypeAlias,
)

from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, InvalidRequest, NotAuthorized, PolicyViolation
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaOperation,
)
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.remote import client as codes
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        DeletedRecords,
        UserScramCredentialAlteration,
    )

    from tidelog.remote.broker_connection import BrokerConnection
    from tidelog.remote.cluster import Cluster


_NOT_AUTHORIZED: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


@contextmanager
def _typed(operation: str) -> Iterator[str]:
    """Turn a ClusterFailure into NotAuthorized, PolicyViolation or InvalidRequest.

    The failure's error code determines the new error. If the code means none of these errors, the
    failure is raised unchanged.
    """
    try:
        yield operation
    except ClusterFailure as error:
        code = error.error_code
        if code in _NOT_AUTHORIZED:
            raise NotAuthorized(
                error.bootstrap, error.operation, error.reason, error_code=code
            ) from error
        if code == ErrorCode.POLICY_VIOLATION:
            raise PolicyViolation(f"{error.bootstrap}: {error.reason}") from error
        if code == ErrorCode.INVALID_REQUEST:
            raise InvalidRequest(f"{error.bootstrap}: {error.reason}") from error
        raise


def _word(member: Enum | str | int) -> str:
    """Return an enum member's name as in options: `cluster-action` for `CLUSTER_ACTION`."""
    assert isinstance(member, Enum), "librdkafka converts names and numbers"
    return str(member.name).lower().replace("_", "-")


def _name(word: str) -> str:
    return word.upper().replace("-", "_")


def broker_settings(client: "Cluster") -> dict[str, str]:
    """Return the settings of the broker with the lowest id.

    The result is empty if the client is not authorized to read the settings.
    """
    from confluent_kafka.admin import ConfigResource, ResourceType

    try:
        with _typed("read the settings of a broker") as operation:
            with client.typed(operation):
                brokers = client.admin().list_topics(timeout=client.timeout_s).brokers
            resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
            futures = client.admin().describe_configs([resource], request_timeout=client.timeout_s)
            entries = client.results(operation, futures)[resource]
    except NotAuthorized:
        return {}
    return {name: entry.value or "" for name, entry in entries.items()}


# -- users ---------------------------------------------------------------------------------------


MECHANISMS: Final = ("scram-sha-256", "scram-sha-512")
# Minimum and maximum number of hash iterations that Kafka accepts. Source: Kafka 4.3's
# ScramMechanism.
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUser:
    """SCRAM credential of a user, without its secrets."""

    name: str
    mechanism: str
    iterations: int


def scram_users(client: "Cluster") -> list[ScramUser]:
    """Return all SCRAM credentials, sorted by user, then by mechanism; raises ClusterFailure."""
    with _typed("list users") as operation:
        future = client.admin().describe_user_scram_credentials(request_timeout=client.timeout_s)
        assert not isinstance(future, dict), "the request lists users by name"
        described = client.results(operation, {operation: future})[operation]
    return sorted(
        (
            ScramUser(name=name, mechanism=_word(one.mechanism), iterations=one.iterations)
            for name, user in described.items()
            for one in user.scram_credential_infos
        ),
        key=lambda user: (user.name, user.mechanism),
    )


def set_password(client: "Cluster", user: ScramUser, password: bytes) -> None:
    """Add a SCRAM credential, or replace the user's credential of the same mechanism.

    The password is salted and hashed before the request is sent, so brokers never receive the
    password itself.

    Raises:
        NotAuthorized, InvalidRequest, PolicyViolation, ClusterFailure: The cluster refuses, or
            can't be reached.
    """
    from confluent_kafka.admin import (
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    info = ScramCredentialInfo(ScramMechanism[_name(user.mechanism)], user.iterations)
    _alter_user(client, "set a password", UserScramCredentialUpsertion(user.name, info, password))


def accepts_passwords(settings: Mapping[str, str], mechanism: str) -> bool:
    """Return whether a broker with these settings authenticates clients by a given mechanism.

    The result is also True if this is unknown, because the settings lack the listeners or the
    security protocol of a listener.
    """
    listeners = settings.get("listeners", "")
    protocols = dict(
        entry.strip().upper().rpartition(":")[::2]
        for entry in settings.get("listener.security.protocol.map", "").split(",")
    )
    names = [one.partition("://")[0].strip().upper() for one in listeners.split(",")]
    if not listeners or not all(protocols.get(name) for name in names):
        return True
    enabled = settings.get("sasl.enabled.mechanisms", "").upper().replace(" ", "").split(",")
    return mechanism.upper() in enabled and any(
        protocols[name].startswith("SASL_") for name in names
    )


def remove_user(client: "Cluster", user: ScramUser) -> None:
    """Remove a SCRAM credential; raises NotAuthorized, ClusterFailure."""
    from confluent_kafka.admin import (
        ScramMechanism,
        UserScramCredentialDeletion,
    )

    deletion = UserScramCredentialDeletion(user.name, ScramMechanism[_name(user.mechanism)])
    _alter_user(client, "remove a user", deletion)


def _alter_user(client: "Cluster", verb: str, alteration: "UserScramCredentialAlteration") -> None:
    with _typed(f"{verb} ({alteration.user})") as operation:
        futures = client.admin().alter_user_scram_credentials(
            [alteration], request_timeout=client.timeout_s
        )
        client.results(operation, futures)


# -- ACLs ----------------------------------------------------------------------------------------


CLUSTER_RESOURCE: Final = "cluster"
CLUSTER_NAME: Final = "kafka-cluster"
# librdkafka has an older name, `BROKER`, for the resource type of the cluster.
_RESOURCES: Final = {CLUSTER_RESOURCE: "BROKER"}
OPERATIONS: Final = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """ACL, or a filter of ACLs in which None matches every value.

    Attributes:
        resource: `topic`, `group`, `transactional-id`, or `CLUSTER_RESOURCE`.
        name: Name of the resource, or a prefix of names. `CLUSTER_NAME` if the resource is the
            cluster.
        is_prefix: Whether the name is a prefix.
        principal: E.g. `User:alice`.
        host: Address of clients; `*` for all.
        operation: One of `OPERATIONS`.
        permission: `allow` or `deny`.
    """

    resource: str | None = None
    name: str | None = None
    is_prefix: bool | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


def _parts(acl: Acl) -> Any:
    """Return the arguments of AclBinding, or of AclBindingFilter if fields of `acl` are None."""
    from confluent_kafka.admin import (
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    patterns = {None: "ANY", False: "LITERAL", True: "PREFIXED"}
    return (
        ResourceType[_RESOURCES.get(acl.resource or "", _name(acl.resource or "any"))],
        acl.name,
        ResourcePatternType[patterns[acl.is_prefix]],
        acl.principal,
        acl.host,
        AclOperation[_name(acl.operation or "any")],
        AclPermissionType[_name(acl.permission or "any")],
    )


def _acl(binding: "AclBinding") -> Acl:
    resource = _word(binding.restype)
    is_cluster = resource == _RESOURCES[CLUSTER_RESOURCE].lower()
    return Acl(
        resource=CLUSTER_RESOURCE if is_cluster else resource,
        name=binding.name,
        is_prefix=_word(binding.resource_pattern_type) == "prefixed",
        principal=binding.principal,
        host=binding.host,
        operation=_word(binding.operation),
        permission=_word(binding.permission_type),
    )


def _ordered(bindings: "Sequence[AclBinding]") -> list[Acl]:
    return sorted(map(_acl, bindings), key=repr)


def _filter(acl: Acl) -> "AclBindingFilter":
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(*_parts(acl))


def acls(client: "Cluster", acl_filter: Acl) -> list[Acl]:
    """Return the ACLs that a filter matches; raises the same errors as `add_acls`."""
    with _typed("list ACLs") as operation:
        future = client.admin().describe_acls(_filter(acl_filter), request_timeout=client.timeout_s)
        return _ordered(client.results(operation, {operation: future})[operation])


def add_acls(client: "Cluster", added: Sequence[Acl]) -> None:
    """Add ACLs without removing any; raises NotAuthorized, InvalidRequest, ClusterFailure."""
    from confluent_kafka.admin import AclBinding

    bindings = [AclBinding(*_parts(acl)) for acl in added]
    with _typed("add ACLs") as operation:
        futures = client.admin().create_acls(bindings, request_timeout=client.timeout_s)
        client.results(operation, futures)


def remove_acls(client: "Cluster", acl_filter: Acl) -> list[Acl]:
    """Remove and return the ACLs that a filter matches; raises the same errors as `add_acls`."""
    with _typed("remove ACLs") as operation:
        futures = client.admin().delete_acls(
            [_filter(acl_filter)], request_timeout=client.timeout_s
        )
        (removed,) = client.results(operation, futures).values()
        return _ordered(removed)


# -- records -------------------------------------------------------------------------------------


def delete_records(
    client: "Cluster", offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete the records below these offsets; return the new log start offsets.

    Raises:
        PolicyViolation: The topic's `cleanup.policy` is only `compact`.
        NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached. The records of some
            partitions may have been deleted before the error.
    """
    from confluent_kafka import TopicPartition as CkPartition

    partitions = [
        CkPartition(name.topic, name.partition, offset) for name, offset in offsets.items()
    ]
    starts: dict[TopicPartition, int] = {}
    with _typed("delete records"):
        futures: Mapping[CkPartition, Future[DeletedRecords]] = client.admin().delete_records(
            partitions, request_timeout=client.timeout_s
        )
        for partition, future in futures.items():
            name = TopicPartition(partition.topic, partition.partition)
            (deleted,) = client.results(f"delete records of {name}", {name: future}).values()
            starts[name] = deleted.low_watermark
    return starts


# -- quotas --------------------------------------------------------------------------------------


QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
# An entity of a quota. Maps the kind of entity (`user`, `client-id`, `ip`) to a name, or to None
# for the default entity of the kind.
Entity: TypeAlias = Mapping[str, str | None]


def quotas(client: "Cluster") -> list[tuple[Entity, dict[str, float]]]:
    """Return all entities that have quotas, each with its quotas by key.

    Raises:
        InvalidRequest: The client has settings that only librdkafka supports (such as TLS and
            SASL), but requests about quotas are sent without librdkafka, in plain text; or the
            broker rejects the request.
        NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
        UnsupportedVersion: The first broker that responds doesn't support quotas.
    """
    with _typed("list quotas"), _connection(client) as connection:
        request = DescribeClientQuotasRequest(components=[], strict=False)
        response = connection.request(DESCRIBE_CLIENT_QUOTAS, request)
        _ensure_right(client, "list quotas", response.error_code, response.error_message)
    entries: list[tuple[Entity, dict[str, float]]] = [
        (
            {part.entity_type: part.entity_name for part in one.entity},
            {value.key: value.value for value in sorted(one.values, key=lambda each: each.key)},
        )
        for one in response.entries or []
    ]
    return sorted(entries, key=lambda entry: repr(sorted(entry[0].items())))


def alter_quotas(client: "Cluster", entity: Entity, changes: Mapping[str, float | None]) -> None:
    """Change quotas of an entity; None removes a quota. Raises the same errors as `quotas`."""
    operations = [
        QuotaOperation(key=key, value=value or 0.0, remove=value is None)
        for key, value in changes.items()
    ]
    parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    request = AlterClientQuotasRequest(
        entries=[QuotaAlteration(entity=parts, ops=operations)], validate_only=False
    )
    with _typed("change quotas"), _connection(client) as connection:
        for one in connection.request(ALTER_CLIENT_QUOTAS, request).entries:
            _ensure_right(client, "change quotas", one.error_code, one.error_message)


@contextmanager
def _connection(client: "Cluster") -> "Iterator[BrokerConnection]":
    """Yield a connection to the first bootstrap server that responds."""
    from tidelog.remote.broker_connection import BrokerConnection, connect_socket, split_server

    if not client.is_plain_text:
        raise InvalidRequest(
            f"{client.bootstrap}: quotas can only be read and changed on a listener without"
            " TLS and SASL; connect to such a listener, or use Kafka's kafka-configs"
        )
    connect = partial(connect_socket, timeout_s=client.timeout_s)
    servers = client.bootstrap.split(",")
    for server in servers:
        host, port = split_server(server)
        connection = BrokerConnection(host, port, connect, client_id="tidelog")
        with closing(connection):
            try:
                connection.version_of(DESCRIBE_CLIENT_QUOTAS)
            except ClusterFailure:
                if server == servers[-1]:
                    raise
                continue
            yield connection
            return


def _ensure_right(client: "Cluster", operation: str, code: int, message: str | None) -> None:
    if code:
        reason = message or codes.named(code)
        raise ClusterFailure(client.bootstrap, operation, reason, error_code=code)
