"""The file with the state of a partition's tier, and `TierView`, which opens the tier's segments.

`tidelog-tier.json` has the URL (never credentials), a copy of the manifest as the directory last
wrote or read it, and the first local offset. With this file, opening a log, planning a read and
appending send no request to the store. A change of the log is stored in this file, atomically,
before the change is made. For example, local files are deleted only after the record states that
the tier has them, and a truncation is recorded before a file is changed. Changes that the store
doesn't have yet (a new log start, a truncation) are added to the manifest with its next change.
Kafka ignores the file.

`tidelog-tier-deleted.json`, in the data directory itself, lists the tiers of deleted topics, so
that the deletion of a topic needn't wait for a store. `tidelog-tier-deleted.json` is written
durably before the directories of the topic are removed; `tidelog tier --collect` then removes the
objects. A folder that an existing partition uses is kept, because the deletion of the partition was
not completed. Text: `{"version": 1, "folders": [[URL, FOLDER, [CHANGE, ...]], ...]}`. Each CHANGE
is the `change` of a manifest that this directory may have written. If the `change` of the folder's
manifest is not in this list, a copy of the directory wrote the manifest, and the folder is kept.

A `TierView`, created from the record, provides the segments below the first local offset.

Source: docs/tiers.md#the-tier-record.
"""

import dataclasses
import hashlib
import json
import posixpath
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.config import TopicConfig
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, LostOffsets, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files
from tidelog.storage.segment.gaps import lost_gap, was_never_cleaned
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.text_files import Fields, read_json
from tidelog.storage.tier.manifest import (
    Clip,
    Manifest,
    TierSegment,
    manifest_object,
    manifest_of,
    seal,
    unseal,
)
from tidelog.storage.tier.remote_segment import RemoteContext, RemoteSegment
from tidelog.storage.tier.tier_files import TIER_FILE, TierAccess, read_record_bytes, record_path

RECORD_VERSION: Final = 1
_MIDDLE: Final = b', "tier": '

# Maximum number of pending changes in a record; the oldest are dropped.
_PENDING_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRecord:
    """A partition's tier as stored in its directory.

    Attributes:
        url: URL of the store.
        folder: Key of the partition's folder in the store.
        manifest: The manifest as last written or read, with later local changes.
        local_start_offset: First local offset. Older local files are still to be deleted; the tier
            has copies of them.
        log_start_offset: Log start offset of the whole log, in the tier and in local files.
        cut_offset: Lowest offset at which the log was truncated after the last write of the store's
            manifest; None if the log was not truncated.
        restart_offset: Offset at which the log continues after a truncation below all local files:
            the end of the tier, or the log start if it is higher. None if no such truncation is in
            progress.
        pending: `change` of each manifest that this directory may have written after `manifest`.
            Each `change` is stored before the manifest is sent to the store. So a copy of this
            directory, or this directory after it was restored from a backup, notices a manifest
            whose `change` it lacks.
    """

    url: str
    folder: str
    manifest: Manifest
    local_start_offset: int = 0
    log_start_offset: int = 0
    cut_offset: int | None = None
    restart_offset: int | None = None
    pending: tuple[str, ...] = ()

    def with_manifest(self, manifest: Manifest) -> "TierRecord":
        """Return the record with a manifest that is in the store and has all local changes."""
        start = max(self.log_start_offset, manifest.log_start_offset)
        # If the manifest has the same `change` as before, the pending changes are kept. The reason:
        # after a timeout, a late request may still replace the manifest, until another change has
        # succeeded.
        is_same = manifest.change == self.manifest.change
        return dataclasses.replace(
            self,
            manifest=manifest,
            log_start_offset=start,
            cut_offset=None,
            pending=self.pending if is_same else (),
        )

    def with_pending(self, change: str) -> "TierRecord":
        """Return the record with one more pending change."""
        return dataclasses.replace(self, pending=(*self.pending, change)[-_PENDING_MAX:])

    def wrote(self, manifest: Manifest) -> bool:
        """Return whether the record proves that this directory has written a manifest."""
        own_copy = self.manifest
        if manifest.change == own_copy.change:
            return manifest.generation == own_copy.generation
        return manifest.change in self.pending

    def with_start(self, offset: int) -> "TierRecord":
        """Return the record with the log start raised to `offset`."""
        return dataclasses.replace(self, log_start_offset=max(self.log_start_offset, offset))

    def with_cut(self, offset: int, clip: Clip, now_ms: int) -> "TierRecord":
        """Return the record with the log truncated at `offset`; the tier ends at or below `offset`.

        Args:
            offset: First offset that is removed.
            clip: Returns the part of a segment below the offset; see `Manifest.with_cut`.
            now_ms: Wall time in ms.
        """
        manifest = self.manifest.with_cut(offset, clip, now_ms)
        cut = offset if self.cut_offset is None else min(self.cut_offset, offset)
        return dataclasses.replace(
            self,
            manifest=manifest,
            cut_offset=cut,
            local_start_offset=min(self.local_start_offset, offset),
            log_start_offset=min(self.log_start_offset, offset),
        )

    def with_restart(self) -> "TierRecord":
        """Return the record for a log that has no local files and continues at the tier's end.

        If the log start is above the tier's end, the log continues at the log start.
        """
        end = max(self.manifest.end_offset, self.log_start_offset)
        return dataclasses.replace(self, local_start_offset=end, restart_offset=end)


