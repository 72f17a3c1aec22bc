"""One member: what it asks for, and what it has. Values, never changed.

Source: Kafka 4.3's consumer groups; KIP-848, KIP-1251 (an epoch for each partition).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.server.groups.results import Protocols

# Partitions by topic, each with the epoch in which its member got it.
Assigned: TypeAlias = Mapping[UUID, Mapping[int, int]]
# Partitions by topic that a member is to have.
Target: TypeAlias = Mapping[UUID, frozenset[int]]

JOINING: Final = 0
LEAVING: Final = -1
# A static member leaves and will be back: its place is kept.
LEAVING_FOR_A_WHILE: Final = -2
NO_TIMEOUT: Final = -1
UNKNOWN_EPOCH: Final = -1


class MemberState(IntEnum):
    """How far a member is on its way to its target; the values are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """What only a member of the classic protocol has: its session and its ways to assign."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """Who a member is and what it asks for.

    Attributes:
        instance_id: A static member's name for itself, None for a dynamic one.
        rack_id: Where it is, None where it doesn't say.
        client_id: How the client calls itself.
        client_host: Where it asks from.
        rebalance_timeout_ms: How long it may take to give partitions up.
        topics: Names of topics that it reads.
        regex: An expression for further ones, empty for none.
        assignor: Who it wants to assign, None for the group's choice.
        classic: Its part of the classic protocol, None for a member of the new one.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = NO_TIMEOUT
    topics: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str | None = None
    classic: ClassicPart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a member stands.

    Attributes:
        epoch: The epoch that it is expected to say; -2 while a static member is away.
        previous_epoch: The one before: an answer may have been lost.
        state: How far it is on its way.
        assigned: What it may read.
        revoking: What it has to give up first.
    """

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)

    def moved(
        self, epoch: int, state: MemberState, assigned: Assigned, revoking: Assigned
    ) -> "Place":
        """The next place, which remembers this one's epoch."""
        return Place(
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member."""

    member_id: str
    asks: Asks = field(default_factory=Asks)
    place: Place = field(default_factory=Place)

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.asks.classic is not None

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether it has all of its target of that epoch."""
        return self.place.state is MemberState.STABLE and self.place.epoch == target_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it got a partition that it has or is giving up, else None."""
        for owned in (self.place.assigned, self.place.revoking):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None
