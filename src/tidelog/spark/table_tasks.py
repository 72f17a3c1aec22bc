"""Reads of tables (`table=true`): a task for each partition, which reduces its keys by kernel.

Keys are those of a partition, so no row has to cross from one task to another, and what Spark gets
is the table alone. The driver plans which records count; so a task that is done again reads what it
read before.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.keyed import DirectoryHome, Table, TableHome
from tidelog.objects import env_for
from tidelog.scan.table_doubts import without_time_doubt
from tidelog.spark.source_options import SourceOptions, scan_columns
from tidelog.spark.tasks import BatchPlan, settle
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.cluster.connection import Cluster
    from tidelog.scan import Split

_LOG: Final = logging.getLogger("tidelog.spark")


class Chooser(Protocol):
    """Who knows which partitions the options mean."""

    def partitions(self) -> list[TopicPartition]:
        """See `Backend`."""
        ...


def directory_home(options: SourceOptions) -> DirectoryHome:
    """The directory that is read; other tasks read beside this one, so one thread is enough."""
    return DirectoryHome(options.path, env_for(options.path, None, options.store), 1)


def cluster_home(cluster: "Cluster", options: SourceOptions) -> TableHome:
    """The cluster that is read."""
    from tidelog.cluster.remote_scan import Reading
    from tidelog.cluster.remote_tables import ClusterHome
    from tidelog.env import os_env
    from tidelog.spark.broker_settings import read_settings

    client = read_settings(options).client
    return ClusterHome(Reading(cluster=cluster, client=client, env=os_env()))


@contextmanager
def _home(options: SourceOptions) -> Iterator[TableHome]:
    """Where a task reads."""
    if not options.is_broker:
        yield directory_home(options)
        return
    from tidelog.cluster.connection import connect
    from tidelog.spark.broker_settings import read_settings

    settings = read_settings(options)
    with connect(options.bootstrap, settings.client, timeout_s=settings.timeout_s) as cluster:
        yield cluster_home(cluster, options)


def table_of(
    home: TableHome, name: TopicPartition, options: SourceOptions, columns: Sequence[str]
) -> Table:
    """The table that the options ask for, of one partition."""
    asked = options.table
    assert asked is not None
    return Table(
        home=home,
        topic=name,
        at_ms=asked.at_ms,
        clock=options.clock,
        columns=columns,
        inexact=asked.inexact,
    )


def plan_table(
    home: TableHome, options: SourceOptions, columns: Sequence[str], chooser: Chooser
) -> BatchPlan:
    """A task for each partition that has records.

    Raises:
        InexactTable: The past is not whole any more, and that is refused.
        UnknownTopic, InvalidRequest: As `Backend.plan_batch`.
    """
    tasks = []
    reports = []
    for name in chooser.partitions():
        wanted = scan_columns(columns, options.serdes)
        table = table_of(home, name, options, wanted)
        for splits in table.plan().values():
            reports += [f"not exact: {doubt}" for doubt in table.doubts()]
            if splits:
                tasks.append(TableTask(name, tuple(splits), tuple(columns), options))
    return BatchPlan(tasks=tuple(tasks), reports=tuple(reports))


@dataclass(frozen=True, slots=True)
class TableTask:
    """Reads the table of one partition.

    Attributes:
        name: The partition.
        splits: Its records that count.
        columns: Of a row, in order.
        options: What the query was asked for.
    """

    name: TopicPartition
    splits: "tuple[Split, ...]"
    columns: tuple[str, ...]
    options: SourceOptions

    def read(self) -> "Iterator[pa.RecordBatch]":
        """The rows; warns of what is in no table.

        Raises:
            InexactTable: Records without a time were met, and that is refused.
            OffsetsGone: Records were compacted or deleted while the table was read.
            CorruptData, ClusterFailure: As their names say.
        """
        from tidelog.scan.tables import TableStats
        from tidelog.spark.rows import SparkRows

        rows = SparkRows(self.columns, self.options.serdes, permissive=self.options.permissive)
        stats = TableStats()
        with _home(self.options) as home:
            table = table_of(home, self.name, self.options, rows.scanned)
            for batch in table.rows_of(self.name, self.splits, stats):
                settle()
                yield rows.convert(batch, self.name)
        if stats.without_key:
            _LOG.warning("%s: %d records have no key: left out", self.name, stats.without_key)
        if self.options.table is not None and self.options.table.at_ms is not None:
            doubt = without_time_doubt(self.name, stats.without_time, self.options.clock)
            if doubt is not None:
                _LOG.warning("not exact: %s", doubt)
