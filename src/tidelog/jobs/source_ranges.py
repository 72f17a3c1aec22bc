"""Plan of a job's reads: offset ranges that contain a time range, and counts of expected records.

`replay` and `mirror` plan their offsets once, when they start. These offsets contain all records of
the time range, and may contain other records. The read filters out the other records by their times
on the range's clock, so the result is exact for any order of records. The plan for a directory
skips offsets that zone maps and indexes exclude. Brokers can only look up the first record at or
after a time. So the plan for a topic at brokers has all offsets from the first record at or after
the start time.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import Spans, joined, thinned, total
from tidelog.jobs.place_topics import config_of_broker, open_cluster
from tidelog.jobs.target_check import Between, ExpectedWrite
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.time_lookup import first_at_or_after, searched_by_append
from tidelog.remote.view import ClusterView, Count, Watermarks
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.spark.places import Place
from tidelog.types import ClockName, IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    from tidelog.config import TopicConfig
    from tidelog.scan import ScanPlan


Times: TypeAlias = tuple[int | None, int | None]

# Maximum number of ranges of offsets (spans) that are read from a partition. The number is small,
# because each span takes at least one Spark job.
SPANS_MAX: Final = 16

# Maximum number of bytes of log that may be read for one count. If a count needs more bytes, the
# count is unknown.
COUNT_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Request for the records of a replay.

    Attributes:
        place: Directory or cluster with the topic.
        topic: Name of the topic.
        times: Time range [start, end) in ms; None for an open side.
        clock: Clock of the time range.
        isolation: READ_COMMITTED reads up to the last stable offset, without records of aborted
            transactions.
    """

    place: Place
    topic: str
    times: Times = (None, None)
    clock: ClockName = ClockName.RECORD
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED

    def options(self) -> dict[str, str]:
        """Return the options of a read, without offsets and columns."""
        return self.place.options() | {"isolation": self.isolation.name.lower()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Properties of a source topic, for a request.

    Attributes:
        partitions: Number of the topic's partitions.
        spans: Offsets that contain all records of the time range.
        config: Settings that apply to the topic.
        size_bytes: Number of bytes of log at these offsets; None if unknown.
        between: Function that returns how many of the expected records have a create time in a
            range; see `Between`.
    """

    partitions: int
    spans: Spans
    config: "TopicConfig"
    size_bytes: int | None
    between: Between

    def load(self, *, keeps_partitions: bool) -> ExpectedWrite:
        """Return the known properties of the expected records, for checks of a target."""
        return ExpectedWrite(
            records=Count(total(self.spans), is_exact=False),
            between=self.between,
            # The number of null keys is not known before the records are read.
            null_keys=None,
            size_bytes=self.size_bytes,
            batch_bytes_max=self.config.max_message_bytes,
            partitions=self.partitions if keeps_partitions else None,
        )


def find(question: Question, *, env: Env | None = None) -> SourceFacts:
    """Return offsets with all records of a request's time range, and the source's properties.

    Args:
        question: The request.
        env: Files and clock of local directories; None for the machine's files and clock.

    Raises:
        UnknownTopic: The topic does not exist.
        InvalidRequest: The directory does not exist; the time range is invalid; or the clock is
            `append`, and the topic is at brokers and doesn't have LogAppendTime.
        ClusterFailure: The brokers can't be reached, or refuse a request.
    """
    if question.place.is_broker:
        with open_cluster(question.place) as cluster:
            return _of_cluster(cluster, question)
    from tidelog.objects.object_files import env_for

    return _of_directory(question, env_for(question.place.address, env, question.place.store))


def load_left(question: Question, spans: Spans, *, env: Env | None = None) -> ExpectedWrite:
    """Return known properties of the records in `spans`, which a restart has yet to write."""
    from tidelog.objects.object_files import env_for

    if question.place.is_broker:
        between = _counter_of_cluster(question, spans)
    else:
        place = question.place
        between = _counter_of_directory(question, spans, env_for(place.address, env, place.store))
    return ExpectedWrite(records=Count(total(spans), is_exact=False), between=between)


# -- directories ---------------------------------------------------------------------------------


def _of_directory(question: Question, env: Env) -> SourceFacts:
    from tidelog import scan
    from tidelog.storage.directory.log_dir import LogDir

    path = question.place.address
    with LogDir.open(path, env=env) as log_dir:
        info = log_dir.topic(question.topic)
        times = scan.RequestedRange(start_ms=question.times[0], end_ms=question.times[1])
        planned = scan.plan(
            log_dir,
            question.topic,
            requested_range=times,
            clock=question.clock,
            isolation=question.isolation,
        )
    spans = _spans(planned)
    return SourceFacts(
        partitions=info.partitions,
        spans=thinned(spans, SPANS_MAX),
        config=info.config,
        size_bytes=planned.scan_bytes,
        between=_counter_of_directory(question, spans, env),
    )


def _spans(planned: "ScanPlan") -> Spans:
    """Return the offsets that a plan reads."""
    return joined(
        OffsetRange(split.topic_partition, piece.start_offset, piece.end_offset)
        for split in planned.splits
        for piece in split.pieces
        if piece.size_bytes
    )


def _counter_of_directory(question: Question, spans: Spans, env: Env) -> Between:
    """Return a function that counts records by create time, mostly from zone maps."""
    hulls = thinned(spans, 1)

    def between(start_ms: int | None, end_ms: int | None) -> Count | None:
        times = (start_ms, end_ms)
        if question.clock is ClockName.RECORD:
            times = _both(question.times, times)
        if times[0] is not None and times[1] is not None and times[0] >= times[1]:
            return Count(0, is_exact=True)
        return _count(question, hulls, times, env)

    return between


def _both(one: Times, other: Times) -> Times:
    """Return the intersection of two time ranges."""
    starts = [start for start in (one[0], other[0]) if start is not None]
    ends = [end for end in (one[1], other[1]) if end is not None]
    return max(starts, default=None), min(ends, default=None)


def _count(question: Question, hulls: Spans, times: Times, env: Env) -> Count | None:
    """Count the records of `hulls` whose create times are in a range.

    A hull is the range from a partition's first span to its last span. A partition has one hull.

    Returns None if more than COUNT_BYTES_MAX bytes would have to be read.
    """
    from tidelog import scan
    from tidelog.scan.plan import plan_count

    records = read_bytes = 0
    for hull in hulls:
        selection = scan.RequestedRange(
            start_offset=hull.start, end_offset=hull.end, start_ms=times[0], end_ms=times[1]
        )
        path, isolation = question.place.address, question.isolation
        plans = plan_count(
            path,
            hull.partition,
            selection,
            clock=ClockName.RECORD,
            isolation=isolation,
            zone_cache=None,
            env=env,
        )
        read_bytes += sum(planned.scan_bytes for planned in plans.values())
        if read_bytes > COUNT_BYTES_MAX:
            return None
        counted = scan.count(
            path, hull.partition, requested_range=selection, isolation=isolation, env=env
        )
        records += counted.records
    # If the request has a range of append times, the count may include records outside this range,
    # because a hull contains whole batches, and also the gaps between spans.
    is_exact = question.clock is ClockName.RECORD or question.times == (None, None)
    return Count(records, is_exact)


# -- brokers -------------------------------------------------------------------------------------


def _of_cluster(cluster: ClusterView, question: Question) -> SourceFacts:
    names = cluster.partitions(question.topic)
    config = config_of_broker(cluster.topic_settings(question.topic))
    _check_clock(question, config)
    marks = cluster.watermarks(names, isolation=question.isolation)
    ends = {name: marks[name].end for name in names}
    starts = {name: marks[name].start for name in names}
    if question.times[0] is not None:
        starts = _first_offsets(cluster, marks, question.times[0])
    spans = joined(OffsetRange(name, starts[name], ends[name]) for name in names)
    return SourceFacts(
        partitions=len(names),
        spans=spans,
        config=config,
        size_bytes=None,
        between=_counter_of_cluster(question, spans),
    )


def _check_clock(question: Question, config: "TopicConfig") -> None:
    stamped = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if question.clock is ClockName.APPEND and not stamped:
        raise InvalidRequest(
            f"{question.place}: from brokers, a range of append times needs a topic with"
            " message.timestamp.type=LogAppendTime; use the record clock, or read the broker's"
            " own directory"
        )


def _first_offsets(
    cluster: ClusterView, marks: Mapping[TopicPartition, Watermarks], time_ms: int
) -> dict[TopicPartition, int]:
    """Return the offset of each partition's first record at or after a time.

    If a partition has no such record, the partition's end offset is returned. If the topic's
    brokers search by append time, the log start offset is returned, because the replay filters by
    record timestamps, which such a search ignores.
    """
    by_append = searched_by_append(cluster, {name.topic for name in marks})
    searched = {name: mark for name, mark in marks.items() if name.topic not in by_append}
    hits = first_at_or_after(cluster, searched, max(time_ms, 0)) if searched else {}
    starts = {name: mark.start for name, mark in marks.items()}
    for name, hit in hits.items():
        starts[name] = marks[name].end if hit is None else min(hit.offset, marks[name].end)
    return starts


def _counter_of_cluster(question: Question, spans: Spans) -> Between:
    """Return a function that estimates numbers of records from the brokers' searches by time.

    The returned function returns None if a search by create time is necessary, but the brokers
    search the topic by append time.
    """

    def between(start_ms: int | None, end_ms: int | None) -> Count | None:
        times = _both(question.times, (start_ms, end_ms))
        starts = {span.partition: span.start for span in spans}
        ends = {span.partition: span.end for span in spans}
        with open_cluster(question.place) as cluster:
            if times != (None, None) and searched_by_append(cluster, [question.topic]):
                return None
            marks = cluster.watermarks(list(ends))
            if times[0] is not None:
                starts = _first_offsets(cluster, marks, times[0])
            if times[1] is not None:
                ends = _first_offsets(cluster, marks, times[1])
        number = sum(_inside(span, starts, ends) for span in spans)
        # If no span is cut at the end time, the number is an upper bound. If a span is cut, the
        # number may be too small: the span is cut at the first record at or after the end time, and
        # later records can have an earlier time.
        is_bound = all(ends[span.partition] >= span.end for span in spans)
        return Count(number, is_exact=False, is_bound=is_bound)

    return between


def _inside(
    span: OffsetRange, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> int:
    start, end = max(span.start, starts[span.partition]), min(span.end, ends[span.partition])
    return max(end - start, 0)
