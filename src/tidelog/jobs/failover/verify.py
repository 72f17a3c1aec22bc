"""Check of a failover: compares records of both clusters, and counts missed and repeated records.

This module has the comparison (`verify`), and a counter of digests that needs bounded memory
(`DigestCounts`). `job` computes the checked starts. Only committed records count. The records of a
topic on A are divided at the group's positions, and the records on B at the group's starts. A
record at the position counts as unconsumed, and a record at the start counts as after the start.
The records of all partitions of a topic are counted together:

    A: consumed | position > unconsumed           B: before | start > after

    missed      unconsumed on A, and on B only before the start: the start is too late
    absent      unconsumed on A, and not on B: not copied yet, or never sent to B
    duplicates  after the start on B, and consumed on A: the group will read it twice
    only on B   after the start on B, and not on A
    never on A  before the start on B, and not on A, so the group can't have consumed the record

Two records match if key, value and create time are equal. If the timestamps of a topic are append
times on one of the clusters, consumers don't get create times, so only key and value must match. If
a cluster has several equal records, each of them counts.

The records are read in three steps:

1. Unconsumed records on A, and records after the start on B.
2. Records before the start on B. Reading begins `look_back_ms` before the time for which B was
   searched. For a start from an offset map, the earliest create time that the map has for the
   unconsumed records is used instead of this time. But if an unconsumed record was not found in
   step 1, reading begins at the earliest time of all unconsumed records if that is earlier, or at
   the log start if create times can't be compared.
3. Consumed records on A. Reading begins at the earliest time of the records that were read on B. If
   create times can't be compared, the margin is subtracted from this time.

Records are not stored: only a digest of 16 bytes is kept of each record. Digests are divided into
buckets by their first bytes. Buckets stay in memory until they have `BUFFER_BYTES` (64 MB) in
total. Then each bucket is written to a file of its own. At the end, the buckets are counted one
after the other. Digests are evenly distributed. The number of buckets is chosen so that a
bucket has at most about 65,536 of the expected digests: the counts of 65,536 different digests need
16 MB of memory. But there are at most 4,096 buckets, so buckets are larger if more than 268 million
records are expected.

Life cycle of `DigestCounts`: add* -> walk -> add* -> walk ... -> close, best in a `with` block. Not
thread-safe.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from tidelog.amounts import plural, verb
from tidelog.closing import Closing
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.jobs.failover.job import FailoverPlan
from tidelog.jobs.failover.rules import Start, StartKind, find_starts
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.time_lookup import searched_by_append
from tidelog.remote.view import ClusterView, Committed, RemoteRecord, Watermarks
from tidelog.types import IsolationLevel, TimestampType, TopicPartition

DIGEST_SIZE: Final = 16
BUFFER_BYTES: Final = 64 * 1024 * 1024
_PER_BUCKET: Final = 65_536
_BUCKETS_MAX: Final = 4_096
_ENTRY: Final = Struct(f">{DIGEST_SIZE}sB")
_ENTRY_SIZE: Final = _ENTRY.size
_READ_ENTRIES: Final = 65_536

# Number of bits of a count. The four counts of a digest (one for each `Side`) are packed into one
# int. A count of 40 bits is enough for the records of any log.
_COUNT_BITS: Final = 40

_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1


class Side(IntEnum):
    """Cluster of a record, and whether the record is before the group's position or start.

    The record at the group's position on A has the side A_AFTER, and the record at the start on B
    has the side B_AFTER.
    """

    A_AFTER = 0
    A_BEFORE = 1
    B_AFTER = 2
    B_BEFORE = 3


_ONES: Final = tuple(1 << _COUNT_BITS * side for side in Side)


class Counts(NamedTuple):
    """Counts of the read records that have the same digest, by side."""

    a_after: int
    a_before: int
    b_after: int
    b_before: int


@dataclass(frozen=True, slots=True)
class Spill:
    """Folder for digests that don't fit into memory.

    Attributes:
        env: Access to files.
        folder: Path of the folder. The folder is created when digests are first written, and
            removed at the end.
        buffer_bytes: Maximum number of bytes of digests in memory.
    """

    env: Env
    folder: str
    buffer_bytes: int = BUFFER_BYTES


class DigestCounts(Closing):
    """Counts of digests by side."""

    def __init__(self, spill: Spill, *, expected: int) -> None:
        """Create empty counts. No file is created before the buffers are full.

        Args:
            spill: Folder for the files.
            expected: Approximate number of records that will be added.
        """
        self._files = spill.env.files
        self._folder = spill.folder
        self._limit = spill.buffer_bytes
        self._buffered = 0
        count = min(max(-(-expected // _PER_BUCKET), 1), _BUCKETS_MAX)
        self._buffers = [bytearray() for _ in range(count)]
        self._written = [0] * count
        self._spilled_buckets: set[int] = set()

    def add(self, side: Side, digest: bytes) -> None:
        """Add 1 to the count of this digest on this side."""
        bucket = int.from_bytes(digest[:4]) % len(self._buffers)
        buffer = self._buffers[bucket]
        buffer += digest
        buffer.append(side)
        self._buffered += _ENTRY_SIZE
        if self._buffered >= self._limit:
            self._spill()

    def walk(self) -> Iterator[tuple[bytes, Counts]]:
        """Yield each digest once, with its counts by side. The order is arbitrary."""
        for bucket in range(len(self._buffers)):
            for digest, packed in self._counted(bucket).items():
                yield digest, _unpacked(packed)

    def tally(self) -> dict[Counts, int]:
        """Return how many digests have each combination of counts."""
        tallies: Counter[int] = Counter()
        for bucket in range(len(self._buffers)):
            tallies.update(self._counted(bucket).values())
        return {_unpacked(packed): number for packed, number in tallies.items()}

    def _counted(self, bucket: int) -> dict[bytes, int]:
        counts: dict[bytes, int] = {}
        for chunk in self._chunks(bucket):
            for digest, side in _ENTRY.iter_unpack(chunk):
                counts[digest] = counts.get(digest, 0) + _ONES[side]
        return counts

    def _chunks(self, bucket: int) -> Iterator[bytes]:
        written = self._written[bucket]
        if written:
            file = self._files.open(self._path(bucket))
            try:
                for position in range(0, written, _READ_ENTRIES * _ENTRY_SIZE):
                    size = min(_READ_ENTRIES * _ENTRY_SIZE, written - position)
                    yield file.pread(size, position)
            finally:
                file.close()
        yield bytes(self._buffers[bucket])

    def _spill(self) -> None:
        self._files.make_dirs(self._folder)
        for bucket, buffer in enumerate(self._buffers):
            if buffer:
                self._append(bucket, buffer)
                self._buffers[bucket] = bytearray()
        self._buffered = 0

    def _append(self, bucket: int, buffer: bytearray) -> None:
        self._spilled_buckets.add(bucket)
        file = self._files.open(self._path(bucket), create=True)
        try:
            done = 0
            while done < len(buffer):
                rest = memoryview(buffer)[done:]
                done += file.pwrite(rest, self._written[bucket] + done)
        finally:
            file.close()
        self._written[bucket] += len(buffer)

    def _path(self, bucket: int) -> str:
        return f"{self._folder}/{bucket:04d}"

    def close(self) -> None:
        """Remove the files and the folder. A second call does nothing."""
        buckets, self._spilled_buckets = self._spilled_buckets, set()
        for bucket in buckets:
            if self._files.exists(self._path(bucket)):
                self._files.remove(self._path(bucket))
        if buckets:
            self._files.remove_dir(self._folder)


def _unpacked(packed: int) -> Counts:
    return Counts(*(packed >> _COUNT_BITS * side & _COUNT_MASK for side in Side))


_COMMITTED: Final = IsolationLevel.READ_COMMITTED
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_EXAMPLES: Final = 5

# Special values for the earliest time of a set of records: `_NOTHING` if the set is empty,
# `_UNKNOWN` if a record in the set has no time.
_NOTHING: Final = math.inf

_UNKNOWN: Final = -math.inf
_NULL: Final = (-1).to_bytes(8, signed=True)


@dataclass(frozen=True, slots=True)
class Example:
    """Partition and offset of a missed record on B, and its timestamp on B in ms."""

    partition: TopicPartition
    offset: int
    time_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the comparison of one topic. All attributes of type int are counts of records.

    Attributes:
        topic: The topic.
        by_time: Whether create times were compared, in addition to keys and values.
        unconsumed: Records on A at or after the group's position.
        after: Records on B at or after the start.
        missed: Unconsumed records that are on B only before the start.
        absent: Unconsumed records that are not on B.
        duplicates: Records after the start on B that match consumed records on A.
        only_on_b: Records after the start on B that are not on A.
        never_on_a: Records on B before the start, in the compared range, that are not on A.
        examples: At most five of the missed records.
    """

    topic: str
    by_time: bool
    unconsumed: int = 0
    after: int = 0
    missed: int = 0
    absent: int = 0
    duplicates: int = 0
    only_on_b: int = 0
    never_on_a: int = 0
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of a partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return max(self.end - self.start, 0)


