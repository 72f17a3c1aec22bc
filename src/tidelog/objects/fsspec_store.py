"""`ObjectStore` over fsspec, for URL schemes that obstore doesn't have (hdfs://, sftp://, ...).

Compare-and-swap is refused, because fsspec has no such operation. The fsspec file system and its
options determine timeouts and retries.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

from tidelog.env import FileSystem
from tidelog.errors import ConfigError, MissingDependency, StorageFailure
from tidelog.objects.store import (
    NO_MODIFIED,
    InfoList,
    NameList,
    ObjectInfo,
    TwoRequestStore,
    failure,
    file_parts,
    join_key,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_STEP: Final = "check the URL and the store.* options of fsspec for this scheme"
_CONTENT_NAMES: Final = ("ETag", "etag", "e_tag", "md5", "md5Hash", "checksum", "ino")
_TIME_NAMES: Final = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def open_fsspec(url: str, options: Mapping[str, str]) -> "FsspecStore":
    """Create the store at a URL that fsspec knows; see `open_store`."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependency(f"{url} needs fsspec: pip install 'tidelog[objects]'") from error
    # Listings and stores are not cached, because a log changes while it is read.
    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        handle, root = url_to_fs(url, **fresh, **options)
    except ImportError as error:
        raise MissingDependency(f"{url}: {error}") from error
    except ValueError as error:
        raise ConfigError("path", url, f"{error}; give a URL such as s3://bucket/logs") from error
    except (OSError, TypeError) as error:
        raise failure(url, "open", error, _STEP) from error
    return FsspecStore(url, handle, str(root))


class FsspecStore(TwoRequestStore):
    """An `ObjectStore` over an fsspec file system.

    Attributes:
        url: URL of the store.
    """

    def __init__(self, url: str, handle: "AbstractFileSystem", root: str) -> None:
        self.url = url
        self._fs = handle
        self._root = root.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    @contextmanager
    def _typed(self, operation: str, key: str) -> Iterator[None]:
        where = join_key(self.url, key)
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "No such object", where) from error
        except StorageFailure:
            raise
        except Exception as error:
            raise failure(where, operation, error, _STEP) from error

    def _info(self, facts: Mapping[str, object]) -> ObjectInfo:
        key = str(facts["name"])[len(self._root) :].lstrip("/")
        size = cast("int", facts.get("size") or 0)
        contents = [str(facts[name]) for name in _CONTENT_NAMES if facts.get(name) is not None]
        times = [facts[name] for name in _TIME_NAMES if facts.get(name) is not None]
        etag = "-".join([str(size), *contents, *(str(time) for time in times)])
        return ObjectInfo(key, size, etag, _ms(times[0]) if times else NO_MODIFIED)

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object; None if the object does not exist."""
        try:
            with self._typed("head", key):
                facts = self._fs.info(self._path(key))
        except FileNotFoundError:
            return None
        return self._info(facts) if facts["type"] == "file" else None

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from `start`; fewer only at the object's end.

        If `size` is None, return all bytes from `start` on.
        """
        end = None if size is None else start + size
        with self._typed("read", key):
            return bytes(self._fs.cat_file(self._path(key), start=start, end=end))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects in the folder and below it."""
        try:
            with self._typed("list", prefix):
                by_path = self._fs.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return
        for facts in by_path.values():
            yield self._info(facts)

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        """Return the objects directly in the folder, and its subfolders' names; both sorted."""
        try:
            with self._typed("list", prefix):
                entries = self._fs.ls(self._path(prefix), detail=True)
        except FileNotFoundError:
            return [], []
        objects = [self._info(facts) for facts in entries if facts["type"] == "file"]
        names = [str(facts["name"]) for facts in entries if facts["type"] == "directory"]
        return sorted(objects), sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object; an existing object is replaced."""
        with self._typed("put", key):
            self._make_folder(key)
            self._fs.pipe_file(self._path(key), data)
        return self._written(key)

    def _make_folder(self, key: str) -> None:
        folder = self._path(key).rpartition("/")[0]
        try:
            self._fs.makedirs(folder, exist_ok=True)
        except FileExistsError:  # some file systems raise it if another writer creates the folder
            if not self._fs.isdir(folder):
                raise

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        """Copy a finished file, in parts and with bounded memory.

        Until the copy is complete, object stores don't show it, but some file systems do.
        """
        size = fs.stat(path).size
        with self._typed("put", key):
            self._make_folder(key)
            target = self._fs.open(self._path(key), "wb")
            try:
                with target:
                    for part in file_parts(fs, path, size):
                        target.write(part)
            except BaseException:
                self.delete(key)  # otherwise readers would treat a partial file as complete
                raise
        return self._written(key)

    def put_if(
        self,
        key: str,
        data: bytes,  # noqa: ARG002 - part of the protocol
        *,
        etag: str | None,  # noqa: ARG002 - part of the protocol
    ) -> ObjectInfo | None:
        """Raise StorageFailure: fsspec has no conditional put."""
        raise StorageFailure(
            join_key(self.url, key),
            "compare and swap",
            "fsspec has no conditional put; use s3://, gs://, az:// or file://",
        )

    def delete(self, key: str) -> None:
        """Remove an object; a missing object is ignored."""
        try:
            with self._typed("delete", key):
                self._fs.rm_file(self._path(key))
        except FileNotFoundError:
            return


def _ms(time: object) -> int:
    if isinstance(time, datetime):
        return int(time.timestamp() * 1000)
    return int(time * 1000) if isinstance(time, int | float) else NO_MODIFIED
