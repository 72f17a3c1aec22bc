"""Flipped bits that no checksum covers: readers detect some by wrong frames or offset order.

docs/format.md describes these flips in "What the checksums leave out".
"""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import TidelogError
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord

NEW = [NewRecord(key=b"key %d" % i, value=b"value", timestamp=1000 + i) for i in range(3)]
Build: TypeAlias = Callable[[int], bytearray]

# Results of reading damaged bytes.
CAUGHT = "caught"
FEWER = "fewer batches"
UNSEEN = "unseen"


def modern(offset: int) -> bytearray:
    return build_batch(NEW, base_offset=offset, leader_epoch=6)


def packed(offset: int) -> bytearray:
    return build_batch(NEW, base_offset=offset, leader_epoch=6, codec=Codec.LZ4)


def message(magic: int) -> Build:
    return lambda offset: build_legacy_set(NEW[:1], magic=magic, base_offset=offset)


def wrapper(magic: int) -> Build:
    return lambda offset: build_legacy_set(NEW, magic=magic, base_offset=offset, codec=Codec.GZIP)


def judge(damaged: bytes, original: bytes) -> str:
    """Read the damaged log; return CAUGHT, FEWER or UNSEEN. Wrong contents fail the test."""
    contents, next_offset = [], 0
    try:
        for batch in walk(damaged):
            records = list(batch.records())
            if batch.base_offset < next_offset:
                return CAUGHT
            next_offset = batch.next_offset
            contents.append([(r.key, r.value, r.timestamp, r.headers) for r in records])
    except TidelogError:
        return CAUGHT
    right = [
        [(r.key, r.value, r.timestamp, r.headers) for r in batch.records()]
        for batch in walk(original)
    ]
    assert contents == right[: len(contents)]
    return UNSEEN if len(contents) == len(right) else FEWER


def log_of_three(build: Build) -> tuple[bytes, list[int]]:
    """Return three batches back to back, and their positions."""
    log, starts = bytearray(), []
    # Offsets begin at 70, so that some of their bits are set and others are not.
    next_offset = 70
    for _ in range(3):
        starts.append(len(log))
        log += build(next_offset)
        next_offset = list(walk(log))[-1].next_offset
    return bytes(log), starts


def flips(build: Build, chosen: int) -> dict[tuple[int, int], str]:
    """Flip each bit that the chosen batch's checksum excludes; return results by (byte, bit)."""
    log, starts = log_of_three(build)
    found = {}
    for byte in range(17 if log[16] == 2 else 12):
        for bit in range(8):
            damaged = bytearray(log)
            damaged[starts[chosen] + byte] ^= 1 << bit
            found[byte, bit] = judge(bytes(damaged), log)
    return found


def bytes_judged(found: dict[tuple[int, int], str], judgement: str) -> set[int]:
    return {byte for (byte, _), judged in found.items() if judged == judgement}


ALL = [modern, packed, message(0), message(1), wrapper(0), wrapper(1)]
NAMES = ["magic 2", "magic 2 lz4", "message 0", "message 1", "wrapper 0", "wrapper 1"]


@pytest.mark.parametrize("build", ALL, ids=NAMES)
def test_order_catches_every_flip_of_an_offset_between_two_batches(build: Build) -> None:
    found = flips(build, chosen=1)
    offsets = [judged for (byte, _), judged in found.items() if byte < 8]
    assert set(offsets) == {CAUGHT}
    assert len(offsets) == 64


@pytest.mark.parametrize(
    "build", [modern, packed, message(0), message(1), wrapper(1)], ids=[*NAMES[:4], NAMES[5]]
)
def test_of_the_last_batch_an_offset_that_grows_is_unseen(build: Build) -> None:
    log, starts = log_of_three(build)
    offset = int.from_bytes(log[starts[2] : starts[2] + 8], "big")
    for (byte, bit), judged in flips(build, chosen=2).items():
        place = 8 * (7 - byte) + bit
        if byte < 8:
            # The highest bit makes the offset negative.
            grows = place < 63 and not offset >> place & 1
            assert judged == (UNSEEN if grows else CAUGHT), place


def test_flips_in_the_offset_of_a_magic_0_wrapper_are_caught() -> None:
    found = flips(wrapper(0), chosen=2)
    assert {judged for (byte, _), judged in found.items() if byte < 8} == {CAUGHT}


@pytest.mark.parametrize("chosen", [0, 1, 2])
@pytest.mark.parametrize("build", ALL, ids=NAMES)
def test_a_length_is_never_trusted_with_a_wrong_record(build: Build, chosen: int) -> None:
    found = flips(build, chosen)
    lengths = {judged for (byte, _), judged in found.items() if 8 <= byte < 12}
    assert lengths == {CAUGHT, FEWER}


@pytest.mark.parametrize("build", [modern, packed])
def test_a_magic_is_never_trusted(build: Build) -> None:
    found = flips(build, chosen=1)
    assert {judged for (byte, _), judged in found.items() if byte == 16} == {CAUGHT}


@pytest.mark.parametrize("build", [modern, packed])
def test_of_magic_2_a_leader_epoch_is_unseen_here(build: Build) -> None:
    # This layer does not detect a wrong epoch. Storage checks that epochs never decrease along a
    # log.
    for chosen in (0, 1, 2):
        found = flips(build, chosen)
        assert {judged for (byte, _), judged in found.items() if 12 <= byte < 16} == {UNSEEN}


def test_no_other_bit_is_uncovered() -> None:
    assert bytes_judged(flips(modern, 1), UNSEEN) == {12, 13, 14, 15}
    assert bytes_judged(flips(message(1), 1), UNSEEN) == set()


@pytest.mark.parametrize("build", ALL, ids=NAMES)
def test_every_flip_inside_the_checksum_or_of_it_is_caught(build: Build) -> None:
    log = bytes(build(70))
    for at in range(17 if log[16] == 2 else 12, len(log)):
        for bit in range(8):
            damaged = bytearray(log)
            damaged[at] ^= 1 << bit
            assert judge(bytes(damaged), log) == CAUGHT, (at, bit)
