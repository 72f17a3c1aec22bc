"""The APIs of transactions and producers, such as InitProducerId, AddPartitionsToTxn and EndTxn.

- InitProducerId without a transactional id returns a new producer id with epoch 0 each time. A
  producer without a transactional id increments its epoch itself.
- AddPartitionsToTxn with very many partitions is processed in parts. Each part is first checked
  like a separate request, and nothing is written. After all checks, one write for each transaction
  adds all partitions of the transaction. If any part of a transaction was refused, none of the
  transaction's partitions is added.
- Kafka's administration tool ends hanging transactions with WriteTxnMarkers.
- ListTransactions and DescribeTransactions return the state of transactions. DescribeProducers
  returns the producers of partitions.

Source: Kafka's protocol guide, APIs 22, 24 to 27, 61, 65 and 66; KIP-98, KIP-360, KIP-664, KIP-890,
KIP-994 (filter by duration), KIP-1152 (filter by name), KIP-1228; Kafka 4.3's KafkaApis.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import MissingDependency, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.shared import NamedPartitions, PartitionCode, TopicPartitions
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribedTransactionState,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.server.admin.topic_rules import ensure_name
from tidelog.server.api.context import LargeResponse, RequestContext, large_if_many
from tidelog.server.api.guards import Access, Denied, Guarded, denied_whole, failed_item
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.partitions.partition import TransactionEnd
from tidelog.server.regexes import UnusableRegex, find_matches
from tidelog.server.runtime.errors import NOT_HOSTED, Refusal
from tidelog.server.runtime.loop import Slices, in_slices
from tidelog.server.security.operations import Operation
from tidelog.server.transactions.coordinator import TransactionCoordinator
from tidelog.server.transactions.metadata import (
    AddRequest,
    EndRequest,
    InitRequest,
    ProducerRef,
    Transaction,
    TransactionMetadata,
    TransactionState,
)
from tidelog.server.transactions.state_topic import by_topic
from tidelog.storage.log.producers import EPOCH_BUMP_VERSION, ProducerEntry
from tidelog.types import NO_OFFSET, OFFSETS_TOPIC, TopicPartition

# First version of AddPartitionsToTxn that is sent by brokers, not by clients. A request of this
# version or a later version may name several transactions.
BATCHED_FIRST_VERSION: Final = 4

# First version in which clients know PRODUCER_FENCED. A client that sends a lower version knows
# only INVALID_PRODUCER_EPOCH.
FENCED_FIRST_VERSION: Final = 2

EPOCH_BUMP_FIRST_VERSION: Final = 5


def fenced(version: int, code: int, since: int = FENCED_FIRST_VERSION) -> int:
    """Return `code`, but for old versions INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""
    is_unknown = code == ErrorCode.PRODUCER_FENCED and version < since
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


# -- partitions --------------------------------------------------------------------------------


@dataclass(slots=True)
class PartContext(RequestContext):
    """Context of the parts of a long request, whose partitions are checked but not added.

    Attributes:
        checked: One entry for each transaction in the current part: the transaction's `AddRequest`,
            or None if one of its partitions was refused. The `AddRequest` names no partitions if
            the client only wants to verify partitions.
    """

    checked: list[AddRequest | None] = field(default_factory=list)


