"""Collecting orphans: objects that no manifest names and none will.

A copy that failed half way, or whose compare-and-swap never came, leaves a folder that nobody looks
at. The store is listed first and the manifest read after, so a folder that has got into it in
between is seen; a list that is behind shows less, or objects that are gone, and does no harm. What
is younger than the grace period is left alone: another process may be writing it for an exchange.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.errors import TierConflict
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.tiering.garbage import remove_all
from tidelog.storage.tiering.moving import GRACE_MS, MoveOptions, Mover
from tidelog.storage.tiering.partition_tier import MANIFEST_KEY, PartitionTier, writer_of
from tidelog.storage.tiers.deleted import DELETED_FILE, DeletedFolder, read_deleted, write_deleted
from tidelog.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir

_FOLDER: Final = re.compile(r"[0-9]{20}-[0-9a-f]{32}", re.ASCII)


@dataclass(slots=True)
class Collected:
    """What was removed, or would be.

    Attributes:
        folders: Keys of folders of segments that no manifest names, or of deleted topics.
        objects: How many objects were in them.
        size_bytes: Of these.
    """

    folders: list[str]
    objects: int = 0
    size_bytes: int = 0


def collect(
    log_dir: "LogDir",
    names: Iterable[TopicPartition],
    *,
    grace_ms: int = GRACE_MS,
    dry_run: bool = False,
) -> Collected:
    """Remove orphans of these partitions, and what deleted topics have left.

    Args:
        log_dir: Open for writing.
        names: Partitions; those without a tier are passed over.
        grace_ms: What was written later than so long ago stays.
        dry_run: Only say what would go.

    Raises:
        TierConflict: Another directory has written one of the tiers, or of those of deleted topics;
            these were kept, all others are done.
        StorageFailure: A store or the disk failed; what was removed stays removed.
    """
    found = Collected([])
    before_ms = log_dir.env.clock.now_ms() - grace_ms
    for name in names:
        if log_dir.log(name.topic, name.partition).tier is not None:
            mover = Mover.open(log_dir, name, MoveOptions(grace_ms=grace_ms))
            _collect_orphans(mover, before_ms, found, dry_run=dry_run)
    _collect_deleted(log_dir, found, dry_run=dry_run)
    return found


def collect_orphans(mover: Mover) -> list[str]:
    """Remove what no manifest of a partition names, whatever its age; the keys of its folders.

    Nobody else may be writing to the folder. Raises StorageFailure as `collect`.
    """
    found = Collected([])
    _collect_orphans(mover, INT64_MAX, found, dry_run=False)
    return [mover.tier.key(folder) for folder in found.folders]


def _collect_orphans(mover: Mover, before_ms: int, found: Collected, *, dry_run: bool) -> None:
    tier = mover.tier
    folders: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for info in tier.store.list(tier.folder):
        name = info.key.removeprefix(f"{tier.folder}/")
        found_folder = name.partition("/")[0]
        if _FOLDER.fullmatch(found_folder):  # nothing else is ours to remove
            folders[found_folder].append((name, info.size, info.modified_ms))
    named = mover.settle().folders()
    for folder, objects in sorted(folders.items()):
        if folder in named or any(modified > before_ms for _, _, modified in objects):
            continue
        found.folders.append(tier.key(folder))
        found.objects += len(objects)
        found.size_bytes += sum(size for _, size, _ in objects)
        if not dry_run:
            remove_all(tier, (key for key, _, _ in objects))


def _collect_deleted(log_dir: "LogDir", found: Collected, *, dry_run: bool) -> None:
    """What deleted topics had in stores; those that are still there are not touched."""
    deleted = read_deleted(log_dir.env.files, log_dir.path)
    if not deleted:
        return
    alive = {
        (view.record.url, view.record.folder)
        for info in log_dir.topics().values()
        for number in info.present
        if (view := log_dir.log(info.name, number).tier) is not None
    }
    foreign = []
    for one in deleted:
        if (one.url, one.folder) in alive:
            continue
        if _is_foreign(log_dir, one):
            foreign.append(one)
        else:
            _remove_folder(log_dir, one, found, dry_run=dry_run)
    if not dry_run:
        try:
            write_deleted(log_dir.env.files, log_dir.path, foreign)
        except OSError as error:
            raise as_storage_failure(error, log_dir.path, "note deletions") from error
    if foreign:
        names = ", ".join(f"{one.url}/{one.folder}" for one in foreign)
        raise TierConflict(
            f"{names}: the topic was deleted here, but another directory wrote its manifest:"
            f" a copy of this one? Nothing of it was removed. If nobody needs it, take it from the"
            f" store, and its line from {log_dir.path}/{DELETED_FILE}"
        )


def _is_foreign(log_dir: "LogDir", deleted: DeletedFolder) -> bool:
    """Whether another directory than this one wrote the manifest of a deleted topic last."""
    tier = PartitionTier(log_dir.tier_files.store(deleted.url), deleted.folder)
    manifest, _ = tier.read()
    if manifest is None:
        return False  # an earlier run has begun to remove the folder
    return manifest.writer != writer_of(log_dir) or manifest.change not in deleted.changes


def _remove_folder(
    log_dir: "LogDir", deleted: DeletedFolder, found: Collected, *, dry_run: bool
) -> None:
    """The manifest first: without it nothing in there is anybody's."""
    tier = PartitionTier(log_dir.tier_files.store(deleted.url), deleted.folder)
    objects = list(tier.store.list(deleted.folder))
    found.folders.append(deleted.folder)
    found.objects += len(objects)
    found.size_bytes += sum(info.size for info in objects)
    if not dry_run:
        remove_all(tier, [MANIFEST_KEY])
        for info in objects:
            tier.store.delete(info.key)
