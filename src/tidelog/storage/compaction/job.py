"""What a cleaning is told to do, and what it tells afterwards: plain values, that go through JSON.

A job holds everything that a cleaning needs to know beside the segments' files, so that it can run
in another process, without the directory's lock. Paths in it are the machine's own.

Source: Kafka 4.x LogToClean, CleanerStats.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol, Self
from uuid import UUID

from tidelog.errors import CorruptFile, InvalidRequest
from tidelog.storage.compaction.rules import CompactionRules
from tidelog.storage.text_files import parse_number
from tidelog.storage.tiers.fields import Fields, read_json
from tidelog.storage.txn_index import AbortedTxn
from tidelog.types import INT64_MAX, INT64_MIN

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
        known = {source.base_offset for source in self.sources}
        bases = [base for group in self.groups for base in group.bases]
        if not all(group.bases for group in self.groups) or not known.issuperset(bases):
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
        aborted = [list(txn) for txn in self.aborted]
        producers = {str(number): list(last) for number, last in self.active_producers.items()}
        plain = {
            "directory": self.directory,
            "topic": self.topic,
            "partition": self.partition,
            "topic_id": self.topic_id.hex,
            "sources": [asdict(source) for source in self.sources],
            "groups": [asdict(group) for group in self.groups],
            "map_from": self.map_from,
            "map_to": self.map_to,
            "log_start_offset": self.log_start_offset,
            "upper_bound_offset": self.upper_bound_offset,
            "now_ms": self.now_ms,
            "rules": self.rules.to_fields(),
            "active_producers": producers,
            "aborted": aborted,
            "seed": self.seed.hex(),
        }
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave.

        Raises:
            CorruptFile: It has another shape.
            InvalidRequest, ConfigError: Its values can't be.
        """
        fields = read_json(text.encode(), "cleaning job")
        producers = fields.mapping("active_producers")
        return cls(
            directory=fields.text("directory"),
            topic=fields.text("topic"),
            partition=fields.integer("partition"),
            topic_id=UUID(bytes=_bytes(fields, "topic_id")),
            sources=tuple(_source(each) for each in _objects(fields, "sources")),
            groups=tuple(_group(each) for each in _objects(fields, "groups")),
            map_from=fields.integer("map_from"),
            map_to=fields.integer("map_to"),
            log_start_offset=fields.integer("log_start_offset"),
            upper_bound_offset=fields.integer("upper_bound_offset"),
            now_ms=fields.integer("now_ms"),
            rules=CompactionRules.from_fields(fields.mapping("rules")),
            active_producers={_number(n): _last(producers, n) for n in producers.names},
            aborted=tuple(AbortedTxn(*_integers(each, 4)) for each in fields.items("aborted")),
            seed=_bytes(fields, "seed"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSource:
    """What a cleaning has found in one source segment: its yield.

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
    bytes_after: int
    records_before: int
    records_after: int
    tombstones_after: int
    markers_after: int


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
        fields = read_json(text.encode(), "cleaning result")
        return cls(
            groups=tuple(_cleaned_group(each) for each in _objects(fields, "groups")),
            mapped_to=fields.integer("mapped_to"),
            keys=fields.integer("keys"),
            bytes_read=fields.integer("bytes_read"),
            bytes_written=fields.integer("bytes_written"),
        )


def _objects(fields: Fields, name: str) -> list[Fields]:
    return [Fields.of(each, f"`{name}` of {fields.what}") for each in fields.items(name)]


def _source(fields: Fields) -> SourceSegment:
    return SourceSegment(
        base_offset=fields.integer("base_offset"),
        end_offset=fields.integer("end_offset"),
        size_bytes=fields.integer("size_bytes"),
        last_modified_ms=fields.integer("last_modified_ms"),
        append_end=fields.integer("append_end"),
    )


def _group(fields: Fields) -> Group:
    bases = fields.items("bases")
    return Group(
        bases=tuple(_integers(bases, len(bases))), drop_expired=fields.flag("drop_expired")
    )


def _cleaned_group(fields: Fields) -> CleanedGroup:
    return CleanedGroup(
        base_offset=fields.integer("base_offset"),
        end_offset=fields.integer("end_offset"),
        sources=tuple(_cleaned_source(each) for each in _objects(fields, "sources")),
        suffixes=tuple(str(each) for each in fields.items("suffixes")),
    )


def _cleaned_source(fields: Fields) -> CleanedSource:
    return CleanedSource(
        base_offset=fields.integer("base_offset"),
        bytes_before=fields.integer("bytes_before"),
        bytes_after=fields.integer("bytes_after"),
        records_before=fields.integer("records_before"),
        records_after=fields.integer("records_after"),
        tombstones_after=fields.integer("tombstones_after"),
        markers_after=fields.integer("markers_after"),
    )


def _number(name: str) -> int:
    return parse_number(name, "producer id")


def _last(producers: Fields, name: str) -> tuple[int, int]:
    offset, epoch = _integers(producers.value(name), 2)
    return offset, epoch


def _integers(value: object, count: int) -> list[int]:
    """A list of so many whole numbers; raises CorruptFile."""
    found = value if isinstance(value, list) else []
    numbers = [each for each in found if type(each) is int and INT64_MIN <= each <= INT64_MAX]
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
