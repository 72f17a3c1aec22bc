"""What is asked of an object store: whole objects and ranges, listings, a put under a condition.

Keys are relative to the store's URL, parts separated by slashes, without a leading one; a prefix is
a folder of keys, '' for all of them. Calls block, repeat what may pass (bounded, as are their
times), and raise `StorageFailure` naming URL, key and what to do next. Safe for several threads.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

from tidelog.env import FileSystem
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
