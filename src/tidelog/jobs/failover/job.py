"""Plan of a failover: positions on A, margin, mapping of partitions, and starts on B.

A failover moves a consumer group from cluster A to cluster B. A start is the offset at which the
group continues in a partition of B. This module makes the plan (`plan_failover`), takes starts from
the offset map of the mirror that copies A to B, and commits a plan (`execute`). `rules` has the
proof that starts found by time miss no record. `measure` measures latencies, and `verify` checks a
plan by reading records.

The mirror has stored the offsets that A's records have on B (`offset_map`). With this map, the
start on B is found without measuring a latency: for a position on A, the map gives an offset on B
before which there is no copy of an unconsumed record. But the map can't be used for a partition if
the map describes another topic or cluster, contains offsets after the end of a log, or begins after
the group's position. The start in such a partition is searched by time instead, and the plan
contains the reason.

Invariants: the group's positions on A are read before anything else. If the group consumes more
records on A after this, it consumes these records again on B, but it misses no record. Only
`execute` changes anything on a cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias

from tidelog.amounts import plural, verb
from tidelog.env import Clock
from tidelog.errors import GroupActive, InvalidRequest, UnknownGroup
from tidelog.jobs.failover.measure import (
    Latencies,
    MeasuredCluster,
    Sampling,
    TooFewRecords,
    measure,
)
from tidelog.jobs.failover.rules import (
    Margin,
    PartitionMapping,
    Reference,
    Start,
    StartKind,
    TopicMapping,
    deleted_note,
    find_starts,
    is_searched,
    map_partitions,
    read_references,
    search_time,
    sources_of,
)
from tidelog.jobs.offset_map import (
    OffsetMap,
    OutsideMap,
    Partitioning,
    SourcePartition,
    TargetOffset,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.view import ClusterView, Committed, Watermarks
from tidelog.types import NO_TIMESTAMP, ClockName, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ByMap:
    """The starts that an offset map gives.

    Attributes:
        starts: Start by partition of B; only for partitions for which the map has a start.
        refusals: For each other partition of B, the reason why the map can't be used.
    """

    starts: Mapping[TopicPartition, Start] = field(default_factory=dict)
    refusals: Mapping[TopicPartition, str] = field(default_factory=dict)


def topics_on_b(offset_map: OffsetMap | None, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return a mapping from each topic on B to its source topics on A.

    If the map has exactly one target topic for a topic on A, this target topic is the topic on B.
    Otherwise, the topic on B has the same name as the topic on A.

    Args:
        offset_map: The map; None if there is no map.
        topics: Topics on A.
    """
    origins: dict[str, tuple[str, ...]] = {}
    for topic in topics:
        names = {s.target for s in offset_map.sources if s.topic == topic} if offset_map else set()
        target = names.pop() if len(names) == 1 else topic
        origins[target] = (*origins.get(target, ()), topic)
    return origins


def starts_by_map(
    offset_map: OffsetMap,
    a: ClusterView | None,
    b: ClusterView,
    origins: Mapping[str, tuple[str, ...]],
    positions: Mapping[TopicPartition, Committed | None] | int,
    margin: Margin,
) -> ByMap:
    """Return the starts on B that an offset map has for positions on A.

    Args:
        offset_map: The map.
        a: Cluster that the group moves from; None if it is unreachable.
        b: Cluster that the group moves to.
        origins: Source topics on A, by topic on B.
        positions: The group's positions by partition of A; or a time in ms, if the group is assumed
            to have consumed everything that A appended before this time.
        margin: Used only if `positions` is a time. The margin's skew is subtracted from this time,
            because the clocks of A and the mirror may differ by the skew.

    Raises:
        ClusterFailure: A cluster can't be reached.
    """
    starts: dict[TopicPartition, Start] = {}
    refusals: dict[TopicPartition, str] = {}
    for target, topics in origins.items():
        marks = b.watermarks(b.partitions(target))
        try:
            check_target(offset_map, b, target)
            numbers = {topic: _source(offset_map, a, topic) for topic in topics}
        except OutsideMap as reason:
            refusals |= dict.fromkeys(marks, str(reason))
            continue
        if isinstance(positions, int):
            sources = _by_time(offset_map, numbers, positions - margin.skew_ms)
        else:
            sources = _by_positions(offset_map, a, numbers, positions)
        for partition, mark in marks.items():
            try:
                check_end(offset_map, partition, mark)
                starts[partition] = _start(
                    offset_map, partition, _sources_of(offset_map, partition, sources), mark
                )
            except OutsideMap as reason:
                refusals[partition] = str(reason)
    return ByMap(starts=starts, refusals=refusals)


