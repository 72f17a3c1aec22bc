"""What a partition's directory knows of its tier, in the file `tidelog-tier.json`.

It holds the URL (never credentials), a copy of the manifest as the directory's owner has last
written or read it, and where the local part begins. So opening, planning and appending ask no
store. The file is replaced atomically before anything that it permits is done: local files go only
once it says that the tier has them, and a log that was cut is so here before a file is touched.

What the store does not know yet (a log start that moved, a cut) stands here, and goes into the
manifest with its next change. Kafka does not know the file and leaves it alone.

Source: docs/tiers.md#the-local-record.
"""

import dataclasses
import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.storage.tiers.fields import Fields
from tidelog.storage.tiers.manifest import (
    Clip,
    Manifest,
    manifest_object,
    manifest_of,
    seal,
    unseal,
)

TIER_FILE: Final = "tidelog-tier.json"
RECORD_VERSION: Final = 1
_MIDDLE: Final = b', "tier": '
# So many changes in a row may end without an answer from the store.
_PENDING_MAX: Final = 64
# 100,000 segments take about 80 MB.
RECORD_LIMIT_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRecord:
    """A partition's tier as its directory knows it.

    Attributes:
        url: Of the store.
        folder: Key of the partition's folder in it.
        manifest: As last written or read, with what was changed here since.
        local_start_offset: Local files below it are copies that may go; the tier has them.
        log_start_offset: Where the log starts, over both tiers.
        cut_offset: The log was cut here since the store's manifest was written; None if not.
        restart_offset: A cut below the local part is under way: local files go, and the log goes
            on at this offset, the end of what the tier keeps; None if not.
        pending: `change` of each manifest that this directory may have written since the one it
            has here: noted before the store is asked to take it, so that a copy of the directory,
            or one that was put back from a backup, can't take another's manifest for its own.
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
        """With a manifest that the store has now, so that the store knows every cut and start."""
        start = max(self.log_start_offset, manifest.log_start_offset)
        # A request that timed out may still change the manifest, until another one has.
        is_same = manifest.change == self.manifest.change
        return dataclasses.replace(
            self,
            manifest=manifest,
            log_start_offset=start,
            cut_offset=None,
            pending=self.pending if is_same else (),
        )

    def with_pending(self, change: str) -> "TierRecord":
        """With one more change that the store may soon have."""
        return dataclasses.replace(self, pending=(*self.pending, change)[-_PENDING_MAX:])

    def wrote(self, manifest: Manifest) -> bool:
        """Whether this directory has written a manifest, as far as its own notes prove it."""
        mine = self.manifest
        if manifest.change == mine.change:
            return manifest.generation == mine.generation
        return manifest.change in self.pending

    def with_start(self, offset: int) -> "TierRecord":
        """With the log start at `offset`, where it lies below."""
        return dataclasses.replace(self, log_start_offset=max(self.log_start_offset, offset))

    def with_cut(self, offset: int, clip: Clip, now_ms: int) -> "TierRecord":
        """With the log cut at `offset`: the tier counts only below.

        Args:
            offset: First offset that is gone.
            clip: What is left of a segment that holds it; see `Manifest.with_cut`.
            now_ms: By the wall clock.
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
        """With the log to go on where the tier ends, without any local file there is now."""
        end = self.manifest.end_offset
        return dataclasses.replace(self, local_start_offset=end, restart_offset=end)


def record_path(directory: str) -> str:
    """Where a partition's record lies."""
    return f"{directory}/{TIER_FILE}"


def encode_record(record: TierRecord) -> bytes:
    """The file's text."""
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
    """The record that `encode_record` wrote.

    Raises:
        CorruptFile: Its checksum is wrong, or a rule is broken.
        UnsupportedVersion: A later release wrote it.
    """
    found = unseal(data, _MIDDLE, "the record of the tier")
    version = found.integer("version")
    if version != RECORD_VERSION:
        raise UnsupportedVersion(f"{TIER_FILE} of version {version}, {RECORD_VERSION} is known")
    return TierRecord(
        url=found.text("url"),
        folder=found.text("folder"),
        manifest=manifest_of(found.mapping("manifest")),
        local_start_offset=found.integer("localStartOffset"),
        log_start_offset=found.integer("logStartOffset"),
        cut_offset=found.maybe_integer("cutOffset"),
        restart_offset=found.maybe_integer("restartOffset"),
        pending=_texts(found, "pending"),
    )


def _texts(found: Fields, name: str) -> tuple[str, ...]:
    """A list of texts, empty where there is none: an older release does not write it."""
    items = found.items(name) if name in found.content else []
    if not all(isinstance(item, str) for item in items):
        raise CorruptFile(f"{found.what}: `{name}` holds {str(items)[:80]}, texts expected")
    return tuple(map(str, items))


class _Decoded:
    """Records that were decoded before, by their bytes: a directory is opened again and again.

    At most `limit` segments of them; what is handed out is immutable. Safe for several threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: OrderedDict[bytes, TierRecord] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def decode(self, data: bytes) -> TierRecord:
        """As `decode_record`."""
        name = hashlib.blake2b(data, digest_size=20).digest()
        with self._lock:
            found = self._found.get(name)
            if found is not None:
                self._found.move_to_end(name)
                return found
        record = decode_record(data)
        with self._lock:
            if name in self._found:
                return record
            self._found[name] = record
            self._count += len(record.manifest.segments) + 1
            while self._count > self._limit:
                _, gone = self._found.popitem(last=False)
                self._count -= len(gone.manifest.segments) + 1
        return record


_DECODED: Final = _Decoded(200_000)


def read_record(fs: FileSystem, directory: str) -> TierRecord | None:
    """A partition's record, None where it has no tier.

    Raises:
        CorruptFile: It is damaged. The tier's own manifest is whole: `tidelog tier --restore`.
        UnsupportedVersion: A later release wrote it.
        OSError: A call failed.
    """
    path = record_path(directory)
    try:
        return _DECODED.decode(files.read_file(fs, path, limit=RECORD_LIMIT_BYTES))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise CorruptFile(
            f"{error.reason}; `tidelog tier --restore` makes it anew", path=path
        ) from (error)


def write_record(fs: FileSystem, directory: str, record: TierRecord) -> None:
    """Replace a partition's record, durably; raises OSError."""
    files.write_atomically(fs, record_path(directory), encode_record(record))
