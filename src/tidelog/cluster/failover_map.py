"""Starts on B out of the map of the mirror that copies A to B, where it can be trusted.

The mirror wrote down which offsets of A went where on B (`offset_map`), so a position on A has a
place on B without any latency: a record that the group has not consumed is behind its position,
and the map says from where on such records lie. A map can be about something else, older than the
log it speaks of, or begin behind the group. Then it is not used, and the line says why; the search
by time takes its place, partition by partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.cluster.failover import Found, Margin, Start, deleted_note
from tidelog.cluster.offset_map import (
    Located,
    OffsetMap,
    OutsideMap,
    Partitioning,
    SourcePartition,
)
from tidelog.cluster.view import ClusterView, Committed, Watermarks
from tidelog.types import NO_TIMESTAMP, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ByMap:
    """What a map tells of some topics.

    Attributes:
        starts: By partition of B; those that the map can't tell are missing.
        refusals: Why it can't, by partition of B.
    """

    starts: Mapping[TopicPartition, Start] = field(default_factory=dict)
    refusals: Mapping[TopicPartition, str] = field(default_factory=dict)


def topics_on_b(found: OffsetMap | None, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Topic on B -> the topics on A that are copied into it; the same name where no map says so."""
    origins: dict[str, tuple[str, ...]] = {}
    for topic in topics:
        names = {s.target for s in found.sources if s.topic == topic} if found else set()
        target = names.pop() if len(names) == 1 else topic
        origins[target] = (*origins.get(target, ()), topic)
    return origins


def starts_by_map(
    found: OffsetMap,
    a: ClusterView | None,
    b: ClusterView,
    origins: Mapping[str, tuple[str, ...]],
    positions: Mapping[TopicPartition, Committed | None] | int,
    margin: Margin,
) -> ByMap:
    """The starts that a map tells.

    Args:
        found: The map.
        a: Where the group comes from; None where it can't be asked.
        b: Where it goes to.
        origins: Topic on B -> topics on A.
        positions: The group's, by partition of A; or the time in ms before which it had consumed
            all that A appended.
        margin: Its skew says how far the clocks of A and of the mirror may differ (times only).

    Raises:
        ClusterFailure: A cluster can't be reached.
    """
    starts: dict[TopicPartition, Start] = {}
    refusals: dict[TopicPartition, str] = {}
    for target, topics in origins.items():
        marks = b.watermarks(b.partitions(target))
        try:
            check_target(found, b, target)
            numbers = {topic: _source(found, a, topic) for topic in topics}
        except OutsideMap as reason:
            refusals |= dict.fromkeys(marks, str(reason))
            continue
        if isinstance(positions, int):
            places = _by_time(found, numbers, positions - margin.skew_ms)
        else:
            places = _by_positions(found, a, numbers, positions)
        for partition, mark in marks.items():
            try:
                check_end(found, partition, mark)
                starts[partition] = _start(
                    found, partition, _sources_of(found, partition, places), mark
                )
            except OutsideMap as reason:
                refusals[partition] = str(reason)
    return ByMap(starts=starts, refusals=refusals)


def check_target(found: OffsetMap, b: ClusterView, topic: str) -> None:
    """Make sure that the map is about this topic of B; raises OutsideMap where it is not."""
    if topic not in found.partition_counts:
        raise OutsideMap(f"the map has no copy called {topic}")
    known, there = found.target_ids.get(topic), b.topic_id(topic)
    if known and there and known != there:
        raise OutsideMap(f"the map is of another topic {topic} on B: id {known}, not {there}")


def check_end(found: OffsetMap, partition: TopicPartition, marks: Watermarks) -> None:
    """Make sure that B's log still has what the map speaks of; raises OutsideMap where not."""
    end = found.ends.get(partition)
    if end is None:
        raise OutsideMap(f"the map does not know {partition} of B")
    if marks.end < end:
        raise OutsideMap(
            f"{partition} of B ends at {marks.end}, the mirror has written up to {end}"
        )


