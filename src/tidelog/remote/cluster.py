"""Client of a cluster through confluent-kafka: topics, offsets, consumer groups, single records.

Records are read by offset with a consumer that joins no group and commits nothing. Every call has a
timeout. Errors without a more specific type become ClusterFailure, which names the cluster and the
operation.

Life cycle: connect, calls, close; best used in a `with` block. Not thread-safe.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.closing import Closing
from tidelog.env import Clock, SystemClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    GroupActive,
    InvalidRequest,
    MissingDependency,
    NotAuthorized,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownTopic,
)
from tidelog.record.record import Record
from tidelog.remote import client as codes
from tidelog.remote.client import Client
from tidelog.remote.view import (
    Committed,
    Group,
    GroupListing,
    GroupOffsets,
    Member,
    RemoteRecord,
    Watermarks,
)
from tidelog.storage.directory.topic_registry import named_few
from tidelog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    UNKNOWN_MS,
    Buffer,
    Header,
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TimestampType,
    TopicPartition,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    import confluent_kafka as ck
    from confluent_kafka.admin import (
        ConfigEntry,
        ListOffsetsResultInfo,
    )
    from confluent_kafka.admin._group import (
        ConsumerGroupDescription,
        ConsumerGroupListing,
        MemberDescription,
    )

    from tidelog.record.offset_order import Reach
    from tidelog.remote.partition_fetch import PartitionFetch
    from tidelog.remote.time_lookup import AppendTimeLookup


_DEAD: Final = "DEAD"


def _words(name: str) -> str:
    """Return a state or type as Kafka prints it: `PreparingRebalance` for `PREPARING_REBALANCE`."""
    return name.replace("_", " ").title().replace(" ", "")


def _member(member: "MemberDescription") -> Member:
    assigned = member.assignment.topic_partitions
    partitions = sorted(TopicPartition(p.topic, p.partition) for p in assigned)
    return Member(member.member_id, member.client_id, member.host, tuple(partitions))


def _group(name: str, described: "ConsumerGroupDescription | None") -> Group | None:
    if described is None or described.state.name == _DEAD:
        return None
    members = tuple(_member(member) for member in described.members)
    return Group(name, _words(described.state.name), members)


def _partition(partition: "ck.TopicPartition") -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _ck_commit(partition: TopicPartition, offset: Committed) -> "ck.TopicPartition":
    from confluent_kafka import TopicPartition as CkPartition

    if offset.leader_epoch is None:
        return CkPartition(partition.topic, partition.partition, offset.offset)
    return CkPartition(
        partition.topic, partition.partition, offset.offset, leader_epoch=offset.leader_epoch
    )


_AT_ONCE: Final = 5_000


def _ck_partition(partition: TopicPartition, offset: int | None = None) -> "ck.TopicPartition":
    from confluent_kafka import TopicPartition as CkPartition

    if offset is None:
        return CkPartition(partition.topic, partition.partition)
    return CkPartition(partition.topic, partition.partition, offset)


def partition_of(message: "ck.Message") -> TopicPartition:
    """Return the partition of a message that is a record or marks the end of a partition."""
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return TopicPartition(topic, number)


def decoded(message: "ck.Message") -> RemoteRecord:
    """Convert a message to a record. The message must not be an error."""
    offset = message.offset()
    assert offset is not None
    kind, timestamp = message.timestamp()
    pairs = message.headers() or []
    listed = pairs.items() if isinstance(pairs, dict) else pairs
    return RemoteRecord(
        offset=offset,
        timestamp=None if kind == 0 or timestamp < 0 else timestamp,
        # librdkafka's codes for timestamp types are one higher than Kafka's, and 0 means no
        # timestamp.
        timestamp_type=TimestampType(kind - 1),
        leader_epoch=message.leader_epoch(),
        key=message.key(),
        value=message.value(),
        headers=tuple(Header(key, _header_bytes(value)) for key, value in listed),
    )


def as_record(record: RemoteRecord) -> Record:
    """Convert a record to a directory's `Record`; a LogAppendTime record has no create time."""
    is_created = record.timestamp_type is TimestampType.CREATE_TIME
    return Record(
        offset=record.offset,
        timestamp=NO_TIMESTAMP if record.timestamp is None else record.timestamp,
        timestamp_type=record.timestamp_type,
        key=record.key,
        value=record.value,
        headers=record.headers,
        create_timestamp=record.timestamp if is_created else None,
    )


def _header_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


TIMEOUT_S: Final = 15.0


