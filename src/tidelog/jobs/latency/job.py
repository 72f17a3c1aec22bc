"""`latency`: latency from create to append by topic and hour, and records that watermarks drop.

This module has the public function, for directories and brokers, and its tasks.
`tidelog.storage.clocks.latency` has the histograms, and `tidelog.scan.latency` has the lateness.
`tidelog.scan.split_latency` divides the work on a partition's lateness among tasks. Latencies are
counted by hour of append time, and again by hour of create time.

Tasks return histograms and counts instead of records. For a directory, one task reads each split. A
record is late if an earlier record of the partition has a later create time. So the lateness of the
records at the beginning of a split (the head) also depends on the earlier splits of the partition.
A second, small job reads some of these heads again. From brokers, one task reads a whole partition,
so no second job is needed.

Percentiles have a relative error of at most `RELATIVE_ERROR`. The error does not grow with the
number of splits, because the job adds the histograms of all splits and computes percentiles from
the sum. Counts, minima, maxima and the numbers of records that watermarks drop are exact.

Apache Kafka's brokers return append times for topics with LogAppendTime, not for other topics.
tidelog's brokers return append times for all topics, but only over plaintext connections. For a
LogAppendTime topic, a client gets create times only if it fetches whole batches. Records with an
unknown append time or create time are counted separately.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.env import os_env
from tidelog.errors import InvalidRequest
from tidelog.jobs.latency.options import LatencyOptions
from tidelog.jobs.latency.tables import (
    HOURS_SCHEMA,
    TOPICS_SCHEMA,
    WATERMARKS_SCHEMA,
    LatencyResult,
    TopicTimes,
    hour_rows,
    joined,
    topic_rows,
    watermark_rows,
)
from tidelog.jobs.options import point_ms, takes_options
from tidelog.jobs.place_topics import open_cluster
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.time_lookup import LOOKUP_CLOCK as LOOKUPS
from tidelog.remote.time_lookup import SETTING as STAMPS
from tidelog.remote.topics import describe
from tidelog.scan.plan import plan
from tidelog.scan.split import RequestedRange, Split, decode_split, encode_split
from tidelog.spark.parts import (
    _TASKS_PER_CORE,
    PartRow,
    directory_env,
    parallelism,
    run_parts,
)
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import described
from tidelog.types import (
    HOUR_MS,
    INT64_MAX,
    INT64_MIN,
    NO_TIMESTAMP,
    US_PER_MS,
    ClockName,
    TimestampType,
    TopicChoice,
    TopicPartition,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.scan.split_latency import Late, SplitTimes, TimesCounter

    Longs = npt.NDArray[np.int64]


_BROKER_COLUMNS: Final = "topic,partition,offset,createTimestamp,appendTimestamp"
_REDUCED: Final = "facts string, by_append binary, by_create binary, late binary, head binary"
_BROKER_REDUCED: Final = f"topic string, partition bigint, {_REDUCED}"
_CELLS: Final = ("facts", "by_append", "by_create", "late", "head")
_STAMPED: Final = TimestampType.LOG_APPEND_TIME.config_name


def measure_brokers(
    spark: "SparkSession",
    place: Place,
    topics: Sequence[str | TopicPartition] | None,
    delays_ms: tuple[int, ...],
    requested_range: RequestedRange,
) -> LatencyResult:
    """Measure the topics of a cluster. Topics without records are left out.

    Args:
        spark: The session.
        place: The cluster.
        topics: Topics or single partitions. None means all topics or, if a range is given, all
            topics that the brokers can search by append time.
        delays_ms: Watermark delays in ms, ascending.
        requested_range: Range of append times. In topics with LogAppendTime, all brokers can search
            by append time. tidelog's brokers can also do this in topics with
            `tidelog.lookup.clock=append`.

    Raises:
        UnknownTopic: A topic does not exist.
        ClusterFailure: The brokers can't be reached, or refuse a request.
        InvalidRequest: A range is given, and the brokers don't know the append times of a topic.
    """
    notes: list[str] = []
    if topics is None and _has_range(requested_range):
        topics, others = _stamped_topics(place)
        notes += [
            f"{name}: left out, because the brokers don't store its append times" for name in others
        ]
        if not topics:
            raise InvalidRequest(f"{place}: the brokers don't store the append times of any topic")
    by_name = _read(spark, place, topics, delays_ms, _range(requested_range))
    of, times = [name.topic for name in by_name], list(by_name.values())
    by_topic = joined(sorted(set(of)), of, times, [one.late for one in times], delays_ms)
    return LatencyResult(by_topic, 0, notes)


def _read(
    spark: "SparkSession",
    place: Place,
    topics: Sequence[str | TopicPartition] | None,
    delays_ms: tuple[int, ...],
    bounds: Mapping[str, str],
) -> "dict[TopicPartition, SplitTimes]":
    """Read the cluster, and return a summary of each partition's times."""
    table = (
        spark.read.format("tidelog")
        .options(**place.options())
        .options(**_choice(topics))
        .options(**bounds)
        .option("columns", _BROKER_COLUMNS)
        .option("failOnDataLoss", "false")
        .load()
    )
    rows = table.mapInArrow(partial(reduce_rows, delays_ms), _BROKER_REDUCED).toArrow().to_pylist()
    by_name = {}
    for row in rows:
        name = TopicPartition(row["topic"], row["partition"])
        assert name not in by_name, f"{name} was read in pieces"
        by_name[name] = _decoded(row)
    return by_name


