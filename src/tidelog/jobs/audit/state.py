"""What an audit has read already: runs of records reduced to files of rows, and the note of them.

Parts: what earlier audits have read.

A run is a range of offsets of one partition of one side, reduced to rows by key. It is as good as
the records themselves as long as the log still has them: the note keeps marks of the bytes that it
was made of. `audit.json` in the folder of the state is replaced atomically when an audit ends; rows
that it does not name are of an audit that did not end, and are removed.

Rows of keys as files, in a folder that the driver and all workers reach.

A file holds rows in the order of their keys' hashes, cut into chunks by the upper bits of the hash,
each with a checksum, so that a task reads the chunks that it compares and no others. Little-endian,
as the machines are that write and read it; derived data: what is damaged is made anew from the log.

| part | content |
|---|---|
| rows | int64[count, fields], the hash first |
| chunks | for each of 4,096 chunks uint32 rows, uint32 CRC-32C of these rows |
| trailer | uint64 count, uint32 fields, uint32 CRC-32C of chunks, 4 bytes magic, uint32 version |
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import Env
from tidelog.errors import CorruptFile, InvalidRequest, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage.files import read_exactly, read_file, write_atomically, write_fully

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs


NOTE: Final = "audit.json"


ROWS_SUFFIX: Final = ".rows"


# Version 1 had another hash of values: what it knows is read again.
STATE_VERSION: Final = 2


_OLD_VERSIONS: Final = (1,)


# The seeds as hexadecimal digits: five words of 64 bits.
SEED_BYTES: Final = 40


# About a million runs, each with a span for every hour of a year.
_NOTE_LIMIT_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Bytes of one segment that a run was made of.

    Attributes:
        base_offset: The segment's.
        start: First byte.
        end: Byte behind the last one.
        sum: CRC-32C of the last bytes before the end (`audit_marks.TAIL_BYTES` at most).
        size: Size of a finished segment's log file, -1 where it was not finished.
        zones: CRC-32C of a finished segment by its zone map, -1 where there was none.
    """

    base_offset: int
    start: int
    end: int
    sum: int
    size: int = -1
    zones: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A range of offsets, reduced.

    Attributes:
        side: `a` or `b`.
        topic: Its name on that side.
        partition: Its number.
        start: First offset, inclusive.
        end: Offset behind the last one.
        topic_id: 32 hexadecimal digits, "" where there is none.
        files: Names of its files of rows, in the order of offsets.
        rows: How many rows they have.
        records: How many records there were.
        unkeyed: Those without a key.
        unkeyed_sum: Sum of their digests.
        untimed: Records without a create time.
        span_ms: Length of a span of time.
        spans: Number of the span, records, sum of their digests.
        log_bytes: Bytes of log that were read for it.
        marks: What it was made of; none of brokers.
        lost: Offsets that were gone when they were to be read, a line each.
    """

    side: str
    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    files: tuple[str, ...] = ()
    rows: int = 0
    records: int = 0
    unkeyed: int = 0
    unkeyed_sum: int = 0
    untimed: int = 0
    span_ms: int = 0
    spans: tuple[tuple[int, int, int], ...] = ()
    log_bytes: int = 0
    marks: tuple[Mark, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def name(self) -> tuple[str, str, int]:
        """Side, topic and partition."""
        return self.side, self.topic, self.partition


def encode_run(run: Run) -> str:
    """The run as JSON."""
    return json.dumps(asdict(run), separators=(",", ":"))


def decode_run(fields: Mapping[str, object]) -> Run:
    """What `encode_run` made, out of its object; raises TypeError, ValueError, KeyError."""
    known = dict(fields)
    lists = {name: known.pop(name) for name in ("files", "spans", "marks", "lost")}
    run = Run(**known)  # type: ignore[arg-type] # JSON; a wrong name is a TypeError
    return replace(
        run,
        files=tuple(map(str, _list(lists["files"]))),
        spans=tuple((int(n), int(c), int(s)) for n, c, s in _list(lists["spans"])),
        marks=tuple(Mark(**mark) for mark in _list(lists["marks"])),
        lost=tuple(map(str, _list(lists["lost"]))),
    )


def _list(value: object) -> "list":  # type: ignore[type-arg] # JSON, checked by what takes it
    if not isinstance(value, list):
        raise TypeError(f"a list expected, not {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a folder knows.

    Attributes:
        seed: Of the hashes, `SEED_BYTES` bytes; another one for each state.
        question: What the runs are an answer to; another question can't use them.
        runs: All of them.
    """

    seed: bytes
    question: Mapping[str, object]
    runs: tuple[Run, ...] = field(default=())


