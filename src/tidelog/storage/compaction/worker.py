"""Workers that carry out a cleaning job, in this process or in a separate process.

`InProcess` maps keys, rewrites batches and writes `.cleaned` files. The result depends only on the
job and the files. `InProcess` needs no lock, renames nothing, and changes no files other than its
`.cleaned` files. If the cleaning fails, these files are removed, except after a failure of the disk
or of the process.

`CleanerProcess` sends each job as a line of JSON to a separate process, which replies with a line
of JSON. One thread calls `clean` and `rest`; any thread may call `stop`. The separate process
writes nothing except `.cleaned` files. The separate process exits as soon as its input ends,
even in the middle of a job. So no process writes `.cleaned` files after the broker has exited. This
module contains both the client and the code of the separate process.

Source: Kafka 4.x Cleaner.doClean; docs/compaction.md.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Final

from tidelog.env import Clock, Env, os_env
from tidelog.errors import (
    CleaningFailed,
    CorruptBatch,
    CorruptData,
    CorruptFile,
    CorruptIndex,
    CorruptRecord,
    MissingDependency,
    StorageFailure,
    TidelogError,
)
from tidelog.storage.compaction.job import CleaningJob, CleaningResult, Throttle
from tidelog.storage.open_files import as_storage_failure
from tidelog.types import MS_PER_SECOND

# Maximum duration of a single sleep, in seconds. Longer waits are split, so that a signal is
# handled at least this often.
_WAIT_MAX_S: Final = 0.5

_LOCATION: Final = ("reason", "at", "offset", "path", "position")
_FAILURE: Final = ("path", "operation", "reason")

_CORRUPT: Final[Mapping[str, Callable[..., CorruptData]]] = {
    kind.__name__: kind
    for kind in (CorruptData, CorruptBatch, CorruptRecord, CorruptIndex, CorruptFile)
}

_CLOSE_S: Final = 5.0
_NICENESS: Final = 10


class Pace:
    """Throttle that limits the bytes per second of one thread."""

    def __init__(
        self, bytes_per_second: float, clock: Clock, wait: Callable[[float], object]
    ) -> None:
        """Create a throttle.

        Args:
            bytes_per_second: Maximum rate, above 0; pass a very large value for no limit.
            clock: Clock whose monotonic time is used.
            wait: Sleeps for the given number of seconds.
        """
        self._rate = bytes_per_second
        self._clock = clock
        self._wait = wait
        self._free_ms = float(clock.monotonic_ms())

    def take(self, size_bytes: int) -> None:
        """Return as soon as `size_bytes` bytes may be read or written."""
        now_ms = float(self._clock.monotonic_ms())
        self._free_ms = max(self._free_ms, now_ms) + size_bytes / self._rate * MS_PER_SECOND
        left_s = (self._free_ms - now_ms) / MS_PER_SECOND
        while left_s > 0:
            self._wait(min(left_s, _WAIT_MAX_S))
            left_s -= _WAIT_MAX_S


class InProcess:
    """Worker that cleans in the calling process and thread."""

    def __init__(self, env: Env, pace: Pace | None = None) -> None:
        self._env = env
        self._pace = pace

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Carry out a job; see `cleaner.Worker`."""
        return clean(job, self._env, self._pace)


# -- client of the process -----------------------------------------------------------------------


