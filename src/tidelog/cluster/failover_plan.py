"""The whole of a failover: positions on A, the margin, partitions that correspond, starts on B.

Positions are read before anything else: whatever the group consumes meanwhile is only read twice.
Nothing is changed here but by `execute`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.cluster.failover import (
    Margin,
    Reference,
    Start,
    find_starts,
    read_references,
    search_time,
)
from tidelog.cluster.failover_mapping import (
    Mapped,
    PartitionMapping,
    map_partitions,
    sources_of,
)
from tidelog.cluster.tail_latency import Latencies, Sampling, Watched, measure
from tidelog.cluster.view import ClusterView, Committed
from tidelog.env import Clock
from tidelog.errors import GroupActive, InvalidRequest, UnknownGroup
from tidelog.types import ClockName, TopicPartition

Positions: TypeAlias = "dict[TopicPartition, Committed | None]"

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
    """

    group: str
    topics: tuple[str, ...] = ()
    at_ms: int | None = None
    latency_ms: int | None = None
    skew_ms: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    mapping: PartitionMapping = PartitionMapping.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """From where the group would go on, and why.

    Attributes:
        question: What was asked.
        positions: On A, None where nothing was committed; empty where A wasn't asked.
        references: Those positions in time, by partition of A.
        margin: What was subtracted.
        latencies: The samples the margin rests on; empty where it was stated.
        mapped: How partitions correspond, by topic.
        starts: One for each partition of B, in order.
        committed: What the group has committed on B.
    """

    question: Question
    positions: Positions
    references: dict[TopicPartition, Reference]
    margin: Margin
    latencies: Latencies
    mapped: dict[str, Mapped]
    starts: tuple[Start, ...]
    committed: Positions

    @property
    def is_measured(self) -> bool:
        """Whether the margin rests on samples."""
        return self.question.latency_ms is None

    def position_of(self, partition: TopicPartition) -> int | None:
        """The group's offset on A, where the partition of that number is the only source."""
        if self.mapped[partition.topic].mapping is not PartitionMapping.SAME:
            return None
        found = self.positions.get(partition)
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
    on_b = [partition for topic in topics for partition in b.view.partitions(topic)]
    references = _references(a, positions, question)
    margin, latencies = _margin(a, b, topics, question, clock)
    now_ms = clock.now_ms()
    mapped = _map(a, b, topics, question)
    times: dict[TopicPartition, int | None] = {}
    reasons: dict[TopicPartition, str] = {}
    for partition in on_b:
        sources = _sources(partition, mapped, references, question.at_ms)
        times[partition] = search_time(sources, margin, now_ms=now_ms)
        reasons[partition] = _reason(sources, margin, now_ms)
    return Plan(
        question=question,
        positions=positions,
        references=references,
        margin=margin,
        latencies=latencies,
        mapped=mapped,
        starts=tuple(find_starts(b.view, times, reasons)),
        committed=b.view.committed(question.group, on_b),
    )


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
    a: Watched | None, positions: Positions, question: Question
) -> dict[TopicPartition, Reference]:
    if question.at_ms is not None:
        return dict.fromkeys(positions, _stated(question.at_ms))
    assert a is not None
    return read_references(a.view, positions)


def _stated(at_ms: int) -> Reference:
    return Reference(time_ms=at_ms, clock=ClockName.APPEND, reason=_AS_STATED)


def _margin(
    a: Watched | None, b: Watched, topics: list[str], question: Question, clock: Clock
) -> tuple[Margin, Latencies]:
    if question.latency_ms is not None:
        return Margin(latency_ms=question.latency_ms, skew_ms=question.skew_ms), ()
    if a is None:
        raise InvalidRequest("without --from the latency of A can't be measured; state it")
    found = measure([a, b], topics, question.sampling, now_ms=clock.now_ms())
    largest_ms = max(latency.max_ms for latency in found)
    skew_ms = max(latency.skew_ms for latency in found)
    return Margin(latency_ms=largest_ms, skew_ms=max(skew_ms, question.skew_ms)), found


def _map(a: Watched | None, b: Watched, topics: list[str], question: Question) -> dict[str, Mapped]:
    if question.at_ms is not None or a is None:
        # One time for all partitions: it does not matter which is which.
        return dict.fromkeys(topics, Mapped(PartitionMapping.ANY, _AS_STATED))
    return {topic: map_partitions(a.view, b.view, topic, question.mapping) for topic in topics}


def _sources(
    partition: TopicPartition,
    mapped: Mapping[str, Mapped],
    references: Mapping[TopicPartition, Reference],
    at_ms: int | None,
) -> list[Reference]:
    """Where the group stands in the partitions whose records may lie in this one of B."""
    if at_ms is not None:
        return [_stated(at_ms)]
    return [references[p] for p in sources_of(partition, mapped[partition.topic], references)]


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
