"""Offset map of a mirror: the target offsets of records, by source offset. Also the map's file.

A record's offset at a mirror's target differs from its offset at the source. For each pair of a
source partition and a target partition, the map has ranges of source offsets, each with the target
offsets of its records. The job `failover` uses the map to convert groups' positions. This module
has the rows (`MapRow`), functions that merge and thin rows, the lookups (`OffsetMap`), and the
file's format. `mirror.commit` and `mirror.run` write the file. `failover.job` decides whether a
failover uses a map. Only `read_map` and `write_map` do I/O.

Invariants, for a record r that the mirror copied from offset s to offset t:

1. At least one row for r's source partition and target partition has s in its source range and t in
   its target range. If an offset of a source partition is in no row's source range, the mirror
   had not copied a record from this offset when it wrote the map.
2. In a row that is dense (flag `DENSE`), each offset of the source range has a record, and t - s is
   the same for all these records. So t is known exactly.
3. r's create time is from `create_ms_min` to `create_ms_max` of its row, inclusive. But if
   `create_ms_max` is -1, at least one record of the row has no create time. At the time
   `arrival_ms` of the row, r was already at the target. So the mirror had read r before that time.
4. A record that the mirror has not copied yet will get an offset at or after its target partition's
   end in `ends`.

So a group at offset s of a source partition misses no record if its start in a target partition is
the smallest `target_start` of the rows for these two partitions with `source_end` > s. If no row
has `source_end` > s, the start is the target partition's end in `ends`.

Rows are merged to limit the map's size. All invariants also hold for merged rows. A merged row has
larger ranges, so a group that starts in these ranges reads more records twice. Exception: a row
that is merged from two adjacent dense rows is itself dense, and as precise as the two rows.

The map describes only the mirror's writes. The map does not contain records that other producers
have written to the target topics. It does not show which copied records were deleted later.

The file consists of one header, rows of equal size, and one checksum. Each batch replaces the whole
file by a rename, so a reader always gets the complete map of one batch. All numbers are big-endian.

| at | bytes | what |
|---|---|---|
| 0 | 8 | `TLOGMAP1` |
| 8 | 4 | size of the header, H |
| 12 | 4 | number of rows, N |
| 16 | H | header: JSON in UTF-8, all fields of `OffsetMap` except the rows |
| 16 + H | 72 N | rows: four int32, seven int64, in the order of `MapRow` |
| 16 + H + 72 N | 4 | CRC-32C of everything before |
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, InvalidRequest, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.record.partitioner import partition_of
from tidelog.storage import files
from tidelog.types import NO_TIMESTAMP, TopicPartition

DENSE: Final = 1


class MapRow(NamedTuple):
    """A range of source offsets, and the range of target offsets that has their records.

    Attributes:
        source: Index of the source topic in `OffsetMap.sources`.
        source_partition: Partition at the source.
        target_partition: Partition of the target topic.
        flags: DENSE, or 0.
        source_start: First source offset, inclusive.
        source_end: End of the source offsets, exclusive.
        target_start: First target offset, inclusive.
        target_end: End of the target offsets, exclusive.
        create_ms_min: Earliest create time in ms, -1 if no record has a create time.
        create_ms_max: Latest create time in ms, -1 if any record has no create time.
        arrival_ms: Time in ms at which all records were already at the target.
    """

    source: int
    source_partition: int
    target_partition: int
    flags: int
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    create_ms_min: int
    create_ms_max: int
    arrival_ms: int

    @property
    def group(self) -> tuple[int, int, int]:
        """Source, source partition and target partition. Only rows of the same group are merged."""
        return self.source, self.source_partition, self.target_partition

    @property
    def is_dense(self) -> bool:
        """Whether each source offset has a record, and t - s is the same for all records."""
        return bool(self.flags & DENSE)


def append_rows(rows: Iterable[MapRow], more: Iterable[MapRow]) -> tuple[MapRow, ...]:
    """Append rows. A dense row that continues the last row of its group is merged with that row.

    This function merges only rows with the same arrival time, because separate rows make searches
    by arrival time more precise. `thin` may merge rows with different arrival times later.
    """
    result = list(rows)
    last = {row.group: at for at, row in enumerate(result)}
    for row in more:
        at = last.get(row.group)
        if at is not None and _is_one_run(result[at], row):
            result[at] = merge(result[at], row)
        else:
            last[row.group] = len(result)
            result.append(row)
    return tuple(result)


def continues(first: MapRow, second: MapRow) -> bool:
    """Return whether both rows are dense, and `second` begins where `first` ends.

    The source range and the target range must both continue. Then t - s is the same for all records
    of the two rows.
    """
    return (
        first.is_dense
        and second.is_dense
        and first.source_end == second.source_start
        and first.target_end == second.target_start
    )


def _is_one_run(first: MapRow, second: MapRow) -> bool:
    return first.arrival_ms == second.arrival_ms and continues(first, second)


def merge(first: MapRow, second: MapRow) -> MapRow:
    """Return one row whose ranges contain the ranges of both rows."""
    known_ms = [row.create_ms_min for row in (first, second) if row.create_ms_min != NO_TIMESTAMP]
    lacks = NO_TIMESTAMP in (first.create_ms_max, second.create_ms_max)
    return MapRow(
        *first.group,
        flags=DENSE if continues(first, second) else 0,
        source_start=min(first.source_start, second.source_start),
        source_end=max(first.source_end, second.source_end),
        target_start=min(first.target_start, second.target_start),
        target_end=max(first.target_end, second.target_end),
        create_ms_min=min(known_ms, default=NO_TIMESTAMP),
        create_ms_max=NO_TIMESTAMP if lacks else max(first.create_ms_max, second.create_ms_max),
        arrival_ms=max(first.arrival_ms, second.arrival_ms),
    )


def thin(rows: tuple[MapRow, ...], rows_max: int) -> tuple[MapRow, ...]:
    """Merge pairs of rows of a group, older rows first, until at most `rows_max` rows are left.

    Rows of different groups can't be merged. So there are more than `rows_max` rows in the result
    if there are more than `rows_max` groups.
    """
    while len(rows) > rows_max:
        half = len(rows) // 2
        merged = _merge_pairs(rows[:half])
        if len(merged) == half:
            # The rows of the older half all have different groups. So older rows are merged with
            # later rows.
            merged, half = _merge_pairs(rows), len(rows)
            if len(merged) == half:
                return rows
        rows = (*merged, *rows[half:])
    return rows


def _merge_pairs(rows: tuple[MapRow, ...]) -> tuple[MapRow, ...]:
    """In each group, merge the first two rows, the next two rows, and so on."""
    result: list[MapRow] = []
    open_at: dict[tuple[int, int, int], int] = {}
    for row in rows:
        at = open_at.pop(row.group, None)
        if at is None:
            open_at[row.group] = len(result)
            result.append(row)
        else:
            result[at] = merge(result[at], row)
    return tuple(result)


# Maximum number of rows. The file is rewritten with each batch; at 72 bytes a row, all rows take
# under 5 MB.
ROWS_MAX: Final = 65_536


class OutsideMap(InvalidRequest):
    """Raised if the map can't be used for a lookup; the message has the reason."""


