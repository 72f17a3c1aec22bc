"""Cache of object blocks with read-ahead, bounded in blocks and in bytes.

A look-up reads a header in one place and an index entry in another, and each read costs a request.
So a read fetches the whole block, and a sequential reader gets larger blocks.
"""

import threading
from collections import OrderedDict
from typing import Final

from tidelog.objects.store import ObjectInfo, ObjectStore

BLOCK_BYTES: Final = 64 << 10
CACHE_BYTES: Final = 64 << 20
# Blocks in one request: 4 MB are fetched in the time of a few requests.
_RUN_MAX: Final = 64


class BlockCache:
    """At most `cache_bytes` of blocks; the least recently used go first. Safe for threads.

    Attributes:
        block_bytes: Size of a block; an object's last one may be shorter.
        run_max: So many blocks are fetched at once, at most.
    """

    def __init__(self, *, block_bytes: int = BLOCK_BYTES, cache_bytes: int = CACHE_BYTES) -> None:
        self.block_bytes = block_bytes
        self._blocks_max = max(1, cache_bytes // block_bytes)
        # What was read ahead must still be there when its turn comes.
        self.run_max = max(1, min(_RUN_MAX, self._blocks_max // 2))
        self._blocks: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, info: ObjectInfo, number: int) -> bytes | None:
        """A block of exactly this object, None where it is not there."""
        name = (info.key, info.etag, number)
        with self._lock:
            found = self._blocks.get(name)
            if found is not None:
                self._blocks.move_to_end(name)
            return found

    def put(self, info: ObjectInfo, first: int, data: bytes) -> None:
        """Keep the blocks that begin with number `first`."""
        size = self.block_bytes
        with self._lock:
            for at in range(0, len(data), size):
                self._blocks[info.key, info.etag, first + at // size] = data[at : at + size]
            while len(self._blocks) > self._blocks_max:
                self._blocks.popitem(last=False)


class ObjectReader:
    """One object, as it was when it was first looked at, for reading at any place."""

    def __init__(self, store: ObjectStore, info: ObjectInfo, cache: BlockCache) -> None:
        self.info = info
        self._store = store
        self._cache = cache
        self._run = 1
        self._behind = -1  # number of the block behind the last one fetched

    def pread(self, size: int, position: int) -> bytes:
        """At most `size` bytes; fewer only where the object ends.

        Raises:
            FileNotFoundError: It has gone, or is another object by now.
        """
        end = min(position + size, self.info.size)
        if end <= position:
            return b""
        block = self._cache.block_bytes
        first, last = position // block, (end - 1) // block
        parts = []
        number = first
        while number <= last:
            found = self._cache.get(self.info, number)
            if found is None:
                found = self._fetch(number, last)
            parts.append(found)
            number += -(-len(found) // block)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[position - first * block : end - first * block]

    def _fetch(self, first: int, last: int) -> bytes:
        """Blocks from `first` up to the next one that is known: one request."""
        block, run_max = self._cache.block_bytes, self._cache.run_max
        self._run = min(self._run * 2, run_max) if first == self._behind else 1
        blocks_max = -(-self.info.size // block)
        behind = min(max(last + 1, first + self._run), first + run_max, blocks_max)
        count = 1
        while first + count < behind and self._cache.get(self.info, first + count) is None:
            count += 1
        size = min(count * block, self.info.size - first * block)
        data, _ = self._store.read_range(self.info.key, first * block, size, etag=self.info.etag)
        found = bytes(data)
        if len(found) < size:
            raise FileNotFoundError(2, "Shorter than it was", f"{self._store.url}/{self.info.key}")
        self._cache.put(self.info, first, found)
        self._behind = first + count
        return found
