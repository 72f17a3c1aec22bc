"""By which clock a broker answers searches by time: Kafka's by timestamps, ours as a topic says.

`tidelog.lookup.clock=append` makes ListOffsets a search by append time. Whoever means the record
clock then has to look at the records, and whoever means the append clock needs no stamps.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.cluster.named_partitions import watermarks
from tidelog.cluster.search import first_at_or_after, first_by_reading
from tidelog.cluster.stamps import first_stamped
from tidelog.cluster.view import Appended, ClusterView, Watermarks
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure
from tidelog.storage.log_reader import unknown_times_note
from tidelog.types import INT64_MAX, ClockName, OffsetAndTimestamp, TopicPartition

_LOGGER = logging.getLogger(__name__)
SETTING: Final = "tidelog.lookup.clock"
# Who may not see a topic's settings asks another's broker: ours has no such rules.
_DENIED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


def searched_by_append(cluster: ClusterView, topics: Iterable[str]) -> set[str]:
    """The topics whose searches by time are about append times; raises ClusterFailure."""
    found = set()
    for topic in sorted(set(topics)):
        try:
            settings = cluster.topic_settings(topic)
        except ClusterFailure as error:
            if error.error_code not in _DENIED:
                raise
            continue
        if settings.get(SETTING) == ClockName.APPEND:
            found.add(topic)
    return found


def offsets_for_times(
    cluster: ClusterView, times: Mapping[TopicPartition, int], clock: ClockName
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """See `tidelog.cluster.remote_directory.RemoteDirectory.offsets_for_times`."""
    if any(time_ms < 0 for time_ms in times.values()):
        raise ValueError("a time to look up is 0 or more")
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for time_ms in dict.fromkeys(times.values()):
        marks = watermarks(cluster, [name for name in times if times[name] == time_ms])
        if clock is ClockName.RECORD:
            found |= first_on_clock(cluster, marks, time_ms, clock)
            continue
        for name, (hit, without_time) in first_appended(cluster, marks, time_ms).items():
            found[name] = hit
            if hit is None and without_time:
                _LOGGER.warning("%s", unknown_times_note(name, without_time))
    return {name: found[name] for name in times}


def first_appended(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, Appended]:
    """The first record of each log appended at a time or later, and how many may be before it.

    Raises:
        InvalidRequest: The brokers don't know append times.
        ClusterFailure: They can't be asked.
    """
    found = cluster.told_appended(marks, time_ms)
    rest = {name: mark for name, mark in marks.items() if name not in found}
    for name, hit in first_on_clock(cluster, rest, time_ms, ClockName.APPEND).items():
        # Stamps prove the answer; how many records without one lie before it, nobody tells.
        found[name] = Appended(None if hit is None else hit._replace(without_time=None), None)
    return found


def without_append_time(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks]
) -> dict[TopicPartition, int | None]:
    """How many records of each log have no known append time, None where that is not told."""
    told = cluster.told_appended(marks, INT64_MAX)
    return {name: told[name].without_time if name in told else None for name in marks}


def first_on_clock(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    time_ms: int,
    clock: ClockName,
    *,
    asked: str = "clock='append'",
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record of each log whose time on a clock is `time_ms` or later, None for none.

    Args:
        cluster: Where to look.
        marks: Watermarks of the partitions.
        time_ms: The time, 0 or more.
        clock: Which of a record's two times it is about.
        asked: How the append clock was chosen, for errors.

    Raises:
        InvalidRequest: Append times are asked for that the brokers don't know.
        ClusterFailure: They can't be asked.
    """
    told: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    if clock is ClockName.APPEND:
        told = cluster.first_appended(marks, time_ms)
        marks = {name: mark for name, mark in marks.items() if name not in told}
    by_append = searched_by_append(cluster, {name.topic for name in marks})
    ours = {name: mark for name, mark in marks.items() if name.topic in by_append}
    theirs = {name: mark for name, mark in marks.items() if name.topic not in by_append}
    found = first_at_or_after(cluster, theirs, time_ms) if theirs else {}
    if clock is ClockName.RECORD:
        return found | {n: first_by_reading(cluster, n, m, time_ms) for n, m in ours.items()}
    if theirs:
        found = first_stamped(cluster, theirs, found, asked=asked)
    if ours:
        found |= cluster.offsets_for_times(dict.fromkeys(ours, time_ms))
    return found | told
