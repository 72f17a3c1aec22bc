"""ShareFetch and ShareAcknowledge: a member acquires records and acknowledges them.

The acknowledgements in a ShareFetch are processed before the member acquires more records. A
member's ShareFetch and ShareAcknowledge requests belong to the same share session. Each fetch of a
session begins with a different partition, in turn. A fetch waits until there are enough records for
a response, or until its wait time is over. Then it acquires records. At most one fetch
reads a share partition at a time. Other fetches of the partition wait until this fetch has
finished, and are woken one after the other (`shares.open_partition`). A woken fetch reads only the
partition that woke it. Exception: a fetch that needs more than one byte reads all its partitions.

Source: Kafka's protocol guide, APIs 78 and 79; KIP-932, KIP-1206, KIP-1222; Kafka 4.3's KafkaApis
(handleAcknowledgements, validateAcknowledgementBatches), DelayedShareFetch, ShareFetchUtils.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    AcquiredRecords,
    ShareAcknowledgedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    SharePartitionData,
)
from tidelog.server.api.context import LargeResponse, RequestContext, may_topic
from tidelog.server.api.fetch import limit_bytes
from tidelog.server.api.guards import DENIED_TEXT, Access
from tidelog.server.partitions.fetch_sessions import FIRST_EPOCH, LAST_EPOCH
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.read_failures import log_failure
from tidelog.server.runtime.errors import ID_NOT_HOSTED, NOT_HOSTED, code_of
from tidelog.server.runtime.loop import Slices
from tidelog.server.runtime.reply import Reply
from tidelog.server.security.operations import Operation
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    AckType,
    AcquiredRange,
    AcquireOptions,
)
from tidelog.server.shares.share_partitions import SessionKey, SharedPartition, ShareSession
from tidelog.server.shares.share_reads import Part, ShareRead, read
from tidelog.server.shares.state_topic import ShareKey
from tidelog.storage.segment.segment import ColdRead
from tidelog.types import Buffer, IsolationLevel

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.server.api.node import ClientInfo, Node
    from tidelog.server.partitions.file_pieces import FilePiece
    from tidelog.server.shares.open_partition import OpenSharePartition
    from tidelog.server.shares.share_partitions import SharePartitions


RENEW_SINCE: Final = 2
MEMBER_CHARACTERS_MAX: Final = 36

TEXTS: Final[dict[int, str]] = DENIED_TEXT | {
    ErrorCode.UNKNOWN_SERVER_ERROR: "The broker could not process the request.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: NOT_HOSTED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The state of the share group is temporarily unavailable.",
    ErrorCode.INVALID_REQUEST: "The request has an invalid value or combination of values.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The disk of the partition has failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: ID_NOT_HOSTED,
    ErrorCode.INVALID_RECORD_STATE: "The record is not (or no longer) acquired by this member.",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "The member has no share session.",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "The share session epoch is invalid.",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "The number of share sessions has reached its limit.",
}


@dataclass(frozen=True, slots=True)
class Member:
    """The member that sent a request, with its rights."""

    context: RequestContext
    group_id: str
    member_id: str

    def key_of(self, named: SharedPartition) -> ShareKey:
        """Return the key of a partition in the member's group."""
        return ShareKey(self.group_id, named.topic_id, named.number)

    def find(self, named: SharedPartition) -> Partition | int:
        """Return a partition that the member may read, or an error code."""
        node = self.context.node
        info = node.topics.find_by_id(named.topic_id)
        if info is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not may_topic(node, self.context.connection, Operation.READ, info.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return node.partitions.find(info.name, named.number)

    def names_of(self, named: Iterable[SharedPartition]) -> list[tuple[str, int]]:
        """Return topic name and number of each partition whose topic id is known."""
        find = self.context.node.topics.find_by_id
        infos = ((find(each.topic_id), each.number) for each in named)
        return [(info.name, number) for info, number in infos if info is not None]


def member_of(
    context: RequestContext, group_id: str | None, member_id: str | None
) -> Member | ErrorCode:
    """Return the member that sent a request, or an error code."""
    if group_id is None:
        return ErrorCode.INVALID_REQUEST
    has_rights = context.node.authorizer is not None
    if has_rights and not Access(context).may_group(Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not member_id or len(member_id) > MEMBER_CHARACTERS_MAX:
        return ErrorCode.INVALID_REQUEST
    return Member(context, group_id, member_id)


# -- acknowledgements ----------------------------------------------------------------------------

Acknowledgements = dict[SharedPartition, Sequence[AcknowledgementBatch]]


def acknowledge(
    member: Member, acknowledgements: Acknowledgements, *, is_renewal: bool
) -> dict[SharedPartition, Reply[int]]:
    """Process a member's acknowledgements; return a reply for each partition.

    A reply completes with the error code of the partition's acknowledgements, or with NONE once
    these acknowledgements are durable.
    """
    return {
        named: _acknowledge(member, named, batches, is_renewal=is_renewal)
        for named, batches in acknowledgements.items()
    }


def _acknowledge(
    member: Member,
    named: SharedPartition,
    batches: Sequence[AcknowledgementBatch],
    *,
    is_renewal: bool,
) -> Reply[int]:
    node = member.context.node
    if node.topics.find_by_id(named.topic_id) is None:
        return Reply[int].of(ErrorCode.UNKNOWN_TOPIC_ID)
    most = AckType.RENEW if member.context.version >= RENEW_SINCE else AckType.REJECT
    if not _can_be(batches, most, is_renewal=is_renewal):
        return Reply[int].of(ErrorCode.INVALID_REQUEST)
    partition = member.find(named)
    if isinstance(partition, int):
        return Reply[int].of(partition)
    if not batches:
        return Reply[int].of(ErrorCode.NONE)
    live = node.shares.find(member.key_of(named))
    if live is None:
        return Reply[int].of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return live.acknowledge(member.member_id, _plain(batches)).derive(int)


def _plain(batches: Iterable[AcknowledgementBatch]) -> list[Acknowledgement]:
    return [
        Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
        for each in batches
    ]


def _can_be(batches: Iterable[AcknowledgementBatch], most: int, *, is_renewal: bool) -> bool:
    """Whether the offset ranges are in order and the types are allowed.

    A range of offsets has one acknowledgement type for all offsets, or one type for each offset.
    """
    behind = -1
    for each in batches:
        types = each.acknowledge_types
        size = each.last_offset - each.first_offset + 1
        if size <= 0 or each.first_offset < behind or not types or len(types) not in (1, size):
            return False
        if min(types) < 0 or max(types) > most or (AckType.RENEW in types and not is_renewal):
            return False
        behind = each.last_offset
    return True


_Read = TypeVar("_Read")
Responses = dict[SharedPartition, SharePartitionData]

# Maximum number of partitions whose logs are looked up without yielding the event loop. The logs
# that are not open yet are opened together.
AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class ShareOrder:
    """Options of a fetch that apply to all its partitions.

    Attributes:
        options: Maximum number of records to acquire, whether this maximum is strict, and how
            acquired records are divided into ranges.
        min_bytes: Number of bytes of records for which the fetch waits.
        max_bytes: Limit in bytes for all partitions, divided equally among the partitions that are
            read. The first batch of each partition is returned even if it is larger than the
            partition's share of the limit.
        max_wait_ms: Time to wait, in ms.
        isolation: Isolation level for records of transactions.
    """

    options: AcquireOptions
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation: IsolationLevel


def refusal(named: SharedPartition, code: int) -> SharePartitionData:
    """Return a partition's response with an error."""
    return SharePartitionData(
        partition_index=named.number, error_code=code, error_message=TEXTS.get(code)
    )


class ShareFetching:
    """One ShareFetch: opens its partitions, waits, acquires records and collects the responses.

    Used only in the event loop's thread.
    """

    def __init__(self, member: Member, order: ShareOrder) -> None:
        """Create a fetch that has not read anything yet."""
        self._member = member
        self._node: Node = member.context.node
        self._order = order
        self._live: dict[SharedPartition, OpenSharePartition] = {}
        self._responses: Responses = {}
        self._changed = asyncio.Event()
        self._woken_for: dict[SharedPartition, None] = {}
        self._slices = Slices(self._node.env.clock)
        self._is_over = False
        self._has_news = False
        self.isolation = order.isolation
        self.is_busy = False

    def wake(self, key: ShareKey) -> None:
        """Wake the fetch, because a partition may have records to acquire."""
        self._woken_for[SharedPartition(key.topic_id, key.partition)] = None
        self._changed.set()

    async def run(self, named: Sequence[SharedPartition]) -> Responses:
        """Return the responses of the partitions that have records or an error."""
        rest = await self._open(named)
        if rest:
            if await self._acquire_available(self._live):
                return self._responses
            await self._open(rest, may_stop=False)
        if not self._live and (self._responses or not named):
            return self._responses
        timer = self._node.timers.after(max(self._order.max_wait_ms, 0), self._end_wait)
        try:
            for live in self._live.values():
                live.join(self)
            is_over = await self._acquire_available(self._live)
            while not is_over:
                await self._changed.wait()
                is_over = await self._acquire_available(self._take_woken())
        finally:
            timer.cancel()
            for live in self._live.values():
                live.leave(self)
        return self._responses

    async def _open(
        self, named: Sequence[SharedPartition], *, may_stop: bool = True
    ) -> Sequence[SharedPartition]:
        """Open partitions until a newly opened partition may have enough records for a response.

        Stopping there lets a new group get its first records as soon as one partition is open, as
        in Kafka.

        Returns:
            The partitions that still have to be opened; none if `may_stop` is False, because then
            this method opens all partitions.
        """
        for start in range(0, len(named), AT_ONCE):
            piece = named[start : start + AT_ONCE]
            await self._node.partitions.ensure_open(self._member.names_of(piece))
            for number, each in enumerate(piece, start + 1):
                if await self._open_one(each) and may_stop:
                    return named[number:]
                await self._slices.rest()
        return ()

    async def _open_one(self, named: SharedPartition) -> bool:
        """Open a partition; if this fails, store the error.

        Return whether the partition was not open before and may have enough records for a response.
        """
        node, key = self._node, self._member.key_of(named)
        partition = self._member.find(named)
        is_new = node.shares.find(key) is None
        live: OpenSharePartition | int = (
            partition if isinstance(partition, int) else await node.shares.open(key, partition)
        )
        if live == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # The error is not reported, because it would end Java's consumer, and a later fetch may
            # open the partition.
            return False
        if isinstance(live, int):
            self._responses[named] = refusal(named, live)
            return False
        self._live[named] = live
        return is_new and self._order.min_bytes <= 1 and live.may_acquire(self.isolation)

    # -- the wait ----------------------------------------------------------------------------

    def _end_wait(self) -> None:
        self._is_over = True
        self._changed.set()

    def _take_woken(self) -> Iterable[SharedPartition]:
        """Return the partitions that a woken fetch reads.

        These are the partitions that woke the fetch. If the fetch needs more than one byte, these
        are all its partitions.
        """
        self._changed.clear()
        woken_for, self._woken_for = self._woken_for, {}
        return woken_for if self._order.min_bytes <= 1 else self._live

    async def _acquire_available(self, named: Iterable[SharedPartition]) -> bool:
        """Acquire available records; return whether the fetch is complete."""
        is_over = self._is_over or self._order.max_wait_ms <= 0
        chosen: list[SharedPartition] = []
        self.is_busy = True
        try:
            for each in named:
                if self._choose(each):
                    chosen.append(each)
                await self._slices.rest()
            reads = {
                each: batches for each in chosen if (batches := await self._read(each, chosen))
            }
            size_bytes = sum(batches.size_bytes for batches in reads.values())
            if is_over or size_bytes >= max(self._order.min_bytes, 1):
                await self._acquire(reads)
        finally:
            for each in chosen:
                self._live[each].end_reading()
            self.is_busy = False
        return is_over or self._has_news

    def _choose(self, named: SharedPartition) -> bool:
        """Reserve a partition for this fetch; return False if the fetch should not read it now."""
        live = self._live[named]
        if live.partition.is_deleted:
            self._respond(named, refusal(named, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return False
        if live.is_closed:
            # The partition's state was dropped or reset. Only the next fetch opens the partition
            # again, so end this fetch without waiting longer.
            self._has_news = True
            return False
        # If the partition already has a response, this fetch is about to end, so leave the
        # partition to other fetches.
        return named not in self._responses and live.begin_reading(self)

    # -- reading -----------------------------------------------------------------------------

    async def _read(
        self, named: SharedPartition, chosen: Sequence[SharedPartition]
    ) -> ShareRead | None:
        live = self._live[named]
        share = max(self._order.max_bytes // len(chosen), 1)
        records, isolation = live.records, self.isolation
        acquirable_end = records.acquirable_end(self._order.options.records_max)
        part = Part(records.fetch_offset, acquirable_end, records.end, share)
        return await self._read_or_refuse(named, partial(read, live.partition, part, isolation))

    async def _read_or_refuse(
        self,
        named: SharedPartition,
        read_now: "Callable[..., _Read | None]",
    ) -> "_Read | None":
        """Call `read_now` without blocking; if data is not in memory, call it again in a thread.

        On failure, the error becomes the partition's response, and None is returned.
        """
        try:
            try:
                return read_now(may_block=False)
            except ColdRead:
                return await self._node.reads.run(partial(read_now, may_block=True))
        except (OSError, TidelogError) as error:
            log_failure(self._live[named].partition.log, error)
            self._respond(named, refusal(named, code_of(error)))
            return None

    async def _acquire(self, reads: "dict[SharedPartition, ShareRead]") -> None:
        """Acquire records from `reads`, partition by partition, until the member has enough."""
        records_max = self._order.options.records_max
        for named, batches in reads.items():
            live = self._live[named]
            if live.is_closed or records_max <= 0:
                continue
            options = replace(self._order.options, records_max=records_max)
            before = live.records.position
            acquired = live.acquire(self._member.member_id, batches.offered, options)
            records_max -= sum(each.size for each in acquired)
            if acquired:
                await self._respond_records(named, batches, acquired)
            elif live.records.position != before:
                # None of the records that were read can be delivered, so end this fetch. The next
                # fetch reads the records after them.
                self._has_news = True

    async def _respond_records(
        self, named: SharedPartition, batches: ShareRead, acquired: Sequence[AcquiredRange]
    ) -> None:
        find_records = partial(batches.records, acquired)
        records: Buffer | FilePiece | None = await self._read_or_refuse(named, find_records)
        if records is None:
            return  # the acquired records become available again when their lock expires
        data = SharePartitionData(
            partition_index=named.number,
            # The encoder needs only the length of a `FilePiece`. The connection reads the file when
            # it sends the response.
            records=[cast("Buffer", records)],
            acquired_records=[
                AcquiredRecords(
                    first_offset=each.first, last_offset=each.last, delivery_count=each.count
                )
                for each in acquired
            ],
        )
        self._respond(named, data)
        partition = self._live[named].partition
        # Don't count records of a deleted topic, because these counts would never be removed.
        if not partition.is_deleted:
            count = sum(each.size for each in acquired)
            self._node.metrics.fetched(partition.name.topic, count, len(records))

    def _respond(self, named: SharedPartition, data: SharePartitionData) -> None:
        """Remember a partition's response, which ends the wait."""
        self._responses[named] = data
        self._has_news = True


STRICT: Final = 1

# Number of partitions above which a response is encoded in a thread.
LONG: Final = 500

Replies = Mapping[SharedPartition, Reply[int]]


# -- ShareFetch ----------------------------------------------------------------------------------


def share_fetch(
    context: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse | Awaitable[ShareFetchResponse | LargeResponse]:
    """Return records for a member, and the results of the member's acknowledgements."""
    member = member_of(context, request.group_id, request.member_id)
    if isinstance(member, ErrorCode):
        return _fetch_error(member)
    if _is_renewal(context, request) and not _has_no_limits(request):
        return _fetch_error(ErrorCode.INVALID_REQUEST)
    session = _fetch_session(member, request)
    if isinstance(session, ShareSession):
        return _fetch(member, request, session)
    if session is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
        return _refuse_later(context, request.max_wait_ms)
    return _fetch_error(session)


def _is_renewal(
    context: RequestContext, request: "ShareFetchRequest | ShareAcknowledgeRequest"
) -> bool:
    return context.version >= RENEW_SINCE and request.is_renew_ack


def _requests_records(request: ShareFetchRequest) -> bool:
    """Whether the request asks for records, and does not only acknowledge records.

    A request that only acknowledges does not wait for records.
    """
    return bool(request.max_bytes and request.max_records)


def _has_no_limits(request: ShareFetchRequest) -> bool:
    limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    return not any(limits)


async def _refuse_later(context: RequestContext, wait_ms: int) -> ShareFetchResponse:
    """Refuse a request for a new session, but only after the request's wait time.

    Because of this wait, a refused client retries no faster than a member that waits for records.
    """
    await context.node.timers.pause(max(wait_ms, 0))
    return _fetch_error(ErrorCode.SHARE_SESSION_LIMIT_REACHED)


def _fetch_error(code: ErrorCode) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=code, error_message=TEXTS.get(code))


def _fetch_session(member: Member, request: ShareFetchRequest) -> ShareSession | ErrorCode:
    """Return the session of the request, or an error code."""
    shares, key = member.context.node.shares, SessionKey(member.group_id, member.member_id)
    epoch = request.share_session_epoch
    if epoch == LAST_EPOCH:
        return shares.sessions.find(key) or ErrorCode.SHARE_SESSION_NOT_FOUND
    named = [
        SharedPartition(topic.topic_id, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if epoch != FIRST_EPOCH:
        forgotten = [
            SharedPartition(topic.topic_id, number)
            for topic in request.forgotten_topics_data
            for number in topic.partitions
        ]
        return shares.sessions.advance(key, epoch, named, forgotten)
    if any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions):
        return ErrorCode.INVALID_REQUEST
    return _begin(member, shares, key, named)


def _begin(
    member: Member, shares: "SharePartitions", key: SessionKey, named: Iterable[SharedPartition]
) -> ShareSession | ErrorCode:
    session = shares.sessions.begin(key, named)
    if isinstance(session, ShareSession):
        connection = member.context.connection
        connection.closers[key] = partial(shares.drop_session, session)
        # If the member ends the session on another connection, this connection must not end the
        # session again.
        session.on_end = lambda: _no_closer(connection, key)
    return session


def _no_closer(connection: "ClientInfo", key: SessionKey) -> None:
    connection.closers.pop(key, None)


def _fetch(
    member: Member, request: ShareFetchRequest, session: ShareSession
) -> Awaitable[ShareFetchResponse | LargeResponse]:
    """Process acknowledgements at once, and return the response later.

    So acknowledgements apply even if the client disconnects while its request waits for records.
    """
    acknowledgements = _acknowledgements(request.topics)
    has_acknowledgements = any(acknowledgements.values())
    is_renewal = _is_renewal(member.context, request)
    replies: Replies = (
        acknowledge(member, acknowledgements, is_renewal=is_renewal) if has_acknowledgements else {}
    )
    is_last = request.share_session_epoch == LAST_EPOCH
    if is_last:
        _end_behind(member.context.node.shares, session, replies)
    with_records = not is_renewal and not is_last and _requests_records(request)
    return _fetched(member, request, session if with_records else None, replies)


async def _fetched(
    member: Member, request: ShareFetchRequest, session: ShareSession | None, replies: Replies
) -> ShareFetchResponse | LargeResponse:
    """Wait for records and for the acknowledgements' results, and return the response.

    `session` is None if no records are to be returned.

    No records are returned if the request only acknowledges, renews locks, or ends the session.
    """
    responses: Responses = {}
    if session is not None:
        order = _order(member, request)
        epoch = request.share_session_epoch
        responses = await ShareFetching(member, order).run(session.rotated(epoch))
        _add_new(session, responses)
    for named, reply in replies.items():
        code = await reply
        data = responses.setdefault(named, SharePartitionData(partition_index=named.number))
        data.acknowledge_error_code, data.acknowledge_error_message = code, TEXTS.get(code)
    response = ShareFetchResponse(
        acquisition_lock_timeout_ms=_lock_ms(member), responses=_fetched_topics(responses)
    )
    if member.context.node.throttles is not None:
        from tidelog.server.api.charges import charge_share  # imported only if quotas exist

        charge_share(member.context, response)
    return (
        LargeResponse(response, _Partitions(response.responses))
        if len(responses) > LONG
        else response
    )


def _order(member: Member, request: ShareFetchRequest) -> ShareOrder:
    settings = member.context.node.shares.settings
    max_bytes = limit_bytes(member.context, request.max_bytes)
    return ShareOrder(
        options=AcquireOptions(
            records_max=request.max_records,
            batch_records=request.batch_size,
            is_strict=request.share_acquire_mode == STRICT,
        ),
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        max_wait_ms=request.max_wait_ms,
        isolation=settings.isolation(member.group_id),
    )


def _add_new(session: ShareSession, responses: Responses) -> None:
    """Add a response for each partition that was added to the running session since the last call.

    These partitions get a response even without records.
    """
    for named, is_new in session.partitions.items():
        if is_new:
            responses.setdefault(named, SharePartitionData(partition_index=named.number))
            session.partitions[named] = False


def _end_behind(shares: "SharePartitions", session: ShareSession, replies: Replies) -> None:
    """End the session once all acknowledgements are durable or have failed.

    The session ends at that time even if the client has disconnected before.
    """
    pending = list(replies.values())

    def end_when_done(_code: int = ErrorCode.NONE) -> None:
        while pending and pending[-1].is_done:
            pending.pop()
        if pending:
            pending[-1].then(end_when_done)
        else:
            shares.drop_session(session)

    end_when_done()


def _lock_ms(member: Member) -> int:
    return member.context.node.shares.settings.limits(member.group_id).lock_ms


def _acknowledgements(topics: Iterable[ShareFetchTopic]) -> Acknowledgements:
    return {
        SharedPartition(topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in topics
        for each in topic.partitions
    }


def _fetched_topics(responses: Responses) -> list[ShareFetchableTopicResponse]:
    topics: dict[UUID, ShareFetchableTopicResponse] = {}
    for named, data in responses.items():
        topic = topics.setdefault(
            named.topic_id, ShareFetchableTopicResponse(topic_id=named.topic_id)
        )
        topic.partitions.append(data)
    return list(topics.values())


class _Partitions:
    """The partitions of all topics of a response, to be freed one by one."""

    def __init__(self, topics: list[ShareFetchableTopicResponse]) -> None:
        self._topics = topics

    def __len__(self) -> int:
        """Return a number above 0 as long as partitions are left, for `LargeResponse.free`."""
        while self._topics and not self._topics[-1].partitions:
            self._topics.pop()
        return len(self._topics)

    def pop(self) -> SharePartitionData:
        return self._topics[-1].partitions.pop()


# -- ShareAcknowledge ----------------------------------------------------------------------------


def share_acknowledge(
    context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse | Awaitable[ShareAcknowledgeResponse]:
    """Process a member's acknowledgements, and return their results."""
    member = member_of(context, request.group_id, request.member_id)
    if isinstance(member, ErrorCode):
        return _acknowledge_error(member)
    session = _acknowledge_session(member, request.share_session_epoch)
    if isinstance(session, ErrorCode):
        return _acknowledge_error(session)
    is_renewal = _is_renewal(context, request)
    replies = acknowledge(member, _acknowledgements(request.topics), is_renewal=is_renewal)
    if request.share_session_epoch == LAST_EPOCH:
        _end_behind(context.node.shares, session, replies)
    return _acknowledged(member, replies)


def _acknowledge_error(code: ErrorCode) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=code, error_message=TEXTS.get(code))


def _acknowledge_session(member: Member, epoch: int) -> ShareSession | ErrorCode:
    """Return the session of the request, or an error code."""
    sessions = member.context.node.shares.sessions
    key = SessionKey(member.group_id, member.member_id)
    if epoch == FIRST_EPOCH:
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH
    if epoch == LAST_EPOCH:
        return sessions.find(key) or ErrorCode.SHARE_SESSION_NOT_FOUND
    return sessions.advance(key, epoch)


async def _acknowledged(member: Member, replies: Replies) -> ShareAcknowledgeResponse:
    topics: dict[UUID, ShareAcknowledgeTopicResponse] = {}
    for named, reply in replies.items():
        code = await reply
        topic = topics.setdefault(
            named.topic_id, ShareAcknowledgeTopicResponse(topic_id=named.topic_id)
        )
        partition = ShareAcknowledgedPartition(
            partition_index=named.number, error_code=code, error_message=TEXTS.get(code)
        )
        topic.partitions.append(partition)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=_lock_ms(member), responses=list(topics.values())
    )