def check_target(offset_map: OffsetMap, b: ClusterView, topic: str) -> None:
    """Raise OutsideMap if the map does not describe this topic of B."""
    if topic not in offset_map.partition_counts:
        raise OutsideMap(f"the map has no target topic {topic}")
    mapped_id, current_id = offset_map.target_ids.get(topic), b.topic_id(topic)
    if mapped_id and current_id and mapped_id != current_id:
        raise OutsideMap(
            f"the map is of another topic {topic} on B: id {mapped_id}, not {current_id}"
        )


def check_end(offset_map: OffsetMap, partition: TopicPartition, marks: Watermarks) -> None:
    """Raise OutsideMap if the map's end for a partition of B is missing or after B's log end."""
    end = offset_map.ends.get(partition)
    if end is None:
        raise OutsideMap(f"the map has no entry for {partition} on B")
    if marks.end < end:
        raise OutsideMap(
            f"{partition} ends at offset {marks.end} on B, but the mirror has written up to offset"
            f" {end}"
        )


def _source(offset_map: OffsetMap, a: ClusterView | None, topic: str) -> int:
    if a is None:
        return offset_map.source_number(topic)
    return offset_map.source_number(topic, a.topic_id(topic), a.bootstrap)


def _by_time(
    offset_map: OffsetMap, numbers: Mapping[str, int], time_ms: int
) -> "list[_SourceStarts]":
    """Return, by source topic, the starts on B of the records that A appended since a time."""
    reason = (
        "by the mirror's map, the records that A appended since the time of --at are at this offset"
        " or later"
    )
    return [
        _SourceStarts(None, offset_map.starts_by_arrival(number, time_ms), reason)
        for number in numbers.values()
    ]


def _by_positions(
    offset_map: OffsetMap,
    a: ClusterView | None,
    numbers: Mapping[str, int],
    positions: Mapping[TopicPartition, Committed | None],
) -> "list[_SourceStarts]":
    """Return the starts on B for the unconsumed records of each partition on A."""
    sources = [p for p in positions if p.topic in numbers]
    marks = {} if a is None else a.watermarks(sources)
    begins = {} if a is None else _begins_without_gap(offset_map, a, numbers, positions, marks)
    source_starts = []
    for source in sources:
        position, mark = positions[source], marks.get(source)
        if position is None and mark is not None and mark.end == 0:
            continue  # the partition has no records
        number = SourcePartition(numbers[source.topic], source.partition)
        try:
            _check_source(offset_map, number, source, position, mark)
            assert position is not None
            offset = begins.get(source, position.offset)
            at = f"offset {offset} of {source}"
            starts = offset_map.starts(number, offset)
            source_starts.append(_SourceStarts(source, starts, at))
        except OutsideMap as reason:
            source_starts.append(_SourceStarts(source, None, str(reason)))
    return source_starts


def _begins_without_gap(
    offset_map: OffsetMap,
    a: ClusterView,
    numbers: Mapping[str, int],
    positions: Mapping[TopicPartition, Committed | None],
    marks: Mapping[TopicPartition, Watermarks],
) -> dict[TopicPartition, int]:
    """Return first offsets of the mirror that can replace the group's positions.

    The result has a partition if its position is before the mirror's first offset and no record is
    between the two. For example, after a group has read a transaction, its position can be the
    offset of the transaction's marker, but a mirror that starts at the log end begins after the
    marker.
    """
    begins: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, int] = {}
    for source, position in positions.items():
        if source.topic not in numbers or position is None:
            continue
        copied = offset_map.copied.get(SourcePartition(numbers[source.topic], source.partition))
        mark = marks[source]
        # Offsets below the log start may have had records.
        if copied is not None and mark.start <= position.offset < copied.start <= mark.end:
            begins[source], offsets[source] = copied.start, position.offset
    records = a.first_records(offsets) if offsets else {}
    return {
        source: begin
        for source, begin in begins.items()
        if (record := records[source]) is None or record.offset >= begin
    }


