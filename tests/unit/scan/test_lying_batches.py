"""Batches with a valid checksum that contradict themselves or their neighbors.

Each reader returns the records before such a batch, and then an error that names file and position.
No reader skips the batch, and none loops forever.
"""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import tidelog
from tidelog.errors import CorruptData
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c
from tidelog.record.header import CRC_AT, LAST_OFFSET_DELTA_AT, LENGTH_AT
from tidelog.types import NewRecord

T0: Final = 1_700_000_000_000
LOG: Final = "00000000000000000000.log"
CRC_COVERS_FROM: Final = 21


def numbered_batch(base: int, count: int, *, size: int = 1) -> bytearray:
    """Return a batch of records with their offset as key and increasing times."""
    records = [
        NewRecord(key=b"%d" % n, value=b"v" * size, timestamp=T0 + n)
        for n in range(base, base + count)
    ]
    return bytearray(build_batch(records, base_offset=base))


def sealed(data: bytearray) -> bytes:
    """Return the batch with a correct length and checksum."""
    struct.pack_into(">i", data, LENGTH_AT, len(data) - LENGTH_AT - 4)
    struct.pack_into(">I", data, CRC_AT, crc32c(memoryview(data)[CRC_COVERS_FROM:]))
    return bytes(data)


def with_last_delta(data: bytearray, delta: int) -> bytes:
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, delta)
    return sealed(data)


def write_log(root: Path, *batches: bytes) -> int:
    """Write one segment without indexes; return the position of its second batch."""
    folder = root / "t-0"
    folder.mkdir()
    (folder / LOG).write_bytes(b"".join(batches))
    return len(batches[0])


def place_in(error: CorruptData) -> int:
    """Return the position in an error, and check that the error names the file."""
    assert LOG in str(error)
    return int(re.findall(r"position (\d+)", str(error))[0])


Reader = Callable[[tidelog.Directory], object]
READERS: Final[dict[str, Reader]] = {
    "records": lambda log: [record.offset for _, record in log.records("t")],
    "scan": lambda log: log.scan("t", columns=("offset",)).to_table(),
    "one column": lambda log: log.scan("t", columns=("key",)).to_table(),
    "table": lambda log: list(log.table("t", inexact="mark").to_arrow()),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("at", ["first", "middle", "last"])
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(
            lambda base: with_last_delta(numbered_batch(base, 5), 0), id="last delta too small"
        ),
        pytest.param(
            lambda base: sealed(numbered_batch(base, 5) + b"abc"), id="bytes behind the records"
        ),
    ],
)
def test_a_batch_with_a_wrong_header_is_an_error_for_every_reader(
    tmp_path: Path, lie: Callable[[int], bytes], at: str, name: str
) -> None:
    number = {"first": 0, "middle": 1, "last": 2}[at]
    parts = [bytes(numbered_batch(base, 5)) for base in (0, 5, 10)]
    parts[number] = lie(5 * number)
    write_log(tmp_path, *parts)
    with tidelog.open(tmp_path) as log, pytest.raises(CorruptData) as told:
        READERS[name](log)
    start = sum(map(len, parts[:number]))
    assert start <= place_in(told.value) < start + len(parts[number])


@pytest.mark.parametrize("size", [1, 5_000], ids=["within an index interval", "beyond one"])
@pytest.mark.parametrize("name", [*READERS, "count", "offsets_at"])
def test_batches_in_the_wrong_order_are_an_error_to_every_reader(
    tmp_path: Path, name: str, size: int
) -> None:
    """The error comes from a read, or already from the rebuild of the last segment's indexes."""
    questions: dict[str, Reader] = {
        **READERS,
        "count": lambda log: log.count("t", start="2001-01-01Z"),
        "offsets_at": lambda log: log.offsets_at("t", T0 + 7),
    }
    position = write_log(
        tmp_path, bytes(numbered_batch(10, 1, size=size)), bytes(numbered_batch(5, 1))
    )
    with tidelog.open(tmp_path) as log, pytest.raises(CorruptData) as told:
        questions[name](log)
    assert place_in(told.value) in (0, position)


@pytest.mark.parametrize("size", [1, 5_000], ids=["within an index interval", "beyond one"])
def test_records_before_batches_in_the_wrong_order_are_read(tmp_path: Path, size: int) -> None:
    write_log(
        tmp_path, *(bytes(numbered_batch(base, 1, size=size)) for base in (0, 1, 2, 67, 4, 5))
    )
    with tidelog.open(tmp_path) as log:
        records = log.records("t")
        assert [next(records)[1].offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(CorruptData):
            next(records)


def test_opening_for_writing_keeps_batches_in_the_wrong_order(tmp_path: Path) -> None:
    write_log(tmp_path, bytes(numbered_batch(10, 1, size=5_000)), bytes(numbered_batch(5, 1)))
    (tmp_path / ".kafka_cleanshutdown").write_text("")
    before = (tmp_path / "t-0" / LOG).read_bytes()
    with tidelog.open(tmp_path, writable=True) as log, pytest.raises(CorruptData):
        log.append("t", [NewRecord(value=b"more")])
    assert (tmp_path / "t-0" / LOG).read_bytes() == before


@pytest.mark.slow  # reads 2 GiB of a sparse file
@pytest.mark.parametrize("name", READERS)
def test_a_batch_beyond_the_positions_of_an_index_is_an_error(tmp_path: Path, name: str) -> None:
    """A batch of 2 GiB is mostly a hole in the file; the next batches begin above 2^31 - 1."""
    head = numbered_batch(0, 1)[:61]
    struct.pack_into(">i", head, LENGTH_AT, 2**31 - 1)
    write_log(tmp_path, bytes(head))
    with (tmp_path / "t-0" / LOG).open("r+b") as file:
        file.truncate(2**31 + 11)
        file.seek(2**31 + 11)
        file.write(bytes(numbered_batch(1, 1)) + bytes(numbered_batch(2, 1)))
    with tidelog.open(tmp_path) as log, pytest.raises(CorruptData) as told:
        READERS[name](log)
    assert LOG in str(told.value)
