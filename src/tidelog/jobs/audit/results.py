"""Results of an audit, as objects and as rows of its tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.jobs.audit.options import Kind
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
    """A key's last record on one side.

    Attributes:
        partition: Where it is.
        offset: Its offset.
        create_ms: Its create time, -1 unknown.
        records: How many records of the key there are; -1 where that was not asked.
        is_deleted: Whether its value is null.
    """

    partition: int
    offset: int
    create_ms: int
    records: int = -1
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that is not equal.

    Attributes:
        topic: Its name on A, where it is there.
        kind: What is wrong.
        key: The key; None where its record has gone since.
        bucket_ms: Start of the span of create time in which the side that has more has its last
            record: where the two part. None where that has no create time.
        a: Its last record on A, None where there is none.
        b: The same of B; where a group was looked at without B, of A.
    """

    topic: str
    kind: Kind
    key: bytes | None
    bucket_ms: int | None
    a: Last | None
    b: Last | None


@dataclass(slots=True, kw_only=True)
class TopicFigures:
    """One topic in numbers; of both sides where there are two numbers.

    Attributes:
        topic: Its name on A, where it is there.
        keys: Different keys.
        records: Records.
        unkeyed: Records without a key, which no audit by key can follow.
        unkeyed_equal: Whether both sides have the same of these; None where that is not compared.
        deleted: Keys that are deleted on one side and unknown on the other.
        superseded: Keys that are not equal and are not judged: records of theirs may have been
            compacted away for ones that are not compared.
        history: Whether records before a key's last one were compared.
        kinds: How many keys of each kind.
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
        """Whether nothing was found."""
        return not any(self.kinds.values()) and self.unkeyed_equal is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A span of create time in one partition, or in all where their numbers don't agree.

    Attributes:
        topic: Its topic.
        partition: Its number; None for all.
        start_ms: First ms; None for records without a create time.
        span_ms: How long it is.
        records: On both sides.
        is_equal: Whether they have the same records, in whatever order.
    """

    topic: str
    partition: int | None
    start_ms: int | None
    span_ms: int
    records: tuple[int, int]
    is_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What an audit has found, as plain objects.

    Attributes:
        differences: Keys that are not equal, as many of each kind as were asked for.
        topics: Every topic in numbers; these count all that was found.
        buckets: Spans of time, where there are two sides.
        cuts: By side and partition the offsets [start, end) that were compared.
        log_bytes: Bytes of log that were read; of directories.
        state_bytes: Bytes of rows that were read to compare.
        all_bytes: Bytes of all log files of the topics.
        kept_runs: How many runs of an earlier audit were used again.
        chance: No difference was overlooked, but for a chance below this.
        notes: What there is to say, one line each.
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
        """Whether nothing was found."""
        return all(topic.is_equal for topic in self.topics)


def difference_rows(differences: Iterable[Difference]) -> Iterator[tuple[object, ...]]:
    """The rows of `DIFFERENCES_SCHEMA`."""
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
    """The rows of `TOPICS_SCHEMA`."""
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
    """The rows of `BUCKETS_SCHEMA`."""
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
    """The rows of `CUTS_SCHEMA`."""
    for (side, name), (start, end) in sorted(cuts.items()):
        yield side, name.topic, name.partition, start, end
