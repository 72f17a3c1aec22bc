"""Tables as of a time, as DataFrames or with `table=true`, and changes between two times.

There are two ways to compute a table, with the same result. `tidelog.scan.keyed_table` defines
which records belong to a table.

- DataFrames (`table`, `diff`): one task for each split reduces the split to one row per key, with a
  compiled kernel. The rows include tombstones, because tombstones may replace rows of other splits.
  Spark then chooses the row with the highest (version, offset) for each key of a partition, so the
  result is exact for any division into splits. DataFrames suit topics with few, large partitions.
- `format("tidelog")` with `table=true`: one task for each partition reduces the partition, with a
  compiled kernel. Keys of different partitions count as different keys, so Spark needs no shuffle
  and gets only the rows of the table.

Invariants: the driver plans the splits only once, and the splits determine which records are read.
So if a DataFrame is computed again or a task is repeated, the same records are read. Reading
records that were deleted after the planning raises an error.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.amounts import plural
from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest
from tidelog.keyed import MEMORY_BYTES, Table, checked, fold_of
from tidelog.lazy_dataclass import dataclass
from tidelog.objects import env_for
from tidelog.record.serde import SERDE_NAMES
from tidelog.scan.source import DirectoryRecords, RecordSource
from tidelog.scan.split import decode_split, encode_split
from tidelog.scan.table_rules import REFUSE, without_time_doubt
from tidelog.spark.options import COLUMNS, SourceOptions, scan_columns
from tidelog.spark.parts import PARTS_AT_ONCE
from tidelog.spark.places import Place, as_place
from tidelog.spark.tasks import BatchPlan, freeze_garbage
from tidelog.spark.workers import PromptAck, make_ready
from tidelog.split_size import TABLE_SPLIT_BYTES
from tidelog.timespec import parse_point
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.remote.cluster import Cluster
    from tidelog.scan import Split


_LOG: Final = logging.getLogger("tidelog.spark")


class Chooser(Protocol):
    """Protocol of objects that return the partitions chosen by a query's options."""

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions; see `Backend.partitions`."""
        ...


def directory_records(options: SourceOptions) -> DirectoryRecords:
    """Return a directory as a source of records.

    The source reads with one thread, because tasks run in parallel.
    """
    return DirectoryRecords(options.path, env_for(options.path, None, options.store), 1)


def cluster_records(cluster: "Cluster", options: SourceOptions) -> RecordSource:
    """Return a cluster as a source of records."""
    from tidelog.env import os_env
    from tidelog.remote.records import ClusterRecords
    from tidelog.spark.broker_settings import read_settings

    client = read_settings(options).client
    return ClusterRecords(cluster=cluster, client=client, env=os_env())


@contextmanager
def _records(options: SourceOptions) -> Iterator[RecordSource]:
    """Open the source from which a task reads."""
    if not options.is_broker:
        yield directory_records(options)
        return
    from tidelog.remote.cluster import connect
    from tidelog.spark.broker_settings import read_settings

    settings = read_settings(options)
    with connect(options.bootstrap, settings.client, timeout_s=settings.timeout_s) as cluster:
        yield cluster_records(cluster, options)


def table_of(
    source: RecordSource, name: TopicPartition, options: SourceOptions, columns: Sequence[str]
) -> Table:
    """Return the table that the options request, limited to one partition."""
    request = options.table
    assert request is not None
    return Table(
        source=source,
        topic=name,
        at_ms=request.at_ms,
        clock=options.clock,
        columns=columns,
        inexact=request.inexact,
    )


def plan_table(
    source: RecordSource, options: SourceOptions, columns: Sequence[str], chooser: Chooser
) -> BatchPlan:
    """Plan one task for each partition that has records.

    Raises:
        InexactTable: Records up to the time may be missing, and inexact tables are refused.
        UnknownTopic, InvalidRequest: The options are invalid, or don't fit the log.
    """
    tasks = []
    reports = []
    for name in chooser.partitions():
        decoded = scan_columns(columns, options.serdes)
        table = table_of(source, name, options, decoded)
        for splits in table.plan().values():
            reports += [f"not exact: {doubt}" for doubt in table.doubts()]
            if splits:
                tasks.append(TableTask(name, tuple(splits), tuple(columns), options))
    return BatchPlan(tasks=tuple(tasks), reports=tuple(reports))


@dataclass(frozen=True, slots=True)
class TableTask:
    """Task that reads the table of one partition.

    Attributes:
        name: The partition.
        splits: Splits with all records that may be in the table.
        columns: Columns of a row, in order.
        options: Options of the query.
    """

    name: TopicPartition
    splits: "tuple[Split, ...]"
    columns: tuple[str, ...]
    options: SourceOptions

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of the table. Log a warning for records without a key.

        Raises:
            InexactTable: The option `inexact` is `refuse`, and the table is inexact: there are
                records without a time, or compaction or retention has removed records since the
                plan.
            OffsetsGone: Records were compacted or deleted during the read.
            CorruptData: A batch is damaged.
            ClusterFailure: A broker refuses a request, or can't be reached.
        """
        from tidelog.scan.keyed_table import TableStats
        from tidelog.spark.rows import SparkRows

        rows = SparkRows(self.columns, self.options.serdes, permissive=self.options.permissive)
        stats = TableStats()
        with _records(self.options) as source:
            table = table_of(source, self.name, self.options, rows.scanned)
            for batch in table.rows_of(self.name, self.splits, stats):
                freeze_garbage()
                yield rows.convert(batch, self.name)
        if stats.without_key:
            _LOG.warning(
                "%s: left out %s without a key", self.name, plural(stats.without_key, "record")
            )
        if self.options.table is not None and self.options.table.at_ms is not None:
            doubt = without_time_doubt(self.name, stats.without_time, self.options.clock)
            if doubt is not None:
                _LOG.warning("not exact: %s", doubt)


