"""Compiles the kernels that Spark's tasks use, by calling each kernel with a few records."""

from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.record.builder import build_batch
from tidelog.record.columns.batch_table import DecodeStats, Selection
from tidelog.record.columns.decode import decode, fold
from tidelog.record.columns.encode import choose_partitions, encode_table
from tidelog.record.columns.key_tables import COLUMNS, KeyTable, Reducer
from tidelog.record.kernels.hashes import SEEDS
from tidelog.record.kernels.key_rows import FIELDS
from tidelog.types import Codec, Header, NewRecord, TimestampType

_RECORDS = 3
_NOW_MS = 1_000


def run_encoders() -> None:
    """Run the kernels that encode records and choose their partitions."""
    table = _sample()
    choose_partitions(table["key"], 2, keyless=0)
    list(encode_table(table, now_ms=_NOW_MS))


def run_decoders() -> None:
    """Run the kernels that decode records of each timestamp type, with and without compression."""
    for codec in Codec.NONE, Codec.LZ4:
        for kind in TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME:
            _decode(_batch(codec, kind))


def run_digests() -> None:
    """Run the kernels that reduce records to one row per key, and the kernels of `KeyTable`."""
    seeds = np.arange(SEEDS, dtype=np.int64)
    reducer = Reducer(seeds, 0, _NOW_MS, lambda _rows: None, rows_max=1)
    for codec in Codec.NONE, Codec.LZ4:
        data = _batch(codec, TimestampType.CREATE_TIME)
        fold(data, reducer, DecodeStats())
        for batch in decode(data, columns=COLUMNS):
            reducer.add(batch)
    reducer.finish()
    table = KeyTable()
    rows = np.zeros((_RECORDS, FIELDS), np.int64)
    table.add(rows)
    table.reindex()
    table.find(rows)


def _batch(codec: Codec, kind: TimestampType) -> bytes:
    """Return a batch of three records, built without the encoder kernels."""
    records = [
        NewRecord(key=b"k", value=b"v", timestamp=_NOW_MS, headers=(Header("h", b"1"),)),
        NewRecord(key=None, value=b"vv", timestamp=-1),
        NewRecord(key=b"kk", value=None, timestamp=_NOW_MS),
    ]
    append_time_ms = _NOW_MS if kind is TimestampType.LOG_APPEND_TIME else None
    batch = build_batch(records, codec=codec, timestamp_type=kind, append_time_ms=append_time_ms)
    return bytes(batch)


def _sample() -> pa.Table:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.table(
        {
            "key": pa.array([b"k", None, b"kk"], pa.binary()),
            "value": pa.array([b"v", b"vv", None], pa.binary()),
            "timestamp": pa.array([_NOW_MS, -1, _NOW_MS], pa.int64()),
            "headers": pa.array([[{"key": "h", "value": b"1"}], [], []], pa.list_(header)),
        }
    )


def _decode(data: bytes) -> None:
    runs = np.array([0, _RECORDS], np.int64), np.array([_NOW_MS, _NOW_MS], np.int64)
    for record_time in None, (0, 2 * _NOW_MS):
        for append_times in None, runs:
            list(decode(data, Selection(record_time=record_time), append_times=append_times))


RUNS: Final = {"read": run_decoders, "write": run_encoders, "digest": run_digests}
