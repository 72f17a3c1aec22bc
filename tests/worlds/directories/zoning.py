"""Zone maps for directories of tests, with zones so small that a few records need many zones."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from tests.worlds.constants import set_constant

from tidelog.env import Env
from tidelog.storage import files, log_files
from tidelog.storage.clocks.zone_map import Limits
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.zone_map_builder import build_plain
from tidelog.storage.segment.zone_map_files import sum_siblings

# Limits with which each batch is a separate zone.
SMALL = Limits(zone_bytes=1, block_rows=2)


@contextmanager
def gaps_up_to(size: int) -> Iterator[None]:
    """In the `with` block, a plan reads two pieces at once across a gap of at most `size` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, "GAP_BYTES", size, inside="tidelog.scan")
        yield


def add_zones(
    path: str,
    topic: str,
    env: Env | None = None,
    *,
    limits: Limits = SMALL,
    forget: Collection[int] = (),
) -> int:
    """Write the zone map of each finished segment of partition 0; return how many were written.

    Args:
        path: Path of the directory.
        topic: Name of the topic.
        env: The files and the clock; the machine's files and clock if None.
        limits: Limits of zones.
        forget: Indexes of the segments whose append times are removed first.
    """
    with LogDir.open(path, env=env) as log_dir:
        fs = log_dir.env.files
        reader = log_dir.reader(topic, 0)
        count = 0
        for number, segment in enumerate(reader.segments):
            if not isinstance(segment, ClosedSegment):
                continue
            times = reader.context.path(segment.base_offset, log_files.APPEND_TIME_SUFFIX)
            if number in forget and fs.exists(times):
                fs.remove(times)
            reader.append_times_of(segment)
            siblings = sum_siblings(segment.context, segment.base_offset)
            data = build_plain(segment, siblings, limits)
            name = reader.context.path(segment.base_offset, log_files.ZONES_SUFFIX)
            files.write_atomically(fs, name, data)
            count += 1
    return count