_KEY: Final = ("topic", "partition", "key")
_VERSION: Final = "version"
_TIMES: Final = {ClockName.RECORD: "timestamp", ClockName.APPEND: "appendTimestamp"}


@reads_arguments()
def table(  # noqa: PLR0913 - one keyword for each way to choose
    spark: "SparkSession",
    source: Place | str,
    topic: str | TopicPartition,
    *,
    at: int | str | None = None,
    clock: str = ClockName.RECORD,
    columns: Sequence[str] = COLUMNS,
    inexact: str = REFUSE,
    key_as: str = "bytes",
    value_as: str = "bytes",
    split_bytes: int = TABLE_SPLIT_BYTES,
) -> "DataFrame":
    """Return the table of a topic as of a time: one row for each key of a partition.

    Args:
        spark: The session.
        source: A directory of topics, local or in an object store, or a cluster.
        topic: The topic, or one of its partitions, as `TopicPartition`.
        at: The time, inclusive; None for the whole log.
        clock: Clock of the time: `record` or `append`.
        columns: Columns of a row, from `tidelog.scan.ALL_COLUMNS`.
        inexact: `refuse` raises an error if records up to the time may be missing; `mark` returns
            the table of the existing records.
        key_as: Name of the serializer for keys, which also determines the column's type.
        value_as: Name of the serializer for values, which also determines the column's type.
        split_bytes: Approximate maximum number of bytes of log per task; partitions of brokers are
            not split.

    Raises:
        InvalidRequest, InvalidTime, UnknownTopic, InexactTable, ConfigError, ClusterFailure: Raised
            before records are read. If an error occurs while records are read, the query fails.
    """
    request = TableRequest.make(source, topic, at, clock, inexact, split_bytes)
    serdes = {"key": key_as, "value": value_as}
    names = dict.fromkeys((*columns, *_KEY, "offset"))
    winners = request.winners(spark, tuple(names), serdes)
    return winners.where("value_lives").select(*columns)


