"""A cleaning as plain values: the job, its rules, its groups and parts, and its result.

A job holds everything that a cleaning needs to know besides the segments' files, so that it can run
in another process, without the directory's lock. All values go through JSON. Paths are the
machine's own.

Owns also how a job is cut and grouped, which are decisions without effects:

- Parts (`parts_of`), for workers side by side: each maps all keys of the head, so what stays is
  what one cleaner would have kept, to the record. Markers of transactions depend on what precedes
  them in the log, and where versions decide, whoever rewrites the head must have held the whole
  tail against it: such a job has one part.
- Groups (`group_segments`): runs of segments that fit the limits of one segment together.

Not owned: any decision on a single record (`rewriting`, `key_mapping`).

Source: Kafka 4.x LogToClean, CleanerStats, CleanerConfig, Cleaner.groupSegmentsBySize; KIP-280;
KAFKA-6264 (offsets must fit 32 bits).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Protocol, Self
from uuid import UUID

from tidelog.config.values import LOAD_FACTOR_MAX
from tidelog.errors import ConfigError, CorruptFile, InvalidRequest
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


# Kafka's smallest: below it a map holds so few keys that a log is read over and over.
DEDUPE_BUFFER_BYTES_MIN: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The settings that a cleaning goes by.

    Attributes:
        strategy: Which record of a key stays: the one with the highest `offset`, the highest
            record `timestamp`, or the highest version in a `header`; of equal ones the one with
            the highest offset.
        header: Name of the version header for that strategy, else empty. Its last occurrence
            counts, 8 bytes, a big-endian int64; a record without one, or with another length,
            comes after all that have one.
        delete_retention_ms: How long tombstones and markers stay after they were first cleaned.
        hash_name: How keys are hashed, `siphash` (with a fresh secret) or `md5`.
        verify_keys: Keep the keys themselves, so that equal hashes of different keys are told
            apart; the keys then take their room from the same buffer.
        dedupe_buffer_bytes: Memory of the offset map, keys included.
        load_factor: Part of its slots that may be used, at most 0.9.
        index_interval_bytes: As the topic's `index.interval.bytes`.
        segment_index_bytes: As the topic's `segment.index.bytes`.
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
        """Refuse what can't be meant; raises ConfigError."""
        if self.strategy not in STRATEGIES:
            raise ConfigError("compaction strategy", self.strategy, f"one of {STRATEGIES}")
        if (self.strategy == HEADER_STRATEGY) != bool(self.header):
            allowed = f"a name for the strategy {HEADER_STRATEGY}, and only for that"
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
        """Whether more than the offset decides, so that the whole log has to be mapped."""
        return self.strategy != OFFSET_STRATEGY


SEED_SIZE: Final = 16


