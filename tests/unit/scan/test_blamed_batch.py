"""If offsets are out of order, each reader names the batch whose offset is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tidelog
from tidelog import scan
from tidelog.errors import CorruptBatch
from tidelog.types import NewRecord

TOPIC = "t"
COUNT = 20
LOG = "00000000000000000000.log"


def make(root: Path, *, closed: bool) -> tuple[Path, int]:
    """Write batches of equal size into one segment; return its path and the size of a batch.

    The segment is active or, with `closed`, finished but without a zone map.
    """
    with tidelog.open(str(root), writable=True) as log:
        log.create_topic(TOPIC, partitions=1)
        for number in range(COUNT):
            log.append(TOPIC, [NewRecord(key=b"%02d" % number, value=b"x" * 2000)])
        if closed:
            log.log(TOPIC, 0).roll()
            log.append(TOPIC, [NewRecord(key=b"k", value=b"v")])
    path = root / f"{TOPIC}-0" / LOG
    path.with_suffix(".zones").unlink(missing_ok=True)
    return path, path.stat().st_size // COUNT


def all_records(root: str, start: int) -> object:
    with tidelog.open(root) as log:
        return list(log.partition(TOPIC, 0).records(start))


def all_rows(root: str, start: int) -> object:
    wanted = scan.RequestedRange(start_offset=start)
    return scan.to_table(scan.plan(root, TOPIC, requested_range=wanted), ["offset"])


def all_counted(root: str, start: int) -> object:
    return scan.count(root, TOPIC, requested_range=scan.RequestedRange(start_offset=start))


def all_keys(root: str, _start: int) -> object:
    with tidelog.open(root) as log:
        return list(log.table(TOPIC, inexact="mark").to_arrow())


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("read", [all_records, all_rows, all_counted, all_keys])
def test_the_wrong_one_is_named(
    tmp_path: Path, read: Callable[[str, int], object], *, closed: bool
) -> None:
    path, size = make(tmp_path, closed=closed)
    whole = path.read_bytes()
    for bad in (4, 5, COUNT - 2):
        for bit in (0, 1, 2, 3, 10, 40, 62):
            for start in (0, 3, bad):
                data = bytearray(whole)
                data[bad * size + 7 - bit // 8] ^= 1 << bit % 8
                path.write_bytes(data)
                with pytest.raises(CorruptBatch) as raised:
                    read(str(tmp_path), start)
                assert (raised.value.path, raised.value.position) == (f"{path}", bad * size)