async def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, or with `verify_only` check whether they were added."""
    if context.version >= BATCHED_FIRST_VERSION:
        results = [
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=results_of(each.topics, await _add(context, each)),
            )
            for each in request.transactions
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    codes = await _add(context, transaction)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=results_of(transaction.topics, codes)
    )


async def _add(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Mapping[TopicPartition, int]:
    """Add all partitions or none to a transaction; return the error code of each partition.

    If the request sets `verify_only` for the transaction, nothing is added; the codes show which
    partitions the transaction has. If the context is a `PartContext`, the partitions are checked
    and not added.
    """
    partitions = _partitions_of(transaction.topics)
    refused = refusals(context, partitions)
    if refused:
        if isinstance(context, PartContext):
            context.checked.append(None)
        return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
    producer = ProducerRef(transaction.producer_id, transaction.producer_epoch)
    transactions = context.node.transactions
    adding = AddRequest(
        transactional_id=transaction.transactional_id,
        producer=producer,
        partitions=frozenset(() if transaction.verify_only else partitions),
    )
    if isinstance(context, PartContext):
        context.checked.append(adding)
        if not transaction.verify_only:
            return dict.fromkeys(partitions, ErrorCode.NONE)
    if transaction.verify_only:
        return transactions.verify(transaction.transactional_id, producer, partitions)
    code = await transactions.add(adding)
    return dict.fromkeys(partitions, fenced(context.version, code))


def _partitions_of(topics: Iterable[NamedPartitions]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def refusals(
    context: RequestContext, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the errors of partitions that can't be added.

    Partitions that don't exist can't be added. Partitions of internal topics can be added by
    brokers, but not by clients.
    """
    topics = context.node.topics
    is_client = context.version < BATCHED_FIRST_VERSION
    codes: dict[TopicPartition, int] = {}
    for each in partitions:
        if is_client and topics.is_internal(each.topic):
            codes[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not _exists(context.node, each):
            codes[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def results_of(
    topics: Sequence[NamedPartitions], codes: Mapping[TopicPartition, int]
) -> list[AddPartitionsToTxnTopicResult]:
    """Return the code of each partition, by topic in the order of the request."""
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
    """Add to a transaction the partition that stores a group's offsets."""
    topic = context.node.groups.topic
    code = await topic.ensure_topic()
    if code is not ErrorCode.NONE:
        return AddOffsetsToTxnResponse(error_code=code)
    add_request = AddRequest(
        transactional_id=request.transactional_id,
        producer=ProducerRef(request.producer_id, request.producer_epoch),
        partitions=frozenset({TopicPartition(OFFSETS_TOPIC, topic.number_of(request.group_id))}),
    )
    added = await context.node.transactions.add(add_request)
    return AddOffsetsToTxnResponse(error_code=fenced(context.version, added))


# -- the end -----------------------------------------------------------------------------------


async def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort a transaction. From version 5 on, the response has the client's new epoch."""
    bumps = context.version >= EPOCH_BUMP_FIRST_VERSION
    end_request = EndRequest(
        transactional_id=request.transactional_id,
        producer=ProducerRef(request.producer_id, request.producer_epoch),
        commit=request.committed,
        version=EPOCH_BUMP_VERSION if bumps else 0,
    )
    result = await context.node.transactions.end(end_request)
    return EndTxnResponse(
        error_code=fenced(context.version, result.code),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )


_STATES: Final = {state.title: state for state in TransactionState}
Filter = Callable[[TransactionMetadata], bool]


async def list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | LargeResponse:
    """List the transactional ids that match all filters. The work is split into time slices."""
    coordinator = context.node.transactions
    if coordinator.topic.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        listed = await _passing(context, request)
    except UnusableRegex:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    except MissingDependency as error:
        LOGGER.warning("can't filter transactions by pattern: %s", error)
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    response = ListTransactionsResponse(
        unknown_state_filters=[each for each in request.state_filters if each not in _STATES],
        transaction_states=listed,
    )
    return large_if_many(response, listed)


async def _passing(
    context: RequestContext, request: ListTransactionsRequest
) -> list[ListedTransactionState]:
    """Return the ids that match the filters and the pattern. An empty pattern matches all."""
    clock, transactions = context.node.env.clock, context.node.transactions.table.all()
    passes = _filter(request, clock.now_ms())
    metadata = (each.metadata for each in transactions)
    rows = await in_slices(clock, (_listed(each) if passes(each) else None for each in metadata))
    listed = [each for each in rows if each is not None]
    pattern = request.transactional_id_pattern
    return await context.node.work.run(_matching, pattern, listed) if pattern else listed


def _matching(pattern: str, listed: list[ListedTransactionState]) -> list[ListedTransactionState]:
    matches = find_matches(pattern, (each.transactional_id for each in listed))
    return [each for each in listed if each.transactional_id in matches]


def _listed(metadata: TransactionMetadata) -> ListedTransactionState:
    return ListedTransactionState(
        transactional_id=metadata.transactional_id,
        producer_id=metadata.producer_id,
        transaction_state=metadata.state.title,
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Filter:
    """Return a filter of transactions.

    If the request names only unknown states, the filter matches no transaction.
    """
    ids = frozenset(request.producer_id_filters)
    states = {_STATES[each] for each in request.state_filters if each in _STATES}
    has_states = bool(request.state_filters)
    duration_ms = request.duration_filter

    def passes(metadata: TransactionMetadata) -> bool:
        return (
            (not ids or metadata.producer_id in ids)
            and (not has_states or metadata.state in states)
            and (duration_ms < 0 or now_ms - metadata.start_ms > duration_ms)
        )

    return passes


def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each requested transactional id, once."""
    coordinator = context.node.transactions
    return DescribeTransactionsResponse(
        transaction_states=[
            _described(coordinator, each) for each in dict.fromkeys(request.transactional_ids)
        ]
    )


def _described(
    coordinator: TransactionCoordinator, transactional_id: str
) -> DescribedTransactionState:
    transaction = coordinator.table.find(transactional_id)
    if not transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif isinstance(transaction, Transaction):
        return _described_transaction(transaction.metadata)
    else:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transaction is None else transaction
    return DescribedTransactionState(error_code=code, transactional_id=transactional_id)


def _described_transaction(metadata: TransactionMetadata) -> DescribedTransactionState:
    return DescribedTransactionState(
        transactional_id=metadata.transactional_id,
        transaction_state=metadata.state.title,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[
            TopicPartitions(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(metadata.partitions).items()
        ],
    )


async def write_txn_markers(
    context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """End transactions in the named partitions, without the transaction coordinator.

    A producer that the request names several times gets one result, with all its partitions.
    """
    codes_by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in request.markers:
        codes = codes_by_producer.setdefault(marker.producer_id, {})
        codes.update(await _write(context.node, marker))
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_topics(codes))
            for producer_id, codes in codes_by_producer.items()
        ]
    )


async def _write(node: Node, marker: WritableTxnMarker) -> Mapping[TopicPartition, ErrorCode]:
    partitions = dict.fromkeys(
        TopicPartition(topic.name, number)
        for topic in marker.topics
        for number in topic.partition_indexes
    )
    refusal = _refusal_of(marker)
    if refusal is not ErrorCode.NONE:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {each: refusal if _exists(node, each) else unknown for each in partitions}
    end = TransactionEnd(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
    )
    return await node.markers.write(list(partitions), end)


def _refusal_of(marker: WritableTxnMarker) -> ErrorCode:
    """Return the error for a negative producer epoch or id, NONE if both are valid.

    A marker with a negative epoch or id must not be written to a log.
    """
    if marker.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING if marker.producer_id < 0 else ErrorCode.NONE


def _exists(node: Node, partition: TopicPartition) -> bool:
    info = node.topics.find(partition.topic)
    return info is not None and 0 <= partition.partition < info.partitions


def _topics(codes: Mapping[TopicPartition, ErrorCode]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for partition, code in codes.items():
        topic = topics.setdefault(
            partition.topic, WritableTxnMarkerTopicResult(name=partition.topic)
        )
        topic.partitions.append(PartitionCode(partition_index=partition.partition, error_code=code))
    return list(topics.values())


INIT_FENCED_FIRST_VERSION: Final = 4
NONE: Final = -1


def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Return a new producer id, or a transactional id's producer id with a new epoch.

    A new transactional id gets a new producer id. An existing transactional id gets a new producer
    id if the epochs of its producer id are used up.
    """
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _init(context, request, request.transactional_id)
    producer_id = context.node.producer_ids.next()
    return _take(context) if producer_id is None else _response(producer_id)


async def _init(
    context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != NONE:
        expected = ProducerRef(request.producer_id, request.producer_epoch)
    init_request = InitRequest(
        transactional_id=transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        expected=expected,
    )
    result = await context.node.transactions.init_producer_id(init_request)
    if result.code:
        return _refused(fenced(context.version, result.code, INIT_FENCED_FIRST_VERSION))
    return InitProducerIdResponse(
        producer_id=result.producer_id, producer_epoch=result.producer_epoch
    )


async def _take(context: RequestContext) -> InitProducerIdResponse:
    try:
        return _response(await context.node.producer_ids.take())
    except TidelogError as error:
        LOGGER.warning("can't allocate a producer id: %s", error)
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # the client retries


def _response(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)


async def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | LargeResponse:
    """Describe the producers of each partition."""
    node = context.node
    await node.partitions.ensure_open(
        (topic.name, number) for topic in request.topics for number in topic.partition_indexes
    )
    topics = [
        DescribeProducersTopicResponse(
            name=topic.name,
            partitions=[
                await _partition(context, topic.name, number) for number in topic.partition_indexes
            ],
        )
        for topic in request.topics
    ]
    count = sum(len(each.active_producers) for topic in topics for each in topic.partitions)
    return large_if_many(DescribeProducersResponse(topics=topics), topics, count)


async def _partition(
    context: RequestContext, topic: str, number: int
) -> DescribeProducersPartitionResponse:
    partition = context.node.partitions.find(topic, number)
    if isinstance(partition, int):
        refusal = (
            _no_topic(topic) if context.node.topics.find(topic) is None else Refusal(partition)
        )
        return failed_item(
            DescribeProducersPartitionResponse, number, refusal.error_code, refusal.message
        )
    # `producers` is a copy, which does not change between slices.
    producers = map(_producer, partition.log.producer_states().producers.values())
    return DescribeProducersPartitionResponse(
        partition_index=number,
        active_producers=await in_slices(context.node.env.clock, producers),
    )


def _no_topic(topic: str) -> Refusal:
    """Return the error for an invalid topic name or, if the name is valid, for a missing topic."""
    try:
        ensure_name(topic)
    except Refusal as refusal:
        return refusal
    return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)


def _producer(entry: ProducerEntry) -> ProducerState:
    first = entry.txn_first_offset
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=NO_OFFSET if first is None else first,
    )


def guard_init_producer_id(
    access: Access, request: InitProducerIdRequest
) -> Guarded[InitProducerIdRequest]:
    """Require WRITE on the transactional id.

    Without a transactional id, require IDEMPOTENT_WRITE on the cluster, or WRITE on at least one
    topic.
    """
    name = request.transactional_id
    if name is None:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        may = access.may_cluster(Operation.IDEMPOTENT_WRITE) or access.may_write_somewhere()
    else:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        may = access.may_transact(Operation.WRITE, name)
    if may:
        return request, None
    refusal = InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return None, Denied.whole(refusal)


def guard_add_partitions_to_txn(
    access: Access, request: AddPartitionsToTxnRequest
) -> Guarded[AddPartitionsToTxnRequest]:
    """Require WRITE on the transactional id and on every topic of the request.

    The handler adds either all partitions or none of them. If a partition is denied, each denied or
    invalid partition gets its own error, and all other partitions get OPERATION_NOT_ATTEMPTED. From
    version 4 on, the request is sent by brokers, which need CLUSTER_ACTION instead of these rights.
    """
    if access.context.version >= BATCHED_FIRST_VERSION:
        if access.may_cluster(Operation.CLUSTER_ACTION):
            return request, None
        return None, denied_whole(access, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = request.v3_and_below_topics
    partitions = _partitions_of(topics)
    codes: dict[TopicPartition, int]
    if not access.may_transact(Operation.WRITE, request.v3_and_below_transactional_id):
        codes = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        allowed, denied = access.split(
            partitions, Operation.WRITE, lambda partition: partition.topic
        )
        if not denied:
            return request, None
        codes = refusals(access.context, allowed) | dict.fromkeys(
            denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    results = results_of(
        topics,
        {
            partition: codes.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
            for partition in partitions
        },
    )
    refusal = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    return None, Denied.whole(refusal)


def guard_describe_transactions(
    access: Access, request: DescribeTransactionsRequest
) -> Guarded[DescribeTransactionsRequest]:
    """Require DESCRIBE on each transactional id.

    Topics that the client is not authorized to describe are left out.
    """
    ids = request.transactional_ids
    may = {name: access.may_transact(Operation.DESCRIBE, name) for name in ids}
    allowed = [name for name in may if may[name]]
    denied = [name for name in may if not may[name]]

    def change(response: DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            state.topics = [each for each in state.topics if access.may_describe(each.topic)]
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        response.transaction_states.extend(
            failed_item(DescribedTransactionState, name, code) for name in denied
        )

    return replace(request, transactional_ids=allowed), Denied.changed(change)


def guard_list_transactions(
    access: Access, request: ListTransactionsRequest
) -> Guarded[ListTransactionsRequest]:
    """Require DESCRIBE on each transactional id. The response leaves out denied ids."""

    def is_shown(state: ListedTransactionState) -> bool:
        return access.may_transact(Operation.DESCRIBE, state.transactional_id)

    return request, Denied.hidden(access, "transaction_states", is_shown)


# Error codes that a partition keeps if its transaction gets another error: errors of the partition
# itself, errors of the client's rights, and OPERATION_NOT_ATTEMPTED.
_REFUSALS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


@dataclass(slots=True)
class _Transaction:
    """Results of the checks of one transaction, merged from all parts of a request.

    Attributes:
        request: `AddRequest` of the last part that was not refused; None if all parts were refused.
        partitions: Partitions that the parts add to the transaction.
        topics: Results of the partitions of all parts, by topic.
        is_refused: Whether some part was refused.
    """

    request: AddRequest | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    topics: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)
    is_refused: bool = False


class SplitAdd:
    """Collects the checks of a long request, which is checked in parts.

    Then, for each transaction, it adds all of the transaction's partitions or none.
    """

    def __init__(self, context: RequestContext) -> None:
        self.context = PartContext(
            context.node, context.api, context.version, context.client_id, context.connection
        )
        self._transactions: list[_Transaction] = []

    def take(self, response: AddPartitionsToTxnResponse, *, joins: bool) -> None:
        """Merge the result of one part's check.

        Args:
            response: The response to the part.
            joins: Whether the part's first transaction continues the last transaction of the
                previous part.
        """
        checked = self.context.checked
        if self.context.version < BATCHED_FIRST_VERSION:
            results = [response.results_by_topic_v3_and_below]
            joins = bool(self._transactions)
        else:
            results = [each.topic_results for each in response.results_by_transaction]
        for number, topics in enumerate(results):
            if number or not joins:
                self._transactions.append(_Transaction())
            last = self._transactions[-1]
            last.topics += topics
            # If `checked` has no entry for the part, the guard has refused the part before the
            # handler.
            add_request = checked[number] if number < len(checked) else None
            last.is_refused |= add_request is None
            if add_request is not None:
                last.request = add_request
                last.partitions |= add_request.partitions
        checked.clear()

    async def finish(self, slices: Slices) -> None:
        """Add each transaction's partitions, and set the error codes in the response."""
        for each in self._transactions:
            code = 0
            if each.is_refused:
                code = ErrorCode.OPERATION_NOT_ATTEMPTED
            elif each.request is not None and each.partitions:
                add_request = replace(each.request, partitions=frozenset(each.partitions))
                result = await self.context.node.transactions.add(add_request)
                code = fenced(self.context.version, result)
            if code:
                await _set(each.topics, code, slices)


async def _set(topics: list[AddPartitionsToTxnTopicResult], code: int, slices: Slices) -> None:
    for topic in topics:
        for result in topic.results_by_partition:
            if result.partition_error_code not in _REFUSALS:
                result.partition_error_code = code
            await slices.rest()
