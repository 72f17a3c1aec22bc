"""Creates directories on disk, appends to them and reads them, by the public `Directory`."""

from collections.abc import Sequence

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.record.record import Record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

T0 = 1_700_000_000_000
KEEP_ALL = {"retention.ms": "-1"}


def make(path: str, topic: str, partitions: int = 1, **config: str) -> str:
    """Create a directory with an empty topic."""
    given = {name.replace("_", "."): text for name, text in config.items()}
    with Directory.open(path, writable=True, env=Env(clock=ManualClock(T0))) as directory:
        directory.create_topic(topic, partitions=partitions, config=KEEP_ALL | given)
    return path


def append(
    path: str, topic: str, partition: int, records: Sequence[NewRecord], now_ms: int = T0
) -> None:
    """Append records in one call, at the time `now_ms`."""
    with Directory.open(path, writable=True, env=Env(clock=ManualClock(now_ms))) as directory:
        directory.append(topic, records, partition=partition)


def held(path: str, topic: str) -> list[list[Record]]:
    """Return the records of each partition, in order."""
    with Directory.open(path) as directory:
        count = directory.topic(topic).partitions
        return [list(directory.partition(topic, number).records()) for number in range(count)]


def plain(records: Sequence[Record]) -> list[tuple[object, ...]]:
    """Return the fields of records that a mirror copies, which are all but the offset."""
    return [(r.key, r.value, r.timestamp, r.headers) for r in records]


def append_times(path: str, topic: str, partition: int = 0) -> list[int]:
    """Return the append time of each record."""
    with Directory.open(path) as directory:
        read = directory.read(topic, columns=["partition", "offset", "appendTimestamp"])
        rows = sorted(read.read_all().to_pylist(), key=lambda row: int(row["offset"]))
    times = [row["appendTimestamp"] for row in rows if row["partition"] == partition]
    return [round(time.timestamp() * 1000) for time in times]


def grow(path: str, topic: str, count: int) -> None:
    """Increase a topic's number of partitions."""
    with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
        log_dir.add_partitions(topic, count)
