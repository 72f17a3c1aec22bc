"""What a stream tells in Spark's progress: the ends of the log, how far behind, what was lost.

Spark takes no metrics of Python sources, but shows what `reportLatestOffset` gives as
`latestOffset` of the source. So the connector's metrics stand in there, under its names.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.errors import LostOffsets
from tidelog.spark.stream_loss import Seen
from tidelog.spark.stream_offset import Json
from tidelog.types import TopicPartition

# Progress is kept in memory and shown by listeners: it names so many ranges, and counts the rest.
_LOST_LIMIT: Final = 20


def report(seen: Seen, consumed: Mapping[TopicPartition, int], lost: Iterable[LostOffsets]) -> Json:
    """The progress of a micro-batch.

    Args:
        seen: The log as it was when the batch was planned.
        consumed: Offsets up to which everything is in this batch or an earlier one; a partition
            that is not there yet counts from its log start.
        lost: What was found lost when it was planned.

    Returns:
        `latest`: the log ends; `behind`: offsets left, by topic and partition; `metrics` over all
        partitions; `lost`: ranges in words.
    """
    latest: dict[str, dict[str, int]] = {}
    behind: dict[str, dict[str, int]] = {}
    for name, (start, end) in sorted(seen.extents.items()):
        left = max(end - consumed.get(name, start), 0)
        latest.setdefault(name.topic, {})[str(name.partition)] = end
        behind.setdefault(name.topic, {})[str(name.partition)] = left
    found: Json = {"latest": latest, "behind": behind, "metrics": _metrics(behind)}
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
