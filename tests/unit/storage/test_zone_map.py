"""The zone map's file: round trip, reading of single blocks, detection of damage."""

from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import pytest

from tidelog.errors import CorruptIndex, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage.clocks import zone_map as layout
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.storage.clocks.zone_map import (
    Block,
    FileSum,
    Identity,
    Zone,
    ZoneMap,
    encode_rows,
    encode_zones,
    no_zones,
    sum_zones,
)
from tidelog.types import INT64_MAX, INT64_MIN, ClockName

TOPIC_ID = UUID(int=7)
BASE = 1000
RECORD, APPEND = ClockName.RECORD, ClockName.APPEND
SIBLINGS = {".index": FileSum(80, 0xFFFFFFFF), ".appendtime": FileSum(48, 1)}
ROWS: Final = 8


def zone(number: int, *, low: int = 0, high: int = 9, txn: bool = False) -> Zone:
    """Return the zone with this number: 10 records in 100 bytes."""
    first = BASE + 10 * number
    ends = (100 * number, 100, first, first + 9)
    return Zone(*ends, 10, 0, 1, txn, 10, low, high, 10, number, number, number)


def encode(zones: Sequence[Zone]) -> bytes:
    """Return a file of these zones, with `ROWS` rows in a block."""
    groups = [zones[at : at + ROWS] for at in range(0, len(zones), ROWS)]
    blocks = [
        Block(sum_zones(group, at), len(group), encode_rows(group, BASE))
        for at, group in enumerate(groups)
    ]
    end = zones[-1].end_position if zones else 0
    total = sum_zones(zones, 77) if zones else no_zones(BASE)
    identity = Identity(TOPIC_ID, BASE, BASE + 10 * len(zones), end, end - 100, 1, 2, 3, 4)
    latency = LatencyByHour()
    latency.add(10, 5)
    return encode_zones(identity, blocks, total, SIBLINGS, latency)


def test_a_written_map_is_read_back() -> None:
    zones = [zone(number, txn=number == 3) for number in range(20)]
    found = ZoneMap.decode(encode(zones))
    assert list(found.zones()) == zones
    assert (found.topic_id, found.base_offset, found.end_offset) == (TOPIC_ID, BASE, 1200)
    assert (found.zone_count, found.log_size) == (20, 2000)
    assert found.total == sum_zones(zones, 77)
    assert found.identity[4:] == (1900, 1, 2, 3, 4)
    assert found.siblings == SIBLINGS
    assert found.latency[0].max_ms == 5
    assert [block.size_bytes for block in found.select(lambda _: True)] == [800, 800, 400]
    found.verify()


def test_a_segment_without_batches_has_no_zones() -> None:
    found = ZoneMap.decode(encode([]))
    assert list(found.zones()) == []
    assert list(found.select(lambda _: False)) == []
    assert found.total.times(RECORD) == (0, INT64_MAX, INT64_MIN)


def test_only_blocks_that_are_not_enough_are_read() -> None:
    zones = [zone(number, low=number * 10, high=number * 10 + 9) for number in range(ROWS * 50)]
    data = encode(zones)
    found = ZoneMap.decode(data)
    opened = found.bytes_read
    assert opened <= layout.TRAILER_SIZE + 50 * layout.ENTRY_SIZE + 3000
    parts = found.select(lambda part: not part.min_record_ms <= 500 <= part.max_record_ms)
    assert [part for part in parts if part in zones] == zones[48:56]
    assert found.bytes_read - opened == layout.HEADER_SIZE + ROWS * layout.ROW_SIZE


def test_fields_of_a_later_release_are_skipped() -> None:
    zones = [zone(0), zone(1)]
    data = _with_more_fields(encode(zones))
    found = ZoneMap.decode(data)
    assert list(found.zones()) == zones
    found.verify()


