"""Keeps Python's garbage collector from searching long-lived objects.

Importing modules, planning reads of 100,000 segments, and compiling kernels create many objects but
no reference cycles. The collector searches these objects again and again without finding a cycle,
which takes up to a quarter of the total time. Searching a million objects blocks a broker for a
tenth of a second.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Turn the garbage collector off while a block runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def take_as_old() -> None:
    """Move all objects to the oldest generation, which the collector searches rarely.

    Call this function at the end of `collection_paused` if the objects created in that block stay
    referenced. Without this call, the next collection would search all these objects at once.
    Objects that `gc.freeze` had frozen are moved to the oldest generation too, so the collector
    searches them again.
    """
    gc.freeze()
    gc.unfreeze()


def take_modules_as_old() -> None:
    """Call `take_as_old` after an import, unless frozen objects exist (Spark calls `gc.freeze`)."""
    if not gc.get_freeze_count():
        take_as_old()
