"""Finding a partition's tier again where its record is lost or damaged."""

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING

from tidelog.errors import InvalidRequest, TierConflict
from tidelog.storage import files
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.tiering.moving import folder_of, writer_of
from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.storage.tiers.manifest import Manifest
from tidelog.storage.tiers.record import TierRecord, write_record
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
    the log that the store had not heard of is forgotten with the record.

    Args:
        log_dir: Open for writing.
        name: The partition; its log must not have been opened.
        url: Of the store; None takes the topic's `tidelog.tier.url`.
        takes_over: Where another directory has written the manifest: go on with it here.

    Raises:
        InvalidRequest: No store is named, the topic has no id, or there is no manifest.
        TierConflict: Another directory has written it.
        CorruptFile: The manifest can't be read.
        StorageFailure: Store or disk failed.
    """
    info = log_dir.topic(name.topic)
    given = url or info.config.tidelog_tier_url
    if not given or info.topic_id is None:
        raise InvalidRequest(f"{name}: no store is named, or the topic has no id")
    place = check_tier_url(given)
    folder = folder_of(name, info.topic_id)
    manifest, _ = PartitionTier(log_dir.tier_files.store(place), folder).read()
    if manifest is None:
        raise InvalidRequest(f"{place}/{folder}: there is no manifest")
    writer = writer_of(log_dir)
    if manifest.writer != writer and not takes_over:
        raise TierConflict(
            f"{place}/{folder}: directory {manifest.writer} has written the manifest;"
            " with --take-over this one goes on"
        )
    directory = f"{log_dir.path}/{files.partition_dir_name(name)}"
    record = TierRecord(
        url=place,
        folder=folder,
        manifest=dataclasses.replace(manifest, writer=writer),
        local_start_offset=_local_start(log_dir, directory, manifest),
        log_start_offset=manifest.log_start_offset,
    )
    try:
        write_record(log_dir.env.files, directory, record)
    except OSError as error:
        raise as_storage_failure(error, directory, "restore tier") from error
    return record


def _local_start(log_dir: "LogDir", directory: str, manifest: Manifest) -> int:
    """From where on local files follow each other, as far as the manifest knows their ends."""
    parsed = (files.parse_file_name(e.name) for e in log_dir.env.files.list_dir(directory))
    bases = sorted(found[0] for found in parsed if found and found[1] == files.LOG_SUFFIX)
    ends = {row.base_offset: row.end_offset for row in manifest.segments}
    start = bases[-1] if bases else manifest.end_offset
    for base, following in reversed(list(pairwise(bases))):
        if ends.get(base, following) != following:
            break
        start = base
    return start
