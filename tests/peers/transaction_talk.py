"""A recorded conversation about transactions with a broker, to compare two brokers.

Producer ids differ between brokers, so the conversation replaces each id by a name, in the order of
first use.
"""

import dataclasses
import time
from typing import TYPE_CHECKING, Final, TypeVar

from tests.worlds.clients.raw import RawClient, Refused

from tidelog.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.shared import NamedPartitions
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tidelog.protocol.schema import Api

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

TOPIC: Final = "ledgers"
PARTITIONS: Final = 2
TIMEOUT_MS: Final = 600_000
PATIENCE_S: Final = 90
# Errors while a coordinator is missing or loading, and the error while a transaction is ending.
PASSING: Final = frozenset({14, 15, 16})
CONCURRENT: Final = 51
NO_TOPICS: Final[list[NamedPartitions]] = []
BOTH: Final = [NamedPartitions(name=TOPIC, partitions=[0, 1])]

Producer = tuple[int, int]
NOBODY: Final[Producer] = (987_654_321, 0)


class TransactionTalk:
    """Sends requests to one broker, and records the responses.

    Attributes:
        transactional_id: Transactional id of the conversation.
        told: The responses, in order, without the values that differ between two brokers.
    """

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._client = RawClient(bootstrap)
        self._names: dict[int, str] = {-1: "nobody", 0: "none", NOBODY[0]: "a stranger"}
        self.transactional_id = transactional_id
        self.told: list[object] = []
        self._await_coordinator()

    def close(self) -> None:
        self._client.close()

    def _await_coordinator(self) -> None:
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        wanted = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

        def is_there() -> bool:
            found = self._client.ask(FIND_COORDINATOR, 4, asked).coordinators[0]
            state = self._client.ask(DESCRIBE_TRANSACTIONS, 0, wanted).transaction_states[0]
            return found.error_code == 0 and state.error_code not in PASSING

        end = time.monotonic() + PATIENCE_S
        while not (is_there() and self._has_ids()):
            assert time.monotonic() < end, f"{self.transactional_id} has no coordinator"

    def _has_ids(self) -> bool:
        """Whether the broker assigns producer ids; the check consumes the first id, 0."""
        try:
            return self._client.producer_id() >= 0
        except Refused:
            return False

    # -- requests ----------------------------------------------------------------------------

    def ask(self, api: Api[Request, Response], version: int, message: Request) -> Response:
        """Send a request and record the response; retry while a transaction is being ended."""
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self._client.ask(api, version, message)
            if getattr(answer, "error_code", 0) != CONCURRENT or time.monotonic() > end:
                break
        self.told.append(self._shared(answer))
        return answer

    def _shared(self, value: object, name: str = "") -> object:
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return {name: self._shared(getattr(value, name), name) for name in names}
        if isinstance(value, list):
            return sorted((self._shared(inner) for inner in value), key=repr)
        if name == "producer_id" and isinstance(value, int):
            return self._names.setdefault(value, f"producer {len(self._names)}")
        if name == "transaction_start_time_ms" and isinstance(value, int) and value > 0:
            return "a time"
        return value

    def init(
        self,
        expected: Producer = (-1, -1),
        *,
        version: int = 5,
        timeout_ms: int = TIMEOUT_MS,
        transactional_id: str | None = None,
    ) -> Producer:
        """Initialize a producer (this aborts its open transaction); return the id and epoch."""
        asked = InitProducerIdRequest(
            transactional_id=self.transactional_id
            if transactional_id is None
            else transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        answer = self.ask(INIT_PRODUCER_ID, version, asked)
        return answer.producer_id, answer.producer_epoch

    def add(
        self,
        producer: Producer,
        topics: list[NamedPartitions] = BOTH,
        *,
        version: int = 3,
        verify_only: bool = False,
        transactional_id: str | None = None,
    ) -> None:
        """Add partitions; the request's fields depend on the version."""
        name = self.transactional_id if transactional_id is None else transactional_id
        if version < 4:
            asked = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=topics,
            )
        else:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                verify_only=verify_only,
                topics=topics,
            )
            asked = AddPartitionsToTxnRequest(transactions=[transaction])
        self.ask(ADD_PARTITIONS_TO_TXN, version, asked)

    def add_offsets(self, producer: Producer, group: str = "g", *, version: int = 4) -> None:
        """Add a group's offsets."""
        asked = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        self.ask(ADD_OFFSETS_TO_TXN, version, asked)

    def end(
        self,
        producer: Producer,
        *,
        commit: bool,
        version: int = 4,
        transactional_id: str | None = None,
    ) -> Producer:
        """End a transaction; return the producer, with a new epoch in version 5 and later."""
        asked = EndTxnRequest(
            transactional_id=self.transactional_id
            if transactional_id is None
            else transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        answer = self.ask(END_TXN, version, asked)
        return answer.producer_id, answer.producer_epoch

    def settle(self) -> None:
        """Wait until no transaction is being ended; do not record the responses."""
        wanted = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            state = self._client.ask(DESCRIBE_TRANSACTIONS, 0, wanted).transaction_states[0]
            if not state.transaction_state.startswith("Prepare"):
                return
        raise AssertionError(f"{self.transactional_id} is being ended for ever")

    def describe(self, *transactional_ids: str) -> None:
        """Describe transactions, by default the conversation's own."""
        self.settle()
        names = list(transactional_ids) or [self.transactional_id]
        self.ask(DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=names))

    def listed(self, pattern: str | None, *states: str, duration_ms: int = -1) -> None:
        """List transactions."""
        self.settle()
        asked = ListTransactionsRequest(
            state_filters=list(states),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )
        self.ask(LIST_TRANSACTIONS, 2, asked)
