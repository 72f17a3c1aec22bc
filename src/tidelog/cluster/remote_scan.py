"""Records of a cluster for Arrow, Polars, DuckDB and pandas: `tidelog.frames.Scan` over brokers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tidelog.cluster.access_checks import is_direct
from tidelog.cluster.connection import Cluster
from tidelog.cluster.lookup_clock import without_append_time
from tidelog.cluster.remote_plan import plan_remote
from tidelog.env import Env
from tidelog.errors import ClusterFailure, InvalidRequest, MissingTimestamps
from tidelog.frames import ArrowSource, TopicChoice, needs_arrow
from tidelog.scan import ScanStats, Split, Wanted
from tidelog.storage.files import decode_topic_id
from tidelog.types import ClockName, IsolationLevel, RecordCount, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.cluster.partition_fetch import FetchSeams, PartitionFetch
    from tidelog.cluster.told_times import ToldTimes
    from tidelog.record.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Settings by which records of a cluster are read.

    Attributes:
        cluster: Whom to ask for offsets.
        client: Settings of librdkafka.
        env: Clock and randomness.
    """

    cluster: Cluster
    client: Mapping[str, str] = field(repr=False)
    env: Env

    @property
    def is_direct(self) -> bool:
        """Whether batches can be fetched from leaders, without librdkafka: plain text alone."""
        return is_direct(self.client)

    def batches(
        self, split: Split, columns: Sequence[str], stats: ScanStats
    ) -> "Iterator[pa.RecordBatch]":
        """The rows of a split.

        Raises:
            InvalidRequest: A column that librdkafka's records don't have.
            OffsetOutOfRange, UnknownTopic: Records were deleted meanwhile.
            CorruptData, ClusterFailure: While reading; what comes before was yielded.
        """
        if self.is_direct:
            return self._fetched(split, columns, stats)
        from tidelog.cluster.consumed_rows import ConsumeSettings, consumed

        settings = ConsumeSettings(
            bootstrap=self.cluster.bootstrap,
            client=self.client,
            timeout_s=self.cluster.timeout_s,
            progress_timeout_ms=self._timeout_ms,
        )
        return consumed(split, columns, settings, stats)

    @property
    def _timeout_ms(self) -> int:
        return max(int(self.cluster.timeout_s * 1000), 1000)

    def _fetched(
        self, split: Split, columns: Sequence[str], stats: ScanStats
    ) -> "Iterator[pa.RecordBatch]":
        from tidelog.cluster.fetched_rows import fetched

        name, seams = split.topic_partition, self._seams()
        with closing(self._fetch(name, split.isolation, seams, split.topic_id)) as fetch:
            yield from fetched(split, columns, fetch, stats)

    def records(
        self, name: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> "Iterator[tuple[Record, int | None]]":
        """The records with offsets in [start, end), in order, with append times where known (ms).

        One by one, without Arrow: for small amounts.

        Raises:
            OffsetOutOfRange, UnknownTopic: Records were deleted meanwhile.
            CorruptData, ClusterFailure: While reading; what comes before was yielded.
        """
        from tidelog.cluster.fetched_records import consumed_records, fetched_records

        if not self.is_direct:
            yield from consumed_records(self.cluster, name, start, end, isolation)
            return
        with closing(self._plain_fetch(isolation, name)) as fetch:
            yield from fetched_records(fetch, start, end)

    def told_times(self, isolation: IsolationLevel) -> "ToldTimes":
        """What tells append times of records that came through librdkafka; to be closed."""
        from tidelog.cluster.told_times import ToldTimes

        fetch = partial(self._plain_fetch, isolation) if self.is_direct else None
        return ToldTimes(fetch, self.env.clock, rest_ms=self._timeout_ms)

    def _plain_fetch(self, isolation: IsolationLevel, name: TopicPartition) -> "PartitionFetch":
        """A fetch that needs neither numpy nor Arrow."""
        from tidelog.record.offset_order import reach_of

        return self._fetch(name, isolation, replace(self._seams(), reach=reach_of))

    def _seams(self) -> "FetchSeams":
        from tidelog.cluster.follow_transport import connect_socket
        from tidelog.cluster.partition_fetch import FetchSeams

        connect = partial(connect_socket, timeout_s=self.cluster.timeout_s)
        return FetchSeams(connect=connect, clock=self.env.clock)

    def _fetch(
        self, name: TopicPartition, level: IsolationLevel, seams: "FetchSeams", topic_id: str = ""
    ) -> "PartitionFetch":
        from tidelog.cluster.partition_fetch import FetchSettings, PartitionFetch

        settings = FetchSettings(
            isolation=level,
            timeout_ms=self._timeout_ms,
            client_id=self.client.get("client.id", "tidelog"),
        )
        bootstrap = self.cluster.bootstrap
        return PartitionFetch(bootstrap, name, seams, topic_id=topic_id, settings=settings)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Topics' ids as 32 hexadecimal digits, "" where the cluster can't tell."""
        try:
            found = self.cluster.topic_ids(topics)
        except ClusterFailure as error:
            if error.error_code is None or error.error_code >= 0:
                raise
            return dict.fromkeys(topics, "")  # librdkafka's own: brokers too old to be asked
        return {name: "" if t is None else decode_topic_id(t).hex for name, t in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoteScan(ArrowSource):
    """Records of one or more topics of a cluster, chosen by time, for whoever wants them.

    Nothing is read until it is asked, and every question plans and reads anew. Any tool that takes
    an Arrow stream takes a scan as it is.

    Attributes:
        reading: Whom to ask.
        topics: Topics or single partitions, all but Kafka's own where None.
        wanted: The range of time.
        clock: Which of a record's two times the range is about.
        columns: Names out of `tidelog.scan.ALL_COLUMNS`; the usual ones where None.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        strict: Raise where records have no time on that clock; else they are left out.
    """

    reading: Reading
    topics: TopicChoice = None
    wanted: Wanted = field(default_factory=Wanted)
    clock: ClockName = ClockName.RECORD
    columns: Sequence[str] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    strict: bool = False

    def __repr__(self) -> str:
        return f"RemoteScan({self.topics!r} of {self.reading.cluster.bootstrap!r})"

    @property
    def schema(self) -> "pa.Schema":
        """Names and types of the columns; raises InvalidRequest for one that does not exist."""
        needs_arrow()
        from tidelog.scan import schema

        return schema(self._columns())

    def plan(self) -> list[Split]:
        """Which offsets would be read now.

        Raises:
            UnknownTopic, InvalidRequest, ClusterFailure: As their names say.
        """
        names = self._partitions()
        splits = plan_remote(
            self.reading.cluster, names, self.wanted, clock=self.clock, isolation=self.isolation
        )
        ids = self.reading.topic_ids(sorted({split.topic for split in splits}))
        return [replace(split, topic_id=ids[split.topic]) for split in splits]

    def to_arrow(self, *, stats: ScanStats | None = None) -> "pa.RecordBatchReader":
        """The records as an Arrow reader, in bounded memory.

        Args:
            stats: Counted up while reading.

        Returns:
            Exactly the records of the range, by topic, partition and offset, that were there when
            it was called. It reads while it is read.

        Raises:
            UnknownTopic, InvalidRequest, MissingDependency, ClusterFailure: At once.
            MissingTimestamps, CorruptData, OffsetOutOfRange, ClusterFailure: While reading, behind
                everything that is right.
        """
        schema = self.schema
        self._check_columns()
        import pyarrow as pa

        rows = self._rows(self.plan(), self._columns(), stats or ScanStats())
        return pa.RecordBatchReader.from_batches(schema, rows)

    def count(self) -> RecordCount:
        """How many records there are; they are all fetched, since brokers can't count."""
        needs_arrow()
        stats = ScanStats()
        rows = self._rows(self.plan(), ("offset",), stats)
        number = sum(batch.num_rows for batch in rows)
        return RecordCount(number, without_time=self.without_time(stats))

    def without_time(self, stats: ScanStats) -> int | None:
        """How many records have no time on the clock, once a reading with `stats` is over.

        On the append clock all of the topics', None where brokers don't tell the number.
        """
        is_open = self.wanted.start_ms is None and self.wanted.end_ms is None
        if self.clock is ClockName.RECORD or is_open:
            return stats.without_time
        marks = self.reading.cluster.watermarks(self._partitions())
        counts = without_append_time(self.reading.cluster, marks).values()
        return None if None in counts else sum(count or 0 for count in counts)

    def _rows(
        self, splits: Sequence[Split], columns: Sequence[str], stats: ScanStats
    ) -> "Iterator[pa.RecordBatch]":
        for split in splits:
            stats.splits += 1
            for batch in self.reading.batches(split, columns, stats):
                yield batch
                self._check_times(split, stats)
            self._check_times(split, stats)

    def _check_times(self, split: Split, stats: ScanStats) -> None:
        if self.strict and stats.without_time:
            raise MissingTimestamps(
                f"{split.topic_partition}: {stats.without_time} records without a time on the"
                f" {self.clock} clock in offsets {split.start_offset} to {split.end_offset}, and"
                f" strict was asked for"
            )

    def _check(self) -> None:
        needs_arrow()
        self._check_columns()
        self._partitions()

    def _check_columns(self) -> None:
        """Raise InvalidRequest for a column that can't be had here."""
        if not self.reading.is_direct:
            from tidelog.cluster.consumed_rows import check_columns

            check_columns(self._columns())

    def _partitions(self) -> list[TopicPartition]:
        cluster = self.reading.cluster
        if self.topics is None:
            counts = cluster.topics()
            topics = sorted(name for name in counts if not name.startswith("__"))
            return [TopicPartition(name, n) for name in topics for n in range(counts[name])]
        chosen = [self.topics] if isinstance(self.topics, str | TopicPartition) else self.topics
        found: dict[TopicPartition, None] = {}
        for one in chosen:
            for name in self._named(cluster, one):
                found[name] = None
        return list(found)

    @staticmethod
    def _named(cluster: Cluster, one: str | TopicPartition) -> list[TopicPartition]:
        if isinstance(one, str):
            return cluster.partitions(one)
        there = cluster.partitions(one.topic)
        if one not in there:
            raise InvalidRequest(f"{one.topic} has partitions 0 to {len(there) - 1}, not {one}")
        return [one]

    def _columns(self) -> tuple[str, ...]:
        if self.columns is not None:
            return tuple(self.columns)
        from tidelog.scan import COLUMNS

        return COLUMNS
