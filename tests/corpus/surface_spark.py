"""Pages `spark-*`, `splits` and `arrow` of the surface, from `format("tidelog")` without a session.

The module calls the data source as Spark does: it creates the data source from options, then
requests a schema, a reader, the reader's partitions and their rows, a stream's offsets, and a
writer.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)
from tests.corpus import logs
from tests.corpus.book import Entry
from tests.corpus.shell import escaped

import tidelog
import tidelog.spark
from pyspark_tidelog import DefaultSource

FLIGHTS: Final = {"path": "logs", "subscribe": "flights"}
# Sets of options for a read, by entry. They replace or extend the options in FLIGHTS.
READS: Final[dict[str, list[dict[str, str]]]] = {
    "places": [
        {},
        {"path": "nowhere"},
        {"path": ""},
        {"path": "gopher://x"},
        {"kafka.bootstrap.servers": "127.0.0.1:1"},
        {"path": "", "kafka.bootstrap.servers": "127.0.0.1"},
        {"kafka.client.id": "x"},
        {"store.endpoint": "http://127.0.0.1:1"},
        {"nonsense": "1"},
        {"subscribes": "flights"},
    ],
    "topics": [
        {"subscribe": "flights,planes"},
        {"subscribe": "nope"},
        {"subscribe": ""},
        {"subscribe": "", "subscribePattern": "p.*"},
        {"subscribe": "", "subscribePattern": "("},
        {"subscribePattern": "p.*"},
        {"subscribe": "", "assign": '{"flights": [0, 2]}'},
        {"subscribe": "", "assign": '{"flights": [9]}'},
        {"subscribe": "", "assign": "flights"},
    ],
    "offsets": [
        {"startingOffsets": "earliest", "endingOffsets": "latest"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"flights": {"0": 40, "1": -2, "2": 20}}'},
        {"endingOffsets": '{"flights": {"0": 3, "1": -1, "2": 20}}'},
        {"startingOffsets": '{"flights": {"0": 40}}'},
        {"startingOffsets": '{"flights": {"0": 999, "1": 0, "2": 0}}'},
        {"startingOffsets": '{"flights": {"0": 999, "1": 0, "2": 0}}', "failOnDataLoss": "false"},
        {"startingOffsets": "middle"},
        {"startingOffsets": "{"},
        {"failOnDataLoss": "perhaps"},
    ],
    "times": [
        {"startingTimestamp": "2024-05-14T03:00Z", "endingTimestamp": "2024-05-14T05:00Z"},
        {"startingTimestamp": "1715655600000", "clock": "append"},
        {"startingTimestamp": "-30h", "timeRange": "positions"},
        {"startingTimestamp": "2024-05-14T03:00Z", "timeRange": "roughly"},
        {"startingTimestamp": "soon"},
        {"startingTimestamp": "2024-05-14T05:00Z", "endingTimestamp": "2024-05-14T03:00Z"},
        {"startingOffsetsByTimestamp": '{"flights": {"0": 1715655600000, "1": 0, "2": 0}}'},
        {"startingOffsetsByTimestamp": '{"flights": {"0": 1715655600000}}'},
        {
            "startingTimestamp": "2030-01-01Z",
            "startingOffsetsByTimestampStrategy": "error",
        },
        {"startingOffsetsByTimestampStrategy": "guess"},
        {"endingOffsetsByTimestamp": '{"flights": {"0": 1715655600000, "1": 0, "2": 0}}'},
        {"clock": "wall"},
        {"strict": "true", "clock": "append", "startingTimestamp": "0"},
        {"readUntil": "flushed"},
        {"readUntil": "whenever"},
    ],
    "tasks": [
        {"minPartitions": "7"},
        {"minPartitions": "0"},
        {"maxRecordsPerPartition": "10"},
        {"maxRecordsPerPartition": "x"},
        {"splitBytes": "700"},
        {"splitBytes": "-1"},
        {"zoneCache": "zones"},
        {"pushdown": "false"},
        {"isolation": "read_committed", "subscribe": "txn"},
        {"kafka.isolation.level": "read_committed", "subscribe": "txn"},
        {"isolation": "none"},
        {"kafkaConsumer.pollTimeoutMs": "5"},
        {"fetchOffset.numRetries": "5"},
        {"fetchOffset.retryIntervalMs": "5"},
        {"groupIdPrefix": "x"},
        {"kafka.group.id": "x"},
        {"kafka.auto.offset.reset": "earliest"},
        {"kafka.enable.auto.commit": "true"},
        {"kafka.key.deserializer": "x"},
        {"kafka.interceptor.classes": "x"},
    ],
    "tables": [
        {"subscribe": "planes", "table": "true"},
        {"subscribe": "planes", "table": "true", "asOf": "2024-05-14T03:00Z"},
        {"subscribe": "planes", "table": "true", "asOf": "soon"},
        {"subscribe": "planes", "table": "true", "inexact": "mark"},
        {"subscribe": "planes", "table": "true", "inexact": "maybe"},
        {"subscribe": "planes", "table": "true", "startingOffsets": "earliest"},
        {"subscribe": "planes", "table": "true", "minPartitions": "2"},
        {"subscribe": "planes", "table": "true", "isolation": "read_committed"},
        {"subscribe": "planes", "asOf": "now"},
        {"subscribe": "planes", "inexact": "mark"},
        {"table": "perhaps"},
    ],
    "streams-only": [
        {"maxOffsetsPerTrigger": "5"},
        {"maxBytesPerTrigger": "5"},
        {"minOffsetsPerTrigger": "5"},
        {"maxTriggerDelay": "5m"},
        {"commitGroup": "x"},
    ],
}
COLUMNS: Final[list[dict[str, str]]] = [
    {},
    {"includeHeaders": "true"},
    {"includeAppendTimestamp": "true"},
    {"includeHeaders": "true", "includeAppendTimestamp": "true", "mode": "permissive"},
    {"columns": "value"},
    {"columns": "offset,createTimestamp,producerId,producerEpoch,sequence,leaderEpoch"},
    {"columns": "value,nope"},
    {"columns": ""},
    {"columns": "_corrupt_record"},
    {"mode": "permissive"},
    {"mode": "dropMalformed"},
    {"mode": "hope"},
    *({"keyAs": kind} for kind in ("bytes", "string", "int32", "int64", "double", "uuid", "json")),
    {"valueAs": "json"},
    {"valueAs": "text"},
    {"table": "true"},
]
STREAMS: Final[list[dict[str, str]]] = [
    {},
    {"startingOffsets": "earliest"},
    {"startingOffsets": '{"flights": {"0": 40, "1": -2, "2": -1}}'},
    {"startingTimestamp": "2024-05-14T05:00Z"},
    {"startingOffsets": "earliest", "subscribe": "", "subscribePattern": "p.*"},
    {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"},
    {"startingOffsets": "earliest", "maxBytesPerTrigger": "900"},
    {"startingOffsets": "earliest", "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "5m"},
    {"endingOffsets": "latest"},
    {"endingTimestamp": "now"},
    {"table": "true"},
    {"maxOffsetsPerTrigger": "0"},
    {"maxBytesPerTrigger": "x"},
    {"maxTriggerDelay": "soon"},
    {"commitGroup": "x"},
    {"startingOffsets": "middle"},
    {"subscribe": "nope"},
]
WRITES: Final[list[dict[str, str]]] = [
    {"topic": "flights"},
    {"topic": "nope"},
    {"topic": "nope", "createPartitions": "2", "createConfig": '{"retention.ms": "-1"}'},
    {"topic": "nope", "createPartitions": "2", "createConfig": '{"nope": "-1"}'},
    {"topic": "nope", "createPartitions": "0"},
    {"topic": "nope", "createConfig": '{"retention.ms": "-1"}'},
    {"topic": "a b", "createPartitions": "1"},
    {},
    {"path": "nowhere", "topic": "flights"},
    {"path": "s3://bucket/logs", "topic": "flights"},
    {"path": "", "topic": "flights"},
    {"topic": "flights", "keyAs": "int64"},
    {"topic": "flights", "valueAs": "text"},
    {"topic": "flights", "compression": "zstd", "batchBytes": "1000"},
    {"topic": "flights", "compression": "brotli"},
    {"topic": "flights", "batchBytes": "x"},
    {"topic": "flights", "clock.ms": "x"},
    {"topic": "flights", "delivery": "exactly-once"},
    {"topic": "flights", "delivery": "maybe"},
    {"topic": "flights", "transactionalIdPrefix": "x"},
    {"topic": "flights", "markerTopic": "x"},
    {"topic": "flights", "txnAppId": "x"},
    {"topic": "flights", "txnAppId": "x", "txnVersion": "-1"},
    {"topic": "flights", "txnAppId": "x", "txnVersion": "1"},
    {"topic": "flights", "lockWaitMs": "-1"},
    {"topic": "flights", "kafka.acks": "1"},
    {"topic": "flights", "includeHeaders": "true"},
    {"topic": "flights", "nonsense": "1"},
    {"topic": "__consumer_offsets"},
]
_HEADER: Final = StructType().add("key", StringType()).add("value", BinaryType())
ROWS: Final = {
    "key-value": StructType().add("key", BinaryType()).add("value", BinaryType()),
    "text": StructType()
    .add("key", StringType())
    .add("value", StringType())
    .add("partition", IntegerType())
    .add("timestamp", TimestampType())
    .add("topic", StringType()),
    "no-value": StructType().add("key", BinaryType()),
    "wrong-types": StructType().add("key", BinaryType()).add("value", IntegerType()),
    "unknown-column": StructType().add("value", BinaryType()).add("other", IntegerType()),
    "headers": StructType().add("value", BinaryType()).add("headers", ArrayType(_HEADER)),
}


class HasSchema(Protocol):
    """A reader or a table of Arrow, or an object convertible to one."""

    @property
    def schema(self) -> pa.Schema: ...


def pages(home: Path) -> Iterator[Entry]:
    """Yield all pages; the data source reads a directory that `logs.make` creates."""
    home.mkdir()
    os.chdir(home)
    logs.make(home / "logs")
    for name, tries in READS.items():
        yield Entry(f"surface/spark-reads/{name}", _told(tries, FLIGHTS, _read))
    yield Entry("surface/spark-reads/schemas", _told(COLUMNS, FLIGHTS, _schema))
    yield Entry("surface/spark-streams/offsets", _told(STREAMS, FLIGHTS, _stream))
    yield from _writes()
    yield from _splits()
    yield from _arrow()


def _told(
    tries: list[dict[str, str]],
    common: Mapping[str, str],
    ask: Callable[[dict[str, str]], list[str]],
) -> str:
    """Return the result or the error of each set of options."""
    lines = []
    for options in tries:
        lines.append(json.dumps(options))
        given = {name: value for name, value in {**common, **options}.items() if value}
        try:
            found = ask(given)
        except (tidelog.TidelogError, ValueError, OSError) as error:
            found = [f"{type(error).__name__}: {error}"]
        lines += [f"    {escaped(line)}" for line in found]
    return "\n".join(lines)


def _read(options: dict[str, str]) -> list[str]:
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    lines = []
    for number, partition in enumerate(reader.partitions()):
        batches = [batch for batch in reader.read(partition) if isinstance(batch, pa.RecordBatch)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
        ends = f"from {places[0]} to {places[-1]}" if places else "no rows"
        lines.append(f"task {number}: {len(rows)} rows, {ends}")
    plan = tidelog.spark.plan_batch(options)
    told = [*plan.lost, *plan.empty, *plan.doubtful, *plan.reports]
    bounds = [f"{name}: {place}" for name, place in plan.bounds.items()]
    sizes = f"bytes scan {plan.scan_bytes} log {plan.log_bytes}"
    return [*lines, *bounds, sizes, *map(str, told)]


def _schema(options: dict[str, str]) -> list[str]:
    return [
        f"{field.name} {field.dataType.simpleString()}" for field in DefaultSource(options).schema()
    ]


def _stream(options: dict[str, str]) -> list[str]:
    source = DefaultSource(options)
    reader = source.streamReader(source.schema())
    offset = reader.initialOffset()
    lines = [f"initial {json.dumps(offset)}"]
    for limit in (ReadAllAvailable(), ReadMaxRows(7), ReadMaxBytes(900)):
        end: dict[str, object] | None = reader.latestOffset(offset, limit)
        if end is None:
            lines.append(f"{type(limit).__name__}: nothing")
            continue
        lines.append(f"{type(limit).__name__} {json.dumps(end)}")
        lines.append(f"  {len(reader.partitions(offset, end))} tasks")
    default = reader.getDefaultReadLimit()
    return [*lines, f"default limit {default}"]


def _taken(writer: object) -> list[str]:
    return ["nothing" if writer is None else "taken"]


def _writes() -> Iterator[Entry]:
    for name, rows in ROWS.items():
        tries = WRITES if name == "key-value" else [{"topic": "flights"}]

        def write(options: dict[str, str], rows: StructType = rows) -> list[str]:
            return _taken(DefaultSource(options).writer(rows, overwrite=False))

        def overwrite(options: dict[str, str], rows: StructType = rows) -> list[str]:
            return _taken(DefaultSource(options).writer(rows, overwrite=True))

        def stream(options: dict[str, str], rows: StructType = rows) -> list[str]:
            return _taken(DefaultSource(options).streamWriter(rows, overwrite=False))

        for kind, ask in (("append", write), ("overwrite", overwrite), ("stream", stream)):
            text = _told(tries if kind != "overwrite" else tries[:1], {"path": "logs"}, ask)
            yield Entry(f"surface/spark-writes/{name}-{kind}", text)


def _splits() -> Iterator[Entry]:
    """Yield splits of scans as JSON, without the identities of files."""
    with tidelog.open("logs") as directory:
        scans = {
            "all": directory.scan("flights"),
            "times": directory.scan(
                "flights", start=logs.T0 + 3 * 3_600_000, end=logs.T0 + 4 * 3_600_000
            ),
            "append-times": directory.scan(
                "flights", start=logs.T0 + 3 * 3_600_000, clock="append"
            ),
            "committed": directory.scan("txn", isolation=tidelog.IsolationLevel.READ_COMMITTED),
            "compacted": directory.scan("planes"),
        }
        for name, scan in scans.items():
            lines = []
            for split in scan.plan().splits:
                fields = dataclasses.asdict(split)
                for piece in fields["pieces"]:
                    del piece["identity"]
                lines.append(json.dumps(fields, default=str))
            yield Entry(f"surface/splits/{name}", "\n".join(lines))


def _arrow() -> Iterator[Entry]:
    """Yield the schemas of Arrow data."""
    with tidelog.open("logs") as directory:
        columns = ("createTimestamp", "appendTimestamp", "headers", "producerId", "leaderEpoch")
        tables: dict[str, HasSchema] = {
            "read": directory.read("odd"),
            "read-columns": directory.read("odd", columns=("offset", *columns)),
            "scan": directory.scan("odd"),
            "table": directory.table("planes"),
            "diff": directory.diff("planes", logs.T0 + 3 * 3_600_000),
        }
        for name, table in tables.items():
            lines = [f"{field.name} {field.type}" for field in table.schema]
            yield Entry(f"surface/arrow/{name}", "\n".join(lines))
