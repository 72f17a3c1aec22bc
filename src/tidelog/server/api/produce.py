"""Produce: batches go into their partitions' logs; one answer for each partition.

Owns the way of a request's records from the message to the logs (`AppendPlan`):

1. Plan: one row for each partition. As in Kafka the last records that are named for a partition
   win; where some of a partition's records are refused before a log sees them, the refusal is the
   answer (Kafka appends the last sound ones, unsaid).
2. Ready: partitions are open, nothing stops appends, and the coordinator has said that partitions
   are in their transactions: at once nearly always.
3. Append: a slice at a time, so that others have their turn. Rows in which nothing is out of the
   ordinary are appended in groups, each step with all of them (decision 0022).
4. Acknowledged: the response goes once readers may see the records. With acks=0 nothing is
   answered; a refusal closes the connection, which is all that such a client sees.

Checks come in Kafka's order: what is wrong with the request, with the records as they were framed,
then what the log says. A refusal of one partition leaves the others alone.

A partition's first batch of a transaction is taken only where the coordinator knows that the
partition is in it, or takes it in (from version 12 on). All later ones find the transaction open in
the log, and the coordinator is not asked.

The rules of batches are the log's (`storage/log/validator.py`), when readers see them is the
partition's.

Source: Kafka's protocol guide, API 0; Kafka 4.3's KafkaApis.handleProduceRequest,
ReplicaManager.handleProduceAppend, AddPartitionsToTxnManager; KIP-467 (errors by record), KIP-516
(topic ids), KIP-890.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import ClockJump, CorruptBatch, RefusedRecords, TidelogError
from tidelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import frame_size, walk
from tidelog.record.header import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_2,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from tidelog.server.api.context import RequestContext, RowAnswers, RowFunctions, TopicRows
from tidelog.server.api.guards import Access, Denied, Guarded
from tidelog.server.api.node import Node
from tidelog.server.partitions.partition import Guard, Partition, append_in_transaction
from tidelog.server.runtime.errors import Unanswered
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.operations import Operation
from tidelog.storage.log.append import AppendResult, AppendTerms, LongCheck
from tidelog.storage.log.log import Log, append_together
from tidelog.storage.log.message_sets import PreparedSet
from tidelog.types import Buffer, Codec, TopicPartition

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
    partition: Partition, records: Buffer, verdicts: Verdicts, terms: AppendTerms
) -> AppendResult:
    """Append records of a request in which some are part of a transaction.

    Raises:
        TidelogError: As `append_in_transaction`.
    """
    place = (partition.name.topic, partition.name.partition)
    wanted = wanted_in(records, place)
    if wanted is None:
        return partition.append(records, terms)
    guard = verdicts.guards.get(place)
    return append_in_transaction(partition, records, wanted.batch, guard, terms)


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


# Appends of a client's batches, of its message sets, and of batches that a thread has checked.
PRODUCED: Final = AppendTerms(owned=True, is_bounded=True)
PRODUCED_SETS: Final = AppendTerms(owned=True, takes_legacy=True, is_bounded=True)
CHECKED: Final = AppendTerms(owned=True, is_checked=True)


# So often a message set is checked while others may append.
FREE_CHECKS: Final = 2


VALID_ACKS: Final = frozenset({-1, 0, 1})


BATCHES_FIRST_VERSION: Final = 3


ZSTD_FIRST_VERSION: Final = 7


# Kafka's admin client alone may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"


# What Kafka answers without the log's start: damage, no partition, too large, a failed disk.
_WITHOUT_START: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


# Of all answers that name no other leader; never changed.
_NO_LEADER: Final = LeaderIdAndEpoch()


class Request(NamedTuple):
    """What holds for all partitions of a request, and whose answers have to wait.

    Attributes:
        context: Who asks.
        acks: As the client wants it.
        waiting: Gets answers that hold only once readers may see the records.
        verdicts: What is known of transactions, None where there are none.
        long: Gets what takes long to check, and is appended behind the rest.
    """

    context: RequestContext
    acks: int
    waiting: "list[Waiting]"
    verdicts: Verdicts | None
    long: "list[LongAppend]"


class Waiting(NamedTuple):
    """A partition's answer that holds once readers may see its records."""

    answer: PartitionProduceResponse
    is_shown: Reply[ErrorCode]