@reads_arguments()
def diff(  # noqa: PLR0913 - one keyword for each way to choose
    spark: "SparkSession",
    source: Place | str,
    topic: str | TopicPartition,
    before: int | str,
    after: int | str | None = None,
    *,
    clock: str = ClockName.RECORD,
    inexact: str = REFUSE,
    key_as: str = "bytes",
    value_as: str = "bytes",
    split_bytes: int = TABLE_SPLIT_BYTES,
) -> "DataFrame":
    """Return the keys that were added, changed and deleted between two times.

    Args:
        spark: The session.
        source: A directory of topics, local or in an object store, or a cluster.
        topic: The topic, or one of its partitions, as `TopicPartition`.
        before: The earlier time, inclusive.
        after: The later time, inclusive; None for the whole log.
        clock: Clock of `before` and `after`: `record` or `append`.
        inexact: `refuse` raises an error if records up to a time may be missing; `mark` compares
            the tables of the existing records.
        key_as: Name of the serializer for keys, which also determines the column's type.
        value_as: Name of the serializer for values, which also determines the column's type.
        split_bytes: Approximate maximum number of bytes of log per task; partitions of brokers are
            not split.

    Returns:
        A DataFrame with the columns of a diff in `tidelog.scan.keyed_table`.

    Raises:
        InvalidRequest: `after` is earlier than `before`; for other causes see `table`.
        InvalidTime, UnknownTopic, InexactTable, ConfigError, ClusterFailure: See `table`.
    """
    first = TableRequest.make(source, topic, before, clock, inexact, split_bytes)
    last = TableRequest.make(source, topic, after, clock, inexact, split_bytes)
    if first.at_ms is not None and last.at_ms is not None and last.at_ms < first.at_ms:
        raise InvalidRequest(
            f"a diff from {before} to {after}: the second time must not be before the first"
        )
    time, serdes = _TIMES[first.clock], {"key": key_as, "value": value_as}
    columns = (*_KEY, "value", "offset", time)
    old = first.winners(spark, columns, serdes).where("value_lives")
    new = last.winners(spark, columns, serdes)
    return _compared(old, new, time)


def _compared(old: "DataFrame", new: "DataFrame", time: str) -> "DataFrame":
    from pyspark.sql import functions as f

    # A left join is enough: each key of the earlier table has a row in the later table, perhaps a
    # tombstone.
    both = new.alias("new").join(old.alias("old"), [*_KEY], "left")
    had, has = f.col("old.value_lives").isNotNull(), f.col("new.value_lives")
    is_changed = had & has & (f.col("old.value") != f.col("new.value"))
    kind = f.when(had & ~has, "deleted").when(~had & has, "added").when(is_changed, "changed")
    return both.select(
        kind.alias("change"),
        *_KEY,
        f.col("old.value").alias("before"),
        f.col("new.value").alias("after"),
        f.col("old.offset").alias("beforeOffset"),
        f.col("new.offset").alias("afterOffset"),
        f.col(f"old.{time}").alias("beforeTimestamp"),
        f.col(f"new.{time}").alias("afterTimestamp"),
    ).where("change is not null")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """Request of a table.

    Attributes:
        place: Directory or cluster.
        topic: The topic, or one of its partitions.
        at_ms: The time in ms, inclusive; None for the whole log.
        clock: Clock of `at_ms`: `record` or `append`.
        inexact: What to do with a table that may lack records: `refuse` or `mark`.
        split_bytes: Approximate maximum number of bytes of log per task.
    """

    place: Place
    topic: str | TopicPartition
    at_ms: int | None
    clock: ClockName
    inexact: str
    split_bytes: int

    @classmethod
    def make(
        cls,
        source: Place | str,
        topic: str | TopicPartition,
        at: int | str | None,
        clock: str,
        inexact: str,
        split_bytes: int,
    ) -> "TableRequest":
        """Create a request from arguments of the user; raises InvalidRequest, InvalidTime."""
        from tidelog.env import os_env

        if isinstance(at, str):
            at = parse_point(at, now_ms=os_env().clock.now_ms())
        return cls(
            place=as_place(source),
            topic=topic,
            at_ms=at,
            clock=ClockName(clock),
            inexact=inexact,
            split_bytes=split_bytes,
        )

    def winners(
        self, spark: "SparkSession", columns: tuple[str, ...], serdes: dict[str, str]
    ) -> "DataFrame":
        """Return each key's record with the highest (version, offset), including tombstones.

        The column `value_lives` is false for a tombstone.
        """
        from pyspark.sql import functions as f

        for name in serdes.values():
            if name not in SERDE_NAMES:
                raise InvalidRequest(f"no serializer {name!r}; there are: {', '.join(SERDE_NAMES)}")
        needed = tuple(dict.fromkeys((*columns, "value")))
        best = f.max_by(f.struct("*"), f.struct(_VERSION, "offset"))
        reduced = self._reduced(spark, needed, serdes)
        return (
            reduced.groupBy(*[f.col(name).alias(f"of_{name}") for name in _KEY])
            .agg(best.alias("best"))
            .select("best.*")
        )

    def _reduced(
        self, spark: "SparkSession", columns: tuple[str, ...], serdes: dict[str, str]
    ) -> "DataFrame":
        """Return, for each key of each split, the record with the highest (version, offset)."""
        with open_records(self.place, self.split_bytes) as source:
            planned = self.table(source, columns).plan()
        parts = [encode_split(split) for splits in planned.values() for split in splits]
        kind = _row_type(columns, serdes)
        frames = []
        for start in range(0, max(len(parts), 1), PARTS_AT_ONCE):
            batch = tuple(parts[start : start + PARTS_AT_ONCE])
            numbers = spark.range(0, len(batch), 1, max(len(batch), 1))
            frames.append(numbers.mapInArrow(_Reduce(batch, self, columns, serdes), kind))
        return reduce(lambda one, other: one.unionAll(other), frames)

    def table(self, source: RecordSource, columns: Sequence[str]) -> Table:
        """Return the requested table as an object of the library, without Spark."""
        return Table(
            source=source,
            topic=self.topic,
            at_ms=self.at_ms,
            clock=self.clock,
            columns=columns,
            inexact=self.inexact,
        )