def _ensure_group_names(names: Iterable[str]) -> None:
    """Raise InvalidRequest for an empty name, which brokers refuse without naming the fault."""
    if "" in names:
        raise InvalidRequest("the name of a group must not be empty")


@contextmanager
def _denied_to(group: str, denied: dict[str, NotAuthorized] | None) -> Iterator[None]:
    """If the `with` block raises NotAuthorized, store the error in `denied`, by the group's name.

    If `denied` is None, the error is raised.
    """
    try:
        yield
    except NotAuthorized as error:
        if denied is None or error.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
            raise
        denied[group] = error


def require_client() -> None:
    """Raise MissingDependency if confluent-kafka is not installed."""
    try:
        import confluent_kafka  # noqa: F401 - only to check that it is installed
    except ImportError as error:
        raise MissingDependency(
            "connecting to brokers needs confluent-kafka: pip install 'tidelog[kafka]'"
        ) from error


def connect(
    bootstrap: str,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    clock: Clock | None = None,
) -> "Cluster":
    """Return a cluster; the connection is opened by the first request.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: librdkafka's settings, e.g. from `client_settings.client_settings`.
        timeout_s: Timeout of each request, in seconds; at most an hour.
        clock: Clock for timeouts; the machine's clock if None.

    Raises:
        MissingDependency: confluent-kafka is not installed.
        ConfigError: `bootstrap` or `timeout_s` is invalid.
    """
    require_client()
    return Cluster(bootstrap, config or {}, timeout_s=timeout_s, clock=clock or SystemClock())


# Maximum number of groups whose committed offsets are requested at the same time.
_GROUPS_AT_ONCE: Final = 100


