"""Truncates logs that can't be opened because damaged bytes precede a valid batch.

A power loss may keep a write and lose an earlier write. Opening leaves such a log as it is, and the
log's owner decides what to keep. Crash tests keep the valid prefix, because only synced bytes are
guaranteed to survive.
"""

from collections.abc import Callable

from tests.worlds.waiting import Patience

from tidelog.errors import DamagedLog
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import copy_range


def opened(open_directory: Callable[[], LogDir], *, if_hard: bool = False) -> LogDir:
    """Open all partitions; cut refused partitions to their valid prefix and open again.

    With `if_hard`, return a cleanly stopped directory at once, without opening its partitions.
    After a hard stop, opening the directory opens all partitions anyway.
    """
    patience = Patience()
    while True:
        patience.check("every partition is cut to its valid prefix")
        directory = open_directory()
        if if_hard and directory.was_stopped_cleanly:
            return directory
        refused = [log for log in logs_of(directory) if isinstance(log.failure, DamagedLog)]
        if not refused:
            return directory
        directory.abandon()
        for log in refused:
            cut_to_sound_prefix(log)


def cut_to_sound_prefix(log: Log) -> None:
    """Cut a refused log at the start of its damage, and sync the cut; no synced byte is lost."""
    damage = log.failure
    assert isinstance(damage, DamagedLog)
    assert damage.offset is not None
    assert damage.position is not None
    assert damage.offset >= log.recovery_point, f"{damage}: it was synced"
    fs, directory = log.context.env.files, log.context.directory
    for segment in reversed(log.local_segments):
        if segment.base_offset > damage.offset or segment.log_path > damage.path:
            fs.remove(segment.log_path)
            fs.sync_dir(directory)
    # A copy replaces the file, so processes that have mapped it continue to read the old bytes.
    copy_range(log.context, damage.path, damage.path, 0, damage.position)


def logs_of(directory: LogDir) -> list[Log]:
    """Open and return all partitions of a directory."""
    return [
        directory.log(name.topic, name.partition)
        for topic in directory.topics()
        for name in directory.partitions(topic)
    ]
