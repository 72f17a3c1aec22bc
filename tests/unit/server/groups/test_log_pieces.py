"""Kernels and the plain loader give the same state or error, for any batches, pieces and damage."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptData
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.columns.decode import SECRET_BYTES
from tidelog.server.coordinator.log_kernels import KernelPieces
from tidelog.server.coordinator.log_loader import FindKernels
from tidelog.server.groups.committed_offsets import CommittedOffset
from tidelog.server.groups.records import offset_record
from tidelog.server.groups.replay import LoadedGroup, LoadedPending, Replay
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import CLEAN_SHUTDOWN_FILE
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.log_end import COPIED_GAPS_FILE
from tidelog.storage.segment.slices import LogSlice
from tidelog.types import Codec, NewRecord

SEEDS = range(20)
PIECE_BYTES = 700
PRODUCERS = 2


@dataclass
class Writer:
    """Writes segments of a log to which only the broker appends.

    Attributes:
        segments: Bytes of each segment, by base offset.
    """

    random: Random
    segments: dict[int, bytearray] = field(default_factory=dict)
    end: int = 0

    def write(self, count: int) -> None:
        for number in range(count):
            if number % 17 == 0:
                self.segments[self.end] = bytearray()
            self.segments[max(self.segments)] += self._batch()
            self.end += self._gap

    def _batch(self) -> bytes:
        kind = self.random.choice(["plain"] * 6 + ["packed", "pending", "marker", "old"])
        if kind == "marker":
            self._gap = 1
            return bytes(
                build_end_marker(
                    commit=self.random.random() < 0.7,
                    producer_id=self.random.randrange(PRODUCERS),
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp=0,
                    base_offset=self.end,
                )
            )
        made = [self._record() for _ in range(self.random.randint(1, 5))]
        self._gap = len(made) + self.random.randrange(2)
        if kind == "old":
            self._gap = len(made)
            return bytes(build_legacy_set(made, magic=1, base_offset=self.end))
        if kind == "pending":
            return bytes(
                build_batch(
                    made,
                    base_offset=self.end,
                    producer_id=self.random.randrange(PRODUCERS),
                    producer_epoch=0,
                    transactional=True,
                )
            )
        codec = Codec.GZIP if kind == "packed" else Codec.NONE
        return bytes(build_batch(made, base_offset=self.end, codec=codec))

    def _record(self) -> NewRecord:
        offset = self.random.choice([None, self.random.randrange(1000)])
        value = None if offset is None else CommittedOffset(offset)
        place = f"g{self.random.randrange(3)}", "t", self.random.randrange(3)
        made = offset_record(*place, value)
        key = made.key if self.random.random() < 0.98 else None
        return NewRecord(key=key, value=made.value, timestamp=0)


@contextmanager
def log_of(path: Path, segments: dict[int, bytearray]) -> Iterator[LogView]:
    """Open a log with these segments for reading."""
    with LogDir.open(str(path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("t")
        log_dir.log("t", 0)
    for base, data in segments.items():
        (path / "t-0" / f"{base:020}.log").write_bytes(data)
    # A mark file shows that the gaps in the offsets were copied from a leader. Without the mark of
    # a clean shutdown, the log end counts as unknown.
    (path / "t-0" / COPIED_GAPS_FILE).touch()
    (path / CLEAN_SHUTDOWN_FILE).unlink()
    with LogDir.open(str(path)) as log_dir:
        yield log_dir.reader("t", 0)


def kernels() -> KernelPieces:
    return KernelPieces(bytes(SECRET_BYTES), piece_bytes=PIECE_BYTES)


def switching(random: Random) -> FindKernels:
    """Return a function that returns None for up to three pieces, and then always kernels."""
    found = iter([None] * random.randrange(4))
    made = kernels()
    return lambda: next(found, made)


Told = tuple[dict[str, LoadedGroup], list[LoadedPending], list[str]]


def told(parts: list[LogSlice], find_kernels: FindKernels) -> Told | str:
    replay = Replay()
    pieces: Iterator[int] = replay.take(parts, find_kernels)
    try:
        taken = sum(pieces)
    except CorruptData as error:
        return str(error)
    assert taken <= sum(part.size_bytes for part in parts)
    return replay.groups(), replay.pending(), replay.skipped


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_load_the_same_records_as_the_plain_loader(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    writer = Writer(random)
    writer.write(60)
    with log_of(tmp_path, writer.segments) as log:
        parts = list(log.slices())
        assert len(parts) == 4
        plainly = told(parts, lambda: None)
        assert not isinstance(plainly, str)
        found = told(parts, kernels)
        assert found == plainly
        assert list(found[0]) == list(plainly[0])
        assert told(parts, switching(random)) == plainly


@pytest.mark.parametrize("seed", SEEDS)
def test_damage_is_the_same_error_in_pieces_and_as_a_whole(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    writer = Writer(random)
    writer.write(40)
    base = random.choice(list(writer.segments)[:-1])
    data = bytearray(writer.segments[base])
    at = random.randrange(len(data))
    if random.random() < 0.2:
        data[at:] = bytes(len(data) - at)
    else:
        data[at] ^= 1 << random.randrange(8)
    with log_of(tmp_path, writer.segments) as log:
        parts = list(log.slices())
        (tmp_path / "t-0" / f"{base:020}.log").write_bytes(data)
        assert told(parts, kernels) == told(parts, lambda: None)


def test_only_offsets_of_the_slice_are_taken(tmp_path: Path) -> None:
    data = bytearray()
    for number in range(9):
        made = offset_record("g", "t", number, CommittedOffset(number))
        record = NewRecord(key=made.key, value=made.value, timestamp=0)
        data += build_batch([record], base_offset=number)
    with log_of(tmp_path, {0: data}) as log:
        parts = list(log.slices(3, 7))
        found = told(parts, kernels)
        assert found == told(parts, lambda: None)
        assert not isinstance(found, str)
        assert [number for _, number, _ in found[0]["g"].offsets] == [3, 4, 5, 6]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_batch_larger_than_a_piece_is_read(tmp_path: Path, is_last: bool) -> None:
    made = [offset_record("g", "t", number, CommittedOffset(number)) for number in range(50)]
    records = [NewRecord(key=one.key, value=one.value, timestamp=0) for one in made]
    batches = [build_batch(records[:1], base_offset=0), build_batch(records, base_offset=1)]
    if not is_last:
        batches.append(build_batch(records[:1], base_offset=51))
    assert len(batches[1]) > PIECE_BYTES
    with log_of(tmp_path, {0: bytearray(b"".join(batches))}) as log:
        parts = list(log.slices())
        found = told(parts, kernels)
        assert found == told(parts, lambda: None)
        assert not isinstance(found, str)
        assert len(list(found[0]["g"].offsets)) == 50
