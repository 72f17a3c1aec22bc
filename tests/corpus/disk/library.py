"""Changes of files by the library: each way to append, to roll segments and to apply retention.

A workload gets an open directory and the directory's clock. The directory is on a disk in memory,
whose calls are recorded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

import tidelog
from tidelog import Codec, Header, NewRecord

SMALL: Final[Mapping[str, str]] = {"internal.segment.bytes": "700", "index.interval.bytes": "150"}
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS


class Notes(list[str]):
    """Results of a workload, in order."""

    @contextmanager
    def refusal(self) -> Iterator[None]:
        """Record the error that the block raises, or `not refused` if it raises none."""
        try:
            yield
        except tidelog.TidelogError as error:
            self.append(f"{type(error).__name__}: {error}")
        else:
            self.append("not refused")


Workload = Callable[[tidelog.Directory, tidelog.ManualClock, Notes], None]


def some(clock: tidelog.ManualClock, count: int, first: int = 0, size: int = 30) -> list[NewRecord]:
    """Return records with keys and times, some of them late."""
    now_ms = clock.now_ms()
    return [
        NewRecord(
            key=b"k%d" % (number % 5),
            value=b"%03d " % number + b"v" * size,
            timestamp=now_ms - (number % 3) * 700,
        )
        for number in range(first, first + count)
    ]


def records(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Append records of all kinds: without key, value or time, with headers, to a partition."""
    directory.create_topic("t", partitions=3, config=SMALL)
    directory.append("t", some(clock, 12))
    clock.advance(1500)
    odd = [
        NewRecord(key=None, value=b"no key"),
        NewRecord(key=b"no value", value=None),
        NewRecord(key=b"", value=b""),
        NewRecord(key=b"no time", value=b"1", timestamp=-1),
        NewRecord(key=b"1970", value=b"2", timestamp=0),
        NewRecord(key=b"h", value=b"3", headers=(Header("a", b"1"), Header("a", None))),
    ]
    directory.append("t", odd)
    directory.append("t", odd, partition=2)
    clock.advance(1500)
    directory.append("t", [NewRecord(key=b"large", value=b"0123456789" * 60)], partition=0)
    with notes.refusal():
        directory.append("t", [], partition=0)
    directory.flush()
    with notes.refusal():
        directory.append("t", [NewRecord(key=b"x", value=b"y" * 2_000_000)], partition=1)
    directory.append("t", some(clock, 3, 50), partition=1)