def _has_range(time_range: RequestedRange) -> bool:
    return (time_range.start_ms, time_range.end_ms) != (None, None)


def _range(time_range: RequestedRange) -> dict[str, str]:
    """Return read options for a range of append times.

    The append times that brokers return never decrease along a partition. So a range of append
    times corresponds to one range of offsets, and brokers can find its bounds.
    """
    if not _has_range(time_range):
        return {}
    bounds = {"clock": "append", "startingOffsetsByTimestampStrategy": "latest"}
    if time_range.start_ms is not None:
        bounds["startingTimestamp"] = str(max(time_range.start_ms, 0))
    if time_range.end_ms is not None:
        bounds["endingTimestamp"] = str(max(time_range.end_ms, 0))
    return bounds


def _stamped_topics(place: Place) -> tuple[list[str], list[str]]:
    """Return topics that brokers can search by append time, and all other topics.

    Topics whose names begin with `__` are in neither list.
    """
    stamped: list[str] = []
    others: list[str] = []
    with open_cluster(place) as cluster:
        counts = {name: n for name, n in cluster.topics().items() if not name.startswith("__")}
        for name, topic in describe(cluster, counts).items():
            settings = topic.settings
            is_stamped = settings.get(STAMPS) == _STAMPED
            by_append = is_stamped or settings.get(LOOKUPS) == ClockName.APPEND
            (stamped if by_append else others).append(name)
    return stamped, others


def _choice(topics: Sequence[str | TopicPartition] | None) -> Mapping[str, str]:
    if topics is None:
        return {"subscribePattern": ".*"}
    names = [topic for topic in topics if isinstance(topic, str)]
    if len(names) == len(topics):
        return {"subscribe": ",".join(names)}
    single: dict[str, list[int]] = {}
    for topic in topics:
        if isinstance(topic, TopicPartition):
            single.setdefault(topic.topic, []).append(topic.partition)
    return {"assign": json.dumps(single)}