def encode_record(record: TierRecord) -> bytes:
    """Encode a record as the text of `tidelog-tier.json`."""
    inner = {
        "version": RECORD_VERSION,
        "url": record.url,
        "folder": record.folder,
        "localStartOffset": record.local_start_offset,
        "logStartOffset": record.log_start_offset,
        "cutOffset": record.cut_offset,
        "restartOffset": record.restart_offset,
        "pending": list(record.pending),
        "manifest": manifest_object(record.manifest),
    }
    return seal(json.dumps(inner, separators=(",", ":")).encode("ascii"), _MIDDLE)


def decode_record(data: bytes) -> TierRecord:
    """Decode the result of `encode_record`.

    Raises:
        CorruptFile: The checksum of the record is wrong, or the content is invalid.
        UnsupportedVersion: A later release wrote the record.
    """
    fields = unseal(data, _MIDDLE, "the record of the tier")
    fields.check_version(RECORD_VERSION, TIER_FILE)
    folder = fields.text("folder")
    if folder.count("/") != 1:  # `tier_files` requires keys of four parts
        raise CorruptFile(f"{fields.what}: `folder` is {folder[:300]!r}, expected TOPIC/PARTITION")
    return TierRecord(
        url=fields.text("url"),
        folder=folder,
        manifest=manifest_of(fields.mapping("manifest")),
        local_start_offset=fields.integer("localStartOffset"),
        log_start_offset=fields.integer("logStartOffset"),
        cut_offset=fields.maybe_integer("cutOffset"),
        restart_offset=fields.maybe_integer("restartOffset"),
        pending=_texts(fields),
    )


def _texts(fields: Fields) -> tuple[str, ...]:
    items = fields.items("pending")
    if not all(isinstance(item, str) for item in items):
        raise CorruptFile(f"{fields.what}: `pending` holds {str(items)[:80]}, texts expected")
    return tuple(map(str, items))


