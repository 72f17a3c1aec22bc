"""Looks up offsets by time at brokers, on either clock, and plans reads of time ranges.

- Clock of a broker's own search: Kafka's brokers search on the record clock. tidelog's brokers
  search on the clock that the topic setting `tidelog.lookup.clock` names. If the setting names the
  append clock, the brokers can't search on the record clock, so this module reads the records to
  find the match.
- Lookups on the record clock: a broker's search may miss a record. So if a broker reports no match,
  this module compares the log's largest timestamp with the time, and reads the records if one of
  them must match.
- Append clock on brokers other than tidelog's: append times are known if the broker stamped the
  records itself (LogAppendTime). A change of the setting `message.timestamp.type` applies only to
  records that are appended later. So a match is accepted only if the match and the last record
  before it both have the timestamp type LogAppendTime.
- Append clock on tidelog's brokers: the brokers search append times themselves, and add append
  times to the response of a Fetch request if the client requests them. After a response without
  append times, no further requests for append times are sent to the broker that sent this response.
- Plans on the record clock: records of a time range can be anywhere after the first match. So a
  plan extends to the log end, and readers drop the records outside the time range.
- Plans on the append clock: a plan ends before the first record that was appended at the range's
  end time or later.

Not thread-safe.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import pairwise
from typing import Final

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    InvalidRequest,
    OffsetOutOfRange,
    TidelogError,
    unknown_partition,
    with_times,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.record import Record, stamp_of
from tidelog.remote import client as codes
from tidelog.remote.partition_fetch import PartitionFetch
from tidelog.remote.view import ClusterView, RemoteRecord, Watermarks
from tidelog.scan import RequestedRange, Split
from tidelog.scan.split import ensure_two_clocks
from tidelog.timespec import format_ms
from tidelog.types import (
    INT64_MAX,
    UNKNOWN_MS,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TimeSpan,
    TimestampType,
    TopicPartition,
)

# Error codes that brokers and librdkafka return for a missing topic or partition, and also for
# other failures.
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
    """Return the log start and visible end of each partition.

    Raises:
        UnknownTopic: A topic or partition doesn't exist; the message names it.
        InvalidRequest: A name is not a TopicPartition.
        ClusterFailure: A broker can't be reached, or refuses.
    """
    names = [_checked(name) for name in partitions]
    with _naming_missing(cluster, names):
        return cluster.watermarks(names, isolation=isolation)


def largest_timestamps(
    cluster: ClusterView, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the records with the largest timestamps; raises the errors of `named_watermarks`."""
    names = [_checked(name) for name in partitions]
    with _naming_missing(cluster, names):
        return cluster.max_timestamps(names)


@contextmanager
def _naming_missing(cluster: ClusterView, names: Sequence[TopicPartition]) -> Iterator[None]:
    """Raise UnknownTopic instead of a ClusterFailure if one of the partitions doesn't exist."""
    try:
        yield
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
            raise unknown_partition(
                name.topic, len(existing), name.partition, cluster.bootstrap
            ) from reason


