"""What consumer groups had committed at the leader, kept beside a standby's partitions.

`tidelog-groups.json` at the top of the directory, replaced atomically. Offsets are the leader's,
which are the standby's too. Text of the file, format version 1:
`{"version": 1, "fetched_ms": MS, "groups": {GROUP: [{"topic": NAME, "partition": N,
"offset": N, "leader_epoch": N or null, "metadata": TEXT}]}}`
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage.files import read_file, write_atomically
from tidelog.types import Buffer

GROUPS_FILE: Final = "tidelog-groups.json"
GROUPS_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One commit: the next offset that the group reads of a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """All groups' commits as of one moment.

    Attributes:
        fetched_ms: When they were fetched, by the standby's clock.
        groups: Commits by group.
    """

    fetched_ms: int
    groups: Mapping[str, Sequence[GroupOffset]]


def encode_group_offsets(offsets: GroupOffsets) -> bytes:
    """The file's text, groups and partitions in order."""
    groups = {
        name: [
            {
                "topic": commit.topic,
                "partition": commit.partition,
                "offset": commit.offset,
                "leader_epoch": commit.leader_epoch,
                "metadata": commit.metadata,
            }
            for commit in sorted(commits, key=lambda c: (c.topic, c.partition))
        ]
        for name, commits in sorted(offsets.groups.items())
    }
    content = {"version": GROUPS_VERSION, "fetched_ms": offsets.fetched_ms, "groups": groups}
    return f"{json.dumps(content, indent=1)}\n".encode("ascii")


def decode_group_offsets(data: Buffer) -> GroupOffsets:
    """The commits in a file's text.

    Raises:
        CorruptFile: It is not what `encode_group_offsets` writes.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        content: object = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}") from error
    if not isinstance(content, dict) or type(content.get("version")) is not int:
        raise CorruptFile("a JSON object with a version expected")
    if content["version"] > GROUPS_VERSION:
        raise UnsupportedVersion(
            f"{GROUPS_FILE} of version {content['version']}, {GROUPS_VERSION} is known"
        )
    fetched_ms, groups = content.get("fetched_ms"), content.get("groups")
    if type(fetched_ms) is not int or not isinstance(groups, dict):
        raise CorruptFile("`fetched_ms` must be a number and `groups` an object")
    return GroupOffsets(fetched_ms, {name: _commits(name, found) for name, found in groups.items()})


def _commits(group: str, found: object) -> list[GroupOffset]:
    if not isinstance(found, list):
        raise CorruptFile(f"group {group[:80]!r}: a list of commits expected")
    return [_commit(group, entry) for entry in found]


def _commit(group: str, entry: object) -> GroupOffset:
    match entry:
        case {
            "topic": str(topic),
            "partition": int(partition),
            "offset": int(offset),
            "leader_epoch": int() | None as epoch,
            "metadata": str(metadata),
        }:
            return GroupOffset(topic, partition, offset, epoch, metadata)
    raise CorruptFile(f"group {group[:80]!r}: a commit that lacks a field: {str(entry)[:80]}")


def read_group_offsets(files: FileSystem, directory: str) -> GroupOffsets | None:
    """What the directory knows of groups, None where it has no such file.

    Raises:
        CorruptFile, UnsupportedVersion: As `decode_group_offsets`, with the path.
        OSError: A call failed.
    """
    path = posixpath.join(directory, GROUPS_FILE)
    try:
        return decode_group_offsets(read_file(files, path))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise error.located(path) from error


def write_group_offsets(files: FileSystem, directory: str, offsets: GroupOffsets) -> None:
    """Replace the file; raises OSError."""
    write_atomically(files, posixpath.join(directory, GROUPS_FILE), encode_group_offsets(offsets))
