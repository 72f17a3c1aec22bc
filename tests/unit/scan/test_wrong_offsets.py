"""No checksum covers a base offset, but readers refuse an offset that other batches contradict."""

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import tidelog
from tidelog import scan
from tidelog.errors import CorruptData
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import Codec, NewRecord

T0 = 1_700_000_000_000
TOPIC = "t"
BASES = (0, 100)
# Offset and number of records of each batch in a finished segment: without gaps, and with gaps as
# after compaction.
DENSE = [(0, 10), (10, 10), (20, 1), (21, 30), (51, 9), (60, 40)]
GAPS = [(0, 3), (10, 10), (24, 1), (31, 20), (51, 2), (80, 20)]
BITS = (0, 1, 3, 5, 8, 31, 40, 63)


def keyed_batch(base: int, count: int, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch of records with repeated keys, their offset as value, and increasing times."""
    records = [
        NewRecord(key=b"k%d" % (n % 4), value=b"%d" % n, timestamp=T0 + n * 1000)
        for n in range(base, base + count)
    ]
    return bytes(build_batch(records, base_offset=base, codec=codec))


def write_log(root: Path, batches: list[bytes]) -> Path:
    """Write a finished segment with these batches, and an active segment with one record."""
    folder = root / f"{TOPIC}-0"
    folder.mkdir(parents=True, exist_ok=True)
    for name in folder.iterdir():
        name.unlink()
    log = folder / f"{BASES[0]:020d}.log"
    log.write_bytes(b"".join(batches))
    (folder / f"{BASES[1]:020d}.log").write_bytes(keyed_batch(BASES[1], 1))
    return log


def write_indexes(root: Path, batches: list[bytes]) -> None:
    """Write index files with an entry for each batch except the first."""
    folder, position = root / f"{TOPIC}-0", 0
    entries, times = bytearray(), bytearray()
    for found in batches:
        view = RecordBatch(found)
        if position:
            entries += struct.pack(">ii", view.last_offset, position)
            times += struct.pack(">qi", view.max_timestamp, view.last_offset)
        position += len(found)
    (folder / f"{BASES[0]:020d}.index").write_bytes(entries)
    (folder / f"{BASES[0]:020d}.timeindex").write_bytes(times)


Reader = Callable[[str], object]


def readers() -> Iterator[tuple[str, Reader]]:
    """Yield all ways to read the whole log, and to read or find single offsets and times."""
    yield "records", lambda root: plain_records(root, 0, 101)
    yield "scan", rows
    yield "count", counted
    yield "table", versions
    for at in (0, 9, 10, 15, 24, 50, 51, 60, 79, 80, 99):
        wanted = scan.RequestedRange(start_offset=at, end_offset=at + 1)
        timed = scan.RequestedRange(start_ms=T0 + at * 1000, end_ms=T0 + at * 1000 + 1)
        yield f"records {at}", partial(plain_records, start=at, end=at + 1)
        yield f"scan {at}", partial(rows, requested_range=wanted)
        yield f"scan at {at}", partial(rows, requested_range=timed)
        yield f"count {at}", partial(counted, requested_range=wanted)
        yield f"count at {at}", partial(counted, requested_range=timed)
        yield f"time {at}", partial(offset_at, at=at, by_kernel=False)
        yield f"time {at} by kernel", partial(offset_at, at=at, by_kernel=True)


def plain_records(root: str, start: int, end: int) -> object:
    """Return the offsets and values, read record by record."""
    with LogDir.open(root) as directory:
        reader = directory.reader(TOPIC, 0)
        return [(record.offset, record.value) for record in reader.records(start, end)]


def rows(root: str, requested_range: scan.RequestedRange | None = None) -> object:
    """Return (offset, value) of all rows of a scan; if the scan fails, raise its error."""
    splits = scan.plan(
        root, TOPIC, requested_range=requested_range or scan.RequestedRange(), split_bytes=300
    )
    found = scan.to_table(splits, ["offset", "value"])
    return list(zip(found["offset"].to_pylist(), found["value"].to_pylist(), strict=True))


def counted(root: str, requested_range: scan.RequestedRange | None = None) -> object:
    """Return the number of records."""
    return scan.count(root, TOPIC, requested_range=requested_range).records


def versions(root: str) -> object:
    """Return the topic's table as pairs of a key and its last value."""
    with tidelog.open(root) as log:
        found = log.table(TOPIC, inexact="mark").to_arrow()
        return sorted(
            pair
            for part in found
            for pair in zip(part["key"].to_pylist(), part["value"].to_pylist(), strict=True)
        )


def offset_at(root: str, at: int, *, by_kernel: bool) -> object:
    """Return offset and time of the first record at or after T0 + `at` seconds; None for none."""
    with LogDir.open(root) as directory:
        reader = directory.reader(TOPIC, 0)
        if by_kernel:
            reader.use_kernels()
        found = reader.offset_for_time(T0 + at * 1000)
        return None if found is None else (found.offset, found.timestamp)


@pytest.mark.parametrize(
    ("shape", "codec", "has_indexes"),
    [
        pytest.param(DENSE, Codec.NONE, True, id="dense"),
        pytest.param(GAPS, Codec.ZSTD, True, id="gaps, compressed"),
        pytest.param(DENSE, Codec.ZSTD, False, id="dense, compressed, no indexes"),
        pytest.param(GAPS, Codec.NONE, False, id="gaps, no indexes"),
    ],
)
def test_no_reader_accepts_a_wrong_base_offset(
    tmp_path: Path, shape: list[tuple[int, int]], codec: Codec, *, has_indexes: bool
) -> None:
    root, asked = str(tmp_path), dict(readers())
    sound = [keyed_batch(base, count, codec) for base, count in shape]
    write_log(tmp_path, sound)
    if has_indexes:
        write_indexes(tmp_path, sound)
    right = {name: ask(root) for name, ask in asked.items()}
    for number, (base, count) in enumerate(shape):
        for bit in BITS:
            wrong = base ^ (1 << bit)
            if is_possible(shape, number, wrong, count):
                continue  # plausible offsets that nothing in the file contradicts
            damaged = bytearray(sound[number])
            struct.pack_into(">Q", damaged, 0, wrong)
            write_log(tmp_path, [*sound[:number], bytes(damaged), *sound[number + 1 :]])
            if has_indexes:
                write_indexes(tmp_path, sound)
            for name, ask in asked.items():
                with suppress(CorruptData):
                    assert ask(root) == right[name], (name, number, bit)
            for name in ("records", "scan", "count", "table"):
                with pytest.raises(CorruptData, match=r"\.log, position \d+"):
                    asked[name](root)


def is_possible(shape: list[tuple[int, int]], number: int, wrong: int, count: int) -> bool:
    """Return whether batch `number` fits between its neighbors if its offset is `wrong`."""
    before = sum(shape[number - 1]) if number else 0
    behind = shape[number + 1][0] if number + 1 < len(shape) else BASES[1]
    return before <= wrong and wrong + count <= behind
