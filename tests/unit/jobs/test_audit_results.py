"""The part of the results of an audit's tasks that the driver keeps."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from tidelog.jobs.audit.key_verdicts import A_AT, B_AT, DIFFERENCE_FIELDS, KIND
from tidelog.jobs.audit.options import KINDS, AuditOptions, Kind
from tidelog.jobs.audit.plan import AuditPlan, Pair, Side
from tidelog.jobs.audit.report import audited
from tidelog.jobs.audit.run import AuditOutcome, TopicResult
from tidelog.jobs.audit.state import Run, State
from tidelog.record.kernels import key_rows
from tidelog.spark.places import Place

MISSING, EXTRA, REORDERED = 0, 1, 2  # the members of `Kind` as numbers, in their order


def found(*rows: tuple[int, int]) -> bytes:
    """Encode rows of keys that differ; a row has two given fields, and 0 in its other fields."""
    table = np.zeros((len(rows), DIFFERENCE_FIELDS), np.int64)
    table[:, :2] = rows
    return table.tobytes()


def kept(result: TopicResult, keys_max: int) -> list[list[int]]:
    rows: list[list[int]] = result.rows(keys_max)[:, :2].tolist()
    return rows


def test_ignored_kinds_are_neither_counted_nor_kept() -> None:
    result = TopicResult(history=True)
    ignore = frozenset({Kind.EXTRA})
    result.add({"a_keys": 5, "missing": 2, "extra": 3}, found((MISSING, EXTRA), (EXTRA, 7)), ignore)
    assert kept(result, 9) == [[MISSING, EXTRA]]
    result.add({"a_keys": 4, "extra": 1}, found((EXTRA, MISSING)), ignore)
    assert kept(result, 9) == [[MISSING, EXTRA]]
    assert result.counts == {"a_keys": 9, "missing": 2}


def test_a_result_of_ignored_kinds_alone_has_no_difference() -> None:
    result = TopicResult(history=False)
    assert not result.has_differences
    result.add({}, found((EXTRA, 7)), frozenset({Kind.EXTRA}))
    assert not result.has_differences
    result.add({}, found((EXTRA, 7)), frozenset({Kind.MISSING}))
    assert result.has_differences


def test_of_each_kind_the_first_keys_are_kept() -> None:
    result = TopicResult(history=False)
    result.add({}, found((REORDERED, 1), (MISSING, 2), (MISSING, 3)), frozenset())
    result.add({}, found((MISSING, 4), (REORDERED, 5)), frozenset())
    assert kept(result, 2) == [[MISSING, 2], [MISSING, 3], [REORDERED, 1], [REORDERED, 5]]


def test_sections_of_pairs_follow_each_other_in_their_file() -> None:
    result = TopicResult(history=True)
    result.add({"pairs": ["one", [(0, 1, 10, 77), (0, 2, 5, 78)]]}, b"", frozenset())
    result.add({"pairs": ["two", [(0, 1, 3, 79)]]}, b"", frozenset())
    assert result.sections == {
        (0, 1): [("one", 0, 10, 77), ("two", 0, 3, 79)],
        (0, 2): [("one", 10, 5, 78)],
    }


def run(side: str, span_ms: int, *spans: tuple[int, int, int]) -> Run:
    """Return a run.

    An item of `spans` is a span's index, its record count, and its sum of hashes.
    """
    return Run(
        side=side,
        topic="t",
        partition=0,
        start=0,
        end=5,
        topic_id="f" * 32,
        files=(),
        rows=0,
        records=5,
        unkeyed=0,
        unkeyed_sum=0,
        span_ms=span_ms,
        spans=spans,
        marks=(),
    )


def audit_of(result: TopicResult, runs: Sequence[Run] = ()) -> tuple[AuditPlan, AuditOutcome]:
    """Return plan and outcome of an audit of one topic on two sides; time spans are 10 ms long."""
    options = AuditOptions(span_ms=10, history=False, keys_max=9)
    plan = AuditPlan(
        options=options,
        sides={letter: Side(letter=letter, place=Place(f"/{letter}")) for letter in "ab"},
        pairs=[Pair("t", "t")],
        positions=None,
        start_ms=None,
        end_ms=None,
        ignore=frozenset(),
    )
    outcome = AuditOutcome(
        plans={},
        state=State(seed=b"", question={}, runs=tuple(runs)),
        reused_count=0,
        results=[result],
        keys={},
        log_bytes=0,
        notes=(),
    )
    return plan, outcome


def test_time_spans_of_runs_are_compared_at_the_longest_of_them() -> None:
    runs = (
        run("a", 10, (0, 1, 7), (1, 2, 5), (2, 1, 9)),
        run("a", 20, (1, 1, 4)),
        run("b", 20, (0, 3, 12), (1, 2, 14)),
    )
    plan, outcome = audit_of(TopicResult(history=False), runs)
    spans = [
        (each.start_ms, each.span_ms, each.records, each.is_equal)
        for each in audited(plan, outcome).buckets
    ]
    assert spans == [(0, 20, (3, 3), True), (20, 20, (2, 2), False)]


def test_records_without_a_create_time_have_a_span_without_a_start() -> None:
    runs = (run("a", 10, (key_rows.NO_SPAN, 1, 7), (1, 1, 5)), run("b", 20, (0, 1, 5)))
    plan, outcome = audit_of(TopicResult(history=False), runs)
    spans = [
        (each.start_ms, each.records, each.is_equal) for each in audited(plan, outcome).buckets
    ]
    assert spans == [(None, (1, 0), False), (0, (1, 1), True)]


@pytest.mark.parametrize("partition", [0, 1, 7])
def test_the_partition_of_a_key_in_several_partitions_is_reported(partition: int) -> None:
    """The row of such a key contains the last record's partition as a bitwise complement."""
    rows = np.zeros((1, DIFFERENCE_FIELDS), np.int64)
    rows[0, A_AT + key_rows.PARTITION], rows[0, A_AT + key_rows.COUNT] = ~partition, 2
    rows[0, B_AT + key_rows.PARTITION], rows[0, B_AT + key_rows.COUNT] = partition, 1
    result = TopicResult(history=True)
    result.add({"reordered": 1}, rows.tobytes(), frozenset())
    (one,) = audited(*audit_of(result)).differences
    assert (one.a and one.a.partition, one.b and one.b.partition) == (partition, partition)


