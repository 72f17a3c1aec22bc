"""Produce: append a request's batches to the logs of their partitions.

Owns the way of the records from the request to the logs (`AppendPlan`), in four steps:

1. Plan (`rows_of`): one row for each partition. As in Kafka the last records that are named for a
   partition win. Refused records win over others: their error is the response (Kafka appends the
   last valid ones without a word).
2. Ready: wait until partitions are open, no lock stops appends, and the coordinator has confirmed
   that partitions are in their transactions. Nearly always nothing has to be waited for.
3. Append: a slice at a time, so that other requests have their turn. Plain rows are appended in
   groups, each step with all of them (decision 0022).
4. Acknowledge: respond once readers may see the records. With acks=0 there is no response; a
   refusal closes the connection.

Checks come in Kafka's order: the request, the framing of the records, the log. A refusal of one
partition does not affect the others.

A partition's first batch of a transaction is appended only if the coordinator knows that the
partition is in the transaction, or adds it (from version 12 on). Later batches find the transaction
open in the log, and the coordinator is not asked.

The log owns the rules of batches (`storage/log/validator.py`); the partition decides when readers
see them.

Source: Kafka's protocol guide, API 0; Kafka 4.3's KafkaApis.handleProduceRequest,
ReplicaManager.handleProduceAppend, AddPartitionsToTxnManager; KIP-467 (errors by record), KIP-516
(topic ids), KIP-890.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, cast

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
from tidelog.protocol.wire import NO_UUID
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
from tidelog.server.partitions.partition import Guard, Partition, append_in_transaction
from tidelog.server.runtime.errors import Unanswered
from tidelog.server.runtime.loop import Timers
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.operations import Operation
from tidelog.storage.log.append import AppendResult, AppendTerms, LongCheck
from tidelog.storage.log.log import Log, append_together
from tidelog.storage.log.message_sets import PreparedSet
from tidelog.types import Buffer, Codec, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

# From these versions of Produce on: records are batches; they may be compressed with zstd; a client
# knows errors after which it aborts; producing to a partition adds it; topics have ids.
BATCHES_FIRST_VERSION: Final = 3
ZSTD_FIRST_VERSION: Final = 7
ABORTABLE_SINCE: Final = 11
ADDS_SINCE: Final = 12
TOPIC_IDS_FIRST_VERSION: Final = 13

VALID_ACKS: Final = frozenset({-1, 0, 1})

# Kafka's admin client alone may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"

# An old client would not recover from these: it gets an error after which it tries again.
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

# Kafka responds without the log's start: damage, no partition, too large, a failed disk.
_WITHOUT_START: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)

# Of all responses that name no other leader; never changed.
_NO_LEADER: Final = LeaderIdAndEpoch()

# Appends of a client's batches, of its message sets, and of batches that a thread has checked.
PRODUCED: Final = AppendTerms(owned=True, is_bounded=True)
PRODUCED_SETS: Final = AppendTerms(owned=True, takes_legacy=True, is_bounded=True)
CHECKED: Final = AppendTerms(owned=True, is_checked=True)

# So often a row is checked while others may append.
FREE_CHECKS: Final = 2

# So many rows are appended together, one at least: that takes next to no time.
GROUP_PARTITIONS: Final = 16
GROUP_BYTES: Final = 1 << 20

# Most requests need far less.
SLICE_MS: Final = 20


class Refusal(NamedTuple):
    """Why a partition's records are not appended, with a reason where Kafka gives one."""

    code: int
    reason: str | None = None


class Row:
    """Records for one partition, on their way into its log.

    Attributes:
        topic: The topic as the request names it.
        data: The partition's number and its records.
        answer: The partition's response, once the records are appended or refused.
        name: The topic's name; "" where no topic has its id.
        partition: The partition, if it is open and in use.
        is_plain: Whether the log may check the records at once: one batch of format 2, of no
            transaction.
        batch: The first batch, if it belongs to a transaction.
        guard: What the row holds while the coordinator is asked about its transaction.
        refusal: Why the coordinator refuses the records, None if it does not.
    """

    __slots__ = (
        "answer",
        "batch",
        "data",
        "guard",
        "is_plain",
        "name",
        "partition",
        "refusal",
        "topic",
    )

    answer: PartitionProduceResponse

    def __init__(self, topic: TopicProduceData, data: PartitionProduceData) -> None:
        self.topic = topic
        self.data = data
        self.name = ""
        self.partition: Partition | None = None
        self.is_plain = False
        self.batch: RecordBatch | None = None
        self.guard: Guard | None = None
        self.refusal: Refusal | None = None


