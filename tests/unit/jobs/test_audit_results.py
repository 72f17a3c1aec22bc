"""What the driver of an audit keeps of its tasks' results."""

import numpy as np

from tidelog.jobs.audit.key_verdicts import FOUND_FIELDS
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.run import TopicResult

MISSING, EXTRA, REORDERED = 0, 1, 2  # their places in `Kind`


def found(*rows: tuple[int, int]) -> bytes:
    """Return rows of differing keys: kind and the field after it."""
    table = np.zeros((len(rows), FOUND_FIELDS), np.int64)
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
    assert not result.has_found
    result.add({}, found((EXTRA, 7)), frozenset({Kind.EXTRA}))
    assert not result.has_found
    result.add({}, found((EXTRA, 7)), frozenset({Kind.MISSING}))
    assert result.has_found


def test_of_each_kind_the_first_keys_are_kept() -> None:
    result = TopicResult(history=False)
    result.add({}, found((REORDERED, 1), (MISSING, 2), (MISSING, 3)), frozenset())
    result.add({}, found((MISSING, 4), (REORDERED, 5)), frozenset())
    assert kept(result, 2) == [[MISSING, 2], [MISSING, 3], [REORDERED, 1], [REORDERED, 5]]


def test_sections_of_pairs_begin_behind_each_other_in_their_file() -> None:
    result = TopicResult(history=True)
    result.add({"pairs": ["one", [(0, 1, 10, 77), (0, 2, 5, 78)]]}, b"", frozenset())
    result.add({"pairs": ["two", [(0, 1, 3, 79)]]}, b"", frozenset())
    assert result.sections == {
        (0, 1): [("one", 0, 10, 77), ("two", 0, 3, 79)],
        (0, 2): [("one", 10, 5, 78)],
    }
