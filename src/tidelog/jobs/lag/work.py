"""Positions of consumer groups, and counts of their unread records by hour and clock.

Positions are read from a cluster, from a directory with groups, or from a DataFrame. Records are
counted in Spark's workers (`count_split`, `count_fetched_rows`). `job` makes the report.

Each group has its own position in a partition, and its own end of the partition: the log end that
was observed when the group was read. The positions and ends of all groups divide the partition into
intervals. Each record is counted once, in the interval that contains its offset. A group's unread
records are the records in the intervals from the group's position to the group's end.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.amounts import plural
from tidelog.directory import Directory
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, UnknownGroup
from tidelog.remote import group_lag as rules
from tidelog.remote import own_logs
from tidelog.remote.group_lag import Observation, observe_directory, read_groups
from tidelog.remote.own_logs import OwnLogs
from tidelog.scan.split import decode_split
from tidelog.spark.parts import NOBODY, Listener, directory_env
from tidelog.spark.places import Place
from tidelog.storage.directory.broker_files import GROUPS_FILE
from tidelog.types import (
    HOUR_MS,
    NO_TIMESTAMP,
    OFFSETS_TOPIC,
    ClockName,
    IsolationLevel,
    TimestampType,
    TopicPartition,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidelog.remote.cluster import Cluster

    Longs = npt.NDArray[np.int64]


# Next offset that each group reads in each partition.
Positions = Mapping[str, Mapping[TopicPartition, int]]


def read_positions(table: "DataFrame") -> Positions:
    """Return the positions in a DataFrame; raises InvalidRequest if a column is missing."""
    columns = ("group", "topic", "partition", "offset")
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InvalidRequest(
            f"positions have no column {missing[0]}, only {', '.join(table.columns)}"
        )
    positions: dict[str, dict[TopicPartition, int]] = {}
    for row in table.select(*columns).collect():
        name = TopicPartition(str(row["topic"]), int(row["partition"]))
        positions.setdefault(str(row["group"]), {})[name] = int(row["offset"])
    return positions


def check_groups(
    place: Place, groups: Sequence[str] | None, topics: Sequence[str] | None, data: str | None
) -> None:
    """Check that the groups exist in a directory or cluster, without Spark.

    Raises:
        UnknownGroup, InvalidRequest, ClusterFailure: See `tidelog.spark.lag`.
    """
    if not place.is_broker:
        check_no_data(place, data)
        env = directory_env(place)
        with Directory.open(place.address, env=env) as directory:
            _check_groups(place, groups, _stored_positions(directory, env, place, groups, NOBODY))
        return
    from tidelog.jobs.place_topics import open_cluster

    with open_cluster(place) as cluster:
        for name in groups or ():
            _requested_partitions(cluster, place, name, topics)


def check_no_data(place: Place, data: str | None) -> None:
    """Raise InvalidRequest if `data`, which is for clusters, is given for a directory."""
    if data is not None:
        raise InvalidRequest(
            f"data (--data {data}) is for a cluster, as the data directory of one of its brokers;"
            f" {place} is a directory itself, so leave data out"
        )


def observe_cluster(
    place: Place,
    groups: Sequence[str] | None,
    topics: Sequence[str] | None,
    data: str | None,
    positions: Positions | None,
    isolation: IsolationLevel,
) -> tuple[dict[str, list[Observation]], set[TopicPartition]]:
    """Return each group's observations, and the observed partitions that are in `data`.

    `data` is the data directory of one of the cluster's brokers, or None. Without `data`, the set
    of partitions is empty.

    Raises:
        InvalidRequest: `positions` are given; or a topic of the directory has the name of a topic
            of the cluster, but another id.
        UnknownGroup: A requested group has no committed offsets for the topics.
        ClusterFailure: The brokers can't be reached, or refuse a request.
    """
    from tidelog.remote.client_settings import translate_settings
    from tidelog.remote.cluster import connect

    if positions is not None:
        raise InvalidRequest(
            f"positions apply only to a directory; {place} is a cluster, which stores the offsets"
            " of its groups"
        )
    env = os_env()
    with ExitStack() as stack:
        settings = translate_settings(place.client)
        cluster = stack.enter_context(connect(place.address, settings, clock=env.clock))
        own = None
        if data is not None:
            own = OwnLogs(stack.enter_context(Directory.open(data, env=env)), cluster)
        observations = {}
        for name in cluster.groups() if groups is None else groups:
            # A group may have been deleted after the cluster listed it: leave it out.
            if groups is None and not _exists(cluster, name):
                continue
            if groups is None:
                partitions = _committed_partitions(cluster, name, topics)
            else:
                partitions = _requested_partitions(cluster, place, name, topics)
            if partitions:
                observations[name] = rules.observe(
                    cluster,
                    name,
                    partitions,
                    clock=env.clock,
                    counter=own_logs.by_offsets,
                    own=own,
                    isolation=isolation,
                )
        names = {one.partition for group in observations.values() for one in group}
        return observations, {name for name in names if own is not None and own.has(name)}


def _exists(cluster: "Cluster", group: str) -> bool:
    try:
        cluster.group(group)
    except UnknownGroup:
        return False
    return True


def _requested_partitions(
    cluster: "Cluster", place: Place, group: str, topics: Sequence[str] | None
) -> list[TopicPartition]:
    """Return all partitions of the topics in which a group has committed offsets.

    The user has named the group, so it is an error if there are no partitions to return.

    Raises:
        UnknownGroup: The group has no committed offset in the topics.
    """
    partitions = _committed_partitions(cluster, group, topics)
    if not partitions:
        what = "nothing for the requested topics" if topics else "nothing"
        raise UnknownGroup(f"{place}: group {group} has committed {what}")
    return partitions


def _committed_partitions(
    cluster: "Cluster", group: str, topics: Sequence[str] | None
) -> list[TopicPartition]:
    """Return all partitions of the topics in which a group has committed offsets.

    Topics that no longer exist are left out. If `topics` is not None, only topics in `topics` are
    returned.
    """
    names = {name.topic for name in cluster.committed(group)}
    if topics is not None:
        names &= set(topics)
    counts = cluster.topics()
    return [name for topic in sorted(names & set(counts)) for name in cluster.partitions(topic)]


def observe_directory_lag(
    place: Place,
    groups: Sequence[str] | None,
    topics: Sequence[str] | None,
    positions: Positions | None,
    isolation: IsolationLevel,
    listener: Listener = NOBODY,
) -> dict[str, list[Observation]]:
    """Return each group's observations in a directory.

    Raises:
        UnknownGroup: A requested group has no positions.
        InvalidRequest: The directory has no groups, and no positions were given.
    """
    env = directory_env(place)
    with Directory.open(place.address, env=env) as directory:
        group_positions = positions
        if positions is None:
            group_positions = _stored_positions(directory, env, place, groups, listener)
        assert group_positions is not None
        _check_groups(place, groups, group_positions)
        return {
            name: [
                observe_directory(directory, env, partition, offset, isolation)
                for partition, offset in sorted(offsets.items())
                if topics is None or partition.topic in topics
            ]
            for name, offsets in group_positions.items()
            if groups is None or name in groups
        }


def _check_groups(place: Place, groups: Sequence[str] | None, positions: Positions) -> None:
    unknown = set(groups or ()) - set(positions)
    if unknown:
        names = ", ".join(sorted(positions))
        raise UnknownGroup(f"{place}: no group {min(unknown)}; there are: {names}")


def _stored_positions(
    directory: Directory,
    env: Env,
    place: Place,
    groups: Sequence[str] | None,
    listener: Listener,
) -> Positions:
    """Return the groups' positions that a directory stores, for the directory's partitions only."""
    groups_read = read_groups(directory, env)
    if groups_read is None:
        raise InvalidRequest(
            f"{place} has neither {OFFSETS_TOPIC} nor {GROUPS_FILE}, so the groups' positions are"
            " unknown; give the cluster (kafka://...), or positions"
        )
    for note in groups_read.notes:
        listener.note(note)
    for group in groups or ():
        if group not in groups_read.positions and groups_read.may_be_elsewhere(group):
            raise UnknownGroup(
                f"{place}: group {group}, if it exists, is stored by another broker: this directory"
                f" does not have the group's partition of {OFFSETS_TOPIC}"
            )
    if groups_read.missing:
        count = (
            f"{len(groups_read.missing)} of {plural(groups_read.partitions, 'partition')} of"
            f" {OFFSETS_TOPIC}"
        )
        listener.note(f"{count} are not in {place}: their groups are left out")
    return {name: _present(directory, offsets) for name, offsets in groups_read.positions.items()}


def _present(
    directory: Directory, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return only the positions in partitions that the directory has."""
    topics = directory.topics()
    return {
        name: offset
        for name, offset in offsets.items()
        if name.topic in topics and name.partition in topics[name.topic].present
    }


