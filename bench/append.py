"""Throughput of appends: prepared batches, single records and Arrow tables.

The rival of prepared batches writes the same number of bytes to a plain file, with the same system
call (pwritev). Files are synced within a round only in the case of synced appends.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidelog
from bench.harness import Case
from tidelog.directory import Directory
from tidelog.env import OsFileSystem
from tidelog.record.builder import build_batch
from tidelog.storage.log.append_types import AppendOrigin, AppendTerms
from tidelog.types import NewRecord

RECORD_BYTES = 100
BATCH_RECORDS = 150
NOW_MS = 1_700_000_000_000
CONFIG = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


class Target:
    """A topic in a temporary directory, recreated before each round."""

    def __init__(self, **config: str) -> None:
        self._config = {**CONFIG, **config}
        self.path = ""
        self.directory: Directory | None = None

    def renew(self) -> None:
        """Recreate the topic, empty and with its kernels loaded."""
        self.drop()
        self.path = tempfile.mkdtemp(prefix="tidelog-bench-")
        self.directory = tidelog.open(self.path, writable=True)
        self.directory.create_topic("t", config=self._config)
        self.directory.log("t", 0).use_kernels()

    @property
    def opened(self) -> Directory:
        """Return the open directory."""
        assert self.directory is not None
        return self.directory

    def drop(self) -> None:
        """Remove the directory."""
        if self.directory is not None:
            self.directory.log_dir.abandon()
            shutil.rmtree(self.path)
            self.directory = None


def _renewing(*targets: Target) -> Callable[[], None]:
    def renew() -> None:
        for target in targets:
            target.renew()

    return renew


def _batch(batch_records: int) -> bytes:
    value = b"x" * RECORD_BYTES
    records = [NewRecord(value=value, timestamp=NOW_MS + n) for n in range(batch_records)]
    return bytes(build_batch(records))


def _prepared(target: Target, batch: bytes, count: int, *, trusted: bool) -> Callable[[], float]:
    origin = AppendOrigin.SINK if trusted else AppendOrigin.CLIENT

    def run() -> float:
        log = target.opened.log("t", 0)
        for _ in range(count):
            log.append_batches(batch, AppendTerms(origin, trusted=trusted))
        return count * len(batch) / 1e6

    return run


def _plain_writes(batch: bytes, count: int) -> Callable[[], float]:
    def run() -> float:
        path = Path(tempfile.mkdtemp(prefix="tidelog-bench-")) / "plain"
        file = OsFileSystem().open(str(path), create=True)
        for number in range(count):
            file.pwritev([batch], number * len(batch))
        file.close()
        shutil.rmtree(path.parent)
        return count * len(batch) / 1e6

    return run


def _records(target: Target, count: int) -> Callable[[], float]:
    value = b"x" * RECORD_BYTES
    records = [NewRecord(value=value, timestamp=NOW_MS + n) for n in range(count)]

    def run() -> float:
        target.opened.append("t", records)
        return count

    return run


def _table(target: Target, count: int) -> Callable[[], float]:
    table = pa.table(
        {
            "value": pa.array([b"x" * RECORD_BYTES] * count),
            "timestamp": pa.array(np.arange(count) + NOW_MS),
        }
    )

    def run() -> float:
        target.opened.append_table("t", table)
        return count

    return run


def cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of `./run bench append`."""
    count = 2_000 if quick else 20_000
    batch = _batch(BATCH_RECORDS)
    on, off = Target(), Target(**{"tidelog.append.time.enable": "false"})
    note = f"{count} batches of {len(batch) / 1024:.0f} KB, {BATCH_RECORDS} records each"
    yield Case(
        case="prepared batches of 16 KB, checked like a producer's",
        unit="MB/s",
        ours=_prepared(on, batch, count, trusted=False),
        rival=_plain_writes(batch, count),
        rival_name="the same bytes written to a file",
        prepare=on.renew,
        note=note,
    )
    large = _batch(9_000)
    yield Case(
        case="prepared batches of 1 MB, checked like a producer's",
        unit="MB/s",
        ours=_prepared(on, large, count // 60, trusted=False),
        rival=_plain_writes(large, count // 60),
        rival_name="the same bytes written to a file",
        prepare=on.renew,
        note=f"{count // 60} batches of {len(large) / 1024:.0f} KB",
    )
    yield Case(
        case="appends with the append clock, compared with appends without it",
        unit="MB/s",
        ours=_prepared(on, batch, count, trusted=False),
        rival=_prepared(off, batch, count, trusted=False),
        rival_name="tidelog.append.time.enable=false",
        goal="ratio >= 0.9",
        prepare=_renewing(on, off),
        note=note,
    )
    yield Case(
        case="records one by one, by append()",
        unit="records/s",
        ours=_records(on, count * 5),
        prepare=on.renew,
        note="Python objects in, 100-byte values, batches of 16 KB",
    )
    yield Case(
        case="Arrow table, by append_table()",
        unit="records/s",
        ours=_table(on, count * 50),
        prepare=on.renew,
        note="100-byte values, batches of 16 KB",
    )
    on.drop()
    off.drop()
    yield _synced_case(batch, count // 20)


def _synced_case(batch: bytes, count: int) -> Case:
    """Return a case that syncs each append; the disk's sync time limits the rate."""
    target = Target(**{"flush.messages": "1"})

    def run() -> float:
        target.renew()
        log = target.opened.log("t", 0)
        for _ in range(count):
            log.append_batches(batch, AppendTerms(AppendOrigin.SINK, trusted=True))
        target.drop()
        return count

    def plain() -> float:
        folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
        file = OsFileSystem().open(str(folder / "plain"), create=True)
        for number in range(count):
            file.pwritev([batch], number * len(batch))
            file.sync()
        file.close()
        shutil.rmtree(folder)
        return count

    return Case(
        case="each append synced (flush.messages=1)",
        unit="appends/s",
        ours=run,
        rival=plain,
        rival_name="write and fdatasync of the same bytes",
        note="two syncs per append: log and append times; only one if the append time is unchanged",
    )
