"""The zone map of a finished segment, `BASE.zones`: what lies where, without reading the log.

A row describes a zone: whole batches of about 16 KB of the log, or one larger batch. It knows
offsets, counts, the smallest and largest time on both clocks, and the CRC-32C of the zone's bytes.
Rows are put into blocks; the table of blocks has each block's own sums, minima and maxima, so a
search reads the footer and those blocks that may hold a match.

Derived data: whatever is wrong with it costs time, never an answer. A footer that is damaged makes
the whole map unusable. Where the header or a block of rows is, the block's entry in the table
answers instead, as one large zone; that is reported, and everything stays exact.

Pure: the caller hands in a function that reads bytes. Whether a map belongs to a log is for
`tidelog.storage.zone_files`. Source: docs/format.md#zone-maps; docs/decisions/0007-zone-maps.md.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.errors import CorruptIndex, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage import zone_format as layout
from tidelog.storage.latency import LatencyByHour, LatencyHistogram
from tidelog.storage.zone_format import (
    Block,
    FileSum,
    Identity,
    Question,
    Zone,
    encode_zones,
    sum_zones,
)

__all__ = [
    "Block",
    "FileSum",
    "Identity",
    "LatencyByHour",
    "LatencyHistogram",
    "Question",
    "Zone",
    "ZoneMap",
    "encode_zones",
    "sum_zones",
]

# What is read at first: all of a small map, the end of a large one.
TAIL_BYTES: Final = 8 << 10

# Like `File.pread`: at most so many bytes from a position.
ReadBytes: TypeAlias = Callable[[int, int], bytes]


class _Trailer(NamedTuple):
    """The end of the file."""

    total: Zone
    identity: Identity
    zone_count: int
    block_count: int
    sections_size: int
    row_size: int
    header_size: int


class Entry(NamedTuple):
    """A block as the table has it, and where its rows lie."""

    total: Zone
    row_count: int
    rows_crc: int
    at: int


class ZoneMap:
    """A zone map over a function that reads bytes of its file.

    Safe for several threads. Keeps the footer in memory, no rows.

    Attributes:
        identity: What it belongs to.
        total: All zones together.
        zone_count: How many zones there are.
        bytes_read: Bytes read of the file so far.
    """

    def __init__(
        self, read: ReadBytes, size_bytes: int, *, report: Callable[[str], None] | None = None
    ) -> None:
        """Read and check the footer.

        Args:
            read: Hands out at most so many bytes from a position, like `File.pread`.
            size_bytes: Size of the whole file.
            report: Called with one line where rows turn out to be damaged later.

        Raises:
            CorruptIndex: It is damaged, cut, or something else.
            UnsupportedVersion: A later release wrote it.
        """
        self._read_bytes = read
        self._report = report
        self.bytes_read = 0
        tail = self._read(min(size_bytes, TAIL_BYTES), max(size_bytes - TAIL_BYTES, 0))
        trailer = _decode_trailer(tail, size_bytes)
        table_size = trailer.block_count * layout.ENTRY_SIZE
        footer_size = table_size + trailer.sections_size + layout.TRAILER_SIZE
        self._rows_end = size_bytes - footer_size
        if trailer.header_size + trailer.zone_count * trailer.row_size != self._rows_end:
            reason = f"{size_bytes} bytes do not hold {trailer.zone_count} zones and their footer"
            raise CorruptIndex(reason, at=0)
        if footer_size > len(tail):
            tail = self._read(footer_size - len(tail), self._rows_end) + tail
        footer = tail[len(tail) - footer_size :]
        _check_footer(footer, self._rows_end)
        self._trailer = trailer
        self._table = footer[:table_size]
        self._sections = _decode_sections(footer[table_size : -layout.TRAILER_SIZE])
        self.identity = trailer.identity
        self.total = trailer.total
        self.zone_count = trailer.zone_count

    @classmethod
    def decode(cls, data: bytes, *, report: Callable[[str], None] | None = None) -> "ZoneMap":
        """The map in `data`, the whole file; raises as `ZoneMap` does."""
        return cls(lambda size, at: data[at : at + size], len(data), report=report)

    @property
    def topic_id(self) -> UUID:
        """Of the topic, all zero where the directory had none."""
        return self.identity.topic_id

    @property
    def base_offset(self) -> int:
        """First offset that the segment may hold."""
        return self.identity.base_offset

    @property
    def end_offset(self) -> int:
        """Offset behind the segment."""
        return self.identity.end_offset

    @property
    def log_size(self) -> int:
        """Size of the log file in bytes; the zones may end before a torn tail."""
        return self.identity.log_size

    @cached_property
    def siblings(self) -> Mapping[str, FileSum]:
        """Length and checksum of each file beside the log, by suffix, when the map was built."""
        return _decode_siblings(self._sections.get(layout.SIBLINGS_SECTION, b""))

    @cached_property
    def latency(self) -> LatencyByHour:
        """Append time - create time by hour of append time, of records that have both."""
        content = self._sections.get(layout.LATENCY_SECTION)
        return LatencyByHour() if content is None else LatencyByHour.decode(content)

    def zones(self) -> Iterator[Zone]:
        """All zones, ascending; in place of a damaged block's zones the block as one."""
        for entry in self._entries:
            yield from self._zones_of(entry)

    def blocks(self) -> Iterator[Zone]:
        """What each block of zones comes to, from the footer alone."""
        return (entry.total for entry in self._entries)

    def select(self, is_enough: Callable[[Zone], bool]) -> Iterator[Zone]:
        """Blocks where `is_enough` says so of the block as a whole, else its zones; ascending."""
        for entry in self._entries:
            if is_enough(entry.total):
                yield entry.total
            else:
                yield from self._zones_of(entry)

    def verify(self) -> None:
        """Read and check all of the file.

        Raises:
            CorruptIndex: A header or rows that are damaged, with their place.
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
        """The table of blocks."""
        return self.read_entries()

    def read_entries(self) -> list[Entry]:
        """The table of blocks, decoded; raises CorruptIndex."""
        found = [
            (Zone._make(fields[:15]), fields[15], fields[16])
            for fields in layout.ENTRY.iter_unpack(self._table)
        ]
        header_size, row_size = self._trailer.header_size, self._trailer.row_size
        places = accumulate(
            (row_count * row_size for _, row_count, _ in found), initial=header_size
        )
        entries = [Entry(*entry, at) for entry, at in zip(found, places, strict=False)]
        if sum(entry.row_count for entry in entries) != self.zone_count:
            raise CorruptIndex(f"the blocks do not come to {self.zone_count} zones")
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
    """How to read rows: by their layout as this release writes it, or by the header's."""

    def __init__(self, fields: list[tuple[int, int]]) -> None:
        """Take (number, size) of each field; raises CorruptIndex where one is missing or odd."""
        known = {number: code for _, number, code in layout.ROW_FIELDS}
        codes = [known.get(number, f"{size}x") for number, size in fields]
        self._struct = Struct(">" + "".join(codes))
        self.size = self._struct.size
        numbers = [number for number, _ in fields if number in known]
        sizes = [Struct(f">{code}").size for code in codes]
        if sorted(numbers) != sorted(known) or sizes != [size for _, size in fields]:
            raise CorruptIndex(f"fields {numbers}, each of {sorted(known)} expected once")
        self._order = None
        if numbers != list(known):
            self._order = itemgetter(*(numbers.index(number) for number in known))

    def decode(self, rows: bytes, position: int, base_offset: int) -> list[Zone]:
        """The zones of a block."""
        found: list[Zone] = []
        order, new = self._order, tuple.__new__  # a tenth of what `Zone(...)` takes
        for values in self._struct.iter_unpack(rows):
            row = values if order is None else order(values)
            size, first, last = row[:3]
            places = (position, size, base_offset + first, base_offset + last)
            found.append(new(Zone, places + row[3:]))
            position += size
        return found