class Partitioning(StrEnum):
    """Rule that chooses a record's partition at the target. The file contains these values."""

    KEPT = "kept"
    KEY = "key"
    ANY = "any"


class SourcePartition(NamedTuple):
    """Partition of a source topic: the topic's index in `OffsetMap.sources`, and the partition."""

    source: int
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A source topic that the mirror copies.

    Attributes:
        place: Place of the topic: brokers as `host:port[,...]`, or a directory.
        topic: Name at the source.
        topic_id: Id as Kafka prints it; "" if the topic has none.
        target: Name of the topic at the target.
    """

    place: str
    topic: str
    topic_id: str
    target: str


class CopiedRange(NamedTuple):
    """Source offsets [start, end) that the mirror has read."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatch:
    """Copied ranges, ends and rows that one batch of a mirror adds to the map.

    Attributes:
        batch_id: Number of the batch; the numbers of consecutive batches differ by 1.
        copied: Source offsets that the batch has read, by source partition.
        ends: End offset after the batch, for each target partition that the batch has written to.
        rows: Rows for the batch's records. Rows with the same `MapRow.group` are ordered by source
            offset.
    """

    batch_id: int
    copied: Mapping[SourcePartition, CopiedRange]
    ends: Mapping[TopicPartition, int]
    rows: tuple[MapRow, ...]