def verify(
    a: ClusterView,
    b: ClusterView,
    plan: FailoverPlan,
    spill: Spill,
    *,
    look_back_ms: int | None = None,
) -> list[Verdict]:
    """Compare the records of both clusters, topic by topic.

    Args:
        a: Cluster that the group moves from.
        b: Cluster that the group moves to.
        plan: The group's positions on A and starts on B.
        spill: Folder for data that does not fit into memory.
        look_back_ms: How far before the start B is read, in ms, to find records that never reached
            A. The read begins this long before the time for which B was searched. None means the
            margin's latency plus twice the margin's skew.

    Raises:
        InvalidRequest: The plan has no positions on A.
        ClusterFailure: A cluster can't be read.
        OSError: The folder can't be written.
    """
    if not plan.positions:
        raise InvalidRequest("--verify compares with the group's position on A: give --from")
    if look_back_ms is None:
        look_back_ms = plan.margin.latency_ms + 2 * plan.margin.skew_ms
    verdicts = []
    for topic in sorted({start.partition.topic for start in plan.starts}):
        ranges = _Ranges.of(a, b, plan, topic)
        expected = 2 * sum(r.size for r in (*ranges.a_after, *ranges.b_after))
        with DigestCounts(spill, expected=expected) as counts:
            verdicts.append(_Comparison(a, b, plan, ranges, counts).verdict(look_back_ms))
    return verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranges:
    """Offset ranges before and after the positions on A and the starts on B, for one topic."""

    topic: str
    a_before: list[Range]
    a_after: list[Range]
    b_before: list[Range]
    b_after: list[Range]

    @classmethod
    def of(cls, a: ClusterView, b: ClusterView, plan: FailoverPlan, topic: str) -> "_Ranges":
        names = plan.topics_on_a(topic)
        positions = {p: at for p, at in plan.positions.items() if p.topic in names}
        starts = {s.partition: s.offset for s in plan.starts if s.partition.topic == topic}
        # A's ends are requested first, so that A's last records have more time to reach B before
        # B's ends are requested.
        marks_a = a.watermarks(positions, isolation=_COMMITTED)
        marks_b = b.watermarks(starts, isolation=_COMMITTED)
        cuts = {p: _inside(at, marks_a[p]) for p, at in positions.items()}
        return cls(
            topic=topic,
            a_before=[Range(p, marks_a[p].start, cut) for p, cut in cuts.items()],
            a_after=[Range(p, cut, marks_a[p].end) for p, cut in cuts.items()],
            b_before=[Range(p, marks_b[p].start, cut) for p, cut in starts.items()],
            b_after=[Range(p, cut, marks_b[p].end) for p, cut in starts.items()],
        )