class LongAppend(NamedTuple):
    """Records that take long to check: for which topic, what, and the response to fill in.

    Attributes:
        topic: The topic's name.
        topic_id: The topic's id when the records came.
        data: The partition's number and the records.
        answer: The response, empty until the records are appended or refused.
    """

    topic: str
    topic_id: UUID | None
    data: PartitionProduceData
    answer: PartitionProduceResponse


def append(  # noqa: PLR0911 - one for each way in which records are not taken
    common: Request,
    topic: str,
    data: PartitionProduceData,
    *,
    is_checked: bool = False,
    prepared: PreparedSet | None = None,
) -> PartitionProduceResponse:
    """Append what is sent for one partition of that topic; the answer about it.

    Where it holds only once readers may see the records, it is in `common.waiting`, too. Where the
    records take long to check, it is in `common.long`, and has no content yet.

    Args:
        common: What holds for all partitions.
        topic: Its name.
        data: The partition's number and records.
        is_checked: Whether the records come from `Log.check_append`.
        prepared: The records as `Log.check_set` has checked them; None where it has not.

    Raises:
        LongCheck: `prepared` has to be made again.
    """
    context, index = common.context, data.index
    try:
        partition = context.node.partitions.get(topic, index)
    except TidelogError as error:
        return refused(index, error.code or ErrorCode.UNKNOWN_SERVER_ERROR)
    try:
        code = _refusal_of(context, topic, data.records)
        if not code and common.verdicts is not None and (topic, index) in common.verdicts.refusals:
            return refused(index, *common.verdicts.refusals[topic, index])
        if code or common.acks not in VALID_ACKS:
            return refused(index, code or ErrorCode.INVALID_REQUIRED_ACKS)
        assert data.records is not None
        is_legacy = context.version < BATCHES_FIRST_VERSION
        if is_legacy and not data.records:
            return PartitionProduceResponse(index=index, error_code=0, base_offset=-1)
        if prepared is not None:
            result = partition.append_set(prepared)
            context.node.metrics.produced(topic, data.records, result)
            return appended(common, partition, index, result)
    except TidelogError as error:
        return failed(partition, index, error)
    if is_checked:
        return _write(common, partition, topic, data, CHECKED)
    return _write(common, partition, topic, data, PRODUCED_SETS if is_legacy else PRODUCED)


def _write(
    common: Request,
    partition: Partition,
    topic: str,
    data: PartitionProduceData,
    terms: AppendTerms,
) -> PartitionProduceResponse:
    """Append records that a log may judge; the answer about them, as of `append`."""
    records = data.records
    assert records is not None
    try:
        if common.verdicts is not None:
            result = append_verified(partition, records, common.verdicts, terms)
        else:
            result = partition.append(records, terms)
        common.context.node.metrics.produced(topic, records, result)
    except TidelogError as error:
        return failed(partition, data.index, error)
    except LongCheck:
        return _postponed(common, topic, data)
    return appended(common, partition, data.index, result)


def _postponed(common: Request, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index=data.index)
    info = common.context.node.topics.find(topic)
    common.long.append(LongAppend(topic, None if info is None else info.topic_id, data, answer))
    return answer


async def append_long(common: Request) -> None:
    """Append what took long to check, once a thread has checked it; fill in the answers."""
    for long in common.long:
        said = await _append_checked(common, long)
        for name in fields(said):
            setattr(long.answer, name.name, getattr(said, name.name))
        for number, waiting in enumerate(common.waiting):
            if waiting.answer is said:
                common.waiting[number] = waiting._replace(answer=long.answer)


async def _append_checked(common: Request, long: LongAppend) -> PartitionProduceResponse:
    """Append records once a thread has checked them.

    Where the topic or its settings change meanwhile, or others append before a message set, they
    are checked again; after some vain checks what would change waits.
    """
    holds = common.context.node.partitions.holds
    for _ in range(FREE_CHECKS):
        response = await _check_and_append(common, long, is_alone=False)
        if response is not None:
            return response
    while True:
        async with holds.hold([long.topic], stops_appends=True):
            response = await _check_and_append(common, long, is_alone=True)
        if response is not None:
            return response


def _checked_copy(log: Log, records: Buffer) -> Buffer:
    """Records as a log is to append them; `records` stay as they came, for a second check."""
    return log.check_append(bytearray(records))


