"""Append times of a piece: the fast reader agrees with the plain reader on an undamaged file."""

import dataclasses
import random
import uuid

import numpy as np
import pytest

from tidelog.scan.rows import AppendRuns
from tidelog.scan.split import Piece
from tidelog.storage.clocks.append_time_columns import sound_rows
from tidelog.storage.clocks.append_times import HEADER_SIZE, ROW_SIZE, AppendTimes

BASE = 1_000
TOPIC = uuid.UUID(int=9)
PIECE = Piece(
    path="",
    identity="",
    is_closed=True,
    base_offset=BASE,
    start_position=0,
    end_position=1,
    start_offset=BASE,
    end_offset=BASE + 600,
    times_path="",
    times_end=BASE + 600,
)


def some_times(seed: int, rows: int) -> AppendTimes:
    """Draw ranges of known and unknown append times; with an odd seed, the last is unknown."""
    draw, found = random.Random(seed), AppendTimes(BASE, TOPIC)
    offset, now_ms = BASE + draw.choice((0, 3)), 5_000
    for _ in range(rows):
        found.note(offset, now_ms, draw.getrandbits(32))
        offset += draw.randrange(1, 9)
        now_ms += draw.choice((0, 0, 7, 10**9))
        if draw.random() < 0.1:
            found.mark_unknown(offset)
            offset += draw.choice((0, 2))
    if seed % 2:
        found.mark_unknown(offset)
    return found


def by_offset(data: bytes, piece: Piece) -> list[int]:
    """Return the append time of each offset of a piece, -1 for unknown."""
    starts, known = AppendRuns.decode(data, piece, TOPIC.hex).arrays
    offsets = np.arange(piece.start_offset, piece.end_offset)
    slots = np.searchsorted(starts, offsets, side="right") - 1
    return [int(ms) for ms in np.where(slots >= 0, known[np.maximum(slots, 0)], -1)]


def plainly(found: AppendTimes, piece: Piece) -> list[int]:
    return [
        -1 if offset >= piece.times_end or (ms := found.time_at(offset)) is None else ms
        for offset in range(piece.start_offset, piece.end_offset)
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows", [1, 5, 150])
def test_a_valid_file_gives_its_runs(seed: int, rows: int) -> None:
    found = some_times(seed, rows)
    data = found.encode()
    assert sound_rows(data, BASE, TOPIC) is not None
    for start, end, times_end in ((0, 600, 600), (40, 90, 70), (7, 7, 600), (50, 60, 10)):
        piece = dataclasses.replace(
            PIECE, start_offset=BASE + start, end_offset=BASE + end, times_end=BASE + times_end
        )
        assert by_offset(data, piece) == plainly(found, piece)


def test_no_append_time_after_a_flipped_bit_is_used() -> None:
    data = some_times(3, 4).encode()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        expected, _ = AppendTimes.decode(bytes(damaged), BASE, TOPIC, open_end=True)
        assert by_offset(bytes(damaged), PIECE) == plainly(expected, PIECE)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([(7, 0), (-1, 5), (-1, 9)], "unknown twice"),
        ([(-1, 0), (7, 5)], "unknown first"),
        ([(7, 0), (8, 0)], "two known ones at an offset"),
        ([(7, 0), (8, 4), (9, 3)], "offsets that fall"),
        ([(9, 0), (8, 4)], "times that fall"),
        ([(9, 0), (-1, 4), (8, 6)], "times that fall behind an unknown run"),
        ([(-5, 0)], "a time below -1"),
    ],
)
def test_rows_that_break_a_rule_with_sums_that_are_right(
    rows: list[tuple[int, int]], what: str
) -> None:
    from tidelog.record.coding import crc32c

    data = bytearray(AppendTimes(BASE, TOPIC).encode_header())
    crc = int.from_bytes(data[-4:], "big")
    for ms, relative in rows:
        fact = ms.to_bytes(8, "big", signed=True) + relative.to_bytes(4, "big") + bytes(4)
        crc = crc32c(fact, crc)
        data += fact + crc.to_bytes(4, "big")
    assert sound_rows(bytes(data), BASE, TOPIC) is None, what
    expected, damage = AppendTimes.decode(bytes(data), BASE, TOPIC, open_end=True)
    assert damage is not None
    assert by_offset(bytes(data), PIECE) == plainly(expected, PIECE)


def test_no_rows_and_half_a_row() -> None:
    data = some_times(2, 3).encode()
    for size in (0, 5, HEADER_SIZE, HEADER_SIZE + 9, HEADER_SIZE + ROW_SIZE + 1):
        expected, _ = AppendTimes.decode(data[:size], BASE, TOPIC, open_end=True)
        assert by_offset(data[:size], PIECE) == plainly(expected, PIECE)