def first_at_or_after(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return each log's first record with a timestamp at or after a time.

    Return None for a log without such a record.

    If all matching records in the first segment with matches are below the log start, Kafka's
    brokers return no match, although a later segment may have a match (docs/differences.md). If the
    log's largest timestamp shows that a match exists, the records are read instead.
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
    """Read records, and return the first record with a timestamp at or after a time, or None."""
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
    """Check that brokers, not producers, set the timestamps of matches, and return the matches.

    Args:
        cluster: The cluster.
        marks: Watermarks of the partitions.
        matches: Results of the search; None for no match.
        choice: Option by which the user chose the clock, for errors.

    Raises:
        InvalidRequest: The timestamp type of a topic, of a match, or of the last record before a
            match is not LogAppendTime. In a partition without a match, the last record is checked.
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
                f"{choice}: {topic} has {SETTING}={setting}, so its brokers don't store"
                " append times; give --data with a directory that tidelog wrote, or use --clock"
                " record"
            )


def _refuse_unstamped_record(
    partition: TopicPartition, record: RemoteRecord | None, choice: str
) -> None:
    if record is None or record.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    raise InvalidRequest(
        f"{choice}: the record at {partition} offset {record.offset} has a create time (the topic"
        f" was changed to {TimestampType.LOG_APPEND_TIME.config_name} later); use --clock record"
    )


def last_record_below(
    cluster: ClusterView, partition: TopicPartition, start: int, end: int
) -> RemoteRecord | None:
    """Return the last data record with an offset in [start, end); None if there is none.

    Compaction and transaction markers leave offsets without a data record. So the search goes back
    in growing steps, and reads each range of offsets only once.
    """
    step = 1
    while start < end:
        first = max(end - step, start)
        last = None
        for record in cluster.records(partition, first, end):
            last = record
        if last is not None:
            return last
        end, step = first, 2 * step
    return None


LOOKUP_CLOCK: Final = "tidelog.lookup.clock"
_GRANULARITY: Final = "tidelog.append.time.granularity.ms"

# Error codes for a client that is not authorized to read a topic's settings. After such an error
# the setting is unknown, and brokers are assumed to search the topic on the record clock.
_DENIED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


def searched_by_append(cluster: ClusterView, topics: Iterable[str]) -> set[str]:
    """Return the topics that brokers search by append time; raises ClusterFailure."""
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


def matches_of(
    cluster: ClusterView, times: Mapping[TopicPartition, int], clock: ClockName
) -> dict[TopicPartition, TimeMatch]:
    """See `tidelog.remote.remote_directory.RemoteDirectory.search_times`."""
    if any(time_ms < 0 for time_ms in times.values()):
        raise ValueError("a time to look up must be 0 or more")
    matches: dict[TopicPartition, TimeMatch] = {}
    for time_ms in dict.fromkeys(times.values()):
        marks = named_watermarks(cluster, [name for name in times if times[name] == time_ms])
        if clock is ClockName.APPEND:
            matches |= first_appended(cluster, marks, time_ms)
        else:
            hits = first_on_clock(cluster, marks, time_ms, clock)
            matches |= {name: TimeMatch(hit, 0) for name, hit in hits.items()}
    return {name: matches[name] for name in times}


def first_appended(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    time_ms: int,
    choice: str = "clock='append'",
) -> dict[TopicPartition, TimeMatch]:
    """Return each log's first record that was appended at or after a time.

    Each match also has the number of earlier records without a known append time; None if this
    number is unknown. `choice` is the option by which the user chose the clock, for errors.

    Raises:
        InvalidRequest: The brokers don't know the append times.
        ClusterFailure: A broker can't be reached, or refuses.
    """
    answers = cluster.search_append_times(marks, time_ms)
    rest = {name: mark for name, mark in marks.items() if name not in answers}
    for name, hit in _first_by_stamp(cluster, rest, time_ms, choice).items():
        # The brokers return only the match, not the number of earlier records without a known
        # append time.
        answers[name] = TimeMatch(None if hit is None else hit._replace(without_time=None), None)
    return answers


def append_spans(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks]
) -> dict[TopicPartition, TimeSpan]:
    """Return the append times of the first and last record of each log.

    A time is None if it is unknown, or if the log has no record.
    """
    answers = cluster.search_append_times(marks, 0)
    starts = {name: mark.start for name, mark in marks.items() if mark.start < mark.end}
    first_records = cluster.first_records(starts)
    spans = dict.fromkeys(marks, TimeSpan(None, None))
    for name, start in starts.items():
        first, last = first_records[name], last_record_below(cluster, name, start, marks[name].end)
        if first is None or last is None:
            continue  # the log has only transaction markers
        hit = answers[name].hit if name in answers else None
        if hit is not None and hit.offset >= first.offset:
            first_ms: int | None = hit.timestamp
        elif hit is not None:  # the match is a marker before the first record
            first_ms = cluster.append_times({name: first.offset}).get(name)
        else:
            first_ms = None if name in answers else _stamp(first)
        last_ms = cluster.append_times({name: last.offset}).get(name)
        spans[name] = TimeSpan(first_ms, _stamp(last) if last_ms is None else last_ms)
    return spans


def _stamp(record: RemoteRecord | None) -> int | None:
    """Return a record's LogAppendTime timestamp; None if it has another type."""
    is_stamped = record is not None and record.timestamp_type is TimestampType.LOG_APPEND_TIME
    return record.timestamp if record is not None and is_stamped else None


def without_append_time(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks]
) -> dict[TopicPartition, int | None]:
    """Return how many records of each log have no known append time; None if this is unknown."""
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
    """Return each log's first record at or after a time on a clock; None if there is none.

    Args:
        cluster: The cluster.
        marks: Watermarks of the partitions.
        time_ms: The time in ms, 0 or more.
        clock: The clock.
        choice: Option by which the user chose the append clock, for errors.

    Raises:
        InvalidRequest: The append clock is requested, and append times are unknown.
        ClusterFailure: A broker can't be reached, or refuses.
    """
    if clock is ClockName.APPEND:
        answers = first_known_appended(cluster, marks, time_ms)
        rest = {name: mark for name, mark in marks.items() if name not in answers}
        return answers | _first_by_stamp(cluster, rest, time_ms, choice)
    ours, theirs = _by_lookup_clock(cluster, marks)
    matches = first_at_or_after(cluster, theirs, time_ms) if theirs else {}
    return matches | {n: first_by_reading(cluster, n, m, time_ms) for n, m in ours.items()}


