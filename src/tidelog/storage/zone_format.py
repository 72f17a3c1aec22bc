"""What `BASE.zones` is made of: the words of a zone map, their layout, and how it is written.

File: header (layout of a row, so that fields of later versions can be skipped), rows by blocks,
then the footer: the table of blocks, sections (sums of the sibling files, latencies), trailer. The
trailer's checksum covers the footer; each block of rows has its checksum in the table.

Pure. `tidelog.storage.zones` reads it. Source: docs/format.md#zone-maps.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.record.coding import crc32c
from tidelog.storage.latency import LatencyByHour
from tidelog.types import INT64_MAX, INT64_MIN, ClockName

MAGIC: Final = b"TLZM"
END_MAGIC: Final = b"TLZE"
VERSION: Final = 1
# Whole batches up to this size make a zone, and a larger batch one of its own: about 16 KB.
ZONE_BYTES: Final = 20 << 10
# Records of a zone: small batches may expand to very many, and their number takes 32 bits.
ZONE_RECORDS: Final = 1 << 30
# Rows of a block: what a search reads at least.
BLOCK_ROWS: Final = 64

# The fields of a row: the number that stands for each in the header, and its code.
ROW_FIELDS: Final = (
    ("size", 1, "I"),
    ("first offset", 2, "I"),
    ("last offset", 3, "I"),
    ("data records", 4, "I"),
    ("control records", 5, "I"),
    ("tombstones", 6, "I"),
    ("transactional", 7, "?"),
    ("timed records", 8, "I"),
    ("min record ms", 9, "q"),
    ("max record ms", 10, "q"),
    ("stamped records", 11, "I"),
    ("min append ms", 12, "q"),
    ("max append ms", 13, "q"),
    ("crc", 14, "I"),
)
HEAD: Final = struct.Struct(">4sHHHH")
FIELD: Final = struct.Struct(">HH")
CRC: Final = struct.Struct(">I")
ROW: Final = struct.Struct(">" + "".join(code for _, _, code in ROW_FIELDS))
# A zone in full width, the number of its rows, and what checks these rows.
ENTRY: Final = struct.Struct(">qqqqqqq?qqqqqqIII")
SECTION: Final = struct.Struct(">HI")
SIBLING: Final = struct.Struct(">B16sQI")
TRAILER: Final = struct.Struct(">qqqqqqq?qqqqqqI16sqqqqIIIIIIIHHHI4s")
ROW_SIZE: Final = 69
ENTRY_SIZE: Final = 117
HEAD_SIZE: Final = 12
FIELD_SIZE: Final = 4
HEADER_SIZE: Final = HEAD_SIZE + FIELD_SIZE * len(ROW_FIELDS) + 4
SECTION_HEAD_SIZE: Final = 6
TRAILER_SIZE: Final = 199
assert ROW.size == ROW_SIZE
assert ENTRY.size == ENTRY_SIZE
assert HEAD.size == HEAD_SIZE
assert FIELD.size == FIELD_SIZE
assert SECTION.size == SECTION_HEAD_SIZE
assert TRAILER.size == TRAILER_SIZE
TRAILER_CRC_AT: Final = TRAILER_SIZE - 8

SIBLINGS_SECTION: Final = 1
LATENCY_SECTION: Final = 2


class Zone(NamedTuple):
    """Some whole batches of a segment that follow each other: a zone, a block of them, or all.

    Attributes:
        position: Place of the first batch in the log file.
        size_bytes: Bytes of the batches.
        first_offset: First offset, inclusive.
        last_offset: Last offset, inclusive.
        data_records: Records that a consumer may see.
        control_records: Records of control batches.
        tombstones: Data records without a value.
        is_transactional: Whether a data batch of a transaction is among them.
        timed_records: Data records that have a record timestamp.
        min_record_ms: The smallest of these, INT64_MAX where there is none.
        max_record_ms: The largest of these, INT64_MIN where there is none.
        stamped_records: Data records whose append time is known.
        min_append_ms: The smallest of these, INT64_MAX where there is none.
        max_append_ms: The largest of these, INT64_MIN where there is none.
        crc: CRC-32C of all bytes.
    """

    position: int
    size_bytes: int
    first_offset: int
    last_offset: int
    data_records: int
    control_records: int
    tombstones: int
    is_transactional: bool
    timed_records: int
    min_record_ms: int
    max_record_ms: int
    stamped_records: int
    min_append_ms: int
    max_append_ms: int
    crc: int

    @property
    def end_position(self) -> int:
        """Place behind the last batch in the log file."""
        return self.position + self.size_bytes

    def times(self, clock: ClockName) -> tuple[int, int, int]:
        """How many data records have a time on that clock, the smallest and the largest in ms."""
        if clock is ClockName.RECORD:
            return self.timed_records, self.min_record_ms, self.max_record_ms
        return self.stamped_records, self.min_append_ms, self.max_append_ms


class Limits(NamedTuple):
    """How zones and blocks are cut; a reader takes any.

    Attributes:
        zone_bytes: Most bytes of a zone that has more than one batch.
        zone_records: Most data records of such a zone.
        block_rows: Rows of a block.
    """

    zone_bytes: int = ZONE_BYTES
    zone_records: int = ZONE_RECORDS
    block_rows: int = BLOCK_ROWS


LIMITS: Final = Limits()


class Question(NamedTuple):
    """Records with start_ms <= time < end_ms and first_offset <= offset < end_offset."""

    clock: ClockName
    start_ms: int
    end_ms: int
    first_offset: int
    end_offset: int


class Block(NamedTuple):
    """Rows that are read together: what they come to, how many they are, their bytes."""

    total: Zone
    row_count: int
    rows: bytes


class FileSum(NamedTuple):
    """Length and CRC-32C of a whole file."""

    size_bytes: int
    crc32c: int


class Identity(NamedTuple):
    """What a map belongs to: topic, segment, the log as it was, what was known of append times.

    Attributes:
        topic_id: All zero where the directory had none.
        base_offset: The segment's.
        end_offset: Offset behind the segment.
        log_size: Bytes of the log file.
        last_position: Place of the last batch in it, -1 where it has none.
        first_fingerprint: CRC-32C of the first batch's first 61 bytes, 0 where there is none.
        last_fingerprint: That of the last one.
        append_rows: Rows of append times that were believed.
        append_crc: `AppendTimes.digest` of these.
    """

    topic_id: UUID
    base_offset: int
    end_offset: int
    log_size: int
    last_position: int
    first_fingerprint: int
    last_fingerprint: int
    append_rows: int
    append_crc: int


def sum_zones(zones: Sequence[Zone], crc: int) -> Zone:
    """What zones that follow each other come to; `crc` is that of all their bytes."""
    first, last = zones[0], zones[-1]
    return Zone(
        first.position,
        last.end_position - first.position,
        min(zone.first_offset for zone in zones),
        max(zone.last_offset for zone in zones),
        sum(zone.data_records for zone in zones),
        sum(zone.control_records for zone in zones),
        sum(zone.tombstones for zone in zones),
        any(zone.is_transactional for zone in zones),
        sum(zone.timed_records for zone in zones),
        min(zone.min_record_ms for zone in zones),
        max(zone.max_record_ms for zone in zones),
        sum(zone.stamped_records for zone in zones),
        min(zone.min_append_ms for zone in zones),
        max(zone.max_append_ms for zone in zones),
        crc,
    )


def no_zones(base_offset: int) -> Zone:
    """What a segment without batches comes to."""
    nothing = (0, 0, 0, False, 0, INT64_MAX, INT64_MIN, 0, INT64_MAX, INT64_MIN, 0)
    return Zone(0, 0, base_offset, base_offset - 1, *nothing)


def encode_rows(zones: Iterable[Zone], base_offset: int) -> bytes:
    """The rows of a block; positions follow from the sizes."""
    return b"".join(
        ROW.pack(zone[1], zone[2] - base_offset, zone[3] - base_offset, *zone[4:]) for zone in zones
    )


def encode_header() -> bytes:
    """The header: which fields a row has, in their order."""
    fields = b"".join(
        FIELD.pack(number, struct.calcsize(f">{code}")) for _, number, code in ROW_FIELDS
    )
    head = HEAD.pack(MAGIC, VERSION, HEADER_SIZE, ROW_SIZE, len(ROW_FIELDS)) + fields
    return head + CRC.pack(crc32c(head))


def encode_zones(
    identity: Identity,
    blocks: Sequence[Block],
    total: Zone,
    siblings: Mapping[str, FileSum],
    latency: LatencyByHour,
) -> bytes:
    """The whole file."""
    table = b"".join(
        ENTRY.pack(*block.total, block.row_count, crc32c(block.rows)) for block in blocks
    )
    sections = _encode_section(SIBLINGS_SECTION, _encode_siblings(siblings))
    sections += _encode_section(LATENCY_SECTION, latency.encode())
    rows = sum(block.row_count for block in blocks)
    header = encode_header()
    topic_id, *places = identity
    trailer = TRAILER.pack(
        *total,
        topic_id.bytes,
        *places,
        rows,
        len(blocks),
        len(sections),
        ROW_SIZE,
        HEADER_SIZE,
        VERSION,
        0,
        END_MAGIC,
    )
    footer = table + sections + trailer[:TRAILER_CRC_AT]
    parts = (header, *(block.rows for block in blocks), footer)
    return b"".join((*parts, CRC.pack(crc32c(footer)), END_MAGIC))


def _encode_section(number: int, content: bytes) -> bytes:
    return SECTION.pack(number, len(content)) + content


def _encode_siblings(siblings: Mapping[str, FileSum]) -> bytes:
    for suffix in siblings:
        assert len(suffix.encode()) <= 16
    return b"".join(
        SIBLING.pack(len(suffix), suffix.encode(), *found) for suffix, found in siblings.items()
    )
