"""Kernels of zone maps give equal results compiled and interpreted on valid and damaged logs."""

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.kernel_runs import Guarded, frozen, run_guarded
from tests.worlds.records.kernel_logs import batches, damaged_logs, times

from tidelog.record.coding import crc32c
from tidelog.record.kernels import layout, plain, scan_batches
from tidelog.record.kernels import zones as kernels
from tidelog.record.kernels.checksums import count_chained, fill_tables, sum_tables
from tidelog.record.kernels.memory import Bytes, Longs
from tidelog.storage.clocks.latency import bucket_of
from tidelog.types import INT64_MAX, INT64_MIN, Codec

logs = st.lists(batches(codecs=(Codec.NONE,)), max_size=5).map(b"".join) | damaged_logs()


def test_the_tables_are_the_same_compiled_and_interpreted() -> None:
    found = np.zeros((4, 256), np.int64), np.zeros(256, np.int64)
    plain(fill_tables)(*found)
    for left, right in zip(found, sum_tables(), strict=True):
        assert (left == right).all()


@given(
    facts=st.lists(st.binary(min_size=5, max_size=5), max_size=8),
    start=st.integers(0, 2**32 - 1),
    damage=st.none() | st.integers(0, 8 * 9 - 1),
)
def test_rows_in_a_chain_of_sums_are_counted(
    facts: list[bytes], start: int, damage: int | None
) -> None:
    rows, crc = bytearray(), start
    for fact in facts:
        crc = crc32c(fact, crc)
        rows += fact + crc.to_bytes(4, "big")
    expected = len(facts)
    if damage is not None and damage < len(rows):
        rows[damage] ^= 4
        expected = damage // 9
    data, table = frozen(bytes(rows)), sum_tables()[1]
    assert count_chained(data, 9, start, table) == expected
    assert plain(count_chained)(data, 9, start, table) == expected


@given(latency=st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-200, 200))
def test_buckets_are_those_of_the_plain_rule(latency: int) -> None:
    expected = bucket_of(latency)
    assert kernels.bucket_of(latency) == expected
    assert plain(kernels.bucket_of)(latency) == expected


def _table(data: Bytes) -> Longs:
    """Return the table of those batches of a log that have magic 2 and no compression."""
    table = np.zeros((64, layout.BATCH_FIELDS), np.int64)
    count, _, _ = scan_batches(data, 0, data.size, table, 0, INT64_MAX)
    found = table[:count]
    is_plain = (found[:, layout.MAGIC] == 2) & (found[:, layout.ATTRIBUTES] & 7 == 0)
    plainly: Longs = found[is_plain]
    return plainly


def _run(
    data: Bytes, table: Longs, runs: kernels.Runs, *, interpreted: bool
) -> tuple[object, list[bytes]]:
    def choose(kernel: object) -> Callable[..., object]:
        return plain(kernel) if interpreted else kernel  # type: ignore[arg-type,return-value] # a kernel

    def work(guarded: Guarded) -> object:
        out = guarded.array((len(table), kernels.ZONE_FIELDS), np.int64)
        facts = guarded.array((kernels.SPANS, kernels.SPAN_FIELDS), np.int64)
        buckets = guarded.array((kernels.SPANS, kernels.BUCKETS), np.int64)
        progress = guarded.array(kernels.PROGRESS_FIELDS, np.int64)
        zones = guarded.array((len(table) + 1, kernels.ZONE_FIELDS), np.int64)
        total = guarded.array((len(table) + 1, kernels.ZONE_FIELDS), np.int64)
        for array in (out, facts, buckets, progress, zones, total):
            array[:] = 0
        spans = kernels.Spans(3_600_000, facts, buckets)
        args = (data, table, runs, spans, out, progress)
        status = choose(kernels.describe_batches)(*args)
        if status not in (layout.DONE, layout.FULL):
            out[:] = 0  # rows of damaged batches are undefined
            return status
        tables = kernels.SumTables(*sum_tables())
        choose(kernels.sum_batches)(data, table, out, tables)
        limits = np.array([300, 1 << 30], np.int64)
        count = choose(kernels.fold_zones)(out, zones, 0, limits, tables.powers)
        assert isinstance(count, int | np.integer)
        choose(kernels.sum_zones)(zones[:count], 2, total, tables.powers)
        return status, int(count)

    return run_guarded(work)


@given(
    log=logs,
    starts=st.lists(st.integers(0, 100), max_size=5),
    known=st.lists(times, min_size=6, max_size=6),
)
def test_rows_are_the_same_compiled_and_interpreted(
    log: bytes, starts: list[int], known: list[int]
) -> None:
    data = frozen(log)
    table = _table(data)
    runs = kernels.Runs(
        np.array([INT64_MIN, *sorted(starts)], np.int64),
        np.array(known[: len(starts) + 1], np.int64),
    )
    assert _run(data, table, runs, interpreted=False) == _run(data, table, runs, interpreted=True)
