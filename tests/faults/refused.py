"""Partitions that an opening has refused: bytes before a valid batch are never cut.

A power loss may keep a write and lose an earlier one. Opening leaves such a log as it is, and its
owner decides. Crash tests choose its valid prefix, the only part with a guarantee.
"""

from collections.abc import Callable

from tidelog.errors import DamagedLog
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import copy_range


def opened(open_directory: Callable[[], LogDir], *, if_hard: bool = False) -> LogDir:
    """Open all partitions; where some are refused, cut them to their sound prefix and go on.

    With `if_hard` nothing but what a hard stop has opened anyhow.
    """
    while True:
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
    """Cut a refused log where its damage begins, durably; nothing that was synced is lost by it."""
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
    # Processes that have it mapped keep reading the old file.
    copy_range(log.context, damage.path, damage.path, 0, damage.position)


def logs_of(directory: LogDir) -> list[Log]:
    """All partitions of a directory, opened."""
    return [
        directory.log(name.topic, name.partition)
        for topic in directory.topics()
        for name in directory.partitions(topic)
    ]
