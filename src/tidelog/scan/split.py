"""Splits: inputs of tasks as plain values, the JSON of splits, and statistics of reads.

A split has a topic, a partition and a range of offsets, and the pieces of files that contained
these offsets at planning time. If a file is gone (deleted, compacted, or moved to the tier), the
reader looks up the offsets in the partition's current files. Paths are opaque; only the reader's
`Ranges` interprets them. Splits are immutable and can be pickled. The JSON of a split has no
version number, because the job that writes it also reads it, with the same release of tidelog.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Self

from tidelog.amounts import offsets_text, plural, verb
from tidelog.errors import InvalidRequest, LostOffsets, MissingTimestamps
from tidelog.lazy_dataclass import dataclass
from tidelog.types import INT64_MAX, INT64_MIN, ClockName, IsolationLevel, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRange:
    """Requested range of a partition; None leaves a side open.

    Attributes:
        start_offset: First offset, inclusive; `EARLIEST_OFFSET` for the log start, `LATEST_OFFSET`
            for the end of the visible records.
        end_offset: End of the offsets, exclusive; `LATEST_OFFSET` for the end of the visible
            records at planning time.
        start_ms: Start of the time range, inclusive, in ms.
        end_ms: End of the time range, exclusive, in ms; INT64_MAX means no end.
        least_offset: Offsets below `least_offset` are left out. A `least_offset` before the log
            start is not reported as a loss, but a `start_offset` before the log start is.
        limit_offset: Offsets from `limit_offset` on are left out. A `limit_offset` after the log
            end is not reported as a loss, but an `end_offset` after the log end is.
        filter_ms: Times [a, b) in ms. Records whose time is outside are left out, whichever
            `TimeMode` applies to `start_ms` and `end_ms`.
        timestamps: Leaves out records whose timestamp is not in [a, b), and records without a
            timestamp. Only for times on the append clock, see `ensure_two_clocks`. INT64_MIN and
            INT64_MAX stand for an open side.
    """

    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    least_offset: int | None = None
    limit_offset: int | None = None
    filter_ms: tuple[int, int] | None = None
    timestamps: tuple[int, int] | None = None

    @property
    def times(self) -> tuple[int, int] | None:
        """Time range [start, end) in ms, with INT64_MIN or INT64_MAX for an open side.

        None if both sides are open.
        """
        if self.start_ms is None and self.end_ms is None:
            return None
        return (
            INT64_MIN if self.start_ms is None else self.start_ms,
            INT64_MAX if self.end_ms is None else self.end_ms,
        )

    def filled_from(self, other: "RequestedRange") -> "RequestedRange":
        """Return this range, with unset fields taken from `other`."""
        own_fields = dataclasses.asdict(self)
        set_fields = {name: value for name, value in own_fields.items() if value is not None}
        return dataclasses.replace(other, **set_fields)


def ensure_two_clocks(requested: RequestedRange, clock: ClockName) -> None:
    """Raise InvalidRequest if `timestamps` is set, but there is no range of append times.

    Raise it also if `timestamps` ends before it starts.
    """
    if requested.timestamps is None:
        return
    if clock is not ClockName.APPEND or requested.times is None:
        raise InvalidRequest(
            "timestamps is a second range beside a range of append times; give start, end or"
            " during with clock='append', or use clock='record' for timestamps alone"
        )
    start_ms, end_ms = requested.timestamps
    if start_ms > end_ms:
        raise InvalidRequest(
            f"the range of timestamps starts at {start_ms} ms, after its end, {end_ms} ms"
        )


@dataclass(frozen=True, slots=True)
class AbortedSpan:
    """Offsets [first, last] of an aborted transaction of a producer."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole batches of one log file that may have offsets of a range.

    Attributes:
        path: The log file.
        identity: Identity that distinguishes the file from a later file of the same name.
        is_closed: Whether the file is finished and will not change.
        base_offset: Base offset of the segment.
        start_position: First byte, the start of a batch.
        end_position: Position after the last byte.
        start_offset: First offset to read, inclusive.
        end_offset: End of the offsets to read, exclusive.
        times_path: File with the append times; None if there is no such file.
        times_end: First offset for which the append times in this file are not trusted.
        is_unknown: Whether append times are needed but unknown. If true, only batches with a
            LogAppendTime timestamp can match.
        without_time: Number of records in the offset range that have no time on the clock. The
            number comes from the zone map. It is set only for a piece without bytes, which is not
            read.
        records: Number of records in the time range. The number is set only in a plan for counting,
            and only for a piece without bytes.
        opens_all: True if every batch must be opened, because the piece may have records without a
            time. Records without a time in unopened batches are not counted.
        floor_offset: No batch of the piece begins below this offset.
        limit_offset: All offsets of the piece's batches are below this offset.
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
        """Number of bytes to read; 0 if the piece only reports counts or lost offsets."""
        return self.end_position - self.start_position

    @property
    def may_be_lost(self) -> bool:
        """Whether the piece is of a finished file, and has neither bytes nor known counts."""
        has_counts = self.records > 0 or self.without_time > 0
        return self.is_closed and self.end_position == 0 and not has_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A part of one partition, for one task.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        start_offset: First offset to read, inclusive.
        end_offset: End of the offsets to read, exclusive.
        directory: The directory of topics, for planning again if files are gone.
        topic_id: The topic's id as 32 hexadecimal digits, "" if it has none. The id distinguishes
            the topic from another topic of the same name.
        pieces: Parts of the log files that had these offsets at planning time, in order.
        clock: Clock of `time_range`.
        time_range: Times in ms, [start, end); None for all.
        timestamps: See `RequestedRange`.
        isolation: Isolation of the reader.
        aborted: Aborted transactions that overlap the split.
        compacted_max: For a split of a table: limit that compaction must not have passed when the
            read ends. If compaction has run beyond this offset, a record of the split may be gone,
            because a newer record of its key, which is in no split, replaced it.
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
    timestamps: tuple[int, int] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    aborted: tuple[AbortedSpan, ...] = ()
    compacted_max: int = INT64_MAX

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def timestamp_range(self) -> tuple[int, int] | None:
        """Range of timestamps [start, end) in ms by which records are filtered; None for all."""
        return self.time_range if self.clock is ClockName.RECORD else self.timestamps

    @property
    def size_bytes(self) -> int:
        """Bytes of log that a reader of the split reads."""
        return sum(piece.size_bytes for piece in self.pieces)


