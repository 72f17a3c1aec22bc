"""Shared code of tests of logs and directories: records, and a directory on a fake file system."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.faults import SeededEnv, seeded_env

from tidelog.env import Env, File, FileSystem, LayeredFiles
from tidelog.record.builder import build_batch
from tidelog.record.record import Record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.types import Codec, NewRecord

PATH = "/data"
TOPIC = "t"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "0"}
# Settings that accept any create time.
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
WRITABLE = LogDirOptions(create=True)


def new_dir(env: Env, config: Mapping[str, str] | None = None, *, partitions: int = 1) -> LogDir:
    """Create a directory with one topic, which by default accepts any time."""
    directory = LogDir.open(PATH, env=env, options=WRITABLE)
    directory.create_topic(TOPIC, partitions=partitions, config={**ANY_TIME, **(config or {})})
    return directory


def new_log(config: Mapping[str, str] | None = None) -> tuple[SeededEnv, LogDir, Log]:
    """Return a new disk, a directory on this disk, and the directory's only log."""
    env = seeded_env(1)
    directory = new_dir(env, config)
    return env, directory, directory.log(TOPIC, 0)


def reopen(env: Env) -> tuple[LogDir, Log]:
    """Open the directory for writing again, as the next start does."""
    directory = LogDir.open(PATH, env=env, options=WRITABLE)
    return directory, directory.log(TOPIC, 0)


def reader_of(env: Env) -> LogView:
    """Open the partition for reading only."""
    return LogDir.open(PATH, env=env).reader(TOPIC, 0)


def new_records(times: Iterable[int | None], value: bytes = b"v") -> list[NewRecord]:
    """Return one record for each time, all with the key k."""
    return [NewRecord.of_log(key=b"k", value=value, timestamp=time) for time in times]


def put(log: Log, *times: int | None, value: bytes = b"v", codec: Codec = Codec.NONE) -> None:
    """Append one batch of records with these times."""
    log.append(new_records(times, value), codec=codec, batch_bytes=1 << 20)


def fill(log: Log, count: int, value: bytes = b"v" * 60) -> None:
    """Append `count` records, each in a separate batch."""
    for _ in range(count):
        log.append([NewRecord(key=b"k", value=b"%d" % log.log_end_offset + value)])


def use_leader_epoch(log: Log, epoch: int) -> None:
    """Use this epoch for the log's own appends from now on."""
    assert epoch >= log.leader_epochs.latest_epoch
    log._epochs.leader_epoch = epoch
    log._epochs.is_noted = False


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def bases(log: Log) -> list[int]:
    """Return the base offsets of the segments."""
    return [segment.base_offset for segment in log.segments]


def path_of(name: str) -> str:
    """Return the path of a file of the only partition."""
    return f"{PATH}/{TOPIC}-0/{name}"


def read(env: Env, name: str) -> bytes:
    file = env.files.open(path_of(name))
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write(env: Env, name: str, data: bytes) -> None:
    """Replace a file by a new one with this content, because the old one may be mapped."""
    if env.files.exists(path_of(name)):
        env.files.remove(path_of(name))
    file = env.files.open(path_of(name), create=True)
    file.pwrite(data, 0)
    file.sync()
    file.close()
    env.files.sync_dir(f"{PATH}/{TOPIC}-0")


def names(env: Env) -> list[str]:
    return [entry.name for entry in env.files.list_dir(f"{PATH}/{TOPIC}-0")]


def snapshot_of(env: Env, path: str = PATH) -> dict[str, bytes | None]:
    """Return every path below a directory with the file's content, None for a directory."""
    found: dict[str, bytes | None] = {}
    for entry in env.files.list_dir(path):
        child = f"{path}/{entry.name}"
        if entry.is_dir:
            found |= {child: None, **snapshot_of(env, child)}
            continue
        file = env.files.open(child)
        found[child] = file.pread(file.size(), 0)
        file.close()
    return found


def batch(times: Sequence[int], **fields: int | bool) -> bytearray:
    """Return a client's batch; `fields` are arguments of `build_batch`."""
    return build_batch(new_records(times), **fields)  # type: ignore[arg-type] # ints and bools


def transact(log: Log, producer_id: int, sequence: int = 0, count: int = 1) -> None:
    """Append one batch of a producer's transaction."""
    data = batch(
        [1] * count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    log.append_batches(data)


def end(log: Log, producer_id: int, *, commit: bool) -> None:
    """Append the marker that ends a producer's open transaction."""
    log.end_transaction(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commit=commit
    )


@dataclass
class CountingFile:
    """A file that counts the bytes read."""

    file: File
    count: Callable[[int], None]

    def pread(self, size: int, position: int) -> bytes:
        data = self.file.pread(size, position)
        self.count(len(data))
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


class WatchedFileSystem(LayeredFiles):
    """Records which files are opened, mapped and read, and can call a function before some calls.

    Attributes:
        before_open: Called with the path of a file before it is opened.
        before_change: Called before a file is renamed or a directory is synced: with "rename" and
            the new path, or with "sync_dir" and the directory.
    """

    def __init__(self, below: FileSystem) -> None:
        super().__init__(below)
        self.before_open: Callable[[str], None] | None = None
        self.before_change: Callable[[str, str], None] | None = None
        self.opened: list[str] = []
        self.mapped: list[str] = []
        self.read_bytes: dict[str, int] = {}

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if self.before_open is not None:
            self.before_open(path)
        self.opened.append(path)
        file = super().open(path, write=write, create=create)

        def count(size: int) -> None:
            self.read_bytes[path] = self.read_bytes.get(path, 0) + size

        return CountingFile(file, count)  # type: ignore[return-value] # the rest is passed through

    def map(self, path: str, size: int | None = None) -> memoryview:
        self.mapped.append(path)
        return super().map(path, size)

    def rename(self, source: str, target: str) -> None:
        if self.before_change is not None:
            self.before_change("rename", target)
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        if self.before_change is not None:
            self.before_change("sync_dir", path)
        super().sync_dir(path)


def watched(env: Env) -> tuple[Env, WatchedFileSystem]:
    """Return the Env with a watched file system."""
    files = WatchedFileSystem(env.files)
    return Env(files=files, clock=env.clock, random=env.random), files
