"""The pass of plain Python over a batch's records."""

import pytest
from tests.unit.storage.appending import NOW, record, records

from tidelog.errors import (
    CorruptRecord,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.storage.log.record_rules import BodyFacts, check_body, renumber_body
from tidelog.types import (
    INT64_MAX,
    NO_TIMESTAMP,
)

# --- the pass over the records


def test_pass_finds_extremes_keys_and_order() -> None:
    times = [NOW, NO_TIMESTAMP, NOW + 7, NOW - 9]
    body = RecordBatch(build_batch([record(t) for t in times])).body()
    assert check_body(body, 4, NOW) == BodyFacts(NOW + 7, NOW - 9, False, True)
    body = RecordBatch(build_batch([record(NO_TIMESTAMP, key=None)])).body()
    assert check_body(body, 1, NO_TIMESTAMP) == BodyFacts(-1, INT64_MAX, True, True)


def test_pass_wraps_times_like_every_other_reader() -> None:
    times = [INT64_MAX, -(2**63)]
    batch = RecordBatch(build_batch([record(t) for t in times]))
    facts = check_body(batch.body(), 2, batch.base_timestamp)
    assert (facts.max_timestamp, facts.min_timestamp) == (INT64_MAX, -(2**63))


def test_any_cut_or_declared_count_too_many_is_corrupt() -> None:
    body = bytes(RecordBatch(build_batch(records())).body())
    for end in range(len(body)):
        with pytest.raises(CorruptRecord):
            check_body(body[:end], 3, NOW)
    for count in (-1, 0, 1, 2, 4, 2**31 - 1):
        with pytest.raises(CorruptRecord):
            check_body(body, count, NOW)


def test_renumbering_a_right_body_changes_nothing() -> None:
    body = bytes(RecordBatch(build_batch(records(200))).body())
    assert renumber_body(body, 200) == body
