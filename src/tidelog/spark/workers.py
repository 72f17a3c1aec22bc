"""Python of Spark's workers: its packages, its compiled kernels, and prompt delivery of tasks.

A worker's process lives for one task or for many. Compiled kernels are kept on disk, so that one
process of a machine compiles and all others load. `prepare` chooses the folder if nobody else has
and the usual ones can't be written to, and lets one process of the machine compile while the others
wait. docs/deploy.md says how to bring packages and folder to a cluster.

`check_workers` runs a tiny job to see whether a session's workers have tidelog: Spark runs the
Python on each machine's PATH unless told otherwise, and of a wrong one says only that a module is
missing, or that versions differ.

Spark sends a task to a worker's Python over TCP as two small messages: the code, then its input.
Nagle's algorithm holds the second back until the first is acknowledged, and the worker's system
delays the acknowledgement by 40 ms, hoping to send it along with an answer. Reading 5 MB of log
takes as long, and the delay comes with every task. Code that carries a `PromptAck` ends the wait:
the code is unpickled between the two messages, and its `PromptAck` makes the system acknowledge at
once.

Source: RFC 896 and RFC 1122, 4.2.3.2; tcp(7), TCP_QUICKACK.
"""

import ctypes
import importlib.util
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.errors import MissingDependency, TidelogError
from tidelog.storage.kernel_cache import SOURCES, alone, choose_cache

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_NEEDED: Final = ("pyarrow", "numpy", "numba")


# Spark sets the first in the processes that it runs Python in, and reads the second where it makes
# the message of an error; the process ends with that message.
_RUNTIME: Final = ("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")


_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


Class = TypeVar("Class", bound=type)


def in_worker(read: "Callable[[], Iterator[pa.RecordBatch]]") -> "Iterator[pa.RecordBatch]":
    """What `read` yields, in a process that is fit for it.

    Raises:
        MissingDependency: A package is missing in this Python; names both, and what to do.
    """
    make_ready()
    with worker_errors():
        yield from read()


def make_ready(*, to_write: bool = False) -> None:
    """Check this process's packages and load its kernels; does nothing the second time.

    Args:
        to_write: For a task that encodes records; else for one that decodes them.

    Raises:
        MissingDependency: As `in_worker`.
    """
    check_packages()
    prepare(to_write=to_write)


@contextmanager
def worker_errors() -> Iterator[None]:
    """MissingDependency for what can't be imported within, with the Python that lacks it."""
    with sentence_first():
        try:
            yield
        except ModuleNotFoundError as error:
            raise missing(error.name or str(error)) from error


@contextmanager
def sentence_first() -> Iterator[None]:
    """Let Spark's message of an error of ours begin with its sentence, without our traceback.

    Errors of other types, which may be faults of the code, keep theirs.
    """
    try:
        yield
    except TidelogError:
        name, value = _RUNTIME
        if os.environ.get(name) == value:
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def sentences_first(kind: Class) -> Class:
    """Class decorator that applies `sentence_first` to the methods that Spark calls."""
    for name, member in list(vars(kind).items()):
        if isfunction(member) and not name.startswith("_"):
            setattr(kind, name, wraps(member)(sentence_first()(member)))
    return kind


def missing(name: str) -> MissingDependency:
    """The error for a package that this Python lacks."""
    return MissingDependency(
        f"the worker's Python, {sys.executable} on {platform.node()}, has no {name}:"
        " set spark.pyspark.python (or PYSPARK_PYTHON) to one with 'tidelog[spark]' installed, or"
        " ship one by --archives; docs/deploy.md"
    )


@cache
def check_packages() -> None:
    """Raise MissingDependency where a package is not installed; nothing is imported for it."""
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise missing(name)


@cache
def prepare(*, to_write: bool = False) -> None:
    """Make this process's kernels ready, once: loaded where they are on disk, else compiled.

    Only one process of those that share the folder compiles; the others wait, and load.

    Args:
        to_write: Those that encode, else those that decode.
    """
    _warm("write" if to_write else "read")


@cache
def prepare_digests() -> None:
    """Make the kernels ready, once, that reduce records to rows by key; as `prepare`."""
    _warm("digest")


def _warm(purpose: str) -> None:
    folder = choose_cache(SOURCES)
    if folder is None or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    with alone(folder, purpose) as is_first:
        if is_first:
            from tidelog.spark.warmth import RUNS  # numpy and all kernels

            RUNS[purpose]()


_PROBED: Final = "path string, version string, tidelog string"


_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH.*|Python in worker has different version.*")


_HINT: Final = (
    "set spark.pyspark.python (or PYSPARK_PYTHON) to one with 'tidelog[spark]' installed before"
    " the session starts; docs/deploy.md"
)


def check_workers(spark: "SparkSession") -> None:
    """Run one small task; it also starts a worker, which later queries use.

    Raises:
        MissingDependency: The worker's Python has no tidelog, or another version of it, or is of
            another version than the driver's.
    """
    from pyspark.errors import PySparkException

    from tidelog import __version__

    try:
        (row,) = spark.range(1, numPartitions=1).mapInArrow(_probe(), _PROBED).collect()
    except PySparkException as error:
        match = _MISMATCH.search(str(error))
        if match is None:
            raise
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingDependency(
            f"Spark's workers run another Python than this one ({here}): {match[0]}; {_HINT}"
        ) from error
    if row.tidelog != __version__:
        what = f"tidelog {row.tidelog}, not {__version__}" if row.tidelog else "no tidelog"
        raise MissingDependency(
            f"Spark's workers run {row.path} (Python {row.version}), which has {what}: {_HINT}"
        )


def _probe() -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """What the worker runs. Made in here, so that it is sent as code: it may lack this module."""

    def probe(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import platform
        import sys

        import pyarrow as pa

        try:
            from tidelog import __version__ as release
        except ImportError:
            release = ""
        for _ in batches:
            columns = [[sys.executable], [platform.python_version()], [release]]
            names = ["path", "version", "tidelog"]
            yield pa.RecordBatch.from_arrays([pa.array(one) for one in columns], names)

    return probe


_DESCRIPTORS: Final = "/proc/self/fd"


# A worker has a handful, those of its task among the first.
_DESCRIPTORS_MAX: Final = 64


class PromptAck:
    """Acknowledges what has arrived when it is unpickled; does nothing else."""

    def __reduce__(self) -> "tuple[Callable[[], PromptAck], tuple[()]]":
        return arrived, ()


def arrived() -> PromptAck:
    """A `PromptAck` in the process that it was sent to."""
    acknowledge_now()
    return PromptAck()


def acknowledge_now() -> int:
    """Send the acknowledgements that this process's TCP connections put off.

    Returns:
        For how many connections the system was asked; 0 where it knows no such request.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return 0
    return sum(_ask(number, option) for number in _sockets())


def _sockets() -> list[int]:
    """Descriptors of this process's sockets; none where the system does not say."""
    descriptors = []
    with suppress(OSError):
        paths = sorted(Path(_DESCRIPTORS).iterdir(), key=lambda path: int(path.name))
        for path in paths[:_DESCRIPTORS_MAX]:
            with suppress(OSError):  # the one that the listing itself had open is gone
                if str(path.readlink()).startswith("socket:"):
                    descriptors.append(int(path.name))
    return descriptors


def _ask(descriptor: int, option: int) -> bool:
    """Ask for one socket; whether it is a TCP connection.

    By the system's own call: a Python socket over a descriptor sets the process's default timeout,
    if there is one, and with it makes the connection non-blocking for its owner, too.
    """
    on = ctypes.c_int(1)
    call = ctypes.CDLL(None).setsockopt
    failed = call(descriptor, socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on))
    return not failed
