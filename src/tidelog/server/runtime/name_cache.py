"""Limits on the bytes of caches whose keys are texts from clients.

A name in a request may have 32,767 bytes, and take four times as many bytes in memory. So results
are cached only for short names. For other names, each call computes its result.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from hashlib import sha256
from typing import Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# Maximum total length, in characters, of the names in one cache key. Only ASCII names are cached,
# so a character takes one byte.
NAME_CHARACTERS: Final = 128

# Maximum number of entries of one cache: some 8 MB if all names have the maximum length.
CACHE_ENTRIES_MAX: Final = 16_384


def is_short(*names: str) -> bool:
    """Whether names are ASCII, and together short enough for the key of a cache."""
    remaining = NAME_CHARACTERS
    for name in names:
        remaining -= len(name)
        if remaining < 0 or not name.isascii():
            return False
    return True


def remembers_short(
    names_of: Callable[..., bool],
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Cache a function's results for calls in which `names_of` reports that all names are short."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        cached = lru_cache(maxsize=CACHE_ENTRIES_MAX)(function)

        @wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if names_of(*args, **kwargs):
                return cached(*args, **kwargs)  # type: ignore[arg-type] # names and numbers can be hashed
            return function(*args, **kwargs)

        return call

    return decorate


def short_key(name: str) -> str:
    """Return a short name as it is, and for any other name its beginning and SHA-256 digest."""
    if is_short(name):
        return name
    return f"{name[:16]!a}#{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
