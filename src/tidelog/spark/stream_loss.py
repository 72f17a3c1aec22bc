"""Is a position of a stream still a place in the same log? If not, what is lost, where to go on.

Cases, in this order:
- the topic or partition is gone: what was not read of it is lost, and it is left out;
- the topic has another id, so it was deleted and created anew: likewise, and the new one is read
  from its start;
- the log starts behind the position: what lies between was deleted unread; on from the log start;
- the log was rewritten before the position: the leader epoch of the last batch read ends earlier
  now, or no batch of it is there any more (as a consumer finds out by OffsetForLeaderEpoch,
  KIP-320). What was read from there on is not in the log any more; on from where the two logs
  part, so that everything that is in the log now is read;
- the log ends before the position, and its epochs tell nothing: likewise, from its end.

Pure: takes what was seen of the log, see `Seen`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tidelog.errors import LostOffsets
from tidelog.spark.stream_offset import Position, StreamOffset
from tidelog.types import NO_LEADER_EPOCH, TopicPartition

# For each partition and epoch asked: the largest epoch there is up to it, and its end offset,
# exclusive; -1, -1 where that can't be told.
EpochEnds: TypeAlias = Callable[
    [Mapping[TopicPartition, int]], Mapping[TopicPartition, tuple[int, int]]
]
# For each partition and offset asked: the leader epoch of the last batch below; -1 where unknown.
LeaderEpochs: TypeAlias = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]

_UNKNOWN: Final = (-1, -1)


class Extent(NamedTuple):
    """The offsets that a partition holds: [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the log at one moment.

    Attributes:
        extents: For each partition there is, its offsets that may be read.
        topic_ids: Ids of topics in hex, "" where unknown.
    """

    extents: Mapping[TopicPartition, Extent]
    topic_ids: Mapping[str, str]

    def topic_id(self, topic: str) -> str:
        """The topic's id in hex, "" where unknown."""
        return self.topic_ids.get(topic, "")


@dataclass(slots=True)
class Checked:
    """Where a stream reads on.

    Attributes:
        positions: For each partition that is still there, the position.
        moved: Those of them that are not where the stream had been.
        lost: What is not in the log any more, read or unread.
    """

    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    moved: set[TopicPartition] = field(default_factory=set)
    lost: list[LostOffsets] = field(default_factory=list)


class LossCheck:
    """Holds positions against what was seen of the log."""

    def __init__(self, seen: Seen, epoch_ends: EpochEnds, leader_epochs: LeaderEpochs) -> None:
        self._seen = seen
        self._epoch_ends = epoch_ends
        self._leader_epochs = leader_epochs

    def check(
        self, offset: StreamOffset, last_ends: Mapping[TopicPartition, int] | None = None
    ) -> Checked:
        """Where to read on after `offset`, and what is lost.

        Args:
            offset: How far the stream is.
            last_ends: Ends of partitions as last seen: how much of a deleted topic was unread.
        """
        found = Checked()
        kept = []
        for name, place in sorted(offset.positions.items()):
            if (reason := self._gone(name, offset)) is not None:
                end = max((last_ends or {}).get(name, 0), place.offset)
                found.lost.append(_lost(name, place.offset, end, reason))
            elif place.offset < self._seen.extents[name].start:
                self._deleted_before(found, name, place)
            else:
                kept.append(name)
        ends = self._ends(offset, kept)
        for name in kept:
            self._check_kept(found, name, offset.positions[name], ends.get(name, _UNKNOWN))
        return found

    def _gone(self, name: TopicPartition, offset: StreamOffset) -> str | None:
        """Why the partition is not there any more; None where it is."""
        before, now = offset.topic_id(name.topic), self._seen.topic_id(name.topic)
        if before and now and before != now:
            return f"the topic was deleted and created anew: its id was {before}, now {now}"
        if name not in self._seen.extents:
            return "the partition was deleted; how much came behind is not known"
        return None

    def _deleted_before(self, found: Checked, name: TopicPartition, place: Position) -> None:
        start = self._seen.extents[name].start
        reason = f"deleted before they were read, the log starts at {start}"
        found.lost.append(_lost(name, place.offset, start, reason))
        found.positions[name] = Position(start)
        found.moved.add(name)

    def _ends(
        self, offset: StreamOffset, names: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        asked = {}
        for name in names:
            place = offset.positions[name]
            if place.epoch != NO_LEADER_EPOCH and place.offset > self._seen.extents[name].start:
                asked[name] = place.epoch
        return self._epoch_ends(asked) if asked else {}

    def _check_kept(
        self, found: Checked, name: TopicPartition, place: Position, told: tuple[int, int]
    ) -> None:
        start, end = self._seen.extents[name]
        epoch, epoch_end = told
        go_on, lost_from, reason = place.offset, place.offset, ""
        if epoch == place.epoch != NO_LEADER_EPOCH:
            if epoch_end < place.offset:
                go_on = lost_from = max(epoch_end, start)
                reason = f"rewritten after they were read: leader epoch {epoch} ends at {epoch_end}"
            # Else the position is right, even behind an end that the isolation level sets.
        elif (now := self._other_epoch(name, place, told)) != NO_LEADER_EPOCH:
            go_on, lost_from = min(place.offset, end), start
            reason = (
                f"rewritten after they were read, from an offset on that is not known: batches"
                f" before {place.offset} were of leader epoch {place.epoch}, now of {now}"
            )
        elif place.offset > end:
            go_on = lost_from = end
            reason = f"not in the log any more, which ends at {end}"
        if not reason:
            found.positions[name] = place
            return
        found.lost.append(_lost(name, lost_from, place.offset, reason))
        found.positions[name] = Position(go_on)
        found.moved.add(name)

    def _other_epoch(self, name: TopicPartition, place: Position, told: tuple[int, int]) -> int:
        """The lower epoch that batches before the position are of now; -1 where nothing says so.

        Asked for an epoch above all of its own the log answers nothing, as it does where it knows
        no epochs: its last batch tells the two apart.
        """
        start, end = self._seen.extents[name]
        if place.epoch == NO_LEADER_EPOCH or place.offset <= start:
            return NO_LEADER_EPOCH
        if told != _UNKNOWN:
            return told[0]
        if end <= start:
            return NO_LEADER_EPOCH
        latest = self._leader_epochs({name: end}).get(name, NO_LEADER_EPOCH)
        return latest if latest < place.epoch else NO_LEADER_EPOCH


def find_new(
    offset: StreamOffset, checked: Checked, seen: Seen
) -> tuple[dict[TopicPartition, int], list[LostOffsets]]:
    """Partitions that hold records and are not among those checked, with where they start.

    They are read from the start of their log; where that is not 0, what came before is lost, as it
    may have been written and deleted between two looks.
    """
    starts, lost = {}, []
    for name, (start, end) in sorted(seen.extents.items()):
        if name in checked.positions or start >= end:
            continue
        starts[name] = start
        if start > 0:
            what = "another" if name in offset.positions else "a new"
            reason = f"{what} partition, whose log starts at {start}"
            lost.append(_lost(name, 0, start, reason))
    return starts, lost


def _lost(name: TopicPartition, start: int, end: int, reason: str) -> LostOffsets:
    return LostOffsets(name.topic, name.partition, start, end, reason)
