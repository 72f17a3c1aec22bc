"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: a producer's transaction, from its first partition.

Source: Kafka's protocol guide, APIs 24 to 26; KIP-98, KIP-890.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)
from tidelog.server.handlers.waiting import arrival
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.server.transactions.steps import AddAsked, EndAsked, ProducerRef
from tidelog.storage.producer_rules import EPOCH_BUMP_VERSION
from tidelog.types import TopicPartition

# From here on brokers ask, for many transactions at once.
BATCHED_FIRST_VERSION: Final = 4
# Older clients know only the code that partitions fence with.
FENCED_FIRST_VERSION: Final = 2
EPOCH_BUMP_FIRST_VERSION: Final = 5


def fenced(version: int, code: int) -> int:
    """A code as a client of that version knows it."""
    is_unknown = code == ErrorCode.PRODUCER_FENCED and version < FENCED_FIRST_VERSION
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


# -- partitions --------------------------------------------------------------------------------


@dataclass(slots=True)
class Checking(RequestContext):
    """The context of a part of a long request: its partitions are checked and not added.

    Attributes:
        checked: What the part asks for by transaction, without partitions where it only verifies;
            None where it was refused.
    """

    checked: list[AddAsked | None] = field(default_factory=list)


async def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Take partitions into transactions, or (from brokers) say whether they are in them."""
    if context.version >= BATCHED_FIRST_VERSION:
        results = [
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=results_of(each.topics, await _add(context, each)),
            )
            for each in request.transactions
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    asked = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    codes = await _add(context, asked)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results_of(asked.topics, codes))


async def _add(
    context: RequestContext, asked: AddPartitionsToTxnTransaction
) -> Mapping[TopicPartition, int]:
    """A code for each partition: all are added, or none."""
    partitions = [
        TopicPartition(topic.name, number) for topic in asked.topics for number in topic.partitions
    ]
    refused = refusals(context, partitions)
    if refused:
        if isinstance(context, Checking):
            context.checked.append(None)
        return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
    producer = ProducerRef(asked.producer_id, asked.producer_epoch)
    transactions = context.node.transactions
    adding = AddAsked(
        transactional_id=asked.transactional_id,
        producer=producer,
        partitions=frozenset(() if asked.verify_only else partitions),
    )
    if isinstance(context, Checking):
        context.checked.append(adding)
        if not asked.verify_only:
            return dict.fromkeys(partitions, ErrorCode.NONE)
    if asked.verify_only:
        return transactions.verify(asked.transactional_id, producer, partitions)
    code = await arrival(transactions.add(adding))
    return dict.fromkeys(partitions, fenced(context.version, code))


def refusals(
    context: RequestContext, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Those that can't be in a client's transaction: internal ones, and ones that are not there."""
    topics = context.node.topics
    is_client = context.version < BATCHED_FIRST_VERSION
    found: dict[TopicPartition, int] = {}
    for each in partitions:
        info = topics.find(each.topic)
        if is_client and topics.is_internal(each.topic):
            found[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif info is None or not 0 <= each.partition < info.partitions:
            found[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return found


def results_of(
    topics: Sequence[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, int]
) -> list[AddPartitionsToTxnTopicResult]:
    """A code for each partition, by topics as they were asked for."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number,
                    partition_error_code=codes[TopicPartition(topic.name, number)],
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


# -- offsets -----------------------------------------------------------------------------------


async def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Take the partition of a group's offsets into a transaction."""
    code = await context.node.groups.shards.ensure_topic()
    if code is not ErrorCode.NONE:
        return AddOffsetsToTxnResponse(error_code=code)
    asked = AddAsked(
        transactional_id=request.transactional_id,
        producer=ProducerRef(request.producer_id, request.producer_epoch),
        partitions=frozenset({offsets_partition(context.node, request.group_id)}),
    )
    added = await arrival(context.node.transactions.add(asked))
    return AddOffsetsToTxnResponse(error_code=fenced(context.version, added))


def offsets_partition(node: Node, group_id: str) -> TopicPartition:
    """Where a group's offsets are kept; the topic must be there."""
    return TopicPartition(OFFSETS_TOPIC, node.groups.shards.number_of(group_id))


# -- the end -----------------------------------------------------------------------------------


def end_txn(context: RequestContext, request: EndTxnRequest) -> Awaitable[EndTxnResponse]:
    """Commit or abort; with version 5 the client goes on with another epoch."""
    bumps = context.version >= EPOCH_BUMP_FIRST_VERSION
    asked = EndAsked(
        transactional_id=request.transactional_id,
        producer=ProducerRef(request.producer_id, request.producer_epoch),
        commit=request.committed,
        version=EPOCH_BUMP_VERSION if bumps else 0,
    )
    return _end(context, asked)


async def _end(context: RequestContext, asked: EndAsked) -> EndTxnResponse:
    said = await context.node.transactions.end(asked)
    return EndTxnResponse(
        error_code=fenced(context.version, said.code),
        producer_id=said.producer_id,
        producer_epoch=said.producer_epoch,
    )
