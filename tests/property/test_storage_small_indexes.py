"""Indexes compared with sorted lists, with zero tails, cuts and arbitrary bytes."""

from contextlib import suppress
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptIndex
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.sorted_index import used_size
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.types import INT32_MAX

BASE = 1 << 40

# Mostly even steps, as in a real log, with jumps that mislead a search by interpolation.
leaps = st.one_of(st.integers(1, 9), st.integers(1, 9), st.integers(1, 1_000_000))
entries = st.lists(st.tuples(leaps, leaps), max_size=60).map(
    lambda steps: list(
        zip(
            accumulate(offset for offset, _ in steps),
            accumulate(other for _, other in steps),
            strict=True,
        )
    )
)


def near(values: list[int]) -> st.SearchStrategy[int]:
    """Return a strategy of numbers: mostly values of the list and their neighbors."""
    close = [value + delta for value in values for delta in (-1, 0, 1)]
    anything = st.integers(-5, INT32_MAX)
    return st.one_of(anything, st.sampled_from(close)) if close else anything


@given(entries, st.data())
def test_offset_lookup_is_a_floor_search(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    index = OffsetIndex(BASE)
    written = b"".join(index.append(BASE + offset, position) for offset, position in steps)
    target = BASE + data.draw(near([offset for offset, _ in steps]))
    below = [(BASE + offset, position) for offset, position in steps if BASE + offset <= target]
    expected = below[-1] if below else (BASE, 0)
    zeros = data.draw(st.integers(0, 40)) if steps else 0
    closed = OffsetIndex(BASE, data=memoryview(written + bytes(zeros)))
    assert index.lookup(target) == closed.lookup(target) == expected
    closed.check(2**31, allow_tail=True)


@given(entries, st.data())
def test_time_lookup_is_a_floor_search(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    index = TimeIndex(BASE)
    written = b"".join(index.maybe_append(time, BASE + offset) for offset, time in steps)
    target = data.draw(near([time for _, time in steps]))
    below = [(time, BASE + offset) for offset, time in steps if time <= target]
    expected = below[-1] if below else (-1, BASE)
    zeros = data.draw(st.integers(0, 40)) if steps else 0
    closed = TimeIndex(BASE, data=memoryview(written + bytes(zeros)))
    assert index.lookup(target) == closed.lookup(target) == expected
    closed.check(allow_tail=True)


@given(entries, st.data())
def test_truncation_keeps_lower_entries_and_allows_appends(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    offsets, times = OffsetIndex(BASE), TimeIndex(BASE)
    for offset, other in steps:
        offsets.append(BASE + offset, other)
        times.maybe_append(other, BASE + offset)
    cut = BASE + data.draw(near([offset for offset, _ in steps]))
    kept = [(BASE + offset, other) for offset, other in steps if BASE + offset < cut]
    assert offsets.truncate_to(cut) == 8 * len(kept)
    assert times.truncate_to(cut) == 12 * len(kept)
    last_offset, last_other = kept[-1] if kept else (BASE, 0)
    kept.append((last_offset + 1, last_other + 1))
    offsets.append(last_offset + 1, last_other + 1)
    times.maybe_append(last_other + 1, last_offset + 1)
    assert list(offsets.entries()) == kept
    assert [(offset, time) for time, offset in times.entries()] == kept


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 3), st.binary(max_size=2))
def test_the_used_size_ends_after_the_last_entry_that_is_not_zero(
    real: list[bool], zero_entries: int, rest: bytes
) -> None:
    data = b"\1" * 8 * len(real) + bytes(8 * zero_entries) + rest
    if real or zero_entries > 1:
        assert used_size(data, 8) == 8 * len(real)
    else:
        assert used_size(data, 8) == 8


@given(st.binary(max_size=120), st.integers(-2, 2**33), st.integers(0, 2**31))
def test_any_bytes_are_searched_without_an_error_and_checked_with_a_typed_one(
    data: bytes, target: int, log_size: int
) -> None:
    offsets, times = OffsetIndex(BASE, data=data), TimeIndex(BASE, data=data)
    assert offsets.lookup(BASE + target)[0] <= max(BASE + target, BASE)
    assert times.lookup(target)[0] <= max(target, -1)
    with suppress(CorruptIndex):
        offsets.check(log_size)
        found = list(offsets.entries())
        assert all(a < b and x < y for (a, x), (b, y) in pairwise(found))
        assert all(offset >= BASE and 0 <= position < log_size for offset, position in found)
    with suppress(CorruptIndex):
        times.check()
        pairs = list(times.entries())
        assert all(a < b and x <= y for (a, x), (b, y) in pairwise(pairs))
