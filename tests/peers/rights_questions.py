"""Requests of a user: each API that checks rights, in older and newer versions."""

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from tests.peers.rights_groups import about_groups, about_transactions
from tests.peers.rights_shares import about_shares
from tests.worlds.clients.rights_talk import TOPICS, Question, allow, creation, everything

from tidelog.protocol import messages as api
from tidelog.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
    ListConfigResourcesRequest,
    QuotaAlteration,
    QuotaFilterComponent,
    QuotaOperation,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from tidelog.protocol.messages.shared import (
    ConfigValue,
    NamedIndexes,
    NamedPartitions,
    QuotaEntity,
    TopicName,
    TopicPartitions,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.messages.transactions import DescribeProducersRequest
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

NAMES: Final = (*TOPICS, "nowhere")
STRANGE_ID: Final = UUID(int=0x1234_5678_0000_4000_8000_000000000001)
T0: Final = 1_700_000_000_000
BATCH: Final = bytes(build_batch([NewRecord(value=b"v", timestamp=T0)]))
WAIT_MS: Final = 90_000
# Users whose rights allow the deletion of `flights`. They don't request it, because other users
# still read `flights`.
MAY_DELETE: Final = frozenset(
    {
        "topic-delete",
        "topic-all",
        "cluster-all",
        "all",
        "but-reading",
        "but-seeing",
        "but-writing",
        "but-star",
    }
)
# On our broker, users with this right may fetch as a follower with any replica id. Kafka requires
# the id of a replica (docs/differences.md).
MAY_FOLLOW: Final = frozenset(
    {
        "cluster-cluster_action",
        "cluster-all",
        "all",
        "but-reading",
        "but-seeing",
        "but-writing",
        "but-star",
    }
)


def questions(user: str, ids: Mapping[str, UUID]) -> Iterator[Question]:
    """Yield all requests of a user; `ids` has the topics' ids."""
    yield from _about_records(user, ids)
    yield from _about_topics(ids)
    yield from _changing_topics(user, ids)
    yield from _about_settings()
    yield from about_groups(ids)
    yield from about_shares(ids)
    yield from about_transactions()
    yield from _about_the_cluster()
    yield from _about_acls(user)


def _id_of(ids: Mapping[str, UUID], name: str) -> UUID:
    return ids.get(name, STRANGE_ID)


def _about_records(user: str, ids: Mapping[str, UUID]) -> Iterator[Question]:
    for version in (3, 9, 13):
        data = [
            TopicProduceData(
                name=name,
                topic_id=_id_of(ids, name),
                partition_data=[PartitionProduceData(index=0, records=BATCH)],
            )
            for name in ("flights", "secret", "nowhere")
        ]
        for name in (None, "flown"):
            asked = ProduceRequest(
                transactional_id=name, acks=-1, timeout_ms=WAIT_MS, topic_data=data
            )
            yield Question(f"produce {name}", api.PRODUCE, version, asked)
    for version, replica_id in ((4, -1), (12, -1), (12, 5), (13, -1), (17, -1)):
        if replica_id >= 0 and user in MAY_FOLLOW:
            continue
        topics = [
            FetchTopic(
                topic=name,
                topic_id=_id_of(ids, name),
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=9999)],
            )
            for name in NAMES
        ]
        fetch = FetchRequest(
            replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=topics, rack_id=""
        )
        yield Question(f"fetch as {replica_id}", api.FETCH, version, fetch)
    for version in (1, 7):
        places = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
        lookup = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name=name, partitions=places) for name in NAMES]
        )
        yield Question("list offsets", api.LIST_OFFSETS, version, lookup)
    epochs = [OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    ends = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=n, partitions=epochs) for n in NAMES]
    )
    yield Question("epoch ends", api.OFFSET_FOR_LEADER_EPOCH, 4, ends)
    begin = [DeleteRecordsPartition(partition_index=0, offset=0)]
    records = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=begin) for name in NAMES],
        timeout_ms=WAIT_MS,
    )
    yield Question("delete records", api.DELETE_RECORDS, 2, records)
    producers = DescribeProducersRequest(
        topics=[NamedIndexes(name=name, partition_indexes=[0]) for name in NAMES]
    )
    yield Question("describe producers", api.DESCRIBE_PRODUCERS, 0, producers)


def _about_topics(ids: Mapping[str, UUID]) -> Iterator[Question]:
    for version in (1, 7, 12):
        for told in (True, False):
            named = MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in NAMES],
                allow_auto_topic_creation=version < 4,
                include_topic_authorized_operations=told and version >= 8,
            )
            yield Question(f"metadata {told}", api.METADATA, version, named)
    every = MetadataRequest(topics=None, include_topic_authorized_operations=True)
    yield Question("metadata of all", api.METADATA, 12, every)
    nothing = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    yield Question("metadata of nothing", api.METADATA, 9, nothing)
    by_id = MetadataRequest(
        topics=[MetadataRequestTopic(name=None, topic_id=_id_of(ids, name)) for name in NAMES],
        allow_auto_topic_creation=False,
    )
    yield Question("metadata by id", api.METADATA, 12, by_id)
    wanted = [TopicName(name=name) for name in NAMES]
    for topics in (wanted, []):
        asked = DescribeTopicPartitionsRequest(topics=topics)
        yield Question("topic partitions", api.DESCRIBE_TOPIC_PARTITIONS, 0, asked)


