"""One partition's folder in a store: its manifest by compare-and-swap, its objects by key.

The manifest is the only object that changes. Whoever changes it reads it, and writes only where
nobody has written since; a lost race is begun anew with what the other has written. Only the holder
of the directory's lock comes here, so a race means a second copy of the directory: its changes are
refused where they contradict (`TierConflict`).
"""

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptFile, TierConflict
from tidelog.record.coding import crc32c
from tidelog.storage import files
from tidelog.storage.meta_properties import read_meta_properties
from tidelog.storage.tiers.manifest import Manifest, decode_manifest, encode_manifest
from tidelog.storage.zone_format import FileSum
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.objects.store import ObjectStore
    from tidelog.storage.log_dir import LogDir

MANIFEST_KEY: Final = "manifest.json"
# Another writer may be faster again and again, but not for ever.
_TRIES: Final = 10
READ_BYTES: Final = 8 << 20

# From the manifest in the store (None: there is none yet) to the next one.
Change = Callable[[Manifest | None], Manifest]


@dataclass(frozen=True, slots=True)
class PartitionTier:
    """The folder of one partition in a store."""

    store: "ObjectStore"
    folder: str

    def key(self, name: str) -> str:
        """Key of something in the folder."""
        return f"{self.folder}/{name}"

    def read(self) -> tuple[Manifest | None, str | None]:
        """The manifest and its etag; None and None where there is none.

        Raises:
            CorruptFile, UnsupportedVersion: It can't be read.
            StorageFailure: The store failed.
        """
        key = self.key(MANIFEST_KEY)
        try:
            data, info = self.store.read_with_info(key)
        except FileNotFoundError:
            return None, None
        try:
            return decode_manifest(bytes(data)), info.etag
        except CorruptFile as error:
            raise error.located(f"{self.store.url}/{key}") from error

    def update(self, change: Change) -> Manifest:
        """Replace the manifest by what `change` makes of it; what is there then.

        Args:
            change: May be called several times; what it raises is raised, and nothing is written.

        Raises:
            TierConflict: Somebody else keeps being faster.
            CorruptFile, UnsupportedVersion: What is there can't be read.
            StorageFailure: The store failed; the new manifest may have been written all the same.
        """
        for _ in range(_TRIES):
            found, etag = self.read()
            wanted = change(found)
            if wanted == found:
                return wanted
            written = _next(wanted, found)
            key = self.key(MANIFEST_KEY)
            if self.store.put_if(key, encode_manifest(written), etag=etag) is not None:
                return written
        raise TierConflict(
            f"{self.store.url}/{self.folder}: somebody else keeps changing the manifest; is there"
            " a second copy of this directory at work?"
        )

    def sum(self, key: str, size_limit: int) -> FileSum:
        """Length and CRC-32C of an object, read from end to end; -1 bytes where it is missing.

        Args:
            key: Below the folder.
            size_limit: Reading ends behind so many bytes.
        """
        size, crc = 0, 0
        while size <= size_limit:
            try:
                data = self.store.read(self.key(key), size, READ_BYTES)
            except FileNotFoundError:
                return FileSum(-1, 0)
            crc = crc32c(data, crc)
            size += len(data)
            if len(data) < READ_BYTES:
                break
        return FileSum(size, crc)


def _next(wanted: Manifest, found: Manifest | None) -> Manifest:
    generation = 0 if found is None else found.generation
    return dataclasses.replace(wanted, generation=generation + 1)


def folder_of(name: TopicPartition, topic_id: uuid.UUID) -> str:
    """Key of a partition's folder; topics of one name that were created anew differ in it."""
    return f"{name.topic}-{files.encode_topic_id(topic_id)}/{name.partition}"


def writer_of(log_dir: "LogDir") -> str:
    """Return the name of a directory in manifests: its id in `meta.properties`."""
    found = read_meta_properties(log_dir.env.files, log_dir.path) or {}
    return found.get("directory.id", "")
