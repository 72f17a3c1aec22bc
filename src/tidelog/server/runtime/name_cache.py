"""Bounds in bytes for caches whose keys are text from clients.

A name in a request may have 32,767 characters of up to four bytes. So only short names are cached;
others are computed each time.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from hashlib import sha256
from typing import Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")


_Result = TypeVar("_Result")


# Characters of ASCII, one byte each, that all names of one key may have.
NAME_CHARACTERS: Final = 128


# Entries of one cache: some 8 MB where all names are as long as they may be.
NAMES_KEPT: Final = 16_384


def is_short(*names: str) -> bool:
    """Whether names take so little memory that they may be the key of a cache."""
    left = NAME_CHARACTERS
    for name in names:
        left -= len(name)
        if left < 0 or not name.isascii():
            return False
    return True


def remembers_short(
    names_of: Callable[..., bool],
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Cache a function's results for calls in which `names_of` says that all names are short."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        cached = lru_cache(maxsize=NAMES_KEPT)(function)

        @wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if names_of(*args, **kwargs):
                return cached(*args, **kwargs)  # type: ignore[arg-type] # names, numbers
            return function(*args, **kwargs)

        call.cache_info = cached.cache_info  # type: ignore[attr-defined] # for tests
        return call

    return decorate


def short_key(name: str) -> str:
    """The name, or where it is long its beginning and a digest, so that none is like another."""
    if is_short(name):
        return name
    return f"{name[:16]!a}#{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
