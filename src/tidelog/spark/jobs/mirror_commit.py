"""From the reports of a batch's tasks to what the target has and the offset map gains.

A directory: the segments of all tasks are attached by one commit that carries the batch's number
and what the tasks noted, counted from the first offset that the commit gives each partition. A
batch that comes again after a crash is not attached again: the directory answers where it went and
what was noted then. Brokers: the reports say it all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.cluster.offset_map import Copied, MapBatch, SourcePartition, thin
from tidelog.errors import CorruptData
from tidelog.spark.jobs.mirror_rows import (
    Noted,
    decode_noted,
    encode_noted,
    join_noted,
    moved,
)
from tidelog.spark.jobs.mirror_tasks import (
    REPORT_SCHEMA,
    BrokerTask,
    DirectoryTask,
    Report,
    Routes,
    read_reports,
)
from tidelog.spark.sink_commit import attach_staged
from tidelog.spark.sink_directory import batch_commit_id, drop_staged
from tidelog.spark.sink_options import SinkOptions
from tidelog.spark.task_facts import StreamBatch
from tidelog.storage.attach import AttachedRange, AttachResult, WriterVersion
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a batch notes at most, of all its tasks, but for one row for each pair of partitions.
BATCH_ROWS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a batch.

    Attributes:
        map_batch: For the offset map.
        records: How many records it has at the target.
        was_done: All of it was there already.
    """

    map_batch: MapBatch
    records: int
    was_done: bool


class MirrorTarget(Protocol):
    """Takes the batches of a mirror, in order, each once."""

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """Write a batch, or find it written."""
        ...

    def routed(self, routes: Routes) -> "MirrorTarget":
        """The same, with other routes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryTarget:
    """A directory of topics. A `MirrorTarget`.

    Attributes:
        options: Of the sink.
        routes: Where topics go.
        mirror_id: Names the writer.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """See `MirrorTarget`; all of the batch is visible, or nothing."""
        # The same whenever the batch comes again: what a dead driver staged for it goes, too.
        commit_id = batch_commit_id(StreamBatch(self.mirror_id, batch_id))
        known = self._find(batch_id)
        if known is not None:
            drop_staged(self.options, commit_id)
            return self._written(known, batch_id)
        task = DirectoryTask(options=self.options, routes=self.routes, commit_id=commit_id)
        try:
            reports = _run(rows, task)
            noted = relative_to_batch(reports, self.routes)
            result = attach_staged(
                self.options,
                [segment for report in reports for segment in report.staged],
                commit_id=commit_id,
                version=self._version(batch_id, encode_noted(noted)),
            )
        finally:
            # Of failed, repeated and speculative attempts; what was attached has other names.
            drop_staged(self.options, commit_id)
        return self._written(result, batch_id)

    def routed(self, routes: Routes) -> "DirectoryTarget":
        """See `MirrorTarget`."""
        return replace(self, routes=routes)

    def _version(self, batch_id: int, note: str = "") -> WriterVersion:
        return WriterVersion(f"mirror/{self.mirror_id}", batch_id, note)

    def _find(self, batch_id: int) -> AttachResult | None:
        """What the directory knows of the batch; spares the tasks their work."""
        from tidelog.storage.attach import find_done
        from tidelog.storage.log_dir import LogDir

        with LogDir.open(self.options.path, env=self.options.env()) as log_dir:
            return find_done(log_dir, self._version(batch_id))

    def _written(self, result: AttachResult, batch_id: int) -> Written:
        now_ms = self.options.env().clock.now_ms()
        noted = decode_noted(result.note) if result.note else Noted()
        placed = place(noted, result.partitions, self.routes, now_ms)
        ends = {name: found.end_offset for name, found in result.partitions.items()}
        return Written(
            map_batch=map_batch(batch_id, placed, ends),
            records=noted.records,
            was_done=result.was_done,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTarget:
    """Topics of a cluster. A `MirrorTarget`.

    Attributes:
        options: Of the sink.
        routes: Where topics go.
        mirror_id: Names the writer.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str

    def write(self, rows: "DataFrame", batch_id: int) -> Written:
        """See `MirrorTarget`; the tasks' rows become visible one after the other."""
        task = BrokerTask(
            options=self.options,
            routes=self.routes,
            mirror_id=self.mirror_id,
            batch_id=batch_id,
        )
        reports = _run(rows, task)
        noted = join_noted(report.noted for report in reports)
        return Written(
            map_batch=map_batch(batch_id, noted, _ends(noted, self.routes)),
            records=noted.records,
            was_done=bool(reports) and all(report.was_done for report in reports),
        )

    def routed(self, routes: Routes) -> "BrokerTarget":
        """See `MirrorTarget`."""
        return replace(self, routes=routes)


def _run(rows: "DataFrame", task: DirectoryTask | BrokerTask) -> list[Report]:
    told = rows.mapInArrow(task, REPORT_SCHEMA).collect()
    return read_reports([row.report for row in told])


def relative_to_batch(reports: Sequence[Report], routes: Routes) -> Noted:
    """What all tasks noted, counted from the batch's first record of each partition.

    The tasks' segments are put in the order of the tasks, so a task's records lie behind those of
    all tasks before it.
    """
    before: dict[tuple[int, int], int] = {}
    numbers = routes.target_numbers()
    parts = []
    for report in reports:
        rows = tuple(
            moved(row, before.get((numbers[row.source], row.target_partition), 0), 0)
            for row in report.noted.rows
        )
        noted = report.noted
        parts.append(Noted(rows=rows, copied=noted.copied, records=noted.records))
        for topic, partition, count in report.counts:
            before[topic, partition] = before.get((topic, partition), 0) + count
    joined = join_noted(parts)
    rows = thin(joined.rows, BATCH_ROWS_MAX)
    return Noted(rows=rows, copied=joined.copied, records=joined.records)


def place(
    noted: Noted,
    ranges: Mapping[TopicPartition, AttachedRange],
    routes: Routes,
    now_ms: int,
) -> Noted:
    """What was noted, with the offsets that the directory has given.

    Args:
        noted: Counted from the batch's first record of each partition.
        ranges: Where the commit put each partition's records.
        routes: Where topics go.
        now_ms: Arrival where the directory knows no append time.

    Raises:
        CorruptData: The two don't fit together.
    """
    rows = []
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        found = ranges.get(name)
        if found is None or found.first_offset + row.target_end > found.end_offset:
            raise CorruptData(f"what the mirror noted for {name} does not fit the commit's range")
        arrival_ms = found.append_time_ms if found.append_time_ms >= 0 else now_ms
        rows.append(moved(row, found.first_offset, arrival_ms))
    return Noted(rows=tuple(rows), copied=noted.copied, records=noted.records)


def map_batch(batch_id: int, noted: Noted, ends: Mapping[TopicPartition, int]) -> MapBatch:
    """What an offset map gains by a batch."""
    copied = {
        SourcePartition(pair, partition): Copied(start, end)
        for (pair, partition), (start, end) in noted.copied.items()
    }
    return MapBatch(batch_id=batch_id, copied=copied, ends=ends, rows=noted.rows)


def _ends(noted: Noted, routes: Routes) -> dict[TopicPartition, int]:
    """Ends of the partitions that were written to; markers of transactions lie behind them."""
    ends: dict[TopicPartition, int] = {}
    for row in noted.rows:
        name = TopicPartition(routes.pairs[row.source][2], row.target_partition)
        ends[name] = max(ends.get(name, 0), row.target_end)
    return ends
