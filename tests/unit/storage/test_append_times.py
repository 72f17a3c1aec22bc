"""Append times of a segment: rows, and the times that remain after damage."""

import random
from collections.abc import Callable
from uuid import UUID

import pytest

from tidelog.record.coding import crc32c
from tidelog.storage.clocks.append_times import HEADER_SIZE, ROW_SIZE, AppendTimeRow, AppendTimes
from tidelog.types import INT32_MAX, INT64_MAX, UNKNOWN_MS

TOPIC = UUID(int=(1 << 64) | 2)
BASE = 100


def gapped() -> AppendTimes:
    """Return append times: 1000 for offsets 105-109, 1003 for 110-119 and 130-139, else none."""
    times = AppendTimes(BASE, TOPIC)
    times.note(105, 1000, 0xA)
    times.note(110, 1003, 0xB)
    times.mark_unknown(120)
    times.note(130, 1003, 0xC)
    times.close(140)
    return times


def decode(data: bytes, *, open_end: bool = False) -> tuple[AppendTimes, str | None]:
    return AppendTimes.decode(data, BASE, TOPIC, open_end=open_end)


def test_the_bytes_of_a_file() -> None:
    times = AppendTimes(BASE, TOPIC)
    header = bytes.fromhex("544c4154 0001 0014") + TOPIC.bytes
    header_crc = crc32c(header + BASE.to_bytes(8, "big"))
    row = (1_700_000_000_000).to_bytes(8, "big") + bytes.fromhex("00000005 deadbeef")
    row_crc = crc32c(row, header_crc)
    expected_row = row + row_crc.to_bytes(4, "big")
    end = bytes.fromhex("ffffffffffffffff 0000000a 00000000")
    expected_end = end + crc32c(end, row_crc).to_bytes(4, "big")

    assert times.encode() == times.encode_header() == header + header_crc.to_bytes(4, "big")
    assert times.note(105, 1_700_000_000_000, 0xDEADBEEF) == expected_row
    assert times.close(110) == expected_end
    assert times.encode() == times.encode_header() + expected_row + expected_end
    assert times.size_bytes == HEADER_SIZE + 2 * ROW_SIZE


def test_a_whole_file_is_read_back() -> None:
    times, damage = decode(gapped().encode())
    assert damage is None
    assert list(times.rows()) == list(gapped().rows())
    assert times.encode() == gapped().encode()
    assert times.rows()[0] == AppendTimeRow(105, 1000, 0xA)
    assert list(reversed(times.rows()))[:2] == [(140, -1, 0), (130, 1003, 0xC)]


def test_rows_of_a_proven_file_are_not_checked_again() -> None:
    times = gapped()
    data = bytearray(times.encode())
    whole = list(times.rows())
    proven = times.digest
    again, damage = AppendTimes.decode(data, BASE, TOPIC, proven=proven)
    assert (list(again.rows()), again.digest, damage) == (whole, proven, None)

    for other in ((proven[0] - 1, proven[1]), (proven[0], proven[1] ^ 1)):
        data[HEADER_SIZE + 3] ^= 1  # damage in the first row
        again, damage = AppendTimes.decode(data, BASE, TOPIC, proven=other)
        assert damage is not None
        assert again.row_count == 0
        data[HEADER_SIZE + 3] ^= 1

    torn = bytes(data[:-1])
    again, damage = AppendTimes.decode(torn, BASE, TOPIC, proven=proven)
    assert damage is not None


def drawn(draw: random.Random) -> AppendTimes:
    """Draw up to 99 ranges of known times, some followed by unknown ones; the last may be open."""
    times, offset, ms = AppendTimes(BASE, TOPIC), BASE, 1_000
    for _ in range(draw.randrange(1, 100)):
        offset, ms = offset + draw.randrange(1, 9), ms + draw.randrange(5)
        times.note(offset, ms, draw.getrandbits(32))
        if not draw.randrange(4):
            times.mark_unknown(offset + 1, draw.choice([0, 7]))
            offset += 1
    if draw.randrange(2):
        times.close(offset + 5, 8)
    return times


