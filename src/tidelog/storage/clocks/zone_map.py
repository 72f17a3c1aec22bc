"""The zone map of a finished segment, `BASE.zones`: a summary of each 16 KB of the log.

A row describes a zone: whole batches of about 16 KB, or one larger batch. The row has offsets,
counts, smallest and largest time on each clock, and the CRC-32C of the zone's bytes. Rows are
grouped into blocks. The table of blocks has sums, minima and maxima of each block, so a search
reads only the footer and the blocks that may match.

The file consists of a header, the blocks of rows, and a footer. The header lists a row's fields, so
that readers can skip fields that later releases add. The footer consists of the table of blocks,
sections (checksums of the files beside the log, latencies), and a trailer. The trailer has the
footer's checksum; the table has the checksum of each block's rows.

A zone map is derived data. Damage makes reads slower, but never wrong. A damaged footer makes the
map unusable. If a block is damaged, the block's entry in the table is used as one large zone. If
the header is damaged, every block that a search reads counts as damaged. The damage is reported,
and results stay exact.

This module opens no file: the caller passes a function that reads bytes.
`tidelog.storage.segment.zone_map_files` decides whether a map belongs to a log. Source:
docs/format.md#zone-maps; docs/decisions/0007-zone-maps.md.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.amounts import plural
from tidelog.errors import CorruptIndex, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.types import INT64_MAX, INT64_MIN, ClockName

MAGIC: Final = b"TLZM"
END_MAGIC: Final = b"TLZE"
VERSION: Final = 1

# Maximum size in bytes of a zone with several batches. A larger batch is a zone of its own.
ZONE_BYTES: Final = 20 << 10

# Maximum number of data records of a zone with several batches. A small compressed batch may
# contain very many records, and a row stores the number of records in 32 bits.
ZONE_RECORDS: Final = 1 << 30

# Maximum number of rows in a block; a search reads the rows of a block together.
BLOCK_ROWS: Final = 64

# Fields of a row: name, number in the header, and format code.
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

# An entry in the table of blocks: the fields of a zone that covers the whole block, the number of
# the block's rows, and the checksum of these rows. Sizes, offsets and counts have 8 bytes in an
# entry, and 4 bytes in a row.
ENTRY: Final = struct.Struct(">qqqqqqq?qqqqqqIII")

SECTION: Final = struct.Struct(">HI")
SIBLING: Final = struct.Struct(">B16sQI")
TRAILER: Final = struct.Struct(">qqqqqqq?qqqqqqI16sqqqqIIIIIIIHHHI4s")
_SECTIONS_SIZE_FIELD: Final = 26
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
    """Consecutive whole batches of a segment: a zone, a block of zones, or the whole segment.

    Attributes:
        position: Position of the first batch in the log file.
        size_bytes: Size of the batches.
        first_offset: First offset, inclusive.
        last_offset: Last offset, inclusive.
        data_records: Number of records that a consumer may see.
        control_records: Number of records of control batches.
        tombstones: Number of data records without a value.
        is_transactional: Whether the zone has a data batch of a transaction.
        timed_records: Number of data records that have a record timestamp.
        min_record_ms: The smallest record timestamp, INT64_MAX if there is none.
        max_record_ms: The largest record timestamp, INT64_MIN if there is none.
        stamped_records: Number of data records whose append time is known.
        min_append_ms: The smallest known append time, INT64_MAX if there is none.
        max_append_ms: The largest known append time, INT64_MIN if there is none.
        crc: CRC-32C of the bytes of the batches.
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
        """Position in the log file after the zone's last batch."""
        return self.position + self.size_bytes

    def times(self, clock: ClockName) -> tuple[int, int, int]:
        """Return, on `clock`: number of data records with a time, smallest time, largest time."""
        if clock is ClockName.RECORD:
            return self.timed_records, self.min_record_ms, self.max_record_ms
        return self.stamped_records, self.min_append_ms, self.max_append_ms


class Limits(NamedTuple):
    """Limits of zones and blocks for writing; a reader accepts any sizes.

    Attributes:
        zone_bytes: Maximum size of a zone that has more than one batch.
        zone_records: Maximum number of data records of a zone that has more than one batch.
        block_rows: Maximum number of rows in a block.
    """

    zone_bytes: int = ZONE_BYTES
    zone_records: int = ZONE_RECORDS
    block_rows: int = BLOCK_ROWS


