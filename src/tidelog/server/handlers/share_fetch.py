"""ShareFetch and ShareAcknowledge: records are lent to a member, and it says what became of them.

A fetch may say so of what was lent before; that is taken first. Both go by the member's session.

Source: Kafka's protocol guide, APIs 78 and 79; KIP-932, KIP-1206, KIP-1222; Kafka 4.3's KafkaApis.
"""

from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.share_fetch import (
    ShareAcknowledgedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopic,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    SharePartitionData,
)
from tidelog.server.arrivals import arrival
from tidelog.server.fetch_sessions import FIRST_EPOCH, LAST_EPOCH
from tidelog.server.groups.reply import Reply
from tidelog.server.handlers.share_fetching import Answers, ShareFetching, ShareOrder
from tidelog.server.handlers.share_requests import (
    RENEW_SINCE,
    Member,
    Said,
    acknowledge,
    member_of,
    text_of,
)
from tidelog.server.requests import Long, RequestContext
from tidelog.server.shares.sessions import SessionKey, SharedPartition, ShareSession
from tidelog.server.shares.states import Wish

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.server.node import ConnectionFacts
    from tidelog.server.shares.shares import Shares

STRICT: Final = 1
# An answer about more partitions is made into bytes beside the loop.
LONG: Final = 500

Replies = Mapping[SharedPartition, Reply[int]]


# -- ShareFetch ----------------------------------------------------------------------------------


def share_fetch(
    context: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse | Awaitable[ShareFetchResponse | Long]:
    """Records for a member, now or when there are some; and what became of what it has said."""
    member = member_of(context, request.group_id, request.member_id)
    if isinstance(member, ErrorCode):
        return _fetch_error(member)
    if _is_renewal(context, request) and not _asks_for_nothing(request):
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


def _asks_for_records(request: ShareFetchRequest) -> bool:
    """Whether it wants more than to say something; who asks for none waits for none."""
    return bool(request.max_bytes and request.max_records)


def _asks_for_nothing(request: ShareFetchRequest) -> bool:
    asked = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    return not any(asked)


async def _refuse_later(context: RequestContext, wait_ms: int) -> ShareFetchResponse:
    """As many sessions as there may be: who asks again asks no faster than others that wait."""
    waiting = Reply[None]()
    context.node.timers.after(max(wait_ms, 0), lambda: waiting.complete(None))
    await arrival(waiting)
    return _fetch_error(ErrorCode.SHARE_SESSION_LIMIT_REACHED)


def _fetch_error(code: ErrorCode) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=code, error_message=text_of(code))


def _fetch_session(member: Member, request: ShareFetchRequest) -> ShareSession | ErrorCode:
    """The session that the request goes by."""
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
        return shares.sessions.go_on(key, epoch, named, forgotten)
    if any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions):
        return ErrorCode.INVALID_REQUEST
    return _begin(member, shares, key, named)


def _begin(
    member: Member, shares: "Shares", key: SessionKey, named: Iterable[SharedPartition]
) -> ShareSession | ErrorCode:
    session = shares.sessions.begin(key, named)
    if isinstance(session, ShareSession):
        connection = member.context.connection
        connection.closers[key] = partial(shares.drop_session, key, session)
        # Its member may end it by another connection: this one is to hold nothing of it.
        session.on_end = lambda: _no_closer(connection, key)
    return session


def _no_closer(connection: "ConnectionFacts", key: SessionKey) -> None:
    connection.closers.pop(key, None)


def _fetch(
    member: Member, request: ShareFetchRequest, session: ShareSession
) -> Awaitable[ShareFetchResponse | Long]:
    """What is said is taken at once: who waits for records may go before any come."""
    said = _said(request.topics)
    has_said = any(said.values())
    is_renewal = _is_renewal(member.context, request)
    replies: Replies = acknowledge(member, said, is_renewal=is_renewal) if has_said else {}
    is_last = request.share_session_epoch == LAST_EPOCH
    if is_last:
        _end_behind(member.context.node.shares, session, replies)
    wants_records = not is_renewal and not is_last and _asks_for_records(request)
    return _fetched(member, request, session if wants_records else None, replies)


async def _fetched(
    member: Member, request: ShareFetchRequest, session: ShareSession | None, replies: Replies
) -> ShareFetchResponse | Long:
    """The answer; without a session no records are wanted."""
    answers: Answers = {}
    if session is not None:
        order = _order(member, request)
        epoch = request.share_session_epoch
        answers = await ShareFetching(member, order).run(session.rotated(epoch))
        _add_news(session, answers)
    for named, reply in replies.items():
        code = await arrival(reply)
        data = answers.setdefault(named, SharePartitionData(partition_index=named.number))
        data.acknowledge_error_code, data.acknowledge_error_message = code, text_of(code)
    response = ShareFetchResponse(
        acquisition_lock_timeout_ms=_lock_ms(member), responses=_fetched_topics(answers)
    )
    if member.context.node.throttles is not None:
        from tidelog.server.fetch_charges import charge_share  # few have quotas

        charge_share(member.context, response)
    return Long(response, _Partitions(response.responses)) if len(answers) > LONG else response


