"""One member of a share group: what it asks for, and what it has. Values, never changed.

Source: Kafka 4.3's share groups; KIP-932.
"""

from dataclasses import dataclass, field
from typing import Final

from tidelog.server.groups.consumer.member import JOINING, UNKNOWN_EPOCH, Target

# The only state of a member that Kafka's records know: nobody has to give anything up first.
STABLE: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAsks:
    """Who a member is and what it asks for.

    Attributes:
        rack_id: Where it is, None where it doesn't say.
        client_id: How the client calls itself.
        client_host: Where it asks from.
        topics: Names of topics that it reads.
    """

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlace:
    """Where a member stands.

    Attributes:
        epoch: The epoch that it is expected to say.
        previous_epoch: The one before: an answer may have been lost.
        assigned: What it may read.
    """

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    assigned: Target = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member."""

    member_id: str
    asks: ShareAsks = field(default_factory=ShareAsks)
    place: SharePlace = field(default_factory=SharePlace)
