"""Caches blocks of objects, and reads an object by blocks.

A lookup needs small pieces of an object, such as a header and an index entry. To save requests, the
whole block around a piece is read in one request. `BlockReader` reads one object at any position in
as few requests as the cached blocks allow. `BlockCache` caches blocks by name, in memory and, if
the caller gives a folder, in files of this folder. The blocks in memory and the blocks in the
folder each have a limit in bytes. The least recently used block is evicted first.

Each file in the folder contains a block, the block's name and a checksum. An invalid file is
removed, and the block is read from the store again. So a damaged file costs time, but never causes
a wrong result. The folder contains only such files and temporary files, and may be deleted at any
time. Processes may share the folder; each process lists the folder from time to time to find blocks
that other processes have added.

Invariant: a block's name always stands for the same bytes, so a cached block is never stale. This
module does not access a store itself: a reader gets a function that fetches a range. Thread-safe.
"""

import hashlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidelog.env import FileSystem
from tidelog.record.coding import crc32c

# Maximum number of blocks in one request.
RUN_MAX: Final = 64

MAGIC: Final = b"TLCB"
_HEAD: Final = struct.Struct(">4sIII")
_BLOCK_SUFFIX: Final = ".block"
_TMP_SUFFIX: Final = ".tmp"
# Number of new blocks after which the folder is listed again, to find blocks that other processes
# have added.
_LIST_AGAIN: Final = 256


