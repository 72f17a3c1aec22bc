"""Setup of the Python of Spark's workers: packages, compiled kernels, and fast start of tasks.

A worker process runs one or more tasks. Compiled kernels are stored on disk, so that one process on
a machine compiles them and all other processes load them. With `prepare`, one process of the
machine compiles while all other processes wait. `prepare` also chooses the folder for compiled
kernels if the environment names no folder and the usual folders are not writable. docs/deploy.md
describes how to install packages and set up the folder on a cluster.

`check_workers` runs a small job to check that a session's workers have tidelog. By default, Spark
runs the Python on each machine's PATH. Spark's own errors report only a missing module or different
versions, not what to do.

Spark sends a task to a worker's Python over TCP as two small messages: the code, then its input.
Nagle's algorithm delays the second message until the first is acknowledged, and the worker's system
delays the acknowledgement by 40 ms, to send it along with a response. In 40 ms, a task could read 5
MB of log. Code that contains a `PromptAck` avoids the delay: the worker unpickles the code before
the second message arrives, and unpickling `PromptAck` makes the system acknowledge at once.

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

# Environment variables of Spark. `_RUNTIME` has the name and value of a variable that Spark sets in
# its Python processes. `_HIDE_TRACEBACK` is a variable that Spark reads when it formats an error in
# one of its Python processes.
_RUNTIME: Final = ("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
Class = TypeVar("Class", bound=type)


def in_worker(read: "Callable[[], Iterator[pa.RecordBatch]]") -> "Iterator[pa.RecordBatch]":
    """Yield the batches of `read`, after a check of packages and the preparation of kernels.

    Raises:
        MissingDependency: This Python lacks a package. The message names the Python and the
            package, and says what to do.
    """
    make_ready()
    with worker_errors():
        yield from read()


def make_ready(*, to_write: bool = False) -> None:
    """Check this process's packages and prepare its kernels, at the first call for each purpose.

    Args:
        to_write: True for the kernels that encode records, False for the kernels that decode
            records.

    Raises:
        MissingDependency: This Python lacks a package. The message names the Python and the
            package, and says what to do.
    """
    check_packages()
    prepare(to_write=to_write)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Turn a ModuleNotFoundError in the block into MissingDependency, which names the Python."""
    with hide_traceback():
        try:
            yield
        except ModuleNotFoundError as error:
            raise missing(error.name or str(error)) from error


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Omit the traceback of a TidelogError, so that Spark's message begins with the error's text.

    Other errors may be bugs, so Spark's message keeps their traceback.
    """
    try:
        yield
    except TidelogError:
        name, value = _RUNTIME
        if os.environ.get(name) == value:
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def hides_tracebacks(kind: Class) -> Class:
    """Class decorator that applies `hide_traceback` to all public methods, which Spark calls."""
    for name, member in list(vars(kind).items()):
        if isfunction(member) and not name.startswith("_"):
            setattr(kind, name, wraps(member)(hide_traceback()(member)))
    return kind


def missing(name: str) -> MissingDependency:
    """Return the error for a package that this Python lacks."""
    return MissingDependency(
        f"the worker's Python, {sys.executable} on {platform.node()}, lacks {name}:"
        " set spark.pyspark.python (or PYSPARK_PYTHON) to a Python that has 'tidelog[spark]',"
        " or send such a Python to the workers with --archives; see docs/deploy.md"
    )


@cache
def check_packages() -> None:
    """Raise MissingDependency if a needed package is not installed; imports no package."""
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise missing(name)


@cache
def prepare(*, to_write: bool = False) -> None:
    """Compile the kernels for reading or writing at the first call, if they are not on disk yet.

    Only one of the processes that share the folder compiles; all other processes wait, and load
    each kernel at its first use. If there is no folder that only this user can write to, this
    function does nothing, and each process compiles each kernel at its first use.

    Args:
        to_write: True for the kernels that encode records, False for the kernels that decode
            records.
    """
    _warm("write" if to_write else "read")


@cache
def prepare_digests() -> None:
    """Prepare the kernels that reduce records to one row per key, in the same way as `prepare`."""
    _warm("digest")


def _warm(purpose: str) -> None:
    folder = choose_cache(SOURCES)
    if folder is None or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    with alone(folder, purpose) as is_first:
        if is_first:
            from tidelog.spark.kernel_warmup import RUNS  # imports numpy and all kernels

            RUNS[purpose]()


_PROBE_SCHEMA: Final = "path string, version string, tidelog string"
_MISMATCH: Final = re.compile(r"PYTHON_VERSION_MISMATCH.*|Python in worker has different version.*")

_HINT: Final = (
    "before the session starts, set spark.pyspark.python (or PYSPARK_PYTHON) to a Python that has"
    " 'tidelog[spark]'; see docs/deploy.md"
)


def check_workers(spark: "SparkSession") -> None:
    """Run one small task to check the workers' Python. Later queries reuse the task's worker.

    Raises:
        MissingDependency: The worker's Python lacks tidelog, or the versions of tidelog or Python
            on the worker and the driver differ.
    """
    from pyspark.errors import PySparkException

    from tidelog import __version__

    try:
        (row,) = spark.range(1, numPartitions=1).mapInArrow(_probe(), _PROBE_SCHEMA).collect()
    except PySparkException as error:
        match = _MISMATCH.search(str(error))
        if match is None:
            raise
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingDependency(
            f"the Python of Spark's workers differs from this Python ({here}): {match[0]}; {_HINT}"
        ) from error
    if row.tidelog != __version__:
        what = f"tidelog {row.tidelog}, not {__version__}" if row.tidelog else "no tidelog"
        raise MissingDependency(
            f"Spark's workers run {row.path} (Python {row.version}), which has {what}: {_HINT}"
        )


def _probe() -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """Return the function that runs in the worker.

    The function is a closure, so that Spark pickles its code instead of an import of this module,
    which the worker may lack.
    """

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

# Maximum number of descriptors to check. A worker has few descriptors, and the connection of its
# task is among the first descriptors.
_DESCRIPTORS_MAX: Final = 64


class PromptAck:
    """Object that, when it is unpickled, makes the system acknowledge received data."""

    def __reduce__(self) -> "tuple[Callable[[], PromptAck], tuple[()]]":
        return acknowledge_receipt, ()


def acknowledge_receipt() -> PromptAck:
    """Acknowledge the received data. Called when a `PromptAck` is unpickled."""
    acknowledge_now()
    return PromptAck()


def acknowledge_now() -> int:
    """Send the delayed acknowledgements of this process's TCP connections.

    Returns:
        Number of TCP connections found; 0 if the system doesn't have TCP_QUICKACK.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return 0
    return sum(_set_option(number, option) for number in _sockets())


def _sockets() -> list[int]:
    """Return the descriptors of this process's sockets; empty if the system doesn't have /proc."""
    descriptors = []
    with suppress(OSError):
        paths = sorted(Path(_DESCRIPTORS).iterdir(), key=lambda path: int(path.name))
        for path in paths[:_DESCRIPTORS_MAX]:
            # One of the descriptors was opened to list the directory, and is closed by now.
            with suppress(OSError):
                if str(path.readlink()).startswith("socket:"):
                    descriptors.append(int(path.name))
    return descriptors


def _set_option(descriptor: int, option: int) -> bool:
    """Set a TCP option to 1 on one socket; return whether the socket is a TCP connection.

    Calls setsockopt directly, because a Python socket for the descriptor would set the process's
    default timeout, if any. A timeout would make the connection non-blocking for the code that owns
    it.
    """
    on = ctypes.c_int(1)
    call = ctypes.CDLL(None).setsockopt
    failed = call(descriptor, socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on))
    return not failed
