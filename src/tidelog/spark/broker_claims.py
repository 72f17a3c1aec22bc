"""Claims of the sink's tasks: what a task writes at most once, and what was there before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tidelog.spark.broker_markers import Marker, encode_marker, topic_key

if TYPE_CHECKING:
    from tidelog.spark.broker_markers import Markers


@dataclass(frozen=True, slots=True)
class Claim:
    """What a task is about to write, at most once.

    Attributes:
        transactional_id: Of this task in all batches of its writer.
        batch: From 0 on, growing.
        note: Asked once all rows have their offsets: what to keep in the marker, to be found
            again with it. A megabyte is too much for most brokers.
        topics_of: Key under which each topic counts its batches (`broker_markers.topic_key`); None
            where the transactional id counts for all of them.
    """

    transactional_id: str
    batch: int
    note: Callable[[], str] | None = None
    topics_of: str | None = None


class Sent(NamedTuple):
    """What became of a task's rows.

    Attributes:
        records: How many were written.
        was_done: They had been written before; nothing was done.
        note: What the claim noted with them, now or before.
        skipped: Topics that had this batch or a later one, and the last batch of each. Rows for
            them were not written.
    """

    records: int
    was_done: bool = False
    note: str = ""
    skipped: Mapping[str, int] = MappingProxyType({})


class ClaimedTopics:
    """Topics of one task's claim: which have the rows already, and which get them. One thread."""

    def __init__(self, claim: Claim, topic: str | None) -> None:
        """Begin.

        Args:
            claim: The claim.
            topic: Of all rows; None where each names its own.
        """
        self.skipped: dict[str, int] = {}
        self._claim = claim
        self._topic = topic
        self._key = claim.transactional_id if claim.topics_of is None else claim.topics_of
        self._done: Mapping[str, Marker] = {}
        self._topics: set[str] = set() if topic is None else {topic}

    def find_done(self, markers: "Markers") -> Sent | None:
        """Read the markers; return what became of the task before if all of its rows are there."""
        self._done = markers.done(self._key, self._claim.batch)
        marker = self._marker_of(self._topic)
        if marker is None:
            return None
        note = marker.note if marker.batch == self._claim.batch else ""
        is_topic = self._claim.topics_of is not None and self._topic is not None
        skipped = {self._topic or "": marker.batch} if is_topic else {}
        return Sent(0, was_done=True, note=note, skipped=skipped)

    def is_done(self, topic: str) -> bool:
        """Whether a topic has the rows already; else remember that it gets them now."""
        if self._claim.topics_of is None:
            return False  # `find_done` has answered for all topics
        marker = self._marker_of(topic)
        if marker is None:
            self._topics.add(topic)
            return False
        self.skipped[topic] = marker.batch
        return True

    def marks(self, note: str) -> tuple[str, list[bytes], bytes]:
        """Return the key that chooses the partition, the keys of the markers, and their value."""
        keys = [self._key]
        if self._claim.topics_of is not None:
            keys = [topic_key(self._key, topic) for topic in sorted(self._topics)]
        value = encode_marker(Marker(self._claim.batch, note))
        return self._key, [key.encode() for key in keys], value

    def _marker_of(self, topic: str | None) -> Marker | None:
        """Return the marker by which rows are there: the topic's own, or one for all topics."""
        is_topic = self._claim.topics_of is not None and topic is not None
        own = self._done.get(topic_key(self._key, topic or "")) if is_topic else None
        return own or self._done.get(self._key)
