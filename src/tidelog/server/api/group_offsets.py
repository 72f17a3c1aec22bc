"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: committed offsets of groups.

Source: Kafka's protocol guide, APIs 8, 9, 28 and 47; Kafka 4.3's GroupCoordinatorService; KIP-447
(stable offsets), KIP-709 (many groups at once), KIP-848 (topic ids), KIP-890.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.shared import PartitionCode
from tidelog.protocol.wire import NO_UUID
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many
from tidelog.server.api.guards import Access, Denied, Guarded, denied_whole, failed_item
from tidelog.server.api.node import Node
from tidelog.server.api.produce import reported_error
from tidelog.server.groups.committed_offsets import GroupOffsets, PendingOffsets
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest
from tidelog.server.runtime.loop import Slices
from tidelog.server.security.operations import Operation

TOP_ERROR_FIRST_VERSION: Final = 2
BATCHED_FIRST_VERSION: Final = 8
MEMBERS_FIRST_VERSION: Final = 9
TOPIC_IDS_FIRST_VERSION: Final = 10

# Number of groups that are processed before other tasks of the event loop may run.
GROUPS_AT_ONCE: Final = 100


async def offset_fetch(
    context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | LargeResponse:
    """Wait until the earlier commits of each group are durable, then return its committed offsets.

    A group or partition that is named several times is reported once. Otherwise a short request
    could cause a very long response, because the metadata of a committed offset may be long.
    """
    if context.version >= BATCHED_FIRST_VERSION:
        requested_groups = {group.group_id: group for group in request.groups}
        groups = []
        for number, group in enumerate(requested_groups.values(), start=1):
            groups.append(await _group(context, group, is_stable=request.require_stable))
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        count = sum(len(topic.partitions) for group in groups for topic in group.topics)
        return large_if_many(OffsetFetchResponse(groups=groups), groups, count)
    group_request = OffsetFetchGroup(group_id=request.group_id, topics=request.topics)
    group_response = await _group(context, group_request, is_stable=request.require_stable)
    topics, code = group_response.topics, group_response.error_code
    if code and context.version < TOP_ERROR_FIRST_VERSION:
        # The response has no error of its own, so each partition gets the group's error.
        requested = request.topics or ()
        topics = [failed_item(OffsetFetchTopicResponse, topic, code) for topic in requested]
    count = sum(len(topic.partitions) for topic in topics)
    return large_if_many(OffsetFetchResponse(error_code=code, topics=topics), topics, count)


class _OffsetSource(NamedTuple):
    """Offsets of one group, from which the group's response is made.

    Attributes:
        group_id: The group.
        offsets: The group's committed offsets.
        pending: Offsets of open transactions; None if the client doesn't require stable offsets.
        by_id: Whether the request names topics by their ids.
    """

    group_id: str
    offsets: GroupOffsets
    pending: PendingOffsets | None
    by_id: bool


async def _group(
    context: RequestContext, group_request: OffsetFetchGroup, *, is_stable: bool
) -> OffsetFetchGroupResponse:
    coordinator, group_id = context.node.groups, group_request.group_id
    state_topic = coordinator.topic
    code = state_topic.error_for(group_id) or await state_topic.settled(group_id)
    code = code or state_topic.error_for(group_id)  # the group may have been unloaded meanwhile
    group = coordinator.find(group_id)
    if not code and group is not None and context.version >= MEMBERS_FIRST_VERSION:
        code = group.fetch_error(group_request.member_id, group_request.member_epoch)
    if code:
        return OffsetFetchGroupResponse(group_id=group_id, error_code=code)
    source = _OffsetSource(
        group_id,
        GroupOffsets() if group is None else group.offsets,
        coordinator.pending if is_stable else None,
        context.version >= TOPIC_IDS_FIRST_VERSION,
    )
    topics = (
        await _all(context.node, source)
        if group_request.topics is None
        else [
            _requested_topic(context.node, source, topic)
            for topic in _named_once(group_request.topics)
        ]
    )
    return OffsetFetchGroupResponse(group_id=group_id, topics=topics)


async def _all(node: Node, source: _OffsetSource) -> list[OffsetFetchTopicResponse]:
    """Return all committed offsets of a group.

    If topics are named by id, an offset is returned only if its topic exists and has the id for
    which the offset was committed. An offset committed for the zero id matches any topic id.
    """
    topics: list[OffsetFetchTopicResponse] = []
    slices = Slices(node.env.clock)
    for name in source.offsets.topics():
        info = node.topics.find(name)
        topic_id = NO_UUID if info is None or info.topic_id is None else info.topic_id
        if source.by_id and topic_id == NO_UUID:
            continue
        numbers = [
            number
            for number, commit in source.offsets.of_topic(name).items()
            if not (source.by_id and commit.is_of_another(topic_id))
        ]
        partitions = []
        for number in numbers:
            partitions.append(_partition(source, name, NO_UUID, number))
            await slices.rest()
        if partitions:
            topics.append(
                OffsetFetchTopicResponse(name=name, topic_id=topic_id, partitions=partitions)
            )
    return topics


def _named_once(topics: Iterable[OffsetFetchTopic]) -> Iterable[OffsetFetchTopic]:
    """Return each topic once, with the partitions of all its entries in the request."""
    merged: dict[object, OffsetFetchTopic] = {}
    for each in topics:
        key = each.name, each.topic_id
        merged.setdefault(key, replace(each, partition_indexes=[]))
        merged[key].partition_indexes += each.partition_indexes
    return merged.values()


def _requested_topic(
    node: Node, source: _OffsetSource, topic: OffsetFetchTopic
) -> OffsetFetchTopicResponse:
    info = node.topics.find_by_id(topic.topic_id) if source.by_id else None
    if source.by_id and info is None:
        return failed_item(OffsetFetchTopicResponse, topic, ErrorCode.UNKNOWN_TOPIC_ID)
    name = topic.name if info is None else info.name
    numbers = dict.fromkeys(topic.partition_indexes)
    topic_id = topic.topic_id if source.by_id else NO_UUID
    partitions = [_partition(source, name, topic_id, number) for number in numbers]
    return OffsetFetchTopicResponse(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _partition(
    source: _OffsetSource, topic: str, topic_id: UUID, number: int
) -> OffsetFetchPartitionResponse:
    """Return a partition's committed offset.

    The offset is -1 in these cases:

    - No offset was committed.
    - The offset was committed for an earlier topic of the same name, with another topic id. An
      offset that was committed for the zero id matches any topic id.
    - The partition's error is UNSTABLE_OFFSET_COMMIT.
    """
    commit = source.offsets.get(topic, number)
    is_unstable = source.pending is not None and source.pending.is_pending(
        source.group_id, topic, number
    )
    if commit is None or is_unstable or commit.is_of_another(topic_id):
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE
        return failed_item(OffsetFetchPartitionResponse, number, code)
    return OffsetFetchPartitionResponse(
        partition_index=number,
        committed_offset=commit.offset,
        committed_leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
    )


# -- offsets -------------------------------------------------------------------------------------


def guard_offset_fetch(access: Access, request: OffsetFetchRequest) -> Guarded[OffsetFetchRequest]:
    """Require DESCRIBE on groups and topics.

    If all topics are requested, denied topics are left out.
    """
    if access.context.version < BATCHED_FIRST_VERSION:
        return _guard_single(access, request)
    names = [group.group_id for group in request.groups]
    denied = dict.fromkeys(access.split_groups(names, Operation.DESCRIBE)[1])
    groups: list[OffsetFetchGroup] = []
    refusals: dict[str, list[OffsetFetchTopicResponse]] = {}
    for group in request.groups:
        if group.group_id not in denied:
            allowed, refusals[group.group_id] = _split_topics(access, group.topics)
            groups.append(replace(group, topics=allowed))

    def change(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            group.topics = _visible(access, group.topics)
            if not group.error_code:
                group.topics.extend(refusals.get(group.group_id, ()))
        response.groups.extend(
            OffsetFetchGroupResponse(group_id=name, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for name in denied
        )

    return replace(request, groups=groups), Denied.changed(change)


def _visible(
    access: Access, topics: Iterable[OffsetFetchTopicResponse]
) -> list[OffsetFetchTopicResponse]:
    """Return the topics that the client may describe, and the unknown topic ids.

    Unknown topic ids need no right: they have no offsets, so the response reveals nothing.
    """
    names = ((topic, topic.name or access.name_of(topic.topic_id)) for topic in topics)
    return [topic for topic, name in names if not name or access.may_describe(name)]


def _split_topics(
    access: Access, topics: list[OffsetFetchTopic] | None
) -> tuple[list[OffsetFetchTopic] | None, list[OffsetFetchTopicResponse]]:
    """Return a group's allowed topics, and the refusals of its denied topics."""
    if topics is None:
        return None, []
    allowed, denied = access.split_topics(topics, Operation.DESCRIBE)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return allowed, [failed_item(OffsetFetchTopicResponse, topic, code) for topic in denied]


def _guard_single(access: Access, request: OffsetFetchRequest) -> Guarded[OffsetFetchRequest]:
    """Require the rights for a request that names one group, as in old versions."""
    if not access.may_group(Operation.DESCRIBE, request.group_id):
        # Before version 2 the response has no error of its own, so each partition gets the error.
        topics = request.topics or [] if access.context.version < 2 else []
        return None, denied_whole(access, ErrorCode.GROUP_AUTHORIZATION_FAILED, topics)
    allowed, refusals = _split_topics(access, request.topics)

    def change(response: OffsetFetchResponse) -> None:
        response.topics = [*_visible(access, response.topics), *refusals]

    return replace(request, topics=allowed), Denied.changed(change)


GROUP_NOT_FOUND_FIRST_VERSION: Final = 9

# A partition as the client named it: topic name, topic id and number.
NamedPartition = tuple[str, UUID, int]


class _Codes:
    """Error codes of partitions by topic, in the order in which topics got their first code."""

    def __init__(self) -> None:
        self._by_topic: dict[tuple[str, UUID], list[tuple[int, int]]] = {}

    def put(self, named_partition: NamedPartition, code: int) -> None:
        """Add the error code of one partition."""
        name, topic_id, partition = named_partition
        self._by_topic.setdefault((name, topic_id), []).append((partition, code))

    def put_all(
        self, commits: Sequence[tuple[NamedPartition, Commit]], codes: Sequence[int]
    ) -> None:
        """Add the error code that the coordinator returned for each commit of `commits`."""
        for (named_partition, _), code in zip(commits, codes, strict=True):
            self.put(named_partition, code)

    def topics(self) -> list[OffsetCommitResponseTopic]:
        """Return the topics of a response, with the result of each partition."""
        return [
            OffsetCommitResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=[
                    PartitionCode(partition_index=partition, error_code=code)
                    for partition, code in partitions
                ],
            )
            for (name, topic_id), partitions in self._by_topic.items()
        ]


def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit offsets. A partition that doesn't exist gets an error."""
    codes = _Codes()
    by_id = context.version >= TOPIC_IDS_FIRST_VERSION
    commits = [
        commit
        for topic in request.topics
        for commit in _existing(
            context.node, topic, codes, topic_id=topic.topic_id if by_id else None
        )
    ]
    code = context.node.groups.topic.error_for(request.group_id) if commits else ErrorCode.NONE
    if not commits or code is not ErrorCode.NONE:
        return _commit_response(codes, commits, [code] * len(commits))
    commit_request = CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=request.retention_time_ms,
        is_late_version=context.version >= GROUP_NOT_FOUND_FIRST_VERSION,
    )
    reply = context.node.groups.commits.commit(commit_request, [commit for _, commit in commits])
    return reply.map(lambda outcome: _commit_response(codes, commits, outcome))


def _existing(
    node: Node,
    topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
    codes: _Codes,
    *,
    topic_id: UUID | None = None,
) -> Iterable[tuple[NamedPartition, Commit]]:
    """Yield the commits of existing partitions; for missing partitions, add errors to `codes`.

    Args:
        node: The node.
        topic: A topic of the request.
        codes: Error codes of the request's partitions, to which this function adds the errors.
        topic_id: The topic's id if the request has topic ids; None if it has topic names.
    """
    by_name = topic_id is None
    info = node.topics.find(topic.name) if topic_id is None else node.topics.find_by_id(topic_id)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
    for each in topic.partitions:
        named_partition = (topic.name, topic_id or NO_UUID, each.partition_index)
        if info is None:
            codes.put(named_partition, unknown)
        elif not 0 <= each.partition_index < info.partitions:
            codes.put(named_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            commit = Commit(
                info.name,
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata,
                info.topic_id or NO_UUID,
            )
            yield named_partition, commit


def has_partition(node: Node, topic: str, partition: int) -> bool:
    """Whether the partition exists."""
    info = node.topics.find(topic)
    return info is not None and 0 <= partition < info.partitions


def _commit_response(
    codes: _Codes,
    commits: Sequence[tuple[NamedPartition, Commit]],
    outcome: Sequence[ErrorCode],
) -> OffsetCommitResponse:
    """Add the coordinator's error codes, and return the complete response."""
    codes.put_all(commits, outcome)
    return OffsetCommitResponse(topics=codes.topics())


async def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Delete committed offsets. Topics to which the group is subscribed get an error instead."""
    node = context.node
    keys = [
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    ]
    existing = [key for key in keys if has_partition(node, *key)]
    code = node.groups.topic.error_for_member(request.group_id)
    if code is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=code)
    deleted = node.groups.commits.delete_offsets(request.group_id, existing)
    if isinstance(deleted, ErrorCode):
        return OffsetDeleteResponse(error_code=deleted)
    codes = dict.fromkeys(keys, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    outcome = await deleted
    codes |= zip(existing, outcome, strict=True)
    results = _Codes()
    for (name, partition), each in codes.items():
        results.put((name, NO_UUID, partition), each)
    return OffsetDeleteResponse(topics=results.topics())


# First version in which a client knows the error TRANSACTION_ABORTABLE.
ABORTABLE_SINCE: Final = 4

# First version in which a commit adds the group's partition to the transaction.
ADDS_SINCE: Final = 5


async def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Store offsets of existing partitions as pending until the transaction ends."""
    codes = _Codes()
    commits = [
        commit for topic in request.topics for commit in _existing(context.node, topic, codes)
    ]
    if commits:
        codes.put_all(commits, await _commit(context, request, [commit for _, commit in commits]))
    return TxnOffsetCommitResponse(topics=codes.topics())


async def _commit(
    context: RequestContext, request: TxnOffsetCommitRequest, commits: Sequence[Commit]
) -> Sequence[int]:
    groups, group_id = context.node.groups, request.group_id
    producer = (request.producer_id, request.producer_epoch)
    code = groups.topic.error_for_member(group_id)
    if code is not ErrorCode.NONE:
        return [code] * len(commits)
    adds = context.version >= ADDS_SINCE
    offsets_partition, guard = groups.topic.guard(group_id, producer, raises_epochs=adds)
    if guard is not None:
        coordinator = context.node.transactions
        codes = await coordinator.verify_or_add(
            request.transactional_id, *producer, [offsets_partition], add=adds
        )
        refused = reported_error(
            codes[offsets_partition], knows_abortable=context.version >= ABORTABLE_SINCE
        )
        if refused is not ErrorCode.NONE:
            return [refused] * len(commits)
        code = groups.topic.error_for(group_id)  # the group may have been unloaded meanwhile
        if code is not ErrorCode.NONE:
            return [code] * len(commits)
    commit_request = CommitRequest(
        group_id=group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        is_late_version=False,
        is_transactional=True,
    )
    remaining = [each for each in commits if _is_there(context.node, each)]
    remaining_codes = await groups.commits.commit_in_transaction(
        commit_request, producer, guard, remaining
    )
    codes_by_commit = dict(zip(remaining, remaining_codes, strict=True))
    return [codes_by_commit.get(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for each in commits]


def _is_there(node: Node, commit: Commit) -> bool:
    """Whether the commit's topic still exists; false if only a new topic of this name exists."""
    info = node.topics.find(commit.topic)
    return info is not None and (info.topic_id or NO_UUID) == commit.topic_id
