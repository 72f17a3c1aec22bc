"""Removes orphans (objects that no manifest names), and restores a lost or damaged tier record.

If copying a segment is interrupted, or the compare-and-swap of the manifest fails, a folder remains
that no manifest row names. The objects in the store are listed before the manifest is read, so a
folder that is added to the manifest in between is kept. An outdated listing does no harm, because
it differs only by new objects, which are kept, and by objects that are removed already. Folders
with objects younger than the grace period are kept, because another process may be writing them.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tidelog.amounts import offsets_text
from tidelog.env import File
from tidelog.errors import (
    CorruptData,
    CorruptFile,
    InvalidRequest,
    TierConflict,
    UnsupportedVersion,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files, log_files
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.open_files import typed_failures, walk_file
from tidelog.storage.text_files import write_partition_metadata
from tidelog.storage.tier.manifest import Manifest, TierSegment, missing_span
from tidelog.storage.tier.tier_files import check_tier_url, record_path
from tidelog.storage.tier.tier_record import (
    DELETED_FILE,
    DeletedFolder,
    TierRecord,
    read_deleted,
    read_record,
    write_deleted,
    write_record,
)
from tidelog.storage.tier_manager.mover import (
    GRACE_MS,
    MoveOptions,
    Mover,
    directory_named,
    record_of,
    settled_manifest,
)
from tidelog.storage.tier_manager.tier_store import (
    MANIFEST_KEY,
    READ_BYTES,
    PartitionTier,
    folder_of,
    remove_all,
    writer_of,
)
from tidelog.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess


_FOLDER: Final = re.compile(r"[0-9]{20}-[0-9a-f]{32}", re.ASCII)


@dataclass(slots=True)
class CollectedOrphans:
    """Orphans that were removed, or that a dry run would remove.

    Attributes:
        folders: Keys of the removed folders. A removed folder belongs to a segment that no manifest
            names, or to a partition of a deleted topic.
        objects: Number of objects in these folders.
        size_bytes: Size of these objects in bytes.
        refused: Partitions, and folders of deleted topics, in which nothing was removed, each with
            the reason: another directory wrote the manifest, or a file or manifest is damaged.
    """

    folders: list[str]
    objects: int = 0
    size_bytes: int = 0
    refused: dict[str, str] = field(default_factory=dict)


def collect(
    log_dir: "DirectoryAccess",
    names: Iterable[TopicPartition],
    *,
    grace_ms: int = GRACE_MS,
    dry_run: bool = False,
) -> CollectedOrphans:
    """Remove orphans of these partitions, and objects of deleted topics.

    Args:
        log_dir: The directory, open for writing; for a dry run, it may be open for reading.
        names: Partitions; partitions without a tier are skipped.
        grace_ms: Age in ms. A folder of orphans is kept if one of its objects is younger.
        dry_run: If True, orphans are only counted and returned: no file and no object is written or
            removed.

    Raises:
        UnknownTopic: No such partition.
        ReadOnly: The directory is open for reading, and this is no dry run.
        StorageFailure: A store or the disk failed; objects removed before stay removed.
    """
    collected = CollectedOrphans([])
    before_ms = log_dir.env.clock.now_ms() - grace_ms
    with typed_failures(log_dir.path, "collect orphans"):
        for name in names:
            with _refusals_noted(collected, str(name)):
                if dry_run:
                    _find_orphans(log_dir, name, before_ms, collected)
                elif log_dir.log(name.topic, name.partition).tier is not None:
                    mover = Mover.open(log_dir, name, MoveOptions(grace_ms=grace_ms))
                    _collect_orphans(mover, before_ms, collected)
        with _refusals_noted(collected, "deleted topics"):
            _collect_deleted(log_dir, collected, dry_run=dry_run)
    return collected


def collect_orphans(mover: Mover) -> list[str]:
    """Remove all objects that a partition's manifest doesn't name, however old they are.

    Returns the keys of the removed folders. No other process may be writing to the partition's
    folder. Raises StorageFailure if a store or the disk fails, and the errors of `Mover.settle`.
    """
    collected = CollectedOrphans([])
    _collect_orphans(mover, INT64_MAX, collected)
    return [mover.tier.key(folder) for folder in collected.folders]


def _collect_orphans(mover: Mover, before_ms: int, collected: CollectedOrphans) -> None:
    """Remove the orphans of a partition."""
    for keys in _orphans(mover.tier, mover.settle, before_ms, collected):
        remove_all(mover.tier, keys)


def _find_orphans(
    log_dir: "DirectoryAccess",
    name: TopicPartition,
    before_ms: int,
    collected: CollectedOrphans,
) -> None:
    """Add the orphans of a partition to `collected`; remove nothing."""
    if name.partition not in log_dir.topic(name.topic).present:
        return  # in a writable directory, `reader` would create the missing directory
    log = log_dir.reader(name.topic, name.partition)
    if log.tier is not None:
        record = record_of(log_dir, log, MoveOptions())
        tier = PartitionTier(log_dir.tier_files.store(record.url), record.folder)
        for _ in _orphans(tier, partial(settled_manifest, log, tier, record), before_ms, collected):
            pass


def _orphans(
    tier: PartitionTier,
    settle: Callable[[], Manifest],
    before_ms: int,
    collected: CollectedOrphans,
) -> Iterator[list[str]]:
    """Add the orphans of a partition to `collected`; yield the objects of each folder.

    `settle` returns the manifest; it is called after the objects were listed.
    """
    folders: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for info in tier.store.list(tier.folder):
        name = info.key.removeprefix(f"{tier.folder}/")
        folder_name = name.partition("/")[0]
        # The manifest, and objects that users have put into the folder, are no orphans.
        if _FOLDER.fullmatch(folder_name):
            folders[folder_name].append((name, info.size, info.modified_ms))
    named = settle().folders()
    for folder, objects in sorted(folders.items()):
        if folder in named or any(modified > before_ms for _, _, modified in objects):
            continue
        collected.folders.append(tier.key(folder))
        collected.objects += len(objects)
        collected.size_bytes += sum(size for _, size, _ in objects)
        yield [key for key, _, _ in objects]


def _collect_deleted(
    log_dir: "DirectoryAccess", collected: CollectedOrphans, *, dry_run: bool
) -> None:
    """Remove the objects of deleted topics; skip partitions that still exist."""
    deleted = read_deleted(log_dir.env.files, log_dir.path)
    if not deleted:
        return
    alive = {
        (view.record.url, view.record.folder)
        for info in log_dir.topics().values()
        for number in info.present
        if (view := _log_of(log_dir, info.name, number, dry_run=dry_run).tier) is not None
    }
    remaining = []
    for one in deleted:
        if (one.url, one.folder) in alive:
            continue
        name = f"{one.url}/{one.folder}"
        with _refusals_noted(collected, name):
            _check_writer(log_dir, one)
            _remove_folder(log_dir, one, collected, dry_run=dry_run)
        if name in collected.refused:
            remaining.append(one)
    if not dry_run:
        write_deleted(log_dir.env.files, log_dir.path, remaining)


def _log_of(log_dir: "DirectoryAccess", topic: str, number: int, *, dry_run: bool) -> LogView:
    return log_dir.reader(topic, number) if dry_run else log_dir.log(topic, number)


@contextmanager
def _refusals_noted(collected: CollectedOrphans, name: str) -> Iterator[None]:
    """Store an error of one tier in `collected.refused`, so that other tiers are processed."""
    try:
        yield
    except (TierConflict, CorruptData, InvalidRequest, UnsupportedVersion) as error:
        collected.refused[name] = str(error)


def _check_writer(log_dir: "DirectoryAccess", deleted: DeletedFolder) -> None:
    """Raise TierConflict if another directory wrote a deleted topic's manifest last."""
    tier = PartitionTier(log_dir.tier_files.store(deleted.url), deleted.folder)
    manifest, _ = tier.read()
    if manifest is None:
        return  # an earlier run of this directory has begun to remove the folder
    if manifest.writer != writer_of(log_dir) or manifest.change not in deleted.changes:
        raise TierConflict(
            "the topic was deleted here, but another directory, possibly a copy of this one, wrote"
            " its manifest, so nothing was removed. If its objects are not needed, remove them"
            f" from the store, and their line from {log_dir.path}/{DELETED_FILE}"
        )