LIMITS: Final = Limits()


class Question(NamedTuple):
    """Query for records: start_ms <= time < end_ms and first_offset <= offset < end_offset."""

    clock: ClockName
    start_ms: int
    end_ms: int
    first_offset: int
    end_offset: int


class Block(NamedTuple):
    """Rows that are read together: a zone that covers all rows, row count, and the rows' bytes."""

    total: Zone
    row_count: int
    rows: bytes


class FileSum(NamedTuple):
    """Length and CRC-32C of a whole file."""

    size_bytes: int
    crc32c: int


class Identity(NamedTuple):
    """Identity of the log that a map describes: topic, segment, log file, known append times.

    Attributes:
        topic_id: The topic's id, all zero if the directory had none.
        base_offset: The segment's base offset.
        end_offset: Offset at which the next segment begins.
        log_size: Size of the log file in bytes.
        last_position: Position of the last batch in the log file, -1 if there is no batch.
        first_fingerprint: CRC-32C of the first batch's first 61 bytes, 0 if there is no batch.
        last_fingerprint: CRC-32C of the last batch's first 61 bytes, 0 if there is no batch.
        append_rows: Number of append-time rows from which the map was made.
        append_crc: Checksum of the `append_rows` rows, from `AppendTimes.digest`.
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
    """Return the total of consecutive zones; `crc` is the CRC-32C of all their bytes."""
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
    """Return the total of a segment without batches."""
    nothing = (0, 0, 0, False, 0, INT64_MAX, INT64_MIN, 0, INT64_MAX, INT64_MIN, 0)
    return Zone(0, 0, base_offset, base_offset - 1, *nothing)


def encode_rows(zones: Iterable[Zone], base_offset: int) -> bytes:
    """Encode the rows of a block, without positions, which follow from the sizes."""
    return b"".join(
        ROW.pack(zone[1], zone[2] - base_offset, zone[3] - base_offset, *zone[4:]) for zone in zones
    )


def encode_header() -> bytes:
    """Encode the header: the fields of a row, in their order."""
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
    """Encode a whole zone-map file."""
    table = b"".join(
        ENTRY.pack(*block.total, block.row_count, crc32c(block.rows)) for block in blocks
    )
    sections = _encode_section(SIBLINGS_SECTION, _encode_siblings(siblings))
    sections += _encode_section(LATENCY_SECTION, latency.encode())
    rows = sum(block.row_count for block in blocks)
    header = encode_header()
    topic_id, *offsets_and_sizes = identity
    trailer = TRAILER.pack(
        *total,
        topic_id.bytes,
        *offsets_and_sizes,
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


def with_siblings(data: bytes, zone_map: "ZoneMap", siblings: Mapping[str, FileSum]) -> bytes:
    """Return a zone-map file's content with new checksums of the files beside the log.

    Args:
        data: The file's content.
        zone_map: The decoded content.
        siblings: The new checksums, by suffix.
    """
    sections = {**zone_map.sections, SIBLINGS_SECTION: _encode_siblings(siblings)}
    encoded = b"".join(_encode_section(*section) for section in sections.items())
    fields = list(TRAILER.unpack(data[-TRAILER_SIZE:]))
    fields[_SECTIONS_SIZE_FIELD] = len(encoded)
    trailer = TRAILER.pack(*fields)[:TRAILER_CRC_AT]
    footer = zone_map.table + encoded + trailer
    return data[: zone_map.rows_end] + footer + CRC.pack(crc32c(footer)) + END_MAGIC


def _encode_section(number: int, content: bytes) -> bytes:
    return SECTION.pack(number, len(content)) + content


def _encode_siblings(siblings: Mapping[str, FileSum]) -> bytes:
    for suffix in siblings:
        assert len(suffix.encode()) <= 16
    return b"".join(
        SIBLING.pack(len(suffix), suffix.encode(), *file_sum)
        for suffix, file_sum in siblings.items()
    )


# Maximum size in bytes of the first read. The first read gets a small map completely, and the end
# of a large map.
TAIL_BYTES: Final = 8 << 10

# Function like `File.pread`: it reads at most the given number of bytes from a position.
ReadBytes: TypeAlias = Callable[[int, int], bytes]


class _Trailer(NamedTuple):
    """The parsed trailer of a zone map's file."""

    total: Zone
    identity: Identity
    zone_count: int
    block_count: int
    sections_size: int
    row_size: int
    header_size: int


