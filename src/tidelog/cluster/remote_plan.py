"""Which offsets of a cluster's partitions a range of time asks for; nothing is read to know it.

By create time, records of a range may lie anywhere behind the first one that is late enough: that
one ListOffsets tells, an end nobody but the records themselves. So the plan goes on to the log's
end, and readers filter: exact, at the price of what lies behind the range. On the append clock
stamps rise with offsets, so there the range ends where the first later stamp is.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.cluster.lookup_clock import first_appended, searched_by_append
from tidelog.cluster.search import first_at_or_after
from tidelog.cluster.view import Appended, ClusterView, Watermarks
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, InvalidRequest
from tidelog.scan import Split, Wanted
from tidelog.types import INT64_MAX, INT64_MIN, ClockName, IsolationLevel, TopicPartition

# Brokers before 3.0 don't know the largest timestamp; -165 is the client library's word for that.
_UNSUPPORTED: Final = frozenset({ErrorCode.UNSUPPORTED_VERSION, -165})


def plan_remote(
    cluster: ClusterView,
    names: Sequence[TopicPartition],
    wanted: Wanted,
    *,
    clock: ClockName,
    isolation: IsolationLevel,
) -> list[Split]:
    """A split for each partition that may hold something wanted, in the order of `names`.

    Args:
        cluster: Where they are.
        names: The partitions.
        wanted: Offsets are not looked at, only `start_ms` and `end_ms`.
        clock: Which of a record's two times they are about.
        isolation: READ_COMMITTED ends at the last stable offset.

    Raises:
        InvalidRequest: The range ends before it starts, or append times are asked for that the
            brokers don't know.
        ClusterFailure: They can't be asked.
    """
    times = _times(wanted)
    marks = cluster.watermarks(names, isolation=isolation)
    spans = {name: (mark.start, max(mark.end, mark.start)) for name, mark in marks.items()}
    told: set[TopicPartition] = set()
    if times is not None and clock is ClockName.APPEND:
        spans, told = _by_append_time(cluster, marks, times)
    elif times is not None:
        spans = _by_create_time(cluster, marks, times)
    return [
        Split(
            topic=name.topic,
            partition=name.partition,
            start_offset=spans[name][0],
            end_offset=spans[name][1],
            directory="",
            clock=clock,
            # Append times never fall, so the offsets alone are the range. Where brokers tell append
            # times, readers leave out the records among them that have none.
            time_range=times if clock is ClockName.RECORD or name in told else None,
            isolation=isolation,
        )
        for name in names
        if spans[name][0] < spans[name][1]
    ]


def _times(wanted: Wanted) -> tuple[int, int] | None:
    start = INT64_MIN if wanted.start_ms is None else wanted.start_ms
    end = INT64_MAX if wanted.end_ms is None else wanted.end_ms
    if start > end:
        raise InvalidRequest(f"the range of time ends at {end}, before its start {start}")
    return None if (start, end) == (INT64_MIN, INT64_MAX) else (start, end)


def _by_create_time(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], times: tuple[int, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """From the first record that is late enough to the end of what is visible."""
    spans = {name: (mark.start, mark.end) for name, mark in marks.items()}
    if times[0] <= 0 or times[0] >= times[1]:
        return spans if times[0] < times[1] else dict.fromkeys(marks, (0, 0))
    by_append = searched_by_append(cluster, {name.topic for name in marks})
    searched = {name: mark for name, mark in marks.items() if name.topic not in by_append}
    try:
        hits = first_at_or_after(cluster, searched, times[0]) if searched else {}
    except ClusterFailure as error:
        if error.error_code not in _UNSUPPORTED:
            raise
        return spans
    for name, hit in hits.items():
        end = marks[name].end
        spans[name] = (end if hit is None else max(hit.offset, marks[name].start), end)
    return spans


def _by_append_time(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], times: tuple[int, int]
) -> tuple[dict[TopicPartition, tuple[int, int]], set[TopicPartition]]:
    """From the first record appended at the start or later to the first at the end or later.

    With the partitions whose brokers tell append times.
    """
    if times[0] > 0:
        first = first_appended(cluster, marks, times[0])
    else:
        first = cluster.told_appended(marks, 0)
    behind = first_appended(cluster, marks, max(times[1], 0)) if times[1] < INT64_MAX else {}
    spans = {}
    for name, mark in marks.items():
        start = _offset_of(first[name], mark) if times[0] > 0 else mark.start
        end = _offset_of(behind[name], mark) if name in behind else mark.end
        spans[name] = (max(start, mark.start), end)
    told = {name for name in first if first[name].without_time is not None}
    return spans, told


def _offset_of(answer: Appended, mark: Watermarks) -> int:
    return mark.end if answer.hit is None else min(answer.hit.offset, mark.end)