async def _check_and_append(
    common: Request, long: LongAppend, *, is_alone: bool
) -> PartitionProduceResponse | None:
    """Check records in a thread and append them; None where they must be checked again."""
    node, topic, data = common.context.node, long.topic, long.data
    info = node.topics.find(topic)
    if common.context.version >= TOPIC_IDS_FIRST_VERSION and (
        info is None or info.topic_id != long.topic_id
    ):
        return refused(data.index, ErrorCode.UNKNOWN_TOPIC_ID)
    try:
        partition = node.partitions.get(topic, data.index)
    except TidelogError as error:
        return refused(data.index, error.code or ErrorCode.UNKNOWN_SERVER_ERROR)
    prepared: PreparedSet | None = None
    try:
        if common.context.version < BATCHES_FIRST_VERSION:
            prepared = await node.long_checks.run(partition.log.check_set, data.records)
        else:
            records = await node.long_checks.run(_checked_copy, partition.log, data.records)
            data = PartitionProduceData(index=data.index, records=records)
        while not is_alone and node.partitions.holds.stops_appends([topic]):
            await node.partitions.holds.wait([topic])
        if node.topics.find(topic) != info:
            return None
        is_checked = prepared is None
        return append(common, topic, data, is_checked=is_checked, prepared=prepared)
    except LongCheck:
        return None
    except TidelogError as error:
        return failed(partition, long.data.index, error)


def appended(
    common: Request, partition: Partition, index: int, result: AppendResult
) -> PartitionProduceResponse:
    """The answer about records that are in the log; it may be in `common.waiting`, too."""
    answer = PartitionProduceResponse(
        index=index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        current_leader=_NO_LEADER,
    )
    if partition.must_wait(result, common.acks):
        common.waiting.append(Waiting(answer, partition.visible(result.last_offset + 1)))
    return answer


def is_refused(context: RequestContext, topic: str, records: Buffer | None) -> bool:
    """Whether records are refused before the log sees them."""
    try:
        return _refusal_of(context, topic, records) != 0
    except TidelogError:
        return True


def _refusal_of(context: RequestContext, topic: str, records: Buffer | None) -> int:
    """The error that records get before the log sees them; 0 for none.

    Raises:
        CorruptBatch: Their frames can't be right.
        UnsupportedCompression: A codec that nobody defined, in an old version.
    """
    if records is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's code: it comes to nothing there
    if context.version < BATCHES_FIRST_VERSION:
        return _legacy_refusal(context, topic, records)
    if context.version >= ZSTD_FIRST_VERSION and is_one_batch(records):
        return _refusal_to(context, topic)
    return _framing_refusal(context, records) or _refusal_to(context, topic)


def _framing_refusal(context: RequestContext, records: Buffer) -> int:
    """The error of records that are not one whole batch that the version may send; 0 for none."""
    batches = walk(records)
    first = next(batches, None)
    if first is None or first.magic != MAGIC_2:
        return ErrorCode.INVALID_RECORD
    if context.version < ZSTD_FIRST_VERSION and first.codec is Codec.ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if first.size_bytes < len(records) and next(batches, None) is not None:
        return ErrorCode.INVALID_RECORD
    return 0


def is_one_batch(records: Buffer) -> bool:
    """Whether one whole batch of format 2 fills them, as clients send it: as a walk says."""
    size_bytes = len(records)
    if size_bytes < HEADER_SIZE or records[MAGIC_AT] != MAGIC_2:
        return False
    return int.from_bytes(records[LENGTH_AT:LOG_OVERHEAD], "big") + LOG_OVERHEAD == size_bytes


def _legacy_refusal(context: RequestContext, topic: str, records: Buffer) -> int:
    """The same for clients that know no record batches.

    As Kafka took it from them, a set of no messages is no error; a set of batches is one.
    """
    first = next(walk(records), None)
    if first is None:
        return ErrorCode.INVALID_RECORD if records else 0
    if first.magic == MAGIC_2:
        return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    return _refusal_to(context, topic)


def _refusal_to(context: RequestContext, topic: str) -> int:
    """The error of whoever may not write there; 0 where he may."""
    if context.node.topics.is_internal(topic) and context.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return 0


def refused(index: int, code: int, reason: str | None = None) -> PartitionProduceResponse:
    """The answer about a partition whose records are not taken."""
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=reason
    )


