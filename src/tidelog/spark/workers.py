"""What a Spark worker's Python needs: the packages, and kernels that are compiled once.

A worker's process lives for a task or for many. Compiled kernels are kept on disk, so that one
process of a machine compiles and all others load: `prepare` chooses the folder where nobody has and
the usual ones can't be written to, and lets one process of the machine compile while the others
wait for it. docs/deploy.md says how to bring packages and folder to a cluster.
"""

import fcntl
import importlib.util
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.errors import MissingDependency

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_VARIABLE: Final = "NUMBA_CACHE_DIR"
_WARM: Final = "tidelog-warm"
_NEEDED: Final = ("pyarrow", "numpy", "numba")


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
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(error.name or str(error)) from error


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
    folder = choose_cache(Path(__file__).parent.parent / "record" / "kernels")
    if folder is None or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    with _alone(folder, "write" if to_write else "read") as is_first:
        if is_first:
            from tidelog.spark import warmth

            (warmth.run_encoders if to_write else warmth.run_decoders)()


def choose_cache(package: Path) -> Path | None:
    """The folder where compiled kernels are kept; set for numba where it would find none.

    Args:
        package: The folder of the kernels' sources, beside which numba keeps them by itself.

    Returns:
        None where there is no folder that is only ours to write: each process compiles.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    if os.access(package, os.W_OK):
        return package / "__pycache__"
    home = os.environ.get("HOME", "")
    if home and os.access(home, os.W_OK):
        return Path(home) / ".cache"  # numba's own second choice is in there
    folder = Path(tempfile.gettempdir()) / f"tidelog-numba-{os.getuid()}"
    if not _is_ours(folder):
        return None
    os.environ[CACHE_VARIABLE] = str(folder)
    return folder


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can write there: what lies there is executed."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@contextmanager
def _alone(folder: Path, purpose: str) -> Iterator[bool]:
    """True for the first process that uses the folder for that, while others wait for its end."""
    from tidelog.record.kernels.compiler import fingerprint

    name = f"{_WARM}-{purpose}-{fingerprint()[:16]}-{platform.machine()}-{sys.version_info.minor}"
    file = _lock_new(folder / name)
    try:
        yield file is not None
        if file is not None:
            with suppress(OSError):  # a full disk: the next process will be first once more
                os.write(file, b"compiled\n")
    finally:
        if file is not None:
            os.close(file)


def _lock_new(path: Path) -> int | None:
    """An empty file, locked; None where somebody has filled it, or where there can be none.

    In a folder that is read only, or has no locks, each process helps itself.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        if not os.fstat(file).st_size:
            fcntl.lockf(file, fcntl.LOCK_EX)
            if not os.fstat(file).st_size:
                return file
    except OSError:
        pass
    os.close(file)
    return None
