"""How far a job has come, in a file: what a restart needs to go on exactly where it stopped.

The file says what was asked, which offsets are left, and which chunk is being written. A chunk is
noted before it is written and crossed out afterwards. A restart writes the noted chunk again, the
same offsets under the same number, and a target that knows the number takes it once. It is
replaced atomically and durably, and locked while a job has it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from tidelog.env import Env
from tidelog.errors import CorruptFile, DirectoryLocked, InvalidRequest, UnsupportedVersion
from tidelog.spark.jobs.chunks import Spans, as_json, from_json
from tidelog.storage import files

JOURNAL_VERSION: Final = 1
_COUNTS: Final = ("number", "records", "size_bytes")

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a job.

    Attributes:
        job_id: Its name with the target, 32 hexadecimal digits.
        question: What was asked, by option; a restart must ask the same.
        times: Start and end in ms of what was asked, None where open: `-6h` is fixed by the first
            start.
        keeps_partitions: Whether records keep the numbers of their partitions, as the first start
            decided.
        planned: All offsets, as the first start found them.
        left: Offsets not yet written, without those of `chunk`.
        chunk: Offsets that are being written; none where nothing is.
        number: The chunk's number, from 0.
        records: Records written, those of `chunk` not included.
        size_bytes: Their keys and values.
    """

    job_id: str
    question: Mapping[str, str]
    times: tuple[int | None, int | None] = (None, None)
    keeps_partitions: bool = False
    planned: Spans = ()
    left: Spans = ()
    chunk: Spans = ()
    number: int = 0
    records: int = 0
    size_bytes: int = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self.left and not self.chunk

    def ensure_asked(self, question: Mapping[str, str]) -> None:
        """Raise InvalidRequest where another question was asked."""
        for name in sorted(self.question.keys() | question.keys()):
            before, now = self.question.get(name, ""), question.get(name, "")
            if before != now:
                raise InvalidRequest(
                    f"the progress is that of {name} {before or 'left out'!r}, not"
                    f" {now or 'left out'!r}; give the same, or another file for progress"
                )


def encode(progress: Progress) -> bytes:
    """The file's text."""
    content = {
        "version": JOURNAL_VERSION,
        "job_id": progress.job_id,
        "question": dict(progress.question),
        "times": list(progress.times),
        "keeps_partitions": progress.keeps_partitions,
        "planned": as_json(progress.planned),
        "left": as_json(progress.left),
        "chunk": as_json(progress.chunk),
        **{name: getattr(progress, name) for name in _COUNTS},
    }
    return f"{json.dumps(content)}\n".encode()


def decode(data: bytes) -> Progress:
    """The progress in a file's text.

    Raises:
        CorruptFile: It is not what `encode` writes.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        if version != JOURNAL_VERSION:
            raise UnsupportedVersion(f"progress of version {version}, {JOURNAL_VERSION} is known")
        return Progress(
            job_id=_checked(content["job_id"], str),
            question={_checked(k, str): _checked(v, str) for k, v in content["question"].items()},
            times=_times(content["times"]),
            keeps_partitions=_checked(content["keeps_partitions"], bool),
            planned=from_json(content["planned"]),
            left=from_json(content["left"]),
            chunk=from_json(content["chunk"]),
            **{name: _checked(content[name], int) for name in _COUNTS},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"no record of a job's progress: {error}") from error


def _checked(value: object, kind: type[_Kind]) -> _Kind:
    # A bool is an int to Python, not to us.
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:80]!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def _times(value: object) -> tuple[int | None, int | None]:
    match value:
        case [None | int() as start, None | int() as end]:
            return start, end
    raise ValueError(f"times are {str(value)[:80]!r}")


@dataclass(slots=True)
class Journal:
    """The progress of one job, in a file or, without a path, in memory alone.

    Attributes:
        progress: What the file says; None where there is none yet.
    """

    env: Env
    path: str | None = None
    progress: Progress | None = field(default=None)

    @classmethod
    @contextmanager
    def open(cls, env: Env, path: str | None) -> Iterator[Self]:
        """The journal at a path until the block ends; nobody else may have it meanwhile.

        Args:
            env: Files.
            path: The file; None where nothing is to be remembered.

        Raises:
            DirectoryLocked: Another process has it.
            CorruptFile, UnsupportedVersion: It can't be read.
        """
        if path is None:
            yield cls(env)
            return
        try:
            lock = env.files.lock(f"{path}.lock")
        except BlockingIOError as error:
            raise DirectoryLocked(f"{path}: another job runs with this progress") from error
        try:
            yield cls(env, path, _read(env, path))
        finally:
            lock.close()

    def save(self, progress: Progress) -> None:
        """Replace what is known, durably; raises OSError."""
        self.progress = progress
        if self.path is not None:
            files.write_atomically(self.env.files, self.path, encode(progress))


def _read(env: Env, path: str) -> Progress | None:
    try:
        return decode(files.read_file(env.files, path))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise error.located(path) from error
