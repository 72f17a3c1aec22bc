"""The offset of a stream as Spark keeps it in its checkpoint: JSON whose text is stable.

Parts: positions in JSON; still the same log?.

Spark compares offsets as texts: where two say the same they must be spelled the same, or it runs
empty batches. So all names are sorted as text, and what did not move is kept as it was.

    {"from": {"tides": {"1": 0}},
     "topics": {"tides": {"id": "8f0e...", "partitions": {"0": {"epoch": 2, "offset": 57},
                                                          "1": {"epoch": 2, "offset": 9}}}},
     "version": 1}

`offset` is the next one to read. `epoch` is the leader epoch of the last batch before it, -1 where
unknown: it shows later whether that batch is still the same (KIP-320). `from` tells where the batch
that ends here begins, for partitions where the offset before does not: those of a query's first
batch, new ones, and those that go on somewhere else after a loss. Without it a batch that is
repeated after a crash might begin at another place: Spark asks for the first offset of a query
again as long as its first batch is not done, and `latest` is another place then. `initial` marks
such a first offset.

Offsets of Spark's Kafka connector, `{"tides": {"0": 57}}`, are understood too.

Is a position of a stream still a place in the same log? If not, what is lost, where to go on.

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
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from tidelog.errors import InvalidRequest, LostOffsets, UnsupportedVersion
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, TopicPartition

VERSION: Final = 1


Json: TypeAlias = dict[str, object]


_Value = TypeVar("_Value")


class Position(NamedTuple):
    """A place in a partition.

    Attributes:
        offset: The next offset to read.
        epoch: Leader epoch of the last batch before it, -1 where unknown.
    """

    offset: int
    epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """How far a stream is.

    Attributes:
        positions: For each partition, where to read on.
        topic_ids: Ids of their topics in hex, "" where unknown.
        starts: Where the batch that ends here begins, of partitions where the offset before it
            does not say so.
        is_initial: The first offset of a query, before any batch.
    """

    positions: Mapping[TopicPartition, Position]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_initial: bool = False

    def topic_id(self, topic: str) -> str:
        """The topic's id in hex, "" where unknown."""
        return self.topic_ids.get(topic, "")

    def ranges_after(self, before: "StreamOffset") -> dict[TopicPartition, tuple[int, int]]:
        """The offsets [start, end) of the batch from `before` to here; what is empty is left out.

        Raises:
            InvalidRequest: A partition that neither of the two says a start of.
        """
        found = {}
        for name, (end, _) in self.positions.items():
            start = self.starts.get(name)
            if start is None:
                known = before.positions.get(name)
                if known is None:
                    raise InvalidRequest(f"offset of the stream: no start of {name} is known")
                start = known.offset
            if start < end:
                found[name] = (start, end)
        return found

    def encode(self) -> Json:
        """The offset as JSON, always spelled the same."""
        topics: dict[str, Json] = {}
        for topic, numbers in _by_topic(self.positions).items():
            shown = {
                str(number): {"epoch": place.epoch, "offset": place.offset}
                for number, place in numbers.items()
            }
            topics[topic] = {"id": self.topic_id(topic), "partitions": _sorted(shown)}
        found: Json = {"topics": _sorted(topics), "version": VERSION}
        if self.starts:
            starts = _by_topic(self.starts)
            found["from"] = _sorted(
                {topic: _sorted({str(n): s for n, s in of.items()}) for topic, of in starts.items()}
            )
        if self.is_initial:
            found["initial"] = True
        return _sorted(found)

    @classmethod
    def decode(cls, found: Mapping[str, object]) -> "StreamOffset":
        """The offset that `encode` spelled, or one of Spark's Kafka connector.

        Raises:
            UnsupportedVersion: Written by a later release.
            InvalidRequest: Something else.
        """
        version = found.get("version")
        if isinstance(version, dict) or version is None:
            return cls(positions=_numbers(found, "the offset"), topic_ids={})
        if version != VERSION:
            raise UnsupportedVersion(
                f"offset of the stream: version {version!r}, this release knows {VERSION}"
            )
        positions: dict[TopicPartition, Position] = {}
        topic_ids: dict[str, str] = {}
        for topic, about in _object(found.get("topics"), "topics").items():
            told = _object(about, topic)
            topic_ids[topic] = _text(told.get("id"), f"{topic}: id")
            for number, place in _object(told.get("partitions"), f"{topic}: partitions").items():
                name = TopicPartition(topic, _partition(number))
                positions[name] = _position(name, _object(place, str(name)))
        starts = _numbers(_object(found.get("from", {}), "from"), "from")
        return cls(
            positions=positions,
            topic_ids=topic_ids,
            starts={name: place.offset for name, place in starts.items()},
            is_initial=found.get("initial") is True,
        )


