"""Python's garbage collector kept from searching among objects that stay.

An import, a plan over 100,000 segments or the compilation of a kernel makes many objects and no
cycles. The collector looks through them again and again, finds nothing, and takes up to a quarter
of the time; a search for a million objects stops a broker for a tenth of a second.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run a block without the collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def take_as_old() -> None:
    """Count all objects as old ones, which are searched rarely.

    For the end of a pause whose objects stay: else a search of all of them begins at once. Objects
    that somebody has frozen count as old, too, and are searched again.
    """
    gc.freeze()
    gc.unfreeze()


def take_modules_as_old() -> None:
    """`take_as_old` after an import, unless objects are frozen, as in a Spark worker."""
    if not gc.get_freeze_count():
        take_as_old()
