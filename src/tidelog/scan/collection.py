"""Garbage collection, put off while many objects are made that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection meanwhile.

    A plan over 100,000 segments makes millions of objects that stay and no cycles: going through
    them again and again is work for nothing. Measured under load only, it took a quarter of the
    time of a plan without zone maps, and hardly any of one with them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
