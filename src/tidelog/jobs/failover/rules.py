"""Proof that a failover by time misses no record, and the rules that find its starts on B.

A group has a position (next offset to read) in each partition of cluster A. This module computes
the time from which cluster B must be read, finds the first offset to read in each partition of B
(the start), and checks whether partition n has the same keys on both clusters. `measure` measures
latencies, `job` makes the plan, and `verify` checks the plan by reading records.

The records of a topic can be in different orders on A and B, whether producers write to both
clusters or a mirror copies the records. So an offset on A can't be compared with an offset on B,
but times can be compared. For a record r:

    c(r)          its create time, the same on both clusters
    a(r), b(r)    its append times on A and B; a(r) never decreases along a partition of A
    L             an upper bound of a(r) - c(r) for all r: the largest latency
    S             an upper bound of c(r) - a(r) and c(r) - b(r): the lead of producers' clocks

Let p be the group's position on A, and r a record that the group has not consumed. The start on B
does not miss r, because:

1. r is at or after p on A, or r is not on A yet and will be appended after all existing records.
   Let q be the record at p. If p is the log end, let q be the last record before p. In both cases
   a(r) >= a(q).
2. If A returns append times (LogAppendTime), let R = a(q). Otherwise only c(q) is known; since
   a(q) >= c(q) - S, let R = c(q) - S. In both cases a(r) >= R.
3. c(r) >= a(r) - L >= R - L: no unconsumed record was created before R - L.
4. If B searches by create time, the search finds r with c(r) >= R - L. If B searches by append time
   (in a LogAppendTime topic, or on a tidelog broker with `tidelog.lookup.clock=append`), the search
   finds r with b(r) >= c(r) - S >= R - L - S. So the time of r in a search on B is at least T = R -
   L - S.
5. A search returns the FIRST offset whose time is >= T, so every record before this offset has a
   time < T. So r is not before this offset, in whatever order the records are on B. The proof does
   not use B's latency.

Step 5 also covers the reordering case of KIP-33: two unconsumed records m1 and m2 are in the order
m2, m1 on A, but in the order m1, m2 on B. Both records have a time >= T on B, so the search misses
neither. A search for c(m2), without subtracting L, could skip m1. In the proof, L is a bound of A's
latency only. In practice, L is the larger of the latencies measured on A and on B, as in the KIP's
MaxLatencyOfCluster. The reason is that the sample from A may lack the slowest records, while the
sample from B, which has records of the same producers, may contain them. A larger L never makes the
group miss a record; the group only reads more records twice.

If one clock differs from all other clocks by a constant, the sum L + S stays right: the constant
makes one of L and S too large, and the other too small by the same amount.

For any choice of L and S, three kinds of records may be missed: a record with a latency above L
(its time may be before T), a record that never reached A, and a record whose create time is ahead
of the brokers' clocks by more than S. `verify` looks for such records. If R is unknown, the group
starts at the beginning of B's log. For example, R is unknown if the group has committed no offset,
if records were deleted before the group read them, or if the record q has no timestamp.

Partition n on A and partition n on B can have different records: the producers may hash keys
differently (Java's murmur2, librdkafka's crc32), and records without a key go to any partition. A
sample of keys is read on both clusters. If the same function of the key gives the right partition
for all sampled keys on both clusters, partition n on A corresponds to partition n on B. Otherwise,
a record of any partition of A can be in any partition of B. So for each partition of B, the
earliest time of all partitions of A is used. The sample contains only the last records of each
partition, so it is possibly not typical of older records. `verify` finds records that a start
misses for this reason.

Source: KIP-33, use case 3; KIP-79.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from tidelog.amounts import plural
from tidelog.lazy_dataclass import dataclass
from tidelog.record.partitioner import partition_of
from tidelog.remote.time_lookup import last_record_below, searched_by_append
from tidelog.remote.view import ClusterView, Committed, RemoteRecord, Watermarks
from tidelog.types import ClockName, TimestampType, TopicPartition

# Maximum accepted difference in ms between this machine's clock and other clocks.
CLOCKS_APART_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Durations L and S, which are subtracted from the time of a group's position (see the proof).

    Attributes:
        latency_ms: L in ms, the largest latency from create time to append time; not negative.
        skew_ms: S in ms, the largest lead of create times over the brokers' clocks; not negative.
    """

    latency_ms: int
    skew_ms: int = 0

    def __post_init__(self) -> None:
        assert self.latency_ms >= 0
        assert self.skew_ms >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Time of a group's position in a partition of A.

    Attributes:
        time_ms: Time in ms of the record at the position or of the last record before it (see
            `_reference`); None if unknown.
        clock: Whether `time_ms` is a create time (`record`) or an append time on A (`append`).
        reason: The record that the time belongs to, or why the time is unknown.
        is_bare: Whether the partition on A never had a record. If so, the group can't miss a record
            of the partition.
    """

    time_ms: int | None
    clock: ClockName = ClockName.RECORD
    reason: str = ""
    is_bare: bool = False

    def append_ms_min(self, margin: Margin, now_ms: int) -> int | None:
        """Return R, a lower bound of unconsumed records' append times on A; None if unknown."""
        if self.time_ms is None or self.clock is ClockName.APPEND:
            return self.time_ms
        if self.is_from_future(margin, now_ms):
            return None
        return min(self.time_ms, now_ms) - margin.skew_ms

    def is_from_future(self, margin: Margin, now_ms: int) -> bool:
        """Return whether the create time is later than now by more than S + CLOCKS_APART_MS."""
        if self.time_ms is None or self.clock is ClockName.APPEND:
            return False
        return self.time_ms - margin.skew_ms > now_ms + CLOCKS_APART_MS