def _row_type(columns: Sequence[str], serdes: dict[str, str]) -> "StructType":
    from pyspark.sql.types import BooleanType, LongType

    from tidelog.spark.rows import row_type

    columns_type = row_type(columns, serdes)
    return columns_type.add(_VERSION, LongType()).add("value_lives", BooleanType())


@contextmanager
def open_records(place: Place, split_bytes: int = TABLE_SPLIT_BYTES) -> Iterator[RecordSource]:
    """Open a place as a source of records.

    A directory is read with one thread, because tasks run in parallel.
    """
    if not place.is_broker:
        env = env_for(place.address, None, place.store)
        yield DirectoryRecords(place.address, env, 1, split_bytes)
        return
    from tidelog.env import os_env
    from tidelog.remote.client_settings import translate_settings
    from tidelog.remote.cluster import connect
    from tidelog.remote.records import ClusterRecords

    client = translate_settings(place.client)
    with connect(place.address, client) as cluster:
        yield ClusterRecords(cluster=cluster, client=client, env=os_env())


@dataclass(frozen=True, slots=True)
class _Reduce:
    """Worker function that gets indexes of splits and yields one record per key of each split."""

    parts: tuple[str, ...]
    request: TableRequest
    columns: tuple[str, ...]
    serdes: dict[str, str]
    arrival: PromptAck = field(default_factory=PromptAck)

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        make_ready()
        import numpy as np

        for batch in batches:
            for number in map(int, np.asarray(batch.column(0))):
                freeze_garbage()
                yield from self._rows(decode_split(self.parts[number]))

    def _rows(self, split: "Split") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from tidelog.scan.keyed_table import TableStats, split_winners
        from tidelog.spark.rows import SparkRows

        rows, stats = SparkRows(self.columns, self.serdes), TableStats()
        name = split.topic_partition
        with open_records(self.request.place) as source:
            request = replace(self.request, topic=name)
            how = fold_of(source, [name], request.clock, MEMORY_BYTES)
            winners = split_winners(source, [split], rows.scanned, how, stats)
            ranked = checked(request.table(source, rows.scanned), name, [split], winners, stats)
            for batch in ranked:
                records, version = batch.select(list(rows.scanned)), batch.column(_VERSION)
                lives = records.column("value").is_valid()
                listed = rows.convert(records, name)
                arrays = [*listed.columns, version, lives]
                yield pa.RecordBatch.from_arrays(
                    arrays, names=[*listed.schema.names, _VERSION, "value_lives"]
                )
