"""`lag`: lag of consumer groups by partition, and unread records by hour on both clocks.

Positions of groups are read from the cluster, from a broker's files (`__consumer_offsets`), from a
standby's `tidelog-groups.json`, or from a DataFrame that the caller gives. The lag of a partition
is computed as in `tidelog lag` (`tidelog.remote.group_lag`). Unread records are counted by hour.
The job reads each record only once, even if several groups have not read it yet. If there is a
directory (the source, or the option `data`) and it has a partition, the partition's records are
read from the directory. Otherwise the records are read from the brokers.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack, cast

from tidelog.amounts import plural
from tidelog.arguments import level_of
from tidelog.jobs.chunks import offsets_options
from tidelog.jobs.lag import work
from tidelog.jobs.lag.options import LagOptions
from tidelog.jobs.lag.work import (
    check_no_data,
    observe_cluster,
    observe_directory_lag,
    read_positions,
)
from tidelog.jobs.options import takes_options
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.group_lag import Observation, PartitionLag, lag_cells, lag_of
from tidelog.remote.view import Count
from tidelog.scan.plan import plan
from tidelog.scan.split import RequestedRange, encode_split
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.spark.parts import (
    Listener,
    directory_env,
    parallelism,
    run_parts,
    timestamp,
)
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import described
from tidelog.split_size import JOB_SPLIT_BYTES
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_COUNTS: Final = "counts string"
_BROKER_COLUMNS: Final = "topic,partition,offset,timestamp,timestampType"

# Topic and partition.
Name = tuple[str, int]


def cuts_of(observed: Mapping[str, Sequence[Observation]]) -> dict[Name, tuple[int, ...]]:
    """Return the offsets that divide each partition into intervals.

    For each group with unread records in a partition, the result has two offsets: the group's
    position, and the partition's end that was observed for the group. If all groups have read a
    partition completely, the result does not contain the partition.
    """
    offsets: dict[Name, set[int]] = {}
    for observations in observed.values():
        for one in observations:
            if one.next_offset < one.end:
                name = (one.partition.topic, one.partition.partition)
                offsets.setdefault(name, set()).update((one.next_offset, one.end))
    return {name: tuple(sorted(cuts)) for name, cuts in offsets.items()}


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts the records that groups haven't read yet, in Spark tasks."""

    spark: "SparkSession"
    place: Place
    directory: str
    isolation: IsolationLevel
    listener: Listener

    def count(
        self,
        cuts: Mapping[Name, tuple[int, ...]],
        own: set[TopicPartition],
    ) -> tuple[work.Counts, Mapping[Name, int]]:
        """Return the counts by `Cell`, and for each partition the end of the counted offsets.

        Args:
            cuts: Offsets that divide each partition into intervals; see `cuts_of`.
            own: Partitions that are read from the directory; all other partitions are read from
                brokers.
        """
        ours = {name: cut for name, cut in cuts.items() if TopicPartition(*name) in own}
        theirs = {name: cut for name, cut in cuts.items() if name not in ours}
        counts, counted_ends = self._in_directory(ours)
        ends = {name: cut[-1] for name, cut in theirs.items()}
        return counts + self._at_brokers(theirs), ends | counted_ends

    def _in_directory(
        self, cuts: Mapping[Name, tuple[int, ...]]
    ) -> tuple[work.Counts, dict[Name, int]]:
        if not cuts:
            return Counter(), {}
        store = {} if self.place.is_broker else self.place.store
        place = Place(self.directory, store=store)
        ranges = {
            TopicPartition(*name): RequestedRange(start_offset=cut[0], end_offset=cut[-1])
            for name, cut in cuts.items()
        }
        planned = plan(
            self.directory,
            list(ranges),
            per_partition=ranges,
            isolation=self.isolation,
            columns=work.COLUMNS,
            split_bytes=JOB_SPLIT_BYTES,
            min_splits=parallelism(self.spark),
            fail_on_data_loss=False,
            env=directory_env(place),
        )
        parts = [
            json.dumps([encode_split(split), cuts[split.topic, split.partition]])
            for split in planned.splits
        ]
        self.listener.note(
            f"counting unread records in {self.directory}: {plural(len(parts), 'task')}"
        )
        count = partial(work.count_split, place)
        rows = run_parts(self.spark, parts, count, _COUNTS, listener=self.listener)
        ends = {(name.topic, name.partition): end for name, (_, end) in planned.bounds.items()}
        return _added(str(row["counts"]) for row in rows), ends

    def _at_brokers(self, cuts: Mapping[Name, tuple[int, ...]]) -> work.Counts:
        if not cuts:
            return Counter()
        spans = [OffsetRange(TopicPartition(*name), cut[0], cut[-1]) for name, cut in cuts.items()]
        self.listener.note(f"counting unread records at {self.place}")
        table = (
            self.spark.read.format("tidelog")
            .options(**self.place.options())
            .options(**offsets_options(spans))
            .option("columns", _BROKER_COLUMNS)
            .option("isolation", self.isolation.name.lower())
            .option("failOnDataLoss", "false")
            .load()
        )
        rows = table.mapInArrow(partial(work.count_fetched_rows, dict(cuts)), _COUNTS).collect()
        return _added(str(row["counts"]) for row in rows)


