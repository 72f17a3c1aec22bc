"""Produce: append a request's batches to the logs of their partitions.

`AppendPlan` takes the records from the request to the logs, in four steps:

1. Plan (`rows_of`): make one row for each partition. If a request names a partition twice, only the
   last entry's records are appended, as in Kafka. Exception: if the records of any entry for the
   partition are refused, nothing is appended to the partition, and the response has the error of
   the refused records. In this case Kafka silently appends the last valid records.
2. Ready: wait until partitions are open, no lock stops appends, and the coordinator has confirmed
   that partitions are in their transactions. Nearly all requests have nothing to wait for.
3. Append: append the rows in slices, so that other requests can proceed. Plain rows are appended in
   groups: each step is made for the whole group (decision 0022).
4. Acknowledge: respond at once, or when readers may see the records (`Partition.must_wait`). A
   request with acks=0 gets no response. If such a request is refused, the connection is closed.

The checks are made in Kafka's order: first the checks of the whole request; then, for each
partition, its existence, the framing of its records, its transaction and acks; then the checks of
the log. An error of one partition does not affect the others.

Before a partition's first batch of a transaction is appended, the coordinator must confirm that the
partition is in the transaction. From version 12 of Produce on, the coordinator adds the partition
if the transaction does not have it yet. Later batches of the transaction need no confirmation,
because the transaction is already open in the partition's log.

The log validates the batches (`storage/log/validator.py`). The `Partition` decides when readers see
the batches.

Source: Kafka's protocol guide, API 0; Kafka 4.3's KafkaApis.handleProduceRequest,
ReplicaManager.handleProduceAppend, AddPartitionsToTxnManager; KIP-467 (errors by record), KIP-516
(topic ids), KIP-890.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

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
from tidelog.server.api.guards import Access, Denied, Guarded, failed_item
from tidelog.server.partitions.partition import Guard, Partition, append_in_transaction
from tidelog.server.runtime.errors import NOT_SERVED, Refusal, UnansweredRequest, code_of
from tidelog.server.runtime.loop import Timers
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.operations import Operation
from tidelog.storage.log.append_types import AppendResult, AppendTerms, LongCheck
from tidelog.storage.log.log import Log, append_together
from tidelog.storage.log.message_sets import PreparedSet
from tidelog.types import Buffer, Codec, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

# First version of Produce with each feature.
BATCHES_FIRST_VERSION: Final = 3  # records are batches
ZSTD_FIRST_VERSION: Final = 7  # batches may be compressed with zstd
ABORTABLE_SINCE: Final = 11  # clients know the error TRANSACTION_ABORTABLE
ADDS_SINCE: Final = 12  # producing to a partition adds the partition to the transaction
TOPIC_IDS_FIRST_VERSION: Final = 13  # topics have ids

VALID_ACKS: Final = frozenset({-1, 0, 1})

# Client id of Kafka's admin client. Only clients with this id may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"

# Errors from which old producers would not recover. Instead of such an error, producers of all
# versions get the retriable error NOT_ENOUGH_REPLICAS.
_RETRIED: Final = NOT_SERVED | {ErrorCode.CONCURRENT_TRANSACTIONS}

# Errors for which Kafka's response has no log start offset.
_WITHOUT_START: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)

# Value of `current_leader` in responses that name no leader. All these responses share this
# object, so it must not be changed.
_NO_LEADER: Final = LeaderIdAndEpoch()

# `AppendTerms` of three kinds of appends: record batches of a client, message sets of a client, and
# batches that a thread has already checked.
PRODUCED: Final = AppendTerms(owned=True, is_bounded=True)
PRODUCED_SETS: Final = AppendTerms(owned=True, takes_legacy=True, is_bounded=True)
CHECKED: Final = AppendTerms(owned=True, is_checked=True)

# Maximum number of times that a row is checked without a lock on its topic. During later checks the
# topic is locked, so other appends to the topic wait.
FREE_CHECKS: Final = 2

# Maximum number of rows, and maximum size of their records in bytes, in a group that is appended
# together, so that a group takes very little time. A group has at least one row, even if the
# records of this row have more bytes.
GROUP_PARTITIONS: Final = 16
GROUP_BYTES: Final = 1 << 20

# Time in ms after which a slice of appends ends. The appends of most requests need far less time.
SLICE_MS: Final = 20


class Row:
    """Records for one partition, and the progress of their append.

    Attributes:
        topic: The topic as the request names it.
        data: The partition's number and its records. The records are None while the response waits.
        response: The partition's response, once the records are appended or refused.
        name: The topic's name; "" if no topic has the requested id.
        partition: The partition, if it is open and in use.
        is_plain: Whether only the log has to check the records. Conditions: the records are one
            batch of format 2 outside of transactions; the partition is in use; the request's
            version, client and acks require no further check.
        batch: The first batch of the records, if this batch belongs to a transaction.
        guard: The guard of the row's transaction, if the coordinator has to verify this transaction
            before the append.
        refusal: The coordinator's refusal of the records; None if it accepts them.
    """

    __slots__ = (
        "batch",
        "data",
        "guard",
        "is_plain",
        "name",
        "partition",
        "refusal",
        "response",
        "topic",
    )

    response: PartitionProduceResponse

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
    """Return a row for each partition, grouped by topic, in the request's order.

    If a request names a partition twice, the row has the records of the last entry. Exception: if
    the records of any entry are refused, the row has the last refused records.
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
    """Whether records are refused before they reach the log."""
    try:
        return _error_of(context, _topic_name_of(context, topic) or "", data.records) != 0
    except TidelogError:
        return True


