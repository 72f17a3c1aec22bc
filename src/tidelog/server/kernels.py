"""Loads the numba kernels in a thread after the broker has begun to listen.

Until the kernels are loaded, plain Python does the work. Loading compiled code takes half a second.
If there is no compiled code, another process compiles the kernels, because a compiling thread
blocks all other threads for seconds. A loading thread also blocks other threads while it holds the
GIL. Three measures reduce the time for which it holds the GIL without a break:
- Shared libraries are loaded by dlopen, without the GIL, before Python needs them. If Python itself
  loaded LLVM's library, all threads would stop for 40 ms or more while the library is relocated.
- The garbage collector is paused, and loaded objects are moved to the oldest generation afterwards.
  Otherwise a collection of numba's objects would block the loop longer than any other step.
- The interpreter switches threads ten times as often as usual.

Afterwards the memory of LLVM's code (40 MB) is returned to the system. Pages that are needed later
are read from the library's file again.

Source: dlopen(3), madvise(2), proc(5); Python's `_imp.create_dynamic` and `_ctypes.dlopen`.
"""

import asyncio
import ctypes
import logging
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.gc_pauses import collection_paused, take_as_old
from tidelog.record.builder import build_batch
from tidelog.record.header import HEADER_SIZE
from tidelog.record.legacy import build_legacy_message
from tidelog.types import Codec, NewRecord

if TYPE_CHECKING:
    from tidelog.record.kernels.compiler import Kernel


# Paths of the large libraries that kernels need, by package.
LIBRARIES: Final = {
    "llvmlite": ("binding/libllvmlite*",),
    "numpy": ("_core/_multiarray_umath*", "core/_multiarray_umath*", "linalg/_umath_linalg*"),
    "numba": ("_*", "core/**/_*", "np/ufunc/_internal*", "experimental/**/_*"),
}

_SUFFIXES: Final = frozenset({".so", ".dylib"})
_MAPS: Final = Path("/proc/self/smaps")

# Permissions of mappings to which this process can't write now. Pages of these mappings may have
# been written earlier, when the process could still write to them.
_UNWRITABLE: Final = frozenset({"r-xp", "r--p"})

_CHANGED: Final = ("Private_Dirty:", "Shared_Dirty:", "Anonymous:", "Swap:")


def preload(paths: Iterable[str]) -> list[str]:
    """Load shared libraries permanently; return the paths of the libraries that were loaded.

    A library that can't be loaded is skipped. The code that needs the library reports the reason.
    """
    try:
        load = ctypes.CDLL(None).dlopen
    except (AttributeError, OSError, TypeError):  # not supported by the system
        return []
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    # RTLD_NOW is the mode in which Python loads libraries. With RTLD_LAZY, Python would bind the
    # remaining symbols later, while all other threads are stopped.
    return [path for path in paths if load(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)]


def libraries() -> list[str]:
    """Return the files of the installed libraries that kernels need."""
    return [path for package in LIBRARIES for path in _of_package(package)]


def _of_package(package: str) -> list[str]:
    spec = find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [
        str(path)
        for folder in folders
        for pattern in LIBRARIES[package]
        for path in sorted(Path(folder).glob(pattern))
        if path.suffix in _SUFFIXES
    ]


def drop_clean_pages(paths: Iterable[str]) -> int:
    """Drop the unmodified pages of these shared libraries from memory.

    These pages equal the library's file, and are read from it again when needed. Does nothing if
    the system has no `madvise` or no `/proc/self/smaps`.

    Returns:
        Size of the dropped address ranges, in bytes.
    """
    try:
        advise = ctypes.CDLL(None).madvise
        maps = _MAPS.read_text(encoding="utf-8", errors="surrogateescape")
    except (AttributeError, OSError, TypeError):
        return 0
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    ranges = clean_maps(maps, {os.path.realpath(path) for path in paths})
    return sum(
        end - start for start, end in ranges if not advise(start, end - start, mmap.MADV_DONTNEED)
    )


