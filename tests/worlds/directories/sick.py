"""Shared code of tests of checks: a directory with every kind of file, and ways to damage files."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import PATH, WRITABLE, batch, new_records

from tidelog.env import DirEntry, Env, File, FileStat, FileSystem
from tidelog.storage.checks import DirectoryCheck, Finding, Selection, repair
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.types import Codec, NewRecord

PARTITION = f"{PATH}/t-0"
T0 = 1_700_000_000_000
CONFIG = {
    "index.interval.bytes": "400",
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


def full_log(*, segments: int = 3, rounds: int = 6, padding: bytes = b"") -> SeededEnv:
    """Return a directory with several codecs, tombstones, transactions, and unordered times.

    A third of the batches is uncompressed, with values that end with `padding`.
    """
    env = seeded_env(3)
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.create_topic("t", config=CONFIG)
        log = directory.log("t", 0)
        for segment in range(segments):
            if segment:
                log.roll()
            for number in range(rounds):
                _fill(env, log, segment * rounds + number, padding)
    return env


def _fill(env: SeededEnv, log: Log, number: int, padding: bytes) -> None:
    env.clock.advance(number * 7 % 5)
    times = [T0 + number * 1000 + each * 37 % 101 for each in range(5)]
    codec = (Codec.NONE, Codec.ZSTD, Codec.LZ4)[number % 3]
    log.append(
        new_records(times, b"value %d" % number * 3 + padding), codec=codec, batch_bytes=1 << 20
    )
    log.append([NewRecord(key=b"k%d" % number, value=None, timestamp=T0 + number)])
    _transaction(log, number)


def _transaction(log: Log, number: int) -> None:
    """Append overlapping transactions of two producers; one is committed, the other is aborted."""
    for producer in (7, 8):
        data = batch(
            [T0 + number],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        log.append_batches(data)
    for producer in (7, 8):
        log.end_transaction(
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=1,
            commit=bool((number + producer) % 2),
        )


def mended_log() -> SeededEnv:
    """Return a valid directory of three segments with zone maps."""
    env = full_log()
    mend(env)
    return env


def look(env: Env, selection: Selection | None = None) -> list[Finding]:
    """Return all findings of a directory."""
    check = DirectoryCheck(env.files, PATH, selection or Selection(), clock=env.clock)
    return [*check.load(), *check.findings()]


def mend(env: Env) -> list[str]:
    """Repair all damage that can be repaired; return messages about the other findings."""
    check = DirectoryCheck(env.files, PATH, clock=env.clock)
    return repair.repair(env, check, [*check.load(), *check.findings()])


def counting(findings: list[Finding]) -> list[Finding]:
    """Return the findings that make a directory invalid."""
    return [finding for finding in findings if finding.counts]


@dataclass
class BytesFile:
    """An open file of bytes in memory."""

    data: bytes

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        pass


@dataclass
class BytesFileSystem:
    """Files in memory that are fast to change, with only the calls that a check needs."""

    contents: dict[str, bytes] = field(default_factory=dict)
    failing: str | None = None

    @classmethod
    def copy_of(cls, files: FileSystem, path: str) -> "BytesFileSystem":
        """Copy everything below a directory."""
        return cls(dict(_contents(files, path)))

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        assert not write
        assert not create
        if path == self.failing:
            raise OSError(errno.EIO, "the disk failed", path)
        if path not in self.contents:
            raise FileNotFoundError(path)
        return BytesFile(self.contents[path])  # type: ignore[return-value] # it is only read

    def map(self, path: str, size: int | None = None) -> memoryview:
        file = self.open(path)
        return memoryview(file.pread(file.size() if size is None else size, 0))

    def exists(self, path: str) -> bool:
        return path in self.contents or any(name.startswith(f"{path}/") for name in self.contents)

    def stat(self, path: str) -> FileStat:
        if path in self.contents:
            return FileStat(len(self.contents[path]), 0, is_dir=False, identity=(0, 0))
        return FileStat(0, 0, is_dir=True, identity=(0, 0))

    def list_dir(self, path: str) -> list[DirEntry]:
        below = {name[len(path) + 1 :] for name in self.contents if name.startswith(f"{path}/")}
        return [
            DirEntry(name, any(each.startswith(f"{name}/") for each in below))
            for name in sorted({each.partition("/")[0] for each in below})
        ]


def _contents(files: FileSystem, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in files.list_dir(path):
        child = f"{path}/{entry.name}"
        if entry.is_dir:
            yield from _contents(files, child)
            continue
        file = files.open(child)
        yield child, file.pread(file.size(), 0)
        file.close()