def failed(partition: Partition, index: int, error: TidelogError) -> PartitionProduceResponse:
    """Return the log's error as Kafka's code; refused records and a clock jump are explained."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
    answer = refused(index, code)
    if code not in _WITHOUT_START:
        answer.log_start_offset = partition.log.log_start_offset
    if isinstance(error, ClockJump):
        answer.error_message = str(error)
    if isinstance(error, RefusedRecords) and error.record_errors:
        answer.error_message = str(error)
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.index, batch_index_error_message=each.reason)
            for each in error.record_errors
        ]
    return answer


# Whether a partition's records are refused before a log sees them.
IsRefused: TypeAlias = Callable[[TopicProduceData, PartitionProduceData], bool]


# Of each topic what is chosen of each partition, and which of them were refused.
_Named: TypeAlias = dict[tuple[str, UUID], tuple[dict[int, PartitionProduceData], set[int]]]


def named_once(request: ProduceRequest, is_refused: IsRefused) -> ProduceRequest:
    """The request with each topic and partition named once, topics without any left out.

    Where it is so already it is the request itself.

    Args:
        request: It is not changed.
        is_refused: Asked about each part once, where any is named more than once.
    """
    topics = request.topic_data
    if len({(topic.name, topic.topic_id) for topic in topics}) == len(topics) and all(
        0 < len({data.index for data in topic.partition_data}) == len(topic.partition_data)
        for topic in topics
    ):
        return request
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=_merged(topics, is_refused),
    )


def _merged(topics: list[TopicProduceData], is_refused: IsRefused) -> list[TopicProduceData]:
    """Each topic with all of its partitions, in the order in which they were named first."""
    named: _Named = {}
    for topic in topics:
        if not topic.partition_data:
            continue
        chosen, refused = named.setdefault((topic.name, topic.topic_id), ({}, set()))
        for data in topic.partition_data:
            if is_refused(topic, data):
                refused.add(data.index)
                chosen[data.index] = data
            elif data.index not in refused:
                chosen[data.index] = data
    return [
        TopicProduceData(name=name, topic_id=topic_id, partition_data=list(chosen.values()))
        for (name, topic_id), (chosen, _) in named.items()
    ]


TOPIC_IDS_FIRST_VERSION: Final = 13


# So many are appended to together, one at least: what takes next to no time.
GROUP_PARTITIONS: Final = 16


GROUP_BYTES: Final = 1 << 20


# Length, magic, the lower byte of the attributes.
_LOOK: Final = Struct(">8xi4xb5xB")


class Row:
    """Records for one partition, on their way into its log.

    Attributes:
        topic: As it was named.
        data: The partition's number and its records.
        answers: Where its answer goes.
        name: The topic's; "" where its id is nobody's.
        partition: Where it is open.
        is_plain: Whether a log may judge it at once: one batch of format 2, and no transaction's.
    """

    __slots__ = ("answers", "data", "is_plain", "name", "partition", "topic")

    name: str
    partition: Partition | None
    is_plain: bool

    def __init__(
        self,
        topic: TopicProduceData,
        data: PartitionProduceData,
        answers: list[PartitionProduceResponse],
    ) -> None:
        self.topic = topic
        self.data = data
        self.answers = answers


def _append_group(common: Request, rows: Sequence[Row]) -> None:
    """Each step with all of these plain rows; watchers are called at the end.

    So a watcher that does something at once finds every log at rest.
    """
    pairs = [(row.partition.log, row.data.records or b"") for row in rows if row.partition]
    outcomes = append_together(pairs, PRODUCED)
    common.context.node.metrics.produced_together(
        (row.name, row.data.records or b"", outcome)
        for row, outcome in zip(rows, outcomes, strict=True)
        if isinstance(outcome, AppendResult)
    )
    for row, outcome in zip(rows, outcomes, strict=True):
        row.answers.append(_answer(common, row, outcome))


def _answer(
    common: Request, row: Row, outcome: AppendResult | TidelogError | LongCheck
) -> PartitionProduceResponse:
    """The answer to records that were appended, refused, or take long to check."""
    partition, index = row.partition, row.data.index
    assert partition is not None
    if isinstance(outcome, LongCheck):
        return _postponed(common, row.name, row.data)
    if isinstance(outcome, TidelogError):
        return failed(partition, index, outcome)
    try:
        partition.advance_to(outcome)
    except TidelogError as error:
        return failed(partition, index, error)
    return appended(common, partition, index, outcome)


# What most requests need is far less.
SLICE_MS: Final = 20


Said: TypeAlias = "ProduceResponse | Awaitable[ProduceResponse | None] | None"


class AppendPlan:
    """The appends of one request: rows that are ready, are appended by slices, and answered."""

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        """The last records that are named for a partition win."""
        if _names_many(request):
            request = _named_once(context, request)
        self.request = request
        self.common = Request(context, request.acks, [], None, [])
        self.responses: list[TopicProduceResponse] = []
        self.left: deque[Row] = deque()
        for topic in request.topic_data:
            answers: list[PartitionProduceResponse] = []
            self.responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )
            self.left.extend([Row(topic, data, answers) for data in topic.partition_data])

    # -- ready -------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether all may be appended, or refused, without waiting for anything."""
        partitions = self.common.context.node.partitions
        if partitions.holds and partitions.holds.stops_appends(self._topic_names()):
            return False
        if self._find_partitions():
            return True
        return not partitions.unopened(self._places()) and not self._begin_transactions()

    async def make_ready(self) -> None:
        """Wait for locks, for partitions that are opened, and for the coordinator."""
        node, is_opened = self.common.context.node, False
        while True:
            has_waited = await self._wait_for_holds()
            missing = node.partitions.unopened(self._places())
            if not missing or (is_opened and not has_waited):
                break
            await node.partitions.open_beside(missing, node.work, to_write=True)
            is_opened = True
        verdicts = self._begin_transactions()
        if verdicts is not None:
            name, version = self.request.transactional_id, self.common.context.version
            assert name is not None
            await ask(node, name, verdicts, version)
            await self._wait_for_holds()
        self._find_partitions()

    def _find_partitions(self) -> bool:
        """Find what is left its partitions as they are now; whether all of it is plain."""
        context, is_plain = self.common.context, True
        find, look, version = context.node.partitions.find_used, _LOOK.unpack_from, context.version
        topic, name, may_be_plain = None, "", False
        for row in self.left:
            if row.topic is not topic:
                topic = row.topic
                name = _topic_name_of(context, topic) or ""
                may_be_plain = (
                    version >= ZSTD_FIRST_VERSION
                    and self.common.acks in VALID_ACKS
                    and not _refusal_to(context, name)
                )
            records = row.data.records
            row.name, row.is_plain = name, False
            partition = row.partition = find(name, row.data.index)
            if may_be_plain and partition and records and len(records) >= HEADER_SIZE:
                length, magic, attributes = look(records)
                row.is_plain = (
                    length + LOG_OVERHEAD == len(records)
                    and magic == MAGIC_2
                    and not attributes & TRANSACTIONAL_BIT
                )
            is_plain = is_plain and row.is_plain
        return is_plain

    def _begin_transactions(self) -> Verdicts | None:
        """Judge what is part of transactions; what the coordinator has to be asked about."""
        common, request = self.common, self.request
        try:
            if not has_transactional_records(request):
                return None
        except CorruptBatch as error:
            self._refuse_all(Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)))
            return None
        if request.transactional_id is None:
            self._refuse_all(Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            return None
        try:
            verdicts = begin(common.context.node, self._wanted(), common.context.version)
        except TwoProducers as error:
            self._refuse_all(Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, str(error)))
            return None
        self.common = common._replace(verdicts=verdicts)
        return verdicts if verdicts.guards else None

    def _refuse_all(self, refusal: Refusal) -> None:
        for row in self.left:
            row.answers.append(refused(row.data.index, *refusal))
        self.left.clear()

    def _wanted(self) -> Iterator[Wanted]:
        """Records that are part of a transaction, of those that a log would look at."""
        context = self.common.context
        for row in self.left:
            name, records = _topic_name_of(context, row.topic), row.data.records
            if name is None or not records or is_refused(context, name, records):
                continue
            wanted = wanted_in(records, (name, row.data.index))
            if wanted is not None:
                yield wanted

    def _places(self) -> Iterator[Place]:
        for row in self.left:
            name = _topic_name_of(self.common.context, row.topic)
            if name is not None:
                yield name, row.data.index

    def _topic_names(self) -> list[str]:
        """The topics of the request, those that are named by their ids included."""
        context = self.common.context
        found = (_topic_name_of(context, topic) for topic in self.request.topic_data)
        return [name for name in found if name is not None]

    async def _wait_for_holds(self) -> bool:
        """Wait for locks that stop appends; whether there was one."""
        holds, has_waited = self.common.context.node.partitions.holds, False
        while holds and holds.stops_appends(self._topic_names()):
            await holds.wait(self._topic_names())
            has_waited = True
        return has_waited

    # -- append ------------------------------------------------------------------------------

    def append_slice(self) -> None:
        """Append until a slice is over, plain rows in groups."""
        common, left = self.common, self.left
        now_ms = common.context.node.env.clock.monotonic_ms
        end_ms = now_ms() + SLICE_MS if len(left) > 1 else 0
        while left:
            group = self._next_group()
            if len(group) > 1:
                _append_group(common, group)
            else:
                row = group[0]
                if row.is_plain and row.partition is not None:
                    answer = _write(common, row.partition, row.name, row.data, PRODUCED)
                else:
                    answer = _append(common, row.topic, row.data)
                row.answers.append(answer)
            if left and now_ms() >= end_ms:
                break

    def _next_group(self) -> list[Row]:
        """Take what is appended together: a row, or some that are plain."""
        left = self.left
        group = [left.popleft()]
        if group[0].is_plain:
            size_bytes = len(group[0].data.records or b"")
            while left and left[0].is_plain and len(group) < GROUP_PARTITIONS:
                size_bytes += len(left[0].data.records or b"")
                if size_bytes > GROUP_BYTES:
                    break
                group.append(left.popleft())
        return group

    async def append_rest(self) -> ProduceResponse | None:
        """Append by slices, others first: topics may be held, deleted or made anew meanwhile."""
        while self.left:
            await asyncio.sleep(0)
            await self._wait_for_holds()
            self._find_partitions()
            self.append_slice()
        said = self.acknowledged()
        return await said if isinstance(said, Awaitable) else said

    def acknowledged(self) -> Said:
        """The response, once what it says holds; see `said_once_shown`."""
        return said_once_shown(self.common, self.request, self.responses)