def _source(found: OffsetMap, a: ClusterView | None, topic: str) -> int:
    if a is None:
        return found.source_number(topic)
    return found.source_number(topic, a.topic_id(topic), a.bootstrap)


def _by_time(found: OffsetMap, numbers: Mapping[str, int], time_ms: int) -> "list[_Places]":
    """Everything that A appended from then on reached B later."""
    reason = "what A appended from that time on is not before this, says the mirror's map"
    return [
        _Places(None, found.starts_by_arrival(number, time_ms), reason)
        for number in numbers.values()
    ]


def _by_positions(
    found: OffsetMap,
    a: ClusterView | None,
    numbers: Mapping[str, int],
    positions: Mapping[TopicPartition, Committed | None],
) -> "list[_Places]":
    sources = [p for p in positions if p.topic in numbers]
    marks = {} if a is None else a.watermarks(sources)
    places = []
    for source in sources:
        position, mark = positions[source], marks.get(source)
        if position is None and mark is not None and mark.end == 0:
            continue  # nothing was ever appended there
        number = SourcePartition(numbers[source.topic], source.partition)
        try:
            _check_source(found, number, source, position, mark)
            assert position is not None
            at = f"{position.offset} of {source}"
            places.append(_Places(source, found.starts(number, position.offset), at))
        except OutsideMap as reason:
            places.append(_Places(source, None, str(reason)))
    return places


def _check_source(
    found: OffsetMap,
    number: SourcePartition,
    source: TopicPartition,
    position: Committed | None,
    mark: Watermarks | None,
) -> None:
    """Make sure that the map speaks of what the position is about; raises OutsideMap."""
    if position is None:
        raise OutsideMap(f"the group has committed nothing for {source} on A")
    if mark is None:
        return
    if position.offset > mark.end:
        raise OutsideMap(f"the position {position.offset} lies behind the end of A, {mark.end}")
    copied = found.copied.get(number)
    if copied is not None and copied.end > mark.end:
        raise OutsideMap(
            f"{source} ends at {mark.end} on A, the mirror has read up to {copied.end}"
        )


@dataclass(frozen=True, slots=True)
class _Places:
    """From where on B has what one source still holds for the group.

    Attributes:
        source: The partition of A; None where all of a topic is meant.
        starts: By partition of B; None where the map can't tell.
        reason: What that rests on, or why it can't.
    """

    source: TopicPartition | None
    starts: Mapping[TopicPartition, Located] | None
    reason: str


def _sources_of(
    found: OffsetMap, partition: TopicPartition, places: Iterable[_Places]
) -> list[_Places]:
    """Those whose records may be in a partition of B."""
    if found.partitioning is not Partitioning.KEPT:
        return list(places)
    number = partition.partition
    return [p for p in places if p.source is None or p.source.partition == number]


def _start(
    found: OffsetMap, partition: TopicPartition, places: Iterable[_Places], marks: Watermarks
) -> Start:
    """The earliest of all places; raises OutsideMap where one of them is not known."""
    end = Located(found.ends[partition], is_exact=True)
    best, reason = end, "the mirror has put nothing here that the group has not consumed"
    for one in places:
        if one.starts is None:
            raise OutsideMap(one.reason)
        here = one.starts[partition]
        if here.offset < best.offset:
            best, reason = here, _reason(one, here)
    offset = max(best.offset, marks.start)
    return Start(
        partition=partition,
        offset=offset,
        time_ms=None if best.create_ms == NO_TIMESTAMP else best.create_ms,
        search_ms=None,
        found=Found.MAP,
        reason=reason + deleted_note(marks, offset),
    )


def _reason(one: _Places, place: Located) -> str:
    if one.source is None:
        return one.reason
    if place.is_exact:
        return f"{one.reason} on A went here, says the mirror's map"
    return f"what was copied together with {one.reason} on A begins here, says the mirror's map"


__all__ = ["ByMap", "check_end", "check_target", "starts_by_map", "topics_on_b"]
