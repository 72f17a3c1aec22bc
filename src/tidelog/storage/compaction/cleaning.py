"""A cleaning from end to end: map, rewrite, `.cleaned` files.

A function of the job and the machine: it needs no lock, so it may run in another process, and it
renames nothing. When it fails or is stopped it takes its `.cleaned` files away; nothing else was
touched.

Source: Kafka 4.x Cleaner.doClean; docs/compaction.md.
"""

from typing import Final

from tidelog.env import Env
from tidelog.errors import MissingDependency
from tidelog.storage.compaction.job import Cleaned, CleaningJob, Throttle
from tidelog.storage.handles import as_storage_failure

# Every bit of both halves of a hash counts.
WHOLE_HASH: Final = (-1, -1)


def clean(
    job: CleaningJob,
    env: Env,
    throttle: Throttle | None = None,
    *,
    hash_mask: tuple[int, int] = WHOLE_HASH,
) -> Cleaned:
    """Write the `.cleaned` segments of a job, durably.

    Args:
        job: What to do.
        env: Where the files are; clock and randomness are not asked.
        throttle: Who may hold it up, or stop it by an exception.
        hash_mask: What of both halves of a key's hash counts; tests make hashes collide by it.

    Returns:
        What was written. Where the map was full, `mapped_to` is below the job's `map_to`: the rest
        is another job's.

    Raises:
        CorruptData, UnsupportedCompression: A source is damaged; file and position are named.
        OffsetOverflow: A group's offsets or bytes don't fit into one segment.
        CleaningFailed: A key has no room where keys are kept.
        StorageFailure: The disk failed.
        MissingDependency: numpy or numba is not installed.
        Whatever the throttle raises. No `.cleaned` file of the job is left in all these cases.
    """
    try:
        from tidelog.storage.compaction.work import Work
    except ImportError as error:
        raise MissingDependency(f"compaction needs tidelog[arrow]: {error}") from error
    work = Work(job, env, throttle, hash_mask)
    try:
        return work.run()
    except OSError as error:
        work.discard()
        raise as_storage_failure(error, job.directory, "clean") from error
    except BaseException:
        work.discard()
        raise
