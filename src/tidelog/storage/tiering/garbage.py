"""Removing from the store what no manifest names any more, once readers had time."""

from collections.abc import Iterable

from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.storage.tiers.manifest import Manifest


def remove_garbage(tier: PartitionTier, manifest: Manifest, before_ms: int) -> set[str]:
    """Remove the objects of what left the manifest at or before a time.

    The log goes first, as a folder with a log in it passes for a whole one.

    Returns:
        Folders that are empty now; the manifest still names them as garbage.

    Raises:
        StorageFailure: The store failed; what was removed stays removed.
    """
    live = {row.folder for row in manifest.segments}
    due = [one.segment for one in manifest.garbage if one.since_ms <= before_ms]
    removed = set()
    for row in due:
        if row.folder in live:  # a part of it still counts
            removed.add(row.folder)
            continue
        remove_all(tier, (row.key(suffix) for suffix in sorted(row.objects, key=_log_first)))
        removed.add(row.folder)
    return removed


def remove_all(tier: PartitionTier, keys: Iterable[str]) -> None:
    """Remove objects of a folder; fine where they are gone."""
    for key in keys:
        tier.store.delete(tier.key(key))


def _log_first(suffix: str) -> bool:
    return suffix != ".log"
