"""Reads that name the very object that they read, for stores that tell facts and bytes apart.

Facts are asked again after the bytes: an object that was replaced in between is found out.
"""

import errno
from typing import Protocol

from tidelog.objects.store import ObjectInfo
from tidelog.objects.urls import join_key
from tidelog.types import Buffer


class _Store(Protocol):
    url: str

    def head(self, key: str) -> ObjectInfo | None: ...

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes: ...


def existing(store: _Store, key: str) -> ObjectInfo:
    """Facts on an object; raises FileNotFoundError."""
    found = store.head(key)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "No such object", join_key(store.url, key))
    return found


def read_whole(store: _Store, key: str) -> tuple[bytes, ObjectInfo]:
    """A whole object and the facts on exactly these bytes; raises FileNotFoundError."""
    before = existing(store, key)
    while True:
        data, after = store.read(key), existing(store, key)
        if before == after:
            return data, after
        before = after


def read_part(
    store: _Store, key: str, start: int, size: int, *, etag: str | None
) -> tuple[Buffer, ObjectInfo]:
    """At most `size` bytes from `start`, and facts on the object that they are of.

    Raises:
        FileNotFoundError: There is none, or another one than `etag` says.
    """
    data = store.read(key, start, size)
    found = existing(store, key)
    if etag is not None and found.etag != etag:
        where = join_key(store.url, key)
        raise FileNotFoundError(errno.ENOENT, "Replaced by another object", where)
    return data, found