class Entry(NamedTuple):
    """Entry of the table of blocks, with the position of the block's rows."""

    total: Zone
    row_count: int
    rows_crc: int
    at: int


class ZoneMap:
    """A zone map that reads its file through a function.

    Thread-safe. Keeps the footer in memory, but no rows.

    Attributes:
        identity: Identity of the log that the map describes.
        total: Total of all zones.
        zone_count: Number of zones.
        table: Bytes of the table of blocks.
        sections: Bytes of each section, by the section's number.
        rows_end: Position of the table in the file.
        bytes_read: Number of bytes that were read from the file so far.
    """

    def __init__(
        self, read: ReadBytes, size_bytes: int, *, report: Callable[[str], None] | None = None
    ) -> None:
        """Read and check the footer.

        Args:
            read: Function like `File.pread`: it reads at most the given number of bytes from a
                position.
            size_bytes: Size of the whole file.
            report: Called with one line of text if a later read finds a damaged header or block.

        Raises:
            CorruptIndex: The file is damaged or truncated, or is not a zone map.
            UnsupportedVersion: The version in the trailer is not the version that this release
                reads.
        """
        self._read_bytes = read
        self._report = report
        self.bytes_read = 0
        tail = self._read(min(size_bytes, TAIL_BYTES), max(size_bytes - TAIL_BYTES, 0))
        trailer = _decode_trailer(tail, size_bytes)
        table_size = trailer.block_count * ENTRY_SIZE
        footer_size = table_size + trailer.sections_size + TRAILER_SIZE
        self.rows_end = size_bytes - footer_size
        if trailer.header_size + trailer.zone_count * trailer.row_size != self.rows_end:
            zones = plural(trailer.zone_count, "zone")
            reason = f"{size_bytes} bytes are not the size of {zones} and the footer"
            raise CorruptIndex(reason, at=0)
        if footer_size > len(tail):
            tail = self._read(footer_size - len(tail), self.rows_end) + tail
        footer = tail[len(tail) - footer_size :]
        _check_footer(footer, self.rows_end)
        self._trailer = trailer
        self.table = footer[:table_size]
        self.sections = _decode_sections(footer[table_size:-TRAILER_SIZE])
        self.identity = trailer.identity
        self.total = trailer.total
        self.zone_count = trailer.zone_count

    @classmethod
    def decode(cls, data: bytes, *, report: Callable[[str], None] | None = None) -> "ZoneMap":
        """Create a map from the content of the whole file; raises the errors of `ZoneMap`."""
        return cls(lambda size, at: data[at : at + size], len(data), report=report)

    @property
    def topic_id(self) -> UUID:
        """Id of the topic, all zero if the directory had none."""
        return self.identity.topic_id

    @property
    def base_offset(self) -> int:
        """First offset that the segment may hold."""
        return self.identity.base_offset

    @property
    def end_offset(self) -> int:
        """Offset at which the next segment begins."""
        return self.identity.end_offset

    @property
    def log_size(self) -> int:
        """Size of the log file in bytes. A torn batch at the end of the file belongs to no zone."""
        return self.identity.log_size

    @property
    def is_readable(self) -> bool:
        """Whether the footer is undamaged; a `RemoteZones` reads its footer to find out."""
        return True  # the constructor has checked the footer

    @cached_property
    def siblings(self) -> Mapping[str, FileSum]:
        """Length and checksum of each file beside the log when the map was built, by suffix."""
        return _decode_siblings(self.sections.get(SIBLINGS_SECTION, b""))

    @cached_property
    def latency(self) -> LatencyByHour:
        """Latencies of the records with create time and append time, by hour of append time."""
        content = self.sections.get(LATENCY_SECTION)
        return LatencyByHour() if content is None else LatencyByHour.decode(content)

    def zones(self) -> Iterator[Zone]:
        """Yield all zones, ascending; a damaged block is yielded as one zone."""
        for entry in self._entries:
            yield from self._zones_of(entry)

    def select(self, is_enough: Callable[[Zone], bool]) -> Iterator[Zone]:
        """Yield one zone for each block that `is_enough` accepts, and all zones of other blocks.

        The zones are in ascending order. If all blocks are accepted, only the footer is read.
        """
        for entry in self._entries:
            if is_enough(entry.total):
                yield entry.total
            else:
                yield from self._zones_of(entry)

    def verify(self) -> None:
        """Read and check the whole file.

        Raises:
            CorruptIndex: The header, rows, table of blocks or sections are damaged. If the header
                or rows are damaged, the error has the position of the damage.
        """
        fields = self._read_header()
        for entry in self._entries:
            self._read_rows(entry)
        assert fields.size == self._trailer.row_size
        _ = self.siblings, self.latency

    def _zones_of(self, entry: Entry) -> list[Zone]:
        try:
            rows = self._read_rows(entry)
            fields = self._row_fields
        except CorruptIndex as error:
            if self._report is not None:
                self._report(f"{error}; a larger part of the log is read instead")
            return [entry.total]
        return fields.decode(rows, entry.total.position, self.base_offset)

    def _read_rows(self, entry: Entry) -> bytes:
        size = entry.row_count * self._trailer.row_size
        rows = self._read(size, entry.at)
        if len(rows) != size or crc32c(rows) != entry.rows_crc:
            raise CorruptIndex("rows that do not match their checksum", at=entry.at)
        return rows

    @cached_property
    def _entries(self) -> list[Entry]:
        """The decoded table of blocks, cached."""
        return self.read_entries()

    def read_entries(self) -> list[Entry]:
        """Decode the table of blocks; raises CorruptIndex."""
        rows = [
            (Zone._make(fields[:15]), fields[15], fields[16])
            for fields in ENTRY.iter_unpack(self.table)
        ]
        header_size, row_size = self._trailer.header_size, self._trailer.row_size
        positions = accumulate(
            (row_count * row_size for _, row_count, _ in rows), initial=header_size
        )
        entries = [Entry(*entry, at) for entry, at in zip(rows, positions, strict=False)]
        if sum(entry.row_count for entry in entries) != self.zone_count:
            raise CorruptIndex(f"the blocks do not have {self.zone_count} zones in total")
        return entries

    @cached_property
    def _row_fields(self) -> "_RowFields":
        return self._read_header()

    def _read_header(self) -> "_RowFields":
        size = self._trailer.header_size
        fields = _decode_header(self._read(size, 0), size)
        if fields.size != self._trailer.row_size:
            raise CorruptIndex(f"rows of {fields.size} bytes, {self._trailer.row_size} expected")
        return fields

    def _read(self, size: int, at: int) -> bytes:
        data = self._read_bytes(size, at)
        self.bytes_read += len(data)
        return data