def first_known_appended(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first record appended at or after a time, from brokers that know append times.

    Args:
        cluster: The cluster.
        marks: Watermarks of the partitions.
        time_ms: The time in ms, 0 or more.

    Returns:
        The record, None if there is none; no entry for a partition whose broker returns no append
        times.

    Raises:
        InvalidRequest: The last record before the match has no known append time, and may itself be
            the first match. Also raised if no record matches, and the log's last visible record has
            no known append time.
        OffsetOutOfRange, UnknownTopic, ClusterFailure: See `PartitionFetch.parts`.
    """
    matches: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for name, (hit, without_time) in cluster.search_append_times(marks, time_ms).items():
        mark = marks[name]
        # A match at or above the end offset was appended after the watermarks were read, so it is
        # ignored.
        matches[name] = None if hit is None or hit.offset >= mark.end else hit
        if without_time:
            end = mark.end if hit is None else min(hit.offset, mark.end)
            before = last_record_below(cluster, name, mark.start, end)
            if before is not None and not cluster.append_times({name: before.offset}):
                error = InvalidRequest(
                    f"{name}: records before offset {end} have no known append time, and may have"
                    f" been appended at {format_ms(time_ms)} or later; use --clock record"
                )
                raise with_times(error, time_ms)
    return matches


def _first_by_stamp(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    time_ms: int,
    choice: str,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Search partitions whose leaders return no append times, by the brokers' own search.

    If a topic's lookup clock is the append clock, brokers search by append time. Otherwise they
    search by timestamp, so a match must be a LogAppendTime record.
    """
    ours, theirs = _by_lookup_clock(cluster, marks)
    matches: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    if theirs:
        matches = first_at_or_after(cluster, theirs, time_ms)
        matches = first_stamped(cluster, theirs, matches, choice=choice)
    if ours:
        matches |= cluster.offsets_for_times(dict.fromkeys(ours, time_ms))
    return matches


def _by_lookup_clock(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks]
) -> tuple[dict[TopicPartition, Watermarks], dict[TopicPartition, Watermarks]]:
    """Return the partitions whose brokers search by append time, and all other partitions."""
    by_append = searched_by_append(cluster, {name.topic for name in marks})
    ours = {name: mark for name, mark in marks.items() if name.topic in by_append}
    return ours, {name: mark for name, mark in marks.items() if name not in ours}


# Error codes if a broker can't search for the largest timestamp, such as Kafka's brokers before
# 3.0. -165 is librdkafka's own code for an unsupported feature.
_UNSUPPORTED: Final = frozenset({ErrorCode.UNSUPPORTED_VERSION, -165})