def _inside(position: Committed | None, marks: Watermarks) -> int:
    """Return the first unconsumed offset, at least the log start and at most the log end."""
    if position is None:
        return marks.start
    return min(max(position.offset, marks.start), marks.end)


class _Comparison:
    """Comparison of one topic on two clusters. Life cycle: create -> verdict."""

    def __init__(
        self,
        a: ClusterView,
        b: ClusterView,
        plan: FailoverPlan,
        ranges: _Ranges,
        counts: DigestCounts,
    ) -> None:
        self._a = a
        self._b = b
        self._plan = plan
        self._ranges = ranges
        self._counts = counts
        on_a = all(_shows_create_times(a, name) for name in plan.topics_on_a(ranges.topic))
        self._by_time = on_a and _shows_create_times(b, ranges.topic)

    def verdict(self, look_back_ms: int) -> Verdict:
        ranges = self._ranges
        unconsumed_ms = self._scan(self._a, Side.A_AFTER, ranges.a_after)
        earliest_ms = self._scan(self._b, Side.B_AFTER, ranges.b_after)
        before = self._before_on_b(look_back_ms, unconsumed_ms)
        earliest_ms = min(earliest_ms, self._scan(self._b, Side.B_BEFORE, before))
        if earliest_ms != _NOTHING:
            self._scan(self._a, Side.A_BEFORE, self._back_on_a(earliest_ms))
        totals = self._totals()
        examples = tuple(self._examples(before)) if totals.missed else ()
        return replace(totals, examples=examples)

    def _before_on_b(self, look_back_ms: int, unconsumed_ms: float) -> list[Range]:
        """Return the ranges to read before the starts on B.

        The ranges begin `look_back_ms` before the time for which B was searched. If an unconsumed
        record was not found after the starts, the ranges begin at the earliest time of all
        unconsumed records if that is earlier, or at the log start if times can't be compared.
        """
        starts = [s for s in self._plan.starts if s.partition.topic == self._ranges.topic]
        back = {s.partition: _back_to(s, look_back_ms) for s in starts}
        if self._totals().absent:
            furthest_ms = unconsumed_ms if self._by_time else _UNKNOWN
            back = {p: min(ms, furthest_ms) for p, ms in back.items()}
        return self._since(self._b, self._ranges.b_before, back)

    def _back_on_a(self, earliest_ms: float) -> list[Range]:
        """Return the ranges of consumed records on A that may match the records read on B.

        Args:
            earliest_ms: Earliest time in ms of the records read on B.
        """
        margin = self._plan.margin
        spare_ms = 0 if self._by_time else margin.latency_ms + margin.skew_ms
        ranges = self._ranges.a_before
        back = {r.partition: earliest_ms - spare_ms for r in ranges}
        return self._since(self._a, ranges, back)

    def _since(
        self, view: ClusterView, ranges: Iterable[Range], times: Mapping[TopicPartition, float]
    ) -> list[Range]:
        """Return the last part of each range.

        The part begins at the first record whose time is at or after the partition's time in
        `times`. The part is empty if the partition has no such record. If a topic's brokers search
        by append time, the whole range is returned: `times` are record timestamps, and a search by
        append time ignores record timestamps.
        """
        by_append = searched_by_append(view, {p.topic for p in times})
        search_times = {
            p: None if ms == _UNKNOWN or p.topic in by_append else max(int(ms), 0)
            for p, ms in times.items()
            if ms != _NOTHING
        }
        first = {start.partition: start.offset for start in find_starts(view, search_times, {})}
        return [Range(r.partition, first.get(r.partition, r.end), r.end) for r in ranges]

    def _scan(self, view: ClusterView, side: Side, ranges: Iterable[Range]) -> float:
        """Count the records in ranges; return the earliest timestamp of these records in ms.

        Returns `_UNKNOWN` if a record has no timestamp, and `_NOTHING` if there are no records.
        """
        earliest = _NOTHING
        for record in _records(view, ranges):
            self._counts.add(side, digest_of(record, by_time=self._by_time))
            time_ms = _UNKNOWN if record.timestamp is None else record.timestamp
            earliest = min(earliest, time_ms)
        return earliest

    def _totals(self) -> Verdict:
        sums = [0] * 7
        for counts, digests in self._counts.tally().items():
            for at, number in enumerate(_compare(counts)):
                sums[at] += number * digests
        return Verdict(
            topic=self._ranges.topic,
            by_time=self._by_time,
            unconsumed=sums[0],
            after=sums[1],
            missed=sums[2],
            absent=sums[3],
            duplicates=sums[4],
            only_on_b=sums[5],
            never_on_a=sums[6],
        )

    def _examples(self, before: Iterable[Range]) -> Iterator[Example]:
        """Yield at most `_EXAMPLES` missed records.

        `before` are the ranges before the starts on B. They are read again.
        """
        missed: set[bytes] = set()
        for digest, counts in self._counts.walk():
            if _compare(counts)[2] and len(missed) < _EXAMPLES:
                missed.add(digest)
        for part in before:
            for record in _records(self._b, [part]):
                digest = digest_of(record, by_time=self._by_time)
                if digest in missed:
                    missed.remove(digest)
                    yield Example(part.partition, record.offset, record.timestamp)


