"""The machine's files, for a process that is killed at one of its calls."""

import errno
from collections.abc import Iterable, Sequence
from random import Random

from tidelog.env import File, LocalFile, OsFileSystem, local_file
from tidelog.types import Buffer


class MortalFiles(OsFileSystem):
    """Allows a limited number of calls that change files; afterwards every such call fails.

    A write at which the process is killed may write a part of its bytes.

    Attributes:
        left: Number of calls that may still change files, None for no limit.
        is_dead: Whether the process was killed.
        last_words: The path of the call at which the process was killed, empty if it was killed
            between two calls.
    """

    def __init__(self, random: Random, left: int | None = None) -> None:
        self.left = left
        self.is_dead = False
        self.last_words = ""
        self._random = random

    def change(self, path: str) -> None:
        """Count a changing call.

        Raises:
            OSError: The process is dead.
        """
        if not self.is_dead and self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.is_dead, self.last_words = True, path
        if self.is_dead:
            raise OSError(errno.EIO, "killed", path)

    def part(self, size: int) -> int:
        """Return how many bytes the interrupted write writes."""
        return self._random.choice((0, size, self._random.randrange(size + 1)))

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; creating one is a change."""
        if create and not self.exists(path):
            self.change(path)
        file = super().open(path, write=write, create=create)
        return MortalFile(file, path, self) if write or create else file

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        self.change(path)
        super().make_dirs(path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.change(path)
        super().remove(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        self.change(path)
        super().remove_dir(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory."""
        self.change(source)
        super().rename(source, target)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set a modification time."""
        self.change(path)
        super().set_mtime(path, mtime_ms)


class MortalFile:
    """A writable file; reads still work after the kill, because no client sees their results."""

    def __init__(self, file: File, path: str, files: MortalFiles) -> None:
        found = local_file(file)
        assert found is not None
        self._file, self._local = file, found
        self._path, self._files = path, files
        self.pread, self.size = file.pread, file.size
        self.sync, self.close = file.sync, file.close

    def is_cached(self, positions: Iterable[int]) -> bool:
        return self._local.is_cached(positions)

    def read_cached(self, size: int, position: int) -> Buffer | None:
        return self._local.read_cached(size, position)

    def send(self, socket: int, size: int, position: int) -> int:
        return self._local.send(socket, size, position)

    def pwrite(self, data: Buffer, position: int) -> int:
        return self._write([data], position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._write(buffers, position)

    def _write(self, buffers: Sequence[Buffer], position: int) -> int:
        was_dead = self._files.is_dead
        try:
            self._files.change(self._path)
        except OSError:
            data = b"".join(bytes(each) for each in buffers)
            if not was_dead and data:
                self._file.pwrite(data[: self._files.part(len(data))], position)
            raise
        return self._file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        self._files.change(self._path)
        self._file.truncate(size)


assert issubclass(MortalFile, LocalFile)