def new_state(env: Env, question: Mapping[str, object]) -> State:
    """A state that knows nothing yet, with a seed of its own."""
    return State(seed=env.random.randbytes(SEED_BYTES), question=question)


def read_state(env: Env, folder: str, question: Mapping[str, object]) -> State:
    """The state in a folder; a new one where there is none, or its note is damaged or too old.

    Raises:
        InvalidRequest: It is the state of another question.
        UnsupportedVersion: A later release wrote it.
    """
    path = f"{folder}/{NOTE}"
    try:
        data = read_file(env.files, path, limit=_NOTE_LIMIT_BYTES)
        found = _decode_state(data)
    except (FileNotFoundError, CorruptFile):
        return new_state(env, question)
    for name, value in question.items():
        if found.question.get(name) != value:
            raise InvalidRequest(
                f"{folder}: the state of an audit with {name}={found.question.get(name)!r}, not"
                f" {value!r}; give each audit a folder of its own"
            )
    return found


def _decode_state(data: bytes) -> State:
    try:
        content = json.loads(data)
        version = content["version"]
        if version in _OLD_VERSIONS:
            raise CorruptFile(f"a state of version {version}")
        if version != STATE_VERSION:
            raise UnsupportedVersion(
                f"an audit's state of version {version}, {STATE_VERSION} is known"
            )
        seed = bytes.fromhex(content["seed"])
        if len(seed) != SEED_BYTES:
            raise CorruptFile(f"a seed of {len(seed)} bytes, {SEED_BYTES} expected")
        runs = tuple(map(decode_run, content["runs"]))
        return State(seed=seed, question=dict(content["question"]), runs=runs)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"not an audit's state: {error}") from error


def write_state(env: Env, folder: str, state: State) -> None:
    """Keep a state, and remove the rows that it does not name."""
    content = {
        "version": STATE_VERSION,
        "seed": state.seed.hex(),
        "question": dict(state.question),
        "runs": [asdict(run) for run in state.runs],
    }
    data = json.dumps(content, separators=(",", ":")).encode()
    write_atomically(env.files, f"{folder}/{NOTE}", data)
    remove_rows(env, folder, keep=(name for run in state.runs for name in run.files))


def remove_rows(env: Env, folder: str, keep: Iterable[str] = ()) -> None:
    """Remove files of rows, but those to be kept."""
    kept = set(keep)
    for entry in env.files.list_dir(folder):
        if entry.name.endswith(ROWS_SUFFIX) and entry.name not in kept:
            env.files.remove(f"{folder}/{entry.name}")


CHUNK_BITS: Final = 12


CHUNKS: Final = 1 << CHUNK_BITS


FILE_VERSION: Final = 1


_MAGIC: Final = b"TLKR"


_TRAILER: Final = struct.Struct("<QII4sI")


_CHUNK: Final = np.dtype([("rows", "<u4"), ("crc", "<u4")])


_FOOTER_SIZE: Final = CHUNKS * _CHUNK.itemsize + _TRAILER.size


# What one file holds at most, to bound what a reader takes for true.
_ROWS_LIMIT: Final = 1 << 32


_FIELDS_LIMIT: Final = 64