def _back_to(start: Start, look_back_ms: int) -> float:
    """Return the time in ms from which records before a start on B are compared."""
    if start.since_ms is not None:
        return start.since_ms - look_back_ms
    # If a start from an offset map has no time, the mirror has copied no unconsumed record to this
    # partition. So no record before the start needs to be read.
    return _NOTHING if start.kind is StartKind.MAP else _UNKNOWN


def _compare(counts: Counts) -> tuple[int, int, int, int, int, int, int]:
    """Return the counts of a `Verdict` for the records with one digest.

    The counts are in the order of `Verdict`'s fields, from `unconsumed` to `never_on_a`.
    """
    missing = max(counts.a_after - counts.b_after, 0)
    missed = min(missing, counts.b_before)
    extra = max(counts.b_after - counts.a_after, 0)
    duplicates = min(extra, counts.a_before)
    return (
        counts.a_after,
        counts.b_after,
        missed,
        missing - missed,
        duplicates,
        extra - duplicates,
        max(counts.b_before - missed - (counts.a_before - duplicates), 0),
    )


def _records(view: ClusterView, ranges: Iterable[Range]) -> Iterator[RemoteRecord]:
    for part in ranges:
        if part.size:
            yield from view.records(part.partition, part.start, part.end, isolation=_COMMITTED)