@pytest.mark.parametrize("seed", range(20))
def test_a_proven_file_gives_the_results_of_its_rows(seed: int) -> None:
    draw = random.Random(seed)
    times = drawn(draw)
    end = times.rows()[-1].offset + 10

    def proven() -> AppendTimes:
        again, damage = AppendTimes.decode(
            times.encode(), BASE, TOPIC, open_end=True, proven=times.digest
        )
        assert damage is None
        return again

    one = proven()
    for _ in range(20):
        start, stop = sorted(draw.randrange(BASE - 5, end + 5) for _ in range(2))
        assert one.span(start, stop) == times.span(start, stop)
        assert one.unknown_in(start, stop) == times.unknown_in(start, stop)
        assert one.ends_at(start) == times.ends_at(start)
    known = [ms for _, ms, _ in times.rows() if ms != UNKNOWN_MS]
    for each in (one, times):
        assert list(each.known_times()) == known
        first = [ms for _, ms, _ in times.rows()[:5] if ms != UNKNOWN_MS]
        assert list(each.known_times(5)) == first
    assert one.ends_at(times.rows()[-1].offset) == times.ends_at(times.rows()[-1].offset)
    for name in ("row_count", "size_bytes", "last_known_ms", "digest", "is_open"):
        assert getattr(one, name) == getattr(times, name), name
    every = range(BASE - 2, end)
    assert [*map(one.time_at, every)] == [*map(times.time_at, every)]
    assert (list(one.rows()), one.encode()) == (list(times.rows()), times.encode())
    assert proven().runs(BASE, end) == times.runs(BASE, end)
    assert proven().ranges(1_002, 1_050, BASE, end) == times.ranges(1_002, 1_050, BASE, end)
    at = draw.randrange(BASE, end)
    changed = proven()
    assert changed.truncate_to(at) == times.truncate_to(at)
    assert changed.mark_unknown(at) == times.mark_unknown(at)
    assert changed.note(end, 9_000, 5) == times.note(end, 9_000, 5)
    assert changed.encode() == times.encode()


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (100, None),
        (104, None),
        (105, 1000),
        (109, 1000),
        (110, 1003),
        (119, 1003),
        (120, None),
        (129, None),
        (130, 1003),
        (139, 1003),
        (140, None),
        (INT64_MAX, None),
    ],
)
def test_time_at(offset: int, expected: int | None) -> None:
    assert gapped().time_at(offset) == expected


def test_without_rows_nothing_is_known() -> None:
    times = AppendTimes(BASE, TOPIC)
    assert times.time_at(BASE) is None
    assert times.last_known_ms is None
    assert times.runs(100, 110) == [(100, 110, None)]
    assert times.ranges(0, INT64_MAX, 0, 200) == []
    assert times.unknown_in(100, 110) == [(100, 110)]
    assert times.mark_unknown(105) == times.close(110) == b""
    assert times.truncate_to(100) == HEADER_SIZE


def test_a_time_that_does_not_move_adds_no_row() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    assert times.note(110, 5, 2) == b""
    assert times.row_count == 1
    assert times.time_at(110) == 5


def test_a_known_time_continues_after_an_unknown_run() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    times.mark_unknown(110)
    assert times.note(120, 5, 2)
    assert [times.time_at(offset) for offset in (109, 110, 119, 120)] == [5, None, None, 5]


def test_a_closed_segment_continues_at_its_end() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    times.close(110)
    assert times.time_at(110) is None
    assert times.note(110, 9, 2)
    assert (times.time_at(109), times.time_at(110)) == (5, 9)
    assert times.unknown_in(100, 120) == []
    assert times.runs(100, 120) == [(100, 110, 5), (110, 120, 9)]


def test_runs_cover_a_range_without_gaps() -> None:
    assert gapped().runs(103, 135) == [
        (103, 105, None),
        (105, 110, 1000),
        (110, 120, 1003),
        (120, 130, None),
        (130, 135, 1003),
    ]
    assert gapped().runs(112, 115) == [(112, 115, 1003)]
    assert gapped().runs(115, 115) == []
    assert gapped().runs(150, 160) == [(150, 160, None)]


def test_runs_of_one_time_are_one_run() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    times.close(110)
    times.note(110, 5, 2)
    assert times.runs(100, 120) == [(100, 120, 5)]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, 5000, [(105, 120), (130, 140)]),
        (1000, 1003, [(105, 110)]),
        (1000, 1004, [(105, 120), (130, 140)]),
        (1001, 1003, []),
        (1003, 1004, [(110, 120), (130, 140)]),
        (1004, 9999, []),
        (0, 1000, []),
        (1003, 1003, []),
        (1004, 1000, []),
    ],
)
def test_ranges_of_known_times(a: int, b: int, expected: list[tuple[int, int]]) -> None:
    assert gapped().ranges(a, b, 0, INT64_MAX) == expected


