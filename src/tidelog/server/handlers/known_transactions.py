"""ListTransactions and DescribeTransactions: what the coordinator knows of transactional ids.

Source: Kafka's protocol guide, APIs 65 and 66; KIP-664, KIP-994 (by duration), KIP-1152 (by name).
"""

from collections.abc import Callable
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import MissingDependency
from tidelog.protocol.messages.transactions import (
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
)
from tidelog.server.node import LOGGER
from tidelog.server.regexes import UnusableRegex, find_matches
from tidelog.server.requests import Long, RequestContext, long_if_many
from tidelog.server.slices import Slices
from tidelog.server.transactions.coordinator import TransactionCoordinator
from tidelog.server.transactions.metadata import (
    Transaction,
    TransactionMetadata,
    TransactionState,
)
from tidelog.server.transactions.records import by_topic

_STATES: Final = {state.title: state for state in TransactionState}

Filter = Callable[[TransactionMetadata], bool]


async def list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Long:
    """Transactional ids that pass all filters, a slice at a time."""
    coordinator = context.node.transactions
    if coordinator.log.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        listed = await _passing(context, request)
    except UnusableRegex:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    except MissingDependency as error:
        LOGGER.warning("transactions can't be listed by a pattern: %s", error)
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    response = ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[each for each in request.state_filters if each not in _STATES],
        transaction_states=listed,
    )
    return long_if_many(response, listed)


async def _passing(
    context: RequestContext, request: ListTransactionsRequest
) -> list[ListedTransactionState]:
    """What passes the filters and the pattern; an empty pattern is none."""
    passes = _filter(request, context.node.env.clock.now_ms())
    listed = []
    slices = Slices(context.node.env.clock)
    for each in context.node.transactions.table.all():
        known = each.metadata
        if passes(known):
            listed.append(_listed(known))
        await slices.rest()
    pattern = request.transactional_id_pattern
    return await context.node.work.run(_matching, pattern, listed) if pattern else listed


def _matching(pattern: str, listed: list[ListedTransactionState]) -> list[ListedTransactionState]:
    found = find_matches(pattern, (each.transactional_id for each in listed))
    return [each for each in listed if each.transactional_id in found]


def _listed(known: TransactionMetadata) -> ListedTransactionState:
    return ListedTransactionState(
        transactional_id=known.transactional_id,
        producer_id=known.producer_id,
        transaction_state=known.state.title,
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Filter:
    """Whether an id passes; names of states that nobody knows let none of them pass."""
    ids = frozenset(request.producer_id_filters)
    states = {_STATES[each] for each in request.state_filters if each in _STATES}
    has_states = bool(request.state_filters)
    duration_ms = request.duration_filter

    def passes(known: TransactionMetadata) -> bool:
        return (
            (not ids or known.producer_id in ids)
            and (not has_states or known.state in states)
            and (duration_ms < 0 or now_ms - known.start_ms > duration_ms)
        )

    return passes


def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """What is known of each transactional id."""
    coordinator = context.node.transactions
    return DescribeTransactionsResponse(
        transaction_states=[
            _described(coordinator, each) for each in dict.fromkeys(request.transactional_ids)
        ]
    )


def _described(
    coordinator: TransactionCoordinator, transactional_id: str
) -> DescribedTransactionState:
    found = coordinator.table.find(transactional_id)
    if not transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif isinstance(found, Transaction):
        return _told(found.metadata)
    else:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if found is None else found
    return DescribedTransactionState(error_code=code, transactional_id=transactional_id)


def _told(known: TransactionMetadata) -> DescribedTransactionState:
    return DescribedTransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=known.transactional_id,
        transaction_state=known.state.title,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_ms,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(known.partitions).items()
        ],
    )