@pytest.mark.parametrize(
    ("count", "notes"), [(9, []), (10, ["t: 9 of 10 missing keys are listed"])]
)
def test_a_note_states_that_more_keys_differ_than_are_listed(
    count: int, notes: Sequence[str]
) -> None:
    result = TopicResult(history=True)
    result.add({"missing": count}, b"", frozenset())
    found = audited(*audit_of(result)).notes
    assert [line for line in found if "listed" in line] == notes


@pytest.mark.parametrize(
    ("b", "are_equal"),
    [
        (((3, 0),), True),
        (((2, -(2**63)), (1, -(2**63))), True),
        (((3, 1),), False),
        (((2, 0),), False),
    ],
)
def test_sums_of_records_without_a_key_are_compared_modulo_2_to_the_64(
    b: Sequence[tuple[int, int]], are_equal: bool
) -> None:
    """The two sides may divide equal records into different ranges, each with a 64-bit sum."""
    a = ((1, 2**62), (1, 2**62), (1, 2**63 - 1), (0, 1))
    runs = [
        dataclasses.replace(run(side, 10), unkeyed=count, unkeyed_sum=total)
        for side, parts in (("a", a), ("b", b))
        for count, total in parts
    ]
    results = audited(*audit_of(TopicResult(history=True), runs))
    assert [each.unkeyed_equal for each in results.topics] == [are_equal]
    count = sum(count for count, _ in b)
    differ = f"t: records without a key differ: 3 on A, {count} on B"
    assert (differ in results.notes) is not are_equal


def test_sums_of_a_time_span_are_compared_modulo_2_to_the_64() -> None:
    high = 2**62
    runs = (
        *(run("a", 10, (0, 1, high)) for _ in range(4)),
        run("b", 10, (0, 4, 0)),
        run("a", 10, (1, 1, -1)),
        run("b", 10, (1, 1, 1)),
    )
    buckets = audited(*audit_of(TopicResult(history=True), runs)).buckets
    assert [(each.records, each.is_equal) for each in buckets] == [((4, 4), True), ((1, 1), False)]


@pytest.mark.parametrize(
    ("kind", "bucket_ms"),
    [(Kind.STALE, 20), (Kind.AHEAD, 50), (Kind.CHANGED, 20), (Kind.DUPLICATED, 50)],
)
def test_a_key_is_listed_in_the_time_span_of_the_side_that_has_more(
    kind: Kind, bucket_ms: int
) -> None:
    row = np.zeros((1, DIFFERENCE_FIELDS), np.int64)
    row[0, KIND] = KINDS.index(kind)
    for at, ms in ((A_AT, 23), (B_AT, 57)):
        row[0, at + key_rows.TIME] = ms
        row[0, at + key_rows.COUNT] = 1
    result = TopicResult(history=True)
    result.add({}, row.tobytes(), frozenset())
    (difference,) = audited(*audit_of(result)).differences
    assert (difference.kind, difference.bucket_ms) == (kind, bucket_ms)