def clean_maps(maps: str, paths: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the address ranges [start, end) of the unmodified mappings of these files.

    Mappings into which the linker has written addresses (RELRO) are left out, because they differ
    from the file.

    Args:
        maps: Contents of /proc/PID/smaps.
        paths: Paths of the files, with symbolic links resolved.
    """
    names, current, is_clean = set(paths), None, False
    for line in maps.splitlines():
        name, *fields = line.split(None, 5)
        if not name.endswith(":"):
            if current is not None and is_clean:
                yield current
            start, _, end = name.partition("-")
            current = (int(start, 16), int(end, 16))
            is_file = len(fields) == 5 and fields[4] in names  # `fields[4]` is the path
            is_clean = is_file and fields[0] in _UNWRITABLE
        elif name in _CHANGED and fields[0] != "0":
            is_clean = False
    if current is not None and is_clean:
        yield current


LOGGER: Final = logging.getLogger("tidelog.server")
_COMPILE: Final = "from tidelog.server.kernels import compile_once; compile_once()"

# Time in seconds after which Python asks a loading thread to release the GIL to a waiting thread;
# Python's default is 5 ms.
SWITCH_S: Final = 0.0005

_is_loaded = threading.Event()
_is_loading = threading.Lock()


def load_beside(done: Callable[[], None]) -> None:
    """Load the kernels in a thread, then call `done` on the running loop.

    If numba is missing or the kernels can't be loaded, `done` is never called.
    """
    if _is_loaded.is_set():
        done()
        return
    loop = asyncio.get_running_loop()

    def run() -> None:
        if _load_once():
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name="tidelog-kernels", daemon=True).start()


def _load_once() -> bool:
    with _is_loading:
        if not _is_loaded.is_set():
            try:
                with _quietly():
                    preload(libraries())
                    is_compiled = _is_compiled()
                if not is_compiled:
                    _compile_elsewhere()
                with _quietly():
                    load()
                drop_clean_pages(libraries())
            except ImportError as error:
                LOGGER.warning(
                    "kernels are not available; plain Python validates records more slowly: %s",
                    error,
                )
                return False
            except Exception:
                LOGGER.exception(
                    "kernels can't be loaded; plain Python validates records more slowly"
                )
                return False
            _is_loaded.set()
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """Block other threads less: switch threads more often, and pause the garbage collector."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, SWITCH_S))
    try:
        with collection_paused():
            yield
            take_as_old()
    finally:
        sys.setswitchinterval(interval_s)


def _is_compiled() -> bool:
    """Whether compiled code of all kernels is cached. This imports numba."""
    from tidelog.record.kernels.compiler import is_cached

    return all(is_cached(each) for each in used_kernels())


def used_kernels() -> "list[Kernel[..., object]]":
    """Return the kernels that threads of a broker run."""
    from tidelog.record.kernels import (
        batch_scan,
        checksums,
        last_records,
        messages,
        records,
        time_search,
        times,
        zones,
    )
    from tidelog.record.kernels import checksums as sums
    from tidelog.record.kernels import times as latencies

    return [
        records.validate_batch_body,
        time_search.find_time,
        time_search.find_time_in_segment,
        messages.check_messages,
        messages.assign_messages,
        # For reading the broker's internal logs.
        last_records.find_latest,
        # For metrics.
        latencies.count_latencies,
        checksums.fill_shifts,
        # For the zone map of a finished segment. Acknowledgements may wait for the zone map.
        batch_scan.scan_batches,
        sums.fill_tables,
        times.flag_overwritten_create_times,
        zones.describe_batches,
        zones.sum_batches,
        zones.fold_zones,
        zones.sum_zones,
    ]


def are_loaded() -> bool:
    """Whether kernels are compiled and loaded in this process, so that they can be called."""
    return _is_loaded.is_set()


def _compile_elsewhere() -> None:
    """Let another process compile missing kernels.

    If the other process fails, this process compiles them.
    """
    command = [sys.executable, "-c", _COMPILE]
    with suppress(OSError):
        subprocess.run(  # noqa: S603 - constant arguments
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True
        )


def compile_once() -> None:
    """Compile the kernels in this process; if another process is compiling, wait for it.

    A killed broker leaves its compiling process running, and the next broker starts another one.
    The new process waits for the old one, and then finds the kernels compiled.
    """
    from tidelog.storage.kernel_cache import SOURCES, alone, choose_cache

    folder = choose_cache(SOURCES)
    with alone(folder, "broker") if folder is not None else nullcontext():
        if not _is_compiled():
            compile_all()


def compile_all() -> None:
    """Compile every kernel of a broker, by running it on a temporary log."""
    from tempfile import TemporaryDirectory

    from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
    from tidelog.storage.segment import zone_map_files

    load()
    with (
        TemporaryDirectory(prefix="tidelog-") as folder,
        LogDir.open(folder, options=LogDirOptions(create=True)) as log_dir,
    ):
        log_dir.create_topic("t")
        log = log_dir.log("t", 0)
        for codec in (Codec.NONE, Codec.GZIP):
            log.append([NewRecord(value=b"", timestamp=1)], codec=codec)
        log.roll()
        for segment in log.finished_segments():
            zone_map_files.write(segment, by_kernels=True)


def load() -> None:
    """Run each kernel that requests use, on one record; import the other kernels.

    Raises:
        ImportError: numba is not installed.
    """
    import numpy as np

    from tidelog.record.columns.decode import SECRET_BYTES, LatestFinder
    from tidelog.record.kernels.batch_scan import scan_batches
    from tidelog.record.kernels.layout import BATCH_FIELDS
    from tidelog.record.kernels.records import check_body
    from tidelog.record.kernels.time_search import find_time, find_time_in_segment
    from tidelog.record.kernels.times import count_latencies
    from tidelog.storage.log.message_set_kernels import KernelPasses
    from tidelog.storage.log.message_sets import SetRules, Stamp

    batch = bytes(build_batch([NewRecord(value=b"", timestamp=1)]))
    check_body(batch[HEADER_SIZE:], 1, 1)
    body, bounds = np.frombuffer(batch[HEADER_SIZE:], np.uint8), np.zeros(1, np.int64)
    count_latencies(body, 1, 1, 1, bounds, np.zeros(2, np.int64))
    log, empty = np.frombuffer(batch, np.uint8), np.frombuffer(b"", np.uint8)
    find_time(log, 0, (0, 1), 1, 0)
    find_time_in_segment(log, empty, empty, (0, 1), 1, 0)
    table = np.empty((1, BATCH_FIELDS), np.int64)
    scan_batches(log, 0, log.size, table, 0, 1)
    LatestFinder(bytes(SECRET_BYTES)).find(batch, table)
    messages, passes = build_legacy_message(None, b"", magic=0, offset=0), KernelPasses()
    rules = SetRules(needs_key=False, checks_times=False, earliest_ms=0, latest_ms=0)
    passes.check(bytes(messages), 0, rules, 0)
    passes.assign(messages, 0, 0, Stamp(None, 0))