class AppendPlan:
    """Appends the records of one request: makes rows ready, appends them in slices, and responds.

    Attributes:
        context: Context of the request.
        request: The request, which has acks, the timeout and the transactional id.
        rows: All rows, grouped by topic.
        remaining: Rows that the plan has not tried to append yet.
        long: Rows whose check takes long. They are appended after all other rows.
        waiting: Responses that must wait until readers see the records.
    """

    def __init__(self, context: RequestContext, request: ProduceRequest, rows: list[Row]) -> None:
        self.context = context
        self.request = request
        self.rows = rows
        self.remaining = deque(rows)
        self.long: list[Row] = []
        self.waiting: list[tuple[PartitionProduceResponse, Reply[ErrorCode]]] = []

    # -- ready -------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether all rows can be appended or refused without waiting."""
        partitions, is_plain = self.context.node.partitions, self._find_partitions()
        if partitions.holds and partitions.holds.stops_appends(self._topic_names()):
            return False
        return is_plain or (
            not partitions.unopened(self._remaining_partitions()) and not self._begin_transactions()
        )

    async def make_ready(self) -> None:
        """Wait for locks, for partitions to be opened, and for the transaction coordinator."""
        node, is_opened = self.context.node, False
        while True:
            has_waited = await self._wait_for_holds()
            missing = node.partitions.unopened(self._remaining_partitions())
            if not missing or (is_opened and not has_waited):
                break
            await node.partitions.open_beside(missing, to_write=True)
            is_opened = True
        if self._begin_transactions():
            await self._verify_transactions()
            await self._wait_for_holds()

    def _find_partitions(self) -> bool:
        """Look up the partitions of the remaining rows; return whether all rows are plain."""
        context, are_all_plain = self.context, True
        find, version = context.node.partitions.find_used, context.version
        topic, name, may_be_plain = None, "", False
        for row in self.remaining:
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

    def _remaining_partitions(self) -> Iterator[tuple[str, int]]:
        return ((row.name, row.data.index) for row in self.remaining if row.name)

    def _topic_names(self) -> set[str]:
        return {row.name for row in self.remaining if row.name}

    async def _wait_for_holds(self) -> bool:
        """Wait until no lock stops appends, and look up the partitions.

        Return whether there was a lock.
        """
        holds, has_waited = self.context.node.partitions.holds, False
        self._find_partitions()
        while holds and holds.stops_appends(self._topic_names()):
            await holds.wait(self._topic_names())
            self._find_partitions()
            has_waited = True
        return has_waited

    # -- transactions ------------------------------------------------------------------------

    def _begin_transactions(self) -> bool:
        """Find the rows of transactions; return whether the coordinator has to verify some of them.

        A row gets a guard if its transaction is not open yet in the partition's log, so that the
        coordinator has to verify the row. All rows are refused if a frame is damaged, if the
        request has records of transactions but no transactional id, or if the records of
        transactions have several producers.
        """
        context, partitions = self.context, self.context.node.partitions
        try:
            if not has_transactional_records(row.data.records for row in self.remaining):
                return False
        except CorruptBatch as error:
            return self._refuse_all(ErrorCode.CORRUPT_MESSAGE, str(error))
        if self.request.transactional_id is None:
            return self._refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        batches: list[tuple[Row, RecordBatch]] = []
        for row in self.remaining:
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
        """Let the coordinator verify the rows that hold a guard."""
        rows = {
            TopicPartition(row.name, row.data.index): (row, row.batch)
            for row in self.remaining
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
                rows[partition][0].refusal = verification_refusal(code, version)

    def _refuse_all(self, code: int, reason: str | None = None) -> bool:
        """Refuse all remaining rows; return False, because nothing is left to verify."""
        for row in self.remaining:
            row.response = refused(row.data.index, code, reason)
        self.remaining.clear()
        return False

    # -- append ------------------------------------------------------------------------------

    def append_slice(self) -> None:
        """Append rows until no row is left or `SLICE_MS` have passed.

        Plain rows are appended in groups.
        """
        rows, now_ms = self.remaining, self.context.node.env.clock.monotonic_ms
        end_ms = now_ms() + SLICE_MS if len(rows) > 1 else 0
        while rows:
            group = self._next_group()
            if len(group) > 1:
                self._append_group(group)
            else:
                self.append_row(group[0])
            if rows and now_ms() >= end_ms:
                break

    def _next_group(self) -> list[Row]:
        """Take the rows to append together: several plain rows, or one row of any kind."""
        rows = self.remaining
        group = [rows.popleft()]
        if group[0].is_plain:
            size_bytes = len(group[0].data.records or b"")
            while rows and rows[0].is_plain and len(group) < GROUP_PARTITIONS:
                size_bytes += len(rows[0].data.records or b"")
                if size_bytes > GROUP_BYTES:
                    break
                group.append(rows.popleft())
        return group

    def _append_group(self, rows: Sequence[Row]) -> None:
        """Append a group of plain rows, and make each step for all rows before the next step.

        Watchers are called after all rows of the group are appended, so a watcher that acts at once
        finds no unfinished append.
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
                    row.response = failed(partition, row.data.index, error)
            elif isinstance(outcome, TidelogError):
                row.response = failed(partition, row.data.index, outcome)
            else:
                self.long.append(row)

    def append_row(self, row: Row, checked: Buffer | PreparedSet | None = None) -> None:
        """Append one row, refuse it, or add it to `long` if its check takes long.

        Args:
            row: The row.
            checked: The records as checked by `Log.check_append` or `Log.check_set`; None if
                unchecked.

        Raises:
            LongCheck: `checked` is a message set that has to be checked again.
        """
        context, index, partition = self.context, row.data.index, row.partition
        try:
            if not row.is_plain or checked is not None:
                partition = None
                if not row.name and context.version >= TOPIC_IDS_FIRST_VERSION:
                    row.response = refused(index, ErrorCode.UNKNOWN_TOPIC_ID)
                    return
                partition = context.node.partitions.get(row.name, index)
                refusal = self._refusal_of(row)
                if refusal is not None:
                    row.response = refused(index, refusal.error_code, refusal.message)
                    return
            assert partition is not None
            self._appended(row, partition, self._append_to(partition, row, checked))
        except TidelogError as error:
            row.response = failed(partition, index, error)
        except LongCheck:
            if checked is not None:
                raise
            self.long.append(row)

    def _refusal_of(self, row: Row) -> Refusal | None:
        """Return the refusal of a row's records; None if they are to be appended.

        An empty message set is refused with the code NONE, so that nothing is appended and the
        response has no error. This method raises the same errors as `_error_of`.
        """
        records = row.data.records
        code = _error_of(self.context, row.name, records)
        if code:
            return Refusal(code)
        if row.refusal is not None:
            return row.refusal
        if self.request.acks not in VALID_ACKS:
            return Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
        return None if records else Refusal(ErrorCode.NONE)  # an empty message set

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
        """Count appended records, and make the response of the partition."""
        self.context.node.metrics.produced(row.name, row.data.records or b"", result)
        row.response = PartitionProduceResponse(
            index=row.data.index,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
            current_leader=_NO_LEADER,
        )
        if partition.must_wait(result, self.request.acks):
            self.waiting.append((row.response, partition.visible(result.last_offset + 1)))

    async def _append_long(self, row: Row) -> None:
        """Append a row after a thread has checked it.

        The row is checked again if the topic or its settings change during the check. A row with a
        message set is also checked again if other records are appended to the log during the check.
        After `FREE_CHECKS` failed attempts, the topic is locked: other appends to the topic and the
        topic's deletion wait until this row is done.
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
        """Check a row in a thread, then append or refuse it.

        Return False if the row must be checked again.
        """
        node, name, version = self.context.node, row.name, self.context.version
        info, partition = node.topics.find(name), None
        if version >= TOPIC_IDS_FIRST_VERSION and (
            info is None or info.topic_id != row.topic.topic_id
        ):
            row.response = refused(row.data.index, ErrorCode.UNKNOWN_TOPIC_ID)
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
            row.response = failed(partition, row.data.index, error)
        return True

    # -- acknowledge -----------------------------------------------------------------------------

    async def complete(self) -> ProduceResponse | None:
        """Append the remaining rows in slices, the rows of `long` last, and return the response.

        Topics may be locked, deleted or recreated between two slices. The response is returned
        right after the last append, or when readers may see the records (`Partition.must_wait`).
        With acks=0, the result is None.

        Raises:
            UnansweredRequest: The request has acks=0, and the records of a partition were refused.
        """
        while self.remaining:
            await asyncio.sleep(0)
            await self._wait_for_holds()
            self.append_slice()
        for row in self.long:
            await self._append_long(row)
        if self.request.acks == 0:
            self._ensure_appended()
            return None
        if self.waiting:
            for row in self.rows:
                row.batch = row.data.records = None  # free the request's buffer
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
            topics[-1].partition_responses.append(row.response)
        return ProduceResponse(responses=topics)

    def _ensure_appended(self) -> None:
        for row in self.rows:
            code = row.response.error_code
            if code:
                raise UnansweredRequest(
                    f"{row.name or row.topic.topic_id}-{row.response.index}: error {code} for"
                    f" client {self.context.client_id} with acks=0",
                    code,
                )


async def _wait_until_visible(
    waiting: Sequence[tuple[PartitionProduceResponse, Reply[ErrorCode]]],
    timers: Timers,
    timeout_ms: int,
) -> None:
    """Wait until readers see the records.

    After the timeout, partitions whose records are not visible get REQUEST_TIMED_OUT, as in Kafka.
    """

    def time_out() -> None:
        for _, is_visible in waiting:
            is_visible.try_complete(ErrorCode.REQUEST_TIMED_OUT)

    timer = timers.after(max(timeout_ms, 0), time_out)
    try:
        for response, is_visible in waiting:
            code = await is_visible
            if code:
                response.error_code = code
                response.base_offset = response.log_append_time_ms = response.log_start_offset = -1
    finally:
        timer.cancel()


async def produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append each partition's records.

    Raises:
        UnansweredRequest: The request has acks=0, and the records of a partition were refused.
    """
    plan = AppendPlan(context, request, rows_of(context, request))
    if not plan.is_ready():
        await plan.make_ready()
    plan.append_slice()
    return await plan.complete()


# -- checks that precede the log's own checks -----------------------------------------------------


def _error_of(  # noqa: PLR0911 - one return for each rule, in Kafka's order
    context: RequestContext, topic: str, records: Buffer | None
) -> int:
    """Return the error code of the checks that are made before the log's checks; 0 for no error.

    Versions 0 to 2 of Produce are older than record batches (format 2). In these versions an empty
    message set is no error, as in Kafka; but a record batch is an error, unlike in Kafka.

    Raises:
        CorruptBatch: The frames are damaged.
        UnsupportedCompression: In a version from 3 to 6, the first batch has an undefined codec.
    """
    if records is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's code for null records
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
    """Whether the records are exactly one whole batch of format 2, as clients usually send."""
    size_bytes = len(records)
    if size_bytes < HEADER_SIZE or records[MAGIC_AT] != MAGIC_2:
        return False
    return int.from_bytes(records[LENGTH_AT:LOG_OVERHEAD], "big") + LOG_OVERHEAD == size_bytes


def _refusal_to(context: RequestContext, topic: str) -> int:
    """Return INVALID_TOPIC_EXCEPTION for an internal topic; 0 for others and for admin clients."""
    if context.node.topics.is_internal(topic) and context.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return 0


def has_transactional_records(batches: Iterable[Buffer | None]) -> bool:
    """Whether the records of any partition begin with a transactional batch of format 2.

    Raises:
        CorruptBatch: A frame is damaged. As in Kafka, the whole request is refused.
    """
    for records in batches:
        if records is None or frame_size(records, 0, len(records)) is None:
            continue
        is_marked = records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
        if is_marked and records[MAGIC_AT] == MAGIC_2:
            return True
    return False


def transactional_batch(records: Buffer) -> RecordBatch | None:
    """Return the first batch if it is part of a transaction and has a producer id.

    Return None for any other first batch, and for a damaged batch.
    """
    with suppress(CorruptBatch):
        first = next(walk(records), None)
        if isinstance(first, RecordBatch) and first.is_transactional and first.has_producer_id:
            return first
    return None


def _checked_copy(log: Log, records: Buffer) -> Buffer:
    """Return the records as the log would append them.

    The check works on a copy of `records`, because `records` may have to be checked again.
    """
    return log.check_append(bytearray(records))


def verification_refusal(code: ErrorCode, version: int) -> Refusal:
    """Return the refusal with which Produce reports the coordinator's error."""
    error = reported_error(code, knows_abortable=version >= ABORTABLE_SINCE)
    if error is ErrorCode.INVALID_TXN_STATE:
        return Refusal(error, "Partition was not added to the transaction")
    if error in _RETRIED:
        reason = "Unable to verify the partition has been added to the transaction."
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, f"{reason} Underlying error: {error.name}")
    return Refusal(error)


