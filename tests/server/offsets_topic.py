"""Writes the files of an uncompacted `__consumer_offsets` of any size.

Each group commits the same partitions repeatedly, in one batch per commit. The offsets in a group's
last commit differ from those in its earlier commits, so the loaded offsets show whether the last
commit was read.
"""

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from tidelog.record.builder import build_batch
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.groups.committed_offsets import CommittedOffset
from tidelog.server.groups.records import offset_record
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import CLEAN_SHUTDOWN_FILE
from tidelog.types import OFFSETS_TOPIC, NewRecord

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

TOPIC: Final = "flights"
SEGMENT_BYTES: Final = 100 << 20
COMMIT_MS: Final = 1_700_000_000_000


def last_offset(number: int) -> int:
    """Return the last committed offset of group `number`, which is the same in all partitions."""
    return 1000 + number


def group_name(number: int) -> str:
    """Return the group's name."""
    return f"readers of flights {number:06}"


def write_offsets_topic(
    path: Path, *, size_bytes: int, partitions: int, groups: int, places: int
) -> None:
    """Create a cleanly closed directory with an uncompacted `__consumer_offsets`.

    Args:
        path: The new directory.
        size_bytes: Approximate size of all logs together; each group has at least two commits.
        partitions: Number of partitions of `__consumer_offsets`.
        groups: Number of groups.
        places: Number of partitions, all of one topic, for which each group commits offsets.
    """
    config = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
    with LogDir.open(str(path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(OFFSETS_TOPIC, partitions=partitions, config=config)
        for number in range(partitions):
            log_dir.log(OFFSETS_TOPIC, number)
    rounds: dict[int, list[int]] = {number: [] for number in range(partitions)}
    for number in range(groups):
        rounds[partition_for(group_name(number), partitions)].append(number)
    for number, members in rounds.items():
        folder = path / f"{OFFSETS_TOPIC}-{number}"
        if members:
            _write_log(folder, members, places, size_bytes * len(members) // groups)
    # Without the mark of a clean shutdown, opening the directory recovers the logs. Recovery
    # creates the files that belong to each log file, such as indexes.
    (path / CLEAN_SHUTDOWN_FILE).unlink()
    with LogDir.open(str(path), options=LogDirOptions(create=True)) as log_dir:
        for number in range(partitions):
            log_dir.log(OFFSETS_TOPIC, number)


def _commit(number: int, places: int, offset: int) -> bytes:
    made = [
        offset_record(group_name(number), TOPIC, place, CommittedOffset(offset, 1, "", COMMIT_MS))
        for place in range(places)
    ]
    return bytes(
        build_batch(
            [NewRecord(key=each.key, value=each.value, timestamp=COMMIT_MS) for each in made]
        )
    )


def _write_log(folder: Path, members: list[int], places: int, size_bytes: int) -> None:
    for old in folder.glob("0*"):
        old.unlink()
    rounds = [[_commit(number, places, 1) for number in members]]
    rounds.append([_commit(number, places, last_offset(number)) for number in members])
    sizes = [len(batch) for batch in rounds[0]]
    count = max(size_bytes // sum(sizes), 2)
    offset, room = 0, 0
    file: BinaryIO | None = None
    for left in range(count, 0, -1):
        commits = rounds[left == 1]
        if file is None or room < sum(sizes) + 1024:
            if file is not None:
                file.close()
            file, room = (folder / f"{offset:020}.log").open("wb"), SEGMENT_BYTES
        data = bytearray().join(commits)
        _place(data, np.array([len(batch) for batch in commits]), offset, places)
        file.write(data)
        room -= len(data)
        offset += places * len(members)
    assert file is not None
    file.close()


def _place(data: bytearray, sizes: "Longs", offset: int, places: int) -> None:
    """Set base offsets of batches in place; checksums stay valid, as they don't cover offsets."""
    starts = np.cumsum(sizes) - sizes
    bases = (offset + places * np.arange(len(sizes))).astype(">i8").view(np.uint8)
    array = np.frombuffer(data, np.uint8)
    array[starts[:, None] + np.arange(8)] = bases.reshape(-1, 8)
