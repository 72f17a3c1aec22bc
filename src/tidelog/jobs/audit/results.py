"""Results of an audit: as plain objects, as rows of the DataFrames, and as a sentence."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from tidelog.amounts import plural, verb
from tidelog.jobs.audit.options import Kind
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.parts import timestamp
from tidelog.types import NO_TIMESTAMP, TopicPartition

DIFFERENCES_SCHEMA: Final = (
    "topic string, kind string, key binary, bucket timestamp, bucket_ms bigint,"
    " a_partition int, a_offset bigint, a_time timestamp, a_time_ms bigint, a_records bigint,"
    " a_deleted boolean,"
    " b_partition int, b_offset bigint, b_time timestamp, b_time_ms bigint, b_records bigint,"
    " b_deleted boolean"
)

TOPICS_SCHEMA: Final = (
    "topic string, a_keys bigint, b_keys bigint, a_records bigint, b_records bigint,"
    " a_without_key bigint, b_without_key bigint, without_key_equal boolean,"
    " deleted_or_unknown bigint, superseded bigint, history boolean, "
    + ", ".join(f"{kind.value} bigint" for kind in Kind)
)

BUCKETS_SCHEMA: Final = (
    "topic string, partition int, bucket timestamp, bucket_ms bigint, span_ms bigint,"
    " a_records bigint, b_records bigint, equal boolean"
)

CUTS_SCHEMA: Final = "side string, topic string, partition int, start bigint, end bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """Last record of a key on A or on B.

    Attributes:
        partition: Partition of the record.
        offset: Offset of the record.
        create_ms: Create time of the record in ms, -1 if unknown.
        records: Number of the key's records on this side, -1 if unknown.
        is_deleted: Whether the record's value is null.
    """

    partition: int
    offset: int
    create_ms: int
    records: int = -1
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that differs between the sides, or whose last record the group has not read.

    Attributes:
        topic: The topic's name on A or, if A does not have it, on B.
        kind: Kind of the difference.
        key: The key; None if its record was deleted before the key was read.
        bucket_ms: Start in ms of the time span that contains the create time of the key's last
            record: of B's last record for ahead and duplicated keys and for keys that A does not
            have, and of A's last record for all other keys. None if the create time is unknown.
        a: Last record of the key on A; None if A does not have the key, or if the kind is
            undelivered and there is a side B. If the audit has no side B, `a` is the record that
            the group has not read.
        b: Last record of the key on B; None if B does not have the key, or if there is no side B.
    """

    topic: str
    kind: Kind
    key: bytes | None
    bucket_ms: int | None
    a: Last | None
    b: Last | None