def _remove_folder(
    log_dir: "DirectoryAccess",
    deleted: DeletedFolder,
    collected: CollectedOrphans,
    *,
    dry_run: bool,
) -> None:
    """Remove a folder, its manifest first, so that after a crash the other objects are orphans."""
    tier = PartitionTier(log_dir.tier_files.store(deleted.url), deleted.folder)
    objects = list(tier.store.list(deleted.folder))
    collected.folders.append(deleted.folder)
    collected.objects += len(objects)
    collected.size_bytes += sum(info.size for info in objects)
    if not dry_run:
        remove_all(tier, [MANIFEST_KEY])
        for info in objects:
            tier.store.delete(info.key)


def restore(
    log_dir: "DirectoryAccess",
    name: TopicPartition,
    url: str | None = None,
    *,
    takes_over: bool = False,
) -> TierRecord:
    """Rebuild a partition's tier record from the manifest in the store, before the log is opened.

    Call this function as `LogDirOptions.prepare`: after a hard stop, opening a directory opens
    every partition, before any other function could restore the record. A missing directory of the
    partition is created.

    The newest local files are kept, back to the first gap between two files. Older local files may
    have gaps between them if the manifest also has these files. Such files are copies, which are
    deleted later. If the lost record had a truncation that the store does not have yet, this
    truncation is lost, too. Local files that end inside of the tier's range are deleted when the
    log is opened, because the tier has all of their records. If the tier lacks a record of such a
    file, TierConflict is raised.

    Args:
        log_dir: The directory, open for writing.
        name: The partition; its log must not have been opened.
        url: URL of the store; the topic's `tidelog.tier.url` if None.
        takes_over: Whether to continue a manifest that another directory has written.

    Raises:
        UnknownTopic: No such topic.
        InvalidRequest: No store is named, the topic has no id, or there is no manifest.
        TierConflict: Another directory has written the manifest; or local files have other records
            at the manifest's offsets; or the manifest lacks offsets that the tier had according to
            the existing record.
        CorruptFile, UnsupportedVersion: The manifest can't be read.
        StorageFailure: Store or disk failed.
    """
    info = log_dir.topic(name.topic)
    configured_url = url or info.config.tidelog_tier_url
    if not configured_url or info.topic_id is None:
        raise InvalidRequest(f"{name}: no store is configured, or the topic has no id")
    store_url = check_tier_url(configured_url)
    folder = folder_of(name, info.topic_id)
    tier = PartitionTier(log_dir.tier_files.store(store_url), folder)
    manifest, _ = tier.read()
    if manifest is None:
        raise InvalidRequest(f"{store_url}/{folder}: there is no manifest")
    writer = writer_of(log_dir)
    if manifest.writer != writer and not takes_over:
        raise TierConflict(
            f"{store_url}/{folder}: {directory_named(manifest.writer)} has written the manifest;"
            " use --take-over to continue it here"
        )
    directory = f"{log_dir.path}/{files.partition_dir_name(name)}"
    with typed_failures(directory, "restore tier"):
        _check_record(log_dir, directory, manifest, f"{store_url}/{folder}")
        exists = log_dir.env.files.exists(directory)
        bases = _local_bases(log_dir, directory, manifest) if exists else []
        for base in bases:
            _check_local(log_dir, tier, manifest, directory, base)
    record = TierRecord(
        url=store_url,
        folder=folder,
        manifest=dataclasses.replace(manifest, writer=writer),
        local_start_offset=bases[0] if bases else manifest.end_offset,
        log_start_offset=manifest.log_start_offset,
    )
    with typed_failures(directory, "restore tier"):
        if not exists:
            _make_directory(log_dir, directory, info.topic_id)
        write_record(log_dir.env.files, directory, record)
    return record