def _check_source(
    offset_map: OffsetMap,
    number: SourcePartition,
    source: TopicPartition,
    position: Committed | None,
    mark: Watermarks | None,
) -> None:
    """Raise OutsideMap if the map can't be used for a position.

    There are three cases: the group has no position in the partition; A's log ends before the
    position; or A's log ends before the offset up to which the mirror has read.
    """
    if position is None:
        raise OutsideMap(f"the group has committed nothing for {source} on A")
    if mark is None:
        return
    if position.offset > mark.end:
        raise OutsideMap(
            f"the committed offset {position.offset} is above A's log end offset {mark.end}"
        )
    copied = offset_map.copied.get(number)
    if copied is not None and copied.end > mark.end:
        raise OutsideMap(
            f"{source} ends at offset {mark.end} on A, but the mirror has read up to offset"
            f" {copied.end}"
        )


@dataclass(frozen=True, slots=True)
class _SourceStarts:
    """Starts on B for the unconsumed records of one source on A.

    Attributes:
        source: Partition of A; None for all partitions of a topic.
        starts: Start by partition of B; None if the map has no starts for the source.
        reason: If `starts` is None, the reason why the map has no starts. Otherwise, if `source` is
            None, the reason that the plan gives for a start. Otherwise the offset in `source` from
            which the group continues, such as `offset 5 of orders-0`.
    """

    source: TopicPartition | None
    starts: Mapping[TopicPartition, TargetOffset] | None
    reason: str


def _sources_of(
    offset_map: OffsetMap, partition: TopicPartition, sources: Iterable[_SourceStarts]
) -> list[_SourceStarts]:
    """Return the sources whose copied records may be in a partition of B."""
    if offset_map.partitioning is not Partitioning.KEPT:
        return list(sources)
    number = partition.partition
    return [s for s in sources if s.source is None or s.source.partition == number]


def _start(
    offset_map: OffsetMap,
    partition: TopicPartition,
    sources: Iterable[_SourceStarts],
    marks: Watermarks,
) -> Start:
    """Return the smallest start of the sources; raises OutsideMap if a source has none."""
    end = TargetOffset(offset_map.ends[partition], is_exact=True)
    best, reason = end, "the mirror has copied no unconsumed record to this partition"
    for source in sources:
        if source.starts is None:
            raise OutsideMap(source.reason)
        start = source.starts[partition]
        if start.offset < best.offset:
            best, reason = start, _map_reason(source, start)
    offset = max(best.offset, marks.start)
    return Start(
        partition=partition,
        offset=offset,
        time_ms=None if best.create_ms == NO_TIMESTAMP else best.create_ms,
        search_ms=None,
        kind=StartKind.MAP,
        reason=reason + deleted_note(marks, offset),
    )


def _map_reason(source: _SourceStarts, start: TargetOffset) -> str:
    if source.source is None:
        return source.reason
    if start.is_exact:
        return f"by the mirror's map, {source.reason} on A was copied to this offset"
    return (
        f"the mirror's map has no exact offset for {source.reason} on A: the records copied"
        " together with it begin at this offset"
    )


Positions: TypeAlias = "dict[TopicPartition, Committed | None]"

# Source topics on A, by topic on B.
Origins: TypeAlias = Mapping[str, tuple[str, ...]]