@dataclass(slots=True, kw_only=True)
class TopicFigures:
    """Figures of one topic. In a pair of numbers, the first belongs to A and the second to B.

    Attributes:
        topic: The topic's name on A or, if A does not have it, on B.
        keys: Number of distinct keys.
        records: Number of records.
        unkeyed: Number of records without a key. An audit compares these records only as a whole.
        unkeyed_equal: Whether both sides have the same records without a key; None if this was not
            compared.
        deleted: Number of keys that count as equal because one side has deleted them and the other
            side doesn't have them.
        superseded: Number of keys that differ, but don't count as differences. Compaction may have
            removed some of their records because of later records outside the compared range.
        history: Whether the records before a key's last record were compared, too.
        kinds: Number of keys for each kind of difference.
    """

    topic: str
    keys: tuple[int, int] = (0, 0)
    records: tuple[int, int] = (0, 0)
    unkeyed: tuple[int, int] = (0, 0)
    unkeyed_equal: bool | None = None
    deleted: int = 0
    superseded: int = 0
    history: bool = False
    kinds: dict[Kind, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found."""
        return not any(self.kinds.values()) and self.unkeyed_equal is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Time span of create times, with the records of both sides in it.

    A span belongs to one partition or, if A and B have different partitions, to all partitions.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition; None if the span belongs to all partitions.
        start_ms: Start of the span in ms, inclusive; None for records without a create time.
        span_ms: Length of the span in ms.
        records: Number of records on A and on B.
        is_equal: Whether both sides have the same records, in any order.
    """

    topic: str
    partition: int | None
    start_ms: int | None
    span_ms: int
    records: tuple[int, int]
    is_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResults:
    """Results of an audit as plain objects.

    Attributes:
        differences: Keys that differ; at most `keys_max` of each kind in each topic.
        topics: Figures of each topic. The counts include differences that `differences` does not
            list.
        buckets: Time spans of create times; empty if there is only one side.
        cuts: Compared offsets [start, end) by side and partition.
        log_bytes: Number of bytes of log that were read from directories.
        state_bytes: Size in bytes of the rows of all runs in the state.
        all_bytes: Number of bytes in all log files of the topics in directories.
        kept_runs: Number of runs that were reused from an earlier audit.
        chance: Upper bound of the probability that a difference was missed.
        notes: Notes for the user, one line each.
    """

    differences: Sequence[Difference]
    topics: Sequence[TopicFigures]
    buckets: Sequence[Bucket]
    cuts: Mapping[tuple[str, TopicPartition], tuple[int, int]]
    log_bytes: int
    state_bytes: int
    all_bytes: int
    kept_runs: int
    chance: float
    notes: Sequence[str]

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found."""
        return all(topic.is_equal for topic in self.topics)


def difference_rows(differences: Iterable[Difference]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `DIFFERENCES_SCHEMA`."""
    for one in differences:
        bucket = None if one.bucket_ms is None else timestamp(one.bucket_ms)
        sides = (*_last_cells(one.a), *_last_cells(one.b))
        yield one.topic, one.kind.value, one.key, bucket, one.bucket_ms, *sides


def _last_cells(last: Last | None) -> tuple[object, ...]:
    if last is None:
        return (None,) * 6
    ms = None if last.create_ms == NO_TIMESTAMP else last.create_ms
    records = None if last.records < 0 else last.records
    time = None if ms is None else timestamp(ms)
    return last.partition, last.offset, time, ms, records, last.is_deleted


def topic_rows(topics: Iterable[TopicFigures]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `TOPICS_SCHEMA`."""
    for one in topics:
        yield (
            one.topic,
            *one.keys,
            *one.records,
            *one.unkeyed,
            one.unkeyed_equal,
            one.deleted,
            one.superseded,
            one.history,
            *(one.kinds.get(kind, 0) for kind in Kind),
        )


def bucket_rows(buckets: Iterable[Bucket]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `BUCKETS_SCHEMA`."""
    for one in buckets:
        start = None if one.start_ms is None else timestamp(one.start_ms)
        yield (
            one.topic,
            one.partition,
            start,
            one.start_ms,
            one.span_ms,
            *one.records,
            one.is_equal,
        )


def cut_rows(
    cuts: Mapping[tuple[str, TopicPartition], tuple[int, int]],
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `CUTS_SCHEMA`."""
    for (side, name), (start, end) in sorted(cuts.items()):
        yield side, name.topic, name.partition, start, end


class KindTexts(NamedTuple):
    """Texts for a kind of difference.

    `words` is a phrase that follows a count of keys. `meaning` defines the kind.
    """

    words: str
    meaning: str


KIND_TEXTS: Final = {
    Kind.MISSING: KindTexts("missing on B", "A has the key, B does not"),
    Kind.EXTRA: KindTexts("only on B", "B has the key, A does not"),
    Kind.REORDERED: KindTexts(
        "in another order",
        "the key's records, or the last records of several keys, are in another order",
    ),
    Kind.STALE: KindTexts("older on B", "the last records differ, and B's is older by create time"),
    Kind.AHEAD: KindTexts("newer on B", "the last records differ, and B's is newer by create time"),
    Kind.CHANGED: KindTexts(
        "with another value",
        "the last records differ, and create times don't show which is older",
    ),
    Kind.DUPLICATED: KindTexts(
        "duplicated on B", "the last records are equal, and B has more records of the key"
    ),
    Kind.VERSIONS: KindTexts(
        "with other versions", "the last records are equal, and earlier ones differ"
    ),
    Kind.UNDELIVERED: KindTexts(
        "not delivered to the group", "the group has not read the key's last record"
    ),
}


def audit_verdict(audited: AuditResults, a: str, b: str) -> str:
    """Return a sentence which states that two places are equal, or how many keys differ, by kind.

    If records without a key differ between the places, the sentence also states in how many topics
    they differ.

    Args:
        audited: The results.
        a: Name of A.
        b: Name of B, or of the group if only a group was checked.
    """
    counts: Counter[Kind] = Counter()
    for topic in audited.topics:
        counts.update(topic.kinds)
    keys = sum(map(_keys, audited.topics))
    topics = plural(len(audited.topics), "topic")
    if audited.is_equal:
        return f"{a} and {b} are equal: {plural(keys, 'key')} in {topics}"
    differing = sum(counts.values())
    kinds = [f"{count:,} {KIND_TEXTS[kind].words}" for kind, count in counts.items() if count]
    unkeyed = sum(topic.unkeyed_equal is False for topic in audited.topics)
    without_key = f"records without a key in {plural(unkeyed, 'topic')}"
    if not differing:
        equal = f"{plural(keys, 'key')} {verb(keys, 'is', 'are')} equal"
        return f"{a} and {b} differ only in {without_key}; {equal}"
    text = f"{a} and {b} differ in {differing:,} of {plural(keys, 'key')}: {', '.join(kinds)}"
    return f"{text}; and in {without_key}" if unkeyed else text


def _keys(topic: TopicFigures) -> int:
    """Return the number of distinct keys on both sides together.

    The number is the sum of A's keys and of B's keys that A lacks (kind `extra`). But a key that A
    lacks is not counted as `extra` if that kind is ignored, or if the key is deleted or superseded.
    The sum can then be too low, so the result is never less than the number of B's keys.
    """
    return max(topic.keys[0] + topic.kinds.get(Kind.EXTRA, 0), topic.keys[1])
