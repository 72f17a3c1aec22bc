"""Measures decoding of log files to Arrow, and encoding of Arrow to batches, on one core.

The rivals are other libraries. The log is a file of 100-byte records (key 7 bytes, value 85 bytes)
in batches of 16 KB. This file is written to a temporary folder and mapped, like a finished segment.
tidelog checks every CRC-32C. tidelog releases each Arrow batch before it decodes the next batch, as
a scan does. kafka-python and aiokafka create one Python object per record instead of columns; the
notes of the cases with these two rivals state this difference.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import lz4.frame
import numpy as np
import pyarrow as pa
import zstandard
from aiokafka.record.memory_records import (
    MemoryRecords as AioKafkaRecords,
)
from kafka.record import (
    MemoryRecords as KafkaPythonRecords,
)

from bench.harness import Case, Work
from tidelog.record.batch_walk import walk
from tidelog.record.columns.column_builders import HEADERS
from tidelog.record.columns.decode import ALL_COLUMNS, decode
from tidelog.record.columns.encode import encode_table
from tidelog.record.header import HEADER_SIZE
from tidelog.record.kernels import check_body
from tidelog.types import Codec

START_MS = 1_357_016_400_000  # 2013-01-01 in New York
RECORD_BYTES = 100
# Maximum number of records that a rival decodes, because decoding the whole log would take minutes.
RIVAL_RECORDS = 20_000
DECODE_GOAL = "ours >= 25_000_000"
ENCODE_GOAL = "ours >= 10_000_000"
NO_HEADERS = tuple(name for name in ALL_COLUMNS if name != "headers")
LIBRARIES = {Codec.LZ4: "lz4", Codec.ZSTD: "zstandard"}
OBJECTS = "the rival returns a Python object per record, tidelog returns Arrow columns"


def make_table(rows: int, *, headers: bool = False) -> pa.Table:
    """Return keyed records. Without headers, each record takes 100 bytes on disk.

    The values consist of words, which are compressible.
    """
    numbers = np.arange(rows)
    keys = pa.array([f"N{number:06d}" for number in (numbers * 7919) % 5000])
    words = ["departed", "arrived", "delayed", "cancelled", "boarding", "taxiing"]
    texts = [
        f'{{"flight":{n % 9973},"origin":"JFK","state":"{words[n % 6]}","delay":{n * 31 % 999}}}'
        for n in range(rows)
    ]
    values = pa.array([text.ljust(RECORD_BYTES - 7 - 8)[: RECORD_BYTES - 7 - 8] for text in texts])
    columns: dict[str, pa.Array[pa.Scalar[pa.DataType]]] = {
        "key": keys,
        "value": values,
        "timestamp": pa.array(START_MS + numbers // 3, pa.int64()),
    }
    if headers:
        pair = [{"key": "source", "value": b"bench"}, {"key": "trace", "value": b"0123456789"}]
        columns["headers"] = pa.array([pair] * rows, HEADERS)
    return pa.table(columns)


def write_log(folder: Path, table: pa.Table, codec: Codec) -> memoryview:
    """Write a table as a log file, and map it."""
    path = folder / f"{codec.config_name}-{len(table.schema)}.log"
    offset = 0
    with path.open("wb") as file:
        for batch in encode_table(table, now_ms=START_MS, codec=codec):
            batch[0:8] = offset.to_bytes(8, "big")
            offset += int.from_bytes(batch[23:27], "big") + 1
            file.write(batch)
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def rows_of(log: memoryview, columns: tuple[str, ...]) -> Callable[[], float]:
    """Return a function that decodes a log and returns the number of records."""

    def work() -> float:
        return sum(part.num_rows for part in decode(log, columns=columns))

    return work


def objects_of(records: Callable[[bytes], float], log: memoryview) -> Work:
    """Return a function in which a rival decodes a part of the log."""
    part = b""
    count = 0
    for batch in walk(log):
        count += batch.record_count or 0
        if count > RIVAL_RECORDS:
            break
        part = bytes(log[: batch.at + batch.size_bytes])
    return lambda: records(part)


def kafka_python(part: bytes) -> float:
    """Decode with kafka-python, with the CRC and all fields; return the number of records."""
    count = 0
    records = KafkaPythonRecords(part)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            _ = record.offset, record.timestamp, record.key, record.value, record.headers
            count += 1
    return count


def aiokafka(part: bytes) -> float:
    """Decode with aiokafka's compiled decoder, with the CRC and all fields; return the count."""
    count = 0
    records = AioKafkaRecords(part)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            _ = record.offset, record.timestamp, record.key, record.value, record.headers
            count += 1
    return count