_AS_STATED: Final = "as stated with --at"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverRequest:
    """Request for a failover.

    Attributes:
        group: The consumer group.
        topics: Topics on A; if empty, all topics for which the group has commits on A.
        at_ms: Time in ms. The plan assumes that the group has consumed everything that A appended
            before this time. None if the group's commits on A are used.
        latency_ms: L in ms (see `rules`). If `latency_ms` is None, and a partition is searched by
            time, L is measured on both clusters.
        skew_ms: Lower bound of S in ms (see `rules`); a larger measured skew replaces this bound.
        sampling: Duration of the latency measurement, and its minimum number of records.
        mapping: How partitions on A and B correspond; AUTO to determine this from keys.
        offset_map: Offset map of the mirror that copies A to B; None if there is no map.
    """

    group: str
    topics: tuple[str, ...] = ()
    at_ms: int | None = None
    latency_ms: int | None = None
    skew_ms: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    mapping: PartitionMapping = PartitionMapping.AUTO
    offset_map: OffsetMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """Plan of a failover: starts of a group on B, with their reasons.

    Attributes:
        request: The request for the failover.
        positions: The group's positions by partition of A; None for a partition without a commit.
            Empty if A was not read.
        references: Times that correspond to `positions`, by partition of A (see `rules.Reference`).
        margin: Margin that was subtracted from these times for the search on B.
        latencies: Samples from which the latency was measured; empty if no latency was measured.
        mapped: How the partitions on A and B correspond, by topic on B.
        starts: Start in each partition of B, in order of partitions.
        committed: The group's committed offsets on B before the failover.
        origins: Source topics on A, by topic on B. A topic that is not in this mapping has the same
            name on both clusters.
    """

    request: FailoverRequest
    positions: Positions
    references: dict[TopicPartition, Reference]
    margin: Margin
    latencies: Latencies
    mapped: dict[str, TopicMapping]
    starts: tuple[Start, ...]
    committed: Positions
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_by_map(self) -> bool:
        """Whether an offset map gave all starts."""
        return all(start.kind is StartKind.MAP for start in self.starts)

    @property
    def has_margin(self) -> bool:
        """Whether the margin matters: a latency was measured, or a start was searched by time."""
        return bool(self.latencies) or any(start.search_ms is not None for start in self.starts)

    def topics_on_a(self, topic: str) -> tuple[str, ...]:
        """Return the topics on A whose records are copied to a topic on B."""
        return self.origins.get(topic, (topic,))

    def position_of(self, partition: TopicPartition) -> int | None:
        """Return the group's offset in A's partition with the same number as `partition`.

        Returns None if the group has no commit in this partition on A, or if the topic on B has
        several source topics on A.
        """
        topics = self.topics_on_a(partition.topic)
        if len(topics) > 1:
            return None
        committed = self.positions.get(TopicPartition(topics[0], partition.partition))
        return None if committed is None else committed.offset


def plan_failover(
    a: MeasuredCluster | None, b: MeasuredCluster, request: FailoverRequest, clock: Clock
) -> FailoverPlan:
    """Find the offsets on B from which a group can continue without missing records.

    Args:
        a: Cluster that the group moves from. It can be None if the request has `at_ms` and topics.
            If A is None and a start is searched by time, the request must also have a latency.
        b: Cluster that the group moves to.
        request: The request.
        clock: Clock of this machine.

    Raises:
        UnknownGroup: The group has no commits on A, and the request has no `at_ms`.
        UnknownTopic: A topic is missing on one of the clusters.
        TooFewRecords: The latency could not be measured.
        InvalidRequest: `a` is None, but A is needed; or neither the request nor the group's commits
            have a topic.
        ClusterFailure: A cluster can't be reached.
    """
    topics, positions = _positions(a, request)
    origins = topics_on_b(request.offset_map, topics)
    by_map = _by_map(a, b, origins, positions, request)
    rest = {t: names for t, names in origins.items() if not _has_all_starts(by_map, b, t)}
    references = _references(a, positions, rest, request)
    mapped = _map(a, b, origins, rest, request)
    sources = {
        partition: _sources(partition, mapped, references, rest, request.at_ms)
        for partition in _partitions(b, rest)
        if partition not in by_map.starts
    }
    # Measuring a latency may take long. So latencies are measured only if a partition is searched
    # by time.
    searched = [partition for partition, source in sources.items() if is_searched(source)]
    margin, latencies = _margin(a, b, rest, searched, by_map, request, clock)
    now_ms = clock.now_ms()
    times = {p: search_time(source, margin, now_ms=now_ms) for p, source in sources.items()}
    reasons = {p: _reason(source, margin, now_ms) for p, source in sources.items()}
    for partition, refusal in by_map.refusals.items():
        if partition in reasons and refusal not in reasons[partition]:
            reasons[partition] += f"; the map was not used: {refusal}"
    starts = [*by_map.starts.values(), *find_starts(b.view, times, reasons)]
    return FailoverPlan(
        request=request,
        positions=positions,
        references=references,
        margin=margin,
        latencies=latencies,
        mapped=mapped,
        starts=tuple(sorted(starts, key=lambda start: start.partition)),
        committed=b.view.committed(request.group, _partitions(b, origins)),
        origins=origins,
    )


def _partitions(b: MeasuredCluster, topics: Iterable[str]) -> list[TopicPartition]:
    return [partition for topic in topics for partition in b.view.partitions(topic)]