class _RowFields:
    """Decoder of rows, created from the list of fields in the file's header."""

    def __init__(self, fields: list[tuple[int, int]]) -> None:
        """Create a decoder from (number, size) of each field; raises CorruptIndex if invalid."""
        codes_by_number = {number: code for _, number, code in ROW_FIELDS}
        codes = [codes_by_number.get(number, f"{size}x") for number, size in fields]
        self._struct = Struct(">" + "".join(codes))
        self.size = self._struct.size
        numbers = [number for number, _ in fields if number in codes_by_number]
        sizes = [Struct(f">{code}").size for code in codes]
        if sorted(numbers) != sorted(codes_by_number) or sizes != [size for _, size in fields]:
            raise CorruptIndex(f"fields {numbers}, each of {sorted(codes_by_number)} expected once")
        self._order = None
        if numbers != list(codes_by_number):
            self._order = itemgetter(*(numbers.index(number) for number in codes_by_number))

    def decode(self, rows: bytes, position: int, base_offset: int) -> list[Zone]:
        """Return the zones of a block."""
        zones: list[Zone] = []
        order, new = self._order, tuple.__new__  # ten times faster than `Zone(...)`
        for values in self._struct.iter_unpack(rows):
            row = values if order is None else order(values)
            size, first, last = row[:3]
            head = (position, size, base_offset + first, base_offset + last)
            zones.append(new(Zone, head + row[3:]))
            position += size
        return zones


