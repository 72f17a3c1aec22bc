"""State of a classic group, its members and their subscriptions; no input or output.

An operation on one member takes the same time whatever the number of members. Only a rebalance
visits all of them, so a storm of joins costs as much as its members. Subscriptions are read as
version 0, which every version starts with, because some clients write another version than they
declare.

Source: Kafka 4.3's classic groups; KIP-345 (static members).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.data_message import VERSION_BYTES
from tidelog.protocol.messages.group_records import SUBSCRIPTION
from tidelog.server.groups.committed_offsets import GroupOffsets
from tidelog.server.groups.requests import JoinedMember, JoinResult, Protocols, SyncResult
from tidelog.server.runtime.loop import Timer
from tidelog.server.runtime.reply import Reply

_FIRST_VERSION: Final = bytes(VERSION_BYTES)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of all subscriptions, None where one can't be read."""
    topics: set[str] = set()
    try:
        for data in subscriptions:
            topics.update(SUBSCRIPTION.read(_FIRST_VERSION + data[VERSION_BYTES:])[1].topics)
    except (CorruptMessage, UnsupportedVersion):
        return None
    return frozenset(topics)


CONSUMER_PROTOCOL: Final = "consumer"


# What a protocol takes beside its name and data, about: many may have neither.
PROTOCOL_BYTES: Final = 128


def protocols_bytes(protocols: Protocols) -> int:
    """What a member's protocols take in memory, about."""
    return sum(PROTOCOL_BYTES + len(name) + len(data) for name, data in protocols)


class GroupState(Enum):
    """Where a group stands; the values are what ListGroups and DescribeGroups say."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """One member.

    Attributes:
        member_id: Its id, which the coordinator gave it.
        instance_id: A static member's name for itself, None for a dynamic one.
        client_id: How the client calls itself.
        client_host: Where it joined from.
        protocols: What it can do, in its order of preference.
        session_timeout_ms: How long it may be silent.
        rebalance_timeout_ms: How long it may take to join again.
        assignment: What it got in this generation; empty before.
        is_new: Whether it has not been in a generation yet.
        join: Who waits for the answer to its JoinGroup.
        sync: Who waits for the answer to its SyncGroup.
        expiry: When it is given up.
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
        """Whether it keeps its place over restarts."""
        return self.instance_id is not None

    @property
    def metadata_bytes(self) -> int:
        """What its protocols take."""
        return protocols_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """What it says for a protocol that it knows, or that nobody has chosen yet."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def is_patient(self) -> bool:
        """Whether its silence is no failure: it waits for us. New ones are given up even so."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def stop_expiry(self) -> None:
        """Don't give it up by time any more."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class ClassicGroup:
    """A group whose members assign among themselves. Belongs to the loop's thread.

    Attributes:
        group_id: Its name.
        state: Where it stands.
        previous_state: Where it stood before that.
        state_ms: Wall time since when, -1 where unknown.
        protocol_type: What its members call themselves; None for a group that only has offsets.
        protocol_name: The way to assign of this generation, None before the first.
        generation: Counts up with each rebalance.
        leader: Who assigns, None where there is nobody.
        members: By id, in the order in which they came.
        pending: Ids that were given out and have not joined yet, with the end of their patience.
        pending_sync: Who has not asked for an assignment in this generation.
        awaiting_join: How many members wait for the answer to their JoinGroup.
        has_newcomers: Whether somebody came while the first rebalance waited for more.
        subscribed: Topics that members read, None where that is not known.
        offsets: What was committed.
        join_timer: The end of what this rebalance waits for joins.
        sync_timer: The end of what it waits for syncs.
        metadata_bytes: What all members' protocols take.
    """

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

    # -- questions ---------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether it has no members and awaits none."""
        return self.state is GroupState.EMPTY

    def is_in(self, *states: GroupState) -> bool:
        """Whether it stands in one of these."""
        return self.state in states

    @property
    def has_all_joined(self) -> bool:
        """Whether nobody is missing in this rebalance."""
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def static_member(self, instance_id: str) -> str | None:
        """The member id behind an instance, None where it is not in the group."""
        return self._static.get(instance_id)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these can be in the group."""
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._votes[name] == everybody for name, _ in protocols
        )

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Why this is no member, `NONE` where it is one."""
        if instance_id is not None:
            current_id = self._static.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read a topic; consumers whose topics are not known may read all."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed

    def joined_members(self) -> list[JoinedMember]:
        """All members, for their leader."""
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        ]

    def not_joined(self) -> Iterator[Member]:
        """Members that this rebalance still waits for."""
        return (member for member in self.members.values() if member.join is None)

    # -- changes -----------------------------------------------------------------------------

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state."""
        self.previous_state, self.state, self.state_ms = self.state, state, now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in, which waits for its join's answer where `member.join` is set."""
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
        """An id that was given out is used, or given up; fine where it was not given out."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def remove(self, member_id: str) -> None:
        """Let a member or a pending id go; another member leads if it was the leader."""
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
        """A member joins again: its protocols, rebalance and session timeout, and who waits."""
        self._count(member, -1)
        member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = (
            protocols_and_timeouts
        )
        self._count(member, 1)
        self.awaiting_join += (join is not None) - (member.join is not None)
        member.join = join

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """A static member comes back under a new id: who waits under the old one is fenced."""
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
        """A member's protocols begin or cease to count."""
        for name in {name for name, _ in member.protocols}:  # one may be named twice
            self._votes[name] += sign
            if not self._votes[name]:
                del self._votes[name]
        self.metadata_bytes += sign * member.metadata_bytes

    # -- rebalance ---------------------------------------------------------------------------

    def elect_leader(self) -> bool:
        """Make sure that the leader has joined; False where there is nobody who has."""
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
        """The way to assign that most members prefer, of those that all know."""
        everybody = len(self.members)
        candidates = {name for name, count in self._votes.items() if count == everybody}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def begin_generation(self, now_ms: int) -> None:
        """The next generation: with members they are to sync, without any the group is empty."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed = self.find_subscribed()
        state = GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY
        self.move_to(state, now_ms)
        self.pending_sync.clear()

    def find_subscribed(self) -> frozenset[str] | None:
        """Topics that members read, None where that can't be known."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if self.members and self.protocol_name is None:
            return None
        name = self.protocol_name
        return subscribed_topics(member.metadata(name) for member in self.members.values())

    # -- answers -----------------------------------------------------------------------------

    def answer_join(self, member: Member, joined: JoinResult) -> bool:
        """Answer a member's JoinGroup; False where it does not wait."""
        reply, member.join = member.join, None
        if reply is None:
            return False
        self.awaiting_join -= 1
        reply.complete(joined)
        return True

    def answer_sync(self, member: Member, synced: SyncResult) -> bool:
        """Answer a member's SyncGroup; False where it does not wait."""
        reply, member.sync = member.sync, None
        if reply is None:
            return False
        reply.complete(synced)
        return True
