"""Offsets for times at brokers, on either clock, and plans for ranges of time.

- Clock of a broker's own search: the record clock at Kafka's brokers; at tidelog's brokers the one
  that `tidelog.lookup.clock` names. A search on the other clock reads records.
- Record clock: brokers may miss records in their search, so the result is verified.
- Append clock at other brokers: known where the broker stamped the records itself (LogAppendTime).
  The topic's setting tells only how records are stamped from now on, so the record that was found
  and the last one before it must carry the stamp.
- Append clock at tidelog's brokers: they return append times beside the records of a fetch, if the
  client asks for them. Append times never decrease along a log, so a binary search fetches one
  batch per step. After a broker without them none of the cluster is asked again.
- Plans: by create time, records of a range may lie anywhere behind the first match, so a plan goes
  to the log end and readers filter. By append time the range ends at the first later time.

For one owner.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import Final

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, InvalidRequest, UnknownTopic
from tidelog.remote import client as codes
from tidelog.remote.broker_connection import connect_socket
from tidelog.remote.partition_fetch import FetchSeams, FetchSettings, PartitionFetch
from tidelog.remote.view import Appended, ClusterView, RemoteRecord, Watermarks
from tidelog.scan import Split, Wanted
from tidelog.storage.log.log_reader import unknown_times_note
from tidelog.types import (
    INT64_MAX,
    UNKNOWN_MS,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TimestampType,
    TopicPartition,
)

# What brokers and the client library say of what is not there, among other things.
_MAY_BE_MISSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        codes.NO_LEADERS,
        codes.UNKNOWN_PARTITION,
        codes.UNKNOWN_TOPIC,
    }
)


def named_watermarks(
    cluster: ClusterView,
    partitions: Iterable[TopicPartition],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Watermarks]:
    """Where the partitions begin and end.

    Raises:
        UnknownTopic: A topic or partition is not there; names which one.
        InvalidRequest: Something else than a partition was named.
        ClusterFailure: Brokers can't be asked.
    """
    names = [_checked(name) for name in partitions]
    try:
        return cluster.watermarks(names, isolation=isolation)
    except ClusterFailure as error:
        if error.error_code in _MAY_BE_MISSING:
            _refuse_missing(cluster, names, error)
        raise


def _checked(name: object) -> TopicPartition:
    if isinstance(name, TopicPartition):
        return name
    raise InvalidRequest(f"write TopicPartition(TOPIC, NUMBER) for a partition, not {name!r}")


def _refuse_missing(
    cluster: ClusterView, names: Sequence[TopicPartition], reason: ClusterFailure
) -> None:
    for name in names:
        existing = cluster.partitions(name.topic)
        if name not in existing:
            raise UnknownTopic(
                f"{cluster.bootstrap}: topic {name.topic} has partitions 0 to {len(existing) - 1},"
                f" not {name.partition}"
            ) from reason


def first_at_or_after(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record in each log whose timestamp is `time_ms` or later, None where there is none.

    Kafka answers "none" where all matches of the first segment that has some were deleted, though
    later segments may hold more (docs/differences.md). Where it says so and yet knows a timestamp
    as late, the records themselves are read.
    """
    answers = cluster.offsets_for_times(dict.fromkeys(marks, time_ms))
    unsure = [
        p for p, answer in answers.items() if answer is None and marks[p].start < marks[p].end
    ]
    latest = cluster.max_timestamps(unsure)
    for partition in unsure:
        largest = latest[partition]
        if largest is not None and largest.timestamp >= time_ms:
            answers[partition] = first_by_reading(cluster, partition, marks[partition], time_ms)
    return answers


def first_by_reading(
    cluster: ClusterView, partition: TopicPartition, mark: Watermarks, time_ms: int
) -> OffsetAndTimestamp | None:
    """The same for one log, by reading its records from the start until the match."""
    for record in cluster.records(partition, mark.start, mark.end):
        if record.timestamp is not None and record.timestamp >= time_ms:
            return OffsetAndTimestamp(record.offset, record.timestamp, record.leader_epoch)
    return None


SETTING = "message.timestamp.type"


