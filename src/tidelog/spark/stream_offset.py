"""Offset of a stream as Spark stores it, and the check that an offset still fits the log.

Contains the JSON of offsets, and the check of positions against the log (`LossCheck`). This module
does no I/O: the caller of a check passes a snapshot of the log (`LogSnapshot`), and the creator of
`LossCheck` passes functions that look up leader epochs and log ends. The ranges of a micro-batch
are computed in `micro_batches`.

Spark compares offsets as text. Equal offsets must have equal text, or Spark runs empty batches. So
all names are sorted as text, and an unchanged position always has the same text.

    {"from": {"tides": {"1": 0}},
     "topics": {"tides": {"id": "8f0e...", "partitions": {"0": {"epoch": 2, "offset": 57},
                                                          "1": {"epoch": 2, "offset": 9}}}},
     "version": 1}

- `offset` is the next offset to read.
- `epoch` is the leader epoch of the last batch before `offset`, -1 if unknown. A later check uses
  the epoch to see whether that batch is still in the log (KIP-320).
- `from` has start offsets of the batch that ends at this stream offset. It lists only partitions
  whose start does not follow from the previous stream offset: all partitions in a query's first
  batch, new partitions, and partitions that continue at another offset after a loss. Without
  `from`, a batch that is repeated after a crash might begin at another offset. The reason is that
  Spark requests the initial offset of a query again until the first batch is done, and in the
  meantime the log end (`latest`) may have changed.
- `initial` marks the initial offset of a query.

Offsets of Spark's Kafka connector, `{"tides": {"0": 57}}`, are accepted too.

The check looks for these cases in this order:

- The topic was deleted and recreated, so its id has changed: the unread records of the old topic
  are lost, and the new topic is read from its log start.
- The topic or partition was deleted: the partition's unread records are lost, and the partition is
  left out.
- The log starts after the position: the unread records before the log start were deleted, and
  reading continues at the log start.
- The log was rewritten before the position: the position's leader epoch ends before the position's
  offset, or the log has no batch of that epoch any more. Kafka's consumers detect this case by
  OffsetForLeaderEpoch (KIP-320). From the offset at which the old and the new log diverge, the
  records that were read are no longer in the log. Reading continues at this offset, so that every
  record now in the log is read. If this offset is unknown, all offsets from the log start to the
  position count as lost. Reading then continues at the position, or at the log end if the log end
  is lower.
- The log ends before the position, and the log's epochs are unknown: the records that were read
  beyond the log end are no longer in the log, and reading continues at the log end.

Source: KIP-320.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tidelog.errors import InvalidRequest, LostOffsets, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.types import INT64_MAX, NO_LEADER_EPOCH, TopicPartition

VERSION: Final = 1
Json: TypeAlias = dict[str, object]
_Value = TypeVar("_Value")


class Position(NamedTuple):
    """Position of a stream in a partition.

    Attributes:
        offset: Next offset to read.
        epoch: Leader epoch of the last batch before that offset, -1 if unknown.
    """

    offset: int
    epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Progress of a stream: its position in each partition.

    Attributes:
        positions: Position of each partition.
        topic_ids: Ids of the topics in hex, "" if unknown.
        starts: Start offsets of the batch that ends at this stream offset, for partitions whose
            start does not follow from the previous stream offset.
        is_initial: Whether this is the initial offset of a query, before its first batch.
    """

    positions: Mapping[TopicPartition, Position]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_initial: bool = False

    def topic_id(self, topic: str) -> str:
        """Return the topic's id in hex; "" if unknown."""
        return self.topic_ids.get(topic, "")

    def ranges_after(self, before: "StreamOffset") -> dict[TopicPartition, tuple[int, int]]:
        """Return the ranges [start, end) of the batch between two offsets, without empty ranges.

        Raises:
            InvalidRequest: The start in a partition is in neither of the two offsets.
        """
        ranges = {}
        for name, (end, _) in self.positions.items():
            start = self.starts.get(name)
            if start is None:
                start_position = before.positions.get(name)
                if start_position is None:
                    raise InvalidRequest(f"invalid stream offset: it has no start for {name}")
                start = start_position.offset
            if start < end:
                ranges[name] = (start, end)
        return ranges

    def encode(self) -> Json:
        """Return the offset as a JSON object; the objects of equal offsets have equal texts."""
        topics: dict[str, Json] = {}
        for topic, numbers in _by_topic(self.positions).items():
            partitions = {
                str(number): {"epoch": position.epoch, "offset": position.offset}
                for number, position in numbers.items()
            }
            topics[topic] = {"id": self.topic_id(topic), "partitions": _sorted(partitions)}
        encoded: Json = {"topics": _sorted(topics), "version": VERSION}
        if self.starts:
            starts = _by_topic(self.starts)
            encoded["from"] = _sorted(
                {topic: _sorted({str(n): s for n, s in of.items()}) for topic, of in starts.items()}
            )
        if self.is_initial:
            encoded["initial"] = True
        return _sorted(encoded)

    @classmethod
    def decode(cls, encoded: Mapping[str, object]) -> "StreamOffset":
        """Parse a result of `encode`, or an offset of Spark's Kafka connector.

        Raises:
            UnsupportedVersion: The offset has a version that this release does not know.
            InvalidRequest: The object has neither of the two forms.
        """
        version = encoded.get("version")
        if isinstance(version, dict) or version is None:
            return cls(positions=_numbers(encoded, "the offset"), topic_ids={})
        if version != VERSION:
            raise UnsupportedVersion(
                f"offset of the stream: version {version!r}, but this release supports only"
                f" {VERSION}"
            )
        positions: dict[TopicPartition, Position] = {}
        topic_ids: dict[str, str] = {}
        for topic, about in _object(encoded.get("topics"), "topics").items():
            topic_fields = _object(about, topic)
            topic_ids[topic] = _text(topic_fields.get("id"), f"{topic}: id")
            for number, position in _object(
                topic_fields.get("partitions"), f"{topic}: partitions"
            ).items():
                name = TopicPartition(topic, _partition(number))
                positions[name] = _position(name, _object(position, str(name)))
        starts = _numbers(_object(encoded.get("from", {}), "from"), "from")
        return cls(
            positions=positions,
            topic_ids=topic_ids,
            starts={name: position.offset for name, position in starts.items()},
            is_initial=encoded.get("initial") is True,
        )


