"""State of a classic group, its members and their subscriptions; no input or output.

The join of a dynamic member does not visit the other members. A rebalance visits all members, but
serves many joins. So the total cost of many joins is proportional to the number of joins.
Subscriptions are decoded as version 0, because some clients declare a version other than the
version that they write. Every version of a subscription begins with the fields of version 0.

Source: Kafka 4.3's classic groups; KIP-345 (static members).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import ClassVar, Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.data_message import VERSION_BYTES
from tidelog.protocol.messages.group_records import SUBSCRIPTION
from tidelog.server.groups.committed_offsets import GroupOffsets
from tidelog.server.groups.requests import (
    CommitRequest,
    JoinedMember,
    JoinResult,
    Protocols,
    SyncResult,
)
from tidelog.server.runtime.loop import Timer
from tidelog.server.runtime.reply import Reply

_FIRST_VERSION: Final = bytes(VERSION_BYTES)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions; None if a subscription can't be decoded."""
    topics: set[str] = set()
    try:
        for data in subscriptions:
            topics.update(SUBSCRIPTION.read(_FIRST_VERSION + data[VERSION_BYTES:])[1].topics)
    except (CorruptMessage, UnsupportedVersion):
        return None
    return frozenset(topics)


CONSUMER_PROTOCOL: Final = "consumer"

# Estimated memory for a protocol in addition to its name and metadata, in bytes. This number is
# added for each protocol, so that many empty protocols also reach the limits.
PROTOCOL_BYTES: Final = 128


def protocols_bytes(protocols: Protocols) -> int:
    """Estimate the memory that a member's protocols take, in bytes."""
    return sum(PROTOCOL_BYTES + len(name) + len(data) for name, data in protocols)


