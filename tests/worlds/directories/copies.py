"""Copies directories of topics into a store, as a copy tool does, and counts calls of a store."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tidelog.env import FileSystem
from tidelog.objects import ObjectInfo, ObjectStore
from tidelog.objects.store import InfoList, NameList
from tidelog.types import Buffer


def copy_into(store: ObjectStore, directory: Path) -> None:
    """Copy all files of a directory, named by relative paths; empty folders are not copied."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            store.put(path.relative_to(directory).as_posix(), path.read_bytes())


class CountingStore:
    """Forwards calls to a store, and counts calls and bytes read."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self.calls: Counter[str] = Counter()
        self.read_bytes = 0
        self.reads: list[tuple[str, int, int]] = []
        self._store = store

    @property
    def requests(self) -> int:
        return sum(self.calls.values())

    def reset(self) -> None:
        self.calls.clear()
        self.reads.clear()
        self.read_bytes = 0

    def _note(self, key: str, start: int, data: Buffer) -> None:
        self.read_bytes += len(data)
        self.reads.append((key, start, len(data)))

    def head(self, key: str) -> ObjectInfo | None:
        self.calls["head"] += 1
        return self._store.head(key)

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self.calls["read"] += 1
        data = self._store.read(key, start, size)
        self._note(key, start, data)
        return data

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        self.calls["read"] += 1
        data, info = self._store.read_with_info(key)
        self._note(key, 0, data)
        return data, info

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[Buffer, ObjectInfo]:
        self.calls["read"] += 1
        data, info = self._store.read_range(key, start, size, etag=etag)
        self._note(key, start, data)
        return data, info

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.calls["list"] += 1
        return self._store.list(prefix)

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        self.calls["list"] += 1
        return self._store.list_dir(prefix)

    def put(self, key: str, data: bytes) -> ObjectInfo:
        self.calls["put"] += 1
        return self._store.put(key, data)

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        self.calls["put"] += 1
        return self._store.put_file(key, fs, path)

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        self.calls["put"] += 1
        return self._store.put_if(key, data, etag=etag)

    def delete(self, key: str) -> None:
        self.calls["delete"] += 1
        self._store.delete(key)
