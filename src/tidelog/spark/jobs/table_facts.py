"""What is known of a table before it becomes records: counts by create time, keys, hours.

One pass over key and time; the values are not looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.cluster.view import Count
from tidelog.spark.jobs.checks import Load
from tidelog.types import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Times further off are told by these hours: a few million rows at the very most.
_HOUR_MIN, _HOUR_MAX = -25_000 * 24, 85_000 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Counts of records to be.

    Attributes:
        records: All of them.
        without_time: Those whose create time is null.
        null_keys: Those without a key.
        below: For each threshold in ms, how many have a create time before it.
        hours: Hour since the epoch -> how many have a create time in it.
        min_ms: Earliest create time, None where there is none.
        max_ms: Latest create time, None where there is none.
    """

    records: int
    without_time: int
    null_keys: int
    below: Mapping[int, int] = field(default_factory=dict)
    hours: Mapping[int, int] = field(default_factory=dict)
    min_ms: int | None = None
    max_ms: int | None = None

    def between(self, start_ms: int | None, end_ms: int | None) -> Count | None:
        """How many create times lie in [start, end); None for sides that were not counted."""
        sides = [side for side in (start_ms, end_ms) if side is not None]
        if any(side not in self.below for side in sides):
            return None
        end = self.records - self.without_time if end_ms is None else self.below[end_ms]
        start = 0 if start_ms is None else self.below[start_ms]
        return Count(max(end - start, 0), is_exact=True)

    def load(self, partitions: int | None) -> Load:
        """What the checks of a target ask.

        Args:
            partitions: Where the numbers of partitions are given: how many there must be.
        """
        # Rows without a time get that of the commit, which no setting minds.
        return Load(
            records=Count(self.records, is_exact=True),
            between=self.between,
            null_keys=Count(self.null_keys, is_exact=True),
            partitions=partitions,
            has_times=self.without_time < self.records,
        )


def table_facts(records: "DataFrame", thresholds: Sequence[int]) -> tuple[TableFacts, int]:
    """Counts of records, and the largest number of a partition that is given, -1 for none.

    Args:
        records: As `record_columns.to_records` makes them.
        thresholds: Times in ms to count below.
    """
    from pyspark.sql import functions as f

    marks = sorted(set(thresholds))
    rows = (
        records.select(*_looked_at(records))
        .groupBy("hour")
        .agg(
            f.count(f.lit(1)).alias("records"),
            f.count_if("no_key").alias("null_keys"),
            f.min("ms").alias("min_ms"),
            f.max("ms").alias("max_ms"),
            f.max("partition").alias("partition"),
            *[
                f.count_if(f.col("ms") < f.lit(mark)).alias(f"m{at}")
                for at, mark in enumerate(marks)
            ],
        )
    )
    found = [row.asDict() for row in rows.collect()]
    timed = [row for row in found if row["hour"] is not None]
    facts = TableFacts(
        records=sum(row["records"] for row in found),
        without_time=sum(row["records"] for row in found if row["hour"] is None),
        null_keys=sum(row["null_keys"] for row in found),
        below={mark: sum(row[f"m{at}"] for row in timed) for at, mark in enumerate(marks)},
        hours={row["hour"]: row["records"] for row in timed},
        min_ms=min((row["min_ms"] for row in timed), default=None),
        max_ms=max((row["max_ms"] for row in timed), default=None),
    )
    partitions = [row["partition"] for row in found if row["partition"] is not None]
    return facts, max(partitions, default=-1)


def _looked_at(records: "DataFrame") -> "list[Column]":
    from pyspark.sql import functions as f

    has = set(records.columns)
    ms = f.unix_millis("timestamp") if "timestamp" in has else f.lit(None).cast("long")
    hour = f.greatest(
        f.lit(_HOUR_MIN), f.least(f.lit(_HOUR_MAX), f.floor(ms / f.lit(HOUR_MS)).cast("long"))
    )
    # greatest and least pass over nulls, which are to stay.
    return [
        ms.alias("ms"),
        f.when(ms.isNotNull(), hour).alias("hour"),
        (f.col("key").isNull() if "key" in has else f.expr("true")).alias("no_key"),
        (f.col("partition") if "partition" in has else f.lit(None).cast("int")).alias("partition"),
    ]