def _by_map(
    a: MeasuredCluster | None,
    b: MeasuredCluster,
    origins: Origins,
    positions: Positions,
    request: FailoverRequest,
) -> ByMap:
    if request.offset_map is None:
        return ByMap()
    view = None if a is None else a.view
    margin = Margin(latency_ms=0, skew_ms=request.skew_ms)
    where = positions if request.at_ms is None else request.at_ms
    return starts_by_map(request.offset_map, view, b.view, origins, where, margin)


def _has_all_starts(by_map: ByMap, b: MeasuredCluster, topic: str) -> bool:
    return all(partition in by_map.starts for partition in b.view.partitions(topic))


def refuse_unknown(request: FailoverRequest) -> None:
    """Raise InvalidRequest if a request without cluster A has no time, or has no topics."""
    missing = [
        *(["--at TIME"] if request.at_ms is None else []),
        *([] if request.topics else ["--topic T"]),
    ]
    if not missing:
        return
    text = f"without --from, {' and '.join(missing)} {verb(len(missing), 'is', 'are')} needed"
    if not request.topics and request.offset_map is not None:
        names = ", ".join(sorted({source.topic for source in request.offset_map.sources}))
        text += f": the group's topics are stored only on A; the map has the topics {names}"
    raise InvalidRequest(text)


def _positions(a: MeasuredCluster | None, request: FailoverRequest) -> tuple[list[str], Positions]:
    """Return the topics, sorted, and the group's committed offsets on A for these topics."""
    if a is None:
        refuse_unknown(request)
        return sorted(set(request.topics)), {}
    topics = sorted(set(request.topics))
    if not topics:
        topics = sorted({p.topic for p in a.view.committed(request.group)})
    partitions = [partition for topic in topics for partition in a.view.partitions(topic)]
    committed = a.view.committed(request.group, partitions)
    if request.at_ms is None and not any(committed.values()):
        raise UnknownGroup(
            f"group {request.group} has committed nothing on {a.view.bootstrap}; check the name;"
            " if the group's offsets are lost, give --at TIME, which assumes that the group has"
            " consumed everything that was appended before TIME"
        )
    if not topics:
        raise InvalidRequest("the group has no committed offsets on A; give --topic")
    return topics, committed


def _references(
    a: MeasuredCluster | None, positions: Positions, rest: Origins, request: FailoverRequest
) -> dict[TopicPartition, Reference]:
    topics = {name for names in rest.values() for name in names}
    needed = {p: committed for p, committed in positions.items() if p.topic in topics}
    if request.at_ms is not None:
        return dict.fromkeys(needed, _stated(request.at_ms))
    assert a is not None
    return read_references(a.view, needed)


def _stated(at_ms: int) -> Reference:
    return Reference(time_ms=at_ms, clock=ClockName.APPEND, reason=_AS_STATED)


def _margin(  # noqa: PLR0913 - what the latency depends on, and why it is needed
    a: MeasuredCluster | None,
    b: MeasuredCluster,
    origins: Origins,
    searched: Sequence[TopicPartition],
    by_map: ByMap,
    request: FailoverRequest,
    clock: Clock,
) -> tuple[Margin, Latencies]:
    """Return the margin for a search by time on B, and the measured latencies.

    Latencies are measured only if two conditions hold: the request gives no latency, and at least
    one partition of B is searched by time.
    """
    if request.latency_ms is not None or not searched:
        return Margin(latency_ms=request.latency_ms or 0, skew_ms=request.skew_ms), ()
    why = _latency_reason(searched, by_map)
    if a is None:
        raise InvalidRequest(
            f"the latency of A can't be measured without --from; give --max-latency{why}"
        )
    on_b = sorted({partition.topic for partition in searched})
    on_a = sorted({name for topic in on_b for name in origins[topic]})
    now_ms = clock.now_ms()
    try:
        latencies = measure([a], on_a, request.sampling, now_ms=now_ms)
        latencies += measure([b], on_b, request.sampling, now_ms=now_ms)
    except TooFewRecords as error:
        raise TooFewRecords(f"{error}{why}") from error
    largest_ms = max(latency.max_ms for latency in latencies)
    skew_ms = max(latency.skew_ms for latency in latencies)
    return Margin(latency_ms=largest_ms, skew_ms=max(skew_ms, request.skew_ms)), latencies


