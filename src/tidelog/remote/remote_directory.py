"""`RemoteDirectory`: topics of a cluster; `tidelog.connect` and `tidelog.table`.

`RemoteDirectory` implements `FrontDoor` with a `Cluster`, so it works with any Kafka cluster,
through confluent-kafka. If connections need neither TLS nor SASL, and no setting changes how
records are fetched (see `client.is_direct`), batches are fetched from the leaders without
librdkafka. `RemoteDirectory` lacks operations that need a directory: access to logs and retention.
Append times are unknown if the brokers return none.

Life cycle: `tidelog.connect`, calls, close; best used in a `with` block. Thread-safe.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from tidelog.amounts import plural
from tidelog.arguments import codec_of, reads_arguments
from tidelog.config import ConfigNote, plain_names, plain_settings
from tidelog.directory import Directory
from tidelog.display import LINES_SHOWN, Topics, rest_text
from tidelog.env import Env, os_env
from tidelog.errors import (
    InvalidPartitions,
    OffsetOutOfRange,
    TidelogError,
    TopicExists,
    unknown_partition,
)
from tidelog.front_door import FrontDoor, When
from tidelog.html_cells import html_table
from tidelog.objects import env_for, local_path
from tidelog.record.partitioner import Partitioner
from tidelog.record.record import Record, with_append_time
from tidelog.remote import producer, topics
from tidelog.remote.client_settings import translate_settings
from tidelog.remote.cluster import TIMEOUT_S, Cluster, require_client
from tidelog.remote.records import ClusterRecords
from tidelog.remote.time_lookup import (
    append_spans,
    largest_timestamps,
    matches_of,
    named_watermarks,
    without_append_time,
)
from tidelog.remote.topics import RemoteTopic
from tidelog.storage.log.append_types import AppendResult
from tidelog.timespec import parse_point
from tidelog.types import (
    ArrowStream,
    ClockName,
    Codec,
    Compression,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    TimeMatch,
    TimeSpan,
    TopicPartition,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tidelog.keyed import Table
    from tidelog.storage.directory.numbered_loads import LoadResult


# Age in ms at which a cached number of partitions expires, as in Kafka's clients
# (metadata.max.age.ms).
_COUNTS_MAX_AGE_MS: Final = 300_000

_COUNTS_MAX: Final = 10_000

# Maximum number of partitions of a topic that confluent-kafka accepts.
_PARTITIONS_MAX: Final = 100_000


def _ensure_count(topic: str, count: int) -> None:
    if not 1 <= count <= _PARTITIONS_MAX:
        raise InvalidPartitions(
            f"{topic}: the number of partitions must be 1 to {_PARTITIONS_MAX}, got {count}"
        )


@reads_arguments()
class RemoteDirectory(FrontDoor):
    """Topics of a cluster. Like `tidelog.Directory`, the class has the methods of `FrontDoor`."""

    loads_are_atomic = False

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], *, timeout_s: float, env: Env
    ) -> None:
        super().__init__(env)
        client = translate_settings(config)
        codec_name = client.pop("compression.codec", Codec.NONE.config_name)
        codec_name = client.pop("compression.type", codec_name)
        self._cluster = Cluster(bootstrap, client, timeout_s=timeout_s, clock=env.clock)
        # creates the admin client now, because creating it later would need a lock
        self._cluster.admin()
        self._source = ClusterRecords(cluster=self._cluster, client=client, env=env)
        self._codec_name = codec_name
        self._sender = producer.Sender(self._cluster, codec_name, self._message_limit)
        self._lock = threading.Lock()
        # For each topic: the number of partitions, and the monotonic time in ms at which this
        # cached number expires.
        self._counts: dict[str, tuple[int, int]] = {}

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers, `host:port[,host:port]`."""
        return self._cluster.bootstrap

    @property
    def cluster(self) -> Cluster:
        """The cluster's client, for consumer groups and single records."""
        return self._cluster

    @property
    def source(self) -> ClusterRecords:
        """See `FrontDoor`."""
        return self._source

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, RemoteTopic]:
        """Return all topics by name, including internal topics (`__...`); raises ClusterFailure."""
        counts = self._cluster.topics()
        return Topics(topics.describe(self._cluster, counts, skips_denied=True))

    def topic(self, name: str) -> RemoteTopic:
        """Return one topic; raises UnknownTopic, which suggests a similar name."""
        counts = {name: len(self._cluster.partitions(name))}
        return topics.describe(self._cluster, counts, skips_denied=True)[name]

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic; raises UnknownTopic."""
        return self._cluster.partitions(topic)

    def log_sizes(
        self,
        topics: Iterable[str],  # noqa: ARG002 - brokers' files are not read
    ) -> dict[str, list[int]]:
        """See `FrontDoor`."""
        return {}

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> list[ConfigNote]:
        """Create a topic with the brokers' default number of replicas.

        Args:
            name: A name that Kafka allows.
            partitions: Number of partitions, at least 1.
            config: Settings under Kafka's names; values can have a unit (`7d`, `1GiB`). The brokers
                refuse unknown settings.
            exist_ok: Whether to accept that the topic exists already. The existing topic stays
                unchanged, even if its partitions or settings differ from the other arguments.

        Returns:
            Notes on the settings, such as on deprecated names.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, InvalidRequest, ConfigError,
                PolicyViolation: The request is refused because of an argument. Nothing was changed.
            NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
        """
        if exist_ok and name in self._cluster.topics():
            return []
        _ensure_count(name, partitions)
        settings, notes = plain_names(plain_settings(config or {}))
        try:
            topics.create(self._cluster, name, partitions=partitions, config=settings)
        except TopicExists:
            if exist_ok:
                return []
            raise
        return notes

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; raises UnknownTopic."""
        with self._lock:
            self._counts.pop(name, None)
        topics.delete(self._cluster, name)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's settings; None resets a setting. Raises the errors of `create_topic`."""
        return topics.alter_config(self._cluster, name, plain_settings(changes))

    def add_partitions(self, topic: str, count: int) -> None:
        """See `FrontDoor`."""
        _ensure_count(topic, count)
        try:
            topics.add_partitions(self._cluster, topic, count)
        # drops the cached count, because a concurrent append may have cached the old count
        finally:
            with self._lock:
                self._counts.pop(topic, None)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `FrontDoor`."""
        from tidelog.remote.administration import delete_records

        for name, mark in named_watermarks(self._cluster, offsets).items():
            if not 0 <= offsets[name] <= mark.end:
                raise OffsetOutOfRange(offsets[name], mark.start, mark.end, where=str(name))
        return delete_records(self._cluster, offsets)

    # -- appending ---------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression | None = None,
        batch_bytes: int | None = None,
    ) -> dict[int, AppendResult]:
        """Append records, and return their offsets in each partition that received records.

        The partition is chosen by murmur2 of the key, as in Kafka's Java client. Records without a
        key go to one partition, chosen at random for each call. By default the producer is
        idempotent, so it writes no record twice, and it waits for all in-sync replicas (acks=all).
        The records of one call may be sent in several batches. So after an error, some of the
        call's records may be in the log; the error's notes give their number and their indexes.

        Args:
            topic: Name of the topic.
            records: Records: key, value, create time (default: the current time), headers.
            partition: Partition for all records; chosen by key if None.
            codec: Codec of the batches; the client setting `compression.type` if None.
            batch_bytes: Uncompressed size in bytes at which a batch is finished; the client setting
                `batch.size` if None.

        Returns:
            First and last offset of the call's records in each partition; other producers' records
            may be between them, and `record_count` does not count them. Append times are -1 except
            in topics with LogAppendTime. The log start offset in each result is -1, which means
            unknown.

        Raises:
            UnknownTopic: The topic or partition doesn't exist.
            InvalidRecord, InvalidTimestamp, MessageTooLarge, PolicyViolation: A record is refused.
                `record_errors` has the index of a record that was refused before it was sent. It is
                empty if a broker refuses a record, because the client library does not report which
                record of a batch was refused.
            NotAuthorized, ClusterFailure: The cluster refuses, or did not respond in time.
        """
        sent = self.send(topic, records, partition=partition, codec=codec, batch_bytes=batch_bytes)
        return sent.result()

    def send(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression | None = None,
        batch_bytes: int | None = None,
    ) -> "Future[dict[int, AppendResult]]":
        """Queue records to append, and return a future of `append`'s result without waiting.

        Callbacks of the futures run one after another in a thread of the connection. They may
        append, flush and close. A callback that is added to a finished future runs at once, in the
        caller's thread.
        """
        rows = self._rows(topic, records, partition)
        return self._sender.send(topic, rows, codec_of(codec), batch_bytes)

    def _rows(
        self, topic: str, records: Iterable[NewRecord], partition: int | None
    ) -> Iterator[producer.Row]:
        partitioner = self._partitioner(topic)
        if partition is not None and partition >= partitioner.partition_count:
            with self._lock:
                self._counts.pop(topic, None)  # partitions may have been added to the topic
            partitioner = self._partitioner(topic)
        if partition is not None and not 0 <= partition < partitioner.partition_count:
            raise unknown_partition(topic, partitioner.partition_count, partition)
        now_ms = self._env.clock.now_ms()
        return (_row(record, partitioner, partition, now_ms) for record in records)

    def _message_limit(self, topic: str) -> int:
        """Return a topic's `max.message.bytes`; the client library's limit if it is unknown."""
        config = self.topic(topic).config
        return producer.RECORD_BYTES if config is None else config.max_message_bytes

    def load_once(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        source: str,
        partition: int | None = None,
        codec: Compression | None = None,
        batch_bytes: int | None = None,
    ) -> "LoadResult":
        """Append the rows of a source that were not yet loaded into a topic, in transactions.

        Args:
            topic: Name of the topic.
            records: All rows of the source. Rows that were already loaded under the source's name
                are skipped. Each transaction has at most 5,000 rows. After an error, the rows of
                committed transactions stay in the log, and the next call continues after them.
            source: Name of the source, which identifies it in later calls.
            partition: Partition for all rows; chosen by key if None.
            codec: Codec of the batches; the client setting `compression.type` if None.
            batch_bytes: Uncompressed size in bytes at which a batch is finished; the client setting
                `batch.size` if None.

        Raises:
            InvalidRequest: The source has fewer rows than were already loaded from it.
            UnknownTopic, and the errors of `append`: The transaction of the failed rows is aborted.
        """
        from tidelog.remote.numbered_loads import load_once

        name = self._codec_name if codec is None else codec_of(codec).config_name
        rows = self._rows(topic, records, partition)
        settings = {
            "compression.type": name,
            **producer.batch_settings(batch_bytes),
            **producer.record_settings(self._message_limit(topic)),
        }
        return load_once(self._cluster, topic, rows, source=source, settings=settings)

    def loaded_rows(self, topic: str, source: str) -> int:
        """Return the number of rows of a source that `load_once` has appended to a topic.

        Raises:
            InvalidRequest: The source's name is invalid.
            NotAuthorized, ClusterFailure: The cluster refuses, or did not respond in time.
        """
        from tidelog.remote.numbered_loads import loaded_rows

        return loaded_rows(self._cluster, topic, source)

    def append_table(
        self,
        topic: str,
        table: ArrowStream,
        *,
        codec: Compression | None = None,
    ) -> dict[int, AppendResult]:
        """Append the rows of a table as records, and return the same result as `append`.

        Args:
            topic: Name of the topic.
            table: An Arrow table, batch or reader, or a Polars or pandas frame. Its columns, all
                optional: `key`, `value`, `timestamp` (integers in ms, or Arrow timestamps),
                `headers`, and `partition` (int), which chooses the partition of each row.
            codec: Codec of the batches; the client setting `compression.type` if None.

        Raises:
            InvalidRequest: A column is unknown or has a wrong type, or a partition doesn't exist.
            MissingDependency: pyarrow, numpy or numba is not installed.
            Others: See `append`.
        """
        return self.send_table(topic, table, codec=codec).result()

    def send_table(
        self, topic: str, table: ArrowStream, *, codec: Compression | None = None
    ) -> "Future[dict[int, AppendResult]]":
        """Queue rows to append, and return a future of `append_table`'s result without waiting.

        Callbacks of the futures run as described for `send`.
        """
        from tidelog.remote.rows import table_rows

        partitioner = self._partitioner(topic)
        rows = table_rows(
            table,
            partition_count=partitioner.partition_count,
            keyless=partitioner.choose(None),
            now_ms=self._env.clock.now_ms(),
        )
        return self._sender.send(topic, rows, codec_of(codec))

    def _partitioner(self, topic: str) -> Partitioner:
        """Return a new partitioner for one call, because a partitioner is not thread-safe."""
        now_ms = self._env.clock.monotonic_ms()
        with self._lock:
            cached = self._counts.get(topic)
        if cached is None or cached[1] < now_ms:
            partitions = self._cluster.partitions(topic)
            topics.await_leaders(self._cluster, partitions)
            cached = (len(partitions), now_ms + _COUNTS_MAX_AGE_MS)
            with self._lock:
                if len(self._counts) >= _COUNTS_MAX:
                    self._counts.clear()
                self._counts[topic] = cached
        return Partitioner(cached[0], self._env.random)

    def flush(self) -> None:
        """Wait until each record that was queued so far is in the log, or its call has failed.

        Then wait for the callbacks of the finished calls; a callback itself does not wait for them.
        """
        self._cluster.ensure_open()
        self._sender.flush()

    # -- lookups by time and reading ---------------------------------------------------------

    def without_append_time(self, partition: TopicPartition) -> int | None:
        """Return the number of records of a partition whose append time is unknown.

        The result is None if the number is unknown. Only tidelog's brokers report the number, and
        only to clients that fetch without librdkafka.
        """
        marks = named_watermarks(self._cluster, [partition])
        return without_append_time(self._cluster, marks)[partition]

    def max_timestamps(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See `FrontDoor`."""
        return largest_timestamps(self._cluster, partitions)

    def search_times(
        self, times: Mapping[TopicPartition, int], clock: ClockName
    ) -> dict[TopicPartition, TimeMatch]:
        """See `FrontDoor`."""
        return matches_of(self._cluster, times, clock)

    def _time_spans(
        self, partitions: list[TopicPartition], clock: ClockName
    ) -> dict[TopicPartition, TimeSpan]:
        marks = named_watermarks(self._cluster, partitions)
        if clock is ClockName.APPEND:
            return append_spans(self._cluster, marks)
        largest = self._cluster.max_timestamps(partitions)
        offsets = {
            name: one.offset
            for name, one in largest.items()
            if one is not None and one.offset >= marks[name].start
        }
        records = self._cluster.first_records(offsets)
        spans = dict.fromkeys(partitions, TimeSpan(None, None))
        for name, offset in offsets.items():
            record = records[name]
            # if no record has this offset, a transaction marker has the largest timestamp
            if record is not None and record.offset == offset:
                spans[name] = TimeSpan(None, record.timestamp)
        return spans

    def _starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        marks = named_watermarks(self._cluster, partitions)
        return {partition: mark.start for partition, mark in marks.items()}

    def _ends(
        self, partitions: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        marks = named_watermarks(self._cluster, partitions, isolation)
        return {partition: mark.end for partition, mark in marks.items()}

    def _records(
        self, topic: str, isolation: IsolationLevel
    ) -> Iterator[tuple[TopicPartition, Record]]:
        names = self._cluster.partitions(topic)
        for name, mark in self._cluster.watermarks(names, isolation=isolation).items():
            self._cluster.ensure_open()
            records = self._source.records(name, mark.start, mark.end, isolation)
            for record, append_ms in records:
                yield name, with_append_time(record, append_ms)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bootstrap!r})"

    def _repr_html_(self) -> str:
        """Return the cluster's topics as an HTML table for a notebook; sends requests."""
        try:
            counts = sorted(self._cluster.topics().items())
        except TidelogError as error:
            return html_table(self.bootstrap, ["error"], [[str(error)]])
        rows = counts[:LINES_SHOWN]
        caption = f"{self.bootstrap}, {plural(len(counts), 'topic')}"
        return html_table(caption, ("topic", "partitions"), rows, rest_text(len(counts)))

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for pending appends and callbacks, then close.

        Calls made later raise Closed. Appends in callbacks that run after this call has begun also
        raise Closed; the errors of callbacks are only logged. If callbacks append, call `flush`
        first, which waits for these callbacks.
        """
        self._sender.close()
        self._cluster.close_for_good()

    def __enter__(self) -> Self:
        self._cluster.ensure_open()
        return self


def _row(
    record: NewRecord, partitioner: Partitioner, partition: int | None, now_ms: int
) -> producer.Row:
    """Return a record as a `Row` of the producer."""
    return (
        partitioner.choose(record.key) if partition is None else partition,
        record.key,
        record.value,
        now_ms if record.timestamp is None else record.timestamp,
        _headers(record),
    )


def _headers(record: NewRecord) -> producer.Headers | None:
    headers: producer.Headers = [(header.key, header.value) for header in record.headers]
    return headers or None


@reads_arguments()
def connect(
    bootstrap: str,
    *,
    config: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    env: Env | None = None,
) -> RemoteDirectory:
    """Open the topics of a running Kafka (or `tidelog serve`), with the methods of `tidelog.open`.

    Args:
        bootstrap: `host:port[,host:port]`; the connection is opened by the first request.
        config: Client settings under the names of Kafka's Java clients or of librdkafka, for the
            connection and for the producer.
        timeout_s: Timeout of each request, and of the delivery of a record, in seconds; at most an
            hour.
        env: Clock and randomness; those of this machine if None.

    Raises:
        MissingDependency: confluent-kafka is not installed.
        ConfigError: librdkafka doesn't know a setting or can't use its value, or a server or
            timeout is invalid.
    """
    require_client()
    return RemoteDirectory(bootstrap, config or {}, timeout_s=timeout_s, env=env or os_env())


@reads_arguments()
def table(  # noqa: PLR0913 - one keyword for each way to choose
    source: str | Directory | RemoteDirectory,
    topic: str | TopicPartition,
    *,
    at: When | None = None,
    clock: str = ClockName.RECORD,
    columns: Sequence[str] | None = None,
    inexact: str = "refuse",
    env: Env | None = None,
    store_options: Mapping[str, str] | None = None,
) -> "Table":
    """Return a topic as a table as of a time: the latest record of each key (see docs/tables.md).

    Args:
        source: A directory of topics (its path or URL, or the result of `tidelog.open`), or a
            cluster (the result of `tidelog.connect`).
        topic: Name of the topic, or one of its partitions.
        at: The time, in ms or as text; None for the state at the log's end.
        clock: Clock of that time: `record` or `append`.
        columns: Names from `tidelog.scan.ALL_COLUMNS`; the default columns if None.
        inexact: What to do if the table is not exact: `refuse` or `mark`, see `Directory.table`.
        env: Files, clock and randomness, if `source` is a path; those of this machine if None.
        store_options: Settings of the object store, if `source` is a URL.

    Raises:
        See `Directory.table`.
    """
    if not isinstance(source, str):
        return source.table(topic, at=at, clock=clock, columns=columns, inexact=inexact)
    from tidelog.keyed import Table
    from tidelog.scan.source import DirectoryRecords

    path = local_path(source)
    environment = env_for(path, env, store_options)
    now_ms = environment.clock.now_ms()
    return Table(
        source=DirectoryRecords(path, environment),
        topic=topic,
        at_ms=parse_point(at, now_ms=now_ms) if isinstance(at, str) else at,
        clock=ClockName(clock),
        columns=columns,
        inexact=inexact,
    )