def _by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[int, _Value]]:
    by_topic: dict[str, dict[int, _Value]] = {}
    for name, value in values.items():
        by_topic.setdefault(name.topic, {})[name.partition] = value
    return by_topic


def _sorted(values: Mapping[str, _Value]) -> dict[str, _Value]:
    return dict(sorted(values.items()))


def _numbers(topics: Mapping[str, object], what: str) -> dict[TopicPartition, Position]:
    """Return the positions in `{"topic": {"0": OFFSET}}`; `what` names the object for errors."""
    return {
        name: Position(_number(offset, f"{what}: {name}", 0))
        for topic, numbers in topics.items()
        for number, offset in _object(numbers, f"{what}: {topic}").items()
        for name in (TopicPartition(topic, _partition(number)),)
    }


def _position(name: TopicPartition, fields: Mapping[str, object]) -> Position:
    offset = _number(fields.get("offset"), f"{name}: offset", 0)
    return Position(offset, _number(fields.get("epoch"), f"{name}: epoch", NO_LEADER_EPOCH))


def _object(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        raise _wrong(what, value, "an object")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(what, value, "text")
    return value


def _number(value: object, what: str, at_least: int) -> int:
    if type(value) is not int or not at_least <= value <= INT64_MAX:
        raise _wrong(what, value, f"a number of at least {at_least}")
    return value


def _partition(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise _wrong("partition", text, "a number")
    return int(text)


def _wrong(what: str, value: object, right: str) -> InvalidRequest:
    return InvalidRequest(f"offset of the stream: {what} is {value!r}, must be {right}")


# Function that returns, for each given partition and epoch, the largest existing epoch at or below
# the given epoch, and the exclusive end offset of the existing epoch; (-1, -1) if unknown.
EpochEnds: TypeAlias = Callable[
    [Mapping[TopicPartition, int]], Mapping[TopicPartition, tuple[int, int]]
]

# Function that takes an offset for each partition, and returns the leader epoch of the last batch
# before this offset; -1 if unknown.
LeaderEpochs: TypeAlias = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]

# Function that returns the log ends of partitions, regardless of isolation level and `readUntil`.
LogEnds: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]