def test_ranges_are_clipped() -> None:
    assert gapped().ranges(0, 5000, 107, 132) == [(107, 120), (130, 132)]
    assert gapped().ranges(0, 5000, 121, 129) == []
    assert gapped().ranges(0, 5000, 0, 100) == []


def test_unknown_ranges() -> None:
    assert gapped().unknown_in(100, 150) == [(100, 105), (120, 130), (140, 150)]
    assert gapped().unknown_in(122, 125) == [(122, 125)]
    assert gapped().unknown_in(105, 120) == []


@pytest.mark.parametrize(
    ("offset", "rows", "known_at"),
    [(100, 0, None), (105, 0, None), (106, 1, 1000), (120, 2, 1003), (121, 3, None)],
)
def test_truncation_drops_rows_from_the_offset_on(
    offset: int, rows: int, known_at: int | None
) -> None:
    times = gapped()
    whole = times.encode()
    size = times.truncate_to(offset)
    assert size == HEADER_SIZE + rows * ROW_SIZE
    assert times.encode() == whole[:size]
    assert times.time_at(offset) == known_at


def test_rows_after_a_truncation_continue_with_the_checksums() -> None:
    times = gapped()
    times.truncate_to(115)
    times.note(115, 2000, 0xD)
    times.close(120)
    again, damage = decode(times.encode())
    assert damage is None
    assert again.runs(105, 120) == [(105, 110, 1000), (110, 115, 1003), (115, 120, 2000)]


def test_a_coarse_clock_rounds_down() -> None:
    times = AppendTimes(BASE, TOPIC, granularity_ms=1000)
    times.note(100, 1999, 1)
    assert times.note(101, 1000 + 999, 2) == b""
    assert times.note(102, 2000, 3)
    assert (times.time_at(101), times.time_at(102)) == (1000, 2000)


def test_a_clock_made_coarser_does_not_run_back() -> None:
    times = AppendTimes(BASE, TOPIC, floor_ms=1500)
    times.note(100, 1555, 1)
    times.granularity_ms = 1000
    assert times.note(101, 1600, 2) == b""
    assert times.time_at(101) == 1555
    fresh = AppendTimes(BASE, TOPIC, granularity_ms=1000, floor_ms=1555)
    fresh.note(100, 1600, 1)
    assert fresh.time_at(100) == 1555


def test_a_time_that_runs_back_is_a_mistake_of_the_caller() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    with pytest.raises(AssertionError):
        times.note(101, 4, 2)


def test_two_known_rows_at_one_offset_are_a_mistake_of_the_caller() -> None:
    """With two rows for one offset, the earlier row would be trusted if the later row were lost."""
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    with pytest.raises(AssertionError):
        times.note(100, 6, 2)
    with pytest.raises(AssertionError):
        times.mark_unknown(100)
    times.truncate_to(100)
    assert times.note(100, 6, 2)


def test_a_run_to_the_last_possible_offset_needs_no_end() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(BASE + INT32_MAX, 5, 1)
    assert times.close(BASE + INT32_MAX + 1) == b""
    assert times.time_at(BASE + INT32_MAX) == 5


def test_an_end_names_the_batch_before_it() -> None:
    times = AppendTimes(BASE, TOPIC)
    times.note(100, 5, 1)
    times.close(110, 0xFEED)
    assert times.rows()[-1] == AppendTimeRow(110, -1, 0xFEED)
    assert decode(times.encode())[0].rows()[-1] == times.rows()[-1]


# -- damage ----------------------------------------------------------------------------------


def cut(row: int, size: int = 0) -> Callable[[bytes], bytes]:
    return lambda data: data[: HEADER_SIZE + row * ROW_SIZE + size]


def test_a_file_without_its_end_row_is_trusted_for_the_opening_batch_of_the_last_row() -> None:
    times, damage = decode(cut(2)(gapped().encode()))
    assert damage is not None
    assert "no end row" in damage
    assert times.runs(105, 120) == [(105, 110, 1000), (110, 111, 1003), (111, 120, None)]


def test_a_live_writer_vouches_for_an_open_end() -> None:
    times, damage = decode(cut(2)(gapped().encode()), open_end=True)
    assert damage is None
    assert times.runs(105, 125) == [(105, 110, 1000), (110, 125, 1003)]


