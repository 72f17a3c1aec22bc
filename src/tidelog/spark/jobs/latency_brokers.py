"""Latency and lateness of what brokers hold: one task for each partition, reduced as it is read.

A partition is read in one piece, so no record's lateness depends on another task. Append times are
known of topics with LogAppendTime alone, and create times of those only where batches come from
the broker as they are; what is not known is counted as lacking.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tidelog.cluster.lookup_clock import SETTING as LOOKUPS
from tidelog.cluster.stamps import SETTING as STAMPS
from tidelog.cluster.topics import describe
from tidelog.errors import InvalidRequest
from tidelog.scan.split import Wanted
from tidelog.spark.jobs.latency_tables import Measured, joined
from tidelog.spark.jobs.targets import open_cluster
from tidelog.spark.places import Place
from tidelog.types import NO_TIMESTAMP, US_PER_MS, ClockName, TimestampType, TopicPartition

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidelog.scan.split_times import SplitTimes, TimesCounter

    Longs = npt.NDArray[np.int64]

_COLUMNS: Final = "topic,partition,offset,createTimestamp,appendTimestamp"
_REDUCED: Final = (
    "topic string, partition bigint, facts string, by_append binary, by_create binary, late binary,"
    " head binary"
)
_CELLS: Final = ("facts", "by_append", "by_create", "late", "head")
_STAMPED: Final = TimestampType.LOG_APPEND_TIME.config_name


def measure_brokers(
    spark: "SparkSession",
    place: Place,
    topics: Sequence[str | TopicPartition] | None,
    delays_ms: tuple[int, ...],
    wanted: Wanted,
) -> Measured:
    """The numbers of a cluster's topics; those without records are left out.

    Args:
        spark: The session.
        place: The cluster.
        topics: Topics or single partitions; all where None, or, of a range, all those whose append
            times brokers know.
        delays_ms: Watermark delays, ascending.
        wanted: A range of append times, which brokers know where they stamp records.

    Raises:
        UnknownTopic, ClusterFailure: As a read of these topics.
        InvalidRequest: A range, and a topic of which brokers know no append times.
    """
    notes: list[str] = []
    if topics is None and _has_range(wanted):
        topics, others = _stamped_topics(place)
        notes += [f"{name}: left out, its brokers know no append times" for name in others]
        if not topics:
            raise InvalidRequest(f"{place}: of none of its topics brokers know append times")
    found = _read(spark, place, topics, delays_ms, _range(wanted))
    of, times = [name.topic for name in found], list(found.values())
    by_topic = joined(sorted(set(of)), of, times, [one.late for one in times], delays_ms)
    return Measured(by_topic, 0, notes)


def _read(
    spark: "SparkSession",
    place: Place,
    topics: Sequence[str | TopicPartition] | None,
    delays_ms: tuple[int, ...],
    bounds: Mapping[str, str],
) -> "dict[TopicPartition, SplitTimes]":
    """What each partition's records say of their times."""
    from tidelog.scan.times_codec import decode_times

    table = (
        spark.read.format("tidelog")
        .options(**place.options())
        .options(**_choice(topics))
        .options(**bounds)
        .option("columns", _COLUMNS)
        .option("failOnDataLoss", "false")
        .load()
    )
    rows = table.mapInArrow(ReduceRows(delays_ms), _REDUCED).toArrow().to_pylist()
    found = {}
    for row in rows:
        name = TopicPartition(row["topic"], row["partition"])
        assert name not in found, f"{name} was read in pieces"
        found[name] = decode_times(*(row[cell] for cell in _CELLS))
    return found


def _has_range(wanted: Wanted) -> bool:
    return (wanted.start_ms, wanted.end_ms) != (None, None)


def _range(wanted: Wanted) -> dict[str, str]:
    """Options that read a range of append times; brokers stamp a partition in order."""
    if not _has_range(wanted):
        return {}
    found = {"clock": "append", "startingOffsetsByTimestampStrategy": "latest"}
    if wanted.start_ms is not None:
        found["startingTimestamp"] = str(max(wanted.start_ms, 0))
    if wanted.end_ms is not None:
        found["endingTimestamp"] = str(max(wanted.end_ms, 0))
    return found


def _stamped_topics(place: Place) -> tuple[list[str], list[str]]:
    """Topics whose append times brokers know, and the others but for the brokers' own."""
    stamped: list[str] = []
    others: list[str] = []
    with open_cluster(place) as cluster:
        counts = {name: n for name, n in cluster.topics().items() if not name.startswith("__")}
        for name, topic in describe(cluster, counts).items():
            found = topic.settings
            is_known = found.get(STAMPS) == _STAMPED or found.get(LOOKUPS) == ClockName.APPEND
            (stamped if is_known else others).append(name)
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


@dataclass(frozen=True, slots=True)
class ReduceRows:
    """Counts rows that a task reads, in the order of offsets, a row for each partition.

    Attributes:
        delays_ms: Watermark delays, ascending.
    """

    delays_ms: tuple[int, ...]

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """See `mapInArrow`; columns as in `_COLUMNS`."""
        from tidelog.scan.split_times import TimesCounter

        name: tuple[str, int] | None = None
        counter = TimesCounter(self.delays_ms)
        for batch in batches:
            for part in _parts(batch):
                mine = part.column("topic")[0].as_py(), part.column("partition")[0].as_py()
                if name is not None and mine != name:
                    yield _row(name, counter)
                    counter = TimesCounter(self.delays_ms)
                name = mine
                append_ms, create_ms = (
                    _ms(part.column(of)) for of in ("appendTimestamp", "createTimestamp")
                )
                counter.add(append_ms, create_ms)
        if name is not None:
            yield _row(name, counter)


def _parts(batch: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
    """The batch in parts of one partition each."""
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

    known = column.cast(pa.int64()).fill_null(NO_TIMESTAMP * US_PER_MS)
    found: Longs = np.asarray(known, np.int64) // US_PER_MS
    found.flags.writeable = False
    return found


def _row(name: tuple[str, int], counter: "TimesCounter") -> "pa.RecordBatch":
    import pyarrow as pa

    from tidelog.scan.times_codec import encode_times

    cells = (*name, *encode_times(counter.finish()))
    names = ["topic", "partition", *_CELLS]
    return pa.RecordBatch.from_arrays([pa.array([cell]) for cell in cells], names=names)