_UNKNOWN: Final = (-1, -1)


class Extent(NamedTuple):
    """Offsets of a partition: [start, end)."""

    start: int
    end: int


class EpochEnd(NamedTuple):
    """Largest epoch at or below a requested epoch, and its exclusive end offset; -1 if unknown."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """State of the log at one time: readable offsets and topic ids.

    Attributes:
        extents: The readable offsets of each existing partition.
        topic_ids: Ids of topics in hex, "" if unknown.
    """

    extents: Mapping[TopicPartition, Extent]
    topic_ids: Mapping[str, str]

    def topic_id(self, topic: str) -> str:
        """Return the topic's id in hex; "" if unknown."""
        return self.topic_ids.get(topic, "")


@dataclass(slots=True)
class StreamCheck:
    """Result of a check: positions at which a stream continues, and lost ranges.

    Attributes:
        positions: Position of each partition that still exists.
        moved: Partitions whose position the check has changed.
        lost: Ranges of offsets that are no longer in the log. The stream may already have read some
            of these offsets.
    """

    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    moved: set[TopicPartition] = field(default_factory=set)
    lost: list[LostOffsets] = field(default_factory=list)


class LossCheck:
    """Checks whether a query's positions are still valid in the log. Not thread-safe."""

    def __init__(
        self, epoch_ends: EpochEnds, leader_epochs: LeaderEpochs, log_ends: LogEnds
    ) -> None:
        self._epoch_ends = epoch_ends
        self._leader_epochs = leader_epochs
        self._log_ends = log_ends
        # Partitions whose log has no known epochs. The epoch of their last batch is requested only
        # once, because each request would read records.
        self._without_epochs: set[TopicPartition] = set()

    def check(
        self,
        offset: StreamOffset,
        snapshot: LogSnapshot,
        last_ends: Mapping[TopicPartition, int] | None = None,
    ) -> StreamCheck:
        """Return the positions at which the stream continues after `offset`, and the lost ranges.

        Args:
            offset: Progress of the stream.
            snapshot: The current state of the log.
            last_ends: Last known end of each partition, exclusive. If a topic was deleted, the
                unread records below this end are lost.
        """
        checked = StreamCheck()
        candidates: dict[TopicPartition, Position] = {}
        for name, position in sorted(offset.positions.items()):
            if (reason := _missing_reason(name, offset, snapshot)) is not None:
                end = max((last_ends or {}).get(name, 0), position.offset)
                checked.lost.append(_lost(name, position.offset, end, reason))
            elif position.offset < (start := snapshot.extents[name].start):
                checked.lost.append(_lost(name, position.offset, start, deleted_before(start)))
                checked.positions[name] = Position(start)
                checked.moved.add(name)
            else:
                candidates[name] = position
        epoch_ends = self._request_ends(candidates, snapshot)
        latest = self._request_latest(candidates, epoch_ends, snapshot)
        behind = [
            name
            for name, position in candidates.items()
            if position.offset > snapshot.extents[name].end
        ]
        log_ends = self._log_ends(behind) if behind else {}
        for name, position in candidates.items():
            epoch, end = epoch_ends.get(name, _UNKNOWN)
            if epoch < 0:
                epoch = latest.get(name, position.epoch)
            start, visible_end = snapshot.extents[name]
            extent = Extent(start, log_ends.get(name, visible_end))
            _add_existing(checked, name, position, EpochEnd(epoch, end), extent)
        return checked

    def _request_ends(
        self, positions: Mapping[TopicPartition, Position], snapshot: LogSnapshot
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        epochs = {
            name: position.epoch
            for name, position in positions.items()
            if position.epoch != NO_LEADER_EPOCH and position.offset > snapshot.extents[name].start
        }
        return self._epoch_ends(epochs) if epochs else {}

    def _request_latest(
        self,
        positions: Mapping[TopicPartition, Position],
        epoch_ends: Mapping[TopicPartition, tuple[int, int]],
        snapshot: LogSnapshot,
    ) -> dict[TopicPartition, int]:
        """Return the latest epoch of logs whose epochs are all below the position's epoch.

        `epoch_ends` has no end for these logs, and no end for logs without known epochs. The epoch
        of a log's last batch distinguishes the two cases.
        """
        ends = {
            name: snapshot.extents[name].end
            for name, answer in epoch_ends.items()
            if answer[0] < 0 and name not in self._without_epochs
        }
        ends = {name: end for name, end in ends.items() if end > snapshot.extents[name].start}
        epochs = self._leader_epochs(ends) if ends else {}
        lower = {n: epoch for n, epoch in epochs.items() if 0 <= epoch < positions[n].epoch}
        self._without_epochs |= ends.keys() - lower.keys()
        return lower


def _missing_reason(
    name: TopicPartition, offset: StreamOffset, snapshot: LogSnapshot
) -> str | None:
    """Return the reason why a partition no longer exists; None if the partition exists."""
    before, now = offset.topic_id(name.topic), snapshot.topic_id(name.topic)
    if before and now and before != now:
        return f"the topic was deleted and recreated: its id was {before}, now {now}"
    if name not in snapshot.extents:
        return (
            "the partition was deleted, or the query no longer reads it; the number of unread"
            " records is unknown"
        )
    return None


def deleted_before(log_start: int) -> str:
    """Return the reason for lost offsets below the log start."""
    return f"deleted before they were read, the log starts at offset {log_start}"


def _add_existing(
    checked: StreamCheck,
    name: TopicPartition,
    position: Position,
    epoch_end: EpochEnd,
    extent: Extent,
) -> None:
    """Add the result for an existing partition whose log starts at or before the position.

    `extent` is the extent of the whole log. A reader with READ_COMMITTED may see an end below the
    position that an earlier reader with READ_UNCOMMITTED reached, although no record is lost.
    """
    if epoch_end.epoch == position.epoch and epoch_end.end_offset >= position.offset:
        checked.positions[name] = position
        return
    ends_before = 0 <= epoch_end.end_offset < position.offset
    if epoch_end.epoch < position.epoch and not ends_before:
        lost_from, next_offset = extent.start, min(position.offset, extent.end)
        reason = (
            f"rewritten after they were read, at an unknown offset: batches before offset"
            f" {position.offset} had leader epoch {position.epoch}, now they have {epoch_end.epoch}"
        )
    elif ends_before:
        # Batches after the epoch's end have later epochs than the position, so none of these
        # batches was read.
        lost_from = next_offset = max(epoch_end.end_offset, extent.start)
        reason = (
            f"rewritten after they were read: records were read up to leader epoch"
            f" {position.epoch}, but the log's records up to that epoch now end at offset"
            f" {epoch_end.end_offset}"
        )
    elif position.offset > extent.end:
        lost_from = next_offset = extent.end
        reason = f"not in the log any more, which ends at offset {extent.end}"
    else:
        checked.positions[name] = position
        return
    checked.lost.append(_lost(name, lost_from, position.offset, reason))
    checked.positions[name] = Position(next_offset)
    checked.moved.add(name)


def find_new(
    offset: StreamOffset, checked: StreamCheck, snapshot: LogSnapshot
) -> tuple[dict[TopicPartition, int], list[LostOffsets]]:
    """Return start offsets and lost ranges of partitions for which the check returned no position.

    A partition without a position is new or was recreated. If it has records, it is read from its
    log start. If the log start is above 0, the offsets before it count as lost, because their
    records may have been written and deleted between two snapshots.
    """
    starts, lost = {}, []
    for name, (start, end) in sorted(snapshot.extents.items()):
        if name in checked.positions or start >= end:
            continue
        starts[name] = start
        if start > 0:
            what = "another" if name in offset.positions else "a new"
            reason = f"{what} partition, whose log starts at offset {start}"
            lost.append(_lost(name, 0, start, reason))
    return starts, lost


def _lost(name: TopicPartition, start: int, end: int, reason: str) -> LostOffsets:
    return LostOffsets(name.topic, name.partition, start, end, reason)