class CleanerProcess:
    """Worker that cleans in a separate process, which is kept for later jobs."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False
        self._changing = threading.Lock()

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Carry out a job in the process; see `cleaner.Worker`.

        Raises:
            CleaningFailed: The process exited or was stopped, sent an invalid response, or reported
                an error other than CorruptData and StorageFailure.
            CorruptData, StorageFailure: The process reported this error.
        """
        process = self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        line = json.dumps({"job": job.to_json(), "bytes_per_second": self._rate})
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except (OSError, ValueError) as error:  # the pipe is broken, or was closed by `stop`
            raise self._ended(process) from error
        if not answer.endswith("\n"):
            raise self._ended(process)
        return _read_answer(answer)

    def _begin(self) -> "subprocess.Popen[str]":
        with self._changing:
            if self._is_stopped:
                raise CleaningFailed("the cleaner was stopped")
            if self._process is not None and self._process.poll() is not None:
                _end(self._process)
                self._process = None
            if self._process is None:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, a tidelog module
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            return self._process

    def _ended(self, process: "subprocess.Popen[str]") -> CleaningFailed:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLOSE_S)
        if self._is_stopped:
            return CleaningFailed("the cleaner was stopped")
        return CleaningFailed(f"the cleaner's process ended with status {process.returncode}")

    def rest(self) -> None:
        """End the idle process to free its memory; the next job starts a new process."""
        with self._changing:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def stop(self) -> None:
        """End the process and the job in progress; later jobs raise CleaningFailed.

        Any thread may call this method.
        """
        self._is_stopped = True
        with self._changing:
            process = self._process
        if process is not None:
            process.kill()
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """Close the process's pipes, so that the process exits; if it doesn't exit in time, kill it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError, ValueError):
                pipe.close()
    try:
        process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read_answer(line: str) -> CleaningResult:
    """Return the result that the process reported, or raise the error that it reported."""
    try:
        answer = json.loads(line)
        if "cleaned" in answer:
            return CleaningResult.from_json(answer["cleaned"])
        kind, text, fields = (
            answer["error"]["kind"],
            answer["error"]["text"],
            answer["error"]["fields"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CleaningFailed(
            f"the cleaner's process sent an invalid response: {line[:200]!r}"
        ) from error
    raise _error_of(str(kind), str(text), fields)


def _error_of(kind: str, text: str, fields: dict[str, object]) -> TidelogError:
    kind_of_error = _CORRUPT.get(kind)
    if kind_of_error is not None:
        location = {name: fields.get(name) for name in _LOCATION}
        return kind_of_error(str(location.pop("reason")), **location)
    if kind == StorageFailure.__name__:
        return StorageFailure(*(str(fields.get(name)) for name in _FAILURE))
    return CleaningFailed(f"{kind}: {text}")


# -- in the process -------------------------------------------------------------------------------


def _answer(line: str, env: Env) -> str:
    """Carry out the job on one line of input and return the line of the reply."""
    try:
        request = json.loads(line)
        job = CleaningJob.from_json(request["job"])
        pace = Pace(float(request["bytes_per_second"]), env.clock, threading.Event().wait)
        return json.dumps({"cleaned": InProcess(env, pace).clean(job).to_json()})
    except OSError as error:
        return _error_reply(as_storage_failure(error, str(error.filename or ""), "clean"))
    except Exception as error:  # noqa: BLE001 - any error is reported to the client
        return _error_reply(error)


def _error_reply(error: Exception) -> str:
    names: tuple[str, ...] = ()
    if isinstance(error, CorruptData):
        names = _LOCATION
    elif isinstance(error, StorageFailure):
        names = _FAILURE
    fields = {name: getattr(error, name) for name in names}
    answer = {"kind": type(error).__name__, "text": str(error), "fields": fields}
    return json.dumps({"error": answer})


def _read_lines(source: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    """Pass input lines on to the queue; at the end of the input, exit the process at once."""
    for line in source:
        lines.put(line)
    os._exit(0)


def main() -> None:
    """Reply to lines of input until the input ends."""
    with suppress(OSError):
        os.nice(_NICENESS)
    # Output that libraries print must not mix with the replies.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(sys.stdin, lines), daemon=True).start()
    env = os_env()
    while True:
        answers.write(f"{_answer(lines.get(), env)}\n")
        answers.flush()


# Mask that uses every bit of both halves of a hash.
WHOLE_HASH: Final = (-1, -1)


def clean(
    job: CleaningJob,
    env: Env,
    throttle: Throttle | None = None,
    *,
    hash_mask: tuple[int, int] = WHOLE_HASH,
) -> CleaningResult:
    """Write the `.cleaned` segments of a job, durably.

    After an error, the `.cleaned` files of the job are removed, as far as the disk allows it.

    Args:
        job: The job.
        env: Files. The clock and the randomness of this Env are not used.
        throttle: Delays reads and writes; an exception from it stops the cleaning.
        hash_mask: Masks of the used bits in the two halves of a key's hash. Tests force collisions
            with these masks.

    Returns:
        The result. If the map filled up, `mapped_to` is below the job's `map_to`, and another
        job has to clean the remaining offsets.

    Raises:
        CorruptData, UnsupportedCompression: A source is damaged, or a codec is undefined; the error
            has the file and, for damage, the position.
        OffsetOverflow: A group's offsets or bytes don't fit into one segment.
        CleaningFailed: A key is larger than the memory for keys.
        StorageFailure: The disk failed.
        MissingDependency: numpy or numba is not installed.
        Exception: Any error that the throttle raises.
    """
    try:
        from tidelog.storage.compaction.cleaning import CleaningRun
    except ImportError as error:
        raise MissingDependency(
            f"compaction needs numpy and numba: pip install 'tidelog[arrow]' ({error})"
        ) from error
    run = CleaningRun(job, env, throttle)
    try:
        return run.run(hash_mask)
    except BaseException as error:
        run.discard()
        if isinstance(error, OSError):
            raise as_storage_failure(error, job.directory, "clean") from error
        raise


if __name__ == "__main__":
    main()
