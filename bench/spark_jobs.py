"""Cases for `bench/spark.py`: time slices, jobs, codecs, memory, the sink and Arrow readers.

The topic is the first topic of `bench/ranges.py`: 2 GB in 150-record batches of about 16 KB,
appended evenly over ten days, with create times a little before the append times. Spark runs on two
cores. The time of a query without records is a separate case: the fixed cost of a query. The
speedup of a time slice is computed without this fixed cost.
"""

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidelog
from bench import ranges
from bench.harness import Case
from tidelog import scan
from tidelog.record.columns.encode import encode_table
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendOrigin, AppendTerms
from tidelog.types import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 2 << 30
SIZE_QUICK = 512 << 20
CODEC_ROWS = 4_000_000
SINK_ROWS = 6_000_000
SINK_ROWS_QUICK = 1_500_000
TRIES = 1
SAMPLE_SECONDS = 0.02
VALUES = ("sum(length(value))",)
Load = Callable[..., "DataFrame"]


def reader(spark: "SparkSession", path: str, topic: str, **more: str) -> "DataFrame":
    """Return a read of a topic with a new plan."""
    options = {"path": path, "subscribe": topic, **more}
    return spark.read.format("tidelog").options(**options).load()


def rows_of(frame: "DataFrame", aggregates: Sequence[str] = VALUES) -> float:
    """Run the query; return the number of rows it processed."""
    return float(frame.selectExpr("count(*)", *aggregates).collect()[0][0])


def seconds(work: Callable[[], object]) -> float:
    """Return the median elapsed seconds of `TRIES` runs.

    The harness repeats the whole case in several rounds.
    """
    taken = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken)


def job_cases(spark: "SparkSession", *, quick: bool) -> Iterator[Case]:
    """Yield all cases of `bench/spark.py` except the cases against the source that does nothing."""
    topic = ranges.Topic(SIZE_QUICK if quick else SIZE, ranges.delays(), at_append=True)
    try:
        yield from slice_cases(spark, topic)
        yield from latency_cases(spark, topic)
        yield from task_cases(spark, topic)
        yield memory_case(spark, topic)
        yield from arrow_cases(topic)
    finally:
        topic.close()
    yield from codec_cases(spark)
    yield sink_case(spark, SINK_ROWS_QUICK if quick else SINK_ROWS)


def slice_cases(spark: "SparkSession", topic: ranges.Topic) -> Iterator[Case]:
    """Yield the cases of one hundredth of the time range, compared with the whole topic."""
    part = ranges.part(0.01)
    times = {"startingTimestamp": str(part.start_ms), "endingTimestamp": str(part.end_ms)}

    def query(**more: str) -> Callable[[], float]:
        return lambda: rows_of(reader(spark, topic.path, ranges.TOPIC, **more))

    def empty() -> float:
        rows_of(reader(spark, topic.path, ranges.TOPIC, **EMPTY))
        return 1

    def sliced() -> float:
        assert query(**times)() > 0
        return 1

    def full() -> float:
        query()()
        return 1

    def times_faster() -> float:
        base = seconds(empty)
        return (seconds(full) - base) / max(seconds(sliced) - base, 1e-3)

    for work in (empty, sliced, full):
        work()
    gigabytes = topic.log_bytes() / 1e9
    yield Case(case="a query without matching records", unit="s", ours=empty)
    yield Case(
        case=f"a query over 1 % of the time range of {gigabytes:.1f} GB",
        unit="s",
        ours=sliced,
        rival=full,
        rival_name="the same query over the whole range",
        note="times of the whole queries",
    )
    yield Case(
        case="speed of the query over 1 % relative to the query over the whole range, both without"
        " the fixed cost of a query",
        unit="times",
        ours=times_faster,
        goal="ours >= 20",
        note="the time of the query without matching records is subtracted from both times",
    )


EMPTY: Mapping[str, str] = {
    "startingOffsets": '{"times": {"0": 5}}',
    "endingOffsets": '{"times": {"0": 5}}',
}