def rows_of(context: RequestContext, request: ProduceRequest) -> list[Row]:
    """A row for each partition, by topic, in the order in which the request first names them.

    The last records that are named for a partition win; refused ones win over all others.
    """
    topics: dict[tuple[str, UUID], tuple[TopicProduceData, dict[int, Row]]] = {}
    for topic in request.topic_data:
        first, rows = topics.setdefault((topic.name, topic.topic_id), (topic, {}))
        for data in topic.partition_data:
            row = rows.get(data.index)
            if row is None:
                rows[data.index] = Row(first, data)
            elif _is_refused(context, topic, data) or not _is_refused(context, topic, row.data):
                row.data = data
    return [row for _, rows in topics.values() for row in rows.values()]


def _is_refused(
    context: RequestContext, topic: TopicProduceData, data: PartitionProduceData
) -> bool:
    """Whether records are refused before the log sees them."""
    try:
        return _error_of(context, _topic_name_of(context, topic) or "", data.records) != 0
    except TidelogError:
        return True


class AppendPlan:
    """The appends of one request: rows that are ready, are appended by slices, and answered.

    Attributes:
        context: The request's client and version.
        request: The request, for acks, time-out and transactional id.
        rows: All rows, those of one topic together.
        left: Rows that are not appended yet.
        long: Rows whose check takes long; they are appended after all others.
        waiting: Responses that hold only once readers see the records.
    """

    def __init__(self, context: RequestContext, request: ProduceRequest, rows: list[Row]) -> None:
        self.context = context
        self.request = request
        self.rows = rows
        self.left = deque(rows)
        self.long: list[Row] = []
        self.waiting: list[tuple[PartitionProduceResponse, Reply[ErrorCode]]] = []

    # -- ready -------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether all may be appended, or refused, without waiting for anything."""
        partitions, is_plain = self.context.node.partitions, self._find_partitions()
        if partitions.holds and partitions.holds.stops_appends(self._topic_names()):
            return False
        return is_plain or (
            not partitions.unopened(self._partitions_left()) and not self._begin_transactions()
        )

    async def make_ready(self) -> None:
        """Wait for locks, for partitions that are being opened, and for the coordinator."""
        node, is_opened = self.context.node, False
        while True:
            has_waited = await self._wait_for_holds()
            missing = node.partitions.unopened(self._partitions_left())
            if not missing or (is_opened and not has_waited):
                break
            await node.partitions.open_beside(missing, node.work, to_write=True)
            is_opened = True
        if self._begin_transactions():
            await self._verify_transactions()
            await self._wait_for_holds()

    def _find_partitions(self) -> bool:
        """Look up the partitions of the rows left; return whether all rows are plain."""
        context, are_all_plain = self.context, True
        find, version = context.node.partitions.find_used, context.version
        topic, name, may_be_plain = None, "", False
        for row in self.left:
            if row.topic is not topic:
                topic = row.topic
                name = _topic_name_of(context, topic) or ""
                may_be_plain = (
                    version >= ZSTD_FIRST_VERSION
                    and self.request.acks in VALID_ACKS
                    and not _refusal_to(context, name)
                )
            records = row.data.records
            row.name = name
            row.partition = find(name, row.data.index)
            row.is_plain = (
                may_be_plain
                and row.partition is not None
                and records is not None
                and is_one_batch(records)
                and not records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
            )
            are_all_plain = are_all_plain and row.is_plain
        return are_all_plain

    def _partitions_left(self) -> Iterator[tuple[str, int]]:
        return ((row.name, row.data.index) for row in self.left if row.name)

    def _topic_names(self) -> set[str]:
        return {row.name for row in self.left if row.name}

    async def _wait_for_holds(self) -> bool:
        """Wait for locks that stop appends, and look up partitions; whether there was a lock."""
        holds, has_waited = self.context.node.partitions.holds, False
        self._find_partitions()
        while holds and holds.stops_appends(self._topic_names()):
            await holds.wait(self._topic_names())
            self._find_partitions()
            has_waited = True
        return has_waited

    # -- transactions ------------------------------------------------------------------------

    def _begin_transactions(self) -> bool:
        """Find the rows of transactions; whether the coordinator has to be asked about some.

        A row whose transaction is not open in its log gets a guard.
        """
        context, partitions = self.context, self.context.node.partitions
        try:
            if not has_transactional_records(row.data.records for row in self.left):
                return False
        except CorruptBatch as error:
            return self._refuse_all(ErrorCode.CORRUPT_MESSAGE, str(error))
        if self.request.transactional_id is None:
            return self._refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        batches: list[tuple[Row, RecordBatch]] = []
        for row in self.left:
            row.batch = row.guard = None
            if row.name and row.data.records and not _is_refused(context, row.topic, row.data):
                row.batch = transactional_batch(row.data.records)
            if row.batch is not None:
                batches.append((row, row.batch))
        if len({(batch.producer_id, batch.producer_epoch) for _, batch in batches}) > 1:
            text = "Transactional records contained more than one producer ID"
            return self._refuse_all(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
        now_ms = context.node.env.clock.now_ms()
        for row, batch in batches:
            if partitions.unopened([(row.name, row.data.index)]):
                continue
            with suppress(TidelogError):
                partition = partitions.get(row.name, row.data.index)
                row.guard = partition.transactions.guard(
                    partition.log.producer_states(),
                    (batch.producer_id, batch.producer_epoch),
                    batch.base_sequence,
                    raises_epochs=context.version >= ADDS_SINCE,
                    now_ms=now_ms,
                )
        return any(row.guard is not None for row, _ in batches)

    async def _verify_transactions(self) -> None:
        """Ask the coordinator about the rows that hold a guard."""
        rows = {
            TopicPartition(row.name, row.data.index): (row, row.batch)
            for row in self.left
            if row.guard is not None and row.batch is not None
        }
        _, batch = next(iter(rows.values()))
        transactional_id, version = self.request.transactional_id, self.context.version
        assert transactional_id is not None
        codes = await self.context.node.transactions.verify_or_add(
            transactional_id,
            batch.producer_id,
            batch.producer_epoch,
            list(rows),
            add=version >= ADDS_SINCE,
        )
        for partition, code in codes.items():
            if code is not ErrorCode.NONE:
                rows[partition][0].refusal = refusal_of(code, version)

    def _refuse_all(self, code: int, reason: str | None = None) -> bool:
        """Refuse all rows that are left; return False, since nobody has to be asked any more."""
        for row in self.left:
            row.answer = refused(row.data.index, code, reason)
        self.left.clear()
        return False

    # -- append ------------------------------------------------------------------------------

    def append_slice(self) -> None:
        """Append until a slice is over, plain rows in groups."""
        left, now_ms = self.left, self.context.node.env.clock.monotonic_ms
        end_ms = now_ms() + SLICE_MS if len(left) > 1 else 0
        while left:
            group = self._next_group()
            if len(group) > 1:
                self._append_group(group)
            else:
                self.append_row(group[0])
            if left and now_ms() >= end_ms:
                break

    def _next_group(self) -> list[Row]:
        """Take the rows that are appended together: some plain ones, or any one."""
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

    def _append_group(self, rows: Sequence[Row]) -> None:
        """Append plain rows, each step of it with all of them.

        Watchers are called at the end: one that does something at once finds every log at rest.
        """
        pairs = [(row.partition.log, row.data.records or b"") for row in rows if row.partition]
        for row, outcome in zip(rows, append_together(pairs, PRODUCED), strict=True):
            partition = row.partition
            assert partition is not None
            if isinstance(outcome, AppendResult):
                try:
                    partition.advance_to(outcome)
                    self._appended(row, partition, outcome)
                except TidelogError as error:
                    row.answer = failed(partition, row.data.index, error)
            elif isinstance(outcome, TidelogError):
                row.answer = failed(partition, row.data.index, outcome)
            else:
                self.long.append(row)

    def append_row(self, row: Row, checked: Buffer | PreparedSet | None = None) -> None:
        """Append one row, or refuse it; a row that takes long to check goes to `long`.

        Args:
            row: What to append.
            checked: The records as `Log.check_append` or `Log.check_set` has checked them.

        Raises:
            LongCheck: `checked` is a message set, and has to be checked again.
        """
        context, index, partition = self.context, row.data.index, row.partition
        try:
            if not row.is_plain or checked is not None:
                partition = None
                if not row.name and context.version >= TOPIC_IDS_FIRST_VERSION:
                    row.answer = refused(index, ErrorCode.UNKNOWN_TOPIC_ID)
                    return
                partition = context.node.partitions.get(row.name, index)
                refusal = self._refusal_of(row)
                if refusal is not None:
                    row.answer = refused(index, *refusal)
                    return
            assert partition is not None
            self._appended(row, partition, self._append_to(partition, row, checked))
        except TidelogError as error:
            row.answer = failed(partition, index, error)
        except LongCheck:
            if checked is not None:
                raise
            self.long.append(row)

    def _refusal_of(self, row: Row) -> Refusal | None:
        """Why a row's records are not handed to the log; raises as `_error_of`."""
        records = row.data.records
        code = _error_of(self.context, row.name, records)
        if code:
            return Refusal(code)
        if row.refusal is not None:
            return row.refusal
        if self.request.acks not in VALID_ACKS:
            return Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
        return None if records else Refusal(ErrorCode.NONE)  # an empty set of messages

    def _append_to(
        self, partition: Partition, row: Row, checked: Buffer | PreparedSet | None
    ) -> AppendResult:
        if isinstance(checked, PreparedSet):
            result = partition.log.append_set(checked)
            partition.advance_to(result)
            return result
        data = row.data.records if checked is None else checked
        assert data is not None
        if checked is not None:
            terms = CHECKED
        else:
            terms = PRODUCED if self.context.version >= BATCHES_FIRST_VERSION else PRODUCED_SETS
        if row.batch is None:
            return partition.append(data, terms)
        return append_in_transaction(partition, data, row.batch, row.guard, terms)

    def _appended(self, row: Row, partition: Partition, result: AppendResult) -> None:
        """Count records that are in the log, and make their response."""
        self.context.node.metrics.produced(row.name, row.data.records or b"", result)
        row.answer = PartitionProduceResponse(
            index=row.data.index,
            error_code=0,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
            current_leader=_NO_LEADER,
        )
        if partition.must_wait(result, self.request.acks):
            self.waiting.append((row.answer, partition.visible(result.last_offset + 1)))

    async def _append_long(self, row: Row) -> None:
        """Append a row once a thread has checked it.

        Where the topic or its settings change meanwhile, or others append before a message set, it
        is checked again; after some vain checks what would change waits.
        """
        for _ in range(FREE_CHECKS):
            if await self._check_and_append(row, is_alone=False):
                return
        while True:
            holds = self.context.node.partitions.holds
            async with holds.hold([row.name], stops_appends=True):
                if await self._check_and_append(row, is_alone=True):
                    return

    async def _check_and_append(self, row: Row, *, is_alone: bool) -> bool:
        """Check a row in a thread and append it; False where it must be checked again."""
        node, name, version = self.context.node, row.name, self.context.version
        info, partition = node.topics.find(name), None
        if version >= TOPIC_IDS_FIRST_VERSION and (
            info is None or info.topic_id != row.topic.topic_id
        ):
            row.answer = refused(row.data.index, ErrorCode.UNKNOWN_TOPIC_ID)
            return True
        try:
            partition = node.partitions.get(name, row.data.index)
            log, records = partition.log, row.data.records
            checked: Buffer | PreparedSet
            if version < BATCHES_FIRST_VERSION:
                checked = await node.long_checks.run(log.check_set, records)
            else:
                checked = await node.long_checks.run(_checked_copy, log, records)
            while not is_alone and node.partitions.holds.stops_appends([name]):
                await node.partitions.holds.wait([name])
            if node.topics.find(name) != info:
                return False
            self.append_row(row, checked)
        except LongCheck:
            return False
        except TidelogError as error:
            row.answer = failed(partition, row.data.index, error)
        return True

    # -- acknowledged ------------------------------------------------------------------------

    async def complete(self) -> ProduceResponse | None:
        """Append what is left by slices, others first, then what takes long; respond.

        Topics may be locked, deleted or created anew meanwhile. The response comes once readers may
        see the records; None for acks=0.

        Raises:
            Unanswered: With acks=0, where a partition refused its records.
        """
        while self.left:
            await asyncio.sleep(0)
            await self._wait_for_holds()
            self.append_slice()
        for row in self.long:
            await self._append_long(row)
        if self.request.acks == 0:
            self._ensure_appended()
            return None
        if self.waiting:
            timers = self.context.node.timers
            await _wait_until_visible(self.waiting, timers, self.request.timeout_ms)
        topics: list[TopicProduceResponse] = []
        last = None
        for row in self.rows:
            if row.topic is not last:
                last = row.topic
                topics.append(
                    TopicProduceResponse(
                        name=last.name, topic_id=last.topic_id, partition_responses=[]
                    )
                )
            topics[-1].partition_responses.append(row.answer)
        return ProduceResponse(responses=topics)

    def _ensure_appended(self) -> None:
        for row in self.rows:
            code = row.answer.error_code
            if code:
                raise Unanswered(
                    f"{row.topic.name}-{row.answer.index}: error {code} for"
                    f" {self.context.client_id}, which wants no answer (acks=0)",
                    code,
                )


async def _wait_until_visible(
    waiting: Sequence[tuple[PartitionProduceResponse, Reply[ErrorCode]]],
    timers: Timers,
    timeout_ms: int,
) -> None:
    """Wait until readers see the records; the rest is answered as timed out, as in Kafka."""

    def time_out() -> None:
        for _, is_visible in waiting:
            is_visible.try_complete(ErrorCode.REQUEST_TIMED_OUT)

    timer = timers.after(max(timeout_ms, 0), time_out)
    try:
        for answer, is_visible in waiting:
            code = await is_visible
            if code:
                answer.error_code = code
                answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
    finally:
        timer.cancel()


async def produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append each partition's records.

    Raises:
        Unanswered: With acks=0, where a partition refused its records.
    """
    plan = AppendPlan(context, request, rows_of(context, request))
    if not plan.is_ready():
        await plan.make_ready()
    plan.append_slice()
    return await plan.complete()


# -- checks before the log's ----------------------------------------------------------------------


def _error_of(context: RequestContext, topic: str, records: Buffer | None) -> int:  # noqa: PLR0911
    """The error that records get before the log sees them; 0 for none.

    As Kafka took it from clients that know no record batches, a set of no messages is no error; a
    set of batches is one.

    Raises:
        CorruptBatch: Their frames can't be right.
        UnsupportedCompression: A codec that nobody defined, in an old version.
    """
    if records is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's code: it comes to nothing there
    version = context.version
    if version < ZSTD_FIRST_VERSION or not is_one_batch(records):
        batches = walk(records)
        first = next(batches, None)
        if version < BATCHES_FIRST_VERSION:
            if first is None:
                return ErrorCode.INVALID_RECORD if records else 0
            if first.magic == MAGIC_2:
                return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        elif first is None or first.magic != MAGIC_2:
            return ErrorCode.INVALID_RECORD
        elif version < ZSTD_FIRST_VERSION and first.codec is Codec.ZSTD:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        elif first.size_bytes < len(records) and next(batches, None) is not None:
            return ErrorCode.INVALID_RECORD
    return _refusal_to(context, topic)


def is_one_batch(records: Buffer) -> bool:
    """Whether one whole batch of format 2 fills them, as clients send it: as a walk says."""
    size_bytes = len(records)
    if size_bytes < HEADER_SIZE or records[MAGIC_AT] != MAGIC_2:
        return False
    return int.from_bytes(records[LENGTH_AT:LOG_OVERHEAD], "big") + LOG_OVERHEAD == size_bytes


def _refusal_to(context: RequestContext, topic: str) -> int:
    """The error of whoever may not write there; 0 where he may."""
    if context.node.topics.is_internal(topic) and context.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return 0


def has_transactional_records(batches: Iterable[Buffer | None]) -> bool:
    """Whether the first batch of any of these records is of format 2 and transactional.

    Raises:
        CorruptBatch: A frame that can't be: as in Kafka all of the request is refused for it.
    """
    for records in batches:
        if records is None or frame_size(records, 0, len(records)) is None:
            continue
        is_marked = records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
        if is_marked and records[MAGIC_AT] == MAGIC_2:
            return True
    return False


def transactional_batch(records: Buffer) -> RecordBatch | None:
    """The first batch if it is part of a transaction, else None."""
    with suppress(CorruptBatch):
        first = next(walk(records), None)
        if isinstance(first, RecordBatch) and first.is_transactional and first.has_producer_id:
            return first
    return None


def _checked_copy(log: Log, records: Buffer) -> Buffer:
    """Records as a log is to append them; `records` stay as they came, for a second check."""
    return log.check_append(bytearray(records))


def refusal_of(code: ErrorCode, version: int) -> Refusal:
    """Return the coordinator's error as a refusal of Produce."""
    error = known_error(code, knows_abortable=version >= ABORTABLE_SINCE)
    if error is ErrorCode.INVALID_TXN_STATE:
        return Refusal(error, "Partition was not added to the transaction")
    if error in _RETRIED:
        reason = "Unable to verify the partition has been added to the transaction."
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, f"{reason} Underlying error: {error.name}")
    return Refusal(error)