def _with_more_fields(data: bytes) -> bytes:
    """Return the map with unknown fields in each row: 5 bytes at its start and 2 at its end."""
    old = data[layout.HEADER_SIZE : layout.HEADER_SIZE + 2 * layout.ROW_SIZE]
    rows = b"".join(
        b"other" + old[at : at + layout.ROW_SIZE] + b"xx" for at in (0, layout.ROW_SIZE)
    )
    fields = [(99, 5), *_fields(), (98, 2)]
    row_size, size = layout.ROW_SIZE + 7, layout.HEADER_SIZE + 2 * layout.FIELD_SIZE
    head = layout.HEAD.pack(layout.MAGIC, layout.VERSION, size, row_size, len(fields))
    head += b"".join(layout.FIELD.pack(*field) for field in fields)
    footer = bytearray(data[layout.HEADER_SIZE + 2 * layout.ROW_SIZE :])
    footer[layout.ENTRY_SIZE - 4 : layout.ENTRY_SIZE] = layout.CRC.pack(crc32c(rows))
    at = len(footer) - layout.TRAILER_SIZE
    trailer = list(layout.TRAILER.unpack_from(footer, at))
    trailer[27:29] = [row_size, size]
    layout.TRAILER.pack_into(footer, at, *trailer)
    body = bytes(footer[:-8])
    return (
        head
        + layout.CRC.pack(crc32c(head))
        + rows
        + body
        + layout.CRC.pack(crc32c(body))
        + layout.END_MAGIC
    )


def _fields() -> list[tuple[int, int]]:
    sizes = {"I": 4, "q": 8, "?": 1}
    return [(number, sizes[code]) for _, number, code in layout.ROW_FIELDS]


def test_another_version_is_refused() -> None:
    data = bytearray(encode([zone(0)]))
    at = len(data) - 10
    assert data[at : at + 2] == b"\0\1"
    data[at + 1] = 2
    with pytest.raises(UnsupportedVersion, match="version 2"):
        ZoneMap.decode(bytes(data))


def _whole(found: ZoneMap) -> object:
    return (
        found.identity,
        found.total,
        list(found.zones()),
        dict(found.siblings),
        dict(found.latency),
        list(found.select(lambda _: True)),
    )


def test_every_flipped_bit_is_found_and_gives_no_wrong_result() -> None:
    zones = [zone(number, low=number, high=number + 3) for number in range(10)]
    data = encode(zones)
    truth = _whole(ZoneMap.decode(data))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        _assert_found(bytes(damaged), truth, zones)


def _assert_found(data: bytes, truth: object, zones: list[Zone]) -> None:
    reports: list[str] = []
    try:
        found = ZoneMap.decode(data, report=reports.append)
    except (CorruptIndex, UnsupportedVersion):
        return
    with pytest.raises(CorruptIndex):
        found.verify()
    coarse = list(found.zones())
    assert reports
    assert sum_zones(coarse, 0) == sum_zones(zones, 0)
    assert _whole(found) != truth


def test_the_error_of_a_damaged_footer_has_both_checksums() -> None:
    data = bytearray(encode([zone(0)]))
    at = len(data) - layout.TRAILER_SIZE + layout.TRAILER_CRC_AT
    computed = int.from_bytes(data[at : at + 4], "big")
    data[at] ^= 0xFF
    stored = int.from_bytes(data[at : at + 4], "big")
    text = f"footer CRC-32C is {computed:#010x}, the trailer has {stored:#010x}"
    with pytest.raises(CorruptIndex, match=text):
        ZoneMap.decode(bytes(data))


@pytest.mark.parametrize("change", [lambda data, n: data[:n], lambda data, n: data[n:]])
def test_every_cut_is_found(change: Callable[[bytes, int], bytes]) -> None:
    data = encode([zone(number) for number in range(10)])
    for size in range(1 if change(data, 1) != data[:1] else 0, len(data)):
        with pytest.raises(CorruptIndex):
            ZoneMap.decode(change(data, size))


def test_a_longer_file_is_refused() -> None:
    data = encode([zone(0)])
    for other in (data + b"\0", b"\0" + data, data + data):
        with pytest.raises(CorruptIndex):
            ZoneMap.decode(other)


def test_a_row_stays_small() -> None:
    assert layout.ROW_SIZE <= 72
    assert layout.ENTRY_SIZE / layout.BLOCK_ROWS < 2
