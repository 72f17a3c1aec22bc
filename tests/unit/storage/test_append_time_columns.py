"""Append times in columns have the same rows as append times in `AppendTimes`."""

from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidelog.record.coding import crc32c
from tidelog.record.kernels.checksums import chain_rows, count_chained, sum_rows, sum_tables
from tidelog.record.kernels.compiler import plain
from tidelog.storage.clocks import append_time_columns as columns
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.segment.append_time_trust import fingerprint_of

TOPIC = UUID(int=7)
BASE = 1000
ROWS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 10**6), st.integers(0, 2**32 - 1)), max_size=12
)


def noted(rows: list[tuple[int, int, int]], *, at: int = BASE, ms: int = 0) -> list[list[int]]:
    """Return rows of offset, time and checksum. The times and offsets in `rows` are increments."""
    found = []
    for step, gap, crc in rows:
        at, ms = at + step, ms + gap
        found.append([at, ms, crc])
    return found


@given(ROWS, ROWS, st.booleans())
def test_rows_that_are_added_at_once_are_those_that_are_noted_one_by_one(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]], breaks: bool
) -> None:
    one, many = AppendTimes(BASE, TOPIC), AppendTimes(BASE, TOPIC)
    end, ms = BASE, 0
    for rows in (first, second):
        steps = noted(rows, at=end, ms=ms)
        for step in steps:
            one.note(*step)
        table = np.array(steps, np.int64).reshape(-1, 3)
        columns.add_rows(many, *(np.ascontiguousarray(column) for column in table.T))
        if steps:
            end, ms = steps[-1][0], steps[-1][1]
        if breaks:
            end += 1
            assert one.mark_unknown(end, 5) == many.mark_unknown(end, 5)
    assert list(one.rows()) == list(many.rows())
    assert one.digest == many.digest
    assert one.runs(BASE, end + 9) == many.runs(BASE, end + 9)
    assert one.unknown_in(BASE, end + 9) == many.unknown_in(BASE, end + 9)
    assert columns.encode(one) == one.encode()
    one.close(end + 1)
    found = columns.sound_rows(one.encode(), BASE, TOPIC)
    offsets, times = columns.offsets_and_times(one)
    if found is None:
        assert not offsets.size
    else:
        assert [column.tolist() for column in found] == [offsets.tolist(), times.tolist()]
        assert columns.sound_rows(one.encode()[:-1], BASE, TOPIC) is None
        assert columns.sound_rows(one.encode(), BASE + 1, TOPIC) is None


def test_fingerprints_are_those_of_single_batches() -> None:
    facts = [(0, -1, 0), (2**32 - 1, 2**31 - 1, 2**63 - 1), (7, 3, 1 << 40)]
    crcs, epochs, bases = (np.array(column, np.int64) for column in zip(*facts, strict=True))
    assert columns.fingerprints(crcs, epochs, bases).tolist() == [fingerprint_of(*f) for f in facts]


def test_rows_are_chained_as_they_are_counted() -> None:
    table = sum_tables()[1]
    data = np.frombuffer(bytes(range(60)), np.uint8)
    for chain in (chain_rows, plain(chain_rows)):
        rows = data.copy()
        last = chain(rows, 12, 99, table)
        assert last == int.from_bytes(rows[-4:].tobytes(), "big")
        frozen = rows.copy()
        frozen.flags.writeable = False
        assert count_chained(frozen, 12, 99, table) == 5
        assert chain(np.zeros(0, np.uint8), 12, 99, table) == 99
    for total in (sum_rows, plain(sum_rows)):
        out = np.empty(5, np.int64)
        total(data.copy(), 12, table, out)
        assert out.tolist() == [crc32c(data[at : at + 12].tobytes()) for at in range(0, 60, 12)]


def test_times_from_before_the_topic_had_an_id_are_trusted() -> None:
    """A topic's files aren't rewritten when it gets an id, so zeros in a header are accepted."""
    old = AppendTimes(BASE, UUID(int=0))
    old.note(BASE + 5, 1000, 0xA)
    old.close(BASE + 10)
    times, damage = AppendTimes.decode(old.encode(), BASE, TOPIC)
    assert damage is None
    assert list(times.rows()) == list(old.rows())
    assert times.encode() == old.encode()
    assert columns.sound_rows(old.encode(), BASE, TOPIC) is not None
    of_another = AppendTimes(BASE, UUID(int=9)).encode()
    assert AppendTimes.decode(of_another, BASE, TOPIC)[1] is not None
