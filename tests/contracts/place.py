"""Fixture for the contract of `FileSystem`: an empty directory on each implementation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults import DamageFileSystem

from tidelog.env import FileSystem, OsFileSystem


@dataclass(frozen=True, slots=True)
class Place:
    """A file system and an empty directory on it."""

    files: FileSystem
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes) -> str:
        path = self.path(name)
        file = self.files.open(path, create=True)
        if data:
            assert file.pwrite(data, 0) == len(data)
        file.close()
        return path

    def get(self, name: str) -> bytes:
        file = self.files.open(self.path(name))
        try:
            return file.pread(file.size() + 1, 0)
        finally:
            file.close()

    def names(self) -> list[str]:
        return [entry.name for entry in self.files.list_dir(self.root)]


@pytest.fixture(params=["os", "damage"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "os":
        yield Place(OsFileSystem(), str(tmp_path))
        return
    files = DamageFileSystem()
    files.make_dirs("/data")
    yield Place(files, "/data")
