"""Compares docs/format.md on zone maps with the code.

The page's tables must match the structs; its example must be the zone map that the code builds.
"""

from struct import Struct
from uuid import UUID

import pytest
from tests.tidy.test_format_docs import CODES, example, section, tables
from tests.worlds.directories.zone_logs import MemorySegment

from tidelog.record.builder import build_batch
from tidelog.storage.clocks import latency
from tidelog.storage.clocks import zone_map as zone_format
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.segment.zone_map_builder import build_plain
from tidelog.types import NewRecord

TITLE = "Zone maps"
TOPIC_ID = UUID(int=(1 << 64) | 2)
BATCH = bytes(build_batch([NewRecord(key=b"key", timestamp=1_700_000_000_000)], base_offset=105))
MORE = {"uint8": "B", "uint16": "H", "uint64": "Q", "bool": "?"}
STRUCTS: tuple[Struct, ...] = (
    zone_format.HEAD,
    zone_format.FIELD,
    zone_format.ROW,
    zone_format.ENTRY,
    zone_format.SECTION,
    zone_format.SIBLING,
    latency._HEAD,
    latency._SPAN,
    zone_format.TRAILER,
)


def zone_map() -> bytes:
    """Build the zone map of the page's example."""
    return build_plain(MemorySegment(100, BATCH, AppendTimes(100, TOPIC_ID), 106), {})


@pytest.mark.parametrize("number", range(len(STRUCTS)))
def test_a_table_is_the_struct(number: int) -> None:
    at, codes = 0, ""
    for row in tables(TITLE)[number]:
        assert int(row["at"]) == at
        at += int(row["size"])
        is_bytes = row["type"] in ("bytes", "uuid")
        codes += f"{row['size']}s" if is_bytes else {**CODES, **MORE}[row["type"]]
    assert f">{codes}" == STRUCTS[number].format
    assert at == STRUCTS[number].size


def test_the_numbers_of_the_fields() -> None:
    known = ", ".join(f"{number} {name}" for name, number, _ in zone_format.ROW_FIELDS)
    assert known in section(TITLE)
    assert [row["field"] for row in tables(TITLE)[2]] == [n for n, _, _ in zone_format.ROW_FIELDS]


def test_the_constants() -> None:
    head = {row["field"]: row["meaning"] for row in tables(TITLE)[0]}
    end = {row["field"]: row["meaning"] for row in tables(TITLE)[-1]}
    assert bytes.fromhex(head["magic"].partition(" (")[0]) == zone_format.MAGIC
    assert bytes.fromhex(end["magic"].partition(" (")[0]) == zone_format.END_MAGIC
    assert int(head["version"]) == int(end["version"]) == zone_format.VERSION
    assert int(head["header size"]) == int(end["header size"]) == zone_format.HEADER_SIZE
    assert int(head["row size"]) == int(end["row size"]) == zone_format.ROW_SIZE
    assert int(head["field count"]) == len(zone_format.ROW_FIELDS)
    text = section(TITLE)
    assert f"up to {zone_format.ZONE_BYTES >> 10} KB" in text
    assert f"blocks of {zone_format.BLOCK_ROWS}" in text
    assert str(-latency.BUCKET_MAX - 1) in text
    assert f"over {latency.HOURS_LIMIT}" in text


def test_the_documented_example_equals_the_built_map() -> None:
    assert example(TITLE).hex(" ") == zone_map().hex(" ")
    (zone,) = ZoneMap.decode(zone_map()).zones()
    assert (zone.first_offset, zone.tombstones, zone.stamped_records) == (105, 1, 0)
    assert f"one batch of {len(BATCH)} bytes" in section(TITLE)
