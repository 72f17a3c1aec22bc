"""`tidelog.spark.audit` of two topics of 2 GB with planted differences.

Records have 8-byte keys and 100-byte values; keys are drawn uniformly at random, 20 records a key
on average. Each topic has four partitions with segments of 128 MiB and uncompressed batches of 16
KB; create times increase. The second topic is a copy with differences: 100 keys are missing, 100
keys lack their last record, and 48 pairs of neighboring records are swapped. Each swapped record is
the last record of its key. Spark runs on two cores and has already started. The page cache is warm.
Then 1 % more records are appended to both topics, and a second audit uses the state that the first
audit stored.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.harness import Case
from tidelog.env import os_env
from tidelog.jobs.audit.job import measure
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.plan import plan_audit
from tidelog.jobs.audit.results import AuditResults
from tidelog.record.columns.encode import encode_table
from tidelog.spark.places import Place
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import BUILT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.storage.log.log import Log

Longs = npt.NDArray[np.int64]

RECORDS = 18_000_000
RECORDS_QUICK = 1_800_000
PER_KEY = 20
PARTITIONS = 4
CHUNK_ROWS = 50_000
VALUE_BYTES = 100
KEY_BYTES = 8
PLANTED = 100
TOPIC = "orders"
START_MS = 1_700_000_000_000
STEP_MS = 10
CONFIG = {"retention.ms": "-1", "segment.bytes": str(128 << 20)}


class Partition:
    """Records of a partition, identified by numbers, and the differences planted in its copy."""

    def __init__(self, number: int, records: int) -> None:
        self.number = number
        draw = np.random.default_rng(number)
        keys = max(records // PER_KEY, 1)
        self.keys: Longs = draw.integers(0, keys, records) * PARTITIONS + number
        self.planted: dict[int, Kind] = {}

    def copy(self, count: int) -> Longs:
        """Return the numbers of the copy's records in order.

        `count` keys are missing, `count` keys lack their last record, and `count // 2` pairs of
        records are swapped.
        """
        order = np.arange(len(self.keys))
        reversed_keys = self.keys[::-1]
        found, firsts = np.unique(reversed_keys, return_index=True)
        last = len(self.keys) - 1 - firsts
        is_last = np.zeros(len(self.keys), np.bool_)
        is_last[last] = True
        # A key with a single record can't lack only its last record, because without this record
        # the key would be missing.
        common = np.bincount(np.searchsorted(found, self.keys)) > 1
        chosen = np.random.default_rng(99 + self.number).permutation(np.flatnonzero(common))
        missing, stale = found[chosen[:count]], chosen[count : 2 * count]
        self.planted = dict.fromkeys(missing.tolist(), Kind.MISSING)
        self.planted |= dict.fromkeys(found[stale].tolist(), Kind.STALE)
        self._swap(order, is_last, count // 2)
        keep = ~np.isin(self.keys, missing)
        keep[last[stale]] = False
        return order[keep[order]]

    def _swap(self, order: Longs, is_last: npt.NDArray[np.bool_], pairs: int) -> None:
        """Swap `pairs` pairs of neighboring records.

        Each swapped record is the last record of its key. These keys have no other difference.
        """
        at, done = len(order) // 2, 0
        while done < pairs:
            at += 1
            both = self.keys[at : at + 2].tolist()
            if is_last[at] and is_last[at + 1] and not set(both) & set(self.planted):
                order[at], order[at + 1] = at + 1, at
                self.planted |= dict.fromkeys(both, Kind.REORDERED)
                done += 1
                at += 1


def rows(keys: Longs, numbers: Longs) -> pa.Table:
    """Return the records with these numbers; a number stands for the same record in both topics."""
    pool = np.random.default_rng(5).integers(0, 256, 1 << 20, np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(pool, VALUE_BYTES)
    values = windows[numbers * 7_919 % len(windows)]
    values[:, :8] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    return pa.table(
        {
            "key": fixed(keys.astype(">i8").tobytes(), KEY_BYTES, len(numbers)),
            "value": fixed(values.tobytes(), VALUE_BYTES, len(numbers)),
            "timestamp": pa.array(START_MS + numbers * STEP_MS),
        }
    )


def fixed(data: bytes, size: int, count: int) -> "pa.Array[pa.Scalar[pa.DataType]]":
    ends = np.arange(0, size * (count + 1), size, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def append(log: "Log", keys: Longs, numbers: Longs) -> None:
    for start in range(0, len(numbers), CHUNK_ROWS):
        part = numbers[start : start + CHUNK_ROWS]
        data = bytearray().join(encode_table(rows(keys[part], part), now_ms=0))
        log.append_batches(data, BUILT)


class Topics:
    """Both topics, each in its own directory."""

    def __init__(self, records: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="tidelog-bench-")
        self.a, self.b, self.state = (f"{self.folder}/{name}" for name in ("a", "b", "state"))
        self.records = records
        # Number of records of a partition before `grow` appends 1 % more.
        size = records // PARTITIONS
        self.partitions = [Partition(n, size + size // 100) for n in range(PARTITIONS)]
        for path in (self.a, self.b):
            with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
                log_dir.create_topic(TOPIC, partitions=PARTITIONS, config=CONFIG)
        for partition in self.partitions:
            whole = Partition(partition.number, 0)
            whole.keys = partition.keys[:size]
            copied = whole.copy(PLANTED // PARTITIONS)
            partition.planted = whole.planted
            self._append(partition, np.arange(size), copied)

    def _append(self, partition: Partition, to_a: Longs, to_b: Longs) -> None:
        for path, numbers in ((self.a, to_a), (self.b, to_b)):
            with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
                append(log_dir.log(TOPIC, partition.number), partition.keys, numbers)

    def grow(self) -> None:
        """Append 1 % more records to both topics."""
        size = self.records // PARTITIONS
        for partition in self.partitions:
            more = np.arange(size, len(partition.keys))
            self._append(partition, more, more)

    @property
    def planted(self) -> dict[int, Kind]:
        return {key: kind for one in self.partitions for key, kind in one.planted.items()}

    def close(self) -> None:
        shutil.rmtree(self.folder)


def wrong(found: AuditResults, planted: dict[int, Kind]) -> int:
    """Count wrong results: keys missed, or reported without cause, twice or as another kind."""
    told = {int.from_bytes(one.key or b"", "big"): one.kind for one in found.differences}
    differing = {key for key in told.keys() | planted.keys() if told.get(key) != planted.get(key)}
    return len(differing) + len(found.differences) - len(told)


def cases(quick: bool) -> Iterator[Case]:
    """Yield cases of audits.

    They measure the speed of an audit, the number of keys that it reports wrongly, the bytes that
    it reads, and the bytes that a second audit reads.
    """
    from bench.spark import session

    spark = session()
    topics = Topics(RECORDS_QUICK if quick else RECORDS)
    try:
        yield from audit_cases(spark, topics)
    finally:
        topics.close()
        spark.stop()


def audit_cases(spark: "SparkSession", topics: Topics) -> Iterator[Case]:
    a, b = Place(topics.a), Place(topics.b)
    first = measure(spark, plan_audit(os_env(), a, b, state=topics.state))
    counts = Counter(topics.planted.values())
    gigabytes = first.all_bytes / 1e9
    told = {"first": first}

    def run() -> float:
        told["again"] = measure(spark, plan_audit(os_env(), a, b))
        return sum(told["again"].topics[0].records)

    yield Case(
        case=f"audit of two topics, {gigabytes:.1f} GB together",
        unit="records/s",
        ours=run,
        goal="ours >= 8e6",
        note="Spark is up, on two cores; every batch is read and its checksum compared",
    )
    yield Case(
        case=f"missed or wrongly reported keys, {sum(counts.values())} planted",
        unit="keys",
        ours=lambda: wrong(told["again"], topics.planted),
        goal="ours <= 0",
        note=", ".join(f"{count} {kind.value}" for kind, count in sorted(counts.items())),
    )
    yield Case(
        case="log bytes read, relative to the size of both topics",
        unit="times",
        ours=lambda: told["again"].log_bytes / told["again"].all_bytes,
        goal="ours <= 1.5",
        note=f"plus {told['again'].state_bytes / 1e6:.0f} MB of rows, written and read once",
    )
    topics.grow()
    second = measure(spark, plan_audit(os_env(), a, b, state=topics.state))
    yield Case(
        case="log bytes that the next audit reads after 1 % more records, relative to both topics",
        unit="times",
        ours=lambda: second.log_bytes / second.all_bytes,
        goal="ours <= 0.03",
        note=f"plus bytes of rows: {second.state_bytes / second.all_bytes:.3f} times both topics",
    )
    yield Case(
        case="bytes of logs and stored rows that the next audit reads after 1 % more records,"
        " relative to both topics",
        unit="times",
        ours=lambda: (second.log_bytes + second.state_bytes) / second.all_bytes,
    )