def pack(
    pieces: Sequence[Piece], split_bytes: int, max_offsets: int = INT64_MAX
) -> list[tuple[Piece, ...]]:
    """Group the pieces of one partition, in order, into groups of about `split_bytes` each.

    A group spans at most `max_offsets` offsets. Exception: a piece with more offsets is a group of
    its own.
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
    """Return the split as JSON."""
    return json.dumps(dataclasses.asdict(split), separators=(",", ":"))


def decode_split(text: str) -> Split:
    """Return the split from the JSON of `encode_split`."""
    fields = json.loads(text)
    ranges = {name: fields[name] for name in ("time_range", "timestamps")}
    fields |= {name: None if one is None else (one[0], one[1]) for name, one in ranges.items()}
    fields |= {
        "pieces": tuple(Piece(**piece) for piece in fields["pieces"]),
        "aborted": tuple(AbortedSpan(**span) for span in fields["aborted"]),
        "clock": ClockName(fields["clock"]),
        "isolation": IsolationLevel(fields["isolation"]),
    }
    return Split(**fields)


@dataclass(slots=True, kw_only=True)
class ScanStats:
    """Statistics of one or more splits; complete after the splits' iterators are exhausted.

    Attributes:
        rows: Rows returned.
        log_bytes: Bytes of log scanned.
        batches: Batches scanned.
        batches_opened: Batches whose records were decoded.
        without_time: Records without a time on the chosen clock. These records are in no time
            range. On the append clock, the number includes all such records; where no append times
            are stored, it may be an estimate (see `UnstampedBatches`). On the record clock, it is
            complete for finished segments with a zone map. In other segments, batches that can't
            match are skipped, and their records without a time are not counted, unless the plan is
            `strict`.
        without_timestamp: Records that a range of timestamps beside a range of append times has
            left out because they have no timestamp. Batches that can't match are skipped, and
            their records are not counted.
        counted: Records in the range that were counted from zone maps, without reading the log.
        sidecar_bytes: Bytes read from append time files; `ScanPlan.sidecar_bytes` has the bytes
            read for the plan.
        splits: Splits read.
        replanned: Number of times that the rest of a split was planned again, because files were
            gone.
        lost: Offsets that were missing at the time of the read.
    """

    rows: int = 0
    log_bytes: int = 0
    batches: int = 0
    batches_opened: int = 0
    without_time: int = 0
    without_timestamp: int = 0
    counted: int = 0
    sidecar_bytes: int = 0
    splits: int = 0
    replanned: int = 0
    lost: list[LostOffsets] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Add the statistics of other splits."""
        self.rows += other.rows
        self.log_bytes += other.log_bytes
        self.batches += other.batches
        self.batches_opened += other.batches_opened
        self.without_time += other.without_time
        self.without_timestamp += other.without_timestamp
        self.counted += other.counted
        self.sidecar_bytes += other.sidecar_bytes
        self.splits += other.splits
        self.replanned += other.replanned
        self.lost += other.lost

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """Return the sum of several statistics."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole


def count_without_timestamp(stats: ScanStats, count: int, clock: ClockName) -> None:
    """Add to `stats` a number of records that have no timestamp, read for a range on a clock."""
    if clock is ClockName.RECORD:
        stats.without_time += count
    else:
        stats.without_timestamp += count


def is_in_range(time_ms: int, time_range: tuple[int, int]) -> bool:
    """Whether a time is in [a, b) in ms; b = INT64_MAX means no end."""
    start_ms, end_ms = time_range
    return start_ms <= time_ms and (time_ms < end_ms or end_ms == INT64_MAX)


def ensure_times(
    stats: ScanStats, name: TopicPartition, clock: ClockName, start_offset: int, end_offset: int
) -> None:
    """Raise MissingTimestamps if a strict read of these offsets found records without a time."""
    if stats.without_time:
        have = verb(end_offset - start_offset, "has", "have")
        raise MissingTimestamps(
            f"{name}: {offsets_text(start_offset, end_offset - 1)} {have}"
            f" {plural(stats.without_time, 'record')} without a {clock.known_time_name}, which a"
            " strict read does not allow"
        )
