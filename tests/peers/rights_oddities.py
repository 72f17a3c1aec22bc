"""Odd requests of a user: duplicate names, invalid kinds, and objects that can't be changed.

For some requests, a broker has two reasons to refuse them; the error shows which check is first.
"""

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from tests.worlds.clients.rights_talk import GROUP, TRANSACTION, Question

from tidelog.protocol import messages as api
from tidelog.protocol.messages.classic_groups import DeleteGroupsRequest, FindCoordinatorRequest
from tidelog.protocol.messages.cluster import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    FeatureUpdate,
    QuorumTopic,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
    ListConfigResourcesRequest,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.shared import (
    ConfigValue,
    NamedIndexes,
    NamedPartitions,
    PartitionIndex,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
)

WAIT_MS: Final = 90_000
OFFSETS: Final = "__consumer_offsets"
METADATA: Final = "__cluster_metadata"
TOPIC: Final = 2
BROKER: Final = 4
METRICS: Final = 16
GROUPS: Final = 32
KINDS: Final = (0, 1, 2, 3, 4, 8, METRICS, 32, 99)
NOBODYS_ID: Final = UUID(int=0x1234_5678_0000_4000_8000_000000000002)
# Users that send the odd requests, to Kafka and to tidelog.
ODD: Final = (
    "nobody",
    "topic-create",
    "topic-delete",
    "topic-alter",
    "topic-write",
    "topic-all",
    "group-all",
    "cluster-create",
    "cluster-alter",
    "cluster-describe",
    "cluster-alter_configs",
    "cluster-all",
    "producer",
    "all",
    "but-seeing",
    "by-prefix",
)


def oddities(user: str, ids: Mapping[str, UUID]) -> Iterator[Question]:
    """Yield all odd requests; `ids` has the topics' ids."""
    yield from _new_topics()
    yield from _going_topics(user, ids)
    yield from _settings()
    yield from _named_twice()
    yield from _in_transactions()
    yield from _about_controllers()


def _new_topics() -> Iterator[Question]:
    for names in (("twice", "twice", "secret"), (METADATA,), (OFFSETS,), ("", "a b"), ()):
        new = [
            CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for name in names
        ]
        asked = CreateTopicsRequest(topics=new, timeout_ms=WAIT_MS, validate_only=True)
        yield Question(f"create {names}", api.CREATE_TOPICS, 7, asked)
        grown = [CreatePartitionsTopic(name=name, count=99, assignments=None) for name in names]
        growing = CreatePartitionsRequest(topics=grown, timeout_ms=WAIT_MS, validate_only=True)
        yield Question(f"grow {names}", api.CREATE_PARTITIONS, 3, growing)


def _going_topics(user: str, ids: Mapping[str, UUID]) -> Iterator[Question]:
    flights = ids["flights"]
    states = {
        "twice": [DeleteTopicState(name="flights"), DeleteTopicState(name="flights")],
        "none twice": [DeleteTopicState(name="nowhere"), DeleteTopicState(name="nowhere")],
        "id twice": [
            DeleteTopicState(name=None, topic_id=flights),
            DeleteTopicState(name=None, topic_id=flights),
        ],
        "strange twice": [
            DeleteTopicState(name=None, topic_id=NOBODYS_ID),
            DeleteTopicState(name=None, topic_id=NOBODYS_ID),
        ],
        "both": [DeleteTopicState(name="flights", topic_id=flights)],
        "neither": [DeleteTopicState(name=None)],
    }
    if user in {"nobody", "group-all", "topic-create"}:  # other users would delete the topic
        states["name and id"] = [
            DeleteTopicState(name="flights"),
            DeleteTopicState(name=None, topic_id=flights),
        ]
        states["both and name"] = [*states["both"], DeleteTopicState(name="flights")]
    for what, some in states.items():
        asked = DeleteTopicsRequest(topics=some, timeout_ms=WAIT_MS)
        yield Question(f"delete {what}", api.DELETE_TOPICS, 6, asked)


def _settings() -> Iterator[Question]:
    for kind in KINDS:
        looking = DescribeConfigsResource(
            resource_type=kind, resource_name="nothing", configuration_keys=[]
        )
        topic = DescribeConfigsResource(
            resource_type=2, resource_name="flights", configuration_keys=["retention.ms"]
        )
        described = DescribeConfigsRequest(resources=[looking, topic])
        if kind != METRICS:  # our broker has no settings of client metrics
            yield Question(f"settings of kind {kind}", api.DESCRIBE_CONFIGS, 4, described)
        value = ConfigValue(name="nothing", value="1")
        whole = AlterConfigsResource(resource_type=kind, resource_name="nothing", configs=[value])
        changing = AlterConfigsRequest(resources=[whole], validate_only=True)
        # The resource is named once: Kafka never responds if an AlterConfigs names it twice.
        yield Question(f"change kind {kind}", api.ALTER_CONFIGS, 2, changing)
        step = IncrementallyAlteredConfig(name="nothing", config_operation=0, value="1")
        part = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name="nothing", configs=[step]
        )
        stepping = IncrementalAlterConfigsRequest(resources=[part], validate_only=True)
        yield Question(f"step kind {kind}", api.INCREMENTAL_ALTER_CONFIGS, 1, stepping)
        both = IncrementalAlterConfigsRequest(resources=[part, part], validate_only=True)
        yield Question(f"step kind {kind} twice", api.INCREMENTAL_ALTER_CONFIGS, 1, both)
    yield from _bad_changes()
    listing = ListConfigResourcesRequest()
    yield Question("metrics", api.LIST_CONFIG_RESOURCES, 0, listing)