def _decode_trailer(tail: bytes, size_bytes: int) -> _Trailer:
    if size_bytes < layout.HEADER_SIZE + layout.TRAILER_SIZE or len(tail) < layout.TRAILER_SIZE:
        least = layout.HEADER_SIZE + layout.TRAILER_SIZE
        raise CorruptIndex(f"a zone map of {size_bytes} bytes, at least {least}", at=0)
    fields = layout.TRAILER.unpack_from(tail, len(tail) - layout.TRAILER_SIZE)
    at = size_bytes - layout.TRAILER_SIZE
    *_, version, _, magic = fields
    if magic != layout.END_MAGIC:
        reason = f"magic {magic!r} at the end, {layout.END_MAGIC!r} expected: cut, or no zone map"
        raise CorruptIndex(reason, at=at)
    if version != layout.VERSION:
        raise UnsupportedVersion(f"zone map of version {version}, {layout.VERSION} is known")
    identity = Identity(UUID(bytes=fields[15]), *fields[16:24])
    trailer = _Trailer(Zone._make(fields[:15]), identity, *fields[24:29])
    footer = trailer.block_count * layout.ENTRY_SIZE + trailer.sections_size
    if footer > at or trailer.header_size < layout.HEAD_SIZE + layout.CRC.size:
        raise CorruptIndex(f"a footer of {footer} bytes before its trailer", at=at)
    return trailer


