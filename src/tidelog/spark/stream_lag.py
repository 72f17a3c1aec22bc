"""What a stream tells in Spark's progress: the ends of the log, how far behind, what was lost.

Spark takes no metrics of Python sources, but shows what `reportLatestOffset` gives as
`latestOffset` of the source. So the connector's metrics stand in there, under its names.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from tidelog.errors import LostOffsets
from tidelog.spark.stream_loss import Seen
from tidelog.spark.stream_offset import Json
from tidelog.types import TopicPartition

# Progress is kept in memory and shown by listeners: it names so many ranges, and counts the rest.
_LOST_LIMIT: Final = 20


Times: TypeAlias = Mapping[TopicPartition, tuple[int | None, int | None]]


def left_over(seen: Seen, consumed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Where each partition goes on that has more than is in this batch or an earlier one."""
    return {
        name: max(consumed.get(name, start), start)
        for name, (start, end) in seen.extents.items()
        if max(consumed.get(name, start), start) < end
    }


def seconds_behind(left: Mapping[TopicPartition, int], times: Times, now_ms: int) -> Json:
    """How old the oldest record is that is left, in seconds by record and by append time.

    Args:
        left: As `left_over`.
        times: Record and append time in ms of the first record left in each partition.
        now_ms: The time now.

    Returns:
        `record` and `append`; 0 where nothing is left, None where no time is known.
    """
    found: Json = {}
    for number, clock in enumerate(("record", "append")):
        known = [of_clock for pair in times.values() if (of_clock := pair[number]) is not None]
        oldest = max((now_ms - min(known)) / 1000, 0.0) if known else None
        found[clock] = oldest if left else 0.0
    return found


def report(
    seen: Seen,
    consumed: Mapping[TopicPartition, int],
    lost: Iterable[LostOffsets],
    seconds: Json,
) -> Json:
    """The progress of a micro-batch.

    Args:
        seen: The log as it was when the batch was planned.
        consumed: Offsets up to which everything is in this batch or an earlier one; a partition
            that is not there yet counts from its log start.
        lost: What was found lost when it was planned.
        seconds: As `seconds_behind`.

    Returns:
        `latest`: the log ends; `behind`: offsets left, by topic and partition; `secondsBehind` by
        clock; `metrics` over all partitions; `lost`: ranges in words.
    """
    latest: dict[str, dict[str, int]] = {}
    behind: dict[str, dict[str, int]] = {}
    for name, (start, end) in sorted(seen.extents.items()):
        left = max(end - consumed.get(name, start), 0)
        latest.setdefault(name.topic, {})[str(name.partition)] = end
        behind.setdefault(name.topic, {})[str(name.partition)] = left
    found: Json = {"latest": latest, "behind": behind, "metrics": _metrics(behind)}
    found["secondsBehind"] = seconds
    texts = [str(one) for one in lost]
    if texts:
        found["lost"] = texts[:_LOST_LIMIT]
        found["lostRanges"] = len(texts)
    return found


def _metrics(behind: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    all_of_them = [left for of_topic in behind.values() for left in of_topic.values()] or [0]
    total = sum(all_of_them)
    return {
        "minOffsetsBehindLatest": min(all_of_them),
        "maxOffsetsBehindLatest": max(all_of_them),
        "avgOffsetsBehindLatest": total / len(all_of_them),
        "offsetsBehindLatest": total,
    }
