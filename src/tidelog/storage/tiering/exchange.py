"""Exchanging segments of a tier for others that span the same offsets, all in one step.

What a compaction of the tier needs: it writes new segments beside the old ones and then swaps the
manifest once. A reader goes by the old set or by the new one; the old objects stay for a while, for
those who planned before.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.errors import InvalidRequest
from tidelog.storage.tiering.copying import check_objects
from tidelog.storage.tiering.moving import MoveOptions, Mover
from tidelog.storage.tiers.manifest import Manifest
from tidelog.storage.tiers.rows import TierSegment
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


def exchange(
    log_dir: "LogDir",
    name: TopicPartition,
    old: Sequence[TierSegment],
    new: Sequence[TierSegment],
) -> Manifest:
    """Put `new` in the place of `old` in a partition's manifest.

    Args:
        log_dir: Open for writing.
        name: The partition.
        old: Neighbours, as they are in the manifest now; only the tier may have their offsets.
        new: Neighbours that span the same offsets; their objects are in the store already, and
            are read back here.

    Returns:
        The manifest with the new ones.

    Raises:
        InvalidRequest: Other offsets, or offsets that local files still hold.
        TierConflict: One of the old ones is gone meanwhile; nothing was changed.
        CorruptFile: An object of the new ones is not what its row says; nothing was changed.
        StorageFailure: Store or disk failed; the next run of `tidelog tier` knows what is true.
    """
    mover = Mover.open(log_dir, name, MoveOptions())
    mover.settle()
    local_start = mover.log.local_segments[0].base_offset
    if old and old[-1].end_offset > local_start:
        raise InvalidRequest(
            f"{name}: offsets from {local_start} on lie in local files, too, which an exchange"
            " would contradict; let them go first (local.retention.ms, local.retention.bytes)"
        )
    for row in new:
        check_objects(mover.tier, row)
    now_ms = log_dir.env.clock.now_ms()
    return mover.swap(lambda manifest: manifest.with_exchanged(old, new, now_ms))