def write_rows(env: Env, path: str, rows: "Longs") -> None:
    """Write rows to a new file, in place of one that is there.

    Args:
        env: Files.
        path: Of the file.
        rows: int64[n, fields], by ascending hash (the first field, as an unsigned number).
    """
    places = rows[:, 0].copy().view(np.uint64) >> np.uint64(64 - CHUNK_BITS)
    counts = np.bincount(places.astype(np.int64), minlength=CHUNKS)
    data = np.ascontiguousarray(rows, "<i8").reshape(-1).view(np.uint8).data
    size = rows.shape[1] * 8
    ends = (np.cumsum(counts) * size).tolist()
    chunks = np.zeros(CHUNKS, _CHUNK)
    chunks["rows"] = counts
    chunks["crc"] = [crc32c(data[s:e]) for s, e in zip([0, *ends[:-1]], ends, strict=True)]
    footer = chunks.tobytes()
    trailer = _TRAILER.pack(len(rows), rows.shape[1], crc32c(footer), _MAGIC, FILE_VERSION)
    file = env.files.open(path, write=True, create=True)
    try:
        file.truncate(0)
        write_fully(file, data, 0)
        write_fully(file, footer + trailer, len(data))
    finally:
        file.close()


def read_rows(env: Env, path: str, start: int = 0, end: int = CHUNKS) -> "Longs":
    """The rows of chunks [start, end).

    Raises:
        CorruptFile: The file is damaged, cut, or something else.
        UnsupportedVersion: A later release wrote it.
        OSError: It can't be read.
    """
    file = env.files.open(path)
    try:
        chunks, fields = _read_footer(file.size(), file.pread, path)
        before, wanted = int(chunks["rows"][:start].sum()), chunks[start:end]
        counts = wanted["rows"].astype(np.int64)
        data = read_exactly(file, int(counts.sum()) * fields * 8, before * fields * 8)
    finally:
        file.close()
    _check(memoryview(data), wanted, fields * 8, path, before)
    return np.frombuffer(data, "<i8").reshape(-1, fields).astype(np.int64)


def _read_footer(
    size: int, pread: Callable[[int, int], bytes], path: str
) -> "tuple[npt.NDArray[np.void], int]":
    """The table of chunks, and how many fields a row has."""
    if size < _FOOTER_SIZE:
        raise CorruptFile(f"{size} bytes, at least {_FOOTER_SIZE} expected", path=path)
    footer = pread(_FOOTER_SIZE, size - _FOOTER_SIZE)
    count, fields, crc, magic, version = _TRAILER.unpack(footer[-_TRAILER.size :])
    if magic != _MAGIC:
        raise CorruptFile(f"magic {magic!r} at the end, {_MAGIC!r} expected", path=path)
    if version != FILE_VERSION:
        raise UnsupportedVersion(f"{path}: rows of version {version}, {FILE_VERSION} is known")
    table = footer[: -_TRAILER.size]
    if crc32c(table) != crc:
        raise CorruptFile("the table of chunks does not match its checksum", path=path)
    chunks = np.frombuffer(table, _CHUNK)
    is_sound = count <= _ROWS_LIMIT and 0 < fields <= _FIELDS_LIMIT
    if not is_sound or count * fields * 8 != size - _FOOTER_SIZE:
        raise CorruptFile(f"{size} bytes do not hold {count} rows of {fields} words", path=path)
    if int(chunks["rows"].sum(dtype=np.int64)) != count:
        raise CorruptFile(f"the chunks do not come to {count} rows", path=path)
    return chunks, fields


def _check(
    data: memoryview, chunks: "npt.NDArray[np.void]", row_size: int, path: str, before: int
) -> None:
    at = 0
    for rows, crc in chunks.tolist():
        end = at + rows * row_size
        if crc32c(data[at:end]) != crc:
            position = before * row_size + at
            raise CorruptFile("rows that do not match their checksum", path=path, position=position)
        at = end
