"""What a mirror reads: one stream of all its places, and what tasks need of each row."""

import json
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from tidelog.cluster.offset_map import Partitioning
from tidelog.errors import InvalidRequest
from tidelog.spark.jobs.mirror_plan import MirrorPlan, MirrorSource, MirrorState, Pair
from tidelog.spark.jobs.mirror_tasks import ORIGIN, RECORD, TARGET_PARTITION
from tidelog.types import TimestampType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = (*RECORD, "topic", "partition", "offset", "timestampType")
_CREATE_TIME: Final = "createTimestamp"
# Order within a partition is kept by one task; a directory's segments are put in order later.
_ONE_TASK_BYTES: Final = str(1 << 58)


def source_options(
    plan: MirrorPlan, number: int, state: MirrorState, *, batch_records: int
) -> dict[str, str]:
    """Options of the stream that reads a place."""
    source = plan.sources[number]
    place = source.place
    columns = [*_COLUMNS, *([] if place.is_broker else [_CREATE_TIME])]
    found = (
        place.options()
        | _subscribed(source)
        | {
            "isolation": plan.isolation.name.lower(),
            "columns": ",".join(columns),
            "startingOffsets": starting_offsets(plan, number, state),
            "maxOffsetsPerTrigger": str(batch_records),
        }
    )
    if plan.target.is_broker and not place.is_broker:
        found["splitBytes"] = _ONE_TASK_BYTES
    return found


def _subscribed(source: MirrorSource) -> dict[str, str]:
    if source.expression is not None:
        return {"subscribePattern": source.expression}
    return {"subscribe": ",".join(source.topics)}


def starting_offsets(plan: MirrorPlan, number: int, state: MirrorState) -> str:
    """`earliest`, or the very offsets that were the ends when the mirror began."""
    if plan.start == "earliest":
        return "earliest"
    pairs: list[Pair] = plan.pairs
    found: dict[str, dict[str, int]] = {}
    for pair_number, partition, offset in state.starts:
        pair = pairs[pair_number]
        if pair.place == number:
            found.setdefault(pair.topic, {})[str(partition)] = offset
    return json.dumps(found)


def read_rows(
    spark: "SparkSession",
    plan: MirrorPlan,
    state: MirrorState,
    *,
    batch_records: int,
    more: Mapping[str, str],
) -> "DataFrame":
    """The rows of all places, each with the number of its place; times are create times."""
    from pyspark.sql.functions import coalesce, col, lit, when

    parts = []
    for number, source in enumerate(plan.sources):
        given = source_options(plan, number, state, batch_records=batch_records) | dict(more)
        rows = spark.readStream.format("tidelog").options(**given).load()
        if not source.place.is_broker:
            # The files of a LogAppendTime topic still hold when producers made their records.
            stamped = col("timestampType") == lit(int(TimestampType.LOG_APPEND_TIME))
            created = when(stamped, coalesce(col(_CREATE_TIME), col("timestamp")))
            rows = rows.withColumn("timestamp", created.otherwise(col("timestamp")))
            rows = rows.drop(_CREATE_TIME)
        parts.append(rows.drop("timestampType").withColumn("source", lit(number)))
    return reduce(lambda one, other: one.unionByName(other), parts)


def select(rows: "DataFrame", partitioning: Partitioning) -> "DataFrame":
    """The columns that tasks need, in order; raises InvalidRequest where one is missing."""
    needed = [*ORIGIN, *RECORD]
    if partitioning is Partitioning.ANY:
        needed.append(TARGET_PARTITION)
    if missing := [name for name in needed if name not in rows.columns]:
        raise InvalidRequest(
            f"transform has left no column {missing[0]}; it must keep {', '.join(ORIGIN)}, by which"
            f" the offset map knows what went where, and {', '.join(RECORD)}"
        )
    return rows.select(*needed)