class _Decoded:
    """Cache of decoded tier records, by their bytes; each query of a partition reads its record.

    At most `limit` objects (records and their segments) are cached. Records are immutable.
    Thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: OrderedDict[bytes, TierRecord] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def decode(self, data: bytes) -> TierRecord:
        """Return the record, decoded by `decode_record` or from the cache."""
        name = hashlib.blake2b(data, digest_size=20).digest()
        with self._lock:
            record = self._records.get(name)
            if record is not None:
                self._records.move_to_end(name)
                return record
        record = decode_record(data)
        with self._lock:
            if name in self._records:
                return record
            self._records[name] = record
            self._count += len(record.manifest.segments) + 1
            while self._count > self._limit:
                _, oldest = self._records.popitem(last=False)
                self._count -= len(oldest.manifest.segments) + 1
        return record


_DECODED: Final = _Decoded(200_000)


def read_record(fs: FileSystem, directory: str) -> TierRecord | None:
    """Read a partition's tier record; return None if the partition has no tier.

    Raises:
        CorruptFile: The record is damaged; `tidelog tier TOPIC:P --restore` rebuilds it from the
            manifest.
        UnsupportedVersion: A later release wrote the record.
        OSError: A system call failed.
    """
    data = read_record_bytes(fs, directory)
    return None if data is None else _decode_record(data, directory)


def _decode_record(data: bytes, directory: str) -> TierRecord:
    try:
        return _DECODED.decode(data)
    except CorruptFile as error:
        raise CorruptFile(
            f"{error.reason}; {restore_command(directory)} rebuilds it",
            path=record_path(directory),
        ) from error


def restore_advice(config: TopicConfig, directory: str) -> str:
    """Return the advice to recover a lost partition from its tier; "" if it has no tier."""
    if not (config.remote_storage_enable and config.tidelog_tier_url):
        return ""
    return f", or recover the records that are in its tier by {restore_command(directory)}"


def restore_command(directory: str) -> str:
    """Return the command that rebuilds a partition's tier record, in backticks.

    Args:
        directory: Path of the partition's directory.
    """
    root, name = posixpath.split(directory)
    partition = files.parse_partition_dir(name)
    target = "TOPIC:P" if partition is None else f"{partition.topic}:{partition.partition}"
    return f"`tidelog tier {target} --restore --data {shlex.quote(root or '.')}`"


def write_record(fs: FileSystem, directory: str, record: TierRecord) -> None:
    """Replace a partition's tier record, durably; raises OSError."""
    files.write_atomically(fs, record_path(directory), encode_record(record))


DELETED_FILE: Final = "tidelog-tier-deleted.json"
_VERSION: Final = 1


class DeletedFolder(NamedTuple):
    """The folder of a deleted partition, and the URL of its store.

    Attributes:
        url: URL of the store.
        folder: Key of the folder in the store.
        changes: `change` of the manifests that this directory may have written there.
    """

    url: str
    folder: str
    changes: tuple[str, ...] = ("",)


def read_deleted(fs: FileSystem, directory: str) -> list[DeletedFolder]:
    """Read the folders of deleted partitions; empty if there is no such file.

    Raises:
        CorruptFile, UnsupportedVersion: The file can't be read.
        OSError: A system call failed.
    """
    return files.read_decoded(fs, f"{directory}/{DELETED_FILE}", _decode_deleted, [])


def _decode_deleted(data: bytes) -> list[DeletedFolder]:
    fields = read_json(data, DELETED_FILE)
    fields.check_version(_VERSION, DELETED_FILE)
    return [_decode(item) for item in fields.items("folders")]


def _decode(item: object) -> DeletedFolder:
    match item:
        case [str(url), str(folder)] if folder:
            return DeletedFolder(url, folder)
        case [str(url), str(folder), [*changes]] if folder:
            return DeletedFolder(url, folder, tuple(map(str, changes)))
    raise CorruptFile(f"`folders` holds {str(item)[:80]}, URL and folder expected")


def write_deleted(fs: FileSystem, directory: str, folders: Iterable[DeletedFolder]) -> None:
    """Replace the list of folders, durably; raises OSError."""
    content = {"version": _VERSION, "folders": [list(one) for one in folders]}
    path = f"{directory}/{DELETED_FILE}"
    files.write_atomically(fs, path, f"{json.dumps(content, indent=1)}\n".encode())


def note_deleted(fs: FileSystem, directory: str, folders: Iterable[DeletedFolder]) -> None:
    """Add folders to the list of deleted folders; raises the errors of `read_deleted`."""
    noted = read_deleted(fs, directory)
    new = [one for one in folders if one not in noted]
    if new:
        write_deleted(fs, directory, [*noted, *new])


def note_partitions(
    fs: FileSystem, directory: str, names: Iterable[str], report: Callable[[str], None]
) -> None:
    """Before partitions are deleted, add their folders to the list of deleted folders.

    A partition whose tier record can't be read is skipped, and its folder is not removed, because
    only the record names the folder.

    Args:
        fs: File system of the directory.
        directory: The directory of topics.
        names: Names of the partitions' directories.
        report: Receives a line for each unreadable record.

    Raises:
        CorruptFile, UnsupportedVersion: The list can't be read.
        OSError: A system call failed.
    """
    deleted = []
    for name in names:
        try:
            record = read_record(fs, f"{directory}/{name}")
        except (CorruptFile, UnsupportedVersion) as error:
            report(f"{error}; its objects in the tier are kept")
            continue
        if record is not None:
            changes = (record.manifest.change, *record.pending)
            deleted.append(DeletedFolder(record.url, record.folder, changes))
    note_deleted(fs, directory, deleted)