COLUMNS: Final = ("offset", "timestamp", "appendTimestamp")
_ROWS: Final = 65_536

# Maximum length of the array that counts records by hour, with one element for each hour. If the
# array would be longer, the hours of the records are sorted and counted instead.
_SPAN_MAX: Final = 1 << 20


class Cell(NamedTuple):
    """Key of a count of records: partition, interval, clock and hour.

    Attributes:
        topic: Topic of the records.
        partition: Number of the partition.
        interval: Index of the interval; interval 0 begins at the first cut.
        clock: Clock of the hour: `append` or `record`.
        hour_ms: Start of the hour in ms; None for records without a time on this clock.
    """

    topic: str
    partition: int
    interval: int
    clock: str
    hour_ms: int | None


Counts = Counter[Cell]


def encode_counts(counts: Counts) -> str:
    """Encode counts as JSON."""
    return json.dumps([[*cell, number] for cell, number in counts.items()])


def decode_counts(text: str) -> Counts:
    """Decode the result of `encode_counts`."""
    return Counter({Cell(*row[:-1]): row[-1] for row in json.loads(text)})


def count_split(place: Place, part: str) -> tuple[object, ...]:
    """Read a split of a directory and count its records, in a Spark task; implements `Work`.

    Args:
        place: The directory.
        part: JSON: a split, and the bounds of its partition's intervals.
    """
    import numpy as np

    from tidelog.scan import ReadOptions, read

    text, cuts = json.loads(part)
    split = decode_split(text)
    options = ReadOptions(rows=_ROWS, fail_on_data_loss=False, env=directory_env(place))
    counts: Counts = Counter()
    cut_offsets = np.array(cuts, np.int64)
    for batch in read(split, COLUMNS, options=options):
        times = {
            ClockName.RECORD: _times(batch.column("timestamp")),
            ClockName.APPEND: _times(batch.column("appendTimestamp")),
        }
        offsets = _longs(batch.column("offset"))
        count_rows((split.topic, split.partition), offsets, times, cut_offsets, counts)
    return (encode_counts(counts),)