def codecs(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Append batches with each codec, chosen by an argument and by a topic setting."""
    directory.create_topic("asked", config={"index.interval.bytes": "150"})
    for codec in Codec:
        clock.advance(1000)
        directory.append("asked", some(clock, 12), codec=codec, batch_bytes=300)
    for codec in Codec:
        name = f"of-{codec.name.lower()}"
        kind = {Codec.NONE: "uncompressed"}.get(codec, codec.name.lower())
        directory.create_topic(name, config={"compression.type": kind})
        directory.append(name, some(clock, 4), codec=Codec.GZIP)


def stamped(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Topics with LogAppendTime."""
    kind = {"message.timestamp.type": "LogAppendTime"}
    directory.create_topic("t", config={**SMALL, **kind})
    for number in range(5):
        clock.advance(MINUTE_MS)
        directory.append("t", some(clock, 5, number * 5), codec=Codec.LZ4 if number % 2 else "none")
    directory.alter_config("t", {"message.timestamp.type": None})
    directory.append("t", some(clock, 3, 30))


def tables(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Append Arrow tables, with and without a partition column."""
    directory.create_topic("t", partitions=2, config=SMALL)
    rows = some(clock, 20)
    table = pa.table(
        {
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "timestamp": pa.array([row.timestamp for row in rows], pa.int64()),
        }
    )
    directory.append_table("t", table)
    clock.advance(1000)
    chosen = table.append_column("partition", pa.array([n % 2 for n in range(20)], pa.int32()))
    directory.append_table("t", chosen, codec="zstd", batch_bytes=400)
    clock.advance(1000)
    directory.append_table("t", table.select(["value"]).slice(3, 6))


def loads(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Load a source, load it again, then with more records, then under another name."""
    directory.create_topic("t", partitions=2, config=SMALL)
    directory.load_once("t", some(clock, 6), source="a.csv")
    clock.advance(1000)
    early = clock.now_ms() - 1000
    first = [
        NewRecord(key=row.key, value=row.value, timestamp=early - (number % 3) * 700)
        for number, row in enumerate(some(clock, 9))
    ]
    directory.load_once("t", first[:6], source="a.csv")
    directory.load_once("t", first, source="a.csv")
    directory.load_once("t", some(clock, 4, 20), source="b.csv", partition=1)
    with notes.refusal():
        directory.load_once("t", some(clock, 4, 30), source="a.csv")


def _every_way(directory: tidelog.Directory, clock: tidelog.ManualClock) -> None:
    """Roll segments by size, by time, because an index is full, and by maximum compaction lag."""
    ways = {
        "size": {"internal.segment.bytes": "400"},
        "exact-size": {"internal.segment.bytes": "384"},
        "time": {"segment.ms": f"{10 * MINUTE_MS}"},
        "exact-time": {"segment.ms": f"{8 * MINUTE_MS}"},
        "jitter": {"segment.ms": f"{20 * MINUTE_MS}", "segment.jitter.ms": f"{10 * MINUTE_MS}"},
        "index": {"segment.index.bytes": "36", "index.interval.bytes": "0"},
        "allocated": {"preallocate": "true", "internal.segment.bytes": "2000"},
        "lag": {"cleanup.policy": "compact", "max.compaction.lag.ms": f"{10 * MINUTE_MS}"},
    }
    for name, config in ways.items():
        directory.create_topic(name, config=config)
    for number in range(9):
        clock.advance(4 * MINUTE_MS)
        for name in ways:
            directory.append(name, some(clock, 3, number * 3))


def rolled(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Roll segments by size, by time and because an index is full; flush them by settings."""
    _every_way(directory, clock)
    directory.create_topic("flushed", config={"flush.messages": "4"})
    for number in range(3):
        clock.advance(MINUTE_MS)
        directory.append("flushed", some(clock, 3, number * 3))
    directory.create_topic("untimed", config={"segment.ms": f"{10 * MINUTE_MS}"})
    for _ in range(3):
        clock.advance(11 * MINUTE_MS)
        directory.append("untimed", [NewRecord(key=b"k", value=b"v", timestamp=-1)])


def kept(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Apply retention by size, by time and by both, with compaction, and to active segments."""
    config = {
        "size": {"retention.bytes": "1500", "retention.ms": "-1"},
        "exact": {"retention.bytes": "1674", "retention.ms": "-1"},
        "time": {"retention.ms": f"{HOUR_MS}"},
        "append": {"retention.ms": f"{HOUR_MS}", "tidelog.retention.clock": "append"},
        "both": {"retention.ms": f"{HOUR_MS}", "retention.bytes": "1500"},
        "ever": {"retention.ms": "-1"},
        "compact": {"cleanup.policy": "compact,delete", "retention.ms": f"{HOUR_MS}"},
    }
    for name, more in config.items():
        directory.create_topic(name, config={**SMALL, **more})
    names = list(directory.topics())
    for number in range(8):
        clock.advance(15 * MINUTE_MS)
        for name in names:
            directory.append(name, some(clock, 5, number * 5))
    for is_dry in (True, False):
        for one in directory.retain(dry_run=is_dry):
            ends = f"{one.partition} {one.base_offset}..{one.end_offset}"
            notes.append(f"{ends}: {one.size_bytes} bytes by {one.rule}: {one.reason}")
    clock.advance(MINUTE_MS * 2)
    directory.retain()
    clock.advance(5 * HOUR_MS)
    directory.retain("time")
    directory.append("time", some(clock, 2, 90))
    directory.retain()


def topics(directory: tidelog.Directory, clock: tidelog.ManualClock, notes: Notes) -> None:
    """Create topics, change them, delete them, and create them again."""
    directory.create_topic("a", partitions=2)
    directory.create_topic("b", config={"retention.ms": "1000"})
    directory.append("a", some(clock, 4))
    directory.alter_config("a", {"retention.ms": "5000", "segment.bytes": "2000000"})
    directory.alter_config("a", {"retention.ms": None})
    directory.delete_topic("a")
    with notes.refusal():
        directory.create_topic("b")
    clock.advance(MINUTE_MS)
    directory.create_topic("a", partitions=1)
    directory.append("a", some(clock, 2, 10))
    with notes.refusal():
        directory.create_topic("c", config={"retention.ms": "soon"})


WORKLOADS: Final[Mapping[str, Workload]] = {
    "append-records": records,
    "append-codecs": codecs,
    "append-stamped": stamped,
    "append-table": tables,
    "load-once": loads,
    "roll": rolled,
    "retention": kept,
    "topics": topics,
}