class TargetOffset(NamedTuple):
    """An offset at the target, as the result of a lookup.

    Attributes:
        offset: First offset at which a requested record may be. No requested record is before this
            offset.
        is_exact: True in two cases: the first requested record is exactly at the offset; or the
            mirror has copied no requested record to the partition, and the offset is the
            partition's end.
        create_ms: Earliest create time in ms in the rows from which the offset was computed; -1 if
            unknown.
    """

    offset: int
    is_exact: bool
    create_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    """Offset map of all records that a mirror has written. Immutable.

    Attributes:
        target: Place that records are copied to: brokers, or a directory.
        target_ids: Id of each topic at the target; "" if the topic has no id.
        partition_counts: Number of partitions of each topic at the target.
        sources: The source topics.
        partitioning: How partitions at the target are chosen.
        batch_id: Number of the last batch, -1 before the first batch.
        copied: Source offsets that the mirror has read, by source partition.
        ends: End offsets of all target partitions, as the mirror last saw them.
        rows: Rows, in the order in which they were added.
    """

    target: str
    target_ids: Mapping[str, str]
    partition_counts: Mapping[str, int]
    sources: tuple[SourceTopic, ...]
    partitioning: Partitioning
    batch_id: int = -1
    copied: Mapping[SourcePartition, CopiedRange] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    rows: tuple[MapRow, ...] = ()

    # -- lookups -----------------------------------------------------------------------------

    def source_number(self, topic: str, topic_id: str | None = None, place: str = "") -> int:
        """Return the index of a source topic, found by id or by name.

        If `topic_id` is given, a source topic with another id does not match; a source topic
        without an id may match. If several source topics match by name, the source topic at
        `place` is returned.

        Raises:
            OutsideMap: No source topic matches; or several match by name, and none or several of
                them are at `place`.
        """
        named = [n for n, source in enumerate(self.sources) if source.topic == topic]
        if topic_id:
            for number in named:
                if self.sources[number].topic_id == topic_id:
                    return number
        unsure = [n for n in named if not topic_id or not self.sources[n].topic_id]
        if len(unsure) > 1:
            unsure = [n for n in unsure if self.sources[n].place == place] or unsure
        if len(unsure) == 1:
            return unsure[0]
        if unsure:
            places = ", ".join(self.sources[n].place for n in unsure)
            raise OutsideMap(f"the map has several sources called {topic}: {places}")
        if named:
            source_id = self.sources[named[0]].topic_id
            raise OutsideMap(f"the map is of another topic {topic}: id {source_id}, not {topic_id}")
        names = ", ".join(sorted({source.topic for source in self.sources}))
        raise OutsideMap(f"the map has no source {topic}; it has: {names}")

    def targets(self, source: int) -> list[TopicPartition]:
        """Return the target partitions in which records of a source topic may be."""
        topic = self.sources[source].target
        return [TopicPartition(topic, number) for number in range(self.partition_counts[topic])]

    def starts(
        self, source_partition: SourcePartition, offset: int
    ) -> dict[TopicPartition, TargetOffset]:
        """Return, by target partition, where to continue reading a source partition.

        Reads from these offsets return each copied record that is at or after `offset` at the
        source. The reads may also return earlier records.

        Args:
            source_partition: The source partition.
            offset: Next offset to read in the source partition, such as a group's position.

        Raises:
            OutsideMap: The mirror began after `offset`, or has not read the partition.
        """
        copied = self.copied.get(source_partition)
        name = f"{self.sources[source_partition.source].topic}-{source_partition.partition}"
        if copied is None:
            raise OutsideMap(f"the mirror has copied nothing of {name} yet")
        if offset < copied.start:
            raise OutsideMap(
                f"the mirror began at offset {copied.start} of {name}, which is after offset"
                f" {offset}"
            )
        rows = [row for row in self._rows_of(source_partition) if row.source_end > offset]
        return self._first(source_partition.source, rows, offset)

    def starts_by_arrival(self, source: int, time_ms: int) -> dict[TopicPartition, TargetOffset]:
        """Return, by target partition, starts that miss no record appended at `time_ms` or later.

        A record is appended to the source before it arrives at the target. So a row is left out if
        all its records arrived at the target before `time_ms`, because the source appended them
        even earlier. This assumes that the clocks of source and mirror agree. If the clocks may
        differ, the caller must subtract the maximum difference from `time_ms`.
        """
        rows = (row for row in self.rows if row.source == source and row.arrival_ms >= time_ms)
        return self._first(source, rows)

    def starts_by_create_time(
        self, source: int, time_ms: int
    ) -> dict[TopicPartition, TargetOffset]:
        """Return, by target partition, starts that miss no record created at `time_ms` or later."""
        rows = (
            row
            for row in self.rows
            if row.source == source
            and (row.create_ms_max == NO_TIMESTAMP or row.create_ms_max >= time_ms)
        )
        return self._first(source, rows)

    def start_of_key(
        self, source_partition: SourcePartition, offset: int, key: bytes
    ) -> tuple[TopicPartition, TargetOffset]:
        """Return the target partition of a key's records, and the start in this partition.

        The records of the key in other source partitions may be in other target partitions.

        Args:
            source_partition: The source partition with the key.
            offset: Next offset to read in the source partition.
            key: The key.

        Raises:
            OutsideMap: See `starts`; or a transform has chosen the partitions.
        """
        if self.partitioning is Partitioning.ANY:
            raise OutsideMap("partitions were chosen by a transform: a key may be in any of them")
        topic, number = self.sources[source_partition.source].target, source_partition.partition
        if self.partitioning is Partitioning.KEY:
            number = partition_of(key, self.partition_counts[topic])
        target = TopicPartition(topic, number)
        return target, self.starts(source_partition, offset)[target]

    def origins(self, target: TopicPartition, offset: int) -> list[MapRow]:
        """Return the rows whose target range contains an offset.

        If the mirror wrote the record at this offset, the source range of one of these rows
        contains the record's source offset.
        """
        return [
            row
            for row in self.rows
            if self._target(row) == target and row.target_start <= offset < row.target_end
        ]

    def _first(
        self, source: int, rows: Iterable[MapRow], offset: int | None = None
    ) -> dict[TopicPartition, TargetOffset]:
        """Return, for each target partition, the smallest start that the rows have.

        The start in a target partition without a row is this partition's end.

        Args:
            source: Index of the source topic.
            rows: Rows in which requested records may be.
            offset: First requested source offset; None for the start of each row.
        """
        starts: dict[TopicPartition, TargetOffset] = {}
        for row in rows:
            target, start = self._target(row), _start_in(row, offset)
            old = starts.get(target, start)
            created = min(start.create_ms, old.create_ms)
            starts[target] = min(start, old, key=_offset)._replace(create_ms=created)
        return {
            t: starts.get(t, TargetOffset(self.ends[t], is_exact=True))
            for t in self.targets(source)
        }

    def _target(self, row: MapRow) -> TopicPartition:
        return TopicPartition(self.sources[row.source].target, row.target_partition)

    def _rows_of(self, source_partition: SourcePartition) -> Iterable[MapRow]:
        return (r for r in self.rows if (r.source, r.source_partition) == source_partition)

    # -- additions ---------------------------------------------------------------------------

    def add(self, batch: MapBatch, *, rows_max: int = ROWS_MAX) -> "OffsetMap":
        """Return the map with the batch added; unchanged if the map has this or a later batch.

        Args:
            batch: Additions of the next batch.
            rows_max: Maximum number of rows. If there are more rows, older rows are merged. One row
                for each pair of a source partition and a target partition always remains, even if
                there are more than `rows_max` pairs.
        """
        if batch.batch_id <= self.batch_id:
            return self
        copied = dict(self.copied)
        for name, new in batch.copied.items():
            old = copied.get(name)
            copied[name] = new if old is None else CopiedRange(old.start, max(old.end, new.end))
        ends = {t: max(end, self.ends.get(t, 0)) for t, end in batch.ends.items()}
        return replace(
            self,
            batch_id=batch.batch_id,
            copied=copied,
            ends={**self.ends, **ends},
            rows=thin(append_rows(self.rows, batch.rows), rows_max),
        )


