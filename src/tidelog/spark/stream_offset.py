"""The offset of a stream as Spark keeps it in its checkpoint: JSON whose text is stable.

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
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from tidelog.errors import InvalidRequest, UnsupportedVersion
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
