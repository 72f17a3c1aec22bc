"""`ObjectStore` over a local or mounted folder: `file:///path`.

A put is durable: it writes and syncs a temporary file, then renames it. Compare-and-swap uses a
lock file, so it works only between processes that use this module. If another process holds the
lock, compare-and-swap returns None, as if another writer had been faster.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tidelog.env import File, FileSystem, OsFileSystem
from tidelog.errors import ConfigError
from tidelog.objects.store import (
    InfoList,
    NameList,
    ObjectInfo,
    TwoRequestStore,
    failure,
    file_parts,
    join_key,
    local_path,
)

LOCK_NAME: Final = ".tidelog-swap.lock"
PART_SUFFIX: Final = ".tidelog-part"


def open_folder(url: str, options: Mapping[str, str]) -> "FolderStore":
    """Create the store of a `file://` URL; see `open_store`."""
    if options:
        raise ConfigError(f"store.{min(options)}", None, "a folder (file://) has no settings")
    return FolderStore(url, OsFileSystem())


class FolderStore(TwoRequestStore):
    """An `ObjectStore` in a folder.

    Attributes:
        url: URL of the folder.
    """

    def __init__(self, url: str, fs: FileSystem) -> None:
        self.url = url
        self._root = local_path(url).rstrip("/")
        self._fs = fs

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _typed(self, operation: str, key: str) -> Iterator[None]:
        where = join_key(self.url, key)
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "No such object", where) from error
        except OSError as error:
            raise failure(where, operation, error) from error

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object; None if the object does not exist."""
        try:
            with self._typed("head", key):
                meta = self._fs.stat(self._path(key))
        except FileNotFoundError:
            return None
        if meta.is_dir:
            return None
        etag = f"{meta.identity[0]:x}-{meta.identity[1]:x}-{meta.mtime_ms:x}-{meta.size:x}"
        return ObjectInfo(key, meta.size, etag, meta.mtime_ms)

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from `start`; fewer only at the object's end.

        If `size` is None, return all bytes from `start` on.
        """
        with self._typed("read", key):
            file = self._fs.open(self._path(key))
            try:
                return file.pread(max(0, file.size() - start) if size is None else size, start)
            finally:
                file.close()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects in the folder and below it, and the files of unfinished puts.

        So a caller that removes orphans also removes the files that interrupted puts have left.
        """
        objects, folders = self._list_dir(prefix, with_parts=True)
        yield from objects
        for name in folders:
            yield from self.list(join_key(prefix, name))

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        """Return the objects directly in the folder, and its subfolders' names; both sorted."""
        return self._list_dir(prefix, with_parts=False)

    def _list_dir(self, prefix: str, *, with_parts: bool) -> tuple[InfoList, NameList]:
        try:
            with self._typed("list", prefix):
                entries = self._fs.list_dir(self._path(prefix))
        except FileNotFoundError:
            return [], []
        keys = [
            join_key(prefix, entry.name)
            for entry in entries
            if not entry.is_dir
            and entry.name != LOCK_NAME
            and (with_parts or not entry.name.endswith(PART_SUFFIX))
        ]
        infos = [info for info in map(self.head, keys) if info is not None]
        return infos, [entry.name for entry in entries if entry.is_dir]

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object, which is durable on return; an existing object is replaced."""
        return self._put(key, iter((data,)))

    def _put(self, key: str, parts: Iterator[bytes]) -> ObjectInfo:
        path = self._path(key)
        part_path = f"{path}{PART_SUFFIX}"
        try:
            self._make_folder(path.rpartition("/")[0])
            # The lock prevents another put of the same key from writing into the temporary file.
            lock = self._fs.lock(part_path)
            try:
                self._write_part(part_path, parts)
                self._fs.rename(part_path, path)
                self._fs.sync_dir(path.rpartition("/")[0])
            finally:
                lock.close()
        except OSError as error:
            raise failure(join_key(self.url, key), "put", error) from error
        return self._written(key)

    def _write_part(self, path: str, parts: Iterator[bytes]) -> None:
        file = self._fs.open(path, write=True)
        try:
            file.truncate(0)
            _write(file, parts)
            file.sync()
        finally:
            file.close()

    def _make_folder(self, path: str) -> None:
        """Create the folder and its missing parents, and sync the names of the new folders."""
        missing = []
        while path and not self._fs.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        for folder in reversed(missing):
            self._fs.make_dirs(folder)
            self._fs.sync_dir(folder.rpartition("/")[0] or "/")

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        """Copy a finished file, in parts; the object becomes visible when it is complete."""
        size = fs.stat(path).size
        return self._put(key, file_parts(fs, path, size))

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        """Compare and swap, while holding the folder's lock file."""
        with self._typed("lock", key):
            self._make_folder(self._root)
            try:
                lock = self._fs.lock(self._path(LOCK_NAME))
            except BlockingIOError:
                return None
        try:
            current = self.head(key)
            if (None if current is None else current.etag) != etag:
                return None
            return self.put(key, data)
        finally:
            lock.close()

    def delete(self, key: str) -> None:
        """Remove an object; a missing object is ignored."""
        try:
            with self._typed("delete", key):
                self._fs.remove(self._path(key))
                self._fs.sync_dir(self._path(key).rpartition("/")[0])
        except FileNotFoundError:
            return


def _write(file: File, parts: Iterator[bytes]) -> None:
    position = 0
    for part in parts:
        view = memoryview(part)
        while view:
            written = file.pwrite(view, position)
            position += written
            view = view[written:]