def plan_remote(
    cluster: ClusterView,
    names: Sequence[TopicPartition],
    requested: RequestedRange,
    *,
    clock: ClockName,
    isolation: IsolationLevel,
) -> list[Split]:
    """Plan one split for each partition that may have matching records, in the order of `names`.

    Args:
        cluster: The cluster.
        names: The partitions.
        requested: Range of times, and range of offsets. Offsets outside the logs are left out.
        clock: Clock of the time range.
        isolation: READ_COMMITTED ends at the last stable offset.

    Raises:
        InvalidRequest: The time range ends before it starts, or it is on the append clock and
            append times are unknown.
        ClusterFailure: A broker can't be reached, or refuses.
    """
    ensure_two_clocks(requested, clock)
    times = requested.times
    if times is not None and times[0] > times[1]:
        raise InvalidRequest(f"empty time range: end {times[1]} ms is before start {times[0]} ms")
    marks = cluster.watermarks(names, isolation=isolation)
    spans = {name: (mark.start, max(mark.end, mark.start)) for name, mark in marks.items()}
    stored_times: dict[TopicPartition, tuple[int, int]] = {}
    if times is not None and clock is ClockName.APPEND:
        spans, stored_times = append_time_ranges(cluster, marks, times)
    elif times is not None:
        spans = _by_create_time(cluster, marks, times)
    first = requested.start_offset or 0
    last = INT64_MAX if requested.end_offset is None else requested.end_offset
    spans = {name: (max(start, first), min(end, last)) for name, (start, end) in spans.items()}
    return [
        Split(
            topic=name.topic,
            partition=name.partition,
            start_offset=spans[name][0],
            end_offset=spans[name][1],
            directory="",
            clock=clock,
            # Append times never decrease, so on the append clock the offsets already limit the read
            # to the time range. The split keeps its time range nevertheless if the broker returns
            # append times, because readers must leave out records between these offsets that have
            # no known append time.
            time_range=times if clock is ClockName.RECORD else stored_times.get(name),
            timestamps=requested.timestamps,
            isolation=isolation,
        )
        for name in names
        if spans[name][0] < spans[name][1]
    ]