def _order(member: Member, request: ShareFetchRequest) -> ShareOrder:
    node = member.context.node
    most = min(request.max_bytes, node.config.fetch_max_bytes)
    if node.throttles is not None:
        from tidelog.server.fetch_charges import most_bytes  # few have quotas

        allowed = most_bytes(member.context)
        most = most if allowed is None else min(most, allowed)
    return ShareOrder(
        wish=Wish(
            records_max=request.max_records,
            batch_records=request.batch_size,
            is_strict=request.share_acquire_mode == STRICT,
        ),
        min_bytes=min(request.min_bytes, most),
        max_bytes=most,
        max_wait_ms=request.max_wait_ms,
        isolation=node.shares.settings.isolation(member.group_id),
    )


def _add_news(session: ShareSession, answers: Answers) -> None:
    """A partition that a session has got since it began is answered once, whatever there is."""
    for named, is_news in session.partitions.items():
        if is_news:
            answers.setdefault(named, SharePartitionData(partition_index=named.number))
            session.partitions[named] = False


def _end_behind(shares: "Shares", session: ShareSession, replies: Replies) -> None:
    """The member goes once all that it has said is safe, whoever waits for that."""
    left = list(replies.values())

    def go_on(_code: int = ErrorCode.NONE) -> None:
        while left and left[-1].is_done:
            left.pop()
        if left:
            left[-1].then(go_on)
        else:
            shares.drop_session(session.key, session)

    go_on()


def _end(member: Member) -> None:
    """The member goes: what it has is anybody's again."""
    key = SessionKey(member.group_id, member.member_id)
    member.context.node.shares.end_session(key)


def _lock_ms(member: Member) -> int:
    return member.context.node.shares.settings.limits(member.group_id).lock_ms


def _said(topics: "Iterable[ShareFetchTopic | ShareAcknowledgeTopic]") -> Said:
    return {
        SharedPartition(topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in topics
        for each in topic.partitions
    }


def _fetched_topics(answers: Answers) -> list[ShareFetchableTopicResponse]:
    topics: dict[UUID, ShareFetchableTopicResponse] = {}
    for named, data in answers.items():
        topic = topics.setdefault(
            named.topic_id, ShareFetchableTopicResponse(topic_id=named.topic_id)
        )
        topic.partitions.append(data)
    return list(topics.values())


class _Partitions:
    """All partitions of an answer, to be let go of one by one."""

    def __init__(self, topics: list[ShareFetchableTopicResponse]) -> None:
        self._topics = topics

    def __len__(self) -> int:
        """How many topics have some left; the last one has."""
        while self._topics and not self._topics[-1].partitions:
            self._topics.pop()
        return len(self._topics)

    def pop(self) -> SharePartitionData:
        return self._topics[-1].partitions.pop()


# -- ShareAcknowledge ----------------------------------------------------------------------------


def share_acknowledge(
    context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse | Awaitable[ShareAcknowledgeResponse]:
    """What became of what a member has said of its records."""
    member = member_of(context, request.group_id, request.member_id)
    if isinstance(member, ErrorCode):
        return _acknowledge_error(member)
    code = _acknowledge_session(member, request.share_session_epoch)
    if code:
        return _acknowledge_error(code)
    is_renewal = _is_renewal(context, request)
    replies = acknowledge(member, _said(request.topics), is_renewal=is_renewal)
    return _acknowledged(member, request, replies)


def _acknowledge_error(code: ErrorCode) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=code, error_message=text_of(code))


def _acknowledge_session(member: Member, epoch: int) -> ErrorCode:
    """Why the request goes by no session; NONE where it does."""
    sessions = member.context.node.shares.sessions
    key = SessionKey(member.group_id, member.member_id)
    if epoch == FIRST_EPOCH:
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH
    if epoch == LAST_EPOCH:
        is_there = sessions.find(key) is not None
        return ErrorCode.NONE if is_there else ErrorCode.SHARE_SESSION_NOT_FOUND
    found = sessions.go_on(key, epoch)
    return ErrorCode.NONE if isinstance(found, ShareSession) else found


async def _acknowledged(
    member: Member, request: ShareAcknowledgeRequest, replies: Replies
) -> ShareAcknowledgeResponse:
    topics: dict[UUID, ShareAcknowledgeTopicResponse] = {}
    for named, reply in replies.items():
        code = await arrival(reply)
        topic = topics.setdefault(
            named.topic_id, ShareAcknowledgeTopicResponse(topic_id=named.topic_id)
        )
        told = ShareAcknowledgedPartition(
            partition_index=named.number, error_code=code, error_message=text_of(code)
        )
        topic.partitions.append(told)
    if request.share_session_epoch == LAST_EPOCH:
        _end(member)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=_lock_ms(member), responses=list(topics.values())
    )
