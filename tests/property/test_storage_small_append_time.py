"""The append clock, compared with a list of times, returns no wrong time after any damage.

The model is a list of `int | None`, one entry per offset. The clock returns bytes to write; a
simulated disk stores them, as the log does with its clock file.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.storage.clocks.append_times import AppendTimes

TOPIC = UUID(int=77)
BASE = 1000

Op = tuple[str, int, int]


@dataclass
class Writer:
    """A simulated log without records: expected append times, the tested clock, and its file."""

    granularity_ms: int = 1
    now_ms: int = 5
    serial: int = 0  # stands for a batch's checksum; differs for each batch
    expected: list[int | None] = field(default_factory=list)
    batch_ends: dict[int, int] = field(default_factory=dict)
    times: AppendTimes = field(default_factory=lambda: AppendTimes(BASE, TOPIC))
    disk: bytes = b""

    def __post_init__(self) -> None:
        self.times.granularity_ms = self.granularity_ms
        self.disk = self.times.encode_header()

    @property
    def end(self) -> int:
        return BASE + len(self.expected)

    def run(self, ops: list[Op]) -> None:
        for name, count, step_ms in ops:
            self.now_ms += step_ms
            getattr(self, name)(count)

    def append(self, count: int) -> None:
        self.batch_ends[self.end] = self.end + count
        self.serial += 1
        self.disk += self.times.note(self.end, self.now_ms, self.serial)
        self.expected += [self.now_ms - self.now_ms % self.granularity_ms] * count

    def foreign(self, count: int) -> None:
        """Append as another program does; the writer sees the records when it reopens the log."""
        if self.expected:
            self.disk += self.times.mark_unknown(self.end)
        self.batch_ends[self.end] = self.end + count
        self.expected += [None] * count

    def truncate(self, count: int) -> None:
        keep = max(0, len(self.expected) - count)
        while keep and BASE + keep not in {*self.batch_ends.values(), BASE}:
            keep -= 1
        del self.expected[keep:]
        self.disk = self.disk[: self.times.truncate_to(self.end)]
        self.batch_ends = {a: b for a, b in self.batch_ends.items() if b <= self.end}

    def reopen(self, _count: int) -> None:
        if self.expected:
            self.disk += self.times.close(self.end)
        self.times, damage = AppendTimes.decode(self.disk, BASE, TOPIC)
        self.times.granularity_ms = self.granularity_ms
        assert damage is None

    def model_range(self, a: int, b: int) -> list[int]:
        return [BASE + n for n, ms in enumerate(self.expected) if ms is not None and a <= ms < b]


counts = st.integers(1, 6)
steps = st.sampled_from([0, 0, 1, 1, 7, 1000])
ops = st.lists(
    st.one_of(
        st.tuples(st.just("append"), counts, steps),
        st.tuples(st.just("append"), counts, steps),
        st.tuples(st.sampled_from(["foreign", "truncate", "reopen"]), counts, steps),
    ),
    max_size=25,
)


def written(ops: list[Op], granularity_ms: int = 1) -> Writer:
    writer = Writer(granularity_ms)
    writer.run(ops)
    return writer


def assert_never_wrong(times: AppendTimes, expected: list[int | None], end: int) -> None:
    for offset in range(BASE, max(end, BASE + len(expected))):
        known = times.time_at(offset)
        within = offset - BASE < len(expected)
        assert known is None or (within and known == expected[offset - BASE]), offset


@given(ops, st.sampled_from([1, 10, 1000]))
def test_every_record_has_its_time(ops: list[Op], granularity_ms: int) -> None:
    writer = written(ops, granularity_ms)
    assert writer.disk == writer.times.encode()
    assert [writer.times.time_at(BASE + n) for n in range(len(writer.expected))] == writer.expected


@given(ops, st.data())
def test_questions_by_time_and_range_agree_with_the_list(
    ops: list[Op], data: st.DataObject
) -> None:
    writer = written(ops)
    end = writer.end
    start = data.draw(st.integers(BASE - 2, end), "start")
    stop = data.draw(st.integers(start, end), "stop")
    a = data.draw(st.integers(0, writer.now_ms + 2), "a")
    b = data.draw(st.integers(0, writer.now_ms + 2), "b")

    def spread(spans: list[tuple[int, int]]) -> list[int]:
        assert all(first < last for first, last in spans)
        assert all(x[1] < y[0] for x, y in pairwise(spans))
        return [offset for first, last in spans for offset in range(first, last)]

    wanted = [offset for offset in writer.model_range(a, b) if start <= offset < stop]
    assert spread(writer.times.ranges(a, b, start, stop)) == wanted
    unknown = [
        offset
        for offset in range(start, stop)
        if offset < BASE or writer.expected[offset - BASE] is None
    ]
    assert spread(writer.times.unknown_in(start, stop)) == unknown
    runs = writer.times.runs(start, stop)
    assert [offset for first, last, _ in runs for offset in range(first, last)] == [
        *range(start, stop)
    ]
    assert all(writer.times.time_at(first) == ms for first, _, ms in runs)
    assert all(x[2] != y[2] for x, y in pairwise(runs))
    known = [ms for _, _, ms in runs if ms is not None]
    assert writer.times.span(start, stop) == ((known[0], known[-1]) if known else None)


@given(ops, st.data())
def test_a_cut_file_is_never_wrong(ops: list[Op], data: st.DataObject) -> None:
    """The file is cut at any byte; after a cut between two rows it still looks complete."""
    writer = written(ops)
    cut = data.draw(st.integers(0, len(writer.disk)), "cut")
    times, _ = AppendTimes.decode(writer.disk[:cut], BASE, TOPIC)
    assert_never_wrong(times, writer.expected, writer.end)


@given(ops, st.data())
def test_a_damaged_byte_is_never_wrong(ops: list[Op], data: st.DataObject) -> None:
    writer = written(ops)
    writer.reopen(0)
    damaged = bytearray(writer.disk)
    at = data.draw(st.integers(0, len(damaged) - 1), "at")
    damaged[at] ^= data.draw(st.integers(1, 255), "flip")
    times, damage = AppendTimes.decode(damaged, BASE, TOPIC)
    assert damage is not None
    assert_never_wrong(times, writer.expected, writer.end)


@given(ops, st.data())
def test_every_single_row_zeroed_lost_or_swapped_is_never_wrong(
    ops: list[Op], data: st.DataObject
) -> None:
    writer = written(ops)
    writer.reopen(0)
    rows = [writer.disk[at : at + 20] for at in range(28, len(writer.disk), 20)]
    if not rows:
        return
    slot = data.draw(st.integers(0, len(rows) - 1), "slot")
    other = data.draw(st.integers(0, len(rows) - 1), "other")
    match data.draw(st.sampled_from(["zero", "drop", "swap", "double"]), "damage"):
        case "zero":
            rows[slot] = bytes(20)
        case "drop":
            del rows[slot]
        case "swap":
            rows[slot], rows[other] = rows[other], rows[slot]
        case _:
            rows.insert(slot, rows[slot])
    times, _ = AppendTimes.decode(writer.disk[:28] + b"".join(rows), BASE, TOPIC)
    assert_never_wrong(times, writer.expected, writer.end)


@given(ops, ops, st.data())
def test_a_lost_cut_under_later_rows_is_never_wrong(
    before: list[Op], after: list[Op], data: st.DataObject
) -> None:
    """The file was cut, then got new rows; a crash kept some old bytes and some new ones.

    A crash keeps all synced bytes. The cut is synced, so the rows before the cut are unchanged.
    """
    writer = written(before)
    old = writer.disk
    writer.truncate(data.draw(st.integers(1, 20), "cut"))
    cut = len(writer.disk)
    writer.run([op for op in after if op[0] != "truncate"])
    new = writer.disk
    kept = data.draw(st.integers(cut, len(new)), "kept")
    size = data.draw(st.integers(cut, max(len(old), kept)), "size")
    torn = (new[:kept] + old[kept:])[:size]
    times, _ = AppendTimes.decode(torn, BASE, TOPIC)
    if torn[cut : cut + 20] == old[cut : cut + 20]:
        return  # if no new row was kept, the next test covers the case
    assert_never_wrong(times, writer.expected, writer.end)


def test_a_lost_cut_without_any_later_row_needs_the_cut_to_be_durable() -> None:
    """A cut must be synced before the next append; otherwise a crash may restore old times."""
    writer = written([("append", 1, 0), ("append", 1, 1)])
    old = writer.disk
    writer.run([("truncate", 2, 0), ("append", 1, 0)])
    times, _ = AppendTimes.decode(old, BASE, TOPIC)
    assert times.time_at(BASE) != writer.expected[0]


@given(ops, st.data())
def test_rows_of_a_lost_log_tail_are_never_wrong(ops: list[Op], data: st.DataObject) -> None:
    """Rows whose records are lost are dropped; the last append time before them stays known."""
    writer = written(ops)
    lost = data.draw(st.integers(0, len(writer.expected)), "lost")
    expected = writer.expected[: len(writer.expected) - lost]
    end = BASE + len(expected)
    times, _ = AppendTimes.decode(writer.disk, BASE, TOPIC, open_end=True)
    times.truncate_to(end)
    times.mark_unknown(end)
    assert [times.time_at(BASE + n) for n in range(len(expected))] == expected
    assert times.unknown_in(end, end + 5) == [(end, end + 5)]


@given(ops, st.integers(0, 1), st.integers(0, 1))
def test_a_file_of_another_segment_or_topic_proves_no_time(
    ops: list[Op], base_delta: int, topic_delta: int
) -> None:
    writer = written(ops)
    writer.reopen(0)
    times, damage = AppendTimes.decode(
        writer.disk, BASE + base_delta, UUID(int=TOPIC.int + topic_delta)
    )
    if base_delta or topic_delta:
        assert damage is not None
        assert times.row_count == 0
    else:
        assert times.row_count == writer.times.row_count
