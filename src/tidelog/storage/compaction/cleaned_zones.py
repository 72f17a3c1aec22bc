"""The zone map of a `.cleaned` segment, by the builder of all others."""

from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.storage import files, zone_files
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.compaction.job import CleaningJob
from tidelog.storage.handles import FilePool, MapCache
from tidelog.storage.segment import SegmentContext
from tidelog.types import TopicPartition


def build_zones(
    job: CleaningJob, base_offset: int, end_offset: int, times: AppendTimes, env: Env
) -> bytes:
    """The bytes of the map.

    Args:
        job: Whose segment it is.
        base_offset: Its name.
        end_offset: Offset behind it.
        times: Its append times.
        env: Where its files are, all but the map itself.

    Raises:
        CorruptData: A record is damaged.
        UnsupportedCompression: A codec that nobody defined.
        OSError: The disk failed.
    """
    pool = FilePool(env.files, write=False)
    maps = MapCache(env.files)
    context = SegmentContext(
        env=env,
        directory=job.directory,
        topic_partition=TopicPartition(job.topic, job.partition),
        topic_id=job.topic_id,
        config=TopicConfig(),
        pool=pool,
        maps=maps,
        report=_ignore,
        overlay=_overlay(job, base_offset, env),
    )
    segment = ClosedSegment(context, base_offset, end_offset)
    segment.set_append_times(times)
    try:
        # Every batch of it was checked when it was read, or has just been written.
        return zone_files.build(segment, check_crc=False)
    finally:
        segment.unload()
        pool.close()
        maps.clear()


def _overlay(job: CleaningJob, base_offset: int, env: Env) -> dict[str, str]:
    """The cleaned files by the names that they are to have, and those that there are none of."""
    found = {}
    for suffix in files.SEGMENT_SUFFIXES:
        name = files.file_name(base_offset, suffix)
        cleaned = f"{name}{files.CLEANED_SUFFIX}"
        is_there = env.files.exists(f"{job.directory}/{cleaned}")
        found[name] = cleaned if is_there else f"{name}{files.REMOVED_SUFFIX}"
    return found


def _ignore(_text: str) -> None:
    """Nothing of what is found concerns anybody but the builder."""
