"""The directory of compiled kernels, and the choice of the one process that compiles.

Compiling keeps a core busy for several seconds. If many processes start together (Spark workers,
restarted brokers), one process compiles. The other processes wait, and then load the compiled
kernels.
"""

import fcntl
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# Directory of the kernels' sources. If the sources' directory is writable, numba stores compiled
# code in its subdirectory. The environment variable `NUMBA_CACHE_DIR` sets another directory.
SOURCES: Final = Path(__file__).parent.parent / "record" / "kernels"
CACHE_VARIABLE: Final = "NUMBA_CACHE_DIR"
_WARM_FILE: Final = "tidelog-warm"


def choose_cache(package: Path) -> Path | None:
    """Return the directory of compiled kernels; if numba would find no such directory, set one.

    Args:
        package: Directory of the kernels' sources. By default, numba stores compiled kernels in a
            subdirectory.

    Returns:
        The directory; None if there is no directory that only this user can write to. Without a
        directory, each process compiles for itself.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    if os.access(package, os.W_OK):
        return package / "__pycache__"
    home = os.environ.get("HOME", "")
    if home and os.access(home, os.W_OK):
        return Path(home) / ".cache"  # numba uses a directory below this one
    folder = Path(tempfile.gettempdir()) / f"tidelog-numba-{os.getuid()}"
    if not _is_ours(folder):
        return None
    os.environ[CACHE_VARIABLE] = str(folder)
    return folder


def _is_ours(folder: Path) -> bool:
    """Create a missing directory; return whether only this user can write to it.

    If other users can write to a directory, its code is not safe to load.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@contextmanager
def alone(folder: Path, purpose: str) -> Iterator[bool]:
    """Yield True in the first process for `purpose`; other processes wait for it and get False.

    If the directory can't be written to or locked, all processes get False without waiting.
    """
    from tidelog.record.kernels.compiler import fingerprint

    name = (
        f"{_WARM_FILE}-{purpose}-{fingerprint()[:16]}-{platform.machine()}-{sys.version_info.minor}"
    )
    file = _lock_new(folder / name)
    try:
        yield file is not None
        if file is not None:
            with suppress(OSError):  # on a full disk the next process compiles again
                os.write(file, b"compiled\n")
    finally:
        if file is not None:
            os.close(file)


def _lock_new(path: Path) -> int | None:
    """Create and lock a file; return its descriptor.

    Return None if the file has content, or can't be created or locked. Without the lock, for
    example in a read-only directory, each process compiles for itself.
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