@dataclass(frozen=True, slots=True)
class TierView:
    """A partition's tier, according to the partition's tier record."""

    record: TierRecord
    context: SegmentContext
    access: TierAccess

    @classmethod
    def decode(cls, data: bytes, context: SegmentContext, access: TierAccess) -> "TierView":
        """Create the view of a partition's tier from the bytes of the tier's record.

        Raises:
            CorruptFile, UnsupportedVersion: The record can't be read, or belongs to another topic.
                Without the record it is unknown which local files the tier has copies of.
        """
        record = _decode_record(data, context.directory)
        topic_id = context.topic_id
        if topic_id.int and record.manifest.topic_id != topic_id.hex:
            raise CorruptFile(
                f"the file belongs to topic id {record.manifest.topic_id}, not to {topic_id.hex};"
                " remove the file if it was copied from another topic's directory",
                path=record_path(context.directory),
            )
        return cls(record, context, access)

    def with_record(self, record: TierRecord) -> "TierView":
        """Return the view of the same partition's tier with another record."""
        return dataclasses.replace(self, record=record)

    @property
    def url(self) -> str:
        """URL of the partition's folder."""
        return f"{self.record.url}/{self.record.folder}"

    @property
    def end_offset(self) -> int:
        """Offset after the tier's last segment, or the log start if that is higher.

        This is the log start if the tier has no segments.
        """
        return self.record.manifest.end_offset

    def local_bases(self, bases: Sequence[int]) -> list[int]:
        """Return the `bases` that belong to the log; older local files are copies to delete.

        A crash may leave some of these copies, with holes between them. While a truncation below
        the first local offset is in progress, only the log's new segment belongs to the log.
        """
        restart = self.record.restart_offset
        if restart is not None:
            return [base for base in bases if base == restart]
        start = self.record.local_start_offset
        return [base for base in bases if base >= start]

    def segments(self, below: int | None) -> list[RemoteSegment]:
        """Return segments that only the tier has, oldest first.

        If the offsets from a segment's end to the next segment, or to the first local file, are
        provably lost, the segment has them as `lost_at_end`.

        Args:
            below: First local offset; None if the log has no local files.

        Raises:
            OSError: The disk failed.
        """
        start, rows = self.record.log_start_offset, self.record.manifest.segments
        if below is not None:
            rows = tuple(row for row in rows if row.end_offset <= below)
        ends = [row.base_offset for row in rows[1:]]
        ends.append(start if below is None else below)
        segments = (
            self.segment(row, self._lost_behind(row, end))
            for row, end in zip(rows, ends, strict=False)
            if max(row.end_offset, end) > start
        )
        return [segment for segment in segments if segment.end_offset > start]

    def _lost_behind(self, row: TierSegment, end: int) -> LostOffsets | None:
        """Return the offsets from a row's end to `end` if they are lost (`storage.segment.gaps`).

        Raises OSError.
        """
        if end <= row.end_offset or not row.is_dense:
            return None
        context = self.context
        name = context.topic_partition
        if not was_never_cleaned(context.env.files, context.directory, context.config, name):
            return None
        return lost_gap(name, row.end_offset, end)

    def segment(self, row: TierSegment, lost: LostOffsets | None = None) -> RemoteSegment:
        """Return the segment of one row; `lost` are lost offsets that begin at the row's end."""
        shared = self.context
        return RemoteSegment(
            RemoteContext(
                env=dataclasses.replace(shared.env, files=self.access.files),
                directory=shared.directory,
                topic_partition=shared.topic_partition,
                topic_id=shared.topic_id,
                config=shared.config,
                pool=self.access.pool,
                maps=self.access.maps,
                report=shared.report,
                url=self.record.url,
                folder=self.record.folder,
                row=row,
            ),
            lost,
        )

    def hole(self, local_start: int) -> tuple[int, int] | None:
        """Return the offsets [start, end) between the tier and the local files, or None."""
        start = max(self.end_offset, self.record.log_start_offset)
        return (
            (start, local_start) if self.record.manifest.segments and start < local_start else None
        )
