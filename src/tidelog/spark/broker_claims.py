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
    """Rows that a task is about to write, at most once.

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
    """Outcome of a task's write.

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

    def __init__(
        self, claim: Claim, topic: str | None, find_id: Callable[[str], str] = lambda _: ""
    ) -> None:
        """Begin.

        Args:
            claim: The claim.
            topic: Of all rows; None where each names its own.
            find_id: Looks up a topic's id at the cluster; "" where it has none. Called at most once
                for each topic, before its rows are written.
        """
        self.skipped: dict[str, int] = {}
        self._claim = claim
        self._topic = topic
        self._key = claim.transactional_id if claim.topics_of is None else claim.topics_of
        self._done: Mapping[str, Marker] = {}
        self._find_id = find_id
        # Topics that get rows, with their ids.
        self._topics: dict[str, str] = {}

    def find_done(self, markers: "Markers") -> Sent | None:
        """Read the markers; return what became of the task before if all of its rows are there."""
        self._done = markers.done(self._key, self._claim.batch)
        if self._topic is not None and self._claim.topics_of is not None:
            self._topics[self._topic] = self._find_id(self._topic)
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
        if topic in self.skipped:
            return True
        if topic not in self._topics:
            self._topics[topic] = self._find_id(topic)
        marker = self._marker_of(topic)
        if marker is None:
            return False
        del self._topics[topic]
        self.skipped[topic] = marker.batch
        return True

    def marks(self, note: str) -> tuple[str, list[tuple[bytes, bytes]]]:
        """Return the key that chooses the partition, and the keys and values of the markers."""
        marker = Marker(self._claim.batch, note)
        found = {self._key: marker}
        if self._claim.topics_of is not None:
            found = {
                topic_key(self._key, topic): marker._replace(topic_id=topic_id)
                for topic, topic_id in sorted(self._topics.items())
            }
        return self._key, [(key.encode(), encode_marker(each)) for key, each in found.items()]

    def _marker_of(self, topic: str | None) -> Marker | None:
        """Return the marker by which rows are there: the topic's own, or one for all topics."""
        if self._claim.topics_of is not None and topic is not None:
            own, topic_id = self._done.get(topic_key(self._key, topic)), self._topics[topic]
            if own is not None:
                is_namesake = bool(own.topic_id and topic_id) and own.topic_id != topic_id
                return None if is_namesake else own
        return self._done.get(self._key)
