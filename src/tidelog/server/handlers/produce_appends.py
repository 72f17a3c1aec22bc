"""Produce: one partition's records go into its log, or are refused.

Checks come in Kafka's order: the records as they were framed, then what the log says.

Source: Kafka's protocol guide, API 0; KIP-467 (errors by record).
"""

from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.error_codes import ErrorCode
from tidelog.errors import ClockJump, RefusedRecords, TidelogError
from tidelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
)
from tidelog.record.batch import HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD, MAGIC_2, MAGIC_AT
from tidelog.record.views import walk
from tidelog.server.handlers.produce_transactions import Verdicts, append_verified
from tidelog.server.node import Node
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.storage.appends import AppendResult, LongCheck
from tidelog.storage.legacy_sets import PreparedSet
from tidelog.types import Buffer, Codec

if TYPE_CHECKING:
    import asyncio


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
    is_shown: "asyncio.Future[int]"


class LongAppend(NamedTuple):
    """Records that take long to check: of which topic, what, and the answer to fill in."""

    topic: str
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
        result = _write(common, partition, data.records, is_checked=is_checked, prepared=prepared)
        context.node.metrics.produced(topic, data.records, result)
    except TidelogError as error:
        return failed(partition, index, error)
    except LongCheck:
        if prepared is not None:
            raise
        return _postponed(common, topic, data)
    return appended(common, partition, index, result)


def _write(
    common: Request,
    partition: Partition,
    records: Buffer,
    *,
    is_checked: bool,
    prepared: PreparedSet | None,
) -> AppendResult:
    """Append records in the way that fits them; arguments and errors as `append`."""
    if prepared is not None:
        return partition.append_set(prepared)
    if common.verdicts is not None:
        return append_verified(partition, records, common.verdicts, is_checked=is_checked)
    is_legacy = common.context.version < BATCHES_FIRST_VERSION
    result = None if is_legacy or is_checked else partition.append_plain(records)
    if result is not None:
        return result
    return partition.append(
        records,
        owned=True,
        takes_legacy=is_legacy,
        is_bounded=not is_checked,
        is_checked=is_checked,
    )


def _postponed(common: Request, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index=data.index)
    common.long.append(LongAppend(topic, data, answer))
    return answer


async def append_long(common: Request) -> None:
    """Append what took long to check, once a thread has checked it; fill in the answers."""
    node = common.context.node
    for topic, data, answer in common.long:
        said = await _append_checked(node, common, topic, data)
        for name in fields(said):
            setattr(answer, name.name, getattr(said, name.name))
        for number, waiting in enumerate(common.waiting):
            if waiting.answer is said:
                common.waiting[number] = waiting._replace(answer=answer)


async def _append_checked(
    node: Node, common: Request, topic: str, data: PartitionProduceData
) -> PartitionProduceResponse:
    try:
        partition = node.partitions.get(topic, data.index)
    except TidelogError as error:
        return refused(data.index, error.code or ErrorCode.UNKNOWN_SERVER_ERROR)
    try:
        if common.context.version < BATCHES_FIRST_VERSION:
            return await _append_set(common, topic, data)
        records = await node.long_checks.run(partition.log.check_append, data.records)
    except TidelogError as error:
        return failed(partition, data.index, error)
    while node.partitions.holds and node.partitions.holds.stops_appends([topic]):
        await node.partitions.holds.wait([topic])
    checked = PartitionProduceData(index=data.index, records=records)
    return append(common, topic, checked, is_checked=True)


async def _append_set(
    common: Request, topic: str, data: PartitionProduceData
) -> PartitionProduceResponse:
    """Append a message set that a thread has checked.

    Where others append meanwhile, it may have to be checked again: then they have to wait.

    Raises:
        TidelogError: It is refused.
    """
    node = common.context.node
    holds = node.partitions.holds

    async def attempt(*, is_alone: bool) -> PartitionProduceResponse:
        partition = node.partitions.get(topic, data.index)
        prepared = await node.long_checks.run(partition.log.check_set, data.records)
        while not is_alone and holds.stops_appends([topic]):
            await holds.wait([topic])
        return append(common, topic, data, prepared=prepared)

    for _ in range(FREE_CHECKS):
        with suppress(LongCheck):
            return await attempt(is_alone=False)
    while True:
        async with holds.hold([topic], stops_appends=True):
            with suppress(LongCheck):
                return await attempt(is_alone=True)


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
        common.waiting.append(Waiting(answer, partition.when_shown(result.last_offset + 1)))
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
