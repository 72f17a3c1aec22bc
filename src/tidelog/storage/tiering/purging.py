"""Taking records out of a partition's tier for good: new objects in the place of old ones, at once.

What only the tier has is written anew and exchanged, a segment at a time, each by one
compare-and-swap. Copies of local segments are forgotten: a later run copies what those hold by
then. Old objects don't wait for the grace period, and neither does anything else that no manifest
names: a reader that planned before finds them missing, and plans anew.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.record.views import Batch
from tidelog.storage.segment import iterate_batches
from tidelog.storage.tiering.collecting import collect_orphans
from tidelog.storage.tiering.garbage import remove_garbage
from tidelog.storage.tiering.moving import MoveOptions, Mover
from tidelog.storage.tiering.rewriting import (
    Workplace,
    copy_rewritten,
    drop_rewritten,
    write_rewritten,
)
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.types import Buffer, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir

# A batch's bytes without the records of these offsets.
Strip = Callable[[Batch, set[int]], Buffer]


def purge_tier(
    log_dir: "LogDir", name: TopicPartition, hits: Mapping[int, set[int]], strip: Strip
) -> None:
    """Write the tier's segments anew without some records, and forget copies of local ones.

    Args:
        log_dir: Open for writing; nobody else may move this partition's segments meanwhile.
        name: The partition.
        hits: Offsets by the base offset of their segment, of local segments too: what the tier has
            of those, and of all behind the first of them, is forgotten.
        strip: Takes records out of a batch of format 2.

    Raises:
        CorruptData: A damaged batch or object, named; segments before it are purged.
        TierConflict: Another directory writes this tier.
        StorageFailure: Disk or store failed; doing it again goes on.
    """
    mover = Mover.open(log_dir, name, MoveOptions())
    mover.settle()
    for segment in mover.log.segments:
        if isinstance(segment, RemoteSegment) and segment.base_offset in hits:
            _purge(mover, segment, hits[segment.base_offset], strip)
    local = [base for base in hits if base >= mover.log.local_start_offset]
    if local:
        mover.forget_copies(min(local))


def _purge(mover: Mover, segment: RemoteSegment, offsets: set[int], strip: Strip) -> None:
    place, now_ms = Workplace.beside(mover.log), mover.log.context.env.clock.now_ms()
    batches = iterate_batches(segment, 0, segment.size_bytes)
    try:
        write_rewritten(place, [segment], (strip(batch, offsets) for _, batch in batches))
        row = copy_rewritten(place, mover.tier, mover.draw_uid(), [segment])
    finally:
        drop_rewritten(place, segment.base_offset)
    mover.swap(lambda manifest: manifest.with_exchanged([segment.row], [row], now_ms))


def remove_unnamed(log_dir: "LogDir", name: TopicPartition) -> list[str]:
    """Remove every object of a partition's folder that its manifest does not name, now.

    Returns:
        Keys of the folders that are gone.

    Raises:
        StorageFailure: The store failed; what was removed stays removed, doing it again goes on.
    """
    mover = Mover.open(log_dir, name, MoveOptions())
    manifest = mover.settle()
    now_ms = log_dir.env.clock.now_ms()
    tier = mover.log.tier
    if tier is not None:
        for one in manifest.garbage:
            log_dir.tier_files.drop_cached(tier.segment(one.segment).log_path)
    removed = remove_garbage(mover.tier, manifest, now_ms)
    if removed:
        mover.swap(lambda found: found.without_garbage(removed))
    return sorted({*map(mover.tier.key, removed), *collect_orphans(mover)})
