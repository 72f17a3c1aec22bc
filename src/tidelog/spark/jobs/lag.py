"""How far all consumer groups are behind in all topics: by partition, and by hour on both clocks.

Positions come from the cluster, from the files of a broker (`__consumer_offsets`), from a standby's
`tidelog-groups.json`, or from a table of the caller's. What is said of a partition is what `tidelog
lag` says (`tidelog.cluster.lag`). What a group has not read is counted by hour: each unread record
is read once, however many groups wait for it, straight from the cluster's own directory where there
is one, else from the brokers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidelog.arguments import level_of, reads_arguments
from tidelog.cluster.lag import Observation, PartitionLag, lag_of
from tidelog.cluster.view import Count
from tidelog.spark.jobs import lag_work
from tidelog.spark.jobs.lag_count import Counting, Name, cuts_of
from tidelog.spark.jobs.lag_observe import (
    Positions,
    check_no_data,
    observe_cluster,
    observe_directory,
    read_positions,
)
from tidelog.spark.jobs.latency_tables import timestamp
from tidelog.spark.jobs.progress import NOBODY, Listener
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import described
from tidelog.types import Isolation, IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS_SCHEMA: Final = (
    "group string, topic string, partition int, committed bigint, log_start bigint, end bigint,"
    " offset_lag bigint, offsets_lost bigint, records_left bigint, records_left_is_exact boolean,"
    " unread_offset bigint, unread timestamp, behind_ms bigint, clock string, member string,"
    " state string"
)
HOURS_SCHEMA: Final = (
    "group string, topic string, clock string, hour timestamp, hour_ms bigint, records bigint"
)
# Records by topic, clock and hour; the hour is None where a record has no time on the clock.
Hours = dict[tuple[str, str, int | None], int]


@dataclass(slots=True)
class GroupLag:
    """How far one group is behind.

    Attributes:
        group: Its name.
        partitions: By partition; `seen.left` is counted.
        hours: Unread records by topic, clock and hour.
    """

    group: str
    partitions: list[PartitionLag] = field(default_factory=list)
    hours: Hours = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The answer, as DataFrames and as plain objects.

    Attributes:
        partitions: One row for each group and partition; see `PARTITIONS_SCHEMA`.
        hours: Unread records by group, topic, clock and hour; see `HOURS_SCHEMA`.
        found: The same by group, as objects.
    """

    partitions: "DataFrame"
    hours: "DataFrame"
    found: Sequence[GroupLag]


@reads_arguments()
def lag(  # noqa: PLR0913 - one keyword for each way to choose
    spark: "SparkSession",
    source: Place | str,
    groups: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    *,
    data: str | None = None,
    positions: "DataFrame | None" = None,
    isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    listener: Listener = NOBODY,
) -> Lag:
    """The lag of consumer groups.

    Args:
        spark: The session; its workers read the directory, or the brokers.
        source: A cluster, or a directory of topics whose groups are known: a broker's own files,
            Kafka's too, a standby's, or with `positions`.
        groups: Names of groups; all that have committed something where None.
        topics: Names of topics; all in which the groups have committed something where None.
        data: The cluster's own directory, for append times and to spare the brokers.
        positions: Positions from elsewhere: columns `group`, `topic`, `partition`, `offset`.
        isolation: What the groups' consumers see.
        listener: Told how far it is.

    Raises:
        UnknownGroup, UnknownTopic: No such group, or nothing that it has committed.
        InvalidRequest: A directory that knows of no group.
        ClusterFailure: The brokers can't be asked.
    """
    given = None if positions is None else read_positions(positions)
    found = measure(
        spark,
        as_place(source),
        groups,
        topics,
        data=data,
        positions=given,
        isolation=level_of(isolation),
        listener=listener,
    )
    return Lag(
        partitions=spark.createDataFrame(list(partition_rows(found)), PARTITIONS_SCHEMA),
        hours=spark.createDataFrame(list(hour_rows(found)), HOURS_SCHEMA),
        found=found,
    )


def measure(  # noqa: PLR0913 - as `lag`
    spark: "SparkSession",
    place: Place,
    groups: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    *,
    data: str | None = None,
    positions: Positions | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    listener: Listener = NOBODY,
) -> list[GroupLag]:
    """As `lag`, as plain objects."""
    if place.is_broker:
        seen, own = observe_cluster(place, groups, topics, data, positions, isolation)
    else:
        check_no_data(place, data)
        seen = observe_directory(place, groups, topics, positions, isolation, listener)
        own = {one.partition for group in seen.values() for one in group}
    cuts = cuts_of(seen)
    counter = Counting(spark, place, data or place.address, isolation, listener)
    with described(spark, "lag", (topic for topic, _ in cuts)):
        counts, known_ends = counter.count(cuts, own)
    by_partition = lag_work.by_partition(counts)
    return [_group_lag(name, seen[name], cuts, by_partition, known_ends) for name in sorted(seen)]


def _group_lag(
    group: str,
    seen: Sequence[Observation],
    cuts: Mapping[Name, tuple[int, ...]],
    counts: Mapping[Name, lag_work.Counts],
    counted_ends: Mapping[Name, int],
) -> GroupLag:
    """A group's lag, with what was counted in place of what was guessed by offsets."""
    found, hours = GroupLag(group), Counter[tuple[str, str, int | None]]()
    for one in seen:
        name = (one.partition.topic, one.partition.partition)
        if one.next_offset >= one.end:
            found.partitions.append(lag_of(one, replace(one, left=Count(0, is_exact=True))))
            continue
        places = cuts[name]
        start, end = places.index(one.next_offset), places.index(one.end)
        unread = lag_work.unread_by_hour(counts.get(name, Counter()), start, end)
        for (clock, hour_ms), number in unread.items():
            hours[name[0], clock, hour_ms] += number
        records = sum(number for (clock, _), number in unread.items() if clock == "record")
        rest = max(one.end - max(counted_ends[name], one.next_offset), 0)
        left = replace(one, left=Count(records + rest, is_exact=not rest))
        found.partitions.append(lag_of(left, left))
    found.hours = dict(hours)
    return found


# -- rows -----------------------------------------------------------------------------------------


def partition_rows(found: Iterable[GroupLag]) -> Iterator[tuple[object, ...]]:
    """The rows of `PARTITIONS_SCHEMA`."""
    for group in found:
        for one in group.partitions:
            seen, unread = one.seen, one.seen.unread
            clock = None if unread is None else unread.clock
            time_ms = None if unread is None else unread.time_ms
            yield (
                group.group,
                seen.partition.topic,
                seen.partition.partition,
                seen.committed,
                seen.start,
                seen.end,
                one.offset_lag,
                one.lost,
                seen.left.records,
                seen.left.is_exact,
                None if unread is None else unread.offset,
                None if time_ms is None else timestamp(time_ms),
                one.behind_ms,
                None if clock is None else clock.value,
                seen.member,
                one.state.value,
            )


def hour_rows(found: Iterable[GroupLag]) -> Iterator[tuple[object, ...]]:
    """The rows of `HOURS_SCHEMA`, hours ascending, those without a time first."""
    for group in found:
        rows = sorted(group.hours.items(), key=lambda item: (*item[0][:2], item[0][2] or -1))
        for (topic, clock, hour_ms), number in rows:
            hour = None if hour_ms is None else timestamp(hour_ms)
            yield group.group, topic, clock, hour, hour_ms, number