def _by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[int, _Value]]:
    found: dict[str, dict[int, _Value]] = {}
    for name, value in values.items():
        found.setdefault(name.topic, {})[name.partition] = value
    return found


def _sorted(found: Mapping[str, _Value]) -> dict[str, _Value]:
    return dict(sorted(found.items()))


def _numbers(found: Mapping[str, object], what: str) -> dict[TopicPartition, Position]:
    """`{"topic": {"0": OFFSET}}`."""
    return {
        name: Position(_number(offset, f"{what}: {name}", 0))
        for topic, numbers in found.items()
        for number, offset in _object(numbers, f"{what}: {topic}").items()
        for name in (TopicPartition(topic, _partition(number)),)
    }


def _position(name: TopicPartition, told: Mapping[str, object]) -> Position:
    offset = _number(told.get("offset"), f"{name}: offset", 0)
    return Position(offset, _number(told.get("epoch"), f"{name}: epoch", NO_LEADER_EPOCH))


def _object(found: object, what: str) -> Json:
    if not isinstance(found, dict):
        raise _wrong(what, found, "an object")
    return cast("Json", found)


def _text(found: object, what: str) -> str:
    if not isinstance(found, str):
        raise _wrong(what, found, "a text")
    return found


def _number(found: object, what: str, at_least: int) -> int:
    if type(found) is not int or not at_least <= found <= INT64_MAX:
        raise _wrong(what, found, f"a number from {at_least} on")
    return found


def _partition(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise _wrong("partition", text, "a number")
    return int(text)


def _wrong(what: str, found: object, right: str) -> InvalidRequest:
    return InvalidRequest(f"offset of the stream: {what} is {found!r}, {right} is needed")


# For each partition and epoch asked: the largest epoch there is up to it, and its end offset,
# exclusive; -1, -1 where that can't be told.
EpochEnds: TypeAlias = Callable[
    [Mapping[TopicPartition, int]], Mapping[TopicPartition, tuple[int, int]]
]


# For each partition and offset asked: the leader epoch of the last batch below; -1 where unknown.
LeaderEpochs: TypeAlias = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]


# The ends of logs, whatever a reader may see of them.
LogEnds: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]


_UNKNOWN: Final = (-1, -1)


class Extent(NamedTuple):
    """The offsets that a partition holds: [start, end)."""

    start: int
    end: int


