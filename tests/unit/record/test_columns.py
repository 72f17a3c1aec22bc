"""Decoding to columns: errors with their position, statistics, shared memory, limits."""

import gc
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.worlds.constants import set_constant
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRequest,
    MissingDependency,
    UnsupportedCompression,
)
from tidelog.record.builder import build_batch
from tidelog.record.columns.batch_table import DecodeStats, Selection
from tidelog.record.columns.column_builders import COLUMN_TYPES
from tidelog.record.columns.decode import ALL_COLUMNS, decode, schema
from tidelog.record.header import ATTRIBUTES_AT, HEADER_SIZE, seal
from tidelog.record.kernels import layout
from tidelog.record.kernels.memory import Longs
from tidelog.types import NO_TIMESTAMP, Buffer, Codec, Header, NewRecord, TimestampType

RECORD_COUNT = Struct(">i")


def batch_of(count: int, *, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch of small records with the times 0, 1, 2, ..."""
    records = [NewRecord(key=b"k", value=b"%d" % n, timestamp=n) for n in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec)


def offsets_until_error(log: Buffer, error: type[Exception]) -> tuple[list[object], Exception]:
    """Return the offsets that were decoded before the error, and the error."""
    found: list[object] = []

    def collect() -> None:
        for part in decode(log, columns=("offset",), rows=4):
            found.extend(part.column(0).to_pylist())

    with pytest.raises(error) as caught:
        collect()
    return found, caught.value


def test_rows_before_a_bad_checksum_are_handed_out() -> None:
    first, second = batch_of(3), batch_of(3, base_offset=3)
    second[-1] ^= 1
    found, error = offsets_until_error(first + second, CorruptBatch)
    assert found == [0, 1, 2]
    assert isinstance(error, CorruptBatch)
    assert (error.at, error.offset) == (len(first), 3)
    assert "CRC-32C" in error.reason


@pytest.mark.parametrize("has_instruction", [True, False])
@pytest.mark.parametrize("bad", range(5))
@pytest.mark.parametrize("offset_start", [0, 2, 4])
def test_a_bad_checksum_is_the_same_error_for_each_computation(
    monkeypatch: pytest.MonkeyPatch, has_instruction: bool, bad: int, offset_start: int
) -> None:
    """The error is the same whether batches are decoded or skipped, together or one by one."""
    if not has_instruction:
        set_constant(monkeypatch, "HAS_INSTRUCTION", False, inside="tidelog.record.columns")
    batches = [batch_of(2, base_offset=2 * number) for number in range(5)]
    batches[bad][-1] ^= 1
    stats, found = DecodeStats(), []

    def collect() -> None:
        log = b"".join(map(bytes, batches))
        for part in decode(log, Selection(offset_start), columns=("offset",), stats=stats):
            found.extend(part.column(0).to_pylist())

    with pytest.raises(CorruptBatch, match=r"CRC-32C is 0x\w{8}, the header has 0x") as caught:
        collect()
    size = len(batches[0])
    assert (caught.value.at, caught.value.offset) == (bad * size, 2 * bad)
    assert found == list(range(offset_start, 2 * bad))
    assert stats == DecodeStats(
        batches=bad,
        batches_opened=max(bad - offset_start // 2, 0),
        rows=len(found),
        end_at=bad * size,
        next_offset=2 * bad if bad else -1,
        first_offset=0 if bad else -1,
        records=2 * bad,
    )


def test_batches_of_alternating_codecs_give_all_rows() -> None:
    """All batches are decompressed, even if many batches alternate between two codecs."""
    for count in (3, 6, 40):
        batches = [
            batch_of(2, base_offset=2 * number, codec=(Codec.NONE, Codec.LZ4)[number % 2])
            for number in range(count)
        ]
        stats, log = DecodeStats(), b"".join(map(bytes, batches))
        found = [o for part in decode(log, columns=("offset",), stats=stats) for o in part[0]]
        assert [offset.as_py() for offset in found] == list(range(2 * count))
        assert stats == DecodeStats(
            batches=count,
            batches_opened=count,
            rows=2 * count,
            end_at=len(log),
            next_offset=2 * count,
            first_offset=0,
            records=2 * count,
        )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_views_have_values_of_every_size_and_keep_their_memory(codec: Codec) -> None:
    values = [None, *(bytes(range(200, 200 + size)) for size in range(20)), b"x" * 500, b"", b"z"]
    records = [NewRecord(key=value, value=value) for value in values]
    log = bytearray(build_batch(records, codec=codec))
    (part,) = decode(bytes(log), views=True)
    del log
    gc.collect()
    part.validate(full=True)
    assert part.schema == schema(views=True)
    assert part["value"].type == pa.binary_view()
    assert part["key"].to_pylist() == part["value"].to_pylist() == values


def test_views_need_a_pyarrow_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pa, "binary_view")
    with pytest.raises(MissingDependency, match="pyarrow 16"):
        next(decode(b"", views=True), None)


def test_an_unchecked_checksum_may_be_wrong() -> None:
    batch = batch_of(1)
    batch[17] ^= 1
    assert sum(part.num_rows for part in decode(batch, check_crc=False)) == 1


@pytest.mark.parametrize(
    ("place", "value", "rule"),
    [(8, 0x7F, ""), (11, 13, "length"), (16, 3, "magic")],
    ids=["cut", "size", "magic"],
)
def test_rows_before_a_bad_frame_are_handed_out(place: int, value: int, rule: str) -> None:
    first, second = batch_of(2), batch_of(2, base_offset=2)
    second[place] = value
    if not rule:  # the last batch is incomplete, as at the end of a growing log
        stats = DecodeStats()
        assert sum(part.num_rows for part in decode(first + second, stats=stats)) == 2
        assert stats.end_at == len(first)
        return
    found, error = offsets_until_error(first + second, CorruptBatch)
    assert found == [0, 1]
    assert isinstance(error, CorruptBatch)
    assert error.at == len(first)
    assert rule in error.reason


def test_offsets_beyond_int64_are_a_damaged_batch() -> None:
    batch = batch_of(2)
    batch[0:8] = (2**63 - 1).to_bytes(8, "big")
    _, error = offsets_until_error(bytes(batch), CorruptBatch)
    assert "2^63-1" in str(error)


def test_rows_before_a_bad_record_are_handed_out() -> None:
    first, second = batch_of(2), batch_of(3, base_offset=2)
    third_at = len(second) - (len(second) - HEADER_SIZE) // 3
    second[third_at + 4] = 40  # its key's length
    seal(second, 0)
    found, error = offsets_until_error(first + second, CorruptRecord)
    assert found == [0, 1, 2, 3]
    assert isinstance(error, CorruptRecord)
    assert error.at == len(first) + third_at


@pytest.mark.parametrize(("count", "rule"), [(-1, "count"), (2**31 - 1, "count"), (1, "left")])
def test_a_wrong_record_count_is_named(count: int, rule: str) -> None:
    batch = batch_of(2)
    RECORD_COUNT.pack_into(batch, HEADER_SIZE - 4, count)
    seal(batch, 0)
    _, error = offsets_until_error(bytes(batch), CorruptRecord)
    assert rule in str(error)


def test_a_compressed_bad_record_is_placed_at_its_batch() -> None:
    first, second = batch_of(2), batch_of(2, base_offset=2, codec=Codec.LZ4)
    RECORD_COUNT.pack_into(second, HEADER_SIZE - 4, 1)
    seal(second, 0)
    found, error = offsets_until_error(first + second, CorruptRecord)
    assert found == [0, 1, 2]
    assert isinstance(error, CorruptRecord)
    assert error.at == len(first)
    assert "decompressed" in error.reason


def test_rows_before_a_stream_that_does_not_decompress_are_handed_out() -> None:
    first, second = batch_of(2, codec=Codec.ZSTD), batch_of(2, base_offset=2, codec=Codec.ZSTD)
    second[HEADER_SIZE] ^= 0xFF
    seal(second, 0)
    found, error = offsets_until_error(first + second, CorruptBatch)
    assert found == [0, 1]
    assert isinstance(error, CorruptBatch)
    assert error.at == len(first)


def test_an_unknown_codec_is_unsupported() -> None:
    batch = batch_of(1)
    batch[ATTRIBUTES_AT + 1] |= 7
    seal(batch, 0)
    with pytest.raises(UnsupportedCompression):
        list(decode(batch))


def test_a_bad_legacy_checksum_is_an_error_only_with_check_crc() -> None:
    message = build_legacy_set([NewRecord(value=b"v", timestamp=1)], magic=1)
    message[12] ^= 1
    with pytest.raises(CorruptBatch):
        list(decode(message))
    assert sum(part.num_rows for part in decode(message, check_crc=False)) == 1


def test_a_column_without_nulls_has_no_bitmap() -> None:
    (part,) = decode(batch_of(3))
    for name in ("offset", "timestamp", "timestampType", "createTimestamp", "key", "value"):
        column = part.column(ALL_COLUMNS.index(name))
        assert column.null_count == 0
        assert column.buffers()[0] is None


def test_columns_of_a_chunk_are_not_larger_than_their_rows() -> None:
    (part,) = decode(batch_of(3))
    assert part.column(ALL_COLUMNS.index("value")).get_total_buffer_size() < 64


def test_yielded_columns_outlive_the_buffer() -> None:
    log = batch_of(3)
    (part,) = decode(log)
    log[:] = b"\xff" * len(log)
    gc.collect()
    assert part.column(ALL_COLUMNS.index("value")).to_pylist() == [b"0", b"1", b"2"]


def test_a_buffer_can_be_resized_after_the_last_row() -> None:
    log = batch_of(3)
    list(decode(log))
    gc.collect()
    log += b"more"  # raises BufferError if anything still references the buffer


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_any_buffer_will_do(buffer: type[bytes]) -> None:
    assert sum(part.num_rows for part in decode(buffer(bytes(batch_of(2))))) == 2


def test_a_record_larger_than_a_chunk_is_decoded_completely() -> None:
    value = b"x" * 9_000_000
    log = bytes(build_batch([NewRecord(value=b"s"), NewRecord(value=value), NewRecord(value=b"s")]))
    found = [v for part in decode(log, columns=("value",)) for v in part.column(0).to_pylist()]
    assert found == [b"s", value, b"s"]


def test_small_chunks_are_put_together() -> None:
    log = b"".join(bytes(batch_of(100, base_offset=100 * n)) for n in range(300))
    wanted = [part.num_rows for part in decode(log, Selection(record_time=(7, 9)))]
    assert wanted == [600]


@pytest.mark.parametrize("rows", [10, 25, 100, 450, 1_000])
def test_no_chunk_grows_beyond_the_rows_that_were_requested(rows: int) -> None:
    log = b"".join(bytes(batch_of(100, base_offset=100 * n)) for n in range(30))
    # The ranges select 2, 50, 100 and 49 of a batch's 100 records: small and large chunks.
    for wanted in ((7, 9), (0, 50), (0, 100), (30, 79)):
        parts = [part.num_rows for part in decode(log, Selection(record_time=wanted), rows=rows)]
        assert max(parts) <= rows
        assert sum(parts) == 30 * (wanted[1] - wanted[0])


def test_statistics_count_opened_and_skipped_batches() -> None:
    untimed = build_batch([NewRecord(value=b"v", timestamp=NO_TIMESTAMP)] * 3, base_offset=10)
    early, late = batch_of(2), batch_of(20, base_offset=20)
    stats = DecodeStats()
    found = list(decode(early + untimed + late, Selection(record_time=(5, 8)), stats=stats))
    assert [part.num_rows for part in found] == [3]
    assert stats == DecodeStats(
        batches=3,
        batches_opened=2,
        rows=3,
        without_time=3,
        end_at=len(early) + len(untimed) + len(late),
        next_offset=40,
        first_offset=0,
        records=25,
    )


def test_dropped_batches_are_not_opened() -> None:
    log = bytes(batch_of(2) + batch_of(2, base_offset=2) + batch_of(2, base_offset=4))
    stats = DecodeStats()

    def drop(table: Longs) -> npt.NDArray[np.bool_]:
        return np.equal(table[:, layout.BASE_OFFSET], 2)

    found = [
        o for part in decode(log, Selection(drop_batch=drop), stats=stats) for o in part["offset"]
    ]
    assert [offset.as_py() for offset in found] == [0, 1, 4, 5]
    assert (stats.batches, stats.batches_opened) == (3, 2)


def test_header_keys_that_are_no_text_are_replaced_as_kafka_replaces_them() -> None:
    batch = build_batch([NewRecord(headers=(Header("ab", b"1"), Header("é", None)))])
    place = bytes(batch).index(b"ab")
    batch[place] = 0xFF
    seal(batch, 0)
    (part,) = decode(batch, columns=("headers",))
    assert part.column(0).to_pylist() == [
        [{"key": "\N{REPLACEMENT CHARACTER}b", "value": b"1"}, {"key": "é", "value": None}]
    ]


def test_append_time_batches_show_both_times() -> None:
    batch = build_batch(
        [NewRecord(timestamp=5), NewRecord(timestamp=6)],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_time_ms=100,
    )
    names = ("timestamp", "timestampType", "createTimestamp")
    (part,) = decode(batch, columns=names)
    times = [part.column(n).cast(pa.int64()).to_pylist() for n in range(3)]
    assert times == [[100, 100], [1, 1], [5, 6]]


def test_the_schema_is_that_of_the_requested_columns() -> None:
    assert schema().names == list(ALL_COLUMNS)
    (part,) = decode(batch_of(1), columns=("value", "offset"))
    assert part.schema == schema(("value", "offset"))
    assert part.schema.types == [COLUMN_TYPES["value"], COLUMN_TYPES["offset"]]


@pytest.mark.parametrize(
    ("columns", "rows", "words"),
    [(("when",), 10, "'when'"), (("key", "key"), 10, "twice"), (("key",), 0, "rows .* got 0")],
)
def test_a_wrong_request_is_named(columns: tuple[str, ...], rows: int, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        list(decode(b"", columns=columns, rows=rows))


def test_no_bytes_are_no_rows() -> None:
    assert list(decode(b"")) == []
