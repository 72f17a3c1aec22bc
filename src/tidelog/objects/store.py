"""The `ObjectStore` protocol, store URLs and the errors of stores.

Operations: whole objects and ranges, listings, conditional puts, uploads in parts with bounded
memory. Keys are relative to the store's URL, separated by slashes, without a leading slash; a
prefix is a folder of keys, '' means all keys. Calls block and retry transient failures within a
bounded number of attempts and time. They raise `StorageFailure` with the URL, the key and the next
step. Calls are thread-safe.
"""

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from tidelog.env import FileSystem
from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.types import Buffer

# What a put leaves as time of change: stores tell it only when asked again.
NO_MODIFIED: Final = -1


class ObjectInfo(NamedTuple):
    """One object.

    Attributes:
        key: Its name below the store's URL.
        size: Bytes.
        etag: Tells this content from what is put there later; opaque.
        modified_ms: When it was put, in ms; `NO_MODIFIED` in the answer to a put.
    """

    key: str
    size: int
    etag: str
    modified_ms: int


# A method named `list` hides the type of that name below it.
InfoList: TypeAlias = list[ObjectInfo]


NameList: TypeAlias = list[str]


class ObjectStore(Protocol):
    """Objects below one URL."""

    @property
    def url(self) -> str:
        """Where it is, without a slash at its end and without credentials."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Facts on an object, None where there is none."""
        ...

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes from `start`, all where `size` is None; fewer only where the object ends.

        Raises:
            FileNotFoundError: There is no such object.
        """
        ...

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """A whole object and the facts on exactly these bytes; raises FileNotFoundError."""
        ...

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[Buffer, ObjectInfo]:
        """At most `size` (1 up) bytes from `start`, which lies inside the object, and its facts.

        Raises:
            FileNotFoundError: There is no such object, or not the one of that etag any more.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects in the folder and below it, in no order; none where it does not exist."""
        ...

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        """Objects right in the folder, and the names of its subfolders; both sorted."""
        ...

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object, in the place of an older one if there is; whole or not at all."""
        ...

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        """Copy a finished file, in parts and with bounded memory; visible when it is whole.

        Raises:
            FileNotFoundError: There is no such file.
            StorageFailure: The file or the store failed, or the file's size changed meanwhile.
        """
        ...

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        """Compare and swap: write only where the object still is the one of that etag.

        Args:
            key: Its name.
            data: New content.
            etag: Of the content to be replaced; None where there must be no object yet.

        Returns:
            Facts on what was written; None where somebody else was faster, and nothing was written.

        Raises:
            StorageFailure: The store has no such operation, or failed. After a failure the object
                may have been written; read it to know.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object; fine where there is none."""
        ...


OPTION_PREFIX: Final = "store."


# fsspec chains schemes with '::'.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.:_-]*)://")


def is_url(path: str) -> bool:
    """Whether a path names a store (`s3://bucket/logs`) and not a file of this machine."""
    return _SCHEME.match(path) is not None


def scheme_of(url: str) -> str:
    """The scheme of a URL, in lower case.

    Raises:
        InvalidRequest: It is no URL, or one with a password inside.
    """
    match = _SCHEME.match(url)
    if match is None:
        raise InvalidRequest(f"{url!r} is no URL of a store, such as s3://bucket/logs")
    authority = url[match.end() :].partition("/")[0]
    if ":" in authority.rpartition("@")[0]:
        hidden = f"{match[0]}...@{authority.rpartition('@')[2]}"
        raise InvalidRequest(
            f"{hidden}: credentials don't belong into a URL, which is shown and logged;"
            " give them by the environment or by options store.*"
        )
    return match[1].lower()


def local_path(path: str) -> str:
    """The path of a `file:///path` URL, or `file:/path` as Java has it; all else as it is."""
    if not path.lower().startswith("file:/"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise InvalidRequest(f"{path}: files of other machines can't be read; write file:///path")
    return unquote(parts.path) or "/"


def join_key(*parts: str) -> str:
    """Parts of a key, or a URL and a key, put together; empty ones are left out."""
    return "/".join(part for part in parts if part)


def store_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of `options` whose names begin with `store.`, without that; names in lower case."""
    return {
        name[len(OPTION_PREFIX) :].lower(): value
        for name, value in options.items()
        if name.lower().startswith(OPTION_PREFIX)
    }


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
    """Which of s3, gs, az a scheme is another word for; itself otherwise."""
    if scheme in ("s3", "s3a", "s3n"):
        return "s3"
    if scheme in ("az", "azure", "adl", "abfs", "abfss"):
        return "az"
    return "gs" if scheme == "gcs" else scheme


def credentials_step(family: str) -> str:
    """What to do where a store does not let us in."""
    return _CREDENTIALS.get(family, "check the credentials") + _ALSO


def endpoint_step(family: str) -> str:
    """What to do where a store is not reached."""
    return _ENDPOINT.get(family, "check the address and the network") + _ALSO


def without_queries(text: str) -> str:
    """A message's first line, without what follows a question mark: signatures stand there."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return _QUERY.sub("?...", first)[:_REASON_LIMIT]


def failure(where: str, operation: str, error: BaseException, step: str = "") -> StorageFailure:
    """The typed error of a failed call; `where` is URL and key."""
    reason = without_queries(str(error)) if str(error) else type(error).__name__
    return StorageFailure(where, operation, f"{reason}; {step}" if step else reason)


# S3 takes parts of 5 MB up to 10,000 of them: 80 GB by these.
PART_BYTES: Final = 8 << 20


def file_parts(fs: FileSystem, path: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, part by part.

    Raises:
        StorageFailure: The file became shorter meanwhile, or could not be read.
        FileNotFoundError: There is none.
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
                raise StorageFailure(path, "upload", f"it has fewer than {size} bytes by now")
            yield part
    finally:
        file.close()


class TwoRequestStore(ABC):
    """Part of an `ObjectStore` that returns data and facts by separate requests.

    The facts are asked for again after the data, so that an object that was replaced in between is
    detected.
    """

    url: str

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore`."""

    @abstractmethod
    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """See `ObjectStore`."""

    def _existing(self, key: str) -> ObjectInfo:
        """Facts on an object; raises FileNotFoundError."""
        info = self.head(key)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, "No such object", join_key(self.url, key))
        return info

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """See `ObjectStore`."""
        before = self._existing(key)
        while True:
            data, after = self.read(key), self._existing(key)
            if before == after:
                return data, after
            before = after

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[Buffer, ObjectInfo]:
        """See `ObjectStore`."""
        data = self.read(key, start, size)
        info = self._existing(key)
        if etag is not None and info.etag != etag:
            where = join_key(self.url, key)
            raise FileNotFoundError(errno.ENOENT, "Replaced by another object", where)
        return data, info
