"""docs/format.md matches the code: tables equal constants, examples equal encoded bytes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record import header, lz4_frame, snappy_stream
from tidelog.record import header as legacy_header
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.compression import compress
from tidelog.record.header import HEADER, HEADER_SIZE
from tidelog.record.legacy import build_legacy_message
from tidelog.record.record import CONTROL_KEY, END_MARKER_VALUE
from tidelog.types import Codec, Header, NewRecord

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "format.md").read_text()
TIME = 1_700_000_000_000
TWO = [
    NewRecord(key=b"k", value=b"v", timestamp=TIME),
    NewRecord(key=b"k", value=None, timestamp=TIME - 10),
]
CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint32": "I"}


def section(title: str) -> str:
    """Return the text under the heading `title`, up to the next heading of any level."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading {title!r}"
    return match[1]


def tables(title: str) -> list[list[dict[str, str]]]:
    """Return the tables under a heading, each row by column name."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", section(title), re.MULTILINE):
        lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        assert all(len(line) == len(lines[0]) for line in lines), block
        found.append([dict(zip(lines[0], line, strict=True)) for line in lines[2:]])
    return found


def example(title: str, number: int = 0) -> bytes:
    """Return the bytes of an example under a heading."""
    blocks = re.findall(r"^```hex.*?\n(.*?)^```", section(title), re.MULTILINE | re.DOTALL)
    lines = [line.partition(" | ")[0] for line in blocks[number].splitlines()]
    return bytes.fromhex("".join(lines))


def fixed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["at"].isdigit()]


def test_the_batch_header() -> None:
    (rows, _) = tables("Batch")
    at = 0
    for row in rows:
        name = row["field"].upper().replace(" ", "_")
        assert getattr(header, f"{name}_AT") == int(row["at"]) == at
        at += int(row["size"])
        covered = int(row["at"]) >= header.ATTRIBUTES_AT
        assert row["covered by CRC"] == ("yes" if covered else "no")
    assert at == HEADER_SIZE
    assert ">" + "".join(CODES[row["type"]] for row in rows) == HEADER.format


def test_the_documented_frame_equals_the_start_of_a_batch() -> None:
    (rows,) = tables("Frame")
    assert [int(row["at"]) for row in rows] == [
        header.BASE_OFFSET_AT,
        header.LENGTH_AT,
        header.MAGIC_AT,
    ]
    minima = [int(n) for n in re.findall(r"(\d+) \(magic \d\)", section("Frame"))]
    assert minima == [*legacy_header.MESSAGE_LENGTH_MIN, header.BATCH_LENGTH_MIN]


def test_the_attribute_bits() -> None:
    (_, rows) = tables("Batch")
    names = ["CODEC_MASK"] + [row["name"].upper().replace(" ", "_") + "_BIT" for row in rows[1:]]
    masks = [int(row["mask"], 16) for row in rows]
    assert masks == [getattr(header, name) for name in names]
    assert sum(masks) == header.KNOWN_ATTRIBUTES
    assert masks[1:] == [1 << int(row["bits"]) for row in rows[1:]]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages(magic: int) -> None:
    rows = tables("Magic 0 and 1")[magic]
    places = {row["field"]: int(row["at"]) for row in fixed(rows)}
    assert places.pop("offset") == header.BASE_OFFSET_AT
    assert places.pop("length") == header.LENGTH_AT
    assert places.pop("key length") == legacy_header.KEY_LENGTH_AT[magic]
    assert places == {
        name: getattr(legacy_header, name.upper().replace(" ", "_") + "_AT") for name in places
    }
    struct = legacy_header.FRAME_V1 if magic else legacy_header.FRAME
    codes = "".join(CODES[row["type"]] for row in rows[:-2])
    assert f">{codes}" == struct.format
    sizes = sum(int(row["size"]) for row in rows)
    assert sizes - header.LOG_OVERHEAD == legacy_header.MESSAGE_LENGTH_MIN[magic]
    for row in fixed(rows):
        covered = int(row["at"]) >= legacy_header.MESSAGE_MAGIC_AT
        assert row["covered by CRC"] == ("yes" if covered else "no")


def test_control_records() -> None:
    for rows, struct in zip(
        tables("Control records"), (CONTROL_KEY, END_MARKER_VALUE), strict=True
    ):
        assert ">" + "".join(CODES[row["type"]] for row in rows) == struct.format
        assert [int(row["at"]) for row in rows] == [0, 2]


def test_codecs() -> None:
    (rows,) = tables("Compression")
    assert [(int(row["number"]), row["name"]) for row in rows] == [
        (codec.value, codec.config_name) for codec in Codec
    ]


def test_the_snappy_header() -> None:
    (rows,) = tables("Snappy")
    assert bytes.fromhex(rows[0]["meaning"]) == snappy_stream.MAGIC
    assert [int(row["meaning"]) for row in rows[1:]] == [snappy_stream.VERSION] * 2
    assert sum(int(row["size"]) for row in rows) == snappy_stream.HEADER.size


def test_the_lz4_header() -> None:
    (rows,) = tables("LZ4")
    numbers = [[int(n, 16) for n in re.findall(r"0x[0-9a-f]+", row["meaning"])] for row in rows]
    assert numbers == [
        [int.from_bytes(lz4_frame.MAGIC, "little")],
        [lz4_frame.FLAGS],
        [lz4_frame.BLOCK_DESCRIPTOR],
        [lz4_frame.HEADER_CHECKSUM, lz4_frame.BROKEN_HEADER_CHECKSUM],
    ]


def _record() -> bytearray:
    headers = (Header("h", b"1"), Header("h", None))
    return build_batch([NewRecord(key=b"k", value=b"v", headers=headers)])[HEADER_SIZE:]


EXAMPLES: dict[str, Callable[[], bytes | bytearray]] = {
    "Batch": lambda: build_batch(TWO, base_offset=5, leader_epoch=3),
    "Record": _record,
    "Control records": lambda: build_end_marker(
        commit=True,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=9,
        timestamp=TIME,
        base_offset=7,
        leader_epoch=3,
    ),
    "Wrappers": lambda: build_legacy_set(TWO, magic=1, codec=Codec.SNAPPY, base_offset=5),
    "Snappy": lambda: compress(Codec.SNAPPY, b"tide"),
    "LZ4": lambda: compress(Codec.LZ4, b"tide"),
    "Zstd": lambda: compress(Codec.ZSTD, b"tide"),
}


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example(title: str) -> None:
    assert example(title).hex(" ") == bytes(EXAMPLES[title]()).hex(" ")


@pytest.mark.parametrize("magic", [0, 1])
def test_the_examples_of_messages(magic: int) -> None:
    built = build_legacy_message(b"k", b"v", magic=magic, offset=5, timestamp=TIME if magic else -1)
    assert example("Magic 0 and 1", magic) == built


def test_the_example_of_gzip() -> None:
    # zlib's compression, and the system in its header (byte 9), differ between builds.
    ours, shown = compress(Codec.GZIP, b"tide"), example("Compression")
    assert ours[:8] == shown[:8]
    assert ours[-8:] == shown[-8:]


def test_every_place_that_the_code_cites_exists() -> None:
    titles = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    cited = set(re.findall(r"\]\(#([\w-]+)\)", TEXT))
    for path in (ROOT / "src").rglob("*.py"):
        cited |= set(re.findall(r"docs/format\.md#([\w-]+)", path.read_text()))
    assert len(cited) > 5
    assert cited <= anchors