def _added(texts: Iterable[str]) -> work.Counts:
    total: work.Counts = Counter()
    for text in texts:
        total.update(work.decode_counts(text))
    return total


PARTITIONS_SCHEMA: Final = (
    "group string, topic string, partition int, committed bigint, log_start bigint, end bigint,"
    " offset_lag bigint, offsets_lost bigint, records_left bigint, records_left_is_exact boolean,"
    " unread_offset bigint, unread timestamp, behind_ms bigint, clock string, member string,"
    " state string"
)

HOURS_SCHEMA: Final = (
    "group string, topic string, clock string, hour timestamp, hour_ms bigint, records bigint"
)

# Count of records by topic, clock and start of the hour in ms. For records without a time on this
# clock, the start of the hour is None.
Hours = dict[tuple[str, str, int | None], int]


@dataclass(slots=True)
class GroupLag:
    """Lag of one group.

    Attributes:
        group: Name of the group.
        partitions: Lag in each partition; `seen.left` of an item is the counted number of unread
            records.
        hours: Number of unread records by topic, clock and hour, without those of partitions in
            which the group has no committed offset.
    """

    group: str
    partitions: list[PartitionLag] = field(default_factory=list)
    hours: Hours = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Result of a lag job, as DataFrames and as plain objects.

    Attributes:
        partitions: One row for each group and partition; see `PARTITIONS_SCHEMA`.
        hours: Number of unread records by group, topic, clock and hour; see `HOURS_SCHEMA`.
        found: The same result by group, as plain objects.
    """

    partitions: "DataFrame"
    hours: "DataFrame"
    found: Sequence[GroupLag]


@takes_options(LagOptions)
def lag(
    spark: "SparkSession",
    source: Place | str,
    groups: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    **options: Unpack[LagOptions],
) -> Lag:
    """Compute the lag of consumer groups.

    Args:
        spark: The session, whose workers read the directory or the brokers.
        source: A cluster, or a directory of topics. The groups' positions of a directory are known
            only in three cases: the directory is the data directory of a broker (Kafka or tidelog),
            the directory is a standby, or `positions` are given.
        groups: Names of groups; None for all groups with committed offsets.
        topics: Names of topics; None for all topics in which the groups have committed offsets.
        **options: Options, see `LagOptions`.

    Raises:
        UnknownGroup, UnknownTopic: A group or topic doesn't exist, or a group has no committed
            offsets.
        InvalidRequest: The directory has no groups, and no positions are given; or an option does
            not apply to the source.
        ClusterFailure: The brokers can't be reached, or refuse a request.
    """
    groups_lag = measure(spark, as_place(source), groups, topics, **options)
    return Lag(
        partitions=spark.createDataFrame(list(partition_rows(groups_lag)), PARTITIONS_SCHEMA),
        hours=spark.createDataFrame(list(hour_rows(groups_lag)), HOURS_SCHEMA),
        found=groups_lag,
    )


@takes_options(LagOptions)
def measure(
    spark: "SparkSession",
    place: Place,
    groups: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    **options: Unpack[LagOptions],
) -> list[GroupLag]:
    """Compute the lag like `lag`, but return plain objects instead of DataFrames."""
    data, table, listener = options["data"], options["positions"], options["listener"]
    positions = None if table is None else read_positions(table)
    isolation = level_of(options["isolation"])
    if place.is_broker:
        observed, own = observe_cluster(place, groups, topics, data, positions, isolation)
    else:
        check_no_data(place, data)
        observed = observe_directory_lag(place, groups, topics, positions, isolation, listener)
        own = {one.partition for group in observed.values() for one in group}
    cuts = cuts_of(observed)
    counter = Counting(spark, place, data or place.address, isolation, listener)
    with described(spark, "lag", (topic for topic, _ in cuts)):
        counts, counted_ends = counter.count(cuts, own)
    by_partition = work.by_partition(counts)
    return [
        _group_lag(name, observed[name], cuts, by_partition, counted_ends)
        for name in sorted(observed)
    ]


def _group_lag(
    group: str,
    observations: Sequence[Observation],
    cuts: Mapping[Name, tuple[int, ...]],
    counts: Mapping[Name, work.Counts],
    counted_ends: Mapping[Name, int],
) -> GroupLag:
    """Return a group's lag in records (from the counts of records) instead of in offsets.

    The lag may extend beyond the end of the counted records. Then the number of offsets from this
    end to the group's end is added to the lag, and the lag is marked as not exact.
    """
    result, hours = GroupLag(group), Counter[tuple[str, str, int | None]]()
    for one in observations:
        name = (one.partition.topic, one.partition.partition)
        if one.next_offset >= one.end:
            result.partitions.append(lag_of(one, replace(one, left=Count(0, is_exact=True))))
            continue
        cut_offsets = cuts[name]
        start, end = cut_offsets.index(one.next_offset), cut_offsets.index(one.end)
        unread = work.unread_by_hour(counts.get(name, Counter()), start, end)
        if one.committed is not None:
            for (clock, hour_ms), number in unread.items():
                hours[name[0], clock, hour_ms] += number
        records = sum(number for (clock, _), number in unread.items() if clock == "record")
        rest = max(one.end - max(counted_ends[name], one.next_offset), 0)
        counted = replace(one, left=Count(records + rest, is_exact=not rest))
        result.partitions.append(lag_of(counted, counted))
    result.hours = dict(hours)
    return result


# -- rows -----------------------------------------------------------------------------------------


def partition_rows(
    groups: Iterable[GroupLag], as_time: Callable[[int], object] = timestamp
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `PARTITIONS_SCHEMA`. `as_time` converts a time in ms to a cell."""
    for group in groups:
        for one in group.partitions:
            *cells, unread_ms, behind_ms, clock = lag_cells(one)
            unread = None if unread_ms is None else as_time(cast("int", unread_ms))
            end = behind_ms, clock, one.seen.member, one.state.value
            yield group.group, *cells, unread, *end


def hour_rows(groups: Iterable[GroupLag]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `HOURS_SCHEMA` of each group, sorted by topic, clock and hour.

    For each topic and clock, the row for records without a time comes first.
    """
    for group in groups:
        rows = sorted(group.hours.items(), key=_by_hour)
        for (topic, clock, hour_ms), number in rows:
            hour = None if hour_ms is None else timestamp(hour_ms)
            yield group.group, topic, clock, hour, hour_ms, number


def _by_hour(row: tuple[tuple[str, str, int | None], int]) -> tuple[str, str, int]:
    (topic, clock, hour_ms), _ = row
    return topic, clock, -1 if hour_ms is None else hour_ms