class StartKind(StrEnum):
    """Source of a start: a search by time, a map, or the log's beginning or end."""

    TIME = "time"
    BEGINNING = "beginning"
    END = "end"
    MAP = "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Offset from which the group continues in one partition of B.

    Attributes:
        partition: The partition of B.
        offset: The first offset to read.
        time_ms: Time in ms of the record at the offset; None if unknown. For a start from an offset
            map, the earliest create time that the map has for the unconsumed records.
        search_ms: T in ms, the time for which B was searched; None for the kinds BEGINNING and MAP.
        kind: How the start was determined.
        reason: Reason for this offset.
    """

    partition: TopicPartition
    offset: int
    time_ms: int | None
    search_ms: int | None
    kind: StartKind
    reason: str

    @property
    def since_ms(self) -> int | None:
        """Time in ms before which no unconsumed record was created; None if unknown."""
        return self.time_ms if self.kind is StartKind.MAP else self.search_ms


def search_time(references: Iterable[Reference], margin: Margin, *, now_ms: int) -> int | None:
    """Return T for a partition of B, from the references of the partitions on A.

    Args:
        references: Times of the group's positions in all partitions of A whose records may be in
            the partition of B.
        margin: L and S.
        now_ms: Current time in ms. A create time that is later than `now_ms` is replaced by
            `now_ms`.

    Returns:
        Time in ms to search for. None means that the group must start at the beginning of the log.
        There are two causes: a reference that is not bare has a time that is unknown or too far in
        the future; or all references are bare.
    """
    lowest: list[int] = []
    for reference in references:
        append_ms = reference.append_ms_min(margin, now_ms)
        if append_ms is not None:
            lowest.append(append_ms)
        elif not reference.is_bare:
            return None
    if not lowest:
        return None
    return max(min(lowest) - margin.latency_ms - margin.skew_ms, 0)


def is_searched(references: Iterable[Reference]) -> bool:
    """Return whether a partition of B can be searched by time.

    A search needs at least one reference that is not bare, and each reference that is not bare must
    have a time. This function does not check whether a time is in the future.
    """
    have_times = [ref.time_ms is not None for ref in references if not ref.is_bare]
    return bool(have_times) and all(have_times)


# -- positions on A ------------------------------------------------------------------------------


def read_references(
    view: ClusterView, positions: Mapping[TopicPartition, Committed | None]
) -> dict[TopicPartition, Reference]:
    """Return the time of a group's position in each partition of A.

    Args:
        view: Cluster A.
        positions: The group's committed offset by partition; None for a partition without a
            committed offset.
    """
    marks = view.watermarks(positions)
    inside = {
        partition: committed.offset
        for partition, committed in positions.items()
        if committed is not None and _refusal(committed, marks[partition]) is None
    }
    behind = {p: offset for p, offset in inside.items() if offset < marks[p].end}
    at = view.first_records(behind)
    before = _records_before(view, inside, marks)
    references: dict[TopicPartition, Reference] = {}
    for partition, committed in positions.items():
        if partition in inside:
            references[partition] = _reference(at.get(partition), before[partition])
        else:
            references[partition] = _unknown(partition, committed, marks[partition])
    return references


def _refusal(committed: Committed, marks: Watermarks) -> str | None:
    """Return why no record on A can give the time of a position; None if a record may give it."""
    if committed.offset < marks.start:
        return (
            f"records from offset {committed.offset} to before offset {marks.start} were deleted on"
            " A before the group read them"
        )
    if committed.offset > marks.end:
        return f"the committed offset {committed.offset} is above A's log end offset {marks.end}"
    return None


def _unknown(
    partition: TopicPartition, committed: Committed | None, marks: Watermarks
) -> Reference:
    """Return a reference whose time is None, with the reason why the time is unknown.

    The reason names the partition of A, because the corresponding partition of B can have another
    number.
    """
    if committed is None and marks.end == 0:
        reason = f"nothing was ever appended to {partition} on A"
        return Reference(time_ms=None, reason=reason, is_bare=True)
    if committed is None:
        reason = f"the group has committed nothing for {partition} on A"
        return Reference(time_ms=None, reason=reason)
    refusal = _refusal(committed, marks)
    assert refusal is not None
    return Reference(time_ms=None, reason=f"{partition}: {refusal}")


def _records_before(
    view: ClusterView,
    offsets: Mapping[TopicPartition, int],
    marks: Mapping[TopicPartition, Watermarks],
) -> dict[TopicPartition, RemoteRecord | None]:
    """Return the last data record before each offset; None if no such record exists.

    Usually, this record is at the offset directly before the given offset. So one request first
    reads the directly preceding offsets of all partitions.
    """
    near = view.first_records({p: at - 1 for p, at in offsets.items() if at > marks[p].start})
    records: dict[TopicPartition, RemoteRecord | None] = {}
    for partition, offset in offsets.items():
        record = near.get(partition)
        if record is None or record.offset >= offset:
            record = last_record_below(view, partition, marks[partition].start, offset)
        records[partition] = record
    return records


def _reference(at: RemoteRecord | None, before: RemoteRecord | None) -> Reference:
    """Return a reference from the record at the position and the last record before the position.

    Step 1 of the proof holds for each of these records as q. If one of them has an append time, the
    reference has this append time. Otherwise, the reference has the earlier of the two create
    times. So if one create time is from a clock that is far ahead, the group misses no record, but
    it may read more records twice.
    """
    for record in (at, before):
        if record is not None and record.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return _of(record, ClockName.APPEND)
    timed = [r for r in (at, before) if r is not None and r.timestamp is not None]
    if not timed:
        reason = (
            "the record at the committed offset and the last record before it have no timestamp"
        )
        return Reference(time_ms=None, reason=reason)
    return _of(min(timed, key=_time), ClockName.RECORD)


def _of(record: RemoteRecord, clock: ClockName) -> Reference:
    word = "append" if clock is ClockName.APPEND else "create"
    return Reference(
        time_ms=record.timestamp,
        clock=clock,
        reason=f"{word} time of the record at offset {record.offset} on A",
    )


def _time(record: RemoteRecord) -> int:
    assert record.timestamp is not None
    return record.timestamp


# -- starts on B ---------------------------------------------------------------------------------


def find_starts(
    view: ClusterView,
    times: Mapping[TopicPartition, int | None],
    reasons: Mapping[TopicPartition, str],
) -> list[Start]:
    """Return the start in each partition of B: the first offset with a time of T or later.

    If no record has a time of T or later, the start is the log end. If T is None, the start is the
    beginning of the log. The start is also the beginning of the log if B's search finds no record
    although B reports that the partition's latest timestamp is T or later.

    Args:
        view: Cluster B.
        times: T in ms by partition; None to start at the beginning.
        reasons: Reason for each time, or why the time is unknown.
    """
    # The log ends are requested before the search by time. So if a start is the log end, the group
    # also reads records that are appended between these two requests.
    marks = view.watermarks(times)
    search_times = {
        partition: time_ms for partition, time_ms in times.items() if time_ms is not None
    }
    answers = view.offsets_for_times(search_times)
    # A tidelog broker's search by append time covers all records. So if the search finds no record,
    # no record has a time of T or later.
    by_append = searched_by_append(view, {p.topic for p in search_times if answers[p] is None})
    unsure = [p for p in search_times if answers[p] is None and p.topic not in by_append]
    latest = view.max_timestamps(unsure)
    starts = []
    for partition, time_ms in times.items():
        why = reasons.get(partition, "")
        mark, answer = marks[partition], answers.get(partition)
        if time_ms is None:
            starts.append(_beginning(partition, mark, why))
        elif answer is not None:
            note = deleted_note(mark, answer.offset)
            starts.append(
                Start(
                    partition=partition,
                    offset=answer.offset,
                    time_ms=answer.timestamp,
                    search_ms=time_ms,
                    kind=StartKind.TIME,
                    reason=why + note,
                )
            )
        elif (last := latest.get(partition)) is not None and last.timestamp >= time_ms:
            # Kafka searches only the first segment that has a record with a time of T or later. If
            # all such records in this segment are before the log start offset, Kafka's search finds
            # no record.
            text = "B's search by time found no record, although later records exist"
            starts.append(_beginning(partition, mark, text))
        else:
            starts.append(
                Start(
                    partition=partition,
                    offset=mark.end,
                    time_ms=None,
                    search_ms=time_ms,
                    kind=StartKind.END,
                    reason=why,
                )
            )
    return starts


def _beginning(partition: TopicPartition, marks: Watermarks, reason: str) -> Start:
    return Start(
        partition=partition,
        offset=marks.start,
        time_ms=None,
        search_ms=None,
        kind=StartKind.BEGINNING,
        reason=reason + deleted_note(marks, marks.start),
    )


def deleted_note(marks: Watermarks, offset: int) -> str:
    """Return a clause for a start's reason if B deleted all records before the start, else ""."""
    if offset > marks.start or marks.start == 0:
        return ""
    return (
        f"; B has deleted all records before offset {marks.start}, possibly including unconsumed"
        " records"
    )


