"""A cluster of brokers through confluent-kafka: topics, offsets, consumer groups, single records.

Records are read by offset with a consumer that joins no group and commits nothing. No call waits
longer than its time-out; errors become ClusterFailure with the cluster and the operation.

Life cycle: connect, calls, close; best used in a `with` block. For one thread.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from tidelog.closing import Closing
from tidelog.env import Clock, SystemClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    GroupActive,
    MissingDependency,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownTopic,
)
from tidelog.record.record import Record
from tidelog.remote import client as codes
from tidelog.remote.client import Client, is_direct
from tidelog.remote.view import (
    Appended,
    Committed,
    Group,
    GroupListing,
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
    NO_TIMESTAMP,
    Header,
    IsolationLevel,
    OffsetAndTimestamp,
    TimestampType,
    TopicPartition,
)

if TYPE_CHECKING:
    import confluent_kafka as ck
    from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]
    from confluent_kafka.admin._group import (
        ConsumerGroupDescription,
        ConsumerGroupListing,
        MemberDescription,
    )

    from tidelog.remote.time_lookup import AppendTimeSearch


_DEAD: Final = "DEAD"


def _words(name: str) -> str:
    """A state or kind as Kafka writes it, `PREPARING_REBALANCE` as `PreparingRebalance`."""
    return name.replace("_", " ").title().replace(" ", "")


def _member(member: "MemberDescription") -> Member:
    assigned = member.assignment.topic_partitions
    partitions = sorted(TopicPartition(p.topic, p.partition) for p in assigned)
    return Member(member.member_id, member.client_id, member.host, tuple(partitions))


def _partition(partition: "ck.TopicPartition") -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _place(partition: TopicPartition, offset: Committed) -> "ck.TopicPartition":
    from confluent_kafka import TopicPartition as Place

    if offset.leader_epoch is None:
        return Place(partition.topic, partition.partition, offset.offset)
    return Place(
        partition.topic, partition.partition, offset.offset, leader_epoch=offset.leader_epoch
    )


_AT_ONCE: Final = 5_000


def _partition_place(partition: TopicPartition, offset: int | None = None) -> "ck.TopicPartition":
    from confluent_kafka import TopicPartition as Place

    if offset is None:
        return Place(partition.topic, partition.partition)
    return Place(partition.topic, partition.partition, offset)


def partition_of(message: "ck.Message") -> TopicPartition:
    """Where a message, or the end of a partition, belongs."""
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return TopicPartition(topic, number)


def decoded(message: "ck.Message") -> RemoteRecord:
    """A message without an error."""
    offset = message.offset()
    assert offset is not None
    kind, timestamp = message.timestamp()
    pairs = message.headers() or []
    listed = pairs.items() if isinstance(pairs, dict) else pairs
    return RemoteRecord(
        offset=offset,
        timestamp=None if kind == 0 or timestamp < 0 else timestamp,
        # The library numbers the types from 1; 0 says that there is no timestamp.
        timestamp_type=TimestampType(kind - 1),
        leader_epoch=message.leader_epoch(),
        key=message.key(),
        value=message.value(),
        headers=tuple(Header(key, _header_bytes(value)) for key, value in listed),
    )


def as_record(record: RemoteRecord) -> Record:
    """A record as a directory hands it out; a broker's stamp leaves nothing of the create time."""
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
        config: librdkafka's settings, e.g. from `client_settings.client_settings`.
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
            metadata = self.admin().list_topics(timeout=self.timeout_s)
        for name, topic in metadata.topics.items():
            error = topic.error
            if error is not None and error.code() != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.failure(f"list the partitions of topic {name}", error)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

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
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = self.admin().describe_configs([resource], request_timeout=self.timeout_s)
        entries = self.results(f"read the settings of {topic}", futures)[resource]
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as Kafka prints it, None where the cluster has none."""
        return self.topic_ids([topic])[topic]

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Topics' ids as Kafka prints them, None where the cluster has none."""
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
        """Log start, and high watermark or (READ_COMMITTED) last stable offset."""
        partitions = list(partitions)
        starts = self._list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), isolation)
        ends = self._list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation)
        return {p: Watermarks(starts[p].offset, ends[p].offset) for p in partitions}

    def _list_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """What ListOffsets answers to times in ms or special values; offset -1 for no match.

        Raises:
            ClusterFailure: A partition is led by nobody, or its leader did not answer in time.
        """
        from confluent_kafka import IsolationLevel as Level
        from confluent_kafka import TopicPartition as Place
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        if not times:
            return {}
        level = Level.READ_COMMITTED if isolation else Level.READ_UNCOMMITTED
        # Its constructor hands out an object of the subclass that fits.
        specs = {
            Place(p.topic, p.partition): OffsetSpec(ms)  # type: ignore[abstract]
            for p, ms in times.items()
        }

        def ask() -> "dict[Place, ListOffsetsResultInfo]":
            futures = self.admin().list_offsets(
                specs, isolation_level=level, request_timeout=self.timeout_s
            )
            results: dict[Place, ListOffsetsResultInfo] = {}
            for partition, future in futures.items():
                operation = (
                    f"look up offsets of {TopicPartition(partition.topic, partition.partition)}"
                )
                results |= self.results(operation, {partition: future})
            return results

        # The client library asks once, also in the moment in which a partition changes its leader.
        results = self.answer(ask, unready=codes.LEADER_COMES)
        answers = {
            TopicPartition(partition.topic, partition.partition): OffsetAndTimestamp(
                answer.offset, answer.timestamp, answer.leader_epoch
            )
            for partition, answer in results.items()
        }
        # Where a leader can't be reached, the client library reports no error: the result has the
        # offset with which it was made, -1001. A log's start and end are never negative.
        silent = [
            name
            for name, time_ms in times.items()
            if name not in answers
            or answers[name].offset
            < (0 if time_ms in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP) else -1)
        ]
        if silent:
            reason = f"no answer from the leader within {self.timeout_s:g} s"
            raise self.unanswered("look up offsets", silent, reason)
        return answers

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record whose timestamp is the time in ms or later, None where there is none."""
        answers = self._list_offsets(times, isolation)
        return {p: answer if answer.offset >= 0 else None for p, answer in answers.items()}

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The record with the largest timestamp, None where no record has one.

        After deleted records Kafka may name one below the log start.
        """
        times = dict.fromkeys(partitions, MAX_TIMESTAMP)
        answers = self._list_offsets(times, IsolationLevel.READ_UNCOMMITTED)
        return {p: answer if answer.offset >= 0 else None for p, answer in answers.items()}

    # -- append times ------------------------------------------------------------------------

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """When the records at these offsets were appended, in ms, where brokers tell it."""
        return self._append_time_search.append_times(offsets)

    def first_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record appended at a time or later, of partitions whose brokers tell times."""
        return self._append_time_search.first_appended(marks, time_ms)

    def search_append_times(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, Appended]:
        """A search by append time, of partitions whose brokers make one: ours, in plain text."""
        return self._append_time_search.search_append_times(marks, time_ms)

    @cached_property
    def _append_time_search(self) -> "AppendTimeSearch":
        from tidelog.remote.time_lookup import (  # few questions need it
            AppendTimeSearch,
            batch_fetch,
        )

        if not is_direct(self._config):
            return AppendTimeSearch(None)
        name = self._config.get("client.id", "tidelog")
        fetch = partial(batch_fetch, self.bootstrap, name, self._clock, self.timeout_s)
        return AppendTimeSearch(fetch)

    # -- groups ------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """All consumer groups that the cluster tells us of, sorted; raises ClusterFailure."""
        return sorted(group.group_id for group in self._listed())

    def _list_once(self) -> "list[ConsumerGroupListing]":
        operation = "list groups"
        future = self.admin().list_consumer_groups(request_timeout=self.timeout_s)
        listing = self.results(operation, {operation: future})[operation]
        for error in listing.errors:
            # The library's documentation promises KafkaException; it returns what that carries.
            kafka_error = error.args[0] if isinstance(error, Exception) else error
            raise self.failure(operation, kafka_error)
        return list(listing.valid)

    def _listed(self) -> "list[ConsumerGroupListing]":
        return self.answer(self._list_once, unready=codes.COORDINATOR_COMES)

    def group_listings(self) -> list[GroupListing]:
        """All consumer groups that the cluster tells us of, by name; raises ClusterFailure."""
        return [
            GroupListing(group.group_id, _words(group.state.name), _words(group.type.name))
            for group in sorted(self._listed(), key=lambda group: group.group_id)
        ]

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete groups with all that they committed.

        Raises:
            UnknownGroup: There is no such group.
            GroupActive: It has members.
            ClusterFailure: The cluster refuses, or can't be reached. Other groups may be deleted.
        """
        operation = f"delete {', '.join(names)}"
        futures = self.admin().delete_consumer_groups(list(names), request_timeout=self.timeout_s)
        for name, future in futures.items():
            try:
                self.results(operation, {name: future})
            except ClusterFailure as error:
                if error.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                    raise self._unknown_group(name) from error
                if error.error_code == ErrorCode.NON_EMPTY_GROUP:
                    raise GroupActive(f"group {name} has members ({error.reason})") from error
                raise

    def group(self, name: str) -> Group:
        """A consumer group with its members; raises UnknownGroup, ClusterFailure."""
        described = self._describe_group(name)
        if described is None or described.state.name == _DEAD:
            raise self._unknown_group(name)
        members = tuple(_member(member) for member in described.members)
        return Group(name, _words(described.state.name), members)

    def _describe_group(self, name: str) -> "ConsumerGroupDescription | None":
        """A group as its coordinator describes it, once that answers; None for no such group."""

        def ask() -> "ConsumerGroupDescription":
            futures = self.admin().describe_consumer_groups([name], request_timeout=self.timeout_s)
            described: ConsumerGroupDescription = self.results(f"describe group {name}", futures)[
                name
            ]
            return described

        try:
            return self.answer(ask, unready=codes.COORDINATOR_COMES)
        except ClusterFailure as error:
            if error.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None

    def _unknown_group(self, name: str) -> UnknownGroup:
        return UnknownGroup(f"{self.bootstrap} has no consumer group {name}")

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """What a group committed, of all its partitions where None; None for no commit."""
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as Place

        wanted_partitions = (
            None if partitions is None else [Place(p.topic, p.partition) for p in partitions]
        )
        if wanted_partitions is not None and not wanted_partitions:
            return {}
        request = ConsumerGroupTopicPartitions(group, wanted_partitions)
        operation = f"read the offsets of group {group}"
        # Where a broker says that the coordinator is not there yet, a request for offsets ends
        # the whole process (librdkafka 2.16 follows a null pointer); a description only fails.
        self._describe_group(group)

        def ask() -> dict[TopicPartition, Committed | None]:
            futures = self.admin().list_consumer_group_offsets(
                [request], request_timeout=self.timeout_s
            )
            committed = self.results(operation, futures)[group].topic_partitions or []
            return {_partition(p): self._committed(operation, p) for p in committed}

        return self.answer(ask, unready=codes.COORDINATOR_COMES)

    def _committed(self, operation: str, partition: "ck.TopicPartition") -> Committed | None:
        if partition.error is not None:
            raise self.failure(operation, partition.error)
        if partition.offset < 0:
            return None
        epoch = partition.leader_epoch
        known_epoch = None if epoch == NO_LEADER_EPOCH else epoch
        return Committed(partition.offset, known_epoch)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit for a group without members; the broker itself refuses where there are some.

        Raises:
            GroupActive: Members are there. Nothing was changed.
            ClusterFailure: Some partitions may have been committed; the text names one that wasn't.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        if not offsets:
            return
        wanted_offsets = [_place(partition, offset) for partition, offset in offsets.items()]
        operation = f"commit for group {group}"

        def ask() -> None:
            request = ConsumerGroupTopicPartitions(group, wanted_offsets)
            futures = self.admin().alter_consumer_group_offsets(
                [request], request_timeout=self.timeout_s
            )
            for partition_result in self.results(operation, futures)[group].topic_partitions or []:
                if partition_result.error is not None:
                    raise self.failure(
                        f"{operation} at {_partition(partition_result)}", partition_result.error
                    )

        try:
            self.answer(ask, unready=codes.COORDINATOR_COMES)
        except ClusterFailure as error:
            if error.error_code in codes.OVERRULED:
                raise GroupActive(f"group {group} has active members ({error.reason})") from error
            raise

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
        """The first data record at or behind each offset, None where the log ends before one.

        Raises:
            OffsetOutOfRange: An offset outside its log.
            ClusterFailure: A partition did not answer in time.
        """
        records: dict[TopicPartition, RemoteRecord | None] = {}
        with self._consumer_at(offsets, isolation) as reader:
            left_s = self.deadline()
            while len(records) < len(offsets):
                for message in self._next_messages(reader, left_s(), set(offsets) - set(records)):
                    name = partition_of(message)
                    record = self._record(message, offsets[name])
                    if name not in records:
                        records[name] = record
                        reader.pause([_partition_place(name)])
        return records

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        """The data records with offsets in [start, end), in order; ends where the log does.

        Raises:
            OffsetOutOfRange: `start` is outside the log.
            ClusterFailure: Nothing came within the time-out.
        """
        if start >= end:
            return
        with self._consumer_at({partition: start}, isolation) as reader:
            while True:
                for message in self._next_messages(reader, self.timeout_s, {partition}):
                    record = self._record(message, start)
                    if record is None or record.offset >= end:
                        return
                    yield record
                    if record.offset == end - 1:
                        return

    def _record(self, message: "ck.Message", offset: int) -> RemoteRecord | None:
        """What came, None for the end of the partition."""
        error = message.error()
        if error is None:
            return decoded(message)
        if error.code() == codes.PARTITION_EOF:
            return None
        partition = partition_of(message)
        if error.code() in (codes.AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE):
            marks = self.watermarks([partition])[partition]
            raise OffsetOutOfRange(offset, marks.start, marks.end, where=str(partition))
        raise self.failure(f"read records of {partition}", error)

    def _next_messages(
        self, reader: "ck.Consumer", left_s: float, missing: set[TopicPartition]
    ) -> "list[ck.Message]":
        """Messages and partition ends, at least one."""
        with self.typed("read records"):
            # `consume` alone would wait until it has as many as it may bring.
            first = reader.poll(left_s) if left_s > 0 else None
            rest = [] if first is None else reader.consume(_AT_ONCE, timeout=0)
        if first is None:
            reason = f"nothing came within {self.timeout_s:g} s"
            raise self.unanswered("read records", missing, reason)
        return [first, *rest]

    @contextmanager
    def _consumer_at(
        self, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> "Iterator[ck.Consumer]":
        """A consumer that stands at the offsets, until the block ends.

        A new one each time: librdkafka waits for the fetches of its last assignment before the
        next, and where those were given up halfway a repeated one may get no answer.
        """
        reader = self.consumer(isolation_level=isolation.name.lower(), fetch_wait_max_ms=100)
        try:
            with self.typed("read records"):
                reader.assign([_partition_place(p, offset) for p, offset in offsets.items()])
            yield reader
        finally:
            reader.close()

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close what was opened; a closed connection opens again at its next question."""
        self._admin = None

    def close_for_good(self) -> None:
        """Close what was opened; what is asked later raises Closed."""
        self._is_closed = True
        self.close()
