"""Tiers of deleted topics, in `tidelog-tier-deleted.json` at the top of a directory.

Deleting a topic must not wait for a store. So the folders are noted here, durably, before the
topic's directories go, and `tidelog tier --collect` removes what they hold. A folder that a
partition still names is left alone: the deletion was never finished.

Text: `{"version": 1, "folders": [[URL, FOLDER, [CHANGE, ...]], ...]}`. CHANGE names the manifests
that this directory has written: a folder whose manifest has another one is a copy's of the
directory, where the topic may live on, and is not removed.
"""

import json
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.storage.tiers.fields import read_json
from tidelog.storage.tiers.record import read_record

DELETED_FILE: Final = "tidelog-tier-deleted.json"
_VERSION: Final = 1


class DeletedFolder(NamedTuple):
    """The folder of a deleted partition, and the URL of its store.

    Attributes:
        url: Of the store.
        folder: Key of the folder in it.
        changes: `change` of the manifests that may be there, as far as this directory knows.
    """

    url: str
    folder: str
    changes: tuple[str, ...] = ("",)


def read_deleted(fs: FileSystem, directory: str) -> list[DeletedFolder]:
    """What is noted; nothing where there is no such file.

    Raises:
        CorruptFile, UnsupportedVersion: It can't be read.
        OSError: A call failed.
    """
    path = f"{directory}/{DELETED_FILE}"
    try:
        found = read_json(files.read_file(fs, path), DELETED_FILE)
        if found.integer("version") != _VERSION:
            raise UnsupportedVersion(f"{DELETED_FILE}: version {found.integer('version')}")
        return [_decode(item) for item in found.items("folders")]
    except FileNotFoundError:
        return []
    except CorruptFile as error:
        raise error.located(path) from error


def _decode(item: object) -> DeletedFolder:
    match item:
        case [str(url), str(folder)] if folder:
            return DeletedFolder(url, folder)
        case [str(url), str(folder), [*changes]] if folder:
            return DeletedFolder(url, folder, tuple(map(str, changes)))
    raise CorruptFile(f"`folders` holds {str(item)[:80]}, URL and folder expected")


def write_deleted(fs: FileSystem, directory: str, folders: Iterable[DeletedFolder]) -> None:
    """Replace what is noted, durably; raises OSError."""
    content = {"version": _VERSION, "folders": [list(one) for one in folders]}
    path = f"{directory}/{DELETED_FILE}"
    files.write_atomically(fs, path, f"{json.dumps(content, indent=1)}\n".encode())


def note_deleted(fs: FileSystem, directory: str, folders: Iterable[DeletedFolder]) -> None:
    """Add folders to what is noted."""
    known = read_deleted(fs, directory)
    new = [one for one in folders if one not in known]
    if new:
        write_deleted(fs, directory, [*known, *new])


def note_partitions(
    fs: FileSystem, directory: str, names: Iterable[str], report: Callable[[str], None]
) -> None:
    """Note what partitions have in stores, by the names of their directories, before they go.

    A record that can't be read is left out: who can't be told from others is not removed.

    Raises:
        OSError: A call failed.
    """
    found = []
    for name in names:
        try:
            record = read_record(fs, f"{directory}/{name}")
        except (CorruptFile, UnsupportedVersion) as error:
            report(f"{error}; what the tier holds of it stays there")
            continue
        if record is not None:
            changes = (record.manifest.change, *record.pending)
            found.append(DeletedFolder(record.url, record.folder, changes))
    note_deleted(fs, directory, found)