def latency_cases(spark: "SparkSession", topic: ranges.Topic) -> Iterator[Case]:
    """Yield the case of `tidelog spark latency`.

    Spark tasks aggregate the create time and the append time of each record.
    """
    from tidelog.jobs.latency.job import latency

    records = len(topic.batch_times) * ranges.BATCH_RECORDS

    def run() -> float:
        found = latency(spark, topic.path, ranges.TOPIC).found[ranges.TOPIC]
        assert found.records == records
        return records

    run()
    yield Case(
        case=f"latency and lateness of {records / 1e6:.0f} M records",
        unit="records/s",
        ours=run,
        goal="ours >= 12e6",
        note="Spark has started already; every batch is read and its checksum verified",
    )


def task_cases(spark: "SparkSession", topic: ranges.Topic) -> Iterator[Case]:
    """Yield the cases of a full read in one task and in several tasks, on two cores."""
    for tasks in (1, 2, 4):
        more = {"minPartitions": str(tasks), "splitBytes": str(1 << 40)}
        yield Case(
            case=f"full read in {tasks} task{'s' if tasks > 1 else ''} on two cores",
            unit="rows/s",
            ours=partial(_count_rows, spark, topic, more),
        )


def _count_rows(spark: "SparkSession", topic: ranges.Topic, options: Mapping[str, str]) -> float:
    return rows_of(reader(spark, topic.path, ranges.TOPIC, **options))


def memory_case(spark: "SparkSession", topic: ranges.Topic) -> Case:
    """Return the case of the Python workers' anonymous memory, sampled every 20 ms."""

    def run() -> float:
        with watched_workers() as peak_kb:
            rows_of(reader(spark, topic.path, ranges.TOPIC))
        return max(peak_kb, default=0) / 1024

    return Case(
        case="largest Python worker during a full read, anonymous memory",
        unit="MiB",
        ours=run,
        goal="ours <= 300",
        note="mapped log pages belong to the page cache and don't count",
    )