def test_a_limited_file_is_whole_when_it_is_written_again() -> None:
    times, _ = decode(cut(2)(gapped().encode()))
    again, damage = decode(times.encode())
    assert damage is None
    assert again.runs(100, 200) == times.runs(100, 200)


@pytest.mark.parametrize("open_end", [False, True])
@pytest.mark.parametrize(
    ("damaged", "expected_damage"),
    [
        (cut(2, 7)(gapped().encode()), "row 2: only 7 of 20 bytes"),
        (cut(2)(gapped().encode()) + bytes(40), "row 2: wrong checksum"),
        (cut(2)(gapped().encode()) + gapped().encode()[HEADER_SIZE + 60 :], "row 2: wrong"),
    ],
    ids=["torn", "zeros", "a row is missing"],
)
def test_no_row_after_a_hole_is_trusted(
    damaged: bytes, expected_damage: str, *, open_end: bool
) -> None:
    times, damage = decode(damaged, open_end=open_end)
    assert damage is not None
    assert expected_damage in damage
    assert times.runs(105, 140) == [(105, 110, 1000), (110, 111, 1003), (111, 140, None)]


def test_damage_after_the_end_row_removes_no_time() -> None:
    times, damage = decode(gapped().encode() + b"\0\0\0")
    assert damage == "row 5: only 3 of 20 bytes"
    assert list(times.rows()) == list(gapped().rows())


def test_rows_that_reappear_from_before_a_truncation_are_not_trusted() -> None:
    """A crash undid the truncation, but kept the rows that were written after the truncation."""
    old = gapped().encode()
    times = gapped()
    size = times.truncate_to(107)
    new_row = times.note(107, 3000, 0xE)
    on_disk = old[:size] + new_row + old[size + ROW_SIZE :]
    again, damage = decode(on_disk)
    assert damage is not None
    assert again.runs(105, 140) == [(105, 107, 1000), (107, 108, 3000), (108, 140, None)]


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        (b"", "header of 0 bytes"),
        (b"TLAT", "header of 4 bytes"),
        (b"XXXX" + gapped().encode()[4:], "magic"),
        (gapped().encode()[:4] + b"\0\2" + gapped().encode()[6:], "version 2 with rows of 20"),
        (gapped().encode()[:27] + b"\0" + gapped().encode()[28:], "checksum"),
        (AppendTimes(BASE, UUID(int=9)).encode(), "topic id"),
        (AppendTimes(BASE + 1, TOPIC).encode(), "checksum is wrong for base offset 100"),
    ],
)
def test_a_bad_header_gives_no_times(damaged: bytes, expected: str) -> None:
    times, damage = decode(damaged)
    assert damage is not None
    assert expected in damage
    assert times.row_count == 0
    assert times.unknown_in(100, 200) == [(100, 200)]


def sealed(*rows: tuple[int, int]) -> bytes:
    """Return a file with correct checksums and the given rows of time and relative offset."""
    data = AppendTimes(BASE, TOPIC).encode()
    crc = int.from_bytes(data[-4:], "big")
    for ms, relative in rows:
        facts = ms.to_bytes(8, "big", signed=True) + relative.to_bytes(4, "big", signed=True)
        crc = crc32c(facts + bytes(4), crc)
        data += facts + bytes(4) + crc.to_bytes(4, "big")
    return data


@pytest.mark.parametrize(
    "rows",
    [
        [(-1, 0)],
        [(-2, 0)],
        [(5, -1)],
        [(5, 0), (5, 0)],
        [(5, 4), (6, 3)],
        [(5, 0), (4, 1)],
        [(5, 0), (-2, 1)],
        [(5, 0), (-1, 0)],
        [(5, 0), (-1, 2), (-1, 3)],
        [(5, 0), (-1, 2), (4, 3)],
    ],
)
def test_a_row_that_cannot_follow_is_not_trusted(rows: list[tuple[int, int]]) -> None:
    _, damage = decode(sealed(*rows))
    assert damage is not None
    assert "can't follow" in damage


def test_sealed_rows_are_trusted_if_they_follow() -> None:
    """`decode` accepts such rows from `sealed`, so the test above is only about their order."""
    times, damage = decode(sealed((5, 0), (-1, 2), (5, 2), (-1, 3)))
    assert damage is None
    assert times.runs(100, 104) == [(100, 103, 5), (103, 104, None)]
