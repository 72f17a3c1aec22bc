"""Compaction's kernels give equal results compiled and interpreted, and stay in their arrays."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import Guarded, Number, frozen, run_guarded
from tests.core import examples
from tests.worlds.records.kernel_logs import batches

from tidelog.record.kernels import key_map, layout, rewrite
from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.checksums import NO_SHIFTS, shifts
from tidelog.record.kernels.compiler import Kernel, plain
from tidelog.record.kernels.hashes import make_hasher
from tidelog.types import INT64_MAX, Codec

SLOTS = 64


def table_of(data: bytes) -> npt.NDArray[np.int64]:
    table = np.zeros((8, layout.BATCH_FIELDS), np.int64)
    count, _, _ = scan_batches(frozen(data), 0, len(data), table, 0, INT64_MAX)
    return table[:count].copy()


def both(
    kernel: Kernel[..., object], work: Callable[[Callable[..., object], Guarded], object]
) -> None:
    """Run a kernel compiled and interpreted; compare the content of all arrays."""
    assert run_guarded(partial(work, kernel)) == run_guarded(partial(work, plain(kernel)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw consecutive uncompressed batches; a bit of the last batch's body may be flipped."""
    parts = draw(st.lists(batches(codecs=(Codec.NONE,)), min_size=1, max_size=3))
    data = bytearray(b"".join(parts))
    if draw(st.booleans()):
        start = len(data) - len(parts[-1]) + 57
        data[draw(st.integers(start, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@examples(15)
@given(
    data=damaged(),
    strategy=st.sampled_from((0, 1, 2)),
    limit=st.sampled_from((1, 3, SLOTS - 1)),
    verify=st.booleans(),
    mask=st.sampled_from((-1, 1)),
    look_up=st.booleans(),
    sums=st.sampled_from((NO_SHIFTS, shifts())),
)
def test_mapping(
    data: bytes,
    strategy: int,
    limit: int,
    verify: bool,
    mask: int,
    look_up: bool,
    sums: npt.NDArray[np.int64],
) -> None:
    table = table_of(data)

    def work(run: Callable[..., object], guarded: Guarded) -> object:
        def zeros(size: int, kind: type[Number]) -> npt.NDArray[Number]:
            array = guarded.array(size, kind)
            array[:] = 0
            return array

        keys = key_map.KeyMap(
            zeros(2 * SLOTS, np.int64),
            zeros(SLOTS, np.int64),
            zeros(SLOTS if strategy else 0, np.int64),
            zeros(SLOTS if verify else 0, np.int64),
            zeros(256 if verify else 0, np.uint8),
            zeros(key_map.STATE_FIELDS, np.int64),
            zeros(key_map.WINDOW_SIZE, np.int64),
            limit,
            make_hasher(0, bytes(16), mask, 0),
        )
        counts = np.clip(table[:, layout.RECORD_COUNT], 0, 1000)
        numbers = np.cumsum(counts) - counts
        lost = zeros(int(counts.sum()) // 8 + 1, np.uint8)
        marks = key_map.Marks(lost, lost, zeros(len(table), np.int32))
        header = np.frombuffer(b"a", np.uint8)
        found = []
        for is_look_up in (0, 1) if look_up else (0,):
            rules = key_map.KeyRules(strategy, header, 2, 1 << 62, 4, is_look_up, sums)
            sane = table[:, layout.RECORD_COUNT] == counts
            wanted = np.where(sane, numbers, -1)
            found.append(run(frozen(data), table, wanted, rules, keys, marks))
        return found

    both(key_map.map_batches, work)


@examples(15)
@given(data=damaged(), bits=st.integers(0, 2**30 - 1), plan=st.data())
def test_writing(data: bytes, bits: int, plan: st.DataObject) -> None:
    table = table_of(data)
    counts = np.clip(table[:, layout.RECORD_COUNT], 0, 1000)
    rows = np.zeros((len(table), rewrite.PLAN_FIELDS), np.int64)
    for slot in range(len(table)):
        rows[slot] = [
            plan.draw(st.sampled_from((0, 1, 2, 2, 2, 3))),
            plan.draw(st.sampled_from((-1, 3))),
            plan.draw(st.sampled_from((-1, 5, 1 << 60))),
            *(plan.draw(st.integers(0, 1)) for _ in range(3)),
        ]
    table[:, layout.RECORD_COUNT] = counts
    lost = np.frombuffer(bits.to_bytes(4, "little") + bytes(200), np.uint8).copy()

    def work(run: Callable[..., object], guarded: Guarded) -> object:
        out = guarded.array(plan_size, np.uint8)
        written = guarded.array((len(table), rewrite.WRITTEN_FIELDS), np.int64)
        facts = guarded.array(rewrite.FACT_FIELDS, np.int64)
        facts[:] = 0
        sources = rewrite.Sources(frozen(data), frozen(data), table, rows, lost)
        return run(sources, out, written, facts)

    plan_size = plan.draw(st.sampled_from((70, 400, len(data) + 10 * int(counts.sum()) + 300)))
    both(rewrite.write_batches, work)


@given(st.binary(min_size=20, max_size=20), st.lists(st.integers(0, 30), max_size=5))
def test_counting(bits: bytes, sizes: list[int]) -> None:
    counts = np.array(sizes, np.int64)
    numbers = np.cumsum(counts) - counts
    lost = np.frombuffer(bits, np.uint8)
    out = np.zeros(len(sizes), np.int64)
    rewrite.count_remaining(counts, numbers, lost.copy(), out)
    flags = [bits[n // 8] >> (n % 8) & 1 for n in range(160)]
    assert out.tolist() == [
        sum(1 - flag for flag in flags[at : at + size])
        for at, size in zip(numbers.tolist(), sizes, strict=True)
    ]