def produce(context: RequestContext, request: ProduceRequest) -> Said:
    """Append each partition's records.

    Raises:
        Unanswered: With acks=0, where a partition refused its records.
    """
    plan = AppendPlan(context, request)
    if not plan.is_ready():
        return _produce_later(plan)
    plan.append_slice()
    return plan.append_rest() if plan.left else plan.acknowledged()


async def _produce_later(plan: AppendPlan) -> ProduceResponse | None:
    await plan.make_ready()
    plan.append_slice()
    return await plan.append_rest()


def said_once_shown(
    common: Request, request: ProduceRequest, responses: list[TopicProduceResponse]
) -> Said:
    """What is said once all is appended; acks=0 raises Unanswered, or says nothing."""
    if common.long:
        return _when_checked(common, request, responses)
    if request.acks == 0:
        _raise_first_error(common.context, responses)
        return None
    response = ProduceResponse(responses=responses)
    if not common.waiting:
        return response
    return _when_shown(common, response, request.timeout_ms)


async def _when_checked(
    common: Request, request: ProduceRequest, responses: list[TopicProduceResponse]
) -> ProduceResponse | None:
    """The response once what takes long to check is appended, too."""
    await append_long(common)
    common.long.clear()
    said = said_once_shown(common, request, responses)
    return await said if isinstance(said, Awaitable) else said