@contextmanager
def watched_workers() -> Iterator[list[int]]:
    """Yield a list of samples of the largest worker's memory in KiB.

    The list is complete when the `with` block has ended.
    """
    peaks: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            peaks.append(max(map(anonymous_kb, worker_ids()), default=0))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def worker_ids() -> list[str]:
    """Return the ids of Spark's Python daemon and the processes that it has forked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"pyspark.daemon" in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # the process has ended
    return found


def anonymous_kb(process: str) -> int:
    """Return the anonymous memory of a process in KiB; 0 if it has ended."""
    try:
        status = Path("/proc", process, "status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) if found else 0


def arrow_cases(topic: ranges.Topic) -> Iterator[Case]:
    """Yield the cases of reading all records as Arrow without Spark, against Parquet."""
    import duckdb
    import polars as pl

    gigabytes = topic.log_bytes() / 1e9
    with tidelog.open(topic.path) as directory, tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/rows.parquet"
        write_parquet(directory.scan(ranges.TOPIC).to_arrow(), file)

        def ours(columns: tuple[str, ...], *, views: bool = False) -> Callable[[], float]:
            def run() -> float:
                for _ in directory.scan(ranges.TOPIC, columns=columns).to_arrow(views=views):
                    pass
                return gigabytes

            return run

        def by_duckdb() -> float:
            for _ in duckdb.read_parquet(file).to_arrow_reader():
                pass
            return gigabytes

        def by_polars() -> float:
            pl.read_parquet(file)
            return gigabytes

        for what, columns, goal in (
            ("all usual columns", scan.COLUMNS, "ours >= 4"),
            ("columns=value", ("value",), ""),
        ):
            yield Case(
                case=f"to_arrow on two cores, {what}",
                unit="GB/s",
                ours=ours(columns),
                goal=goal,
                note="GB are bytes of the log",
            )
        yield Case(
            case="to_arrow on two cores, all usual columns, keys and values as views",
            unit="GB/s",
            ours=ours(scan.COLUMNS, views=True),
            note="GB are bytes of the log; keys and values are not copied",
        )
        note = "the same rows, GB of the log; Parquet is uncompressed; the page cache is warm"
        for name, rival in (
            (f"DuckDB {duckdb.__version__}", by_duckdb),
            (f"Polars {pl.__version__}", by_polars),
        ):
            yield Case(
                case=f"to_arrow, against {name} from Parquet",
                unit="GB/s",
                ours=ours(scan.COLUMNS),
                rival=rival,
                rival_name=name,
                note=note,
            )


def write_parquet(source: pa.RecordBatchReader, file: str) -> None:
    """Write the batches to one file, in order and uncompressed."""
    with source, pq.ParquetWriter(file, source.schema, compression="none") as sink:
        for batch in source:
            sink.write_batch(batch)


def codec_cases(spark: "SparkSession") -> Iterator[Case]:
    """Yield the cases of the full read of compressed topics.

    Half of each value is repetitive.
    """
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as path:
        with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
            for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
                fill_codec(log_dir, codec)

        def rows_read(name: str) -> float:
            return rows_of(reader(spark, path, f"codec-{name}"))

        for name in ("lz4", "zstd"):
            yield Case(
                case=f"full read, {name}",
                unit="rows/s",
                ours=partial(rows_read, name),
                rival=partial(rows_read, "none"),
                rival_name="the same rows uncompressed",
            )


def fill_codec(log_dir: LogDir, codec: Codec) -> None:
    """Create a topic of one partition whose batches have this codec."""
    topic = f"codec-{codec.config_name}"
    log_dir.create_topic(topic, config={"retention.ms": "-1", "segment.bytes": str(128 << 20)})
    log = log_dir.log(topic, 0)
    chunk = 50_000
    for number in range(CODEC_ROWS // chunk):
        draw = np.random.default_rng(number)
        half = draw.integers(0, 256, (chunk, 50), np.uint8)
        values = np.ascontiguousarray(np.hstack([half, np.full((chunk, 50), 97, np.uint8)]))
        ends = pa.py_buffer(np.arange(0, 100 * (chunk + 1), 100, dtype=np.int32).tobytes())
        value = pa.Array.from_buffers(
            pa.binary(), chunk, [None, ends, pa.py_buffer(values.tobytes())]
        )
        stamps = pa.array(1_700_000_000_000 + np.arange(chunk) + number * chunk)
        table = pa.table({"value": value, "timestamp": stamps})
        batches = encode_table(table, now_ms=0, codec=codec)
        log.append_batches(bytearray().join(batches), AppendTerms(AppendOrigin.SINK, owned=True))


def sink_case(spark: "SparkSession", rows: int) -> Case:
    """Return the case of the sink: rows generated by Spark become finished, indexed segments."""
    made = tempfile.TemporaryDirectory(prefix="tidelog-bench-")
    path = made.name
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("sink", partitions=2, config={"retention.ms": "-1"})
    frame = spark.range(rows).selectExpr(
        "cast(cast(id as string) as binary) as key",
        "cast(repeat('tidelog ', 12) as binary) as value",
        "timestamp_millis(1700000000000 + id) as timestamp",
    )

    def run() -> float:
        frame.write.format("tidelog").mode("append").options(path=path, topic="sink").save()
        return rows

    def empty_topic() -> None:
        with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
            log_dir.delete_topic("sink")
            log_dir.create_topic("sink", partitions=2, config={"retention.ms": "-1"})
            assert made.name == path  # this reference prevents the removal of the temporary folder

    run()
    return Case(
        case=f"directory sink, {rows / 1e6:.1f} M rows with 96-byte values, two partitions by key",
        unit="rows/s",
        ours=run,
        goal="ours >= 1.5e6",
        note="partitioned by murmur2 of the key; indexes and zone maps are included",
        prepare=empty_topic,
    )
