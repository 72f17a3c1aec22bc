"""Blocks of remote objects that were read before: in memory, and in a folder where one is given.

Bounded in bytes, the least recently used block goes first. A block in the folder carries its name
and a checksum over all; one that does not fit is removed and read from the store again, so damage
costs time and never an answer. The folder holds nothing else and may be deleted at any time; it may
be shared by processes, each of which looks now and then at what the others have put there.

Objects in a tier never change (each copy has a name of its own), so a block is never stale.
Safe for several threads.
"""

import hashlib
import struct
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from tidelog.env import FileSystem
from tidelog.record.coding import crc32c
from tidelog.storage import files

MEMORY_BYTES: Final = 64 << 20


FOLDER_BYTES: Final = 1 << 30


MAGIC: Final = b"TLCB"


_HEAD: Final = struct.Struct(">4sIII")


_BLOCK_SUFFIX: Final = ".block"


# After so many new blocks the folder is listed again, for what other processes have put there.
_LOOK_AGAIN: Final = 256


class MemoryBlocks:
    """At most `limit_bytes` of blocks in memory."""

    def __init__(self, limit_bytes: int = MEMORY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes that are held."""
        return self._size_bytes

    def get(self, name: str) -> bytes | None:
        """A block, None where it is not held."""
        with self._lock:
            found = self._blocks.get(name)
            if found is not None:
                self._blocks.move_to_end(name)
            return found

    def put(self, name: str, data: bytes) -> None:
        """Hold a block; one that is larger than the limit is passed over."""
        if len(data) > self._limit_bytes:
            return
        with self._lock:
            old = self._blocks.pop(name, b"")
            self._blocks[name] = data
            self._size_bytes += len(data) - len(old)
            while self._size_bytes > self._limit_bytes:
                self._size_bytes -= len(self._blocks.popitem(last=False)[1])

    def drop(self, name: str) -> None:
        """Let go of a block."""
        with self._lock:
            self._size_bytes -= len(self._blocks.pop(name, b""))


class FolderBlocks:
    """At most `limit_bytes` of blocks in files of a folder."""

    def __init__(self, fs: FileSystem, folder: str, limit_bytes: int = FOLDER_BYTES) -> None:
        self._fs = fs
        self._folder = folder.rstrip("/") or "/"
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._size_bytes = 0
        self._until_look = 0
        self._number = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> bytes | None:
        """A block as it was put, None where there is none; a damaged one is removed."""
        file_name = _file_name(name)
        try:
            data = files.read_file(self._fs, f"{self._folder}/{file_name}", limit=1 << 30)
        except FileNotFoundError:
            return None
        except OSError:
            return None  # a cache that can't be read is as good as empty
        found = decode_block(data, name)
        with self._lock:
            if found is None:
                self._remove(file_name)
            elif file_name in self._sizes:
                self._sizes.move_to_end(file_name)
        return found

    def put(self, name: str, data: bytes) -> None:
        """Keep a block; where the disk refuses, it is not kept."""
        content = encode_block(data, name)
        if len(content) > self._limit_bytes:
            return
        with self._lock, suppress(OSError):
            if self._until_look <= 0:
                self._look()
            self._make_room(len(content))
            self._write(_file_name(name), content)

    def drop(self, name: str) -> None:
        """Remove a block."""
        with self._lock:
            self._remove(_file_name(name))

    def _look(self) -> None:
        """Count what is there, the oldest first."""
        self._until_look = _LOOK_AGAIN
        self._fs.make_dirs(self._folder)
        found = []
        for entry in self._fs.list_dir(self._folder):
            if entry.name.endswith(_BLOCK_SUFFIX):
                with suppress(FileNotFoundError):
                    stat = self._fs.stat(f"{self._folder}/{entry.name}")
                    found.append((stat.mtime_ms, entry.name, stat.size))
            elif entry.name.endswith(files.TMP_SUFFIX) and entry.name not in self._sizes:
                with suppress(OSError):  # another process may be about to rename it: it tries again
                    self._fs.remove(f"{self._folder}/{entry.name}")
        used = {name: place for place, name in enumerate(self._sizes)}
        found.sort(key=lambda each: (used.get(each[1], -1), each[0]))
        self._sizes = OrderedDict((name, size) for _, name, size in found)
        self._size_bytes = sum(self._sizes.values())

    def _make_room(self, size: int) -> None:
        while self._sizes and self._size_bytes + size > self._limit_bytes:
            self._remove(next(iter(self._sizes)))

    def _remove(self, file_name: str) -> None:
        self._size_bytes -= self._sizes.pop(file_name, 0)
        with suppress(OSError):
            self._fs.remove(f"{self._folder}/{file_name}")

    def _write(self, file_name: str, content: bytes) -> None:
        """Not synced: what a crash leaves of it is recognised."""
        self._until_look -= 1
        self._number += 1
        temporary = f"{self._folder}/{file_name}-{id(self):x}-{self._number}{files.TMP_SUFFIX}"
        file = self._fs.open(temporary, create=True)
        try:
            file.truncate(0)
            files.write_fully(file, content, 0)
        finally:
            file.close()
        self._fs.rename(temporary, f"{self._folder}/{file_name}")
        self._size_bytes += len(content) - self._sizes.pop(file_name, 0)
        self._sizes[file_name] = len(content)


class FolderBlockCache:
    """Blocks by name, in memory first."""

    def __init__(self, memory: MemoryBlocks, folder: FolderBlocks | None = None) -> None:
        self._memory = memory
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """A block, None where it is not there, or damaged."""
        found = self._memory.get(name)
        if found is None and self._folder is not None:
            found = self._folder.get(name)
            if found is not None:
                self._memory.put(name, found)
        return found

    def put(self, name: str, data: bytes) -> None:
        """Keep a block."""
        self._memory.put(name, data)
        if self._folder is not None:
            self._folder.put(name, data)

    def drop(self, name: str) -> None:
        """Forget a block, as where what it is part of turned out to be damaged."""
        self._memory.drop(name)
        if self._folder is not None:
            self._folder.drop(name)


def encode_block(data: bytes, name: str) -> bytes:
    """A block's file: magic, lengths of name and data, CRC-32C over both; name; data."""
    named = name.encode()
    return _HEAD.pack(MAGIC, len(named), len(data), crc32c(data, crc32c(named))) + named + data


def decode_block(content: bytes, name: str) -> bytes | None:
    """The data of a block's file, None where it is damaged or another block's."""
    if len(content) < _HEAD.size:
        return None
    magic, name_size, size, crc = _HEAD.unpack_from(content)
    named = content[_HEAD.size : _HEAD.size + name_size]
    data = content[_HEAD.size + name_size :]
    fits = magic == MAGIC and named == name.encode() and len(data) == size
    return data if fits and crc32c(data, crc32c(named)) == crc else None


def _file_name(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=20).hexdigest() + _BLOCK_SUFFIX