def _by_create_time(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], times: tuple[int, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return offsets [start, end) of each partition, from the first match of the start time on.

    If a broker can't search by record timestamp, the offsets of its partitions begin at the log
    start. If the time range is empty, all ranges of offsets are empty.
    """
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


def append_time_ranges(
    cluster: ClusterView,
    marks: Mapping[TopicPartition, Watermarks],
    times: tuple[int, int],
    *,
    choice: str = "clock='append'",
) -> tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, tuple[int, int]]]:
    """Return offsets for a range of append times, and the range of the stored append times.

    Stored append times may be rounded down to a multiple of tidelog.append.time.granularity.ms. So,
    as in a directory, the range of a partition's stored times begins earlier, by this setting minus
    1 ms. The partition's offsets start at the first record whose stored time is at or after the
    start of this range (inclusive), and end at the first record whose stored time is at or after
    the end time (exclusive). The second mapping contains the partitions whose brokers return append
    times. The timestamps of LogAppendTime records are not rounded, so searches by timestamp are
    exact.

    Args:
        cluster: The cluster.
        marks: Watermarks of the partitions.
        times: Range of append times in ms, [a, b).
        choice: Option by which the user chose the clock, for errors.

    Raises:
        InvalidRequest: The brokers don't know the append times.
        ClusterFailure: A broker can't be reached, or refuses.
    """
    if times[0] > 0:
        first = first_appended(cluster, marks, times[0], choice)
    else:
        first = cluster.search_append_times(marks, 0)
    known = {name for name, match in first.items() if match.without_time is not None}
    rest = {name: mark for name, mark in marks.items() if name not in known}
    exact = _by_lookup_clock(cluster, rest)[1] if rest else {}
    steps = {topic: _append_slack_ms(cluster, topic) for topic in {name.topic for name in marks}}
    slacks = {name: 0 if name in exact else steps[name.topic] for name in marks}
    behind: dict[TopicPartition, TimeMatch] = {}
    for slack_ms in set(slacks.values()) if times[1] < INT64_MAX else ():
        some = {name: mark for name, mark in marks.items() if slacks[name] == slack_ms}
        # Brokers subtract the slack from the time of a search, so the slack is added here.
        end_ms = min(max(times[1] + slack_ms, 0), INT64_MAX)
        behind |= first_appended(cluster, some, end_ms, choice)
    spans = {}
    for name, mark in marks.items():
        start = _offset_of(first[name], mark) if times[0] > 0 else mark.start
        end = _offset_of(behind[name], mark) if name in behind else mark.end
        spans[name] = (max(start, mark.start), end)
    stored_times = {
        name: (max(times[0] - slacks[name], min(times[0], 0)), times[1]) for name in known
    }
    return spans, stored_times


def _append_slack_ms(cluster: ClusterView, topic: str) -> int:
    """Return by how many ms at most an append time exceeds its stored (rounded) value.

    If the client may not read the topic's settings, append times count as exact. Raises
    ClusterFailure.
    """
    try:
        step_ms = cluster.topic_settings(topic).get(_GRANULARITY)
    except ClusterFailure as error:
        if error.error_code not in _DENIED:
            raise
        return 0
    return max(int(step_ms) - 1, 0) if step_ms is not None and step_ms.isdigit() else 0


def _offset_of(answer: TimeMatch, mark: Watermarks) -> int:
    return mark.end if answer.hit is None else min(answer.hit.offset, mark.end)


class AppendRuns:
    """Append times in a response, one for each run of offsets with equal append time.

    Args:
        rows: Flat sequence with two numbers for each run: its first offset, and its append time in
            ms (-1 for unknown). If the runs' first offsets don't increase, all append times count
            as unknown.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        firsts = list(rows[0::2])
        is_good = len(rows) % 2 == 0 and all(one < other for one, other in pairwise(firsts))
        self._firsts = firsts if is_good else []
        self._times = list(rows[1::2])

    def time_of(self, offset: int) -> int:
        """Return the append time in ms of the record at an offset, -1 if unknown."""
        slot = bisect_right(self._firsts, offset) - 1
        return self._times[slot] if slot >= 0 else UNKNOWN_MS


# Maximum number of partitions with open connections. Each partition has a connection to its leader,
# and connections to bootstrap servers. If more partitions have connections, the connections of the
# least recently used partition are closed.
_OPEN_MAX: Final = 32


@dataclass(slots=True)
class _PartitionTimes:
    """Append times of a partition's offsets [start, end), from the partition's last response."""

    fetch: PartitionFetch
    start: int = 0
    end: int = 0
    runs: AppendRuns = field(default_factory=lambda: AppendRuns(()))
    paused_until_ms: int = 0


class Leaders:
    """Leaders of partitions, and which of them return no append times.

    As long as every leader returns append times, no leaders are looked up. Each topic's leaders are
    looked up at most once.
    """

    def __init__(self, look_up: Callable[[str], Mapping[int, int]], unsupported: set[int]) -> None:
        """Store the arguments; sends no request.

        Args:
            look_up: Function that returns the leader's id for each partition of a topic.
            unsupported: Ids of leaders that return no append times; `note_unsupported` adds to this
                set.
        """
        self._look_up = look_up
        self._unsupported = unsupported
        self._by_topic: dict[str, Mapping[int, int]] = {}

    def may_know(self, name: TopicPartition) -> bool:
        """Return whether a partition's leader may return append times."""
        if not self._unsupported:
            return True
        leaders = self._by_topic.get(name.topic)
        if leaders is None:
            leaders = self._by_topic[name.topic] = self._look_up(name.topic)
        return leaders.get(name.partition) not in self._unsupported

    def note_unsupported(self, leader_id: int | None) -> None:
        """Add a leader to the leaders that return no append times."""
        assert leader_id is not None, "a leader has responded"
        self._unsupported.add(leader_id)


class AppendTimeLookup:
    """Lookup of append times at the partitions' leaders; only tidelog's brokers return them.

    The times in the last response of each partition are cached. After a leader's response without
    append times, no further requests are sent to this leader, for any of its partitions.

    Life cycle: lookups, then close. Not thread-safe.
    """

    def __init__(
        self,
        open_fetch: Callable[[TopicPartition], PartitionFetch] | None,
        clock: Clock,
        leaders: "Leaders",
        *,
        rest_ms: int,
    ) -> None:
        """Create a lookup; connects to no broker yet.

        Args:
            open_fetch: Function that opens a partition's fetch; None if fetches need librdkafka.
            clock: Clock for pauses after failures.
            leaders: Leaders of partitions, and the leaders that return no append times.
            rest_ms: Pause in ms after a failed request for a partition. During the pause, no
                request is sent for this partition, and its append times count as unknown.
        """
        self._open_fetch = open_fetch
        self._clock = clock
        self._leaders = leaders
        self._rest_ms = rest_ms
        self._partitions: dict[TopicPartition, _PartitionTimes] = {}

    def time_of(self, name: TopicPartition, record: Record) -> int | None:
        """Return a record's append time in ms, or its LogAppendTime timestamp; None if unknown.

        If the lookup fails, the append time counts as unknown.
        """
        try:
            append_ms = self.time_at(name, record.offset)
        except TidelogError:
            append_ms = UNKNOWN_MS
        return stamp_of(record) if append_ms == UNKNOWN_MS else append_ms

    def time_at(self, name: TopicPartition, offset: int) -> int:
        """Return the append time in ms of the record at an offset, -1 if unknown.

        Raises:
            OffsetOutOfRange, UnknownTopic, ClusterFailure: See `PartitionFetch.parts`.
        """
        if self._open_fetch is None or not self._leaders.may_know(name):
            return UNKNOWN_MS
        cached = self._of(name, self._open_fetch)
        if not cached.start <= offset < cached.end:
            if self._clock.monotonic_ms() < cached.paused_until_ms:
                return UNKNOWN_MS
            self._fetch(name, cached, offset)
        return cached.runs.time_of(offset) if cached.start <= offset < cached.end else UNKNOWN_MS

    def first_appended(self, name: TopicPartition, time_ms: int) -> TimeMatch | None:
        """Return the first record appended at or after a time; None if the broker can't search.

        Raises:
            UnknownTopic, ClusterFailure: See `PartitionFetch.first_appended`.
        """
        if self._open_fetch is None or not self._leaders.may_know(name):
            return None
        answer = self._of(name, self._open_fetch).fetch.first_appended(time_ms)
        if answer is None:
            self._skip_leader(name)
        return answer

    def _of(
        self, name: TopicPartition, open_fetch: Callable[[TopicPartition], PartitionFetch]
    ) -> _PartitionTimes:
        """Return a partition's cached times, and mark the partition as the most recently used."""
        cached = self._partitions.pop(name, None)
        if cached is None:
            cached = _PartitionTimes(open_fetch(name))
            cached.fetch.request_append_times()
        self._partitions[name] = cached
        if len(self._partitions) > _OPEN_MAX:
            self._partitions.pop(next(iter(self._partitions))).fetch.close()
        return cached

    def _fetch(self, name: TopicPartition, cached: _PartitionTimes, offset: int) -> None:
        """Fetch the batches at an offset, and cache their append times."""
        try:
            part = next(cached.fetch.parts(offset, offset + 1), None)
        except OffsetOutOfRange:
            # the record at the offset was deleted, but the leader can return times of later offsets
            raise
        except TidelogError:
            cached.fetch.close()
            cached.paused_until_ms = self._clock.monotonic_ms() + self._rest_ms
            raise
        if part is None:
            return
        cached.start, cached.end = part.offset, part.next_offset
        cached.runs = AppendRuns(part.append_times)
        if not part.append_times:
            self._skip_leader(name)

    def _skip_leader(self, name: TopicPartition) -> None:
        """Send no further requests to the leader of a partition."""
        fetch = self._partitions.pop(name).fetch
        self._leaders.note_unsupported(fetch.leader_id)
        fetch.close()

    def close(self) -> None:
        """Close all connections."""
        for cached in self._partitions.values():
            cached.fetch.close()
        self._partitions.clear()