def codec_alone(log: memoryview, codec: Codec, rows: int) -> Work:
    """Return a function that decompresses the batches with the codec's library alone."""
    sections = [bytes(batch.view[HEADER_SIZE:]) for batch in walk(log)]
    decompress = {
        Codec.LZ4: lz4.frame.decompress,
        # This function requires that a zstd frame declares the size of its content, as tidelog's
        # frames do.
        Codec.ZSTD: zstandard.ZstdDecompressor().decompress,
    }[codec]

    def work() -> float:
        for section in sections:
            decompress(section)
        return rows

    return work


def encoded(table: pa.Table, codec: Codec) -> Work:
    """Return a function that encodes a table and returns the number of records."""

    def work() -> float:
        for _ in encode_table(table, now_ms=START_MS, codec=codec):
            pass
        return table.num_rows

    return work


def checked(log: memoryview) -> Work:
    """Return a function that checks every record as a leader does, and returns the record count."""
    batches = [
        (batch.view[HEADER_SIZE:], batch.record_count or 0, batch.base_timestamp)
        for batch in walk(log)
    ]

    def work() -> float:
        for body, count, base_timestamp in batches:
            check_body(body, count, base_timestamp)
        return sum(count for _, count, _ in batches)

    return work


def cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of decoding, then of encoding."""
    rows = 300_000 if quick else 3_000_000
    with tempfile.TemporaryDirectory() as name:
        yield from decode_cases(Path(name), rows)
        yield from encode_cases(rows // 2)


def decode_cases(folder: Path, rows: int) -> Iterator[Case]:
    """Yield the cases from log files to Arrow."""
    table = make_table(rows)
    log = write_log(folder, table, Codec.NONE)
    size = len(log) / rows
    yield Case(
        case="decode, all columns",
        unit="records/s",
        ours=rows_of(log, ALL_COLUMNS),
        rival=objects_of(aiokafka, log),
        rival_name=f"aiokafka {version('aiokafka')}",
        goal=DECODE_GOAL,
        note=f"{size:.0f} bytes a record on disk; CRC checked; {OBJECTS}",
    )
    yield Case(
        case="decode, all columns but headers",
        unit="records/s",
        ours=rows_of(log, NO_HEADERS),
        rival=objects_of(kafka_python, log),
        rival_name=f"kafka-python {version('kafka-python')}",
        note=OBJECTS,
    )
    yield Case(
        case="decode, offset and value",
        unit="records/s",
        ours=rows_of(log, ("offset", "value")),
    )
    yield Case(
        case="check a batch as a leader does before an append", unit="records/s", ours=checked(log)
    )
    yield from compressed_cases(folder, table)
    with_headers = write_log(folder, make_table(rows // 2, headers=True), Codec.NONE)
    yield Case(
        case="decode, all columns, 2 headers a record",
        unit="records/s",
        ours=rows_of(with_headers, ALL_COLUMNS),
        rival=objects_of(aiokafka, with_headers),
        rival_name=f"aiokafka {version('aiokafka')}",
        note=OBJECTS,
    )


def compressed_cases(folder: Path, table: pa.Table) -> Iterator[Case]:
    """Yield the cases of compressed batches."""
    part = table.slice(0, table.num_rows // 3)
    for codec in (Codec.LZ4, Codec.ZSTD):
        log = write_log(folder, part, codec)
        yield Case(
            case=f"decode {codec.config_name}, all columns",
            unit="records/s",
            ours=rows_of(log, ALL_COLUMNS),
            rival=codec_alone(log, codec, part.num_rows),
            rival_name=f"{LIBRARIES[codec]} {version(LIBRARIES[codec])}",
            note="the rival is the codec alone: it decompresses the same batches, no more",
        )


def encode_cases(rows: int) -> Iterator[Case]:
    """Yield the cases from Arrow to batches."""
    table = make_table(rows)
    yield Case(
        case="encode to 16 KB batches",
        unit="records/s",
        ours=encoded(table, Codec.NONE),
        goal=ENCODE_GOAL,
        note="key, value, timestamp; CRC included",
    )
    part = table.slice(0, rows // 4)
    for codec in (Codec.LZ4, Codec.ZSTD):
        yield Case(
            case=f"encode {codec.config_name}",
            unit="records/s",
            ours=encoded(part, codec),
            note="the codec, at Kafka's default level, takes nearly all of the time",
        )