def _shows_create_times(view: ClusterView, topic: str) -> bool:
    kind = view.topic_settings(topic).get(_TIMESTAMP_TYPE)
    return kind != TimestampType.LOG_APPEND_TIME.config_name


def digest_of(record: RemoteRecord, *, by_time: bool) -> bytes:
    """Return a hash of 16 bytes of the key, the value and, if `by_time`, the create time.

    The length of the key is hashed before the key, and the length of the value before the value. So
    two records have different digests even if their keys and values differ only in where the key
    ends and the value begins.
    """
    state = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for part in (record.key, record.value):
        state.update(_NULL if part is None else len(part).to_bytes(8, signed=True))
        state.update(part or b"")
    if by_time:
        time_ms = -1 if record.timestamp is None else record.timestamp
        state.update(time_ms.to_bytes(8, signed=True))
    return state.digest()


_STARTS: Final = {
    StartKind.TIME: "by time",
    StartKind.MAP: "by the mirror's map",
    StartKind.BEGINNING: "at the beginning",
    StartKind.END: "at the end",
}


def failover_verdict(
    plan: FailoverPlan, verdicts: Sequence[Verdict] | None, *, executed: bool
) -> str:
    """Return a sentence on where the group continues on B, and which records it misses.

    Args:
        plan: The plan.
        verdicts: Results of `verify`; None if it was not requested.
        executed: Whether the plan was committed.
    """
    counts = Counter(start.kind for start in plan.starts)
    kinds = ", ".join(
        f"{counts[kind]:,} {words}" for kind, words in _STARTS.items() if counts[kind]
    )
    partitions = plural(len(plan.starts), "partition")
    starts = "starts" if executed else "can start"
    parts = [f"group {plan.request.group} {starts} on B in {partitions}: {kinds or 'none'}"]
    if verdicts is not None:
        parts.append(_verified_text(verdicts))
    parts.append("committed" if executed else "nothing was committed")
    return "; ".join(parts)


def _verified_text(verdicts: Sequence[Verdict]) -> str:
    missed = sum(one.missed for one in verdicts)
    twice = sum(one.duplicates for one in verdicts)
    absent = sum(one.absent for one in verdicts)
    never = sum(one.never_on_a for one in verdicts)
    parts = [
        f"{plural(missed, 'record')} would be MISSED" if missed else "no record would be missed",
        *([f"{plural(twice, 'record')} would be read twice"] if twice else []),
        *([f"{plural(absent, 'record')} {verb(absent, 'is', 'are')} not on B"] if absent else []),
        *([f"{plural(never, 'record')} never reached A"] if never else []),
    ]
    return ", ".join(parts)