def first_stamped(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    matches: Mapping[TopicPartition, OffsetAndTimestamp | None],
    *,
    choice: str = "--clock append",
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The answers of a search by timestamp, where they are about append times.

    Args:
        cluster: Where to look.
        marks: Watermarks of the partitions.
        matches: The answers.
        choice: How the clock was chosen, for errors.

    Raises:
        InvalidRequest: A topic, or a record that decides, is not stamped LogAppendTime.
    """
    _refuse_unstamped_topics(cluster, {partition.topic for partition in marks}, choice)
    for partition, mark in marks.items():
        answer = matches[partition]
        end = mark.end if answer is None else answer.offset
        before = last_record_below(cluster, partition, mark.start, end)
        after = None if answer is None else cluster.first_records({partition: end})[partition]
        for record in (before, after):
            _refuse_unstamped_record(partition, record, choice)
    return dict(matches)


def _refuse_unstamped_topics(cluster: ClusterView, topics: Iterable[str], choice: str) -> None:
    stamped = TimestampType.LOG_APPEND_TIME.config_name
    for topic in sorted(topics):
        setting = cluster.topic_settings(topic).get(SETTING)
        if setting != stamped:
            raise InvalidRequest(
                f"{choice}: {topic} has {SETTING}={setting}, so its brokers don't know when"
                f" records were appended; give --data with a directory that tidelog wrote,"
                f" or use --clock record"
            )


def _refuse_unstamped_record(
    partition: TopicPartition, record: RemoteRecord | None, choice: str
) -> None:
    if record is None or record.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    raise InvalidRequest(
        f"{choice}: {partition} offset {record.offset} bears a create time (the topic became"
        f" {TimestampType.LOG_APPEND_TIME.config_name} later); use --clock record"
    )


def last_record_below(
    cluster: ClusterView, partition: TopicPartition, start: int, end: int
) -> RemoteRecord | None:
    """The last data record with an offset in [start, end), None where there is none."""
    step = 1
    while start < end:
        first = max(end - step, start)
        last = None
        for record in cluster.records(partition, first, end):
            last = record
        if last is not None or first == start:
            return last
        step *= 2
    return None


_LOGGER = logging.getLogger(__name__)


LOOKUP_CLOCK: Final = "tidelog.lookup.clock"


# Who may not see a topic's settings asks another's broker: ours has no such rules.
_DENIED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


def searched_by_append(cluster: ClusterView, topics: Iterable[str]) -> set[str]:
    """The topics whose searches by time are about append times; raises ClusterFailure."""
    names = set()
    for topic in sorted(set(topics)):
        try:
            settings = cluster.topic_settings(topic)
        except ClusterFailure as error:
            if error.error_code not in _DENIED:
                raise
            continue
        if settings.get(LOOKUP_CLOCK) == ClockName.APPEND:
            names.add(topic)
    return names


def offsets_for_times(
    cluster: ClusterView, times: Mapping[TopicPartition, int], clock: ClockName
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """See `tidelog.remote.remote_directory.RemoteDirectory.offsets_for_times`."""
    if any(time_ms < 0 for time_ms in times.values()):
        raise ValueError("a time to look up is 0 or more")
    matches: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for time_ms in dict.fromkeys(times.values()):
        marks = named_watermarks(cluster, [name for name in times if times[name] == time_ms])
        if clock is ClockName.RECORD:
            matches |= first_on_clock(cluster, marks, time_ms, clock)
            continue
        for name, (hit, without_time) in first_appended(cluster, marks, time_ms).items():
            matches[name] = hit
            if hit is None and without_time:
                _LOGGER.warning("%s", unknown_times_note(name, without_time))
    return {name: matches[name] for name in times}


def first_appended(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, Appended]:
    """The first record of each log appended at a time or later, and how many may be before it.

    Raises:
        InvalidRequest: The brokers don't know append times.
        ClusterFailure: They can't be asked.
    """
    answers = cluster.search_append_times(marks, time_ms)
    rest = {name: mark for name, mark in marks.items() if name not in answers}
    for name, hit in first_on_clock(cluster, rest, time_ms, ClockName.APPEND).items():
        # Stamps prove the answer; how many records without one lie before it, nobody tells.
        answers[name] = Appended(None if hit is None else hit._replace(without_time=None), None)
    return answers


def without_append_time(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks]
) -> dict[TopicPartition, int | None]:
    """How many records of each log have no known append time, None where that is not told."""
    answers = cluster.search_append_times(marks, INT64_MAX)
    return {name: answers[name].without_time if name in answers else None for name in marks}


def first_on_clock(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    time_ms: int,
    clock: ClockName,
    *,
    choice: str = "clock='append'",
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record of each log whose time on a clock is `time_ms` or later, None for none.

    Args:
        cluster: Where to look.
        marks: Watermarks of the partitions.
        time_ms: The time, 0 or more.
        clock: Which of a record's two times it is about.
        choice: How the append clock was chosen, for errors.

    Raises:
        InvalidRequest: Append times are asked for that the brokers don't know.
        ClusterFailure: They can't be asked.
    """
    answers: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    if clock is ClockName.APPEND:
        answers = cluster.first_appended(marks, time_ms)
        marks = {name: mark for name, mark in marks.items() if name not in answers}
    by_append = searched_by_append(cluster, {name.topic for name in marks})
    ours = {name: mark for name, mark in marks.items() if name.topic in by_append}
    theirs = {name: mark for name, mark in marks.items() if name.topic not in by_append}
    matches = first_at_or_after(cluster, theirs, time_ms) if theirs else {}
    if clock is ClockName.RECORD:
        return matches | {n: first_by_reading(cluster, n, m, time_ms) for n, m in ours.items()}
    if theirs:
        matches = first_stamped(cluster, theirs, matches, choice=choice)
    if ours:
        matches |= cluster.offsets_for_times(dict.fromkeys(ours, time_ms))
    return matches | answers


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
        wanted: Times, and offsets from 0 up, which are clipped to the logs.
        clock: Which of a record's two times they are about.
        isolation: READ_COMMITTED ends at the last stable offset.

    Raises:
        InvalidRequest: The range ends before it starts, or append times are asked for that the
            brokers don't know.
        ClusterFailure: They can't be asked.
    """
    times = wanted.times
    if times is not None and times[0] > times[1]:
        raise InvalidRequest(f"the range of time ends at {times[1]}, before its start {times[0]}")
    marks = cluster.watermarks(names, isolation=isolation)
    spans = {name: (mark.start, max(mark.end, mark.start)) for name, mark in marks.items()}
    answered: set[TopicPartition] = set()
    if times is not None and clock is ClockName.APPEND:
        spans, answered = _by_append_time(cluster, marks, times)
    elif times is not None:
        spans = _by_create_time(cluster, marks, times)
    first = wanted.start_offset or 0
    last = INT64_MAX if wanted.end_offset is None else wanted.end_offset
    spans = {name: (max(start, first), min(end, last)) for name, (start, end) in spans.items()}
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
            time_range=times if clock is ClockName.RECORD or name in answered else None,
            isolation=isolation,
        )
        for name in names
        if spans[name][0] < spans[name][1]
    ]


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
        first = cluster.search_append_times(marks, 0)
    behind = first_appended(cluster, marks, max(times[1], 0)) if times[1] < INT64_MAX else {}
    spans = {}
    for name, mark in marks.items():
        start = _offset_of(first[name], mark) if times[0] > 0 else mark.start
        end = _offset_of(behind[name], mark) if name in behind else mark.end
        spans[name] = (max(start, mark.start), end)
    answered = {name for name in first if first[name].without_time is not None}
    return spans, answered


def _offset_of(answer: Appended, mark: Watermarks) -> int:
    return mark.end if answer.hit is None else min(answer.hit.offset, mark.end)


class AppendRuns:
    """Runs of offsets and when they were appended.

    Args:
        rows: Of each run the first offset and its time in ms, -1 for unknown, one behind the
            other. Nothing is believed of rows that are not in order.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        firsts = list(rows[0::2])
        is_good = len(rows) % 2 == 0 and all(one < other for one, other in pairwise(firsts))
        self._firsts = firsts if is_good else []
        self._times = list(rows[1::2])

    def time_of(self, offset: int) -> int:
        """When an offset was appended, in ms; -1 where nobody says."""
        slot = bisect_right(self._firsts, offset) - 1
        return self._times[slot] if slot >= 0 else UNKNOWN_MS


class AppendTimeSearch:
    """Questions to the leaders of partitions."""

    def __init__(self, open_fetch: Callable[[TopicPartition], PartitionFetch] | None) -> None:
        """Nothing is asked yet.

        Args:
            open_fetch: Makes what asks a partition's leader for single batches; None where leaders
                can't be asked directly.
        """
        self._open_fetch = open_fetch

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return when the records at these offsets were appended, in ms, where that is told.

        Raises:
            OffsetOutOfRange, UnknownTopic, ClusterFailure: As `PartitionFetch.parts`.
        """
        times: dict[TopicPartition, int] = {}
        for name, offset in offsets.items():
            with self._asking(name) as fetch:
                append_ms = None if fetch is None else self._time_at(fetch, offset)
            if append_ms is not None and append_ms != UNKNOWN_MS:
                times[name] = append_ms
        return times

    def search_append_times(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, Appended]:
        """Return what brokers of ours say of a search by append time; no entry where none does.

        Raises:
            UnknownTopic, ClusterFailure: As `PartitionFetch.first_appended`.
        """
        answers: dict[TopicPartition, Appended] = {}
        for name, mark in marks.items():
            if mark.start >= mark.end:
                answers[name] = Appended(None, 0)  # whoever leads it
                continue
            with self._asking(name) as fetch:
                answer = None if fetch is None else fetch.first_appended(time_ms)
            if answer is not None:
                answers[name] = Appended(*answer)
        return answers

    def first_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record appended at a time or later, where that is told.

        Args:
            marks: Where the partitions begin and end.
            time_ms: The time in ms.

        Returns:
            None for a partition without such a record, an empty one included; no entry where no
            append times are told.

        Raises:
            InvalidRequest: Records before the answer have no known append time.
            OffsetOutOfRange, UnknownTopic, ClusterFailure: As `PartitionFetch.parts`.
        """
        matches: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for name, mark in marks.items():
            with self._asking(name) as fetch:
                if mark.start >= mark.end:
                    matches[name] = None  # whoever leads it
                elif fetch is not None and self._time_at(fetch, mark.start) is not None:
                    matches[name] = self._search(fetch, name, mark, time_ms)
        return matches

    def _search(
        self, fetch: PartitionFetch, name: TopicPartition, mark: Watermarks, time_ms: int
    ) -> OffsetAndTimestamp | None:
        """Binary; a record whose time is unknown counts as earlier, and is looked at then."""
        low, high = mark.start, mark.end
        answer: int | None = None
        while low < high:
            middle = (low + high) // 2
            append_ms = self._time_at(fetch, middle)
            if append_ms is None or append_ms >= time_ms:
                high, answer = middle, append_ms
            else:
                low = middle + 1
        if low > mark.start and self._time_at(fetch, low - 1) == UNKNOWN_MS:
            raise InvalidRequest(
                f"{name}: records before offset {low} have no known append time, and may have been"
                f" appended at {time_ms} or later; use --clock record"
            )
        return None if answer is None or low == mark.end else OffsetAndTimestamp(low, answer, None)

    def _time_at(self, fetch: PartitionFetch, offset: int) -> int | None:
        """When the first record at an offset or behind it was appended; None where none is told."""
        part = next(fetch.parts(offset, offset + 1), None)
        if part is None:
            return None  # nothing is there any more
        rows = part.append_times
        if not rows:
            self._open_fetch = None
            return None
        return AppendRuns(rows).time_of(max(offset, rows[0]))

    @contextmanager
    def _asking(self, name: TopicPartition) -> Iterator[PartitionFetch | None]:
        if self._open_fetch is None:
            yield None
            return
        with closing(self._open_fetch(name)) as fetch:
            fetch.want_append_times()
            yield fetch


def batch_fetch(
    bootstrap: str, client_id: str, clock: Clock, timeout_s: float, name: TopicPartition
) -> PartitionFetch:
    """Return what fetches a partition's batches one by one: a single one always comes whole."""
    from tidelog.record.offset_order import reach_of

    connect = partial(connect_socket, timeout_s=timeout_s)
    seams = FetchSeams(connect=connect, clock=clock, reach=reach_of)
    timeout_ms = max(int(timeout_s * 1000), 1000)
    settings = FetchSettings(
        client_id=client_id, timeout_ms=timeout_ms, max_bytes=1, partition_max_bytes=1
    )
    return PartitionFetch(bootstrap, name, seams, settings=settings)
