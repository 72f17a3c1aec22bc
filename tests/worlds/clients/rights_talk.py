"""Users with different rights, and the requests that each user sends to Kafka and our broker."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from uuid import UUID

from tests.worlds.brokers.logins import say, shake
from tests.worlds.clients.raw import RawClient

from tidelog.protocol.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_ACLS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from tidelog.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from tidelog.protocol.messages.modern_groups import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    InitProducerIdRequest,
)
from tidelog.protocol.schema import Api
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

PASSWORD: Final = "sesame"
SUPER: Final = "node"
TOPICS: Final = ("flights", "fleet", "secret", "open", "shut")
# A topic that the requests create and delete.
MADE: Final = "fleeting"
GROUP: Final = "flying"
# A group of the consumer protocol.
GROWN: Final = "grown"
# A share group.
LENT: Final = "lent"
MEMBER: Final = "the-one-member"
TRANSACTION: Final = "flown"
CLUSTER: Final = "kafka-cluster"
PATIENCE_S: Final = 90
# Errors while a coordinator or leader is not ready yet.
PASSING: Final = frozenset({5, 14, 15, 16, 51})


class Question(NamedTuple):
    """One request.

    Attributes:
        name: Description of the request.
        api: API of the request.
        version: Version of the API.
        message: The request's message.
    """

    name: str
    api: "Api[DataclassInstance, DataclassInstance]"
    version: int
    message: "DataclassInstance"


# -- ACLs ---------------------------------------------------------------------------------------

AclFields = tuple[ResourceType, str, PatternType, str, Operation, Permission]
TOPIC, GROUPS = ResourceType.TOPIC, ResourceType.GROUP
IDS = ResourceType.TRANSACTIONAL_ID


def allow(
    operation: str,
    kind: ResourceType = TOPIC,
    name: str = "flights",
    *,
    prefix: bool = False,
    host: str = "*",
) -> AclFields:
    """Return an ACL that allows an operation."""
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    return kind, name, pattern, host, Operation[operation], Permission.ALLOW


def deny(operation: str, kind: ResourceType = TOPIC, name: str = "flights") -> AclFields:
    """Return an ACL that denies an operation."""
    return *allow(operation, kind, name)[:5], Permission.DENY


ALL_OF_ALL: Final = [
    *(allow("ALL", kind, "*") for kind in (TOPIC, GROUPS, IDS)),
    allow("ALL", ResourceType.CLUSTER, CLUSTER),
]


def _each(kind: ResourceType, names: str, operations: str) -> dict[str, list[AclFields]]:
    """Return, for each operation, a user's name and the ACLs that allow only this operation."""
    words = operations.split()
    return {
        f"{kind.name}-{word}".lower(): [allow(word, kind, name) for name in names.split()]
        for word in words
    }