class Cluster(Closing, Client):
    """Client of one cluster; implements `ClusterView`."""

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        """Return all topics, each with its count of partitions.

        Raises:
            ClusterFailure: No broker responds, or a broker reports an error instead of a topic's
                partitions.
        """
        return self.retry(self._topics, unready=codes.LEADER_COMES)

    def _topics(self) -> dict[str, int]:
        with self.typed("list topics"):
            metadata = self.admin().list_topics(timeout=self.timeout_s)
        for name, topic in metadata.topics.items():
            error = topic.error
            if error is not None and error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.failure(f"list the partitions of topic {name}", error)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic; raises UnknownTopic, which suggests a similar name."""
        topics = self.topics()
        if not topics.get(topic):
            near = difflib.get_close_matches(topic, topics, n=1)
            if near:
                hint = f"; did you mean {near[0]}?"
            else:
                hint = f"; there are: {named_few(sorted(topics))}"
            raise UnknownTopic(f"{self.bootstrap} has no topic {topic}{hint if topics else ''}")
        return [TopicPartition(topic, number) for number in range(topics[topic])]

    def topic_settings(self, topic: str) -> dict[str, str]:
        """Return the settings that apply to a topic and have a value, under Kafka's names."""
        entries = self.topic_configs([topic])[topic]
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def topic_configs(
        self, topics: Sequence[str], *, skips_denied: bool = False
    ) -> "dict[str, dict[str, ConfigEntry]]":
        """Return all settings that apply to each topic, under Kafka's names, with their origin.

        Args:
            topics: Names of the topics.
            skips_denied: Whether the settings of a topic are left out if the user may not read
                them. If false, such a topic causes an error.
        """
        from confluent_kafka.admin import ConfigResource, ResourceType

        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self.admin().describe_configs(resources, request_timeout=self.timeout_s)
        operation = f"read the settings of {named_few(topics)}"
        entries: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for resource in resources:
            try:
                entries |= self.results(operation, {resource: futures[resource]})
            except NotAuthorized as error:
                if not skips_denied or error.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise
        return {resource.name: entries[resource] for resource in resources if resource in entries}

    def topic_id(self, topic: str) -> str | None:
        """Return the topic's id as Kafka prints it; None if the brokers have no topic ids."""
        return self.topic_ids([topic])[topic]

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Return topics' ids as Kafka prints them; None if the brokers have no topic ids."""
        from confluent_kafka import TopicCollection

        if not topics:
            return {}
        futures = self.admin().describe_topics(
            TopicCollection(list(topics)), request_timeout=self.timeout_s
        )
        described = self.results(f"describe {', '.join(topics)}", futures)
        return {topic: codes.id_text(described[topic].topic_id) for topic in topics}

    # -- offsets -----------------------------------------------------------------------------

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        """Return log start offsets and high watermarks (READ_COMMITTED: last stable offsets)."""
        partitions = list(partitions)
        starts = self._list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), isolation)
        ends = self._list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation)
        return {p: Watermarks(starts[p].offset, ends[p].offset) for p in partitions}

    def _list_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return ListOffsets' results for times in ms or special values.

        The offset is -1 if no record matches.

        Raises:
            ClusterFailure: A partition has no leader, its leader did not respond in time, or a
                broker refuses.
        """
        from confluent_kafka import IsolationLevel as Level
        from confluent_kafka import TopicPartition as CkPartition
        from confluent_kafka.admin import OffsetSpec

        if not times:
            return {}
        level = Level.READ_COMMITTED if isolation else Level.READ_UNCOMMITTED
        # `OffsetSpec` is abstract, but its constructor returns an instance of a concrete subclass.
        specs = {
            CkPartition(p.topic, p.partition): OffsetSpec(ms)  # type: ignore[abstract] # see above
            for p, ms in times.items()
        }

        def request() -> dict[TopicPartition, OffsetAndTimestamp]:
            futures = self.admin().list_offsets(
                specs, isolation_level=level, request_timeout=self.timeout_s
            )
            matches = {}
            for partition, future in futures.items():
                name = TopicPartition(partition.topic, partition.partition)
                matches[name] = self._offset_in(name, future)
            return matches

        # librdkafka does not repeat the request while a partition has no leader.
        matches = self.retry(request, unready=codes.LEADER_COMES)
        # If a leader can't be reached, librdkafka reports no error, and the result keeps its
        # initial offset, -1001. In a search by time, -1 is the leader's response if no record
        # matches. The start and the end of a log are never negative, so any negative offset for
        # them means that the leader did not respond.
        silent = [
            name
            for name, time_ms in times.items()
            if name not in matches
            or matches[name].offset
            < (0 if time_ms in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP) else -1)
        ]
        if silent:
            reason = f"no response from the leader within {self.timeout_s:g} s"
            raise self.unanswered("look up offsets", silent, reason)
        return matches

    def _offset_in(
        self, name: TopicPartition, future: "Future[ListOffsetsResultInfo]"
    ) -> OffsetAndTimestamp:
        """Return the offset in a partition's response; raises ClusterFailure."""
        try:
            (result,) = self.results(f"look up offsets of {name}", {name: future}).values()
        except ClusterFailure as error:
            # Source: KIP-79. No record has a time, so none matches. Java's consumer treats this
            # error in the same way.
            if error.error_code != ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                raise
            return OffsetAndTimestamp(NO_OFFSET, NO_TIMESTAMP)
        return OffsetAndTimestamp(result.offset, result.timestamp, result.leader_epoch)

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's first record, by offset, whose time is at or after a given time.

        The value of a partition without such a record is None.
        """
        matches = self._list_offsets(times, isolation)
        return {p: match if match.offset >= 0 else None for p, match in matches.items()}

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's record with the largest timestamp; None if no record has one.

        After a deletion of records, Kafka may return a record below the log start.
        """
        times = dict.fromkeys(partitions, MAX_TIMESTAMP)
        matches = self._list_offsets(times, IsolationLevel.READ_UNCOMMITTED)
        return {p: match if match.offset >= 0 else None for p, match in matches.items()}

    # -- append times ------------------------------------------------------------------------

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return append times in ms of the records at these offsets.

        A partition has no entry if its record's append time is unknown.
        """
        with closing(self.append_time_lookup(max_bytes=1)) as lookup:
            times = {name: lookup.time_at(name, offset) for name, offset in offsets.items()}
        return {name: append_ms for name, append_ms in times.items() if append_ms != UNKNOWN_MS}

    def search_append_times(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, TimeMatch]:
        """Return each partition's first record that was appended at `time_ms` or later.

        The result has no entry for a partition with records in two cases: its leader is no tidelog
        broker, or its leader can be reached only through librdkafka.
        """
        with closing(self.append_time_lookup(max_bytes=1)) as lookup:
            matches = {
                name: lookup.first_appended(name, time_ms)
                if mark.start < mark.end
                else TimeMatch(None, 0)  # an empty partition needs no request
                for name, mark in marks.items()
            }
        return {name: match for name, match in matches.items() if match is not None}

    def append_time_lookup(
        self,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        *,
        max_bytes: int | None = None,
    ) -> "AppendTimeLookup":
        """Return a lookup of append times from the partitions' leaders; the caller must close it.

        Args:
            isolation: READ_COMMITTED ends at the last stable offset.
            max_bytes: Maximum size of a response in bytes. A broker sends at least one batch, so
                with the value 1 each response has one batch.
        """
        # imported only here, because few callers need it
        from tidelog.remote.time_lookup import AppendTimeLookup, Leaders

        fetch = partial(self.open_fetch, isolation=isolation, max_bytes=max_bytes)
        return AppendTimeLookup(
            fetch if self._is_direct else None,
            self._clock,
            Leaders(self._leader_ids, self._without_append_times),
            rest_ms=self.fetch_timeout_ms,
        )

    def _leader_ids(self, topic: str) -> dict[int, int]:
        """Return the leader's id for each partition of a topic.

        The id is -1 for a partition without a leader.
        """
        with self.typed(f"look up leaders of {topic}"):
            metadata = self.admin().list_topics(topic, timeout=self.timeout_s)
        partitions = metadata.topics[topic].partitions
        return {number: partition.leader for number, partition in partitions.items()}

    @property
    def fetch_timeout_ms(self) -> int:
        """Return how long a fetch may last without progress, in ms."""
        return max(int(self.timeout_s * 1000), 1000)

    def open_fetch(
        self,
        partition: TopicPartition,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        topic_id: str = "",
        max_bytes: int | None = None,
        reach: "Callable[[Buffer], Reach | None] | None" = None,
    ) -> "PartitionFetch":
        """Return a partition's fetch from its leader, without librdkafka; the caller must close it.

        Args:
            partition: The partition.
            isolation: READ_COMMITTED ends at the last stable offset.
            topic_id: Expected id of the topic as 32 hexadecimal digits, or "" to accept any.
                If the topic has another id, because it was deleted and recreated, the fetch raises
                UnknownTopic.
            max_bytes: Maximum size of a response in bytes. A broker sends at least one batch, so
                with the value 1 each response has one batch.
            reach: Function that returns the extent of the complete batches in a response. The
                default, `reach_of`, needs no numpy.
        """
        from tidelog.record.offset_order import reach_of
        from tidelog.remote.broker_connection import connect_socket
        from tidelog.remote.partition_fetch import FetchSeams, FetchSettings, PartitionFetch

        settings = FetchSettings(
            isolation=isolation,
            timeout_ms=self.fetch_timeout_ms,
            client_id=self._config.get("client.id", "tidelog"),
        )
        if max_bytes is not None:
            settings = replace(settings, max_bytes=max_bytes, partition_max_bytes=max_bytes)
        connect = partial(connect_socket, timeout_s=self.timeout_s)
        seams = FetchSeams(connect=connect, clock=self._clock, reach=reach or reach_of)
        return PartitionFetch(
            self.bootstrap, partition, seams, topic_id=topic_id, settings=settings
        )

    # -- groups ------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of the groups that the cluster lists, sorted; raises ClusterFailure."""
        return sorted(group.group_id for group in self._listed())

    def _list_once(self) -> "list[ConsumerGroupListing]":
        operation = "list groups"
        future = self.admin().list_consumer_groups(request_timeout=self.timeout_s)
        listing = self.results(operation, {operation: future})[operation]
        for error in listing.errors:
            # confluent-kafka documents these errors as instances of KafkaException, but returns
            # instances of KafkaError. This code accepts either class.
            kafka_error = error.args[0] if isinstance(error, Exception) else error
            raise self.failure(operation, kafka_error)
        return list(listing.valid)

    def _listed(self) -> "list[ConsumerGroupListing]":
        return self.retry(self._list_once, unready=codes.COORDINATOR_COMES)

    def group_listings(self) -> list[GroupListing]:
        """Return the groups that the cluster lists, sorted by name; raises ClusterFailure."""
        return [
            GroupListing(group.group_id, _words(group.state.name), _words(group.type.name))
            for group in sorted(self._listed(), key=lambda group: group.group_id)
        ]

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete groups with all their committed offsets.

        Raises:
            UnknownGroup: A group does not exist.
            GroupActive: A group has members.
            ClusterFailure: The cluster refuses, or can't be reached. Some of the groups may have
                been deleted before the error.
        """
        _ensure_group_names(names)
        operation = f"delete {', '.join(names)}"
        futures = self.admin().delete_consumer_groups(list(names), request_timeout=self.timeout_s)
        for name, future in futures.items():
            try:
                self.results(operation, {name: future})
            except ClusterFailure as error:
                if error.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                    raise self._unknown_group(name) from error
                if error.error_code == ErrorCode.NON_EMPTY_GROUP:
                    text = f"group {name} has active members; stop its consumers, then repeat this"
                    raise GroupActive(text) from error
                raise

    def group(self, name: str) -> Group:
        """Return a consumer group with its members; raises UnknownGroup, ClusterFailure."""
        group = self._describe_groups([name])[name]
        if group is None:
            raise self._unknown_group(name)
        return group

    def _describe_groups(
        self, names: Sequence[str], denied: dict[str, NotAuthorized] | None = None
    ) -> dict[str, Group | None]:
        """Return groups with their members, by concurrent requests; None for an unknown group.

        For `denied` see `ClusterView.group_offsets`.
        """
        _ensure_group_names(names)

        def request() -> "dict[str, ConsumerGroupDescription | None]":
            described: dict[str, ConsumerGroupDescription | None] = {}
            futures = self.admin().describe_consumer_groups(
                list(names), request_timeout=self.timeout_s
            )
            for name, future in futures.items():
                try:
                    with _denied_to(name, denied):
                        described |= self.results(f"describe group {name}", {name: future})
                except ClusterFailure as error:
                    if error.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                        raise
                    described[name] = None
            return described

        described = self.retry(request, unready=codes.COORDINATOR_COMES)
        return {name: _group(name, one) for name, one in described.items()}

    def _unknown_group(self, name: str) -> UnknownGroup:
        """Return the error for an unknown group, with the most similar existing name."""
        near: list[str] = []
        with suppress(ClusterFailure):  # the client might lack the right to list groups
            near = difflib.get_close_matches(name, self.groups(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return UnknownGroup(f"{self.bootstrap} has no consumer group {name}{hint}")

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """Return a group's committed offsets, by default for all partitions; None for no commit."""
        return dict(self.group_offsets([group], partitions)[group].committed)

    def group_offsets(
        self,
        groups: Sequence[str],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        denied: dict[str, NotAuthorized] | None = None,
    ) -> dict[str, GroupOffsets]:
        """See `ClusterView`. At most `_GROUPS_AT_ONCE` groups are requested at the same time."""
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as CkPartition

        requested = (
            None if partitions is None else [CkPartition(p.topic, p.partition) for p in partitions]
        )

        def request(chosen: Sequence[str]) -> dict[str, dict[TopicPartition, Committed | None]]:
            if requested == []:  # for [], librdkafka would return all commits
                return {group: {} for group in chosen}
            futures = {
                group: self.admin().list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group, requested)],
                    request_timeout=self.timeout_s,
                )
                for group in chosen
            }
            results = {}
            for group, future in futures.items():
                operation = f"read the offsets of group {group}"
                with _denied_to(group, denied):
                    committed = self.results(operation, future)[group].topic_partitions or []
                    commits = {_partition(p): self._committed(operation, p) for p in committed}
                    results[group] = commits
            return results

        results: dict[str, GroupOffsets] = {}
        for at in range(0, len(groups), _GROUPS_AT_ONCE):
            chosen = groups[at : at + _GROUPS_AT_ONCE]
            # If a group has no coordinator, a request for its offsets crashes the process
            # (librdkafka 2.16 dereferences a null pointer). So the groups' descriptions are
            # requested first: without a coordinator, the request for descriptions fails with an
            # error.
            described = self._describe_groups(chosen, denied)
            allowed = [*described]
            committed = self.retry(partial(request, allowed), unready=codes.COORDINATOR_COMES)
            results |= {name: GroupOffsets(described[name], committed[name]) for name in committed}
        return results

    def _committed(self, operation: str, partition: "ck.TopicPartition") -> Committed | None:
        if partition.error is not None:
            raise self.failure(operation, partition.error)
        if partition.offset < 0:
            return None
        epoch = partition.leader_epoch
        known_epoch = None if epoch == NO_LEADER_EPOCH else epoch
        return Committed(partition.offset, known_epoch)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets for a group without members.

        Raises:
            GroupActive: The group has members. Nothing was changed.
            ClusterFailure: The cluster refuses, or can't be reached. Some of the offsets may have
                been committed before the error. If a broker refused an offset, the message names
                its partition.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        if not offsets:
            return
        commits = [_ck_commit(partition, offset) for partition, offset in offsets.items()]
        operation = f"commit for group {group}"

        def request() -> None:
            group_request = ConsumerGroupTopicPartitions(group, commits)
            futures = self.admin().alter_consumer_group_offsets(
                [group_request], request_timeout=self.timeout_s
            )
            for partition_result in self.results(operation, futures)[group].topic_partitions or []:
                if partition_result.error is not None:
                    raise self.failure(
                        f"{operation} at {_partition(partition_result)}", partition_result.error
                    )

        try:
            self.retry(request, unready=codes.COORDINATOR_COMES)
        except ClusterFailure as error:
            if error.error_code in codes.OVERRULED:
                text = f"group {group} has active members; stop its consumers, then repeat this"
                raise GroupActive(text) from error
            raise

    # -- records -----------------------------------------------------------------------------

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        """Return the first data record at or after each offset; None if there is none in the log.

        Raises:
            OffsetOutOfRange: An offset is outside its log.
            ClusterFailure: A partition's leader did not respond in time, or a broker refuses.
        """
        records: dict[TopicPartition, RemoteRecord | None] = {}
        with self.consumer_at(offsets, isolation) as reader:
            left_s = self.deadline()
            while len(records) < len(offsets):
                for message in self._next_messages(reader, left_s(), set(offsets) - set(records)):
                    name = self.partition_of(message)
                    is_record = self.is_record(message, offsets[name])
                    if name not in records:
                        records[name] = decoded(message) if is_record else None
                        reader.pause([_ck_partition(name)])
        return records

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        """Yield the data records with offsets in [start, end) up to the log's end, in order.

        Raises:
            OffsetOutOfRange: `start` is outside the log.
            ClusterFailure: No record arrived within the timeout, or a broker refuses.
        """
        if start >= end:
            return
        with self.consumer_at({partition: start}, isolation) as reader:
            while True:
                for message in self._next_messages(reader, self.timeout_s, {partition}):
                    if not self.is_record(message, start):
                        return
                    record = decoded(message)
                    if record.offset >= end:
                        return
                    yield record
                    if record.offset == end - 1:
                        return

    def is_record(self, message: "ck.Message", next_offset: int) -> bool:
        """Return True for a message that is a record, False for the end of its partition.

        Args:
            message: The message.
            next_offset: Next offset to read, for errors.

        Raises:
            OffsetOutOfRange: The offset is outside the log.
            ClusterFailure: Any other error that librdkafka or a broker reports.
        """
        error = message.error()
        if error is None:
            return True
        if error.code() == codes.PARTITION_EOF:
            return False
        partition = self.partition_of(message)
        if error.code() in (codes.AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE):
            marks = self.watermarks([partition])[partition]
            raise OffsetOutOfRange(next_offset, marks.start, marks.end, where=str(partition))
        raise self.failure(f"read records of {partition}", error)

    def partition_of(self, message: "ck.Message") -> TopicPartition:
        """Return the partition of a consumer's message.

        Raises:
            ClusterFailure: The message is an error of the whole consumer, such as a refused group.
        """
        error = message.error()
        if error is not None and message.topic() is None:
            raise self.failure("read records", error)
        return partition_of(message)

    def _next_messages(
        self, reader: "ck.Consumer", left_s: float, missing: set[TopicPartition]
    ) -> "list[ck.Message]":
        """Wait for messages and partition ends, and return at least one of them."""
        with self.typed("read records"):
            # `poll` waits for the first message, because `consume` would wait for the maximum
            # number of messages.
            first = reader.poll(left_s) if left_s > 0 else None
            rest = [] if first is None else reader.consume(_AT_ONCE, timeout=0)
        if first is None:
            reason = f"no records arrived within {self.timeout_s:g} s"
            raise self.unanswered("read records", missing, reason)
        return [first, *rest]

    @contextmanager
    def consumer_at(
        self, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> "Iterator[ck.Consumer]":
        """Yield a consumer positioned at the offsets, and close it at the end of the block.

        Each call creates a new consumer, because librdkafka has two problems with a used consumer.
        After a new assignment of partitions, the consumer waits for the fetches of the previous
        assignment. After a fetch was abandoned, the consumer's next fetch may never get a response.
        """
        reader = self.consumer(isolation_level=isolation.name.lower(), fetch_wait_max_ms=100)
        try:
            with self.typed("read records"):
                reader.assign([_ck_partition(p, offset) for p, offset in offsets.items()])
            yield reader
        finally:
            reader.close()

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Drop the admin client; the next request creates a new one."""
        self._admin = None

    def close_for_good(self) -> None:
        """Drop the admin client. Later calls that need a client raise Closed."""
        self._is_closed = True
        self.close()
