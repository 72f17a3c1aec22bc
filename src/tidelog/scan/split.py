"""Splits: what one task reads, as plain values, as JSON, and statistics of reading them.

A split has topic, partition and offsets, and the pieces of files where these were at planning time.
If a file is gone (deleted, compacted, moved to another tier), the reader asks the partition again
for the offsets. Paths are opaque; only the reader's `Ranges` interprets them. Splits are immutable
and can be pickled. Their JSON has no version, because it lives for one job with one release on both
sides.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from tidelog.errors import LostOffsets
from tidelog.types import INT64_MAX, INT64_MIN, ClockName, IsolationLevel, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of a partition; None leaves a side open.

    Attributes:
        start_offset: First offset, inclusive; `EARLIEST_OFFSET` or `LATEST_OFFSET` for the log's
            own ends.
        end_offset: Offset behind the last one; `LATEST_OFFSET` for the end at planning.
        start_ms: Start of the time range, inclusive, in ms.
        end_ms: End of the time range, exclusive, in ms; INT64_MAX is no end.
        least_offset: Nothing before this offset is wanted; where the log begins later, nothing is
            lost by it.
        limit_offset: Nothing from this offset on is wanted; where the log ends before, likewise.
        filter_ms: Only records with a time in [a, b) are wanted, whatever the times above mean.
    """

    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    least_offset: int | None = None
    limit_offset: int | None = None
    filter_ms: tuple[int, int] | None = None

    @property
    def times(self) -> tuple[int, int] | None:
        """The time range [start, end) in ms, an open side as INT64_MIN or INT64_MAX.

        None where both sides are open.
        """
        if self.start_ms is None and self.end_ms is None:
            return None
        return (
            INT64_MIN if self.start_ms is None else self.start_ms,
            INT64_MAX if self.end_ms is None else self.end_ms,
        )

    def filled_from(self, other: "Wanted") -> "Wanted":
        """This, with `other`'s word where this has none."""
        own_fields = dataclasses.asdict(self)
        set_fields = {name: value for name, value in own_fields.items() if value is not None}
        return dataclasses.replace(other, **set_fields)


@dataclass(frozen=True, slots=True)
class AbortedSpan:
    """Offsets [first, last] of a producer's transaction that was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole batches of one log file that may hold offsets of a range.

    Attributes:
        path: The log file.
        identity: Tells the file from a later one of the same name.
        is_closed: The file does not change any more.
        base_offset: Base offset of the segment.
        start_position: First byte, the start of a batch.
        end_position: Byte behind the last one.
        start_offset: First offset wanted, inclusive.
        end_offset: Offset behind the last one wanted.
        times_path: The append times beside the log file, None where there are none.
        times_end: Offset from which on those are not to be believed.
        is_unknown: Append times are asked for and not known here: only batches that the log's
            owner stamped (LogAppendTime) can match.
        without_time: Of a piece without bytes: records of its offsets that have no time on the
            clock, as the zone map tells.
        records: Of a piece without bytes, in a plan that counts: records in the range of time.
        opens_all: Records without a time are among its own: they are counted only if every batch
            is opened.
        floor_offset: Offset below which no batch of the bytes begins.
        limit_offset: Offset that no batch of the bytes reaches.
    """

    path: str
    identity: str
    is_closed: bool
    base_offset: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    times_path: str | None = None
    times_end: int = 0
    is_unknown: bool = False
    without_time: int = 0
    records: int = 0
    opens_all: bool = False
    floor_offset: int = 0
    limit_offset: int = INT64_MAX

    @property
    def size_bytes(self) -> int:
        """How many bytes a reader of the piece reads; 0 where what it holds is known already."""
        return self.end_position - self.start_position

    @property
    def may_be_lost(self) -> bool:
        """Whether it is all of a finished segment without a byte, and nothing is known of it."""
        is_told = self.records > 0 or self.without_time > 0
        return self.is_closed and self.end_position == 0 and not is_told


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A part of one partition, for one task.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        start_offset: First offset wanted, inclusive.
        end_offset: Offset behind the last one wanted.
        directory: The directory of topics, where the offsets are found anew if files have gone.
        topic_id: The topic's id as 32 hexadecimal digits, "" where it has none; another topic of
            the same name has another.
        pieces: Where the offsets lay at planning, in order.
        clock: Which of a record's two times `time_range` is about.
        time_range: Times in ms wanted, [start, end); None for all.
        isolation: What a reader sees of transactions.
        aborted: Aborted transactions that touch the split.
        compacted_max: Of a split of a table: how far its partition may be compacted once it was
            read. Beyond that a record of it may have gone for one that is in no split.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    directory: str
    topic_id: str = ""
    pieces: tuple[Piece, ...] = ()
    clock: ClockName = ClockName.RECORD
    time_range: tuple[int, int] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    aborted: tuple[AbortedSpan, ...] = ()
    compacted_max: int = INT64_MAX

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size_bytes(self) -> int:
        """How many bytes of log a reader of the split reads."""
        return sum(piece.size_bytes for piece in self.pieces)