def reduce_rows(
    delays_ms: tuple[int, ...], batches: "Iterable[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    """Yield one summary of times for each partition of a task, in `mapInArrow`.

    Args:
        delays_ms: Watermark delays in ms, ascending.
        batches: Rows with the columns of `_BROKER_COLUMNS`: one partition after the other, each
            with ascending offsets.

    Yields:
        One row for each partition; columns as in `_BROKER_REDUCED`.
    """
    from tidelog.scan.split_latency import TimesCounter

    name: tuple[str, int] | None = None
    counter = TimesCounter(delays_ms)
    for batch in batches:
        for part in _parts(batch):
            part_name = part.column("topic")[0].as_py(), part.column("partition")[0].as_py()
            if name is not None and part_name != name:
                yield _row(name, counter)
                counter = TimesCounter(delays_ms)
            name = part_name
            append_ms, create_ms = (
                _ms(part.column(of)) for of in ("appendTimestamp", "createTimestamp")
            )
            counter.add(append_ms, create_ms)
    if name is not None:
        yield _row(name, counter)


def _parts(batch: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
    """Divide a batch into parts that each have consecutive rows of one partition."""
    import numpy as np

    numbers = np.asarray(batch.column("partition"))
    names = batch.column("topic").dictionary_encode().indices
    changes = np.flatnonzero(np.diff(numbers) | np.diff(np.asarray(names))) + 1
    for start, end in pairwise([0, *changes.tolist(), len(numbers)]):
        if start < end:
            yield batch.slice(start, end - start)


def _ms(column: "pa.Array[pa.Scalar[pa.DataType]]") -> "Longs":
    import numpy as np
    import pyarrow as pa

    times_us = column.cast(pa.int64()).fill_null(NO_TIMESTAMP * US_PER_MS)
    times_ms: Longs = np.asarray(times_us, np.int64) // US_PER_MS
    times_ms.flags.writeable = False
    return times_ms


def _row(name: tuple[str, int], counter: "TimesCounter") -> "pa.RecordBatch":
    import pyarrow as pa

    from tidelog.scan.split_latency import encode_times

    cells = (*name, *encode_times(counter.finish()))
    names = ["topic", "partition", *_CELLS]
    return pa.RecordBatch.from_arrays([pa.array([cell]) for cell in cells], names=names)


_COLUMNS: Final = ("offset", "createTimestamp", "appendTimestamp")
_RECOUNTED: Final = "alone_lost string, alone binary, behind_lost string, behind binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Result of a latency job, as DataFrames and as plain objects.

    Attributes:
        hours: Latency by topic, clock (`append` or `record`) and hour; see `HOURS_SCHEMA`.
        watermarks: Number of records that each watermark delay would drop; see `WATERMARKS_SCHEMA`.
        topics: One row for each topic; see `TOPICS_SCHEMA`.
        found: The same result by topic, as plain objects.
        log_bytes: Number of bytes read from log files; 0 for a cluster.
        notes: One line for each damaged place in a log, for each range of records that were deleted
            before they were read, and for each topic that was left out.
    """

    hours: "DataFrame"
    watermarks: "DataFrame"
    topics: "DataFrame"
    found: Mapping[str, TopicTimes]
    log_bytes: int
    notes: Sequence[str]


@takes_options(LatencyOptions)
def latency(
    spark: "SparkSession",
    source: Place | str,
    topics: TopicChoice = None,
    **options: Unpack[LatencyOptions],
) -> Latency:
    """Measure the latency and lateness of records.

    Args:
        spark: The session.
        source: A directory of topics, local or in an object store; or a cluster. If a range of
            append times is given, the topics of a cluster must have LogAppendTime or, at tidelog's
            brokers, `tidelog.lookup.clock=append`. Other topics are then left out if `topics` is
            None; otherwise they are an error.
        topics: Topics or single partitions; None for all topics.
        **options: Options, see `LatencyOptions`.

    Raises:
        UnknownTopic, InvalidRequest, InvalidTime: An argument is invalid; no record was read.
    """
    measured = measure(spark, as_place(source), topics, **options)
    by_topic = measured.topics
    return Latency(
        hours=spark.createDataFrame(list(hour_rows(by_topic)), HOURS_SCHEMA),
        watermarks=spark.createDataFrame(list(watermark_rows(by_topic)), WATERMARKS_SCHEMA),
        topics=spark.createDataFrame(list(topic_rows(by_topic)), TOPICS_SCHEMA),
        found=by_topic,
        log_bytes=measured.log_bytes,
        notes=measured.notes,
    )


@takes_options(LatencyOptions)
def measure(
    spark: "SparkSession",
    place: Place,
    topics: TopicChoice = None,
    **options: Unpack[LatencyOptions],
) -> LatencyResult:
    """Measure like `latency`, but return plain objects instead of DataFrames."""
    delays_ms, listener = options["delays_ms"], options["listener"]
    if any(delay < 0 for delay in delays_ms):
        raise InvalidRequest(f"delays_ms={list(delays_ms)}: delays must be 0 or more")
    env = os_env() if place.is_broker else directory_env(place)
    now_ms = env.clock.now_ms()
    times = whole_hours(point_ms(options["start"], now_ms), point_ms(options["end"], now_ms))
    if place.is_broker:
        listener.note(f"reading {place}, a task for each partition")
        requested = [topics] if isinstance(topics, str | TopicPartition) else topics
        names = None if requested is None else list(requested)
        with described(spark, "latency", names or ["all topics"]):
            return measure_brokers(spark, place, names, tuple(sorted(delays_ms)), times)
    planned = plan(
        place.address,
        topics,
        requested_range=times,
        clock=ClockName.APPEND,
        columns=_COLUMNS,
        split_bytes=options["split_bytes"],
        min_splits=_TASKS_PER_CORE * max(parallelism(spark), 1),
        fail_on_data_loss=False,
        env=env,
    )
    splits = [split for split in planned.splits if split.size_bytes]
    work = ReduceSplit(tuple(sorted(delays_ms)), place)
    topic_names = sorted({name.topic for name in planned.bounds})
    with described(spark, "latency", topic_names):
        rows = run_parts(spark, list(map(encode_split, splits)), work, _REDUCED, listener=listener)
        split_times = list(map(_decoded, rows))
        each_late = _true_late(spark, splits, split_times, work)
    return LatencyResult(
        joined(
            topic_names, [split.topic for split in splits], split_times, each_late, work.delays_ms
        ),
        sum(one.log_bytes for one in split_times),
        [*planned.reports, *(line for one in split_times for line in one.lost)],
    )


def whole_hours(start_ms: int | None, end_ms: int | None) -> RequestedRange:
    """Return the range extended to whole hours, because `tidelog.scan.latency` counts by hour."""
    start = None if start_ms is None else start_ms - start_ms % HOUR_MS
    end = None if end_ms is None else min(-(-end_ms // HOUR_MS) * HOUR_MS, INT64_MAX)
    return RequestedRange(start_ms=start, end_ms=end)


# -- in the workers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReduceSplit:
    """Task that reads a split and summarizes its times; implements `Work`.

    Attributes:
        delays_ms: Watermark delays in ms, ascending.
        place: The directory.
    """

    delays_ms: tuple[int, ...]
    place: Place

    def __call__(self, part: str) -> tuple[object, ...]:
        """Run one task; `part` is a split as JSON. Returns the cells of `_REDUCED`."""
        from tidelog.scan.split_latency import encode_times, reduce_split

        split = decode_split(part)
        return encode_times(reduce_split(split, self.delays_ms, directory_env(self.place)))


def recount_head(work: ReduceSplit, part: str) -> tuple[object, ...]:
    """Read the head of a split again, in a Spark task; see `split_latency.recount`.

    Args:
        work: The work of the first read.
        part: A JSON list: the split, the largest create time before the split in ms, and the end
            offset of the split's head.
    """
    from tidelog.scan.split_latency import encode_late, recount

    text, largest_ms, end_offset = json.loads(part)
    split = decode_split(text)
    env = directory_env(work.place)
    alone, behind = recount(split, work.delays_ms, largest_ms, end_offset, env)
    return *encode_late(alone), *encode_late(behind)


# -- on the driver --------------------------------------------------------------------------------


def _decoded(row: PartRow) -> "SplitTimes":
    from tidelog.scan.split_latency import decode_times

    facts, *histograms = (row[cell] for cell in _CELLS)
    return decode_times(str(facts), *map(_bytes, histograms))


def _true_late(
    spark: "SparkSession",
    splits: Sequence[Split],
    split_times: Sequence["SplitTimes"],
    work: ReduceSplit,
) -> "list[Late]":
    """Return each split's counts of late records, corrected by create times of earlier splits."""
    from tidelog.scan.split_latency import correct, decode_late

    each_late = [one.late for one in split_times]
    unknown = {}
    for number, head in _heads(splits, split_times):
        recounted = split_times[number].recount(*head)
        if recounted is None:
            unknown[number] = head
        else:
            each_late[number] = correct(split_times[number], *recounted, head[1])
    parts = [json.dumps([encode_split(splits[n]), *unknown[n]]) for n in unknown]
    rows = run_parts(spark, parts, partial(recount_head, work), _RECOUNTED)
    for number, row in zip(unknown, rows, strict=True):
        alone, behind = (
            decode_late(str(row[f"{name}_lost"]), _bytes(row[name])) for name in ("alone", "behind")
        )
        each_late[number] = correct(split_times[number], alone, behind, unknown[number][1])
    return each_late


def _bytes(cell: object) -> bytes:
    assert isinstance(cell, bytes)
    return cell


def _heads(
    splits: Sequence[Split], split_times: Sequence["SplitTimes"]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the splits whose head has late records that must be counted again.

    Each item has the index of a split in `splits`, and a pair. The pair has the largest create time
    in ms in the earlier splits of the partition, and the end offset of the split's head.
    """
    numbered = groupby(enumerate(splits), key=lambda each: each[1].topic_partition)
    for _, group in numbered:
        largest_ms = INT64_MIN
        for number, _split in group:
            end = split_times[number].head_end(largest_ms)
            if end is not None:
                yield number, (largest_ms, end)
            largest_ms = max(largest_ms, split_times[number].largest_ms)
