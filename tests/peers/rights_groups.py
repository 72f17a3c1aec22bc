"""Requests of a user about groups, offsets and transactions."""

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from tests.worlds.clients.rights_talk import GROUP, GROWN, TOPICS, TRANSACTION, Question

from tidelog.protocol import messages as api
from tidelog.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from tidelog.protocol.messages.shared import (
    GroupProtocol,
    NamedIndexes,
    NamedPartitions,
    PartitionIndex,
)
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)

STRANGER: Final = "stranger"
STRANGE_PRODUCER: Final = 987_654_321
OTHER: Final = "other"
SHARE_KEY: Final = f"{GROUP}:nT3i4OXyR0mr0my1RZx9pQ:0"
SOME: Final = ("flights", "secret")


def about_groups(ids: Mapping[str, UUID]) -> Iterator[Question]:
    """Yield requests about members and offsets of groups, and about lists of groups."""
    yield from _as_a_member()
    yield from _by_the_consumer_protocol()
    yield from _offsets(ids)
    for kind, key in ((0, GROUP), (0, OTHER), (1, TRANSACTION), (1, OTHER)):
        single = FindCoordinatorRequest(key_type=kind, key=key)
        yield Question(f"coordinator of {key}", api.FIND_COORDINATOR, 3, single)
        keys = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key, "nobody's"])
        yield Question(f"coordinators of {key}", api.FIND_COORDINATOR, 4, keys)
    shared = FindCoordinatorRequest(key_type=2, coordinator_keys=[SHARE_KEY, "nobody's"])
    for version in (5, 6):
        yield Question(f"of a share partition {version}", api.FIND_COORDINATOR, version, shared)
    yield Question("groups", api.LIST_GROUPS, 5, ListGroupsRequest())
    for told in (True, False):
        described = DescribeGroupsRequest(groups=[GROUP, OTHER], include_authorized_operations=told)
        yield Question(f"describe groups {told}", api.DESCRIBE_GROUPS, 5, described)
    going = DeleteGroupsRequest(groups_names=[GROUP, OTHER])
    yield Question("delete groups", api.DELETE_GROUPS, 2, going)


def _as_a_member() -> Iterator[Question]:
    for version in (3, 9):
        joining = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=STRANGER,
            protocol_type="consumer",
            protocols=[GroupProtocol(name="range", metadata=b"")],
        )
        yield Question("join", api.JOIN_GROUP, version, joining)
    syncing = SyncGroupRequest(
        group_id=GROUP,
        generation_id=1,
        member_id=STRANGER,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    yield Question("sync", api.SYNC_GROUP, 5, syncing)
    beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=STRANGER)
    yield Question("heartbeat", api.HEARTBEAT, 4, beat)
    leaving = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=STRANGER)])
    yield Question("leave", api.LEAVE_GROUP, 5, leaving)


def _by_the_consumer_protocol() -> Iterator[Question]:
    for names in (None, ["flights"], ["flights", "secret"], ["nowhere"]):
        beat = ConsumerGroupHeartbeatRequest(
            group_id=GROWN,
            member_id=STRANGER,
            member_epoch=9,
            subscribed_topic_names=names,
            topic_partitions=[],
        )
        yield Question(f"beat for {names}", api.CONSUMER_GROUP_HEARTBEAT, 1, beat)
    for told in (True, False):
        described = ConsumerGroupDescribeRequest(
            group_ids=[GROWN, GROUP, OTHER], include_authorized_operations=told
        )
        yield Question(f"describe {told}", api.CONSUMER_GROUP_DESCRIBE, 1, described)


def _offsets(ids: Mapping[str, UUID]) -> Iterator[Question]:
    for version in (2, 9, 10):
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topics = [
            OffsetCommitRequestTopic(name=name, topic_id=ids[name], partitions=[place])
            for name in TOPICS
        ]
        committing = OffsetCommitRequest(group_id=GROUP, member_id="", topics=topics)
        yield Question("commit", api.OFFSET_COMMIT, version, committing)
    for version in (1, 5, 7):
        named = [OffsetFetchTopic(name=name, partition_indexes=[0]) for name in TOPICS]
        for wanted in (named, None)[: 1 if version < 2 else 2]:
            fetching = OffsetFetchRequest(group_id=GROUP, topics=wanted)
            yield Question(f"offsets of {wanted is None}", api.OFFSET_FETCH, version, fetching)
    for version in (8, 10):
        some = [
            OffsetFetchTopic(name=name, topic_id=ids[name], partition_indexes=[0])
            for name in TOPICS
        ]
        for each in (some, None):
            groups = [OffsetFetchGroup(group_id=name, topics=each) for name in (GROUP, OTHER)]
            asked = OffsetFetchRequest(groups=groups)
            yield Question(f"all offsets {each is None}", api.OFFSET_FETCH, version, asked)
    part = [PartitionIndex(partition_index=0)]
    going = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[OffsetDeleteRequestTopic(name=name, partitions=part) for name in SOME],
    )
    yield Question("delete offsets", api.OFFSET_DELETE, 0, going)


def about_transactions() -> Iterator[Question]:
    """Yield requests about producer ids, transactions and lists of transactions."""
    for name in (None, TRANSACTION):
        beginning = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        yield Question(f"producer id of {name}", api.INIT_PRODUCER_ID, 4, beginning)
    topics = [NamedPartitions(name=name, partitions=[0]) for name in SOME]
    for wanted in (topics, topics[:1]):
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TRANSACTION,
            v3_and_below_producer_id=STRANGE_PRODUCER,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=wanted,
        )
        yield Question("add partitions", api.ADD_PARTITIONS_TO_TXN, 3, adding)
    batched = AddPartitionsToTxnTransaction(
        transactional_id=TRANSACTION,
        producer_id=STRANGE_PRODUCER,
        producer_epoch=0,
        verify_only=True,
        topics=topics,
    )
    verifying = AddPartitionsToTxnRequest(transactions=[batched])
    yield Question("verify partitions", api.ADD_PARTITIONS_TO_TXN, 5, verifying)
    offsets = AddOffsetsToTxnRequest(
        transactional_id=TRANSACTION,
        producer_id=STRANGE_PRODUCER,
        producer_epoch=0,
        group_id=GROUP,
    )
    yield Question("add offsets", api.ADD_OFFSETS_TO_TXN, 3, offsets)
    ending = EndTxnRequest(
        transactional_id=TRANSACTION,
        producer_id=STRANGE_PRODUCER,
        producer_epoch=0,
        committed=True,
    )
    yield Question("end", api.END_TXN, 3, ending)
    place = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    committing = TxnOffsetCommitRequest(
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=STRANGE_PRODUCER,
        producer_epoch=0,
        generation_id=5,
        member_id=STRANGER,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[place]) for name in TOPICS],
    )
    yield Question("commit in a transaction", api.TXN_OFFSET_COMMIT, 3, committing)
    marker = WritableTxnMarker(
        producer_id=STRANGE_PRODUCER,
        producer_epoch=0,
        transaction_result=True,
        topics=[NamedIndexes(name="nowhere", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    marking = WriteTxnMarkersRequest(markers=[marker])
    yield Question("write markers", api.WRITE_TXN_MARKERS, 1, marking)
    described = DescribeTransactionsRequest(transactional_ids=[TRANSACTION, OTHER])
    yield Question("describe transactions", api.DESCRIBE_TRANSACTIONS, 0, described)
    yield Question("transactions", api.LIST_TRANSACTIONS, 1, ListTransactionsRequest())