def pack(
    pieces: Sequence[Piece], split_bytes: int, max_offsets: int = INT64_MAX
) -> list[tuple[Piece, ...]]:
    """Pieces of one partition in groups of about `split_bytes`, in order.

    No group reaches over more than `max_offsets` offsets, unless a piece of it does.
    """
    groups: list[tuple[Piece, ...]] = []
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        is_far = group and piece.end_offset - group[0].start_offset > max_offsets
        if group and (size + piece.size_bytes > split_bytes or is_far):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(piece)
        size += piece.size_bytes
    if group:
        groups.append(tuple(group))
    return groups


def encode_split(split: Split) -> str:
    """The split as JSON."""
    return json.dumps(dataclasses.asdict(split), separators=(",", ":"))


def decode_split(text: str) -> Split:
    """What `encode_split` made."""
    fields = json.loads(text)
    times = fields["time_range"]
    fields |= {
        "pieces": tuple(Piece(**piece) for piece in fields["pieces"]),
        "aborted": tuple(AbortedSpan(**span) for span in fields["aborted"]),
        "clock": ClockName(fields["clock"]),
        "isolation": IsolationLevel(fields["isolation"]),
        "time_range": None if times is None else (times[0], times[1]),
    }
    return Split(**fields)


@dataclass(slots=True, kw_only=True)
class ScanStats:
    """Figures of one or more splits; complete when their iterators are through.

    Attributes:
        rows: Rows handed out.
        log_bytes: Bytes of log walked over.
        batches: Batches walked over.
        batches_opened: Those whose records were looked at.
        without_time: Records met that have no time on the asked clock, so lie in no range. All of
            them on the append clock, and on the record clock of finished segments with a zone map;
            of others none in batches that are skipped because no match can be in them, unless the
            plan is `strict`.
        counted: Records in the range that a plan which only counts knew without reading them.
        sidecar_bytes: Bytes read of append times beside the log; what planning read stands in
            `ScanPlan.sidecar_bytes`.
        splits: Splits read.
        replanned: How often files had gone and offsets were found anew.
        lost: Offsets that were gone when they were to be read.
    """

    rows: int = 0
    log_bytes: int = 0
    batches: int = 0
    batches_opened: int = 0
    without_time: int = 0
    counted: int = 0
    sidecar_bytes: int = 0
    splits: int = 0
    replanned: int = 0
    lost: list[LostOffsets] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Count in what another has met."""
        self.rows += other.rows
        self.log_bytes += other.log_bytes
        self.batches += other.batches
        self.batches_opened += other.batches_opened
        self.without_time += other.without_time
        self.counted += other.counted
        self.sidecar_bytes += other.sidecar_bytes
        self.splits += other.splits
        self.replanned += other.replanned
        self.lost += other.lost

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum of several."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole
