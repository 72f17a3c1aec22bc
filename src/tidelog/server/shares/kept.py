"""What is kept of a share partition, and what one write after another makes of it.

A snapshot says all, an update what has changed since. What is said later of an offset replaces what
was said before; offsets below the start are not spoken of.

Source: KIP-932; Kafka 4.3's ShareGroupOffset and PersisterStateBatchCombiner.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.server.shares.states import StateBatch
from tidelog.storage.files import encode_topic_id

# In a write: the start stays where it was.
UNCHANGED: Final = -1
# In what is kept: nobody has read yet.
UNKNOWN_START: Final = -1
UNKNOWN_COUNT: Final = -1


class ShareKey(NamedTuple):
    """One partition in one share group."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """As Kafka names it: its hash says which partition of the topic keeps it."""
        return f"{self.group_id}:{encode_topic_id(self.topic_id)}:{self.partition}"


@dataclass(frozen=True, slots=True)
class Update:
    """What has changed.

    Attributes:
        start: The start offset, `UNCHANGED` for the one before.
        complete_count: Offsets from the start on that are done with, -1 for not known.
        batches: What records are now, by offset.
        leader_epoch: Of who says so.
    """

    start: int
    complete_count: int = UNKNOWN_COUNT
    batches: Sequence[StateBatch] = ()
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """All that is kept of a share partition.

    Attributes:
        snapshot_epoch: Counts up with each snapshot.
        state_epoch: Counts up each time that it is begun anew.
        leader_epoch: The last one that was told.
        start: The start offset, `UNKNOWN_START` before anybody has read.
        complete_count: Offsets from the start on that are done with, -1 for not known.
        batches: What records are, by offset, apart from each other.
        update_count: Updates since the snapshot.
        created_ms: When it was begun, by wall time.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start: int = UNKNOWN_START
    complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()
    update_count: int = 0
    created_ms: int = 0

    def after(self, update: Update) -> "KeptState":
        """What is kept once an update is."""
        start = self.start if update.start == UNCHANGED else update.start
        return replace(
            self,
            start=start,
            complete_count=update.complete_count,
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            batches=tuple(combined(self.batches, update.batches, start)),
            update_count=self.update_count + 1,
        )


def combined(
    before: Sequence[StateBatch], later: Sequence[StateBatch], start: int
) -> Iterator[StateBatch]:
    """What holds after both, from an offset on; neighbours that are alike are one.

    Args:
        before: By offset, apart from each other.
        later: Likewise.
        start: Nothing below it is kept.
    """
    return _joined(_clipped(_laid_over(before, later), start))


def _laid_over(before: Sequence[StateBatch], later: Sequence[StateBatch]) -> list[StateBatch]:
    found = list(later)
    at = 0
    for batch in before:
        first = batch.first
        while at < len(later) and later[at].last < first:
            at += 1
        covering = at
        while first <= batch.last:
            over = later[covering] if covering < len(later) else None
            if over is None or over.first > batch.last:
                found.append(replace(batch, first=first))
                break
            if over.first > first:
                found.append(replace(batch, first=first, last=over.first - 1))
            first = over.last + 1
            covering += 1
    return sorted(found, key=lambda each: each.first)


def _clipped(batches: Iterable[StateBatch], start: int) -> Iterator[StateBatch]:
    for batch in batches:
        if batch.last >= start:
            yield batch if batch.first >= start else replace(batch, first=start)


def _joined(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    last: StateBatch | None = None
    for batch in batches:
        if last is None:
            last = batch
        elif last.last + 1 == batch.first and (last.state, last.count) == (
            batch.state,
            batch.count,
        ):
            last = replace(last, last=batch.last)
        else:
            yield last
            last = batch
    if last is not None:
        yield last