def reported_error(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Return the code with which Produce and TxnOffsetCommit report the coordinator's error.

    PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH. TRANSACTION_ABORTABLE becomes INVALID_TXN_STATE
    unless `knows_abortable`.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code


def refused(index: int, code: int, reason: str | None = None) -> PartitionProduceResponse:
    """Return the response for a partition whose records are refused."""
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=reason
    )


def failed(
    partition: Partition | None, index: int, error: TidelogError
) -> PartitionProduceResponse:
    """Return a partition's response to a failed append.

    The response has an error message only for refused records and for a clock jump.

    Args:
        partition: The partition whose log raised the error; None if the partition doesn't exist or
            can't be opened.
        index: The partition's number.
        error: The error.
    """
    code = code_of(error)
    response = refused(index, code)
    if partition is None:
        return response
    if code not in _WITHOUT_START:
        response.log_start_offset = partition.log.log_start_offset
    if isinstance(error, ClockJump):
        response.error_message = str(error)
    if isinstance(error, RefusedRecords) and error.record_errors:
        response.error_message = str(error)
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.index, batch_index_error_message=each.reason)
            for each in error.record_errors
        ]
    return response


def _topic_name_of(context: RequestContext, topic: TopicProduceData) -> str | None:
    """Return the name of a request's topic; None if no topic has the requested id."""
    if context.version < TOPIC_IDS_FIRST_VERSION:
        return topic.name
    info = context.node.topics.find_by_id(topic.topic_id)
    return None if info is None else info.name


