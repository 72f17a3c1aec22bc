"""`RemoteDirectory`: topics of a cluster; `tidelog.connect` and `tidelog.table`.

Implements `FrontDoor` over a `Cluster`, so it works with any Kafka through confluent-kafka. Batches
are read from the leaders if connections are plain text. Operations that need a directory are
missing: logs, retention, and append times of topics that brokers don't stamp.

Life cycle: `tidelog.connect`, calls, close; best used in a `with` block. Thread-safe.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from tidelog.arguments import codec_of, reads_arguments
from tidelog.config import ConfigNote, plain_names
from tidelog.directory import Directory
from tidelog.env import Env, os_env
from tidelog.errors import InvalidPartitions, InvalidRequest, TopicExists
from tidelog.front_door import FrontDoor, When
from tidelog.objects import env_for, local_path
from tidelog.record.partitioner import Partitioner
from tidelog.record.record import Record, appended_at
from tidelog.remote import producer, topics
from tidelog.remote.client_settings import translate_settings
from tidelog.remote.cluster import TIMEOUT_S, Cluster, require_client
from tidelog.remote.records import ClusterRecords
from tidelog.remote.time_lookup import (
    named_watermarks,
    offsets_for_times,
    without_append_time,
)
from tidelog.remote.topics import RemoteTopic
from tidelog.report import html_table
from tidelog.storage.log.append import AppendResult
from tidelog.timespec import parse_point
from tidelog.types import (
    INT32_MAX,
    ClockName,
    Codec,
    Compression,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

    from tidelog.keyed import Table
    from tidelog.storage.directory.numbered_loads import Loaded


# How long a topic's number of partitions is believed, as Kafka's clients do (metadata.max.age.ms).
_COUNTS_MAX_AGE_MS: Final = 300_000


_COUNTS_MAX: Final = 10_000


@reads_arguments()
class RemoteDirectory(FrontDoor):
    """The topics of a cluster, called as those of a `tidelog.Directory`."""

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], *, timeout_s: float, env: Env
    ) -> None:
        super().__init__(env)
        client = translate_settings(config)
        codec_name = client.pop("compression.codec", Codec.NONE.config_name)
        codec_name = client.pop("compression.type", codec_name)
        self._cluster = Cluster(bootstrap, client, timeout_s=timeout_s, clock=env.clock)
        self._cluster.admin()  # made now, so that threads need not agree who makes it
        self._source = ClusterRecords(cluster=self._cluster, client=client, env=env)
        self._codec_name = codec_name
        self._sender = producer.Sender(self._cluster, codec_name)
        self._lock = threading.Lock()
        # How many partitions a topic has, and until when that is believed.
        self._counts: dict[str, tuple[int, int]] = {}

    @property
    def bootstrap(self) -> str:
        """Where it is, `host:port[,host:port]`."""
        return self._cluster.bootstrap

    @property
    def cluster(self) -> Cluster:
        """The connection below, for groups and single records."""
        return self._cluster

    @property
    def source(self) -> ClusterRecords:
        """See `FrontDoor`."""
        return self._source

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, RemoteTopic]:
        """All topics by name, Kafka's own included; raises ClusterFailure."""
        return topics.describe(self._cluster, self._cluster.topics())

    def topic(self, name: str) -> RemoteTopic:
        """One topic; raises UnknownTopic, which names the nearest one."""
        return topics.describe(self._cluster, {name: len(self._cluster.partitions(name))})[name]

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; raises UnknownTopic."""
        return self._cluster.partitions(topic)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> list[ConfigNote]:
        """Create a topic, with as many replicas as the brokers' default says.

        Args:
            name: By Kafka's rules.
            partitions: From 1 on.
            config: Settings under Kafka's names; what the brokers don't know they refuse.
            exist_ok: A topic that is there stays as it is, whatever the other arguments say.

        Returns:
            Notes on the settings, on old names for example.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError, PolicyViolation: Nothing was
                changed.
            NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
        """
        if not 1 <= partitions <= INT32_MAX:
            raise InvalidPartitions(f"{name}: {partitions} partitions; give 1 to {INT32_MAX}")
        settings, notes = plain_names(config or {})
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
        """Change a topic's settings, None for back to the default; as `create_topic`."""
        return topics.alter_config(self._cluster, name, changes)

    # -- appending ---------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression | None = None,
    ) -> dict[int, AppendResult]:
        """Append records; where they are in each partition that got some.

        Records go where Kafka's clients would send them: by murmur2 of the key; those without a
        key to one partition that is drawn anew for each call. They are sent by an idempotent
        producer that waits for all replicas (acks=all): none is there twice. A call is more than
        one batch may be, so on an error some of its records may be in the log; the error's notes
        say how many.

        Args:
            topic: Its name.
            records: Keys, values, create times (the clock's where they have none), headers.
            partition: The partition for them all; chosen by key where None.
            codec: Compression of the batches; what `compression.type` says where None.

        Returns:
            First and last offset of the call's records in each partition: records of others may
            lie between them. Append times are known on LogAppendTime topics, else -1; the log's
            start is not told (-1).

        Raises:
            UnknownTopic, InvalidRequest: There is no such topic or partition.
            InvalidRecord, InvalidTimestamp, MessageTooLarge, PolicyViolation: Records are refused.
            NotAuthorized, ClusterFailure: The cluster refuses, or did not answer in time.
        """
        return self.send(topic, records, partition=partition, codec=codec).result()

    def send(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression | None = None,
    ) -> "Future[dict[int, AppendResult]]":
        """`append` that does not wait: what becomes its answer, once the records are queued."""
        return self._sender.send(topic, self._rows(topic, records, partition), codec_of(codec))

    def _rows(
        self, topic: str, records: Iterable[NewRecord], partition: int | None
    ) -> Iterator[producer.Row]:
        partitioner = self._partitioner(topic)
        if partition is not None and not 0 <= partition < partitioner.partition_count:
            last = partitioner.partition_count - 1
            raise InvalidRequest(f"{topic} has partitions 0 to {last}, not {partition}")
        now_ms = self._env.clock.now_ms()
        return (_row(record, partitioner, partition, now_ms) for record in records)

    def load_once(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        source: str,
        partition: int | None = None,
        codec: Compression | None = None,
    ) -> "Loaded":
        """Append the rows of a source that a topic doesn't have yet, by transactions.

        Args:
            topic: Its name.
            records: All rows of the source, from the first one; those that were loaded before
                under the source's name are passed over. Rows are committed some thousands at a
                time: what was committed before an error stays, and the next call goes on behind.
            source: Its name.
            partition: The partition for them all; chosen by key where None.
            codec: Compression of the batches; what `compression.type` says where None.

        Raises:
            InvalidRequest: The source has fewer rows than were loaded of it.
            UnknownTopic, and what `append` raises: The rows of the last transaction are aborted.
        """
        from tidelog.remote.numbered_loads import load_once

        name = self._codec_name if codec is None else codec_of(codec).config_name
        rows = self._rows(topic, records, partition)
        return load_once(self._cluster, topic, rows, source=source, codec_name=name)

    def append_table(
        self,
        topic: str,
        table: "pa.Table | pa.RecordBatch",
        *,
        codec: Compression | None = None,
    ) -> dict[int, AppendResult]:
        """Append the rows of an Arrow table; as `append` of its rows.

        Args:
            topic: Its name.
            table: Columns `key`, `value`, `timestamp` (ms, or any timestamp), `headers`, all
                optional, and `partition` (int) for those who choose it themselves.
            codec: Compression of the batches; what `compression.type` says where None.

        Raises:
            InvalidRequest: Another column, a wrong type, or a partition that is not there.
            MissingDependency: pyarrow, numpy or numba is not installed.
            As `append`.
        """
        return self.send_table(topic, table, codec=codec).result()

    def send_table(
        self, topic: str, table: "pa.Table | pa.RecordBatch", *, codec: Compression | None = None
    ) -> "Future[dict[int, AppendResult]]":
        """`append_table` that does not wait: what becomes its answer, once the rows are queued."""
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
        """One for this call alone: it is not for two threads."""
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
        """Return when everything that was sent is in the log, or its call has failed."""
        self._cluster.ensure_open()
        self._sender.flush()

    # -- lookups by time and reading ---------------------------------------------------------

    def without_append_time(self, partition: TopicPartition) -> int | None:
        """Return the number of records of a partition whose append time is unknown.

        None where it is not known: only tidelog's brokers report it, on connections in plain text.
        """
        marks = named_watermarks(self._cluster, [partition])
        return without_append_time(self._cluster, marks)[partition]

    def _first_at(
        self, times: Mapping[TopicPartition, int], clock: ClockName
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return offsets_for_times(self._cluster, times, clock)

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
                yield name, appended_at(record, append_ms)

    def _repr_html_(self) -> str:
        """The cluster for a notebook: its topics."""
        counts = sorted(self._cluster.topics().items())
        return html_table(self.bootstrap, ("topic", "partitions"), counts)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what is on its way, then let go; what is called later raises Closed."""
        self._sender.close()
        self._cluster.close_for_good()

    def __enter__(self) -> Self:
        self._cluster.ensure_open()
        return self


def _row(
    record: NewRecord, partitioner: Partitioner, partition: int | None, now_ms: int
) -> producer.Row:
    """Return what is sent of a record."""
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
    """Topics of a running Kafka (or of `tidelog serve`), called as those of `tidelog.open`.

    Args:
        bootstrap: `host:port[,host:port]`; the first question connects.
        config: Client settings under the names of Kafka's Java clients or of librdkafka: security,
            and the producer's.
        timeout_s: For each request, and for a record to be in the log; an hour at most.
        env: Clock and randomness; the machine's where None.

    Raises:
        MissingDependency: confluent-kafka is not installed.
        ConfigError: A setting that only Java's clients can serve, or that nobody knows; a server
            or a time-out that can't be.
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
    """A topic as a table as of a time: the winning record of each key (docs/tables.md).

    Args:
        source: A directory of topics, by path, URL or open, or a cluster (`tidelog.connect`).
        topic: Its name, or one of its partitions.
        at: The time, in ms or as text; all that the log holds where None.
        clock: Which of a record's two times it is about: `record` or `append`.
        columns: Names out of `tidelog.scan.ALL_COLUMNS`; the usual ones where None.
        inexact: `refuse` or `mark`, see `Directory.table`.
        env: Files, clock and randomness, where `source` is a path; the machine's where None.
        store_options: Settings of the object store that a URL names.

    Raises:
        As `Directory.table`.
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