def _make_directory(log_dir: "DirectoryAccess", directory: str, topic_id: UUID) -> None:
    """Create a partition's directory, durably; raises OSError."""
    log_dir.env.files.make_dirs(directory)
    write_partition_metadata(log_dir.env.files, directory, topic_id)
    log_dir.env.files.sync_dir(log_dir.path)


def _local_bases(log_dir: "DirectoryAccess", directory: str, manifest: Manifest) -> list[int]:
    """Return base offsets of the newest local log files, back to the first gap between files.

    The manifest shows where each file of a copied segment ends.
    """
    parsed = (log_files.parse_file_name(e.name) for e in log_dir.env.files.list_dir(directory))
    bases = sorted(name[0] for name in parsed if name and name[1] == log_files.LOG_SUFFIX)
    ends = {row.base_offset: row.end_offset for row in manifest.segments}
    count = min(len(bases), 1)
    for base, following in reversed(list(pairwise(bases))):
        if ends.get(base, following) != following:
            break
        count += 1
    return bases[len(bases) - count :]


def _check_record(
    log_dir: "DirectoryAccess", directory: str, manifest: Manifest, where: str
) -> None:
    """Raise TierConflict if the existing tier record has offsets that the manifest lacks."""
    try:
        record = read_record(log_dir.env.files, directory)
    except CorruptFile:
        return
    if record is None:
        return
    rows, start = record.manifest.segments, max(manifest.log_start_offset, record.log_start_offset)
    lost = missing_span(rows, manifest.segments, start)
    if lost is not None:
        raise TierConflict(
            f"{where}: the manifest lacks {offsets_text(lost[0], lost[1] - 1)}, which the tier"
            f" has according to {record_path(directory)}; restore the manifest, or, if these"
            " records are lost, remove that file, then restore again"
        )


