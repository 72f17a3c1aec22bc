"""Files that were replaced after planning, and records that are damaged under a valid checksum."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.worlds.constants import set_constant
from tests.worlds.directories.topics import append, make

from tidelog import scan
from tidelog.env import Env, File, OsFileSystem, os_env
from tidelog.errors import CorruptRecord
from tidelog.record.header import HEADER_SIZE, seal
from tidelog.scan.byte_sources import LocalRanges, TierRanges
from tidelog.types import NewRecord

LOG = "00000000000000000000.log"


class CountedFile:
    """Open file that reports its close."""

    def __init__(self, inner: File, files: "CountingFiles") -> None:
        self._inner = inner
        self._files = files

    def pread(self, size: int, position: int) -> bytes:
        return self._inner.pread(size, position)

    def close(self) -> None:
        self._files.open_count -= 1
        self._inner.close()


class CountingFiles(OsFileSystem):
    """The real file system; counts the files that are open."""

    def __init__(self) -> None:
        self.open_count = 0

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        opened = super().open(path, write=write, create=create)
        self.open_count += 1
        return cast("File", CountedFile(opened, self))


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = make(str(tmp_path), "t")
    for times in ((0, 5), (1, 6)):
        append(path, "t", 0, [NewRecord(key=b"k", value=b"v", timestamp=ms) for ms in times])
    return path


@pytest.mark.parametrize("mapped", [False, True])
def test_a_replaced_file_is_refused_and_closed(
    root: str, monkeypatch: pytest.MonkeyPatch, *, mapped: bool
) -> None:
    files = CountingFiles()
    ((piece,),) = [split.pieces for split in scan.plan(root, "t")]
    piece = replace(piece, is_closed=mapped)
    if mapped:
        set_constant(monkeypatch, "MAP_BYTES_MIN", 0, inside="tidelog.scan")
    ranges = LocalRanges(Env(files=files))
    source = ranges.open(piece)
    assert len(source.read(piece.start_position, piece.size_bytes)) == piece.size_bytes
    assert files.open_count == (0 if mapped else 1)
    source.close()
    with pytest.raises(FileNotFoundError, match="replaced by another file"):
        ranges.open(replace(piece, identity="another"))
    assert files.open_count == 0


def test_an_object_of_a_tier_that_replaces_another_is_refused(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((piece,),) = [split.pieces for split in scan.plan(root, "t")]
    ranges = TierRanges(os_env(), LocalRanges(os_env()))
    monkeypatch.setattr("tidelog.scan.byte_sources.is_tier_path", lambda path: True)
    monkeypatch.setattr(ranges, "_tier_files", OsFileSystem())
    assert ranges.open(piece).read(piece.start_position, piece.size_bytes)
    with pytest.raises(FileNotFoundError, match="Replaced by another object"):
        ranges.open(replace(piece, identity="another"))


def test_a_count_names_the_batch_of_a_bad_record(root: str) -> None:
    path = Path(root) / "t-0" / LOG
    data = bytearray(path.read_bytes())
    second = bytearray(data[len(data) // 2 :])
    second[HEADER_SIZE] = 0x7F  # the length of its first record: -64
    seal(second, 0)
    data[len(data) // 2 :] = second
    path.write_bytes(data)
    with pytest.raises(CorruptRecord) as raised:
        scan.count(root, "t", requested_range=scan.RequestedRange(start_ms=0, end_ms=3))
    assert raised.value.offset == 2