def _names_many(request: ProduceRequest) -> bool:
    """Or none, of a topic: it is left out then."""
    topics = request.topic_data
    return len(topics) > 1 or (len(topics) == 1 and len(topics[0].partition_data) != 1)


def _named_once(context: RequestContext, request: ProduceRequest) -> ProduceRequest:
    def is_so(topic: TopicProduceData, data: PartitionProduceData) -> bool:
        return is_refused(context, _topic_name_of(context, topic) or "", data.records)

    return named_once(request, is_so)


async def _when_shown(
    common: Request, response: ProduceResponse, timeout_ms: int
) -> ProduceResponse:
    """The response once all of it holds; what doesn't by the time-out is answered as Kafka does."""

    def time_out() -> None:
        for _, is_shown in common.waiting:
            is_shown.try_complete(ErrorCode.REQUEST_TIMED_OUT)

    timer = common.context.node.timers.after(max(timeout_ms, 0), time_out)
    try:
        for answer, is_shown in common.waiting:
            code = await is_shown
            if code:
                _refuse(answer, code)
    finally:
        timer.cancel()
    return response


def _append(
    common: Request, topic: TopicProduceData, data: PartitionProduceData
) -> PartitionProduceResponse:
    name = _topic_name_of(common.context, topic)
    return (
        refused(data.index, ErrorCode.UNKNOWN_TOPIC_ID)
        if name is None
        else append(common, name, data)
    )