class Throttle(Protocol):
    """Who may hold a cleaning up."""

    def take(self, size_bytes: int) -> None:
        """Return as soon as so many bytes may be read or written.

        A cleaning that has to end early is ended by an exception from here: nothing of it is left.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A finished segment of the partition's directory, by its final file names.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it, exclusive.
        size_bytes: Size of its log file.
        last_modified_ms: When its log file was last modified; tombstones of old formats go by it.
        append_end: Offset from which on its `.appendtime` is not believed, exclusive; its end
            offset where the holder of the lock knows all its rows to be right.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    last_modified_ms: int
    append_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Source segments that become one `.cleaned` segment, named by the first base.

    Attributes:
        bases: Their base offsets, ascending.
        drop_expired: Whether tombstones and markers whose delete horizon has passed may go: only
            where no segment or object outside of the job can hold a record that they cover.
            Markers need the job to rewrite all older segments, too: whether a batch of their
            transaction is left, if only an empty one, is seen where it is met.
    """

    bases: tuple[int, ...]
    drop_expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """One cleaning of one partition.

    Attributes:
        directory: The partition's directory.
        topic: Its topic.
        partition: Its number.
        topic_id: The topic's id, all zero where the directory has none.
        sources: Segments to read, in order of their offsets: those of all groups, and those
            whose keys are only mapped.
        groups: What is to be rewritten, in order of their offsets.
        map_from: First offset whose key goes into the map, inclusive, whatever the strategy: what
            lies before it is held against the map record by record, versions included.
        map_to: Offset behind the last one whose key goes into the map, exclusive. No record from
            there on is dropped.
        log_start_offset: The log's start; records below it are never mapped, and dropped.
        upper_bound_offset: A batch that ends before it is kept, if only as an empty one, so that
            the log's offsets are not lost.
        now_ms: Wall time; delete horizons are set from it and held against it.
        rules: By which rule.
        active_producers: Of each producer that is alive, the last data offset (-1 where it has
            none in the log) and its epoch: the batch that tells of it stays, if only as an empty
            one.
        aborted: Aborted transactions with records or a marker in the sources, in order of their
            markers; those whose marker lies in a later segment count.
        seed: 16 bytes, drawn anew for each run, so that nobody can make keys collide.
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
        """Refuse a job that can't be; raises InvalidRequest."""
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
            raise InvalidRequest("a group without segments, or with one that is no source")
        if bases != sorted(set(bases)):
            raise InvalidRequest("segments of groups are out of order, or in two groups")
        if not 0 <= self.map_from <= self.map_to:
            raise InvalidRequest(
                f"keys of offsets {self.map_from} to {self.map_to} can't be mapped"
            )

    def lets_go(self, group: Group, mapped_to: int) -> bool:
        """Whether a group's tombstones and markers past their horizon go, with so much mapped.

        Where versions decide, a tombstone may cover records that come after it: it stays until all
        of them have been held against it. One that was mapped may cover records before it, which
        are swapped out last: so its group lies before the map.

        Args:
            group: One of the job's.
            mapped_to: Offset behind the last one whose key went into the map, exclusive.
        """
        if not (group.drop_expired and self.rules.has_versions):
            return group.drop_expired
        ends = (each.end_offset for each in self.sources if each.base_offset == group.bases[-1])
        return mapped_to == self.map_to and next(ends) <= self.map_from

    def to_json(self) -> str:
        """The job as a JSON text; it holds the secret seed."""
        return json.dumps(asdict(self) | {"topic_id": self.topic_id.hex, "seed": self.seed.hex()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave.

        Raises:
            CorruptFile: It has another shape.
            InvalidRequest, ConfigError: Its values can't be.
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
    """What a cleaning has found in one source segment: its yield. Counts grow while it runs.

    Attributes:
        base_offset: Which segment.
        bytes_before: Size of its log file.
        bytes_after: Bytes of it that are in the cleaned segment.
        records_before: Its records, those of markers included.
        records_after: Records of it that are left, those of markers included.
        tombstones_after: Tombstones among them.
        markers_after: Control records among them.
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
        base_offset: Its name.
        end_offset: Offset behind it, exclusive: the end of the last source.
        sources: What was found in each source, in order.
        suffixes: Its files: each is `BASE` + suffix + `.cleaned`. `.log` is among them even where
            nothing is left.
    """

    base_offset: int
    end_offset: int
    sources: tuple[CleanedSource, ...]
    suffixes: tuple[str, ...]

    @property
    def bases(self) -> tuple[int, ...]:
        """Base offsets of the segments that it takes the place of."""
        return tuple(source.base_offset for source in self.sources)

    @property
    def bytes_before(self) -> int:
        """Bytes of the sources' log files."""
        return sum(source.bytes_before for source in self.sources)

    @property
    def bytes_after(self) -> int:
        """Bytes of the cleaned log file; 0 where nothing is left, not even an empty batch."""
        return sum(source.bytes_after for source in self.sources)

    @property
    def records_before(self) -> int:
        """Records of the sources."""
        return sum(source.records_before for source in self.sources)

    @property
    def records_after(self) -> int:
        """Records that are left."""
        return sum(source.records_after for source in self.sources)

    @property
    def tombstones_after(self) -> int:
        """Tombstones that are left."""
        return sum(source.tombstones_after for source in self.sources)

    @property
    def markers_after(self) -> int:
        """Control records that are left."""
        return sum(source.markers_after for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What a cleaning has done. Nothing is renamed or removed yet.

    Attributes:
        groups: The groups that were rewritten, in order. One that begins at or behind `mapped_to`
            is left out: no file was written for it.
        mapped_to: Offset behind the last one whose key is in the map, exclusive. Less than the
            job's `map_to` where the map was full: the rest is another pass's.
        keys: Different keys in the map.
        bytes_read: From log files, mapping and rewriting together.
        bytes_written: Into log files.
    """

    groups: tuple[CleanedGroup, ...]
    mapped_to: int
    keys: int
    bytes_read: int
    bytes_written: int

    def to_json(self) -> str:
        """The result as a JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; raises CorruptFile for another shape."""
        result = read_json(text.encode(), "cleaning result")
        return read_record(cls, result.content, result.what)


def _number(name: str) -> int:
    return parse_number(name, "producer id")


def _last(producers: Fields, name: str) -> tuple[int, int]:
    offset, epoch = _integers(producers.value(name), 2)
    return offset, epoch


def _integers(value: object, count: int) -> list[int]:
    """A list of so many whole numbers; raises CorruptFile."""
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
        raise CorruptFile(f"{fields.what}: `{name}` is no {SEED_SIZE} bytes in hexadecimal digits")
    return data


def parts_of(job: CleaningJob, part_bytes: int | None) -> Iterator[CleaningJob]:
    """The job in parts that rewrite about so many bytes each, in order; whole where None."""
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
    # A job that rewrites nothing tells all the same how far its map reaches.
    if part_groups or not job.groups:
        yield _part(job, part_groups)


def _part(job: CleaningJob, groups: Sequence[Group]) -> CleaningJob:
    """Some groups of a job: their segments, and those whose keys are mapped."""
    bases = {base for group in groups for base in group.bases}
    sources = tuple(
        source
        for source in job.sources
        if source.base_offset in bases or source.end_offset > job.map_from
    )
    return replace(job, groups=tuple(groups), sources=sources)


def together(parts: Sequence[Cleaned]) -> Cleaned:
    """What the parts of a job have done, as one."""
    reached = {part.mapped_to for part in parts}
    assert len(reached) == 1, f"maps of one job reach to {sorted(reached)}"
    return Cleaned(
        groups=tuple(group for part in parts for group in part.groups),
        mapped_to=reached.pop(),
        keys=max(part.keys for part in parts),
        bytes_read=sum(part.bytes_read for part in parts),
        bytes_written=sum(part.bytes_written for part in parts),
    )


# Segments that become one have no more bytes together, whatever `segment.bytes` allows: what is
# written may be longer than what was read, and what does not fit could never be cleaned.
GROUP_BYTES_MAX: Final = INT32_MAX // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSize:
    """What grouping looks at in a finished segment.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it, exclusive.
        log_bytes: Size of its log file.
        index_bytes: Size of its offset index.
        time_index_bytes: Size of its time index.
    """

    base_offset: int
    end_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What one segment may hold: bytes of its log, and of each of its two indexes."""

    log_bytes: int
    index_bytes: int


def group_segments(segments: Iterable[SegmentSize], limits: GroupLimits) -> list[tuple[int, ...]]:
    """Base offsets of segments that become one, in order; each segment is in one group.

    A segment that is over a limit by itself has a group of its own.
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