def _latency_reason(searched: Sequence[TopicPartition], by_map: ByMap) -> str:
    """Return a clause for errors: partitions on B that need a latency, and why no map was used.

    The clause is empty if no searched partition is in `by_map.refusals`, for example because there
    is no map.
    """
    refused = [partition for partition in searched if partition in by_map.refusals]
    if not refused:
        return ""
    more = f" and {plural(len(refused) - 1, 'other partition')}" if len(refused) > 1 else ""
    return (
        f"; a latency is needed for {refused[0]}{more} on B, because the map was not used:"
        f" {by_map.refusals[refused[0]]}"
    )


def _map(
    a: MeasuredCluster | None,
    b: MeasuredCluster,
    origins: Origins,
    rest: Origins,
    request: FailoverRequest,
) -> dict[str, TopicMapping]:
    """Return how the partitions of each topic on B correspond to partitions on A."""
    return {
        topic: _map_topic(a, b, topic, names, request, is_by_map=topic not in rest)
        for topic, names in origins.items()
    }


def _map_topic(
    a: MeasuredCluster | None,
    b: MeasuredCluster,
    topic: str,
    names: tuple[str, ...],
    request: FailoverRequest,
    *,
    is_by_map: bool,
) -> TopicMapping:
    if is_by_map:
        assert request.offset_map is not None
        if request.offset_map.partitioning is Partitioning.KEPT:
            return TopicMapping(PartitionMapping.SAME, "the mirror kept partitions")
        return TopicMapping(PartitionMapping.MAP, "the mirror chose its own partitions")
    if request.at_ms is not None or a is None:
        # The search on B uses one time for all partitions of A. So it need not be known which
        # partition of A corresponds to a partition of B.
        return TopicMapping(PartitionMapping.ANY, _AS_STATED)
    if len(names) > 1:
        return TopicMapping(PartitionMapping.ANY, f"{topic} has the records of {', '.join(names)}")
    return map_partitions(a.view, b.view, names[0], request.mapping, topic_on_b=topic)


def _sources(
    partition: TopicPartition,
    mapped: Mapping[str, TopicMapping],
    references: Mapping[TopicPartition, Reference],
    rest: Origins,
    at_ms: int | None,
) -> list[Reference]:
    """Return the references of the partitions on A whose records may be in a partition of B."""
    if at_ms is not None:
        return [_stated(at_ms)]
    names = rest[partition.topic]
    partitions = sources_of(partition, mapped[partition.topic], references, names)
    return [references[p] for p in partitions]


def _reason(sources: Iterable[Reference], margin: Margin, now_ms: int) -> str:
    """Return the reason for a start on B.

    The result is the reason of the reference with the earliest append time. Exceptions: if the time
    of a reference is unknown or in the future, the returned reason states this instead. If no
    partition on A ever had a record, the returned reason states that.
    """
    timed: list[tuple[int, str]] = []
    unknown: list[str] = []
    for reference in sources:
        append_ms = reference.append_ms_min(margin, now_ms)
        if append_ms is not None:
            timed.append((append_ms, reference.reason))
        elif reference.is_from_future(margin, now_ms):
            unknown.append(f"{reference.reason} is in the future; give --max-skew")
        elif not reference.is_bare:
            unknown.append(reference.reason)
    if unknown:
        others = len(unknown) - 1
        more = f"; the time of {plural(others, 'other partition')} of A is unknown, too"
        return f"{unknown[0]}{more if others else ''}"
    return min(timed)[1] if timed else "nothing was ever appended on A"


def active_members(view: ClusterView, group: str) -> str:
    """Return the client ids of a group's members; "" if it has no members or does not exist."""
    try:
        members = view.group(group).members
    except UnknownGroup:
        return ""
    return ", ".join(sorted({member.client_id for member in members}))


def refuse_active(view: ClusterView, group: str) -> None:
    """Raise GroupActive if the group has members; changes nothing."""
    names = active_members(view, group)
    if names:
        raise GroupActive(f"group {group} is active on {view.bootstrap} ({names}); stop it first")


def execute(view: ClusterView, plan: FailoverPlan) -> None:
    """Commit the starts of a plan for the group on B.

    Raises:
        GroupActive: The group has members on B; nothing was changed.
        ClusterFailure: The cluster can't be reached, or refuses a request; some partitions may have
            been committed.
    """
    refuse_active(view, plan.request.group)
    offsets = {start.partition: Committed(start.offset) for start in plan.starts}
    view.commit(plan.request.group, offsets)
