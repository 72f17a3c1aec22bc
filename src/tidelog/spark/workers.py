"""What a Spark worker's Python needs: the packages, and kernels that are compiled once.

A worker's process lives for a task or for many. Compiled kernels are kept on disk, so that one
process of a machine compiles and all others load: `prepare` chooses the folder where nobody has and
the usual ones can't be written to, and lets one process of the machine compile while the others
wait for it. docs/deploy.md says how to bring packages and folder to a cluster.
"""

import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from inspect import isfunction
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.errors import MissingDependency, TidelogError
from tidelog.storage.kernel_cache import SOURCES, alone, choose_cache

if TYPE_CHECKING:
    import pyarrow as pa

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
            from tidelog.spark import warmth

            warmth.RUNS[purpose]()