def _check_local(
    log_dir: "DirectoryAccess", tier: PartitionTier, manifest: Manifest, directory: str, base: int
) -> None:
    """Raise TierConflict if a local file has a record in the tier's range that the tier lacks."""
    path = f"{directory}/{log_files.file_name(base, log_files.LOG_SUFFIX)}"
    row = next((r for r in manifest.segments if r.base_offset <= base < r.end_offset), None)
    if row is None:
        return
    file = log_dir.env.files.open(path)
    try:
        offset = _first_other(file, path, tier, row) if row.base_offset == base else base
    finally:
        file.close()
    if offset is not None and (offset < row.end_offset or row is not manifest.segments[-1]):
        raise TierConflict(
            f"{path}: from offset {offset} on it has other records than the store"
            f" ({tier.store.url}/{tier.key(row.key(log_files.LOG_SUFFIX))}). To use the store's"
            " records, move the file out of the directory and restore again; to keep the local"
            f" records, run `tidelog tier {manifest.topic}:{manifest.partition} --take-over"
            " --drop-theirs` instead"
        )


def _first_other(file: File, path: str, tier: PartitionTier, row: TierSegment) -> int | None:
    """Return the offset of a file's first sound batch that the object lacks.

    Returns None if the object has all sound batches. If the file is a copy that was made
    while the original grew, it may end in an incomplete batch.
    """
    same, size = _common_bytes(file, tier, row), file.size()
    if same == size:
        return None
    try:
        for position, batch in walk_file(file, path, 0, size):
            if position + batch.size_bytes > same:
                batch.ensure_valid()
                return batch.base_offset
    except CorruptData:
        pass
    return None


def _common_bytes(file: File, tier: PartitionTier, row: TierSegment) -> int:
    """Return the number of leading bytes that a log file and a row's log object have in common."""
    key, at, end = tier.key(row.key(log_files.LOG_SUFFIX)), 0, min(file.size(), row.log_bytes)
    while at < end:
        theirs = bytes(tier.store.read(key, at, min(READ_BYTES, end - at)))
        ours = bytes(file.pread(len(theirs), at))
        if theirs != ours or not theirs:
            pairs = enumerate(zip(theirs, ours, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), min(len(theirs), len(ours)))
            return at + first
        at += len(theirs)
    return at
