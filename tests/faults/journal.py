"""Journal of `DamageFileSystem`: one entry for each call that changed something.

Entries name files by number, as a disk does, so that a rename does not affect earlier entries.
"""

from dataclasses import dataclass
from typing import TypeAlias

ROOT = 1


@dataclass(frozen=True, slots=True)
class Write:
    """A write of bytes to a file."""

    node: int
    position: int
    data: bytes
    now_ms: int

    def __str__(self) -> str:
        return f"write {len(self.data)} bytes at {self.position}"


@dataclass(frozen=True, slots=True)
class Truncate:
    """A truncation of a file, or its extension with zeros."""

    node: int
    size: int
    now_ms: int

    def __str__(self) -> str:
        return f"truncate to {self.size} bytes"


@dataclass(frozen=True, slots=True)
class SetMtime:
    """A change of a modification time."""

    node: int
    now_ms: int

    def __str__(self) -> str:
        return f"set mtime {self.now_ms}"


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync of a file's bytes and size; if it `failed`, unsynced changes are in doubt forever."""

    node: int
    failed: bool = False

    def __str__(self) -> str:
        return "sync failed" if self.failed else "sync"


@dataclass(frozen=True, slots=True)
class Link:
    """A new file or directory under a new name."""

    node: int
    parent: int
    name: str
    is_dir: bool
    now_ms: int

    @property
    def directories(self) -> frozenset[int]:
        """Directories to sync before the name is durable."""
        return frozenset((self.parent,))

    def __str__(self) -> str:
        return "mkdir" if self.is_dir else "create"


@dataclass(frozen=True, slots=True)
class Unlink:
    """A removed name."""

    node: int
    parent: int
    name: str

    @property
    def directories(self) -> frozenset[int]:
        """Directories to sync before the removal is durable."""
        return frozenset((self.parent,))

    def __str__(self) -> str:
        return "remove"


@dataclass(frozen=True, slots=True)
class Rename:
    """A rename; if the new name exists, its node is replaced."""

    node: int
    source_parent: int
    parent: int
    name: str

    @property
    def directories(self) -> frozenset[int]:
        """Directories to sync before the rename is durable."""
        return frozenset((self.source_parent, self.parent))

    def __str__(self) -> str:
        return f"rename to {self.name}"


@dataclass(frozen=True, slots=True)
class SyncDir:
    """A sync of a directory's names."""

    node: int

    def __str__(self) -> str:
        return "sync_dir"


FileChange: TypeAlias = Write | Truncate | SetMtime
NameChange: TypeAlias = Link | Unlink | Rename
Change: TypeAlias = FileChange | NameChange | Sync | SyncDir


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded change, with the path at the time of the call."""

    path: str
    change: Change

    def __str__(self) -> str:
        return f"{self.path}: {self.change}"
