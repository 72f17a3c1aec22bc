"""Any records are decoded to equal records, in any format and codec."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.records.strategies import (
    Built,
    Expected,
    contents,
    legacy,
    logs,
    modern,
    records,
    timestamps,
)

from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.coding import (
    read_varint,
    read_varlong,
    write_varint,
    write_varlong,
)
from tidelog.record.compression import compress, decompress
from tidelog.record.header import assign_offset, set_create_time_max, stamp_append_time
from tidelog.record.serde import deserializer, serializer
from tidelog.types import INT32_MAX, INT64_MAX, INT64_MIN, Codec, NewRecord


def read_all(data: bytes) -> list[Expected]:
    """Return the content of the batches in `data`, in order."""
    return [
        Expected(r.offset, r.timestamp, r.create_timestamp, r.key, r.value, r.headers)
        for batch in walk(data)
        for r in batch.records()
    ]


@given(modern())
def test_magic_2(built: Built) -> None:
    assert read_all(built.data) == list(built.expected)


@given(legacy())
def test_magic_0_and_1(built: Built) -> None:
    assert read_all(built.data) == list(built.expected)


@given(logs())
def test_batches_of_any_magic_back_to_back(built: Built) -> None:
    assert read_all(built.data) == list(built.expected)
    batches = list(walk(built.data))
    assert batches[0].base_offset == built.expected[0].offset
    assert batches[-1].next_offset == built.next_offset
    for before, after in pairwise(batches):
        assert before.next_offset == after.base_offset
        assert before.at + before.size_bytes == after.at


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_gaps_and_horizons(chosen: list[NewRecord], data: st.DataObject) -> None:
    deltas = sorted(
        data.draw(st.sets(st.integers(0, 1000), min_size=len(chosen), max_size=len(chosen)))
    )
    horizon = data.draw(st.none() | timestamps)
    batch = RecordBatch(
        build_batch(
            chosen,
            base_offset=7,
            codec=data.draw(st.sampled_from(Codec)),
            offset_deltas=deltas,
            last_offset_delta=data.draw(st.integers(deltas[-1], INT32_MAX)),
            delete_horizon_ms=horizon,
        )
    )
    assert [record.offset for record in batch.records()] == [7 + delta for delta in deltas]
    assert [record.timestamp for record in batch.records()] == [new.timestamp for new in chosen]
    assert batch.delete_horizon_ms == horizon


@given(
    st.lists(records, min_size=1, max_size=5),
    st.sampled_from(Codec),
    st.integers(0, INT64_MAX),
    st.integers(0, INT64_MAX - 10),
)
def test_changes_of_a_leader_in_place_change_no_other_field(
    chosen: list[NewRecord], codec: Codec, append_time: int, offset: int
) -> None:
    data = build_batch(chosen, codec=codec)
    before = bytes(data)
    assign_offset(data, 0, offset, 3)
    stamp_append_time(data, 0, append_time)
    stamped = RecordBatch(data)
    assert stamped.is_valid()
    assert [record.timestamp for record in stamped.records()] == [append_time] * len(chosen)
    assert [record.create_timestamp for record in stamped.records()] == [
        None if new.timestamp == -1 else new.timestamp for new in chosen
    ]
    assign_offset(data, 0, 0, -1)
    set_create_time_max(data, 0, RecordBatch(before).max_timestamp)
    assert data == before


@given(contents.filter(lambda data: data is not None), st.sampled_from(Codec))
def test_codecs(data: bytes, codec: Codec) -> None:
    assert bytes(decompress(codec, compress(codec, data), limit=len(data))) == data


@given(st.integers(-(2**31), INT32_MAX), st.binary(max_size=3))
def test_varints(value: int, rest: bytes) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varint(out + rest, 0, len(out)) == (value, len(out))


@given(st.integers(INT64_MIN, INT64_MAX), st.binary(max_size=3))
def test_varlongs(value: int, rest: bytes) -> None:
    out = bytearray()
    write_varlong(out, value)
    assert read_varlong(out + rest, 0, len(out)) == (value, len(out))


json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(st.none() | inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(
    st.one_of(
        st.tuples(st.just("bytes"), st.binary()),
        st.tuples(st.just("string"), st.text()),
        st.tuples(st.just("int32"), st.integers(-(2**31), INT32_MAX)),
        st.tuples(st.just("int64"), st.integers(INT64_MIN, INT64_MAX)),
        st.tuples(st.just("double"), st.floats(allow_nan=False)),
        st.tuples(st.just("uuid"), st.uuids()),
        st.tuples(st.just("json"), json_values),
    )
)
def test_serializers(case: tuple[str, object]) -> None:
    name, value = case
    assert deserializer(name)(serializer(name)(value)) == value
