"""The whole of a failover: positions on A, the margin, partitions that correspond, starts on B.

Positions are read before anything else: whatever the group consumes meanwhile is only read twice.
Nothing is changed here but by `execute`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.cluster.failover import (
    Found,
    Margin,
    Reference,
    Start,
    find_starts,
    read_references,
    search_time,
)
from tidelog.cluster.failover_map import ByMap, starts_by_map, topics_on_b
from tidelog.cluster.failover_mapping import (
    Mapped,
    PartitionMapping,
    map_partitions,
    sources_of,
)
from tidelog.cluster.offset_map import OffsetMap, Partitioning
from tidelog.cluster.tail_latency import Latencies, Sampling, Watched, measure
from tidelog.cluster.view import ClusterView, Committed
from tidelog.env import Clock
from tidelog.errors import GroupActive, InvalidRequest, UnknownGroup
from tidelog.types import ClockName, TopicPartition

Positions: TypeAlias = "dict[TopicPartition, Committed | None]"
# Topic of B -> topics of A.
Origins: TypeAlias = Mapping[str, tuple[str, ...]]

_AS_STATED: Final = "as stated with --at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        group: The consumer group.
        topics: Of these; of all that the group has committed on A where empty.
        at_ms: The group had consumed what A appended before this; its positions where None.
        latency_ms: L, None to measure it at the tails of both clusters.
        skew_ms: S, at least; what is measured counts where it is more.
        sampling: How long to measure, and how many records are enough.
        mapping: How partitions correspond; AUTO looks at keys.
        offset_map: What the mirror that copies A to B wrote down; None without one.
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
class Plan:
    """From where the group would go on, and why.

    Attributes:
        question: What was asked.
        positions: On A, None where nothing was committed; empty where A wasn't asked.
        references: Those positions in time, by partition of A.
        margin: What was subtracted.
        latencies: The samples the margin rests on; empty where it was stated, or nothing needed it.
        mapped: How partitions correspond, by topic of B.
        starts: One for each partition of B, in order.
        committed: What the group has committed on B.
        origins: Topic of B -> the topics of A whose records it has; the same name where missing.
    """

    question: Question
    positions: Positions
    references: dict[TopicPartition, Reference]
    margin: Margin
    latencies: Latencies
    mapped: dict[str, Mapped]
    starts: tuple[Start, ...]
    committed: Positions
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether the margin rests on samples."""
        return self.question.latency_ms is None

    @property
    def is_by_map(self) -> bool:
        """Whether a mirror's map tells all starts, so that no margin was needed."""
        return all(start.found is Found.MAP for start in self.starts)

    def topics_on_a(self, topic: str) -> tuple[str, ...]:
        """The topics of A whose records a topic of B has."""
        return self.origins.get(topic, (topic,))

    def position_of(self, partition: TopicPartition) -> int | None:
        """The group's offset on A, where the partition of that number is the only source."""
        topics = self.topics_on_a(partition.topic)
        if self.mapped[partition.topic].mapping is not PartitionMapping.SAME or len(topics) > 1:
            return None
        found = self.positions.get(TopicPartition(topics[0], partition.partition))
        return None if found is None else found.offset


def plan_failover(a: Watched | None, b: Watched, question: Question, clock: Clock) -> Plan:
    """Find from where a group goes on, on B.

    Args:
        a: The cluster it comes from; needed but where `at_ms`, topics and latency are given.
        b: The cluster it goes to.
        question: What is asked.
        clock: This machine's.

    Raises:
        UnknownGroup: The group has committed nothing on A.
        UnknownTopic: A topic is missing on one of them.
        TooFewRecords: The latency was to be measured and can't be.
        InvalidRequest: A is needed and not given.
        ClusterFailure: A cluster can't be reached.
    """
    topics, positions = _positions(a, question)
    origins = topics_on_b(question.offset_map, topics)
    by_map = _by_map(a, b, origins, positions, question)
    # Only what the map leaves open needs a latency, which may take long to measure.
    rest = {t: names for t, names in origins.items() if not _is_told(b, t, by_map)}
    references = _references(a, positions, rest, question)
    margin, latencies = _margin(a, b, rest, question, clock)
    now_ms = clock.now_ms()
    mapped = _map(a, b, origins, rest, question)
    times: dict[TopicPartition, int | None] = {}
    reasons: dict[TopicPartition, str] = {}
    for partition in _partitions(b, rest):
        if partition in by_map.starts:
            continue
        sources = _sources(partition, mapped, references, rest, question.at_ms)
        times[partition] = search_time(sources, margin, now_ms=now_ms)
        reasons[partition] = _reason(sources, margin, now_ms)
        if refusal := by_map.refusals.get(partition):
            reasons[partition] += f"; not by the map: {refusal}"
    starts = [*by_map.starts.values(), *find_starts(b.view, times, reasons)]
    return Plan(
        question=question,
        positions=positions,
        references=references,
        margin=margin,
        latencies=latencies,
        mapped=mapped,
        starts=tuple(sorted(starts, key=lambda start: start.partition)),
        committed=b.view.committed(question.group, _partitions(b, origins)),
        origins=origins,
    )


def _partitions(b: Watched, topics: Iterable[str]) -> list[TopicPartition]:
    return [partition for topic in topics for partition in b.view.partitions(topic)]


def _by_map(
    a: Watched | None, b: Watched, origins: Origins, positions: Positions, question: Question
) -> ByMap:
    if question.offset_map is None:
        return ByMap()
    view = None if a is None else a.view
    margin = Margin(latency_ms=0, skew_ms=question.skew_ms)
    where = positions if question.at_ms is None else question.at_ms
    return starts_by_map(question.offset_map, view, b.view, origins, where, margin)