# Invalid changes of settings, the first two for resources of any kind, the others for brokers only.
# Their errors take precedence over other errors.
BACKOFF: Final = "log.cleaner.backoff.ms"
BAD: Final[tuple[tuple[tuple[str, str | None], ...], ...]] = (
    ((BACKOFF, "1"), (BACKOFF, "2")),
    ((BACKOFF, None),),
    ((BACKOFF, "x"),),
    ((BACKOFF, "-1"),),
    (("log.cleanup.policy", "nope"),),
    (("node.id", "3"),),
    (("listeners", "PLAINTEXT://127.0.0.1:1"),),
)
PLACES: Final = ((TOPIC, "flights"), (TOPIC, "nowhere"), (BROKER, "1"), (BROKER, ""), (GROUPS, "g"))
OPERATIONS: Final = (0, 1, 2, 9)


def _bad_changes() -> Iterator[Question]:
    """Yield bad changes by resource, setting and operation."""
    for kind, name in PLACES:
        for configs in BAD if kind == BROKER else BAD[:2]:
            what = f"of {name!r}: {configs}"
            # With an empty name, the request would remove a default that a Kafka feature has set.
            if name != "":
                values = [ConfigValue(name=key, value=value) for key, value in configs]
                whole = AlterConfigsResource(resource_type=kind, resource_name=name, configs=values)
                changing = AlterConfigsRequest(resources=[whole], validate_only=True)
                yield Question(f"change all {what}", api.ALTER_CONFIGS, 2, changing)
            for operation in OPERATIONS:
                if kind != BROKER and operation == 1:
                    continue  # a deletion of an unknown setting gets no error
                steps = [
                    IncrementallyAlteredConfig(name=key, config_operation=operation, value=value)
                    for key, value in configs
                ]
                part = IncrementalAlterConfigsResource(
                    resource_type=kind, resource_name=name, configs=steps
                )
                stepping = IncrementalAlterConfigsRequest(resources=[part], validate_only=True)
                named = f"change by {operation} {what}"
                yield Question(named, api.INCREMENTAL_ALTER_CONFIGS, 1, stepping)


def _named_twice() -> Iterator[Question]:
    names = ["secret", "secret"]
    again = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in (*names, OFFSETS)],
        allow_auto_topic_creation=False,
    )
    yield Question("metadata twice", api.METADATA, 12, again)
    places = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    lookup = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=name, partitions=places) for name in names]
    )
    yield Question("offsets twice", api.LIST_OFFSETS, 7, lookup)
    producers = DescribeProducersRequest(
        topics=[NamedIndexes(name=name, partition_indexes=[0]) for name in names]
    )
    yield Question("producers twice", api.DESCRIBE_PRODUCERS, 0, producers)
    going = DeleteGroupsRequest(groups_names=["other", "other"])
    yield Question("delete groups twice", api.DELETE_GROUPS, 2, going)
    for kind in (0, 1, 2, 3):
        asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=["x", "x"])
        yield Question(f"coordinator of kind {kind}", api.FIND_COORDINATOR, 5, asked)
    place = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [
        OffsetCommitRequestTopic(name=name, partitions=[place])
        for name in ("nowhere", OFFSETS, "secret")
    ]
    committing = OffsetCommitRequest(group_id=GROUP, member_id="", topics=topics)
    yield Question("commit oddly", api.OFFSET_COMMIT, 9, committing)


def _in_transactions() -> Iterator[Question]:
    for names in ((OFFSETS,), ("flights", OFFSETS), ("flights", "secret", "flx"), ("nowhere",)):
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TRANSACTION,
            v3_and_below_producer_id=987_654_321,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[NamedPartitions(name=name, partitions=[0]) for name in names],
        )
        yield Question(f"add {names}", api.ADD_PARTITIONS_TO_TXN, 3, adding)


def _about_controllers() -> Iterator[Question]:
    part = PartitionIndex(partition_index=0)
    topics = [QuorumTopic(topic_name="nowhere", partitions=[part])]
    yield Question("quorum", api.DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=topics))
    for version in (0, 1, 2):
        update = FeatureUpdate(feature="no.such.feature", max_version_level=1)
        features = UpdateFeaturesRequest(feature_updates=[update], validate_only=version > 0)
        yield Question("features", api.UPDATE_FEATURES, version, features)
    leaving = UnregisterBrokerRequest(broker_id=77)
    yield Question("unregister", api.UNREGISTER_BROKER, 0, leaving)
    coming = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=WAIT_MS,
        voter_id=77,
        voter_directory_id=NOBODYS_ID,
        listeners=[],
    )
    yield Question("add a voter", api.ADD_RAFT_VOTER, 0, coming)
    gone = RemoveRaftVoterRequest(cluster_id=None, voter_id=77, voter_directory_id=NOBODYS_ID)
    yield Question("remove a voter", api.REMOVE_RAFT_VOTER, 0, gone)
