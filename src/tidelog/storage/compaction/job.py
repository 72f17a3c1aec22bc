"""A cleaning as plain values: the job, its rules, its groups and parts, and its result.

A job holds the whole input of a cleaning except the segments' files, so that it can run in another
process, without the directory's lock. All values can be encoded as JSON. Paths are valid on this
machine only.

This module also owns how a job is split and grouped:

- Parts (`parts_of`), for workers that run in parallel. Each part maps all keys of the head, so the
  parts together keep exactly the records that the undivided job would keep. A job with transactions
  must not be split, because markers depend on earlier batches of the log. A job whose strategy
  compares versions must not be split either, because all records of the tail have to be looked up
  in the map before the head is rewritten.
- Groups (`group_segments`): consecutive segments that together fit the limits of one segment.

`rewriting` and `key_mapping` own all decisions on single records.

Source: Kafka 4.x LogToClean, CleanerStats, CleanerConfig, Cleaner.groupSegmentsBySize; KIP-280;
KAFKA-6264 (offsets must fit 32 bits).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Final, Protocol, Self
from uuid import UUID

from tidelog.config.values import LOAD_FACTOR_MAX
from tidelog.errors import ConfigError, CorruptFile, InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.storage.text_files import Fields, parse_number, read_json, read_record
from tidelog.types import INT32_MAX, INT64_MAX, INT64_MIN

OFFSET_STRATEGY: Final = "offset"
TIMESTAMP_STRATEGY: Final = "timestamp"
HEADER_STRATEGY: Final = "header"
STRATEGIES: Final = (OFFSET_STRATEGY, TIMESTAMP_STRATEGY, HEADER_STRATEGY)
SIPHASH: Final = "siphash"
MD5: Final = "md5"
HASH_NAMES: Final = (SIPHASH, MD5)

# Minimum of `dedupe_buffer_bytes`, as in Kafka: a smaller map holds so few keys that the log has to
# be read many times.
DEDUPE_BUFFER_BYTES_MIN: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """Settings of a cleaning.

    Attributes:
        strategy: Rule that decides which record of a key is kept: the record with the highest
            `offset`, the highest record `timestamp`, or the highest version in a `header`. Of
            records with equal timestamps or versions, the record with the highest offset is kept.
        header: Name of the version header for the strategy `header`; empty for the other
            strategies. If a record has several such headers, the last one counts. The header's
            value is a big-endian int64 of 8 bytes. A record without such a header, or with a value
            of another length, ranks below all records with a version.
        delete_retention_ms: Time in ms that tombstones and markers stay after their first cleaning.
        hash_name: Hash function of keys, `siphash` (with a fresh secret) or `md5`.
        verify_keys: Whether the offset map also stores the keys, to distinguish different keys with
            equal hashes. If True, half of the map's memory is for keys.
        dedupe_buffer_bytes: Memory of the offset map, keys included.
        load_factor: Maximum fraction of the map's slots that is used; 0.9 or less.
        index_interval_bytes: The topic's `index.interval.bytes`.
        segment_index_bytes: The topic's `segment.index.bytes`.
    """

    strategy: str = OFFSET_STRATEGY
    header: str = ""
    delete_retention_ms: int = 86_400_000
    hash_name: str = SIPHASH
    verify_keys: bool = False
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20

    def __post_init__(self) -> None:
        """Refuse invalid or conflicting settings; raises ConfigError."""
        if self.strategy not in STRATEGIES:
            raise ConfigError("compaction strategy", self.strategy, f"one of {STRATEGIES}")
        if (self.strategy == HEADER_STRATEGY) != bool(self.header):
            allowed = f"a name with the strategy {HEADER_STRATEGY}, empty with all others"
            raise ConfigError("compaction header", self.header, allowed)
        if self.hash_name not in HASH_NAMES:
            raise ConfigError("hash of keys", self.hash_name, f"one of {HASH_NAMES}")
        if self.delete_retention_ms < 0:
            raise ConfigError("delete.retention.ms", str(self.delete_retention_ms), "0 or more")
        if self.dedupe_buffer_bytes < DEDUPE_BUFFER_BYTES_MIN:
            allowed = f"{DEDUPE_BUFFER_BYTES_MIN} or more"
            raise ConfigError(
                "log.cleaner.dedupe.buffer.size", str(self.dedupe_buffer_bytes), allowed
            )
        if not 0.0 < self.load_factor <= LOAD_FACTOR_MAX:
            allowed = f"above 0, at most {LOAD_FACTOR_MAX}"
            raise ConfigError("log.cleaner.io.buffer.load.factor", str(self.load_factor), allowed)
        self._check_indexes()

    def _check_indexes(self) -> None:
        if not 0 <= self.index_interval_bytes <= INT32_MAX:
            allowed = f"0 to {INT32_MAX}"
            raise ConfigError("index.interval.bytes", str(self.index_interval_bytes), allowed)
        if not 0 < self.segment_index_bytes <= INT32_MAX:
            allowed = f"1 to {INT32_MAX}"
            raise ConfigError("segment.index.bytes", str(self.segment_index_bytes), allowed)

    @property
    def has_versions(self) -> bool:
        """Whether a timestamp or header decides which record is kept, perhaps not the last one."""
        return self.strategy != OFFSET_STRATEGY


SEED_SIZE: Final = 16


class Throttle(Protocol):
    """Limits the rate of a cleaning."""

    def take(self, size_bytes: int) -> None:
        """Return as soon as `size_bytes` bytes may be read or written.

        An exception from this method stops the cleaning, which then leaves no files.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A finished segment in the partition's directory; its files have their final names.

    Attributes:
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset.
        size_bytes: Size of the segment's log file.
        last_modified_ms: Modification time of the segment's log file; this time decides when
            tombstones of old formats are dropped.
        append_end: Offset up to which the segment's `.appendtime` is trusted, exclusive; the
            segment's end offset if all rows are known to be right.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    last_modified_ms: int
    append_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Source segments that become one `.cleaned` segment, named after the first base offset.

    Attributes:
        bases: Base offsets of the segments, ascending.
        drop_expired: Whether tombstones and markers past their delete horizon may be dropped. If
            True, no segment or object outside of the job may hold a record that the tombstones
            delete. To drop markers, the job must also read and rewrite all older segments, because
            any of them may have a batch of a marker's transaction, even an empty batch.
    """

    bases: tuple[int, ...]
    drop_expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """One cleaning of one partition.

    Attributes:
        directory: The partition's directory.
        topic: Name of the topic.
        partition: Number of the partition.
        topic_id: The topic's id, all zero if the topic has none.
        sources: Segments to read, in order of their offsets: the segments of all groups, and
            segments that are read only to map their keys.
        groups: Groups to rewrite, in order of their offsets.
        map_from: First offset whose key goes into the map, inclusive. Earlier records are not
            mapped. Instead, every earlier record is looked up in the map, with its version if the
            strategy compares versions.
        map_to: End of the offsets whose keys go into the map, exclusive. No record at or after this
            end is dropped.
        log_start_offset: Log start offset; records below it are never mapped, and are dropped.
        upper_bound_offset: End of the job's range of offsets, exclusive. A batch that ends directly
            before this end is kept, at least as an empty one, so that the log end is not lost.
        now_ms: Wall time; delete horizons are computed from it and compared with it.
        rules: The settings.
        active_producers: Last data offset (-1 if the log has no data of the producer) and epoch, by
            the id of each active producer. Each producer's last batch is kept, at least as an empty
            one.
        aborted: Aborted transactions with records or a marker in the sources, in order of their
            markers. A transaction is included even if its marker lies in a later segment.
        seed: 16 random bytes, drawn for each job, so that clients can't provoke hash collisions.
    """

    directory: str
    topic: str
    partition: int
    topic_id: UUID
    sources: tuple[SourceSegment, ...]
    groups: tuple[Group, ...]
    map_from: int
    map_to: int
    log_start_offset: int
    upper_bound_offset: int
    now_ms: int
    rules: CompactionRules
    active_producers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    aborted: tuple[AbortedTxn, ...] = ()
    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse an inconsistent job; raises InvalidRequest."""
        if len(self.seed) != SEED_SIZE:
            raise InvalidRequest(f"a seed of {len(self.seed)} bytes, {SEED_SIZE} expected")
        end = 0
        for source in self.sources:
            if not end <= source.base_offset < source.end_offset:
                raise InvalidRequest(f"source segment {source.base_offset} is out of order")
            end = source.end_offset
        source_bases = {source.base_offset for source in self.sources}
        bases = [base for group in self.groups for base in group.bases]
        if not all(group.bases for group in self.groups) or not source_bases.issuperset(bases):
            raise InvalidRequest("a group without segments, or with a segment that is not a source")
        if bases != sorted(set(bases)):
            raise InvalidRequest("segments of groups are out of order, or in two groups")
        if not 0 <= self.map_from <= self.map_to:
            raise InvalidRequest(
                f"keys of offsets {self.map_from} to {self.map_to} can't be mapped"
            )

    @property
    def delete_horizon_ms(self) -> int:
        """Delete horizon in ms that this cleaning sets for tombstones and markers without one.

        A time that is too large for the field of a batch is replaced by the field's maximum, which
        means "never".
        """
        return min(self.now_ms + self.rules.delete_retention_ms, INT64_MAX)

    def lets_go(self, group: Group, mapped_to: int) -> bool:
        """Return whether a group may drop expired tombstones and markers.

        If the strategy compares versions, a tombstone may supersede later records, so it is kept
        until all later records have been compared with it. A mapped tombstone may also supersede
        earlier records, whose segments are swapped in last. So with such a strategy, tombstones are
        dropped only in groups before the mapped offsets.

        Args:
            group: A group of the job.
            mapped_to: End of the offsets whose keys went into the map, exclusive.
        """
        if not (group.drop_expired and self.rules.has_versions):
            return group.drop_expired
        ends = (each.end_offset for each in self.sources if each.base_offset == group.bases[-1])
        return mapped_to == self.map_to and next(ends) <= self.map_from

    def to_json(self) -> str:
        """Encode the job as JSON; the text holds the secret seed."""
        return json.dumps(asdict(self) | {"topic_id": self.topic_id.hex, "seed": self.seed.hex()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode the result of `to_json`.

        Raises:
            CorruptFile: The structure is wrong.
            InvalidRequest, ConfigError: The values are invalid.
        """
        job = read_json(text.encode(), "cleaning job")
        producers = job.mapping("active_producers")
        return read_record(
            cls,
            job.content,
            job.what,
            topic_id=UUID(bytes=_bytes(job, "topic_id")),
            active_producers={_number(n): _last(producers, n) for n in producers.names},
            aborted=tuple(AbortedTxn(*_integers(each, 4)) for each in job.items("aborted")),
            seed=_bytes(job, "seed"),
        )


@dataclass(slots=True, kw_only=True)
class CleanedSource:
    """Counts of a cleaning for one source segment; the counts grow while the cleaning runs.

    Attributes:
        base_offset: Base offset of the source.
        bytes_before: Size of the source's log file.
        bytes_after: Bytes written to the cleaned segment for this source.
        records_before: Number of the source's records, markers included.
        records_after: Number of the remaining records, markers included.
        tombstones_after: Number of tombstones among the remaining records.
        markers_after: Number of control records among the remaining records.
    """

    base_offset: int
    bytes_before: int
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    tombstones_after: int = 0
    markers_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """One `.cleaned` segment.

    Attributes:
        base_offset: Base offset that the segment's files are named after.
        end_offset: Offset after the segment's last offset: the end of the last source.
        sources: Counts for each source, in order.
        suffixes: Suffixes of the cleaned segment's files, which are called `BASE` + suffix +
            `.cleaned`. The suffixes include `.log` even if no batch remains.
    """

    base_offset: int
    end_offset: int
    sources: tuple[CleanedSource, ...]
    suffixes: tuple[str, ...]

    @property
    def bases(self) -> tuple[int, ...]:
        """Base offsets of the segments that the cleaned segment replaces."""
        return tuple(source.base_offset for source in self.sources)

    @property
    def bytes_before(self) -> int:
        """Size of the sources' log files in bytes."""
        return sum(source.bytes_before for source in self.sources)

    @property
    def bytes_after(self) -> int:
        """Size of the cleaned log file in bytes; 0 if nothing remains, not even an empty batch."""
        return sum(source.bytes_after for source in self.sources)

    @property
    def records_before(self) -> int:
        """Number of records in the sources."""
        return sum(source.records_before for source in self.sources)

    @property
    def records_after(self) -> int:
        """Number of records that remain."""
        return sum(source.records_after for source in self.sources)

    @property
    def tombstones_after(self) -> int:
        """Number of tombstones that remain."""
        return sum(source.tombstones_after for source in self.sources)

    @property
    def markers_after(self) -> int:
        """Number of control records that remain."""
        return sum(source.markers_after for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningResult:
    """Result of a cleaning, before any file is renamed or removed.

    Attributes:
        groups: The groups that were rewritten, in order. A group that begins at or after
            `mapped_to` is left out: no file was written for it.
        mapped_to: End of the offsets whose keys are in the map, exclusive. This end is less than
            the job's `map_to` if the map, or the memory for notes on batches, was full. In this
            case another pass cleans the remaining offsets.
        keys: Number of different keys in the map.
        bytes_read: Bytes read from log files by both passes (mapping and rewriting).
        bytes_written: Bytes written into log files.
    """

    groups: tuple[CleanedGroup, ...]
    mapped_to: int
    keys: int
    bytes_read: int
    bytes_written: int

    def to_json(self) -> str:
        """Encode the result as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode the result of `to_json`; raises CorruptFile if the structure is wrong."""
        result = read_json(text.encode(), "cleaning result")
        return read_record(cls, result.content, result.what)


def _number(name: str) -> int:
    return parse_number(name, "producer id")


def _last(producers: Fields, name: str) -> tuple[int, int]:
    offset, epoch = _integers(producers.value(name), 2)
    return offset, epoch


def _integers(value: object, count: int) -> list[int]:
    """Check that a value is a list of `count` whole numbers; raises CorruptFile."""
    items = value if isinstance(value, list) else []
    numbers = [each for each in items if type(each) is int and INT64_MIN <= each <= INT64_MAX]
    if not isinstance(value, list) or len(numbers) != len(value) or len(numbers) != count:
        raise CorruptFile(f"{str(value)[:80]}: a list of {count} whole numbers expected")
    return numbers


def _bytes(fields: Fields, name: str) -> bytes:
    text = fields.text(name)
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) != SEED_SIZE:
        raise CorruptFile(f"{fields.what}: `{name}` must be {SEED_SIZE} bytes in hexadecimal")
    return data


def parts_of(job: CleaningJob, part_bytes: int | None) -> Iterator[CleaningJob]:
    """Yield a job's parts, in order; each part rewrites at most `part_bytes`, or one larger group.

    If `part_bytes` is None, there is one part.
    """
    sizes = {source.base_offset: source.size_bytes for source in job.sources}
    group_sizes = [sum(sizes[base] for base in group.bases) for group in job.groups]
    part_groups: list[Group] = []
    size = 0
    for group, more in zip(job.groups, group_sizes, strict=True):
        if part_groups and part_bytes is not None and size + more > part_bytes:
            yield _part(job, part_groups)
            part_groups, size = [], 0
        part_groups.append(group)
        size += more
    # A job without groups still has to report how far its map reaches.
    if part_groups or not job.groups:
        yield _part(job, part_groups)


def _part(job: CleaningJob, groups: Sequence[Group]) -> CleaningJob:
    """Return a part of a job: the given groups, and the sources that these groups need.

    The sources are the segments of the groups, and the segments whose keys go into the map.
    """
    bases = {base for group in groups for base in group.bases}
    sources = tuple(
        source
        for source in job.sources
        if source.base_offset in bases or source.end_offset > job.map_from
    )
    return replace(job, groups=tuple(groups), sources=sources)


def together(parts: Sequence[CleaningResult]) -> CleaningResult:
    """Merge the results of a job's parts into the result of the job."""
    reached = {part.mapped_to for part in parts}
    assert len(reached) == 1, f"maps of one job reach to {sorted(reached)}"
    return CleaningResult(
        groups=tuple(group for part in parts for group in part.groups),
        mapped_to=reached.pop(),
        keys=max(part.keys for part in parts),
        bytes_read=sum(part.bytes_read for part in parts),
        bytes_written=sum(part.bytes_written for part in parts),
    )


# Maximum total size of segments that are merged into one, even if `segment.bytes` allows more. The
# merged segment can be larger than its sources together. A group whose result is too large for one
# segment could never be cleaned.
GROUP_BYTES_MAX: Final = INT32_MAX // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSize:
    """Attributes of a finished segment that grouping depends on.

    Attributes:
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset.
        log_bytes: Size of the segment's log file.
        index_bytes: Size of the segment's offset index.
        time_index_bytes: Size of the segment's time index.
    """

    base_offset: int
    end_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of one segment: maximum bytes of its log, and of each of its two indexes."""

    log_bytes: int
    index_bytes: int


def group_segments(segments: Iterable[SegmentSize], limits: GroupLimits) -> list[tuple[int, ...]]:
    """Return groups of base offsets, in order. The segments of one group become one segment.

    A segment that exceeds a limit by itself is a group of its own.
    """
    groups: list[list[SegmentSize]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, limits):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [tuple(segment.base_offset for segment in group) for group in groups]


def _fits(group: list[SegmentSize], segment: SegmentSize, limits: GroupLimits) -> bool:
    together = [*group, segment]
    return (
        sum(each.log_bytes for each in together) <= min(limits.log_bytes, GROUP_BYTES_MAX)
        and sum(each.index_bytes for each in together) <= limits.index_bytes
        and sum(each.time_index_bytes for each in together) <= limits.index_bytes
        and segment.end_offset - 1 - group[0].base_offset <= INT32_MAX
    )
