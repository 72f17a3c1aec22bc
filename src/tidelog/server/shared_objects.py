"""Loads shared objects while other threads run.

Python loads a library (an extension module, or one that ctypes opens) with all its threads stopped:
40 ms and more for LLVM's, most of it to adjust its addresses. What is loaded already is had in
next to no time. So a thread asks the system itself, by a call that stops nobody, and Python later
finds everything in its place.

What a library's code took of memory while it was run can be given back: once kernels are loaded
nobody runs LLVM's for long, and 40 MB of it would stay. The system reads a page again, from its
cache or the file, where somebody comes back to it.

Source: dlopen(3), madvise(2), proc(5); Python's `_imp.create_dynamic` and `_ctypes.dlopen`.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# Where the large ones lie that kernels need, by package.
LIBRARIES: Final = {
    "llvmlite": ("binding/libllvmlite*",),
    "numpy": ("_core/_multiarray_umath*", "core/_multiarray_umath*", "linalg/_umath_linalg*"),
    "numba": ("_*", "core/**/_*", "np/ufunc/_internal*", "experimental/**/_*"),
}
_SUFFIXES: Final = frozenset({".so", ".dylib"})
_MAPS: Final = Path("/proc/self/smaps")
# Pages as the file has them, which nobody in this process can have changed.
_UNWRITABLE: Final = frozenset({"r-xp", "r--p"})
_CHANGED: Final = ("Private_Dirty:", "Shared_Dirty:", "Anonymous:", "Swap:")


def preload(paths: Iterable[str]) -> list[str]:
    """Load shared objects, for good; those that could be.

    What can't be loaded is left to whoever needs it, and will hear why.
    """
    try:
        load = ctypes.CDLL(None).dlopen
    except (AttributeError, OSError, TypeError):  # no such system
        return []
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    # All at once, as Python will ask for it: else the rest is done then, with threads stopped.
    return [path for path in paths if load(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)]


def libraries() -> list[str]:
    """The files of the libraries that kernels need, as far as they are installed."""
    return [path for package in LIBRARIES for path in _of_package(package)]


def _of_package(package: str) -> list[str]:
    spec = find_spec(package)
    places = [] if spec is None else spec.submodule_search_locations or []
    return [
        str(path)
        for place in places
        for pattern in LIBRARIES[package]
        for path in sorted(Path(place).glob(pattern))
        if path.suffix in _SUFFIXES
    ]


def give_back(paths: Iterable[str]) -> int:
    """Drop the pages of shared objects that are in memory as they are in the file.

    Does nothing where the system has no such call, or does not say which pages those are.

    Returns:
        Bytes of address space that were looked at so.
    """
    try:
        advise = ctypes.CDLL(None).madvise
        maps = _MAPS.read_text(encoding="utf-8", errors="surrogateescape")
    except (AttributeError, OSError, TypeError):
        return 0
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found = clean_maps(maps, {os.path.realpath(path) for path in paths})
    return sum(
        end - start for start, end in found if not advise(start, end - start, mmap.MADV_DONTNEED)
    )


def clean_maps(maps: str, paths: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Address ranges [start, end) of maps of these files that can't be written and never were.

    Where the linker has put addresses into pages (RELRO) they are no longer the file's.

    Args:
        maps: What /proc/PID/smaps says.
        paths: Of the files, without links.
    """
    wanted, current, is_clean = set(paths), None, False
    for line in maps.splitlines():
        name, *fields = line.split(None, 5)
        if not name.endswith(":"):
            if current is not None and is_clean:
                yield current
            start, _, end = name.partition("-")
            current = (int(start, 16), int(end, 16))
            is_file = len(fields) == 5 and fields[4] in wanted  # columns of a map
            is_clean = is_file and fields[0] in _UNWRITABLE
        elif name in _CHANGED and fields[0] != "0":
            is_clean = False
    if current is not None and is_clean:
        yield current
