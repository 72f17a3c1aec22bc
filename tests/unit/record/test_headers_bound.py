"""A record has at most `HEADERS_MAX` headers in each reader, validator and writer."""

import pyarrow as pa
import pytest

from tidelog.errors import CorruptRecord, InvalidRecord
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c, encode_varlong
from tidelog.record.columns.batch_table import DecodeStats
from tidelog.record.columns.decode import decode, tally
from tidelog.record.columns.encode import encode_table
from tidelog.record.compression import compress
from tidelog.record.header import HEADER, HEADER_SIZE, HEADERS_MAX
from tidelog.record.kernels.records import check_body as kernel_check
from tidelog.storage.log.record_rules import check_body as plain_check
from tidelog.types import Codec, Header, NewRecord

EMPTY = b"\0\1"  # a header with an empty key and a null value


def record_body(headers: int) -> bytes:
    """Return a record with `headers` empty headers, preceded by the record's length."""
    body = b"\0\0\0\1\1" + encode_varlong(headers) + EMPTY * headers
    return encode_varlong(len(body)) + body


def batch_with_headers(headers: int, codec: Codec) -> bytes:
    """Return a batch of one record with `headers` empty headers."""
    body = compress(codec, record_body(headers)) if codec else record_body(headers)
    size = HEADER_SIZE - 12 + len(body)
    batch = bytearray(HEADER.pack(0, size, -1, 2, 0, codec, 0, 1, 1, -1, -1, -1, 1) + body)
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
class TestReaders:
    def test_the_largest_number_is_read(self, codec: Codec) -> None:
        batch = batch_with_headers(HEADERS_MAX, codec)
        (record,) = RecordBatch(batch).records()
        assert len(record.headers) == HEADERS_MAX
        assert set(record.headers) == {Header("", None)}
        (rows,) = decode(batch, columns=("headers",))
        assert len(rows["headers"][0]) == HEADERS_MAX

    def test_more_are_a_damaged_record(self, codec: Codec) -> None:
        batch = batch_with_headers(HEADERS_MAX + 1, codec)
        with pytest.raises(CorruptRecord, match=f"{HEADERS_MAX + 1} headers.* {HEADERS_MAX}"):
            list(RecordBatch(batch).records())
        for columns in (("headers",), ("offset",)):
            with pytest.raises(CorruptRecord, match=f"more than {HEADERS_MAX} headers"):
                list(decode(batch, columns=columns))

    def test_counting_looks_at_no_header(self, codec: Codec) -> None:
        stats = DecodeStats()
        tally(batch_with_headers(HEADERS_MAX + 1, codec), stats)
        assert stats.rows == 1


@pytest.mark.parametrize("check", [plain_check, kernel_check], ids=["plain", "kernel"])
def test_a_leader_refuses_more_headers(check: object) -> None:
    assert callable(check)
    check(record_body(HEADERS_MAX), 1, 0)
    with pytest.raises(CorruptRecord, match=f"{HEADERS_MAX} headers|at most {HEADERS_MAX}"):
        check(record_body(HEADERS_MAX + 1), 1, 0)


def test_no_more_are_written() -> None:
    most = (Header("", None),) * HEADERS_MAX
    assert RecordBatch(build_batch([NewRecord(value=b"v", headers=most)])).record_count == 1
    with pytest.raises(InvalidRecord, match=f"{HEADERS_MAX + 1} headers.* {HEADERS_MAX}"):
        build_batch([NewRecord(value=b"v", headers=(*most, most[0]))])


def test_no_more_are_written_by_columns() -> None:
    pairs = [{"key": "", "value": None}] * (HEADERS_MAX + 1)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"value": [b"v"], "headers": pa.array([pairs], kind)})
    with pytest.raises(InvalidRecord, match=f"{HEADERS_MAX + 1} headers.* {HEADERS_MAX}"):
        list(encode_table(table, now_ms=0))


def test_equal_headers_next_to_each_other_stay_what_they_are() -> None:
    headers = tuple(
        Header(key, value)
        for key in ("a", "ab", "")
        for value in (b"", None, b"a", b"ab")
        for _ in range(3)
    )
    (record,) = RecordBatch(build_batch([NewRecord(value=b"v", headers=headers)])).records()
    assert record.headers == headers
