"""Counts by digest in memory and spilled to disk, and the cleanup of spilled files."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from tidelog.env import Env
from tidelog.jobs.failover.verify import DIGEST_SIZE, Counts, DigestCounts, Side, Spill

PER_BUCKET = 65_536


def digest(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=DIGEST_SIZE).digest()


def walked(counts: DigestCounts) -> dict[bytes, Counts]:
    found = list(counts.walk())
    assert len(found) == len(dict(found)), "each digest once"
    return dict(found)


@pytest.mark.parametrize("buffer_bytes", [1, 17 * 10, 1 << 20])
@pytest.mark.parametrize("expected", [0, PER_BUCKET * 7])
def test_counts_are_the_same_in_memory_and_on_disk(
    tmp_path: Path, buffer_bytes: int, expected: int
) -> None:
    folder = tmp_path / "spill"
    seen: Counter[tuple[int, Side]] = Counter()
    with DigestCounts(Spill(Env(), str(folder), buffer_bytes), expected=expected) as counts:
        for step in range(500):
            number, place = step * 7 % 90, Side(step % 4)
            counts.add(place, digest(number))
            seen[number, place] += 1
        assert folder.exists() == (buffer_bytes < 1 << 20)
        first = walked(counts)
        counts.add(Side.B_BEFORE, digest(0))
        second = walked(counts)
        assert counts.tally() == Counter(second.values())
    assert not folder.exists()
    assert first == {
        digest(number): Counts(*(seen[number, place] for place in Side)) for number in range(90)
    }
    assert second[digest(0)].b_before == first[digest(0)].b_before + 1


def test_memory_is_bounded_by_the_buffers(tmp_path: Path) -> None:
    with DigestCounts(Spill(Env(), str(tmp_path / "s"), 1_700), expected=0) as counts:
        for number in range(250):
            counts.add(Side.A_AFTER, digest(number))
        on_disk = sum(file.stat().st_size for file in (tmp_path / "s").iterdir())
        assert 250 * 17 - on_disk < 1_700
        assert len(walked(counts)) == 250


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with DigestCounts(Spill(Env(), str(tmp_path / "s"), 1), expected=0) as counts:
            counts.add(Side.A_AFTER, digest(1))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    counts = DigestCounts(Spill(Env(), str(tmp_path / "s"), 1), expected=0)
    counts.add(Side.A_AFTER, digest(1))
    counts.close()
    counts.close()
    assert list(tmp_path.iterdir()) == []
