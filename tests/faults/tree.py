"""The tree of names in a running file system; its errors are those of the system calls."""

import errno
from functools import lru_cache
from posixpath import normpath
from typing import TypeAlias

from tests.faults.journal import ROOT
from tests.faults.meter import os_error
from tests.faults.nodes import DirNode, FileNode, Image

Node: TypeAlias = FileNode | DirNode


@lru_cache(maxsize=4096)
def parts_of(path: str) -> tuple[str, ...]:
    """Return the names from the root down; a relative path also starts at the root."""
    return tuple(part for part in normpath(path).split("/") if part)


class Tree:
    """Directories and files by number, found by path."""

    def __init__(self, image: Image) -> None:
        self._next_node = image.next_node
        self.files = {
            number: FileNode(number, data, image.mtimes.get(number, 0))
            for number, data in image.files.items()
        }
        self.dirs = {
            number: DirNode(number, dict(names), image.mtimes.get(number, 0))
            for number, names in image.directories.items()
        }

    def find(self, path: str) -> Node:
        """Return the node of a path; raises FileNotFoundError, NotADirectoryError."""
        return self._descend(parts_of(path), path)

    def find_dir(self, path: str) -> DirNode:
        """Return the directory of a path; raises NotADirectoryError for a file."""
        node = self.find(path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def find_file(self, path: str) -> FileNode:
        """Return the file of a path; raises IsADirectoryError for a directory."""
        node = self.find(path)
        if isinstance(node, DirNode):
            raise os_error(errno.EISDIR, path)
        return node

    def place(self, path: str) -> tuple[DirNode, str]:
        """Return the parent directory of a path, which must exist, and the path's last name."""
        parts = parts_of(path)
        if not parts:
            raise os_error(errno.EBUSY, path)  # the root can't be changed
        parent = self._descend(parts[:-1], path)
        if isinstance(parent, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return parent, parts[-1]

    def child(self, parent: DirNode, name: str) -> Node | None:
        """Return the node of a name, None if there is no such name."""
        number = parent.names.get(name)
        if number is None:
            return None
        file = self.files.get(number)
        return self.dirs[number] if file is None else file

    def _descend(self, parts: tuple[str, ...], path: str) -> Node:
        node: Node = self.dirs[ROOT]
        for part in parts:
            if isinstance(node, FileNode):
                raise os_error(errno.ENOTDIR, path)
            below = self.child(node, part)
            if below is None:
                raise os_error(errno.ENOENT, path)
            node = below
        return node

    def add_file(self, parent: DirNode, name: str, now_ms: int) -> FileNode:
        """Add an empty file called `name`, which must be free."""
        node = FileNode(self._number(), b"", now_ms)
        self.files[node.number] = node
        parent.names[name] = node.number
        return node

    def add_dir(self, parent: DirNode, name: str, now_ms: int) -> DirNode:
        """Add an empty directory called `name`, which must be free."""
        node = DirNode(self._number(), {}, now_ms)
        self.dirs[node.number] = node
        parent.names[name] = node.number
        return node

    def _number(self) -> int:
        number, self._next_node = self._next_node, self._next_node + 1
        return number

    def unlink(self, parent: DirNode, name: str) -> Node:
        """Remove a name; the bytes remain until the last handle is closed."""
        node = self.child(parent, name)
        assert node is not None, f"no {name}"
        del parent.names[name]
        if isinstance(node, FileNode):
            node.linked = False
            self.forget(node)
        else:
            del self.dirs[node.number]
        return node

    def forget(self, node: FileNode) -> None:
        """Free the file if it has neither a name nor a handle."""
        if not node.linked and node.handles == 0:
            self.files.pop(node.number, None)

    def check_rename(self, source: str, target: str) -> None:
        """Raise the error that rename(2) would raise for these nodes, if any."""
        moved = self.find(source)
        parent, name = self.place(target)
        there = self.child(parent, name)
        if isinstance(moved, DirNode):
            if isinstance(there, FileNode):
                raise os_error(errno.ENOTDIR, target)
            if there is not moved and parts_of(target)[: len(parts_of(source))] == parts_of(source):
                raise os_error(errno.EINVAL, target)  # a rename into itself
            if there is not None and there is not moved and there.names:
                raise os_error(errno.ENOTEMPTY, target)
        elif isinstance(there, DirNode):
            raise os_error(errno.EISDIR, target)