def _is_told(b: Watched, topic: str, by_map: ByMap) -> bool:
    return all(partition in by_map.starts for partition in b.view.partitions(topic))


def _positions(a: Watched | None, question: Question) -> tuple[list[str], Positions]:
    """The topics in order, and what the group has committed for them on A."""
    if a is None:
        if question.at_ms is None or not question.topics:
            raise InvalidRequest("without --from a time (--at) and topics (--topic) are needed")
        return sorted(set(question.topics)), {}
    topics = sorted(set(question.topics))
    if not topics:
        topics = sorted({p.topic for p in a.view.committed(question.group)})
    wanted = [partition for topic in topics for partition in a.view.partitions(topic)]
    found = a.view.committed(question.group, wanted)
    if question.at_ms is None and not any(found.values()):
        raise UnknownGroup(
            f"group {question.group} has committed nothing on {a.view.bootstrap}; is that its"
            " name? Where its positions are lost, --at TIME says up to when it had consumed"
        )
    if not topics:
        raise InvalidRequest("which topics? The group has none on A; give --topic")
    return topics, found


def _references(
    a: Watched | None, positions: Positions, rest: Origins, question: Question
) -> dict[TopicPartition, Reference]:
    wanted = {name for names in rest.values() for name in names}
    needed = {p: committed for p, committed in positions.items() if p.topic in wanted}
    if question.at_ms is not None:
        return dict.fromkeys(needed, _stated(question.at_ms))
    assert a is not None
    return read_references(a.view, needed)


def _stated(at_ms: int) -> Reference:
    return Reference(time_ms=at_ms, clock=ClockName.APPEND, reason=_AS_STATED)


def _margin(
    a: Watched | None, b: Watched, rest: Origins, question: Question, clock: Clock
) -> tuple[Margin, Latencies]:
    if question.latency_ms is not None:
        return Margin(latency_ms=question.latency_ms, skew_ms=question.skew_ms), ()
    if not rest:
        return Margin(latency_ms=0, skew_ms=question.skew_ms), ()
    if a is None:
        raise InvalidRequest("without --from the latency of A can't be measured; state it")
    on_a = sorted({name for names in rest.values() for name in names})
    now_ms = clock.now_ms()
    found = measure([a], on_a, question.sampling, now_ms=now_ms)
    found += measure([b], sorted(rest), question.sampling, now_ms=now_ms)
    largest_ms = max(latency.max_ms for latency in found)
    skew_ms = max(latency.skew_ms for latency in found)
    return Margin(latency_ms=largest_ms, skew_ms=max(skew_ms, question.skew_ms)), found


def _map(
    a: Watched | None, b: Watched, origins: Origins, rest: Origins, question: Question
) -> dict[str, Mapped]:
    """How the partitions of each topic of B correspond to those of A."""
    return {
        topic: _map_topic(a, b, topic, names, question, is_told=topic not in rest)
        for topic, names in origins.items()
    }


def _map_topic(
    a: Watched | None,
    b: Watched,
    topic: str,
    names: tuple[str, ...],
    question: Question,
    *,
    is_told: bool,
) -> Mapped:
    if is_told:
        assert question.offset_map is not None
        if question.offset_map.partitioning is Partitioning.KEPT:
            return Mapped(PartitionMapping.SAME, "the mirror kept partitions")
        return Mapped(PartitionMapping.MAP, "the mirror chose partitions anew")
    if question.at_ms is not None or a is None:
        # One time for all partitions: it does not matter which is which.
        return Mapped(PartitionMapping.ANY, _AS_STATED)
    if len(names) > 1:
        return Mapped(PartitionMapping.ANY, f"{topic} has the records of {', '.join(names)}")
    return map_partitions(a.view, b.view, names[0], question.mapping, topic_on_b=topic)


def _sources(
    partition: TopicPartition,
    mapped: Mapping[str, Mapped],
    references: Mapping[TopicPartition, Reference],
    rest: Origins,
    at_ms: int | None,
) -> list[Reference]:
    """Where the group stands in the partitions whose records may lie in this one of B."""
    if at_ms is not None:
        return [_stated(at_ms)]
    names = rest[partition.topic]
    found = sources_of(partition, mapped[partition.topic], references, names)
    return [references[p] for p in found]


def _reason(sources: Iterable[Reference], margin: Margin, now_ms: int) -> str:
    """What decided: the first that is not known, else the earliest."""
    known: list[tuple[int, str]] = []
    for reference in sources:
        append_ms = reference.append_ms_min(margin, now_ms)
        if append_ms is not None:
            known.append((append_ms, reference.reason))
        elif reference.is_from_future(margin, now_ms):
            return f"{reference.reason} is in the future; state --max-skew"
        elif not reference.is_bare:
            return reference.reason
    return min(known)[1] if known else "nothing was ever appended on A"


def active_members(view: ClusterView, group: str) -> str:
    """Who is in a group, by client id; empty where nobody is, or no such group."""
    try:
        members = view.group(group).members
    except UnknownGroup:
        return ""
    return ", ".join(sorted({member.client_id for member in members}))


def refuse_active(view: ClusterView, group: str) -> None:
    """Raise GroupActive where a group has members; nothing was changed."""
    names = active_members(view, group)
    if names:
        raise GroupActive(f"group {group} is active on {view.bootstrap} ({names}); stop it first")


def execute(view: ClusterView, plan: Plan) -> None:
    """Commit the starts for the group on B.

    Raises:
        GroupActive: It has members there; nothing was changed.
        ClusterFailure: The cluster can't be reached; some partitions may have been committed.
    """
    refuse_active(view, plan.question.group)
    offsets = {start.partition: Committed(start.offset) for start in plan.starts}
    view.commit(plan.question.group, offsets)
