"""The `ObjectStore` protocol, store URLs and the errors of stores.

A store reads whole objects and ranges, lists objects, puts with a condition, and uploads in parts
with bounded memory. Keys are relative to the store's URL; their parts are separated by slashes,
without a leading slash. A prefix is a folder of keys; '' means all keys. Calls block. With obstore,
calls retry transient failures, for a bounded number of attempts and a bounded time. Unless stated
otherwise, a failed call raises `StorageFailure` with the URL and the key. Calls are thread-safe.
"""

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from tidelog.env import FileSystem
from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.types import Buffer

# Value of `modified_ms` if the time is unknown. Most stores don't return the time in the response
# to a put.
NO_MODIFIED: Final = -1


class ObjectInfo(NamedTuple):
    """One object.

    Attributes:
        key: Name below the store's URL.
        size: Size in bytes.
        etag: Text that identifies this content: no other content of the object has the same etag.
            The form of the text depends on the store.
        modified_ms: Time of the put in ms since the epoch; `NO_MODIFIED` if unknown, such as in the
            result of a put by obstore.
    """

    key: str
    size: int
    etag: str
    modified_ms: int


# Aliases of list types. A class with a method `list` needs these aliases, because the method hides
# the type `list` in the class's annotations.
InfoList: TypeAlias = list[ObjectInfo]

NameList: TypeAlias = list[str]


class ObjectStore(Protocol):
    """Objects below one URL."""

    @property
    def url(self) -> str:
        """URL of the store, without a slash at its end and without credentials."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object; None if the object does not exist."""
        ...

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from `start`; fewer only at the object's end.

        If `size` is None, return all bytes from `start` on.

        Raises:
            FileNotFoundError: There is no such object.
        """
        ...

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Return a whole object and the properties of this content; raises FileNotFoundError."""
        ...

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[Buffer, ObjectInfo]:
        """Return at most `size` bytes from `start`, and the object's properties.

        `size` must be 1 or more, and `start` must be inside the object.

        Raises:
            FileNotFoundError: There is no such object, or its etag is not `etag`.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects in the folder and below it, in any order; none for a missing folder."""
        ...

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        """Return the objects directly in the folder, and its subfolders' names; both sorted."""
        ...

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object, completely or not at all; an existing object is replaced."""
        ...

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        """Copy a finished file, in parts and with bounded memory.

        The object becomes visible when it is complete, except in some file systems of fsspec.

        Raises:
            FileNotFoundError: There is no such file.
            StorageFailure: The file or the store failed, or the file became shorter during the
                copy.
        """
        ...

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        """Compare and swap: write only if the object still has this etag.

        Args:
            key: Key of the object.
            data: New content.
            etag: Etag of the content to replace; None if the object must not exist yet.

        Returns:
            The properties of the written object; None if nothing was written because another writer
            was faster.

        Raises:
            StorageFailure: The store has no conditional put, or failed. After a failure the object
                may have been written; read the object to find out.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing object is ignored."""
        ...


# fsspec chains schemes with '::'.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.:_-]*)://")


def is_url(path: str) -> bool:
    """Return whether a path is a store's URL (`s3://bucket/logs`) and not a local file."""
    return _SCHEME.match(path) is not None


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, in lower case.

    Raises:
        InvalidRequest: The text is not a URL, or contains a password.
    """
    match = _SCHEME.match(url)
    if match is None:
        raise InvalidRequest(f"{url!r} is not the URL of a store; write e.g. s3://bucket/logs")
    authority = url[match.end() :].partition("/")[0]
    if ":" in authority.rpartition("@")[0]:
        hidden = f"{match[0]}...@{authority.rpartition('@')[2]}"
        raise InvalidRequest(
            f"{hidden}: a URL must not contain credentials, because it is shown and logged;"
            " use environment variables or store.* options"
        )
    return match[1].lower()


def local_path(path: str) -> str:
    """Return the path of `file:///path`, or of Java's form `file:/path`; other texts unchanged.

    Raises:
        InvalidRequest: The URL names another machine.
    """
    if not path.lower().startswith("file:/"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise InvalidRequest(f"{path}: files of other machines can't be read; write file:///path")
    return unquote(parts.path) or "/"


def join_key(*parts: str) -> str:
    """Join parts of a key, or a URL and a key; empty parts are left out."""
    return "/".join(part for part in parts if part)


_QUERY: Final = re.compile(r"\?[^\s\"')]+")
_REASON_LIMIT: Final = 300

_CREDENTIALS: Final = {
    "s3": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION,"
    " or set AWS_PROFILE",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

_ENDPOINT: Final = {
    "s3": "check the bucket's name, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "check the bucket's name and the network",
    "az": "check the account's and the container's name",
}

_ALSO: Final = " (or give options store.*; docs/objects.md)"


def family_of(scheme: str) -> str:
    """Return s3, gs or az for an alias of these schemes; other schemes are returned unchanged."""
    if scheme in ("s3", "s3a", "s3n"):
        return "s3"
    if scheme in ("az", "azure", "adl", "abfs", "abfss"):
        return "az"
    return "gs" if scheme == "gcs" else scheme


def credentials_step(family: str) -> str:
    """Return the advice for a store that denies access."""
    return _CREDENTIALS.get(family, "check the credentials") + _ALSO


def endpoint_step(family: str) -> str:
    """Return the advice for an unreachable store."""
    return _ENDPOINT.get(family, "check the address and the network") + _ALSO


def without_queries(text: str) -> str:
    """Return a message's first line without queries of URLs, which may contain signatures.

    The line is cut after 300 characters.
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return _QUERY.sub("?...", first)[:_REASON_LIMIT]