OF_TOPICS: Final = "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS ALL"
OF_CLUSTERS: Final = (
    "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE ALL"
)
USERS: Final[dict[str, list[AclFields]]] = {
    "nobody": [],
    **_each(TOPIC, f"flights {MADE}", OF_TOPICS),
    **_each(GROUPS, GROUP, "READ DELETE DESCRIBE ALL"),
    **_each(IDS, TRANSACTION, "WRITE DESCRIBE ALL"),
    **_each(ResourceType.CLUSTER, CLUSTER, OF_CLUSTERS),
    "all": ALL_OF_ALL,
    "but-reading": [*ALL_OF_ALL, deny("READ"), deny("READ", GROUPS, GROUP)],
    "but-seeing": [*ALL_OF_ALL, deny("DESCRIBE"), deny("DESCRIBE", GROUPS, GROUP)],
    "but-writing": [*ALL_OF_ALL, deny("WRITE"), deny("WRITE", IDS, TRANSACTION)],
    "but-all": [*ALL_OF_ALL, deny("ALL"), deny("ALL", ResourceType.CLUSTER, CLUSTER)],
    "but-star": [*ALL_OF_ALL, deny("ALL", TOPIC, "*"), deny("ALL", GROUPS, "*")],
    "by-prefix": [
        *(allow(word, name="fl", prefix=True) for word in ("READ", "WRITE", "CREATE")),
        allow("READ", GROUPS, "f", prefix=True),
        allow("WRITE", IDS, "flow", prefix=True),
    ],
    "from-here": [allow("READ", host="127.0.0.1"), allow("READ", GROUPS, GROUP, host="127.0.0.1")],
    "from-there": [allow("READ", host="10.1.2.3"), allow("ALL", GROUPS, GROUP, host="10.1.2.3")],
    "consumer": [allow("READ"), allow("READ", GROUPS, GROUP)],
    "producer": [allow("WRITE"), allow("WRITE", IDS, TRANSACTION)],
    "lender": [allow("READ", GROUPS, LENT), allow("READ")],
    "lending": [allow("READ", GROUPS, LENT), allow("DESCRIBE")],
    "lenders-watcher": [allow("DESCRIBE", GROUPS, LENT), allow("DESCRIBE")],
    "lenders-boss": [allow("DELETE", GROUPS, LENT), allow("READ")],
    "watcher": [allow("DESCRIBE", GROUPS, GROWN)],
    "watcher-of-some": [allow("DESCRIBE", GROUPS, GROWN), allow("DESCRIBE")],
    "watcher-of-all": [allow("DESCRIBE", GROUPS, GROWN), allow("READ", name="*")],
    "member": [allow("READ", GROUPS, GROWN), allow("DESCRIBE")],
    "processor": [
        *(allow(word) for word in ("READ", "WRITE")),
        allow("READ", GROUPS, GROUP),
        allow("WRITE", IDS, TRANSACTION),
    ],
}
# ACLs for all users.
FOR_ALL: Final = [allow("READ", name="open"), deny("ALL", name="shut")]


def creation(user: str, acl: AclFields) -> AclCreation:
    """Return an ACL in the form of CreateAcls."""
    kind, name, pattern, host, operation, permission = acl
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=f"User:{user}",
        host=host,
        operation=operation,
        permission_type=permission,
    )


def everything(principal: str | None = None) -> DescribeAclsRequest:
    """Return a request for all ACLs of a principal, or of all principals if None."""
    return DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=principal,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )


# -- requests ------------------------------------------------------------------------------------


def logged_in(bootstrap: str, user: str) -> RawClient:
    """Return an authenticated connection of a user."""
    client = RawClient(bootstrap)
    assert shake(client, "PLAIN").error_code == 0
    assert say(client, f"\0{user}\0{PASSWORD}".encode()).error_code == 0
    return client


def patiently(
    client: RawClient, api: Api[Request, Response], version: int, message: Request
) -> Response:
    """Repeat a request until the response has no temporary error; return this response."""
    end = time.monotonic() + PATIENCE_S
    while True:
        answer = client.ask(api, version, message)
        if PASSING.isdisjoint(codes_in(answer)) or time.monotonic() > end:
            return answer


def codes_in(value: object) -> Iterator[int]:
    """Yield all error codes of a response."""
    if isinstance(value, list):
        for inner in value:
            yield from codes_in(inner)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.name in {"error_code", "partition_error_code"} and isinstance(found, int):
                yield found
            else:
                yield from codes_in(found)


def prepare(bootstrap: str) -> Mapping[str, UUID]:
    """Create topics, coordinators and all ACLs; return the topics' ids."""
    with logged_in(bootstrap, SUPER) as client:
        topics = [
            CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for name in TOPICS
        ]
        made = client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics, timeout_ms=90_000))
        assert not any(codes_in(made)), made
        _give_acls(client)
        for kind, key in ((0, GROUP), (1, TRANSACTION)):
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            assert not any(codes_in(patiently(client, FIND_COORDINATOR, 4, asked)))
        groups = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=GROUP, topics=None)])
        patiently(client, OFFSET_FETCH, 8, groups)
        joining = ConsumerGroupHeartbeatRequest(
            group_id=GROWN,
            member_id=MEMBER,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["flights", "secret"],
            topic_partitions=[],
        )
        assert not any(codes_in(patiently(client, CONSUMER_GROUP_HEARTBEAT, 1, joining)))
        lend(client)
        wanted = DescribeTransactionsRequest(transactional_ids=[TRANSACTION])
        patiently(client, DESCRIBE_TRANSACTIONS, 0, wanted)
        first = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
        assert not any(codes_in(patiently(client, INIT_PRODUCER_ID, 4, first)))
        named = [MetadataRequestTopic(name=name) for name in TOPICS]
        found = patiently(
            client,
            METADATA,
            12,
            MetadataRequest(topics=named, allow_auto_topic_creation=False),
        )
        patiently(client, DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest(topics=[]))
        return {topic.name or "": topic.topic_id for topic in found.topics}