# Minimum number of keys in a sample. In a topic with two partitions, the probability that a wrong
# partitioning function gives the right partition for all of 20 keys is one in a million.
KEYS_MIN: Final = 20

_SAMPLE_PER_PARTITION: Final = 100


class PartitionMapping(StrEnum):
    """Correspondence of the partitions of A and B, as the user requested or as the keys show."""

    AUTO = "auto"
    SAME = "same"
    ANY = "any"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class TopicMapping:
    """Correspondence of the partitions of one topic on A and B, with its reason."""

    mapping: PartitionMapping
    reason: str

    @property
    def sentence(self) -> str:
        """Sentence for the user: how the start in a partition of B is found, and why."""
        if self.mapping is PartitionMapping.SAME:
            return f"partition N on B corresponds to partition N on A: {self.reason}"
        if self.mapping is PartitionMapping.MAP:
            return f"the starts on B are from the mirror's offset map: {self.reason}"
        return (
            "each partition on B is searched for the earliest time of the group's positions in all"
            f" partitions on A: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class SampledKey:
    """Partition and key of a record; the key is None for a record without a key."""

    partition: int
    key: bytes | None


def _crc32(key: bytes, partition_count: int) -> int:
    """Return the partition that librdkafka's default partitioner, consistent_random, chooses."""
    return zlib.crc32(key) % partition_count


PARTITIONERS: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    "murmur2": partition_of,
    "crc32": _crc32,
}