def count_fetched_rows(
    cuts: Mapping[tuple[str, int], tuple[int, ...]], batches: "Iterable[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    """Count rows which Spark has read from brokers, in `mapInArrow`.

    In rows from brokers, a record has an append time only if its timestamp type is LogAppendTime.

    Args:
        cuts: Offsets that divide each partition into intervals, by topic and partition.
        batches: The task's rows.

    Yields:
        One row with the numbers of records by `Cell`, as JSON.
    """
    import numpy as np
    import pyarrow as pa

    counts: Counts = Counter()
    for batch in batches:
        table = pa.Table.from_batches([batch])
        numbers = np.asarray(batch.column("partition"))
        names = np.array(batch.column("topic").to_pylist(), object)
        for topic, number in sorted(set(zip(names.tolist(), numbers.tolist(), strict=True))):
            chosen = pa.array((names == topic) & (numbers == number))
            rows = table.filter(chosen).combine_chunks().to_batches()[0]
            times = _broker_times(rows)
            cut_offsets = np.array(cuts[topic, number], np.int64)
            offsets = _longs(rows.column("offset"))
            count_rows((topic, number), offsets, times, cut_offsets, counts)
    yield pa.RecordBatch.from_pydict({"counts": [encode_counts(counts)]})


def _broker_times(batch: "pa.RecordBatch") -> "dict[ClockName, Longs]":
    import numpy as np

    record_ms = _times(batch.column("timestamp")) // 1000
    is_stamped = np.asarray(batch.column("timestampType")) == TimestampType.LOG_APPEND_TIME
    return {
        ClockName.RECORD: record_ms,
        ClockName.APPEND: np.where(is_stamped, record_ms, NO_TIMESTAMP),
    }


def _times(column: "pa.Array[pa.Scalar[pa.DataType]]") -> "Longs":
    """Return times as integers in the column's unit; NO_TIMESTAMP (-1) for null."""
    import pyarrow as pa

    return _longs(column.cast(pa.int64()).fill_null(NO_TIMESTAMP))


def _longs(column: "pa.Array[pa.Scalar[pa.DataType]]") -> "Longs":
    import numpy as np

    values: Longs = np.asarray(column, np.int64)
    return values


def count_rows(
    name: tuple[str, int],
    offsets: "Longs",
    times: "Mapping[ClockName, Longs]",
    cuts: "Longs",
    counts: Counts,
) -> None:
    """Count records of one partition.

    Args:
        name: Topic and partition.
        offsets: int64[n], ascending.
        times: For each clock, int64[n]: the records' times in ms, negative if unknown.
        cuts: Offsets that divide the partition into intervals, ascending. Records before the first
            of these offsets are not counted.
        counts: Counts by `Cell`, to which this function adds.
    """
    import numpy as np

    starts = np.searchsorted(offsets, cuts).tolist()
    for interval, (start, end) in enumerate(zip(starts, [*starts[1:], len(offsets)], strict=True)):
        if start < end:
            for clock, all_ms in times.items():
                for hour, number in _hours(all_ms[start:end]):
                    cell = Cell(*name, interval, clock.value, None if hour < 0 else hour * HOUR_MS)
                    counts[cell] += number


def _hours(times_ms: "Longs") -> list[tuple[int, int]]:
    """Return pairs (hour since the epoch, number of records); the hour is -1 for unknown times."""
    import numpy as np

    hours = np.where(times_ms < 0, -1, times_ms // HOUR_MS)
    first, last = int(hours.min()), int(hours.max())
    if last - first < _SPAN_MAX:
        counts = np.bincount(hours - first)
        return [(first + at, int(counts[at])) for at in np.flatnonzero(counts).tolist()]
    values, numbers = np.unique(hours, return_counts=True)
    return list(zip(values.tolist(), numbers.tolist(), strict=True))


def by_partition(counts: Counts) -> dict[tuple[str, int], Counts]:
    """Return the counts, divided by topic and partition."""
    partitioned: dict[tuple[str, int], Counts] = {}
    for cell, number in counts.items():
        partitioned.setdefault((cell.topic, cell.partition), Counter())[cell] = number
    return partitioned


def unread_by_hour(counts: Counts, start: int, end: int) -> dict[tuple[str, int | None], int]:
    """Return the count of records by clock and hour, for the intervals [start, end)."""
    unread: Counter[tuple[str, int | None]] = Counter()
    for cell, number in counts.items():
        if start <= cell.interval < end:
            unread[cell.clock, cell.hour_ms] += number
    return dict(unread)