# -- rows of repeated requests -----------------------------------------------------------------


def _may_repeat(version: int, request: ProduceRequest) -> bool:
    """Whether a request has record batches for exactly one partition, and requests a response."""
    topics = request.topic_data
    is_one = len(topics) == 1 and len(topics[0].partition_data) == 1
    return is_one and version >= BATCHES_FIRST_VERSION and request.acks != 0


# Empty topic of a row whose response is built from a template; the template already names the
# topic.
_NO_TOPIC: Final = TopicProduceData(name="", topic_id=NO_UUID, partition_data=[])


def _answer_rows(
    context: RequestContext, request: ProduceRequest, topics: Sequence[TopicRows]
) -> RowAnswers | Awaitable[ProduceResponse | None] | None:
    """Append one batch of format 2, outside of transactions, to a partition that is in use.

    Append nothing and return None if the records are not exactly one batch of this kind, if the
    partition is not in use, or if any topic is locked.
    """
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
    plan.append_row(plan.remaining.pop())
    if plan.long or plan.waiting or row.response.error_code:
        row.topic = TopicProduceData(
            name=name if topic_id is None else "", topic_id=topic_id or NO_UUID, partition_data=[]
        )
        return plan.complete()
    response = row.response
    facts = index, 0, response.base_offset, response.log_append_time_ms, response.log_start_offset
    return [[facts]], None, None


PRODUCE_ROWS: Final = RowFunctions(Operation.WRITE, _may_repeat, _answer_rows)


def guard_produce(access: Access, request: ProduceRequest) -> Guarded[ProduceRequest]:
    """Require WRITE on each topic.

    If records belong to a transaction, also require a transactional id and WRITE on this id. With
    acks=0 a denial closes the connection, after the allowed records were appended.
    """
    allowed, denied, code = _to_produce(access, request)
    if not denied:
        return request, None
    rest = replace(request, topic_data=allowed) if allowed else None
    if request.acks == 0:

        def close(_none: object) -> ProduceResponse:
            raise UnansweredRequest(f"error {code} for a request with acks=0", code)

        return rest, Denied(close)
    refusals = [failed_item(TopicProduceResponse, topic, code) for topic in denied]
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
    allowed, denied = access.split_topics(request.topic_data, Operation.WRITE)
    return allowed, denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _is_transactional(request: ProduceRequest) -> bool:
    try:
        return has_transactional_records(
            data.records for topic in request.topic_data for data in topic.partition_data
        )
    except CorruptBatch:
        return False  # the handler refuses the whole request
