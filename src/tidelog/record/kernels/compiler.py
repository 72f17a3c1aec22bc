"""The decorator that compiles a plain function to a kernel, and the cache of compiled code.

A kernel is a function over arrays and integers. `kernel.py_func` runs the same source interpreted,
and is the reference for the compiled code. A kernel has no default arguments, does not use None,
and uses no globals but integer constants and functions. It returns a status instead of raising, and
never reads or writes past an array.

Compiled code is cached beside the source if the source's folder is writable, else in the user's
cache folder if this folder is writable. If neither folder is writable, the code is not cached,
except in Spark workers, which then choose another folder (`tidelog.spark.workers`). If
`NUMBA_CACHE_DIR` is set, code is cached in that folder. If `NUMBA_CACHE_DIR` is a folder that all
nodes share, Spark workers load the code (0.1 s) instead of compiling it (several seconds). Each
cache entry is for one type of CPU, so machines with different CPUs can share a folder. The folder
contains executable code, so only its owner may have write access.
"""

import hashlib
import pickle  # noqa: TID251 - only its error class, to handle a damaged cache file
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from types import FunctionType
from typing import Final, ParamSpec, Protocol, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Kernel(Protocol[P, R_co]):
    """A compiled function with its plain Python reference."""

    @property
    def py_func(self) -> Callable[P, R_co]:
        """The same source, interpreted (kernels that it calls stay compiled)."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the compiled code, without the GIL; the first call compiles or loads it."""
        ...


def _fingerprint() -> str:
    """Return a hash of all source files of this package.

    Helpers and constants of other files are compiled into a kernel, but Numba checks only whether
    the kernel's own file has changed. With this hash in the cache's key, Numba also recompiles if
    only another file has changed, as after an upgrade.
    """
    digest = hashlib.sha256()
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


_FINGERPRINT: Final = _fingerprint()


def fingerprint() -> str:
    """Return the hash that identifies this release's compiled code in the cache."""
    return _FINGERPRINT


# Reference counting of arrays is switched off: kernels allocate nothing, and their arguments live
# as long as the call. With reference counting, each call of a helper would change a reference count
# atomically, which takes 20 times as long as the helper's work.
_OPTIONS: Final = {"nogil": True, "_nrt": False}
_njit: Callable[..., Callable[[object], Dispatcher]] = njit
# Errors that loading a truncated, foreign or unreadable cache file may raise.
_DAMAGE: Final = (
    OSError,
    EOFError,
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
)


class _KernelCache(FunctionCache):
    """Numba's cache, but without an error if the disk is full or a cache file is damaged.

    If the cache can't be read, the kernel is compiled again and saved. If the compiled code can't
    be saved, each process compiles the kernel. The calls of the base class need `type: ignore`
    comments, because the methods of Numba's cache have no types.
    """

    def load_overload(self, sig: object, target_context: object) -> object:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except _DAMAGE:
            return None

    def save_overload(self, sig: object, data: object) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except _DAMAGE:
            self._save_anew(sig, data)

    def _save_anew(self, sig: object, data: object) -> None:
        """Replace the unreadable index of the cache by a new one, and save compiled code."""
        try:
            self.flush()  # type: ignore[no-untyped-call]
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except _DAMAGE:
            self.disable()  # type: ignore[no-untyped-call]

    def _index_key(self, sig: object, codegen: object) -> tuple[object, ...]:
        key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return (*key, _FINGERPRINT)


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a kernel at the first call with new argument types.

    The kernel runs without the GIL.
    """
    compiled = _njit(**_OPTIONS)(function)
    # This is what Numba's option cache=True does, but with `_KernelCache`. If no folder is
    # writable, as in a container without a home directory, Numba raises RuntimeError, and each
    # process compiles the kernel.
    with suppress(RuntimeError):
        compiled._cache = _KernelCache(function)  # type: ignore[no-untyped-call,attr-defined] # noqa: SLF001 - Numba has no setter
    return cast("Kernel[P, R]", compiled)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a helper that is inlined into the kernels that call it."""
    return cast("Kernel[P, R]", _njit(**_OPTIONS, forceinline=True)(function))


def is_cached(kernel_: Kernel[P, R]) -> bool:
    """Whether this release's compiled code of a kernel is cached, for any argument types."""
    cache = getattr(kernel_, "_cache", None)
    if not isinstance(cache, _KernelCache):
        return False
    try:
        index = cache._cache_file._load_index()  # type: ignore[no-untyped-call] # noqa: SLF001 - Numba has no getter
    except _DAMAGE:
        return False
    return any(key[-1] == _FINGERPRINT for key in index)


def plain(kernel_: Kernel[P, R]) -> Callable[P, R]:
    """Return a kernel as an interpreted function; the kernels that it calls are interpreted, too.

    `py_func` alone would still call compiled helpers, which check no bounds.
    """
    function = cast("FunctionType", kernel_.py_func)
    names = {
        name: plain(value) if isinstance(value, Dispatcher) else value
        for name, value in function.__globals__.items()
        if name in function.__code__.co_names or name == "__builtins__"
    }
    return FunctionType(function.__code__, names, function.__name__)