def map_partitions(
    a: ClusterView,
    b: ClusterView,
    topic: str,
    requested: PartitionMapping = PartitionMapping.AUTO,
    *,
    topic_on_b: str | None = None,
) -> TopicMapping:
    """Return how a topic's partitions on A and B correspond.

    If the topic's numbers of partitions on A and B differ, the result is ANY, even if
    `requested` is SAME.
    """
    topic_on_b = topic_on_b or topic
    count_a, count_b = len(a.partitions(topic)), len(b.partitions(topic_on_b))
    if count_a != count_b:
        reason = f"{topic} has {plural(count_a, 'partition')} on A and {count_b} on B"
        return TopicMapping(PartitionMapping.ANY, reason)
    if requested is not PartitionMapping.AUTO:
        return TopicMapping(requested, "as requested")
    if count_a == 1:
        return TopicMapping(PartitionMapping.SAME, "there is one partition only")
    return judge_keys(sample_keys(a, topic), sample_keys(b, topic_on_b), count_a)


def sample_keys(view: ClusterView, topic: str) -> list[SampledKey]:
    """Return partition and key of the last records in each partition."""
    keys: list[SampledKey] = []
    for partition, marks in view.watermarks(view.partitions(topic)).items():
        start = max(marks.end - _SAMPLE_PER_PARTITION, marks.start)
        records = view.records(partition, start, marks.end)
        keys.extend(SampledKey(partition.partition, record.key) for record in records)
    return keys


