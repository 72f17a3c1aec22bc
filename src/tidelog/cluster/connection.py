"""A cluster of brokers, asked through confluent-kafka: topics, offsets, single records.

Nothing waits longer than its time-out, and whatever the client library reports becomes a
ClusterFailure that names the cluster, what was tried and what the broker said.

Life cycle: connect -> calls -> close, best by `with`. For one thread.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from tidelog.closing import Closing
from tidelog.cluster import codes, groups, offsets, remote
from tidelog.cluster.access_checks import is_direct
from tidelog.cluster.client import Client
from tidelog.cluster.view import (
    Appended,
    Committed,
    Group,
    GroupListing,
    RemoteRecord,
    Watermarks,
)
from tidelog.env import Clock, SystemClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import MissingDependency, UnknownTopic
from tidelog.storage.topic_info import named_few
from tidelog.types import MAX_TIMESTAMP, IsolationLevel, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from tidelog.cluster.told_search import ToldSearch

TIMEOUT_S: Final = 15.0


def require_client() -> None:
    """Raise MissingDependency where confluent-kafka is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "brokers are reached by confluent-kafka; `pip install 'tidelog[kafka]'`"
        ) from error


def connect(
    bootstrap: str,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    clock: Clock | None = None,
) -> "Cluster":
    """A cluster to ask; the first question connects.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: librdkafka's settings, e.g. from `properties.client_settings`.
        timeout_s: For each request, in seconds; an hour at most.
        clock: For deadlines; the machine's where None.

    Raises:
        MissingDependency: confluent-kafka is not installed.
        ConfigError: There can't be such a server or time-out.
    """
    require_client()
    return Cluster(bootstrap, config or {}, timeout_s=timeout_s, clock=clock or SystemClock())


class Cluster(Closing, Client):
    """One cluster; a `ClusterView`."""

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        """Return all topics with their numbers of partitions.

        Raises:
            ClusterFailure: No broker answers, or one can't tell a topic's partitions.
        """
        return self.answer(self._topics, unready=codes.LEADER_COMES)

    def _topics(self) -> dict[str, int]:
        with self.typed("list topics"):
            found = self.admin().list_topics(timeout=self.timeout_s)
        for name, topic in found.topics.items():
            error = topic.error
            if error is not None and error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.failure(f"list the partitions of topic {name}", error)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; raises UnknownTopic, which names the nearest one."""
        topics = self.topics()
        if not topics.get(topic):
            near = difflib.get_close_matches(topic, topics, n=1)
            hint = f"; is it {near[0]}?" if near else f"; there are: {named_few(sorted(topics))}"
            raise UnknownTopic(f"{self.bootstrap} has no topic {topic}{hint if topics else ''}")
        return [TopicPartition(topic, number) for number in range(topics[topic])]

    def topic_settings(self, topic: str) -> dict[str, str]:
        """A topic's settings in force, under Kafka's names."""
        return offsets.topic_settings(self, topic)

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as Kafka prints it, None where the cluster has none."""
        return self.topic_ids([topic])[topic]

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Topics' ids as Kafka prints them, None where the cluster has none."""
        return offsets.topic_ids(self, topics)

    # -- offsets -----------------------------------------------------------------------------

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        """Log start, and high watermark or (READ_COMMITTED) last stable offset."""
        return offsets.watermarks(self, list(partitions), isolation)

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record whose timestamp is the time in ms or later, None where there is none."""
        found = offsets.lookup(self, times, isolation)
        return {p: answer if answer.offset >= 0 else None for p, answer in found.items()}

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The record with the largest timestamp, None where no record has one.

        After deleted records Kafka may name one below the log start.
        """
        asked = dict.fromkeys(partitions, MAX_TIMESTAMP)
        found = offsets.lookup(self, asked, IsolationLevel.READ_UNCOMMITTED)
        return {p: answer if answer.offset >= 0 else None for p, answer in found.items()}

    # -- append times ------------------------------------------------------------------------

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """When the records at these offsets were appended, in ms, where brokers tell it."""
        return self._told_search.append_times(offsets)

    def first_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record appended at a time or later, of partitions whose brokers tell times."""
        return self._told_search.first_appended(marks, time_ms)

    def told_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, Appended]:
        """A search by append time, of partitions whose brokers make one: ours, in plain text."""
        return self._told_search.told_appended(marks, time_ms)

    @cached_property
    def _told_search(self) -> "ToldSearch":
        from tidelog.cluster.told_search import ToldSearch, batch_fetch  # few questions need it

        if not is_direct(self._config):
            return ToldSearch(None)
        name = self._config.get("client.id", "tidelog")
        fetch = partial(batch_fetch, self.bootstrap, name, self._clock, self.timeout_s)
        return ToldSearch(fetch)

    # -- groups ------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """All consumer groups, sorted."""
        return groups.names(self)

    def group_listings(self) -> list[GroupListing]:
        """All consumer groups with their states, by name."""
        return groups.listings(self)

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete groups with what they committed; raises UnknownGroup, GroupActive."""
        groups.delete(self, names)

    def group(self, name: str) -> Group:
        """A consumer group; raises UnknownGroup."""
        return groups.describe(self, name)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """What a group committed, of all its partitions where None; None for no commit."""
        return groups.committed(self, group, partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit for a group without members; raises GroupActive where it has some."""
        groups.commit(self, group, offsets)

    # -- records -----------------------------------------------------------------------------

    def fetch(self, partition: TopicPartition, offset: int) -> RemoteRecord | None:
        """The first data record at or behind an offset, None where the log ends before one."""
        return self.first_records({partition: offset})[partition]

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        """The first data record at or behind each offset, None where the log ends before one."""
        return remote.first_records(self, offsets, isolation)

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        """The data records with offsets in [start, end), in order."""
        return remote.records(self, partition, start, end, isolation)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close what was opened; a closed connection opens again at its next question."""
        self._admin = None

    def close_for_good(self) -> None:
        """Close what was opened; what is asked later raises Closed."""
        self._is_closed = True
        self.close()