def _start_in(row: MapRow, offset: int | None) -> TargetOffset:
    """Return the target offset of a row's first record at or after a source offset.

    If the row is not dense, or the source offset is None, the result is the start of the row's
    target range, and `is_exact` is false.
    """
    created = NO_TIMESTAMP if row.create_ms_max == NO_TIMESTAMP else row.create_ms_min
    if offset is None or not row.is_dense:
        return TargetOffset(row.target_start, is_exact=False, create_ms=created)
    inside = max(offset - row.source_start, 0)
    return TargetOffset(row.target_start + inside, is_exact=True, create_ms=created)


def _offset(start: TargetOffset) -> int:
    return start.offset


MAGIC: Final = b"TLOGMAP1"
_MAGIC_NAME: Final = b"TLOGMAP"
_FRAME: Final = struct.Struct(">8sII")
ROW: Final = struct.Struct(">4i7q")
_CRC: Final = struct.Struct(">I")

assert _FRAME.size == 16
assert ROW.size == 72


def encode_map(offset_map: OffsetMap) -> bytes:
    """Return the content of the file for a map."""
    header = json.dumps(_header(offset_map), sort_keys=True).encode()
    parts = [_FRAME.pack(MAGIC, len(header), len(offset_map.rows)), header]
    parts += [ROW.pack(*row) for row in offset_map.rows]
    content = b"".join(parts)
    return content + _CRC.pack(crc32c(content))