def judge_keys(
    a: Iterable[SampledKey], b: Iterable[SampledKey], partition_count: int
) -> TopicMapping:
    """Return whether partition n has the same keys on A and B, with the reason.

    The mapping is SAME if one partitioning function is right for all keys in both samples. The
    mapping is ANY in three cases: no such function is known, a sampled record has no key, or a
    sample has fewer than KEYS_MIN distinct keys.
    """
    names = []
    for cluster, sample in (("A", list(a)), ("B", list(b))):
        if any(sampled.key is None for sampled in sample):
            reason = f"records without a key on {cluster} go to any partition"
            return TopicMapping(PartitionMapping.ANY, reason)
        distinct = {sampled.key for sampled in sample}
        if len(distinct) < KEYS_MIN:
            reason = (
                f"{plural(len(distinct), 'key')} on {cluster} can't determine the partitioner"
                f" ({KEYS_MIN} are needed)"
            )
            return TopicMapping(PartitionMapping.ANY, reason)
        names.append(partitioner_of(sample, partition_count))
    if names[0] is None or names[0] != names[1]:
        functions = [name or "an unknown function" for name in names]
        return TopicMapping(
            PartitionMapping.ANY,
            f"keys are partitioned by {functions[0]} on A, by {functions[1]} on B",
        )
    reason = f"keys are partitioned by {names[0]} on both clusters"
    return TopicMapping(PartitionMapping.SAME, reason)


def partitioner_of(sample: Iterable[SampledKey], partition_count: int) -> str | None:
    """Return the name of the partitioning function that is right for all keys; None if none is."""
    keys = {(sampled.partition, sampled.key) for sampled in sample if sampled.key is not None}
    for name, function in PARTITIONERS.items():
        if all(function(key, partition_count) == partition for partition, key in keys):
            return name
    return None


def sources_of(
    partition: TopicPartition,
    mapped: TopicMapping,
    on_a: Iterable[TopicPartition],
    topics: Collection[str],
) -> list[TopicPartition]:
    """Return the partitions of A whose records may be in a partition of B.

    Args:
        partition: The partition of B.
        mapped: How the topic's partitions on A and B correspond.
        on_a: Partitions of A.
        topics: Topics on A whose records are copied to the topic on B.
    """
    sources = [source for source in on_a if source.topic in topics]
    if mapped.mapping is PartitionMapping.SAME:
        return [source for source in sources if source.partition == partition.partition]
    return sources
