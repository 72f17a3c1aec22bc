"""What ShareFetch and ShareAcknowledge have in common: who asks, which partitions, what is said.

Source: KIP-932; Kafka 4.3's KafkaApis (handleAcknowledgements, validateAcknowledgementBatches).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.share_fetch import AcknowledgementBatch
from tidelog.server.asked_partitions import find_partition
from tidelog.server.groups.reply import Reply
from tidelog.server.partitions import Partition
from tidelog.server.requests import RequestContext
from tidelog.server.shares.kept import ShareKey
from tidelog.server.shares.sessions import SharedPartition
from tidelog.server.shares.states import Acknowledgement, AckType

RENEW_SINCE: Final = 2
MEMBER_CHARACTERS_MAX: Final = 36

TEXTS: Final[dict[int, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "The broker could not do it.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "There is no such topic or partition here.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "What is kept of the share group can't be had now.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.INVALID_REQUEST: "What the request says of its records can't be.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The disk of the partition has failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: "No topic has that id here.",
    ErrorCode.INVALID_RECORD_STATE: "A record is not the member's, or no more.",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "The member has no share session.",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "The share session has another epoch.",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "There are as many share sessions as there may be.",
}


def text_of(code: int) -> str | None:
    """What is said with an error; None for none."""
    return TEXTS.get(code)


@dataclass(frozen=True, slots=True)
class Member:
    """Who asks, and what it may do."""

    context: RequestContext
    group_id: str
    member_id: str

    def key_of(self, named: SharedPartition) -> ShareKey:
        """A partition in its group."""
        return ShareKey(self.group_id, named.topic_id, named.number)

    def find(self, named: SharedPartition) -> Partition | int:
        """A partition that it may read, or the error code that says why not."""
        node = self.context.node
        info = node.topics.find_by_id(named.topic_id)
        if info is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not self._may_read(info.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return find_partition(node, info.name, named.number)

    def _may_read(self, topic: str) -> bool:
        return _may(self.context, "TOPIC", topic)

    def names_of(self, named: Iterable[SharedPartition]) -> list[tuple[str, int]]:
        """Partitions by their topics' names, those of unknown ids left out."""
        find = self.context.node.topics.find_by_id
        infos = ((find(each.topic_id), each.number) for each in named)
        return [(info.name, number) for info, number in infos if info is not None]


def member_of(
    context: RequestContext, group_id: str | None, member_id: str | None
) -> Member | ErrorCode:
    """Who asks; or why nobody may ask so."""
    if group_id is None:
        return ErrorCode.INVALID_REQUEST
    if not _may(context, "GROUP", group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not member_id or len(member_id) > MEMBER_CHARACTERS_MAX:
        return ErrorCode.INVALID_REQUEST
    return Member(context, group_id, member_id)


def _may(context: RequestContext, kind: str, name: str) -> bool:
    authorizer, connection = context.node.authorizer, context.connection
    if authorizer is None:
        return True
    from tidelog.server.security.authorizer import Client, Operation, ResourceType

    who = Client(connection.principal, connection.host)
    return authorizer.may(who, Operation.READ, ResourceType[kind], name)


# -- acknowledgements ----------------------------------------------------------------------------

Said = dict[SharedPartition, Sequence[AcknowledgementBatch]]


def acknowledge(
    member: Member, said: Said, *, is_renewal: bool
) -> dict[SharedPartition, Reply[int]]:
    """Take what a member says of each partition; when that is safe, or why it was not taken."""
    return {
        named: _acknowledge(member, named, batches, is_renewal=is_renewal)
        for named, batches in said.items()
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
    told = Reply[int]()
    live.acknowledge(member.member_id, _plain(batches)).then(told.complete)
    return told


def _plain(batches: Iterable[AcknowledgementBatch]) -> list[Acknowledgement]:
    return [
        Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
        for each in batches
    ]


def _can_be(batches: Iterable[AcknowledgementBatch], most: int, *, is_renewal: bool) -> bool:
    """Whether ranges are in order, with one type or one for each offset, of types there are."""
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
