"""Produce: what is asked of the coordinator of transactions before a batch goes into a log.

A partition's first batch of a transaction is taken only where the coordinator knows that the
partition is in it, or takes it in (from version 12 on). All later ones find the transaction open in
the log, and nobody is asked.

Source: Kafka 4.3's ReplicaManager.handleProduceAppend, AddPartitionsToTxnManager; KIP-890.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptBatch, TidelogError
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.record.batch import (
    ATTRIBUTES_AT,
    MAGIC_2,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
    RecordBatch,
)
from tidelog.record.views import frame_size, walk
from tidelog.server.node import Node
from tidelog.server.open_transactions import Guard
from tidelog.server.partitions import Partition
from tidelog.server.transactional_writes import append_in_transaction
from tidelog.storage.log import AppendResult
from tidelog.types import Buffer, TopicPartition

# Since which version of Produce a client knows errors after which it aborts, and since which a
# partition is added by producing to it.
ABORTABLE_SINCE: Final = 11
ADDS_SINCE: Final = 12
# What an old client would not come back from: it is told to try again in a way that it knows.
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Place = tuple[str, int]


class TwoProducers(Exception):
    """A request has records of transactions of more than one producer."""


class Wanted(NamedTuple):
    """A partition's records, for which a transaction has to be open."""

    place: Place
    batch: RecordBatch


class Refusal(NamedTuple):
    """Why a partition's records are not taken, with words where Kafka has some."""

    code: int
    reason: str | None = None


@dataclass(slots=True)
class Verdicts:
    """What is known of a request's partitions before their records are appended.

    Attributes:
        producer: Whose transaction, by id and epoch.
        guards: What those hold that the coordinator is asked about.
        refusals: Those whose records are not taken.
    """

    producer: tuple[int, int] = (-1, -1)

    refusals: dict[Place, Refusal] = field(default_factory=dict)
    guards: dict[Place, Guard] = field(default_factory=dict)


def has_transactional_records(request: ProduceRequest) -> bool:
    """Whether a first batch of format 2 says so, in whatever partition.

    Raises:
        CorruptBatch: A frame that can't be: as in Kafka all of the request is refused for it.
    """
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or frame_size(records, 0, len(records)) is None:
                continue
            is_marked = records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
            if is_marked and records[MAGIC_AT] == MAGIC_2:
                return True
    return False


def wanted_in(records: Buffer, place: Place) -> Wanted | None:
    """The batch that is part of a transaction, None where there is none."""
    with suppress(CorruptBatch):
        first = next(walk(records), None)
        if isinstance(first, RecordBatch) and first.is_transactional and first.has_producer_id:
            return Wanted(place, first)
    return None


def begin(node: Node, wanted: Iterable[Wanted], version: int) -> Verdicts:
    """Which partitions' transactions are open, and what those hold that are to be asked about.

    Args:
        node: The broker.
        wanted: What is to be appended; the partitions are open.
        version: Of the request.

    Raises:
        TwoProducers: They are not all of one producer.
    """
    verdicts = Verdicts()
    now_ms = node.env.clock.now_ms()
    batches = tuple(wanted)
    producers = {(each.batch.producer_id, each.batch.producer_epoch) for each in batches}
    if len(producers) > 1:
        raise TwoProducers("Transactional records contained more than one producer ID")
    for (topic, index), batch in batches:
        partition = _ready(node, topic, index)
        if partition is None:
            continue
        verdicts.producer = (batch.producer_id, batch.producer_epoch)
        guard = partition.transactions.guard(
            partition.log.producer_states(),
            verdicts.producer,
            batch.base_sequence,
            raises_epochs=version >= ADDS_SINCE,
            now_ms=now_ms,
        )
        if guard is not None:
            verdicts.guards[topic, index] = guard
    return verdicts


def _ready(node: Node, topic: str, index: int) -> Partition | None:
    """A partition, None where there is none, or it can't be opened.

    Its log may be open though nobody has used it yet: opened for another who waits for it, too.
    """
    partitions = node.partitions
    if partitions.unopened([(topic, index)]):
        return None
    with suppress(TidelogError):
        return partitions.get(topic, index)
    return None


def append_verified(
    partition: Partition, records: Buffer, verdicts: Verdicts, *, is_checked: bool
) -> AppendResult:
    """Append records of a request in which some are part of a transaction.

    Raises:
        TidelogError: As `append_in_transaction`.
    """
    place = (partition.name.topic, partition.name.partition)
    wanted = wanted_in(records, place)
    if wanted is None:
        return partition.append(
            records, owned=True, is_bounded=not is_checked, is_checked=is_checked
        )
    guard = verdicts.guards.get(place)
    return append_in_transaction(
        partition,
        records,
        wanted.batch,
        guard,
        is_bounded=not is_checked,
        is_checked=is_checked,
    )


async def ask(node: Node, transactional_id: str, verdicts: Verdicts, version: int) -> None:
    """Ask the coordinator about partitions that hold a guard; what it refuses is noted.

    Args:
        node: The broker.
        transactional_id: As the request names it.
        verdicts: What `begin` has found.
        version: Of the request.
    """
    places = [TopicPartition(*place) for place in verdicts.guards]
    codes = await node.transactions.verify_or_add(
        transactional_id, *verdicts.producer, places, add=version >= ADDS_SINCE
    )
    for place, code in codes.items():
        if code is not ErrorCode.NONE:
            verdicts.refusals[place.topic, place.partition] = refusal_of(code, version)


def refusal_of(code: ErrorCode, version: int) -> Refusal:
    """What Produce makes of the coordinator's error."""
    found = known_error(code, knows_abortable=version >= ABORTABLE_SINCE)
    if found is ErrorCode.INVALID_TXN_STATE:
        return Refusal(found, "Partition was not added to the transaction")
    if found in _RETRIED:
        reason = "Unable to verify the partition has been added to the transaction."
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, f"{reason} Underlying error: {found.name}")
    return Refusal(found)


def known_error(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """The coordinator's error as a producer is told: some have another name there."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
