"""The fast check of a produced batch's frame accepts exactly what the walk over frames accepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.records.kernel_logs import damaged_logs
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.header import HEADER_SIZE, LENGTH_AT, LENGTH_MIN, MAGIC_2, MAGIC_AT
from tidelog.server.api.produce import is_one_batch
from tidelog.types import Codec, NewRecord

BATCH = bytes(build_batch([NewRecord(key=b"k", value=b"v" * 20, timestamp=7)]))


def walks_as_one(records: bytes) -> bool:
    """Return whether the walk finds exactly one batch of format 2."""
    try:
        batches = list(walk(records))
    except CorruptBatch:
        return False
    return [(batch.magic, batch.size_bytes) for batch in batches] == [(MAGIC_2, len(records))]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_whole_batch_of_any_codec_is_one(codec: Codec) -> None:
    batch = bytes(build_batch([NewRecord(value=b"v" * 100, timestamp=7)], codec=codec))
    assert is_one_batch(batch)
    assert is_one_batch(memoryview(batch))


@pytest.mark.parametrize(
    "records",
    [
        b"",
        BATCH[:40],
        BATCH[:-1],
        BATCH + BATCH,
        BATCH + BATCH[:40],
        BATCH + b"\0",
        bytes(build_legacy_set([NewRecord(value=b"v" * 60, timestamp=7)], magic=1)),
        bytes(build_legacy_set([NewRecord(value=b"v" * 60, timestamp=7)], magic=0)),
        BATCH[:MAGIC_AT] + b"\3" + BATCH[MAGIC_AT + 1 :],
        # The length field equals the number of bytes, but is too small for a batch header.
        (BATCH[:LENGTH_AT] + LENGTH_MIN.to_bytes(4, "big") + BATCH[12:])[: 12 + LENGTH_MIN],
        BATCH[:LENGTH_AT] + b"\xff" + BATCH[LENGTH_AT + 1 :],
    ],
)
def test_other_bytes_are_not_one_batch(records: bytes) -> None:
    assert not walks_as_one(records)
    assert not is_one_batch(records)


@given(
    records=damaged_logs(),
    length=st.none() | st.integers(0, 400),
)
def test_the_fast_check_agrees_with_the_walk(records: bytes, length: int | None) -> None:
    if length is not None and len(records) >= HEADER_SIZE:
        records = (records * 8)[: length + LENGTH_AT + 4]
        records = records[:LENGTH_AT] + length.to_bytes(4, "big") + records[LENGTH_AT + 4 :]
    assert is_one_batch(records) == walks_as_one(records)
