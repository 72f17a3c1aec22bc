"""The words of a share partition: what a record can be, what is said of it, what is kept of it.

Source: KIP-932, KIP-1222 (renewal); Kafka 4.3's RecordState and AcknowledgeType.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class RecordState(IntEnum):
    """How far a record is in a share group; part of the format of `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


# What a record stays for good.
TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AckType(IntEnum):
    """What a member says of a record; part of the protocol."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Records of one state, as they are kept.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        state: Never ACQUIRED: locks are not kept.
        count: How often they were delivered.
    """

    first: int
    last: int
    state: RecordState
    count: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """Records that a member was given: offsets, last one inclusive, and the delivery's number."""

    first: int
    last: int
    count: int

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a member says of a range of records.

    Attributes:
        first: First offset.
        last: Last offset, inclusive.
        types: One for all of them, or one for each.
    """

    first: int
    last: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for a share partition.

    Attributes:
        locks_max: Records between the start offset and the last one delivered, softly: a batch of
            the log goes whole, unless it is huge.
        deliveries_max: After so many deliveries a record is archived.
        lock_ms: For so long a record is a member's.
        may_renew: Whether it may ask for more time.
    """

    locks_max: int = 2000
    deliveries_max: int = 5
    lock_ms: int = 30_000
    may_renew: bool = True

    @property
    def isolation_count(self) -> int:
        """From so many deliveries on, records are given in ever smaller parts.

        One bad record then spoils ever fewer others. Source: Kafka 4.3's SharePartition.
        """
        return max(2, -(-self.deliveries_max // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How much a member wants.

    Attributes:
        records_max: Records; softly, as a batch of the log goes whole.
        batch_records: What is acquired is cut at batches of the log once it has so many records.
        is_strict: No record more than `records_max` (KIP-1206).
    """

    records_max: int
    batch_records: int = 500
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What was read of the log for a member.

    Attributes:
        fetch_offset: Where the read began.
        batches: First and last offset of each batch, in order; the first may begin below
            `fetch_offset`.
        aborted: First and last offset of batches that nobody shall see.
    """

    fetch_offset: int
    batches: Sequence[tuple[int, int]]
    aborted: Sequence[tuple[int, int]] = ()