def _header(offset_map: OffsetMap) -> dict[str, object]:
    return {
        "target": offset_map.target,
        "topics": {
            topic: {"id": offset_map.target_ids.get(topic, ""), "partitions": count}
            for topic, count in offset_map.partition_counts.items()
        },
        "sources": [[s.place, s.topic, s.topic_id, s.target] for s in offset_map.sources],
        "partitioning": offset_map.partitioning.value,
        "batch": offset_map.batch_id,
        "copied": [
            [*partition, *copied] for partition, copied in sorted(offset_map.copied.items())
        ],
        "ends": [[t.topic, t.partition, end] for t, end in sorted(offset_map.ends.items())],
    }


def decode_map(data: bytes) -> OffsetMap:
    """Decode the content of a map's file.

    Raises:
        CorruptFile: The content is not a map, or is damaged.
        UnsupportedVersion: A later release wrote the map.
    """
    if len(data) < _FRAME.size + _CRC.size:
        raise CorruptFile(f"{len(data)} bytes are too few for an offset map")
    magic, header_size, row_count = _FRAME.unpack_from(data)
    if magic != MAGIC:
        if magic.startswith(_MAGIC_NAME):
            raise UnsupportedVersion(
                f"the offset map begins with {magic!r}, but this release supports only {MAGIC!r}"
            )
        raise CorruptFile("not an offset map: wrong magic bytes", at=0)
    rows_at = _FRAME.size + header_size
    size = rows_at + row_count * ROW.size + _CRC.size
    if len(data) != size:
        raise CorruptFile(
            f"the offset map's file has {len(data)} bytes, but its frame describes {size} bytes"
        )
    (stored_crc,) = _CRC.unpack_from(data, size - _CRC.size)
    if crc32c(memoryview(data)[: -_CRC.size]) != stored_crc:
        raise CorruptFile("the offset map's checksum is wrong", at=size - _CRC.size)
    try:
        rows = tuple(map(MapRow._make, ROW.iter_unpack(data[rows_at : -_CRC.size])))
        return _checked(_read_header(data[_FRAME.size : rows_at], rows))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"the offset map's header can't be read: {error}") from error


def _read_header(data: bytes, rows: tuple[MapRow, ...]) -> OffsetMap:
    content = json.loads(data)
    topics = {str(topic): fields for topic, fields in content["topics"].items()}
    return OffsetMap(
        target=str(content["target"]),
        target_ids={topic: str(fields["id"]) for topic, fields in topics.items()},
        partition_counts={topic: int(fields["partitions"]) for topic, fields in topics.items()},
        sources=tuple(
            SourceTopic(place=str(place), topic=str(topic), topic_id=str(id_), target=str(target))
            for place, topic, id_, target in content["sources"]
        ),
        partitioning=Partitioning(content["partitioning"]),
        batch_id=int(content["batch"]),
        copied={
            SourcePartition(int(source), int(partition)): CopiedRange(int(start), int(end))
            for source, partition, start, end in content["copied"]
        },
        ends={
            TopicPartition(str(topic), int(partition)): int(end)
            for topic, partition, end in content["ends"]
        },
        rows=rows,
    )


def _checked(offset_map: OffsetMap) -> OffsetMap:
    """Return the map unchanged; raises ValueError if its fields contradict each other."""
    for source in offset_map.sources:
        count = offset_map.partition_counts[source.target]
        if any(TopicPartition(source.target, n) not in offset_map.ends for n in range(count)):
            raise ValueError(f"the end offset of a partition of {source.target} is missing")
    for row in offset_map.rows:
        if not 0 <= row.source < len(offset_map.sources):
            raise ValueError(
                f"a row has source {row.source}, but there are {len(offset_map.sources)} sources"
            )
        count = offset_map.partition_counts[offset_map.sources[row.source].target]
        if (
            not 0 <= row.target_partition < count
            or not 0 <= row.source_start < row.source_end
            or not 0 <= row.target_start < row.target_end
            or row.flags not in (0, DENSE)
        ):
            raise ValueError(f"invalid row: {tuple(row)}")
    return offset_map


def read_map(fs: FileSystem, path: str) -> OffsetMap:
    """Read a map's file.

    Raises:
        CorruptFile, UnsupportedVersion: See `decode_map`; CorruptFile has the path.
        OSError: The file does not exist or can't be read.
    """
    try:
        return decode_map(files.read_file(fs, path))
    except CorruptFile as error:
        raise error.located(path) from error


def write_map(fs: FileSystem, path: str, offset_map: OffsetMap) -> None:
    """Replace a map's file durably; after a crash the file has either the old or the new map.

    Raises:
        OSError: The file can't be written.
    """
    files.write_atomically(fs, path, encode_map(offset_map))