def _check_footer(footer: bytes, at: int) -> None:
    end = len(footer) - layout.TRAILER_SIZE + layout.TRAILER_CRC_AT
    (expected,) = layout.CRC.unpack_from(footer, end)
    computed = crc32c(footer[:end])
    if computed != expected:
        raise CorruptIndex(f"footer CRC-32C is {computed:#010x}, it says {expected:#010x}", at=at)


def _decode_sections(data: bytes) -> dict[int, bytes]:
    """The sections by number; one that nobody here knows does no harm."""
    found, at = {}, 0
    while at < len(data):
        if len(data) - at < layout.SECTION_HEAD_SIZE:
            raise CorruptIndex(f"a section in {len(data) - at} bytes")
        number, size = layout.SECTION.unpack_from(data, at)
        at += layout.SECTION_HEAD_SIZE
        if size > len(data) - at:
            raise CorruptIndex(f"section {number} of {size} bytes, {len(data) - at} are left")
        found[number] = data[at : at + size]
        at += size
    return found


def _decode_siblings(data: bytes) -> dict[str, FileSum]:
    if len(data) % layout.SIBLING.size:
        raise CorruptIndex(f"sums of files in {len(data)} bytes")
    found = {}
    for length, suffix, size, crc in layout.SIBLING.iter_unpack(data):
        found[suffix[:length].decode("ascii", "replace")] = FileSum(size, crc)
    return found


def _decode_header(data: bytes, size: int) -> _RowFields:
    if len(data) != size:
        raise CorruptIndex(f"a header of {len(data)} bytes, {size} expected", at=0)
    magic, version, header_size, row_size, count = layout.HEAD.unpack_from(data)
    (expected,) = layout.CRC.unpack_from(data, size - layout.CRC.size)
    if magic != layout.MAGIC or crc32c(data[: -layout.CRC.size]) != expected:
        raise CorruptIndex("a header that does not match its checksum", at=0)
    if (version, header_size) != (layout.VERSION, size):
        raise CorruptIndex(f"a header of version {version} and {header_size} bytes", at=0)
    if layout.HEAD_SIZE + count * layout.FIELD_SIZE + layout.CRC.size != size:
        raise CorruptIndex(f"{count} fields in a header of {size} bytes", at=0)
    fields = data[layout.HEAD_SIZE : -layout.CRC.size]
    found = _RowFields(list(layout.FIELD.iter_unpack(fields)))
    if found.size != row_size:
        raise CorruptIndex(f"fields of {found.size} bytes in rows of {row_size}", at=0)
    return found
