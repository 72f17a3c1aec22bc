"""From options and filters to what is wanted of each partition. Pure."""

from typing import Final

from tidelog.errors import InvalidRequest
from tidelog.scan import Wanted
from tidelog.spark.limits import Limits
from tidelog.spark.option_ranges import Given
from tidelog.spark.source_options import SourceOptions
from tidelog.types import INT64_MAX, TopicPartition

NO_RANGE: Final = "nothing to read: filters leave no offset, or no time"
NO_TOPIC: Final = "nothing to read: no topic fits subscribePattern={}"
NO_PARTITION: Final = "nothing to read: filters leave no partition"


def nothing_meant(options: SourceOptions, names: list[TopicPartition], limits: Limits) -> str:
    """Why no partition is looked at.

    Args:
        options: What the query was asked for.
        names: The partitions that these mean.
        limits: What filters leave.
    """
    if not names:
        return NO_TOPIC.format(options.pattern)
    return NO_RANGE if limits.is_empty else NO_PARTITION


def wanted_of(
    options: SourceOptions, names: list[TopicPartition], limits: Limits
) -> dict[TopicPartition, Wanted]:
    """What is wanted of each partition that the limits keep.

    Raises:
        InvalidRequest: An option by partition does not name them all, or names others.
    """
    sides = {
        "start_offset": _spread("startingOffsets", options.start_offsets, names),
        "end_offset": _spread("endingOffsets", options.end_offsets, names),
        "start_ms": _spread("startingOffsetsByTimestamp", options.start_ms, names),
        "end_ms": _spread("endingOffsetsByTimestamp", options.end_ms, names),
    }
    soft = {
        "least_offset": limits.least_offset or None,
        "limit_offset": None if limits.limit_offset == INT64_MAX else limits.limit_offset,
    }
    return {
        name: Wanted(
            **{side: values[number] for side, values in sides.items()},
            **soft,
            filter_ms=limits.times,
        )
        for number, name in enumerate(names)
        if limits.keeps(name)
    }


def _spread(what: str, given: Given, names: list[TopicPartition]) -> list[int | None]:
    """One value for each partition."""
    if given is None or isinstance(given, int):
        return [given] * len(names)
    if missing := [name for name in names if name not in given]:
        raise InvalidRequest(f"{what} by partition: {missing[0]} is missing, all must be named")
    if others := sorted(given.keys() - set(names)):
        raise InvalidRequest(f"{what} by partition: {others[0]} is not among what is read")
    return [given[name] for name in names]