class GroupState(Enum):
    """State of a classic group. The values appear in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """Member of a classic group.

    Attributes:
        member_id: Id that the coordinator generated.
        instance_id: Group instance id; None for a dynamic member.
        client_id: Client id of its JoinGroup request.
        client_host: Address from which it joined.
        protocols: Supported assignment protocols, in the member's order of preference.
        session_timeout_ms: Time without a request after which the member is removed.
        rebalance_timeout_ms: Time within which the member must rejoin in a rebalance.
        assignment: Assignment that the member last got from a leader; empty if it has none.
        is_new: Whether the member has not been part of a generation yet.
        join: Pending response to its JoinGroup request.
        sync: Pending response to its SyncGroup request.
        expiry: Timer of its session.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocols: Protocols = ()
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    is_new: bool = False
    join: Reply[JoinResult] | None = None
    sync: Reply[SyncResult] | None = None
    expiry: Timer | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member stays in the group while its client restarts (group.instance.id)."""
        return self.instance_id is not None

    @property
    def metadata_bytes(self) -> int:
        """Estimated memory for its protocols, in bytes."""
        return protocols_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty for an unknown protocol or None."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def is_patient(self) -> bool:
        """Whether the session can't expire: the member awaits a response, and is not new."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def stop_expiry(self) -> None:
        """Cancel the session timer."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class ClassicGroup:
    """Group whose leader assigns partitions on the client's side.

    Used only in the event loop's thread.

    Attributes:
        group_type: Type of the group in ListGroups.
        may_expire: Whether the group is deleted when it has no members and no offsets.
        group_id: Id of the group.
        state: Current state.
        previous_state: State before the current one.
        state_ms: Wall time of the last change of state; -1 if unknown.
        protocol_type: Protocol type of the members; None for a group with offsets only.
        protocol_name: Assignment protocol of this generation; None before the first generation and
            without members.
        generation: Generation id. Each rebalance increments it.
        leader: Member id of the leader; None without members.
        members: Members by id, in the order in which they joined.
        pending: Timers by member id, for member ids that were generated but not used yet.
        pending_sync: Ids of the members that have not sent SyncGroup in this generation.
        awaiting_join: Number of members with a pending JoinGroup response.
        has_newcomers: Whether a member joined during the delay of the first rebalance.
        subscribed: Topics that members subscribe to; None if they can't be known.
        offsets: Committed offsets.
        join_timer: Timer that ends the wait for JoinGroup in this rebalance.
        sync_timer: Timer that ends the wait for SyncGroup in this generation.
        metadata_bytes: Estimated memory for the protocols of all members, in bytes.
    """

    group_type: ClassVar[str] = "classic"
    may_expire: ClassVar[bool] = True

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.pending: dict[str, Timer] = {}
        self.pending_sync: set[str] = set()
        self.awaiting_join = 0
        self.has_newcomers = False
        self.subscribed: frozenset[str] | None = None
        self.offsets = GroupOffsets()
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self.metadata_bytes = 0
        self._static: dict[str, str] = {}
        self._votes: Counter[str] = Counter()

    # -- queries -----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the group is in state Empty: it has no members and no rebalance."""
        return self.state is GroupState.EMPTY

    def is_in(self, *states: GroupState) -> bool:
        """Whether the group is in one of these states."""
        return self.state in states

    @property
    def has_all_joined(self) -> bool:
        """Whether all members have joined this rebalance, and all generated ids have been used."""
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """Longest rebalance timeout of all members, 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def static_member(self, instance_id: str) -> str | None:
        """Return the member id of an instance; None if the instance is not in the group."""
        return self._static.get(instance_id)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with this protocol type and these protocols may join the group."""
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        member_count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._votes[name] == member_count for name, _ in protocols
        )

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error code for an unknown or fenced member, `NONE` for a valid member."""
        if instance_id is not None:
            current_id = self._static.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read a topic; True for a group of consumers whose topics are unknown."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed

    def commit_error(self, request: CommitRequest, _topic_id: UUID, _partition: int) -> ErrorCode:
        """Return the error code for a commit; `NONE` if the commit is allowed."""
        if request.generation < 0 and self.is_empty:
            return ErrorCode.NONE
        code = self._committer_error(request)
        if code is ErrorCode.NONE and not request.is_transactional:
            is_completing = self.is_in(GroupState.COMPLETING_REBALANCE)
            return ErrorCode.REBALANCE_IN_PROGRESS if is_completing else ErrorCode.NONE
        return code

    def _committer_error(self, request: CommitRequest) -> ErrorCode:
        """Return the error code if the client is not a member in this generation, else `NONE`."""
        if request.generation < 0 and not request.member_id and request.instance_id is None:
            # A transactional commit of an old client contains no member.
            return ErrorCode.NONE if request.is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        code = self.member_error(request.member_id, request.instance_id)
        if code is ErrorCode.NONE and request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def fetch_error(self, _member_id: str | None, _epoch: int) -> ErrorCode:
        """Return `NONE`, because any client may fetch the offsets."""
        return ErrorCode.NONE

    @property
    def offset_deletion_error(self) -> ErrorCode:
        """Error code for a request to delete offsets; `NONE` if the deletion is allowed."""
        is_allowed = self.is_empty or self.protocol_type == CONSUMER_PROTOCOL
        return ErrorCode.NONE if is_allowed else ErrorCode.NON_EMPTY_GROUP

    def stored_topics(self) -> Iterable[str]:
        """Return the topics with committed offsets."""
        return self.offsets.topics()

    @property
    def expiry_start_ms(self) -> int | None:
        """Wall time at which the retention of offsets starts, for topics that no member reads.

        - Group without members: the time when the group became empty, or -1 if it never had
          members. With -1, the retention of an offset starts at the offset's commit.
        - Stable group of consumers whose topics are known: -1, so the retention of an offset starts
          at the offset's commit.
        - Any other group: None, because its offsets do not expire.
        """
        if self.protocol_type is None:
            return -1
        if self.is_empty:
            return self.state_ms
        knows_topics = self.subscribed is not None and self.protocol_type == CONSUMER_PROTOCOL
        return -1 if knows_topics and self.is_in(GroupState.STABLE) else None

    def joined_members(self) -> list[JoinedMember]:
        """Return all members for the leader's JoinGroup response."""
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        ]

    def not_joined(self) -> Iterator[Member]:
        """Iterate over the members that have not joined this rebalance."""
        return (member for member in self.members.values() if member.join is None)

    # -- changes -----------------------------------------------------------------------------

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state."""
        self.previous_state, self.state, self.state_ms = self.state, state, now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. `member.join`, if set, is counted as a pending JoinGroup response."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        self.awaiting_join += member.join is not None
        self.forget_pending(member.member_id)

    def forget_pending(self, member_id: str) -> None:
        """Remove a generated member id that was used or has expired; no-op for other ids."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def remove(self, member_id: str) -> None:
        """Remove a member or an unused member id.

        If the leader leaves, the member that joined first becomes leader.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            member.stop_expiry()
            self._count(member, -1)
            self.awaiting_join -= member.join is not None
            if member.instance_id is not None:
                self._static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.forget_pending(member_id)
        self.pending_sync.discard(member_id)

    def update(
        self,
        member: Member,
        protocols_and_timeouts: tuple[Protocols, int, int],
        join: Reply[JoinResult] | None,
    ) -> None:
        """Store the protocols, timeouts and pending response of a member that rejoins."""
        self._count(member, -1)
        member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = (
            protocols_and_timeouts
        )
        self._count(member, 1)
        self.awaiting_join += (join is not None) - (member.join is not None)
        member.join = join

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """Replace the id of a static member that returned. Requests under the old id are fenced."""
        old = self.members.pop(self._static[instance_id])
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(old, JoinResult(code=fenced, member_id=old.member_id))
        self.answer_sync(old, SyncResult(code=fenced))
        old.stop_expiry()
        new = Member(
            member_id=new_id,
            instance_id=instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            protocols=old.protocols,
            session_timeout_ms=old.session_timeout_ms,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            assignment=old.assignment,
        )
        self.members[new_id] = new
        self._static[instance_id] = new_id
        if old.member_id in self.pending_sync:
            self.pending_sync.remove(old.member_id)
            self.pending_sync.add(new_id)
        if self.leader == old.member_id:
            self.leader = new_id
        return new

    def _count(self, member: Member, sign: int) -> None:
        """Add a member's protocols to the group's totals, or subtract them if `sign` is -1."""
        for name in {name for name, _ in member.protocols}:  # a protocol may be listed twice
            self._votes[name] += sign
            if not self._votes[name]:
                del self._votes[name]
        self.metadata_bytes += sign * member.metadata_bytes

    # -- rebalance ---------------------------------------------------------------------------

    def elect_leader(self) -> bool:
        """Ensure that the leader has joined, or elect another leader.

        Return False if no member has joined.
        """
        if self.leader is None:
            return False
        if self.members[self.leader].join is None:
            joined = (m.member_id for m in self.members.values() if m.join is not None)
            candidate = next(joined, None)
            if candidate is None:
                return False
            self.leader = candidate
        return True

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer.

        Only protocols that all members support are considered.
        """
        member_count = len(self.members)
        candidates = {name for name, count in self._votes.items() if count == member_count}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def begin_generation(self, now_ms: int) -> None:
        """Begin the next generation, in CompletingRebalance if there are members, else in Empty."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed = self.find_subscribed()
        state = GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY
        self.move_to(state, now_ms)
        self.pending_sync.clear()

    def find_subscribed(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to; None if they can't be known."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if self.members and self.protocol_name is None:
            return None
        name = self.protocol_name
        return subscribed_topics(member.metadata(name) for member in self.members.values())

    # -- responses ---------------------------------------------------------------------------

    def answer_join(self, member: Member, joined: JoinResult) -> bool:
        """Complete a member's JoinGroup response; return False if no such response is pending."""
        reply, member.join = member.join, None
        if reply is None:
            return False
        self.awaiting_join -= 1
        reply.complete(joined)
        return True

    def answer_sync(self, member: Member, synced: SyncResult) -> bool:
        """Complete a member's SyncGroup response; return False if no such response is pending."""
        reply, member.sync = member.sync, None
        if reply is None:
            return False
        reply.complete(synced)
        return True
