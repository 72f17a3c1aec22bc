"""Whether the entries of an index follow each other, by arrays: a hundredth of the time.

An index has an entry for every few KB of log, and each is looked at when the index is opened. Only
where numpy is loaded already: to load it takes longer than to look at most indexes without it.
"""

import sys

from tidelog.types import Buffer


def are_loaded() -> bool:
    """Whether numpy is loaded, which changes the time that a check takes, and nothing else."""
    return "numpy" in sys.modules


def are_offsets_sound(entries: Buffer, log_size: int) -> bool:
    """Whether offsets and positions rise from 0 on, and all positions lie below `log_size`.

    Args:
        entries: Whole entries of an offset index.
        log_size: Bytes of the log file.
    """
    import numpy as np

    numbers = np.frombuffer(entries, ">i4").astype(np.int32).reshape(-1, 2)
    if not len(numbers):
        return True
    is_inside = bool((numbers[0] >= 0).all()) and int(numbers[-1, 1]) < log_size
    return is_inside and bool((numbers[1:] > numbers[:-1]).all())


def are_times_sound(entries: Buffer) -> bool:
    """Whether timestamps rise from 0 on, and offsets don't fall.

    Args:
        entries: Whole entries of a time index.
    """
    import numpy as np

    rows = np.frombuffer(entries, np.dtype([("timestamp", ">i8"), ("offset", ">i4")]))
    if not len(rows):
        return True
    times, offsets = rows["timestamp"].astype(np.int64), rows["offset"].astype(np.int32)
    is_inside = int(times[0]) >= 0 and int(offsets[0]) >= 0
    rises = bool((times[1:] > times[:-1]).all()) and bool((offsets[1:] >= offsets[:-1]).all())
    return is_inside and rises