def _decode_trailer(tail: bytes, size_bytes: int) -> _Trailer:
    if size_bytes < HEADER_SIZE + TRAILER_SIZE or len(tail) < TRAILER_SIZE:
        least = HEADER_SIZE + TRAILER_SIZE
        raise CorruptIndex(f"a zone map of {size_bytes} bytes, at least {least} expected", at=0)
    fields = TRAILER.unpack_from(tail, len(tail) - TRAILER_SIZE)
    at = size_bytes - TRAILER_SIZE
    *_, version, _, magic = fields
    if magic != END_MAGIC:
        reason = f"magic {magic!r} at the end, {END_MAGIC!r} expected: truncated, or not a zone map"
        raise CorruptIndex(reason, at=at)
    if version != VERSION:
        raise UnsupportedVersion(
            f"zone map of version {version}; this release reads version {VERSION}"
        )
    identity = Identity(UUID(bytes=fields[15]), *fields[16:24])
    trailer = _Trailer(Zone._make(fields[:15]), identity, *fields[24:29])
    footer = trailer.block_count * ENTRY_SIZE + trailer.sections_size
    if footer > at or trailer.header_size < HEAD_SIZE + CRC.size:
        raise CorruptIndex(f"a footer of {footer} bytes before its trailer", at=at)
    return trailer


def _check_footer(footer: bytes, at: int) -> None:
    end = len(footer) - TRAILER_SIZE + TRAILER_CRC_AT
    (expected,) = CRC.unpack_from(footer, end)
    computed = crc32c(footer[:end])
    if computed != expected:
        raise CorruptIndex(
            f"footer CRC-32C is {computed:#010x}, the trailer has {expected:#010x}", at=at
        )


def _decode_sections(data: bytes) -> dict[int, bytes]:
    """Return the content of each section, by section number."""
    sections, at = {}, 0
    while at < len(data):
        if len(data) - at < SECTION_HEAD_SIZE:
            raise CorruptIndex(f"{len(data) - at} bytes are left for a section")
        number, size = SECTION.unpack_from(data, at)
        at += SECTION_HEAD_SIZE
        if size > len(data) - at:
            raise CorruptIndex(f"section {number} of {size} bytes, {len(data) - at} are left")
        sections[number] = data[at : at + size]
        at += size
    return sections


def _decode_siblings(data: bytes) -> dict[str, FileSum]:
    if len(data) % SIBLING.size:
        raise CorruptIndex(
            f"the checksums of files have {len(data)} bytes, expected a multiple of {SIBLING.size}"
        )
    sums = {}
    for length, suffix, size, crc in SIBLING.iter_unpack(data):
        sums[suffix[:length].decode("ascii", "replace")] = FileSum(size, crc)
    return sums


def _decode_header(data: bytes, size: int) -> _RowFields:
    if len(data) != size:
        raise CorruptIndex(f"a header of {len(data)} bytes, {size} expected", at=0)
    magic, version, header_size, row_size, count = HEAD.unpack_from(data)
    (expected,) = CRC.unpack_from(data, size - CRC.size)
    if magic != MAGIC or crc32c(data[: -CRC.size]) != expected:
        raise CorruptIndex("a header that does not match its checksum", at=0)
    if (version, header_size) != (VERSION, size):
        raise CorruptIndex(f"a header of version {version} and {header_size} bytes", at=0)
    if HEAD_SIZE + count * FIELD_SIZE + CRC.size != size:
        raise CorruptIndex(f"{count} fields in a header of {size} bytes", at=0)
    fields = data[HEAD_SIZE : -CRC.size]
    row_fields = _RowFields(list(FIELD.iter_unpack(fields)))
    if row_fields.size != row_size:
        raise CorruptIndex(f"fields of {row_fields.size} bytes, rows of {row_size} bytes", at=0)
    return row_fields
