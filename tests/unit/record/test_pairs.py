"""`read_pairs` gives the keys and values of whole records; damage raises only CorruptRecord."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptRecord
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.record import read_pairs
from tidelog.types import Header, NewRecord

FIELDS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        key=FIELDS,
        value=FIELDS,
        timestamp=st.integers(0, 2**50),
        headers=st.lists(st.builds(Header, key=st.text(max_size=3), value=FIELDS), max_size=2).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=80,
)


@given(records=RECORDS)
def test_pairs_are_those_of_whole_records(records: list[NewRecord]) -> None:
    batch = RecordBatch(build_batch(records))
    whole = [(record.offset, record.key, record.value) for record in batch.records()]
    assert read_pairs(bytes(batch.body()), batch.record_count) == whole


@given(records=RECORDS, data=st.data())
def test_damage_is_an_error_or_changes_only_the_values(
    records: list[NewRecord], data: st.DataObject
) -> None:
    """A damaged body raises CorruptRecord, or gives fields that together fit in the body."""
    body = bytearray(RecordBatch(build_batch(records)).body())
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read_pairs(bytes(body), len(records))
    except CorruptRecord:
        return
    assert sum(len(field or b"") for pair in found for field in pair[1:]) <= len(body)


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_cut_records(cut: int) -> None:
    batch = RecordBatch(build_batch([NewRecord(key=b"key", value=b"value", timestamp=1)]))
    with pytest.raises(CorruptRecord):
        read_pairs(bytes(batch.body())[:-cut], 1)
    with pytest.raises(CorruptRecord, match="after the last record"):
        read_pairs(bytes(batch.body()), 0)