def known_error(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Return the coordinator's error as a producer gets it: some have another name there."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code


def refused(index: int, code: int, reason: str | None = None) -> PartitionProduceResponse:
    """The answer about a partition whose records are not taken."""
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=reason
    )


def failed(
    partition: Partition | None, index: int, error: TidelogError
) -> PartitionProduceResponse:
    """Return an error as Kafka's code; refused records and a clock jump are explained.

    Args:
        partition: Whose log raised it; None where there is no such partition.
        index: The partition's number.
        error: The error.
    """
    code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
    answer = refused(index, code)
    if partition is None:
        return answer
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


def _topic_name_of(context: RequestContext, topic: TopicProduceData) -> str | None:
    """The topic's name, None where its id is nobody's."""
    if context.version < TOPIC_IDS_FIRST_VERSION:
        return topic.name
    info = context.node.topics.find_by_id(topic.topic_id)
    return None if info is None else info.name


# -- rows of requests that repeat --------------------------------------------------------------


def _may_repeat(version: int, request: ProduceRequest) -> bool:
    """Whether it has records for one partition, in batches of format 2, and wants a response."""
    topics = request.topic_data
    is_one = len(topics) == 1 and len(topics[0].partition_data) == 1
    return is_one and version >= BATCHES_FIRST_VERSION and request.acks != 0


# Stands for the topic of a row until its response names the topic.
_NO_TOPIC: Final = TopicProduceData(name="", topic_id=NO_UUID, partition_data=[])


def _answer_rows(
    context: RequestContext, request: ProduceRequest, topics: Sequence[TopicRows]
) -> RowAnswers | Awaitable[ProduceResponse | None] | None:
    """Append one plain batch to a partition that is open; None for anything else."""
    ((name, topic_id, rows),) = topics
    ((index, records),) = cast("Sequence[tuple[int, Buffer]]", rows)
    if not is_one_batch(records) or records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT:
        return None
    partitions = context.node.partitions
    if partitions.holds or partitions.find_used(name, index) is None:
        return None
    row = Row(_NO_TOPIC, PartitionProduceData(index=index, records=records))
    row.name = name
    plan = AppendPlan(context, request, [row])
    plan.append_row(plan.left.pop())
    if plan.long or plan.waiting or row.answer.error_code:
        row.topic = TopicProduceData(
            name=name if topic_id is None else "", topic_id=topic_id or NO_UUID, partition_data=[]
        )
        return plan.complete()
    answer = row.answer
    facts = index, 0, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
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
        return has_transactional_records(
            data.records for topic in request.topic_data for data in topic.partition_data
        )
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
