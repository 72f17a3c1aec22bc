"""State of an audit: runs of records that are reduced to files of rows already.

A run is a range of offsets of one partition of one side, reduced to rows by key. It is as good as
the records themselves as long as the log still has them: the note keeps marks of the bytes that it
was made of. `audit.json` in the folder of the state is replaced atomically when an audit ends; rows
that it does not name are of an audit that did not end, and are removed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from tidelog.env import Env
from tidelog.errors import CorruptFile, InvalidRequest, UnsupportedVersion
from tidelog.storage.files import read_file, write_atomically

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
        sum: CRC-32C of the last bytes before the end (`plan.TAIL_BYTES` at most).
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
    plain = dict(fields)
    lists = {name: plain.pop(name) for name in ("files", "spans", "marks", "lost")}
    run = Run(**plain)  # type: ignore[arg-type] # JSON; a wrong name is a TypeError
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
        state = _decode_state(data)
    except (FileNotFoundError, CorruptFile):
        return new_state(env, question)
    for name, value in question.items():
        if state.question.get(name) != value:
            raise InvalidRequest(
                f"{folder}: the state of an audit with {name}={state.question.get(name)!r}, not"
                f" {value!r}; give each audit a folder of its own"
            )
    return state


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
    kept_names = set(keep)
    for entry in env.files.list_dir(folder):
        if entry.name.endswith(ROWS_SUFFIX) and entry.name not in kept_names:
            env.files.remove(f"{folder}/{entry.name}")
