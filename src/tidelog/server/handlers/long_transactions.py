"""AddPartitionsToTxn of very many partitions: read in parts, and added to a transaction at once.

Each part is checked as a request of its own, and nothing is written meanwhile. Then the partitions
of all parts are added by one write, or none of them where some part was refused.

Source: Kafka 4.3's KafkaApis: a client's partitions are added together or not at all.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.transactions import (
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tidelog.server.handlers.transactions import BATCHED_FIRST_VERSION, Checking, fenced
from tidelog.server.handlers.waiting import arrival
from tidelog.server.requests import RequestContext
from tidelog.server.slices import Slices
from tidelog.server.transactions.steps import AddAsked
from tidelog.types import TopicPartition

# What is wrong with a partition itself, or with the client's rights.
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
    """What all parts say of one transaction of a request.

    Attributes:
        asked: Whose partitions; None where the guard refused all parts.
        partitions: What is to be added.
        topics: The results of all parts.
        is_refused: Whether some part was refused.
    """

    asked: AddAsked | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    topics: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)
    is_refused: bool = False


class WholeAdd:
    """Collects the checks of the parts of one request, then adds all of them or none."""

    def __init__(self, context: RequestContext) -> None:
        self.context = Checking(
            context.node, context.api, context.version, context.client_id, context.connection
        )
        self._transactions: list[_Transaction] = []

    def take(self, response: AddPartitionsToTxnResponse, *, joins: bool) -> None:
        """Take what the check of one part said.

        Args:
            response: The response to the part.
            joins: Whether its first transaction is the last one of the part before.
        """
        checked = self.context.checked
        if self.context.version < BATCHED_FIRST_VERSION:
            told = [response.results_by_topic_v3_and_below]
            joins = bool(self._transactions)
        else:
            told = [each.topic_results for each in response.results_by_transaction]
        for number, topics in enumerate(told):
            if number or not joins:
                self._transactions.append(_Transaction())
            last = self._transactions[-1]
            last.topics += topics
            # Without a check of the handler's, the guard has refused the part.
            asked = checked[number] if number < len(checked) else None
            last.is_refused |= asked is None
            if asked is not None:
                last.asked = asked
                last.partitions |= asked.partitions
        checked.clear()

    async def finish(self, slices: Slices) -> None:
        """Write what is to be added, and put the codes into the responses of the parts."""
        for each in self._transactions:
            code = 0
            if each.is_refused:
                code = ErrorCode.OPERATION_NOT_ATTEMPTED
            elif each.asked is not None and each.partitions:
                asked = replace(each.asked, partitions=frozenset(each.partitions))
                said = await arrival(self.context.node.transactions.add(asked))
                code = fenced(self.context.version, said)
            if code:
                await _set(each.topics, code, slices)


async def _set(topics: list[AddPartitionsToTxnTopicResult], code: int, slices: Slices) -> None:
    for topic in topics:
        for result in topic.results_by_partition:
            if result.partition_error_code not in _REFUSALS:
                result.partition_error_code = code
            await slices.rest()