def failure(where: str, operation: str, error: BaseException, step: str = "") -> StorageFailure:
    """Return the error for a failed call; `where` is the URL and key, `step` is the advice."""
    reason = without_queries(str(error)) if str(error) else type(error).__name__
    return StorageFailure(where, operation, f"{reason}; {step}" if step else reason)


# Size of a part of an upload, in bytes. S3 accepts up to 10,000 parts of at least 5 MB each. So an
# object that is uploaded in parts of 8 MB has at most 80 GB.
PART_BYTES: Final = 8 << 20


def file_parts(fs: FileSystem, path: str, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, part by part.

    Raises:
        StorageFailure: The file is shorter than `size`, or could not be read.
        OSError: The file could not be opened; `FileNotFoundError` if it does not exist.
    """
    file = fs.open(path)
    try:
        for start in range(0, size, PART_BYTES):
            part_bytes = min(PART_BYTES, size - start)
            try:
                part = file.pread(part_bytes, start)
            except OSError as error:
                raise StorageFailure(path, "read", str(error)) from error
            if len(part) < part_bytes:
                raise StorageFailure(
                    path, "upload", f"the file became shorter than {size} bytes during the upload"
                )
            yield part
    finally:
        file.close()


class TwoRequestStore(ABC):
    """Base class of an `ObjectStore` that requests data and properties separately.

    The properties are requested after the data, so that a replacement of the object before or
    during the read is detected.
    """

    url: str

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object; None if the object does not exist."""

    @abstractmethod
    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return bytes of an object; see `ObjectStore`."""

    def _existing(self, key: str) -> ObjectInfo:
        """Return the properties of an object; raises FileNotFoundError."""
        info = self.head(key)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, "No such object", join_key(self.url, key))
        return info

    def _written(self, key: str) -> ObjectInfo:
        """Return the properties of an object that was just written.

        Raises:
            StorageFailure: The store has no such object, for example because it was removed.
        """
        info = self.head(key)
        if info is None:
            where = join_key(self.url, key)
            raise StorageFailure(where, "put", "the object is missing after it was written")
        return info

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Return a whole object and its properties; see `ObjectStore`."""
        before = self._existing(key)
        while True:
            data, after = self.read(key), self._existing(key)
            if before == after:
                return data, after
            before = after

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[Buffer, ObjectInfo]:
        """Return bytes of an object and its properties; see `ObjectStore`."""
        data = self.read(key, start, size)
        info = self._existing(key)
        if etag is not None and info.etag != etag:
            where = join_key(self.url, key)
            raise FileNotFoundError(errno.ENOENT, "Replaced by another object", where)
        return data, info