def _give_acls(client: RawClient) -> None:
    acls = [creation(user, acl) for user, acls in USERS.items() for acl in acls]
    acls += [creation("*", acl) for acl in FOR_ALL]
    said = client.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=acls))
    assert not any(codes_in(said)), said
    _await(lambda: count_acls(client) == len(acls), "rules")


def give_acls_again(bootstrap: str) -> None:
    """Delete all ACLs, and create the ACLs of the tests again."""
    with logged_in(bootstrap, SUPER) as client:
        going = dataclasses.asdict(everything())
        said = client.ask(DELETE_ACLS, 3, DeleteAclsRequest(filters=[DeleteAclsFilter(**going)]))
        assert not any(codes_in(said)), said
        _give_acls(client)


def make_anew(bootstrap: str) -> None:
    """Create the topic `MADE` again, with one partition, and the group."""
    topic = CreatableTopic(
        name=MADE, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    with logged_in(bootstrap, SUPER) as client:
        old = DeleteTopicsRequest(topics=[DeleteTopicState(name=MADE)], timeout_ms=90_000)
        assert set(codes_in(client.ask(DELETE_TOPICS, 6, old))) <= {0, 3}
        new = CreateTopicsRequest(topics=[topic], timeout_ms=90_000)
        made = client.ask(CREATE_TOPICS, 7, new)
        assert not any(codes_in(made)), made
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        read = [OffsetCommitRequestTopic(name="flights", partitions=[place])]
        commit = OffsetCommitRequest(group_id=GROUP, member_id="", topics=read)
        said = patiently(client, OFFSET_COMMIT, 7, commit)
        assert not any(codes_in(said)), said


def lend(client: RawClient) -> None:
    """Create a share group without members, with a start offset in one topic."""
    place = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = AlterShareGroupOffsetsRequestTopic(topic_name="flights", partitions=[place])
    asked = AlterShareGroupOffsetsRequest(group_id=LENT, topics=[topic])
    assert not any(codes_in(patiently(client, ALTER_SHARE_GROUP_OFFSETS, 0, asked)))


def count_acls(client: RawClient) -> int:
    found = client.ask(DESCRIBE_ACLS, 3, everything())
    return sum(len(resource.acls) for resource in found.resources)


def _await(is_there: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < end, what


# -- comparison of two brokers -------------------------------------------------------------------

# Names of fields whose values differ between brokers.
OWN: Final = frozenset(
    {
        "throttle_time_ms",
        "host",
        "port",
        "cluster_id",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "partition_size",
        "configs",
        "error_message",
        "controller_id",
        "last_timestamp",
        "session_id",
        "leader_epoch",
        "producer_id",
        "credential_infos",
    }
)


def shared(value: object, ids: Mapping[UUID, str]) -> object:
    """Return the part of a response that brokers share: no fields in `OWN`, and sorted lists."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in OWN]
        # A missing list of aborted transactions and an empty list mean the same to a reader.
        return {
            name: shared(found or [] if name == "aborted_transactions" else found, ids)
            for name in names
            for found in (getattr(value, name),)
        }
    if isinstance(value, list):
        return sorted((shared(inner, ids) for inner in value), key=repr)
    if isinstance(value, UUID):
        return ids.get(value, str(value) if not value.int else "another")
    return value


def differences(kafka: object, ours: object, place: str = "") -> Iterator[str]:
    """Yield a text for each place where two responses differ."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in kafka:
            yield from differences(kafka[name], ours[name], f"{place}.{name}")
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for number, (first, second) in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(first, second, f"{place}[{number}]")
    elif kafka != ours:
        yield f"{place}: Kafka {kafka!r}, ours {ours!r}"
