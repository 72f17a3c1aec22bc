"""A transactional producer that sends each request by hand, in either protocol, to any broker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.shared import NamedIndexes, NamedPartitions
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProducerState,
)
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

# Timeout in ms, long enough that transactions don't time out on a busy machine.
TIMEOUT_MS = 600_000
GROUP_KEY, TRANSACTION_KEY = 0, 1
# Error codes after which the request is repeated: the coordinator is not found or not loaded yet,
# or it is still ending the previous transaction.
LATER = frozenset({14, 15, 16, 51})
NOT_LEADER = 6
NO_STATE = ProducerState(producer_epoch=-1, coordinator_epoch=-1)

T = TypeVar("T")


def until(ask: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """Repeat a request until `is_right` accepts the response; return this response."""
    patience = Patience()
    while not is_right(found := ask()):
        patience.check(found)
    return found


def find_coordinator(client: RawClient, key: str, kind: int = TRANSACTION_KEY) -> None:
    """Wait until the key has a coordinator."""
    asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    until(
        lambda: client.ask(FIND_COORDINATOR, 4, asked).coordinators[0].error_code,
        lambda code: code == 0,
    )


@dataclass
class Transacting:
    """One transactional producer.

    Attributes:
        client: The producer's connection.
        transactional_id: The producer's transactional id.
        has_own_epochs: Whether the producer uses the protocol of KIP-890. In this protocol each
            transaction has its own epoch, and a Produce request adds its partitions to the
            transaction.
        timeout_ms: Time in ms after which the broker aborts an open transaction.
        producer_id: The id that the broker assigned, set by `init`.
        epoch: The producer's epoch, set by `init` and `end`.
        sequences: The next sequence number of each partition.
    """

    client: RawClient
    transactional_id: str
    has_own_epochs: bool = False
    timeout_ms: int = TIMEOUT_MS
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def init(self) -> int:
        """Request a producer id, or the next epoch; return the error code."""
        find_coordinator(self.client, self.transactional_id)
        asked = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        found = until(
            lambda: self.client.ask(INIT_PRODUCER_ID, 4, asked),
            lambda answer: answer.error_code not in LATER,
        )
        if not found.error_code:
            self.producer_id, self.epoch = found.producer_id, found.producer_epoch
            self.sequences.clear()
        return found.error_code

    def add(self, topic: str, *partitions: int) -> list[int]:
        """Add partitions to the transaction (classic); return the partitions' error codes."""
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[NamedPartitions(name=topic, partitions=list(partitions))],
        )

        def ask() -> list[int]:
            answer = self.client.ask(ADD_PARTITIONS_TO_TXN, 3, asked)
            rows = answer.results_by_topic_v3_and_below[0].results_by_partition
            return [row.partition_error_code for row in rows]

        return until(ask, lambda codes: not LATER & set(codes))

    def batch(self, values: Sequence[NewRecord], sequence: int) -> bytearray:
        """Return a batch of this producer's transaction, with the given first sequence number."""
        return build_batch(
            list(values),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def produce(
        self, topic: str, records: Sequence[NewRecord], partition: int = 0, version: int = 0
    ) -> PartitionProduceResponse:
        """Send records with the next sequence numbers, without retries; return the response."""
        place = (topic, partition)
        sequence = self.sequences.get(place, 0)
        answer = self.send(topic, self.batch(records, sequence), partition, version)
        if not answer.error_code:
            self.sequences[place] = sequence + len(records)
        return answer

    def send(
        self, topic: str, batch: bytes | bytearray, partition: int = 0, version: int = 0
    ) -> PartitionProduceResponse:
        """Send a batch of this producer; return the partition's response."""
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    partition_data=[PartitionProduceData(index=partition, records=bytes(batch))],
                )
            ],
        )
        chosen = version or (12 if self.has_own_epochs else 11)

        def ask() -> PartitionProduceResponse:
            answer = self.client.ask(PRODUCE, chosen, request)
            return answer.responses[0].partition_responses[0]

        # Kafka returns error 19 while its leader asks the transaction coordinator; clients retry
        # then.
        return until(ask, lambda answer: answer.error_code not in (NOT_LEADER, 19))

    def end(self, *, commit: bool) -> int:
        """Commit or abort; return the error code."""
        asked = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        version = 5 if self.has_own_epochs else 4
        found = until(
            lambda: self.client.ask(END_TXN, version, asked),
            lambda answer: answer.error_code not in LATER,
        )
        if not found.error_code and self.has_own_epochs:
            self.producer_id, self.epoch = found.producer_id, found.producer_epoch
            self.sequences.clear()
        return found.error_code

    def add_offsets(self, group: str) -> int:
        """Add a group's offsets to the transaction (classic); return the error code."""
        asked = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return until(
            lambda: self.client.ask(ADD_OFFSETS_TO_TXN, 3, asked).error_code,
            lambda code: code not in LATER,
        )

    def commit_offset(
        self, group: str, topic: str, offset: int, version: int = 0, **member: object
    ) -> int:
        """Commit a group's offset of partition 0 in the transaction; return the error code."""
        if group:
            find_coordinator(self.client, group, GROUP_KEY)
        place = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="m"
        )
        asked = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[place])],
            **member,  # type: ignore[arg-type] # fields of the message
        )
        chosen = version or (5 if self.has_own_epochs else 3)

        def ask() -> int:
            answer = self.client.ask(TXN_OFFSET_COMMIT, chosen, asked)
            return answer.topics[0].partitions[0].error_code

        return until(ask, lambda code: code not in LATER)

    def until_ended(self, topic: str, partition: int = 0) -> None:
        """Wait until the transaction's marker is in the partition."""
        producer_id = self.producer_id
        until(
            lambda: producers(self.client, topic, partition).get(producer_id, NO_STATE),
            lambda state: state.current_txn_start_offset < 0,
        )


def producers(client: RawClient, topic: str, partition: int = 0) -> dict[int, ProducerState]:
    """Return the producer states of a partition, by id."""
    asked = DescribeProducersRequest(
        topics=[NamedIndexes(name=topic, partition_indexes=[partition])]
    )
    found = client.ask(DESCRIBE_PRODUCERS, 0, asked).topics[0].partitions[0]
    assert not found.error_code, found
    return {each.producer_id: each for each in found.active_producers}


def committed(client: RawClient, group: str, topic: str, *, stable: bool) -> tuple[int, int]:
    """Return a group's offset of partition 0, and the error code."""
    find_coordinator(client, group, GROUP_KEY)
    wanted = OffsetFetchGroup(
        group_id=group, topics=[OffsetFetchTopic(name=topic, partition_indexes=[0])]
    )
    asked = OffsetFetchRequest(groups=[wanted], require_stable=stable)

    def ask() -> tuple[int, int]:
        found = client.ask(OFFSET_FETCH, 8, asked).groups[0]
        if found.error_code:
            return -1, found.error_code
        one = found.topics[0].partitions[0]
        return one.committed_offset, one.error_code

    return until(ask, lambda answer: answer[1] not in LATER)