def _topic_name_of(context: RequestContext, topic: TopicProduceData) -> str | None:
    """The topic's name, None where its id is nobody's."""
    if context.version < TOPIC_IDS_FIRST_VERSION:
        return topic.name
    info = context.node.topics.find_by_id(topic.topic_id)
    return None if info is None else info.name


def _refuse(answer: PartitionProduceResponse, code: int) -> None:
    answer.error_code = code
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _raise_first_error(context: RequestContext, topics: Iterable[TopicProduceResponse]) -> None:
    for topic in topics:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise Unanswered(
                    f"{topic.name}-{answer.index}: error {answer.error_code} for"
                    f" {context.client_id}, which wants no answer (acks=0)",
                    answer.error_code,
                )


# -- rows of requests that repeat --------------------------------------------------------------


def _may_repeat(version: int, request: ProduceRequest) -> bool:
    """Whether it has records for one partition, in batches of format 2, and wants a response."""
    topics = request.topic_data
    is_one = len(topics) == 1 and len(topics[0].partition_data) == 1
    return is_one and version >= BATCHES_FIRST_VERSION and request.acks != 0


def _answer_rows(
    context: RequestContext, request: ProduceRequest, topics: Sequence[TopicRows]
) -> "RowAnswers | Said":
    """Append one plain batch to a partition that is open; None for anything else."""
    ((name, topic_id, rows),) = topics
    ((index, records),) = cast("Sequence[tuple[int, Buffer]]", rows)
    if not is_one_batch(records) or records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT:
        return None
    partitions = context.node.partitions
    if partitions.holds or partitions.find_used(name, index) is None:
        return None
    common = Request(context, request.acks, [], None, [])
    said = append(common, name, PartitionProduceData(index=index, records=records))
    if said.error_code or common.waiting or common.long:
        topic = TopicProduceResponse(partition_responses=[said])
        if topic_id is None:
            topic.name = name
        else:
            topic.topic_id = topic_id
        return said_once_shown(common, request, [topic])
    facts = index, 0, said.base_offset, said.log_append_time_ms, said.log_start_offset
    return [[facts]], None, None


PRODUCE_ROWS: Final = RowFunctions(Operation.WRITE, _may_repeat, _answer_rows)


def guard_produce(access: Access, request: ProduceRequest) -> Guarded[ProduceRequest]:
    """WRITE on each topic, and on the transactional id where there is one.

    With acks=0 the connection closes where something is denied, once what is allowed was appended.
    """
    allowed, denied, code = _to_produce(access, request)
    if not denied:
        return request, None
    rest = replace(request, topic_data=allowed) if allowed else None
    if request.acks == 0:

        def close(_none: object) -> ProduceResponse:
            raise Unanswered(f"error {code} for a request that wants no answer (acks=0)", code)

        return rest, Denied(close)
    refusals = [_refused_produce(topic, code) for topic in denied]
    if rest is None:
        return None, Denied.whole(ProduceResponse(responses=refusals))
    return rest, Denied.rows("responses", refusals)


def _to_produce(
    access: Access, request: ProduceRequest
) -> tuple[list[TopicProduceData], list[TopicProduceData], int]:
    name = request.transactional_id
    if _is_transactional(request) and not (
        name is not None and access.may_transact(Operation.WRITE, name)
    ):
        return [], request.topic_data, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    by_id = access.context.version >= TOPIC_IDS_FIRST_VERSION
    allowed, denied = access.split(
        request.topic_data,
        Operation.WRITE,
        lambda topic: access.name_of(topic.topic_id) if by_id else topic.name,
    )
    return allowed, denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _is_transactional(request: ProduceRequest) -> bool:
    try:
        return has_transactional_records(request)
    except CorruptBatch:
        return False  # the handler refuses all of it


def _refused_produce(topic: TopicProduceData, code: int) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
            for data in topic.partition_data
        ],
    )
