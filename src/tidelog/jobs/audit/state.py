"""State of an audit: runs of records that were already reduced to files of rows.

A run is a range of offsets in one partition of A or B, reduced to rows by key. A later audit can
use a run instead of reading the records, as long as the log still has the bytes that the run was
computed from. Marks in the state identify these bytes. At the end of an audit, `audit.json` in the
state's folder is replaced atomically. Then all files of rows that the new `audit.json` does not
name are removed. These are files of unfinished audits, of runs that are no longer valid, and of
steps whose rows are not reused.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field, replace
from typing import (
    Final,
)

from tidelog.env import Env
from tidelog.errors import CorruptFile, InvalidRequest
from tidelog.jobs.progress_file import Json, ProgressFile
from tidelog.lazy_dataclass import dataclass

NOTE: Final = "audit.json"
ROWS_SUFFIX: Final = ".rows"

# Number of bytes in the seed. The seed consists of five 64-bit words. `audit.json` contains the
# seed as hexadecimal digits.
SEED_BYTES: Final = 40

PROGRESS_FILE: Final = ProgressFile(
    job="an audit",
    version=2,  # version 1 hashed values in another way, so runs of version 1 are not reused
    is_derived=True,
    is_compact=True,
    # this size is enough for 10,000 runs that each have a time span for every hour of a year
    limit_bytes=4 << 30,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Position, size and checksums of the bytes in one segment from which a run was computed.

    Attributes:
        base_offset: Base offset of the segment.
        start: Position of the first byte.
        end: Position after the last byte.
        sum: CRC-32C of the last bytes before `end` (at most `plan.TAIL_BYTES`).
        size: Size in bytes of a finished segment's log file; -1 if the segment was not finished.
        zones: CRC-32C of all bytes of a finished segment, as its zone map stores it; -1 if the
            segment was not finished or had no zone map.
    """

    base_offset: int
    start: int
    end: int
    sum: int
    size: int = -1
    zones: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Range of offsets in one partition, and the names of the files that have its rows by key.

    Attributes:
        side: `a` or `b`.
        topic: The topic's name on that side.
        partition: Number of the partition.
        start: First offset, inclusive.
        end: End offset, exclusive.
        topic_id: The topic's id as 32 hexadecimal digits, "" if it has none.
        files: Names of the run's files of rows, ordered by offset.
        rows: Number of rows in these files.
        records: Number of records in the range.
        unkeyed: Number of records without a key.
        unkeyed_sum: Sum of the digests of records without a key, modulo 2^64.
        untimed: Number of records without a create time.
        span_ms: Length of a time span in ms.
        spans: For each time span: its start divided by `span_ms`, the count of its records, and the
            sum of these records' digests.
        log_bytes: Number of bytes of log that were read for the run.
        marks: Identification of the bytes that the run was computed from; empty for brokers.
        lost: One line for each range of offsets that no longer existed when the range was read.
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
        """Side, topic and partition of the run."""
        return self.side, self.topic, self.partition


def encode_run(run: Run) -> str:
    """Return the run as JSON."""
    return json.dumps(asdict(run), separators=(",", ":"))


def decode_run(fields: Mapping[str, object]) -> Run:
    """Convert parsed JSON to a run; raises TypeError, ValueError or KeyError if it is invalid."""
    plain = dict(fields)
    lists = {name: plain.pop(name) for name in ("files", "spans", "marks", "lost")}
    make: Callable[..., Run] = Run  # a wrong name is a TypeError
    run = make(**plain)
    return replace(
        run,
        files=tuple(map(str, _list(lists["files"]))),
        spans=tuple((int(n), int(c), int(s)) for n, c, s in _list(lists["spans"])),
        marks=tuple(Mark(**mark) for mark in _list(lists["marks"])),
        lost=tuple(map(str, _list(lists["lost"]))),
    )


def _list(value: object) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of an audit, stored in a folder.

    Attributes:
        seed: Seed of the hashes, `SEED_BYTES` long; different for each state.
        question: Values that must be the same in all audits that use this state; see
            `AuditPlan.requested`.
        runs: Runs of earlier audits and of this audit, to be reused by later audits.
    """

    seed: bytes
    question: Mapping[str, object]
    runs: tuple[Run, ...] = field(default=())


def new_state(env: Env, question: Mapping[str, object]) -> State:
    """Return a state without runs, with a new random seed."""
    return State(seed=env.random.randbytes(SEED_BYTES), question=question)


def read_state(env: Env, folder: str, question: Mapping[str, object]) -> State:
    """Read the state in a folder; return a new state if the file is missing, damaged or too old.

    Raises:
        InvalidRequest: The state belongs to an audit with another `question`.
        UnsupportedVersion: A later release wrote the state.
    """
    try:
        state = PROGRESS_FILE.read(env.files, f"{folder}/{NOTE}", _state)
    except CorruptFile:
        state = None
    if state is None:
        return new_state(env, question)
    for name, value in question.items():
        if state.question.get(name) != value:
            raise InvalidRequest(
                f"{folder} has the state of an audit with {name}={state.question.get(name)!r}, not"
                f" {value!r}; give each audit a folder of its own"
            )
    return state


def _state(fields: Mapping[str, Json]) -> State:
    seed = bytes.fromhex(fields["seed"])
    if len(seed) != SEED_BYTES:
        raise ValueError(f"the seed has {len(seed)} bytes, expected {SEED_BYTES}")
    runs = tuple(map(decode_run, fields["runs"]))
    return State(seed=seed, question=dict(fields["question"]), runs=runs)


def write_state(env: Env, folder: str, state: State) -> None:
    """Write a state, and remove the files of rows that it does not name."""
    fields = {
        "seed": state.seed.hex(),
        "question": dict(state.question),
        "runs": [asdict(run) for run in state.runs],
    }
    PROGRESS_FILE.write(env.files, f"{folder}/{NOTE}", fields)
    remove_rows(env, folder, keep=(name for run in state.runs for name in run.files))


def remove_rows(env: Env, folder: str, keep: Iterable[str] = ()) -> None:
    """Remove all files of rows except `keep`."""
    retained_names = set(keep)
    for entry in env.files.list_dir(folder):
        if entry.name.endswith(ROWS_SUFFIX) and entry.name not in retained_names:
            env.files.remove(f"{folder}/{entry.name}")