class EpochEnd(NamedTuple):
    """What a log says of an epoch: the largest it has up to there, and its end, -1 if unknown."""

    epoch: int
    end_offset: int


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
    """Holds positions against what was seen of the log. One for each query; one owner."""

    def __init__(
        self, epoch_ends: EpochEnds, leader_epochs: LeaderEpochs, log_ends: LogEnds
    ) -> None:
        self._epoch_ends = epoch_ends
        self._leader_epochs = leader_epochs
        self._log_ends = log_ends
        # Partitions whose log can't tell about epochs; asking costs a read of each.
        self._blind: set[TopicPartition] = set()

    def check(
        self,
        offset: StreamOffset,
        seen: Seen,
        last_ends: Mapping[TopicPartition, int] | None = None,
    ) -> Checked:
        """Where to read on after `offset`, and what is lost.

        Args:
            offset: How far the stream is.
            seen: The log as it is now.
            last_ends: Ends of partitions as last seen: how much of a deleted topic was unread.
        """
        found = Checked()
        kept: dict[TopicPartition, Position] = {}
        for name, place in sorted(offset.positions.items()):
            if (reason := _gone(name, offset, seen)) is not None:
                end = max((last_ends or {}).get(name, 0), place.offset)
                found.lost.append(_lost(name, place.offset, end, reason))
            elif place.offset < (start := seen.extents[name].start):
                found.lost.append(_lost(name, place.offset, start, deleted_before(start)))
                found.positions[name] = Position(start)
                found.moved.add(name)
            else:
                kept[name] = place
        told = self._ask_ends(kept, seen)
        latest = self._ask_latest(kept, told, seen)
        behind = [name for name, place in kept.items() if place.offset > seen.extents[name].end]
        log_ends = self._log_ends(behind) if behind else {}
        for name, place in kept.items():
            epoch, end = told.get(name, _UNKNOWN)
            if epoch < 0:
                epoch = latest.get(name, place.epoch)
            start, visible_end = seen.extents[name]
            extent = Extent(start, log_ends.get(name, visible_end))
            _add_kept(found, name, place, EpochEnd(epoch, end), extent)
        return found

    def _ask_ends(
        self, places: Mapping[TopicPartition, Position], seen: Seen
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        asked = {
            name: place.epoch
            for name, place in places.items()
            if place.epoch != NO_LEADER_EPOCH and place.offset > seen.extents[name].start
        }
        return self._epoch_ends(asked) if asked else {}

    def _ask_latest(
        self,
        places: Mapping[TopicPartition, Position],
        told: Mapping[TopicPartition, tuple[int, int]],
        seen: Seen,
    ) -> dict[TopicPartition, int]:
        """The latest epochs of logs that have none as high as the one asked for.

        Such a log answers nothing, as one does that knows no epochs: its last batch tells the two
        apart.
        """
        ends = {
            name: seen.extents[name].end
            for name, answer in told.items()
            if answer[0] < 0 and name not in self._blind
        }
        ends = {name: end for name, end in ends.items() if end > seen.extents[name].start}
        found = self._leader_epochs(ends) if ends else {}
        lower = {n: epoch for n, epoch in found.items() if 0 <= epoch < places[n].epoch}
        self._blind |= ends.keys() - lower.keys()
        return lower


def _gone(name: TopicPartition, offset: StreamOffset, seen: Seen) -> str | None:
    """Why the partition is not there any more; None where it is."""
    before, now = offset.topic_id(name.topic), seen.topic_id(name.topic)
    if before and now and before != now:
        return f"the topic was deleted and created anew: its id was {before}, now {now}"
    if name not in seen.extents:
        return "deleted, or not among those read any more; how much came behind is not known"
    return None


def deleted_before(log_start: int) -> str:
    """What to say of offsets below the log start."""
    return f"deleted before they were read, the log starts at {log_start}"


def _add_kept(
    found: Checked, name: TopicPartition, place: Position, told: EpochEnd, extent: Extent
) -> None:
    """Add a partition that is still there and reaches back to the position.

    `extent` is that of the log: a reader of committed transactions may see less of it than one
    that read on before, and has lost nothing.
    """
    if told.epoch == place.epoch and told.end_offset >= place.offset:
        found.positions[name] = place
        return
    ends_before = 0 <= told.end_offset < place.offset
    if told.epoch < place.epoch and not ends_before:
        lost_from, go_on = extent.start, min(place.offset, extent.end)
        reason = (
            f"rewritten after they were read, from an offset on that is not known: batches before"
            f" {place.offset} were of leader epoch {place.epoch}, now of {told.epoch}"
        )
    elif ends_before:
        # What lies behind is of later epochs than the position's, so none of it was read.
        lost_from = go_on = max(told.end_offset, extent.start)
        reason = (
            f"rewritten after they were read up to leader epoch {place.epoch}: of epochs up to it"
            f" the log has none behind {told.end_offset} any more"
        )
    elif place.offset > extent.end:
        lost_from = go_on = extent.end
        reason = f"not in the log any more, which ends at {extent.end}"
    else:
        found.positions[name] = place
        return
    found.lost.append(_lost(name, lost_from, place.offset, reason))
    found.positions[name] = Position(go_on)
    found.moved.add(name)


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
