"""Finding a partition's tier again where its record is lost or damaged."""

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING

from tidelog.env import File
from tidelog.errors import CorruptData, CorruptFile, InvalidRequest, TierConflict
from tidelog.storage import files
from tidelog.storage.handles import as_storage_failure, walk_file
from tidelog.storage.tiering.merging import directory_named
from tidelog.storage.tiering.partition_tier import (
    READ_BYTES,
    PartitionTier,
    folder_of,
    writer_of,
)
from tidelog.storage.tiers.manifest import Manifest, missing_span
from tidelog.storage.tiers.record import TierRecord, read_record, record_path, write_record
from tidelog.storage.tiers.rows import TierSegment
from tidelog.storage.tiers.tier_files import check_tier_url
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


def restore(
    log_dir: "LogDir", name: TopicPartition, url: str | None = None, *, takes_over: bool = False
) -> TierRecord:
    """Write a partition's record anew from the manifest in the store, before the log is opened.

    Best as `LogDirOptions.prepare`: after a hard stop opening a directory opens every partition.

    Local files stay where they follow each other up to the log's end; older ones that the manifest
    has as well may have lost some in between, and are taken for copies that were to go. A cut of
    the log that the store had not heard of is forgotten with the record. Local files that end
    inside of what the tier has go when the log is opened, as all of their records are there; a
    local record that is not there is a conflict.

    Args:
        log_dir: Open for writing.
        name: The partition; its log must not have been opened.
        url: Of the store; None takes the topic's `tidelog.tier.url`.
        takes_over: Where another directory has written the manifest: go on with it here.

    Raises:
        InvalidRequest: No store is named, the topic has no id, or there is no manifest.
        TierConflict: Another directory has written it; or local files hold other records at its
            offsets; or it lacks offsets that the tier had by the record that is there.
        CorruptFile: The manifest can't be read.
        StorageFailure: Store or disk failed.
    """
    info = log_dir.topic(name.topic)
    given = url or info.config.tidelog_tier_url
    if not given or info.topic_id is None:
        raise InvalidRequest(f"{name}: no store is named, or the topic has no id")
    place = check_tier_url(given)
    folder = folder_of(name, info.topic_id)
    tier = PartitionTier(log_dir.tier_files.store(place), folder)
    manifest, _ = tier.read()
    if manifest is None:
        raise InvalidRequest(f"{place}/{folder}: there is no manifest")
    writer = writer_of(log_dir)
    if manifest.writer != writer and not takes_over:
        raise TierConflict(
            f"{place}/{folder}: {directory_named(manifest.writer)} has written the manifest;"
            " with --take-over this one goes on"
        )
    directory = f"{log_dir.path}/{files.partition_dir_name(name)}"
    _check_record(log_dir, directory, manifest, f"{place}/{folder}")
    bases = _local_bases(log_dir, directory, manifest)
    for base in bases:
        _check_local(log_dir, tier, manifest, directory, base)
    record = TierRecord(
        url=place,
        folder=folder,
        manifest=dataclasses.replace(manifest, writer=writer),
        local_start_offset=bases[0] if bases else manifest.end_offset,
        log_start_offset=manifest.log_start_offset,
    )
    try:
        write_record(log_dir.env.files, directory, record)
    except OSError as error:
        raise as_storage_failure(error, directory, "restore tier") from error
    return record


def _local_bases(log_dir: "LogDir", directory: str, manifest: Manifest) -> list[int]:
    """Local files that follow each other up to the end, as far as the manifest knows their ends."""
    parsed = (files.parse_file_name(e.name) for e in log_dir.env.files.list_dir(directory))
    bases = sorted(found[0] for found in parsed if found and found[1] == files.LOG_SUFFIX)
    ends = {row.base_offset: row.end_offset for row in manifest.segments}
    count = min(len(bases), 1)
    for base, following in reversed(list(pairwise(bases))):
        if ends.get(base, following) != following:
            break
        count += 1
    return bases[len(bases) - count :]


def _check_record(log_dir: "LogDir", directory: str, manifest: Manifest, where: str) -> None:
    """Raise TierConflict where the record that is there knows offsets that the manifest lacks."""
    try:
        known = read_record(log_dir.env.files, directory)
    except CorruptFile:
        return
    if known is None:
        return
    rows, start = known.manifest.segments, max(manifest.log_start_offset, known.log_start_offset)
    lost = missing_span(rows, manifest.segments, start)
    if lost is not None:
        raise TierConflict(
            f"{where}: the manifest lacks offsets {lost[0]} to {lost[1] - 1}, which the tier had by"
            f" {record_path(directory)}; put the manifest back, or remove that file if they are"
            " lost, then restore again"
        )


def _check_local(
    log_dir: "LogDir", tier: PartitionTier, manifest: Manifest, directory: str, base: int
) -> None:
    """Raise TierConflict where a local file has a record that the tier lacks at its offsets."""
    path = f"{directory}/{files.file_name(base, files.LOG_SUFFIX)}"
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
            f" ({tier.store.url}/{tier.key(row.key(files.LOG_SUFFIX))}). To go on with those of the"
            " store, move the file out of the directory and restore again; to keep the local ones,"
            " run `tidelog tier TOPIC --take-over --drop-theirs` instead"
        )


def _first_other(file: File, path: str, tier: PartitionTier, row: TierSegment) -> int | None:
    """Offset of the first sound batch of a file that is not the object's; None where all are.

    A copy that was taken while the file grew may end in half a batch.
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
    """How many bytes a log file and a row's log object have in common from the first on."""
    key, at, end = tier.key(row.key(files.LOG_SUFFIX)), 0, min(file.size(), row.log_bytes)
    while at < end:
        theirs = bytes(tier.store.read(key, at, min(READ_BYTES, end - at)))
        mine = bytes(file.pread(len(theirs), at))
        if theirs != mine or not theirs:
            pairs = enumerate(zip(theirs, mine, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), min(len(theirs), len(mine)))
            return at + first
        at += len(theirs)
    return at