def _changing_topics(user: str, ids: Mapping[str, UUID]) -> Iterator[Question]:
    for version in (2, 7):
        new = [
            CreatableTopic(
                name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[]
            )
            for name in ("flights", "flx", "another")
        ]
        creating = CreateTopicsRequest(topics=new, timeout_ms=WAIT_MS, validate_only=True)
        yield Question("create topics", api.CREATE_TOPICS, version, creating)
    grown = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in NAMES]
    growing = CreatePartitionsRequest(topics=grown, timeout_ms=WAIT_MS, validate_only=True)
    yield Question("create partitions", api.CREATE_PARTITIONS, 3, growing)
    names = ["nowhere"] if user in MAY_DELETE else ["nowhere", "flights"]
    going = DeleteTopicsRequest(topic_names=names, timeout_ms=WAIT_MS)
    yield Question("delete topics", api.DELETE_TOPICS, 5, going)
    states = [DeleteTopicState(name=name) for name in names]
    states += [DeleteTopicState(name=None, topic_id=_id_of(ids, name)) for name in names]
    yield Question(
        "delete topics",
        api.DELETE_TOPICS,
        6,
        DeleteTopicsRequest(topics=states, timeout_ms=WAIT_MS),
    )


def _about_settings() -> Iterator[Question]:
    for kind, name in ((2, "flights"), (2, "secret"), (2, "nowhere"), (4, "1")):
        looking = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=["retention.ms"]
        )
        described = DescribeConfigsRequest(resources=[looking])
        yield Question(f"settings of {name}", api.DESCRIBE_CONFIGS, 4, described)
        if kind != 2:
            continue
        values = [ConfigValue(name="retention.ms", value="1000000")]
        whole = AlterConfigsResource(resource_type=kind, resource_name=name, configs=values)
        changing = AlterConfigsRequest(resources=[whole], validate_only=True)
        yield Question(f"change all of {name}", api.ALTER_CONFIGS, 2, changing)
        steps = [IncrementallyAlteredConfig(name="retention.ms", config_operation=0, value="-1")]
        part = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=steps
        )
        stepping = IncrementalAlterConfigsRequest(resources=[part], validate_only=True)
        yield Question(f"change {name}", api.INCREMENTAL_ALTER_CONFIGS, 1, stepping)
    listing = ListConfigResourcesRequest(resource_types=[4])
    yield Question("config resources", api.LIST_CONFIG_RESOURCES, 1, listing)


def _about_the_cluster() -> Iterator[Question]:
    for told in (True, False):
        asked = DescribeClusterRequest(include_cluster_authorized_operations=told)
        yield Question(f"cluster {told}", api.DESCRIBE_CLUSTER, 1, asked)
    topics = [TopicPartitions(topic="flights", partitions=[0])]
    dirs = DescribeLogDirsRequest(topics=topics)
    yield Question("log dirs", api.DESCRIBE_LOG_DIRS, 4, dirs)
    moved = NamedPartitions(name="flights", partitions=[0])
    moving = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/not/here", topics=[moved])])
    yield Question("move logs", api.ALTER_REPLICA_LOG_DIRS, 2, moving)
    electing = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic="flights", partitions=[0])], timeout_ms=WAIT_MS
    )
    yield Question("elect", api.ELECT_LEADERS, 2, electing)
    place = ReassignableTopic(
        name="nowhere", partitions=[ReassignablePartition(partition_index=0, replicas=[1])]
    )
    placing = AlterPartitionReassignmentsRequest(topics=[place], timeout_ms=WAIT_MS)
    yield Question("reassign", api.ALTER_PARTITION_REASSIGNMENTS, 0, placing)
    ongoing = ListPartitionReassignmentsRequest(topics=None, timeout_ms=WAIT_MS)
    yield Question("reassignments", api.LIST_PARTITION_REASSIGNMENTS, 0, ongoing)
    part = QuotaFilterComponent(entity_type="user", match_type=0, match="someone")
    quotas = DescribeClientQuotasRequest(components=[part], strict=False)
    yield Question("quotas", api.DESCRIBE_CLIENT_QUOTAS, 1, quotas)
    change = QuotaAlteration(
        entity=[QuotaEntity(entity_type="user", entity_name="someone")],
        ops=[QuotaOperation(key="producer_byte_rate", value=1e9, remove=False)],
    )
    changing = AlterClientQuotasRequest(entries=[change], validate_only=True)
    yield Question("change quotas", api.ALTER_CLIENT_QUOTAS, 1, changing)
    found = DescribeUserScramCredentialsRequest(users=[TopicName(name="someone")])
    yield Question("users", api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, found)
    gone = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="someone", mechanism=1)], upsertions=[]
    )
    yield Question("change users", api.ALTER_USER_SCRAM_CREDENTIALS, 0, gone)


def _about_acls(user: str) -> Iterator[Question]:
    yield Question("rules", api.DESCRIBE_ACLS, 3, everything(f"User:{user}"))
    later = [creation("later", allow("READ", name="later")), creation("later", allow("READ"))]
    yield Question("add rules", api.CREATE_ACLS, 3, CreateAclsRequest(creations=later))
    wanted = everything("User:later")
    going = DeleteAclsFilter(
        resource_type_filter=wanted.resource_type_filter,
        resource_name_filter="later",
        pattern_type_filter=wanted.pattern_type_filter,
        principal_filter="User:later",
        host_filter=None,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )
    yield Question("remove rules", api.DELETE_ACLS, 3, DeleteAclsRequest(filters=[going]))
