"""Compiled kernels, interpreted kernels and the plain code draw equal samples of a log."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.constants import interpret, set_constant
from tests.worlds.records.kernel_logs import damaged_logs, logs
from tests.worlds.records.plain_sampling import sample_plain

from tidelog.errors import CorruptData, UnsupportedCompression
from tidelog.storage.compaction.generations.estimates import KeySamples
from tidelog.storage.compaction.generations.sampling import SegmentSample, sample_segment

SEED = bytes(range(16))
GENERATIONS = "tidelog.storage.compaction.generations"
shifts = st.integers(0, 2)


@dataclass
class MemoryFile:
    """A finished log file in memory."""

    data: bytes

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]

    def size(self) -> int:
        return len(self.data)

    def pwrite(self, data: object, position: int) -> int:
        raise NotImplementedError

    def pwritev(self, buffers: object, position: int) -> int:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _plain(data: bytes, shift: int) -> tuple[SegmentSample, list[tuple[int, int, int]]]:
    samples = KeySamples(shift)
    found = sample_plain(MemoryFile(data), "log", SEED, samples)
    return found, sorted(samples)


def _kernels(data: bytes, shift: int) -> tuple[SegmentSample, list[tuple[int, int, int]]]:
    samples = KeySamples(shift)
    found = sample_segment(MemoryFile(data), "log", SEED, samples)
    return found, sorted(samples)


@given(logs, shifts)
def test_kernels_and_the_plain_path_give_the_same_sample(data: bytes, shift: int) -> None:
    assert _kernels(data, shift) == _plain(data, shift)


@given(logs, shifts)
def test_interpreted_kernels_sample_the_same(data: bytes, shift: int) -> None:
    expected = _plain(data, shift)
    with pytest.MonkeyPatch.context() as patch:
        interpret(patch, "sample_keys", inside=GENERATIONS)
        assert _kernels(data, shift) == expected


@given(damaged_logs())
def test_damage_is_an_error_or_nothing(data: bytes) -> None:
    try:
        _kernels(data, 0)
    except (CorruptData, UnsupportedCompression):
        return


@given(logs, st.integers(1, 40))
def test_small_chunks_find_the_same(data: bytes, chunk_bytes: int) -> None:
    expected = _kernels(data, 0)
    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, "CHUNK_BYTES", chunk_bytes, inside=GENERATIONS)
        assert _kernels(data, 0) == expected
