"""Sizes of splits, in bytes of log, for each kind of reader."""

from typing import Final

# Default size for a scan and for the Spark source, whose option is `splitBytes`.
SPLIT_BYTES: Final = 128 << 20

# Split size for the threads of one process: small enough that all threads end at about the same
# time, and large enough that the fixed cost of a split doesn't matter.
THREAD_SPLIT_BYTES: Final = 32 << 20

# Split size for tables by key on Spark.
TABLE_SPLIT_BYTES: Final = 256 << 20

# Split size for jobs. Reading 1 GiB takes some seconds; for smaller splits, Spark's overhead is
# longer than the reading.
JOB_SPLIT_BYTES: Final = 1 << 30

# Minimum size, because for a smaller split the fixed cost of a task exceeds the cost of reading.
SPLIT_BYTES_MIN: Final = 64 << 10


def target_bytes(total_bytes: int, split_bytes: int, min_splits: int) -> int:
    """Return the target size of a scan's splits, in bytes of log.

    Args:
        total_bytes: Bytes of log to be read.
        split_bytes: Maximum size of a split.
        min_splits: Minimum number of splits. There may be fewer splits, because no split is smaller
            than `SPLIT_BYTES_MIN`.
    """
    target = min(split_bytes, -(-total_bytes // min_splits))
    return max(target, min(SPLIT_BYTES_MIN, split_bytes))
