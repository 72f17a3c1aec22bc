"""`RemoteDirectory`, `ClusterHome`, `tidelog.table`.

The front door to topics that brokers hold: `tidelog.connect`, with the calls of `Directory`.

Works with any Kafka, through confluent-kafka; records are read by batches from their leaders where
brokers speak plain text. What is of one directory alone (logs, durability, the append clock of
topics that brokers don't stamp) is not here.

Life cycle: `tidelog.connect` -> calls -> close, best by `with`. Safe for several threads.

Tables as of a time of topics that brokers hold.

Brokers keep no history of what they compacted, so no table as of a time of a compacted topic is
known to be whole; of other topics it is, as far as their settings and their log start say.

`tidelog.table`: a topic as a table as of a time, wherever it is.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from tidelog.arguments import codec_of, level_of, reads_arguments
from tidelog.closing import Closing
from tidelog.directory import Directory, When
from tidelog.env import Env, os_env
from tidelog.errors import InvalidPartitions, InvalidRequest, TopicExists
from tidelog.objects import env_for, local_path
from tidelog.record.partitioner import Partitioner
from tidelog.record.record import Record, appended_at
from tidelog.remote import producer, topics
from tidelog.remote.client_settings import translate_settings
from tidelog.remote.cluster import TIMEOUT_S, Cluster, require_client
from tidelog.remote.records import Reading, RemoteScan
from tidelog.remote.time_lookup import offsets_for_times, plan_remote, without_append_time
from tidelog.remote.topics import RemoteTopic, describe, named_watermarks
from tidelog.report import html_table
from tidelog.scan import Split, Wanted
from tidelog.scan.table_rules import Doubt, Ranking, deleted_doubt, ranking_of
from tidelog.storage.log.append import AppendResult
from tidelog.timespec import OPEN_END, OPEN_START, parse_point, parse_range
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    ClockName,
    Codec,
    Compression,
    Isolation,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    RecordCount,
    TopicPartition,
)

if TYPE_CHECKING:
    import random
    from concurrent.futures import Future

    import pyarrow as pa

    from tidelog.frames import TopicChoice
    from tidelog.keyed import Diff, Table
    from tidelog.scan import ScanStats
    from tidelog.scan.keyed_table import RowSource
    from tidelog.storage.directory.numbered_loads import Loaded


# How long a topic's number of partitions is believed, as Kafka's clients do (metadata.max.age.ms).
_COUNTS_MAX_AGE_MS: Final = 300_000


_COUNTS_MAX: Final = 10_000


@reads_arguments()
class RemoteDirectory(Closing):
    """The topics of a cluster, called as those of a `tidelog.Directory`."""

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], *, timeout_s: float, env: Env
    ) -> None:
        client = translate_settings(config)
        codec_name = client.pop("compression.codec", Codec.NONE.config_name)
        codec_name = client.pop("compression.type", codec_name)
        self._env = env
        self._cluster = Cluster(bootstrap, client, timeout_s=timeout_s, clock=env.clock)
        self._cluster.admin()  # made now, so that threads need not agree who makes it
        self._reading = Reading(cluster=self._cluster, client=client, env=env)
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
    def reading(self) -> Reading:
        """How its records are read, for those who plan themselves."""
        return self._reading

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
    ) -> None:
        """Create a topic, with as many replicas as the brokers' default says.

        Args:
            name: By Kafka's rules.
            partitions: From 1 on.
            config: Settings under Kafka's names; what the brokers don't know they refuse.
            exist_ok: A topic that is there stays as it is, whatever the other arguments say.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError, PolicyViolation: Nothing was
                changed.
            NotAuthorized, ClusterFailure: The cluster refuses, or can't be reached.
        """
        if not 1 <= partitions <= INT32_MAX:
            raise InvalidPartitions(f"{name}: {partitions} partitions; give 1 to {INT32_MAX}")
        try:
            topics.create(self._cluster, name, partitions=partitions, config=config or {})
        except TopicExists:
            if not exist_ok:
                raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; raises UnknownTopic."""
        with self._lock:
            self._counts.pop(name, None)
        topics.delete(self._cluster, name)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change a topic's settings, None for back to the default; raises as `create_topic`."""
        topics.alter_config(self._cluster, name, changes)

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
            known = self._counts.get(topic)
        if known is None or known[1] < now_ms:
            partitions = self._cluster.partitions(topic)
            topics.await_leaders(self._cluster, partitions)
            known = (len(partitions), now_ms + _COUNTS_MAX_AGE_MS)
            with self._lock:
                if len(self._counts) >= _COUNTS_MAX:
                    self._counts.clear()
                self._counts[topic] = known
        return Partitioner(known[0], self._env.random)

    def flush(self) -> None:
        """Return when everything that was sent is in the log, or its call has failed."""
        self._cluster.ensure_open()
        self._sender.flush()

    # -- lookups by time ---------------------------------------------------------------------

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The earliest record at or after a time, for each partition. Source: KIP-79.

        Args:
            times: ms since the epoch, 0 or more.
            clock: `record`, or `append` where brokers know it: ours, and others on topics with
                LogAppendTime.

        Returns:
            Every partition asked; None where no record is that late. On the append clock,
            `without_time` is the number of records before the answer whose append time is unknown,
            or None where the brokers don't tell it. Where the answer is None,
            `without_append_time` tells how many there are in all, and a warning is logged if there
            are any.

        Raises:
            ValueError: A negative time, or an unknown clock.
            UnknownTopic: A topic or partition is not there.
            InvalidRequest: Append times are asked for that the brokers don't know.
        """
        return offsets_for_times(self._cluster, times, ClockName(clock))

    def without_append_time(self, partition: TopicPartition) -> int | None:
        """Number of records of a partition whose append time is unknown, None where not told.

        Brokers of ours tell it, in plain text.
        """
        marks = named_watermarks(self._cluster, [partition])
        return without_append_time(self._cluster, marks)[partition]

    def offsets_at(
        self, topic: str, when: When, *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """`offsets_for_times` for every partition of a topic and one point in time.

        Args:
            topic: Its name.
            when: ms since the epoch, or text such as `2013-02-08 12:00 America/New_York`, `-6h`.
            clock: `record` or `append`.

        Raises:
            InvalidTime: Text that can't be read as one point.
        """
        time_ms = self.point(when)
        partitions = self._cluster.partitions(topic)
        return self.offsets_for_times(dict.fromkeys(partitions, time_ms), clock=clock)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can be read; raises UnknownTopic. Source: KIP-79."""
        marks = named_watermarks(self._cluster, partitions)
        return {partition: mark.start for partition, mark in marks.items()}

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """The offset behind the last visible record; raises UnknownTopic. Source: KIP-79."""
        marks = named_watermarks(self._cluster, partitions, level_of(isolation))
        return {partition: mark.end for partition, mark in marks.items()}

    def point(self, when: When) -> int:
        """A point in time in ms; text is read by the grammar of docs/time.md."""
        if isinstance(when, int):
            return when
        return parse_point(when, now_ms=self._env.clock.now_ms())

    def range(self, text: str) -> tuple[int, int]:
        """A range in time [start, end) in ms, from text such as `-6h..now` or `2013-02-08`."""
        return parse_range(text, now_ms=self._env.clock.now_ms())

    # -- reading -----------------------------------------------------------------------------

    def records(
        self,
        topic: str,
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """Every record of a topic, partition after partition; for small amounts.

        With append times from a broker of ours in plain text; from others, and behind TLS or SASL,
        where brokers stamp records.
        """
        names = self._cluster.partitions(topic)
        level = level_of(isolation)
        for name, mark in self._cluster.watermarks(names, isolation=level).items():
            self._cluster.ensure_open()
            found = self._reading.records(name, mark.start, mark.end, level)
            for record, append_ms in found:
                yield name, appended_at(record, append_ms)

    def read(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
        stats: "ScanStats | None" = None,
    ) -> "pa.RecordBatchReader":
        """A topic's records as an Arrow reader, a time range of them where one is given.

        Arguments as of `tidelog.Directory.read`.

        Returns:
            Exactly the records of the range that are there now, by partition and offset. By create
            time everything behind the first one that is late enough is fetched, since later
            records may have earlier times (docs/connect.md).

        Raises:
            InvalidTime: A point in time that can't be read.
            InvalidRequest: Append times are asked for that the brokers don't know.
            UnknownTopic, MissingDependency, ClusterFailure: As their names say.
            MissingTimestamps, CorruptData, OffsetOutOfRange: While reading.
        """
        found = self.scan(
            topic,
            start=start,
            end=end,
            clock=clock,
            columns=columns,
            isolation=isolation,
            strict=strict,
        )
        return found.to_arrow(stats=stats)

    def count(
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        clock: str = ClockName.RECORD,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> RecordCount:
        """How many records `read` would hand out of the same range; they are all fetched."""
        return self.scan(topic, start=start, end=end, clock=clock, isolation=isolation).count()

    def scan(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topics: "TopicChoice" = None,
        *,
        start: When | None = None,
        end: When | None = None,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
    ) -> RemoteScan:
        """Records for Arrow, Polars, DuckDB or pandas; nothing is read until they ask.

        Arguments as of `tidelog.Directory.scan`; all topics but Kafka's own where None.

        Raises:
            InvalidTime: A point or a range in time that can't be read.
            InvalidRequest: `during` beside `start` or `end`.
        """
        one = str | TopicPartition
        return RemoteScan(
            reading=self._reading,
            topics=topics if topics is None or isinstance(topics, one) else tuple(topics),
            wanted=self._wanted(start, end, during),
            clock=ClockName(clock),
            columns=columns,
            isolation=level_of(isolation),
            strict=strict,
        )

    # -- tables by key -----------------------------------------------------------------------

    def table(
        self,
        topic: str | TopicPartition,
        *,
        at: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        inexact: str = "refuse",
    ) -> "Table":
        """A topic as a table as of a time; as `tidelog.Directory.table`.

        Brokers don't say what compaction took away: of a compacted topic every table as of a time
        is inexact, and of one that no longer begins with its first record.
        """
        from tidelog.keyed import Table

        return Table(
            home=ClusterHome(self._reading),
            topic=topic,
            at_ms=None if at is None else self.point(at),
            clock=ClockName(clock),
            columns=columns,
            inexact=inexact,
        )

    def diff(
        self,
        topic: str | TopicPartition,
        before: When,
        after: When | None = None,
        *,
        clock: str = ClockName.RECORD,
        inexact: str = "refuse",
    ) -> "Diff":
        """What changed in a topic's table between two times; as `tidelog.Directory.diff`."""
        from tidelog.keyed import Diff

        return Diff(
            home=ClusterHome(self._reading),
            topic=topic,
            before_ms=self.point(before),
            after_ms=None if after is None else self.point(after),
            clock=ClockName(clock),
            inexact=inexact,
        )

    def _wanted(self, start: When | None, end: When | None, during: str | None) -> Wanted:
        if during is None:
            return Wanted(
                start_ms=None if start is None else self.point(start),
                end_ms=None if end is None else self.point(end),
            )
        if (start, end) != (None, None):
            raise InvalidRequest(f"during={during!r} is a whole range; leave start and end out")
        low, high = self.range(during)
        return Wanted(
            start_ms=None if low == OPEN_START else low, end_ms=None if high == OPEN_END else high
        )

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
    found: producer.Headers = [(header.key, header.value) for header in record.headers]
    return found or None


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


_POLICY: Final = "cleanup.policy"


_COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True)
class ClusterHome:
    """The topics of a cluster. A `TableHome`.

    Attributes:
        reading: Whom to ask, and how records are read.
    """

    reading: Reading

    @property
    def random(self) -> "random.Random":
        """See `TableHome`."""
        return self.reading.env.random

    @property
    def _cluster(self) -> Cluster:
        return self.reading.cluster

    def partitions(self, topic: str | TopicPartition) -> list[TopicPartition]:
        """See `TableHome`."""
        if isinstance(topic, str):
            return self._cluster.partitions(topic)
        there = self._cluster.partitions(topic.topic)
        if topic not in there:
            raise InvalidRequest(f"{topic.topic} has partitions 0 to {len(there) - 1}, not {topic}")
        return [topic]

    def ranking(self, topic: str) -> Ranking:
        """See `TableHome`; Kafka's own brokers know no rule but the offset."""
        return ranking_of(self._settings(topic))

    def _settings(self, topic: str) -> dict[str, str]:
        counts = {topic: len(self._cluster.partitions(topic))}
        return dict(describe(self._cluster, counts)[topic].settings)

    def doubts(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,  # noqa: ARG002 - brokers tell the same of either
    ) -> list[Doubt]:
        """See `TableHome`."""
        if at_ms is None or not names:
            return []
        policy = self._settings(names[0].topic).get(_POLICY, "")
        reason = f"compacted ({_POLICY}={policy}), and brokers don't say what that took away"
        found: list[Doubt | None] = []
        for name, mark in self._cluster.watermarks(names).items():
            found.append(Doubt(name, reason) if _COMPACT in policy else None)
            found.append(deleted_doubt(name, mark.start))
        return [doubt for doubt in found if doubt is not None]

    def splits(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,
        columns: Sequence[str],
    ) -> dict[TopicPartition, list[Split]]:
        """See `TableHome`; one split for each partition that has something."""
        if not self.reading.is_direct:
            from tidelog.remote.rows import check_columns

            check_columns(columns)
        found: dict[TopicPartition, list[Split]] = {name: [] for name in names}
        wanted = Wanted(end_ms=None if at_ms is None else min(at_ms, INT64_MAX - 1) + 1)
        level = IsolationLevel.READ_COMMITTED
        planned = plan_remote(self._cluster, names, wanted, clock=clock, isolation=level)
        ids = self.reading.topic_ids(sorted({split.topic for split in planned}))
        for split in planned:
            found[split.topic_partition].append(replace(split, topic_id=ids[split.topic]))
        return found

    def compacted_to(self, name: TopicPartition) -> int:  # noqa: ARG002 - brokers don't say it
        """See `TableHome`."""
        return 0

    def rows(self) -> "RowSource":
        """See `TableHome`."""
        return ClusterRows(self.reading)


@dataclass(frozen=True, slots=True)
class ClusterRows:
    """Reads splits of a cluster. A `RowSource`.

    Attributes:
        reading: How.
    """

    reading: Reading

    def batches(
        self, splits: Sequence[Split], columns: Sequence[str], stats: "ScanStats"
    ) -> "Iterator[pa.RecordBatch]":
        """See `RowSource`."""
        for split in splits:
            stats.splits += 1
            yield from self.reading.batches(split, columns, stats)


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
    from tidelog.keyed import DirectoryHome, Table

    path = local_path(source)
    found = env_for(path, env, store_options)
    now_ms = found.clock.now_ms()
    return Table(
        home=DirectoryHome(path, found),
        topic=topic,
        at_ms=parse_point(at, now_ms=now_ms) if isinstance(at, str) else at,
        clock=ClockName(clock),
        columns=columns,
        inexact=inexact,
    )