class MemoryBlocks:
    """Cache of at most `limit_bytes` of blocks in memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._blocks: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Size of all cached blocks."""
        return self._size_bytes

    def get(self, name: str) -> bytes | None:
        """Return a block, None if it is not cached."""
        with self._lock:
            block = self._blocks.get(name)
            if block is not None:
                self._blocks.move_to_end(name)
            return block

    def put(self, name: str, data: bytes) -> None:
        """Cache a block; a block that is larger than the limit is ignored."""
        if len(data) > self.limit_bytes:
            return
        with self._lock:
            old = self._blocks.pop(name, b"")
            self._blocks[name] = data
            self._size_bytes += len(data) - len(old)
            while self._size_bytes > self.limit_bytes:
                self._size_bytes -= len(self._blocks.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop all blocks."""
        with self._lock:
            self._blocks.clear()
            self._size_bytes = 0

    def drop(self, name: str) -> None:
        """Drop a block."""
        with self._lock:
            self._size_bytes -= len(self._blocks.pop(name, b""))


class FolderBlocks:
    """Cache of at most `limit_bytes` of blocks, each in a file of a folder."""

    def __init__(self, fs: FileSystem, folder: str, limit_bytes: int) -> None:
        self._fs = fs
        self._folder = folder.rstrip("/") or "/"
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._size_bytes = 0
        self._until_listing = 0
        self._number = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> bytes | None:
        """Return a block's bytes; None if missing or unreadable. A damaged file is removed."""
        file_name = _file_name(name)
        try:
            data = self._read(file_name)
        except OSError:
            return None  # an unreadable file counts as missing
        block = None if data is None else decode_block(data, name)
        with self._lock:
            if block is None:
                self._remove(file_name)
            elif file_name in self._sizes:
                self._sizes.move_to_end(file_name)
        return block

    def _read(self, file_name: str) -> bytes | None:
        """Return the content of a file; None if the file is larger than the cache's limit."""
        file = self._fs.open(f"{self._folder}/{file_name}")
        try:
            size = file.size()
            return file.pread(size, 0) if size <= self._limit_bytes else None
        finally:
            file.close()

    def put(self, name: str, data: bytes) -> None:
        """Write a block to the folder.

        A disk error is ignored, and a block over the limit is not written.
        """
        content = encode_block(data, name)
        if len(content) > self._limit_bytes:
            return
        with self._lock, suppress(OSError):
            if self._until_listing <= 0:
                self._list()
            self._make_room(len(content))
            self._write(_file_name(name), content)

    def drop(self, name: str) -> None:
        """Remove a block."""
        with self._lock:
            self._remove(_file_name(name))

    def clear(self) -> None:
        """Remove all blocks, also of other processes. Raises OSError if this fails."""
        with self._lock:
            for entry in self._fs.list_dir(self._folder) if self._fs.exists(self._folder) else ():
                if entry.name.endswith((_BLOCK_SUFFIX, _TMP_SUFFIX)):
                    with suppress(FileNotFoundError):
                        self._fs.remove(f"{self._folder}/{entry.name}")
            self._sizes.clear()
            self._size_bytes = 0

    def _list(self) -> None:
        """List the block files with their sizes, in order of eviction; remove temporary files.

        Files that this process has not used come first, in order of age, the oldest first. Files
        that this process has used follow, the least recently used file first.
        """
        self._until_listing = _LIST_AGAIN
        self._fs.make_dirs(self._folder)
        entries = []
        for entry in self._fs.list_dir(self._folder):
            if entry.name.endswith(_BLOCK_SUFFIX):
                with suppress(FileNotFoundError):
                    stat = self._fs.stat(f"{self._folder}/{entry.name}")
                    entries.append((stat.mtime_ms, entry.name, stat.size))
            elif entry.name.endswith(_TMP_SUFFIX):
                # Another process may still be writing this file. Its `put` then fails to rename the
                # file, and ignores this error.
                with suppress(OSError):
                    self._fs.remove(f"{self._folder}/{entry.name}")
        used = {name: number for number, name in enumerate(self._sizes)}
        entries.sort(key=lambda each: (used.get(each[1], -1), each[0]))
        self._sizes = OrderedDict((name, size) for _, name, size in entries)
        self._size_bytes = sum(self._sizes.values())

    def _make_room(self, size: int) -> None:
        while self._sizes and self._size_bytes + size > self._limit_bytes:
            self._remove(next(iter(self._sizes)))

    def _remove(self, file_name: str) -> None:
        self._size_bytes -= self._sizes.pop(file_name, 0)
        with suppress(OSError):
            self._fs.remove(f"{self._folder}/{file_name}")

    def _write(self, file_name: str, content: bytes) -> None:
        """Write a file without a sync.

        A crash may leave the file incomplete. `get` detects such a file by its checksum.
        """
        self._until_listing -= 1
        self._number += 1
        temporary = f"{self._folder}/{file_name}-{id(self):x}-{self._number}{_TMP_SUFFIX}"
        file = self._fs.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(content, 0)
        finally:
            file.close()
        self._fs.rename(temporary, f"{self._folder}/{file_name}")
        self._size_bytes += len(content) - self._sizes.pop(file_name, 0)
        self._sizes[file_name] = len(content)


class BlockCache:
    """Cache of blocks by name, in memory and, if the caller gives a folder, in the folder."""

    def __init__(self, memory: MemoryBlocks, folder: FolderBlocks | None = None) -> None:
        self.memory = memory
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """Return a block, None if it is missing or damaged."""
        block = self.memory.get(name)
        if block is None and self._folder is not None:
            block = self._folder.get(name)
            if block is not None:
                self.memory.put(name, block)
        return block

    def put(self, name: str, data: bytes) -> None:
        """Cache a block in memory and in the folder."""
        self.memory.put(name, data)
        if self._folder is not None:
            self._folder.put(name, data)

    def clear(self) -> None:
        """Drop all blocks in memory and in the folder. Raises OSError if the disk fails."""
        self.memory.clear()
        if self._folder is not None:
            self._folder.clear()

    def drop(self, name: str) -> None:
        """Drop a block, for example when the object turned out to be damaged."""
        self.memory.drop(name)
        if self._folder is not None:
            self._folder.drop(name)


class BlockReader:
    """Reader of an immutable object, at any position.

    Attributes:
        size_bytes: Size of the object.
    """

    def __init__(  # noqa: PLR0913 - the object, and how it is split into blocks
        self,
        cache: BlockCache,
        name: str,
        size_bytes: int,
        fetch: Callable[[int, int], bytes],
        *,
        block_bytes: int,
        run_max: int = RUN_MAX,
        reads_ahead: bool = False,
    ) -> None:
        """Create a reader; sends no request.

        Args:
            cache: Cache of the blocks.
            name: Unique name of the object's content.
            size_bytes: Size of the object.
            fetch: `fetch(position, size)` returns exactly `size` bytes by one request.
            block_bytes: Size of a block; the last block may be shorter.
            run_max: Maximum number of blocks in one request.
            reads_ahead: Whether to read ahead. If true, a request that begins where the previous
                request ended has twice as many blocks as the previous one, up to `run_max`.
        """
        self.size_bytes = size_bytes
        self._cache = cache
        self._name = name
        self._fetch_range = fetch
        self._block_bytes = block_bytes
        self._run_max = run_max
        self._reads_ahead = reads_ahead
        self._run = 1
        self._behind = -1  # index of the block after the last fetched block

    def pread(self, size: int, position: int) -> bytes:
        """Return `size` bytes, fewer only at the object's end; raises the errors of `fetch`."""
        end, block_bytes = min(position + size, self.size_bytes), self._block_bytes
        if end <= position:
            return b""
        first, last = position // block_bytes, (end - 1) // block_bytes
        parts = []
        number = first
        while number <= last:
            data = self._cache.get(f"{self._name}@{number}")
            if data is None:
                data = self._fetch(number, last)
            parts.append(data)
            number += -(-len(data) // block_bytes)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[position - first * block_bytes : end - first * block_bytes]

    def _fetch(self, first: int, last: int) -> bytes:
        """Fetch block `first` and the uncached blocks directly after it, in one request."""
        block_bytes, run_max = self._block_bytes, self._run_max
        is_next = self._reads_ahead and first == self._behind
        self._run = min(self._run * 2, run_max) if is_next else 1
        blocks_max = -(-self.size_bytes // block_bytes)
        behind = min(max(last + 1, first + self._run), first + run_max, blocks_max)
        count = 1
        while first + count < behind and self._cache.get(f"{self._name}@{first + count}") is None:
            count += 1
        start = first * block_bytes
        data = self._fetch_range(start, min(count * block_bytes, self.size_bytes - start))
        for number in range(count):
            at = number * block_bytes
            self._cache.put(f"{self._name}@{first + number}", data[at : at + block_bytes])
        self._behind = first + count
        return data

    def drop_cached(self) -> None:
        """Drop all cached blocks of the object."""
        for number in range(-(-self.size_bytes // self._block_bytes)):
            self._cache.drop(f"{self._name}@{number}")


def encode_block(data: bytes, name: str) -> bytes:
    """Return the content of a block's file.

    The content has these fields, in order: magic, length of the name, length of the data, CRC-32C
    of name and data, name, data.
    """
    named = name.encode()
    return _HEAD.pack(MAGIC, len(named), len(data), crc32c(data, crc32c(named))) + named + data


def decode_block(content: bytes, name: str) -> bytes | None:
    """Return the data in a block's file; None if the file is damaged or has another block."""
    if len(content) < _HEAD.size:
        return None
    magic, name_size, size, crc = _HEAD.unpack_from(content)
    named = content[_HEAD.size : _HEAD.size + name_size]
    data = content[_HEAD.size + name_size :]
    fits = magic == MAGIC and named == name.encode() and len(data) == size
    return data if fits and crc32c(data, crc32c(named)) == crc else None


def _file_name(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=20).hexdigest() + _BLOCK_SUFFIX
