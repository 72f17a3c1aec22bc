"""A file system that also reads a tier's objects; their paths have store, key, size and checksum.

A tier path consists of an object's URL, size and checksum, `URL/KEY#SIZE-CRC`, for example
`s3://bucket/logs/t-.../0/.../0...42.log#700-0badcafe`. A key has four parts: folders of topic,
partition and segment, and the file. Tier objects never change. So `stat` takes the size from the
path, without a request. A read of a whole object raises an error if the content does not match the
path's checksum. Ranges are read by blocks through a bounded cache. All other paths are passed to
the file system below.

Thread-safe. Modules of object stores are imported at the first read.
"""

import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from tidelog.env import (
    Env,
    File,
    FileStat,
    FileSystem,
    LayeredFiles,
    OsFileSystem,
    ReadOnlyFile,
    forget,
    is_remote,
    prefetch,
)
from tidelog.errors import ConfigError, CorruptFile, InvalidRequest, MissingFile
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.storage.clocks.zone_map import FileSum
from tidelog.storage.files import read_decoded
from tidelog.storage.open_files import FilePool, MapCache

if TYPE_CHECKING:
    from tidelog.objects.blocks import BlockCache, BlockReader
    from tidelog.objects.store import ObjectStore


# Default maximum sizes in bytes of the caches of objects: in a folder, and in memory.
FOLDER_BYTES: Final = 1 << 30
MEMORY_BYTES: Final = 64 << 20

# Size of a block in bytes. A request reads at least one block, because a request for a few bytes
# costs as much as a request for a block.
BLOCK_BYTES: Final = 256 << 10

_OWN: Final = "tier_"
_OWN_NAMES: Final = frozenset({"tier_cache_dir", "tier_cache_bytes", "tier_memory_bytes"})
_ABSENT: Final = "absent"  # instead of the size and checksum of an object that never exists
_TIER_PATH: Final = re.compile(
    rf"(.+://.+)/((?:[^/]+/){{3}}[^/]+)#(?:([0-9]{{1,19}})-([0-9a-f]{{8}})|{_ABSENT})", re.DOTALL
)
TIER_FILE: Final = "tidelog-tier.json"

# Maximum size in bytes of `tidelog-tier.json`; 100,000 segments take about 80 MB.
RECORD_LIMIT_BYTES: Final = 1 << 30


def record_path(directory: str) -> str:
    """Return the path of a partition's `tidelog-tier.json`; `tier_record` decodes the file."""
    return f"{directory}/{TIER_FILE}"


def read_record_bytes(fs: FileSystem, directory: str) -> bytes | None:
    """Read a partition's `tidelog-tier.json`; None if missing. Raises OSError, CorruptFile."""
    return read_decoded(fs, record_path(directory), bytes, None, limit=RECORD_LIMIT_BYTES)


class TierPath(NamedTuple):
    """The parts of a tier path."""

    url: str
    key: str
    sum: FileSum


def tier_path(url: str, key: str, file_sum: FileSum | None) -> str:
    """Return the path of an object; without `file_sum`, a path that never exists."""
    if file_sum is None:
        return f"{url}/{key}#{_ABSENT}"
    return f"{url}/{key}#{file_sum.size_bytes}-{file_sum.crc32c:08x}"


def is_tier_path(path: str) -> bool:
    """Return whether a path has the form of a tier path, even of an object that does not exist."""
    return "#" in path and "://" in path and _TIER_PATH.fullmatch(path) is not None


def parse_tier_path(path: str) -> TierPath | None:
    """Parse a tier path; None if it names no object."""
    match = _TIER_PATH.fullmatch(path) if "#" in path else None
    if match is None or match[3] is None:
        return None
    return TierPath(match[1], match[2], FileSum(int(match[3]), int(match[4], 16)))


def object_url(path: str) -> str:
    """Return the URL of an object without size and checksum; any other path unchanged."""
    return path.rpartition("#")[0] if is_tier_path(path) else path


def _open_store(url: str, options: Mapping[str, str]) -> "ObjectStore":
    from tidelog.objects.object_files import shared_store

    return shared_store(url, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Options for opening stores and caching their objects.

    Attributes:
        store: Options of stores, without the prefix `store.`; see docs/objects.md.
        cache_dir: Folder for cached blocks; if None, they are cached in memory only.
        cache_bytes: Maximum size of the folder in bytes.
        memory_bytes: Maximum size of the cache in memory, in bytes.
        open_store: Function that opens a store; tests replace it.
    """

    store: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache_dir: str | None = None
    cache_bytes: int = FOLDER_BYTES
    memory_bytes: int = MEMORY_BYTES
    open_store: "Callable[[str, Mapping[str, str]], ObjectStore]" = _open_store

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "TierOptions":
        """Parse a user's options.

        Options that begin with `tier_` are options of the cache; all others are options of stores.

        Raises:
            ConfigError: An option is unknown, or a size is no whole number of bytes.
        """
        store = {name: text for name, text in options.items() if not name.startswith(_OWN)}
        unknown = options.keys() - store.keys() - _OWN_NAMES
        if unknown:
            allowed = f"not an option of tiers; there are: {', '.join(sorted(_OWN_NAMES))}"
            raise ConfigError(min(unknown), None, allowed)
        return cls(
            store=store,
            cache_dir=options.get(f"{_OWN}cache_dir"),
            cache_bytes=_size(options, f"{_OWN}cache_bytes", FOLDER_BYTES),
            memory_bytes=_size(options, f"{_OWN}memory_bytes", MEMORY_BYTES),
        )


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise ConfigError(f"store.{name}", text, "must be a whole number of bytes")
    return int(text)


class TierFiles(LayeredFiles):
    """The machine's files and, read-only, the objects of tiers."""

    def __init__(self, below: FileSystem, options: TierOptions | None = None) -> None:
        super().__init__(below)
        self.options = options or TierOptions()
        self._stores: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    @cached_property
    def _cache(self) -> "BlockCache":
        from tidelog.objects.blocks import BlockCache, FolderBlocks, MemoryBlocks

        memory, folder = MemoryBlocks(self.options.memory_bytes), self.options.cache_dir
        if folder is None:
            return BlockCache(memory)
        return BlockCache(memory, FolderBlocks(self.below, folder, self.options.cache_bytes))

    def store(self, url: str) -> "ObjectStore":
        """Return the store at a URL; the first call for a URL opens the store.

        Raises:
            InvalidRequest, ConfigError, MissingDependency: `tidelog.objects.open_store` can't open
                the store.
        """
        with self._lock:
            opened = self._stores.get(url)
            if opened is None:
                opened = self._stores[url] = self.options.open_store(url, self.options.store)
            return opened

    # -- calls on tier paths -----------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; an object of a tier can be opened only for reading."""
        if not is_tier_path(path):
            return self.below.open(path, write=write, create=create)
        if write or create:
            raise PermissionError(errno.EACCES, "objects of a tier are read-only", path)
        return _TierFile(self, path, _parsed(path))

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Return a read-only view of a file; an object of a tier is verified if read completely."""
        if not is_tier_path(path):
            return self.below.map(path, size)
        file = self.open(path)
        return memoryview(file.pread(file.size() if size is None else min(size, file.size()), 0))

    def stat(self, path: str) -> FileStat:
        """Return the status of a file; for an object of a tier, without a request to the store."""
        if not is_tier_path(path):
            return self.below.stat(path)
        location = _parsed(path)
        identity = (location.sum.crc32c, crc32c(path.encode()))
        return FileStat(location.sum.size_bytes, 0, False, identity)

    def exists(self, path: str) -> bool:
        """Return whether a file exists.

        A tier path counts as existing if it has the size and checksum of an object; the store is
        not queried.
        """
        if not is_tier_path(path):
            return self.below.exists(path)
        return parse_tier_path(path) is not None

    def is_remote(self, path: str) -> bool:
        """Return whether reading the file is a request over a network."""
        return is_tier_path(path) or is_remote(self.below, path)

    def forget(self, path: str) -> None:
        """Drop cached listings and files of a folder, but no tier objects: these never change."""
        forget(self.below, path)

    def prefetch(self, paths: Iterable[str]) -> None:
        """Prefetch small files that will be read soon; objects of tiers are ignored."""
        prefetch(self.below, [path for path in paths if not is_tier_path(path)])

    # -- reading objects ---------------------------------------------------------------------

    def _reader(self, path: str, parts: TierPath) -> "BlockReader":
        """Return a reader that reads an object through the cache."""
        from tidelog.objects.blocks import BlockReader

        def fetch(position: int, size: int) -> bytes:
            try:
                data = self.store(parts.url).read(parts.key, position, size)
            except FileNotFoundError as error:
                # The segment may have been replaced since the read was planned. A reader that reads
                # the manifest again finds the new object.
                reason = "not in the store; run `tidelog tier --verify`"
                raise MissingFile(path, "read", reason) from error
            if len(data) != size:
                end, size_bytes = position + len(data), parts.sum.size_bytes
                reason = f"the object has only {end} bytes, expected {size_bytes}"
                raise CorruptFile(f"{reason}; run `tidelog tier --verify`", path=path)
            return data

        size_bytes = parts.sum.size_bytes
        return BlockReader(self._cache, path, size_bytes, fetch, block_bytes=BLOCK_BYTES)

    def read(self, path: str, parts: TierPath, size: int, position: int) -> bytes:
        """Read at most `size` bytes of an object; a read of the whole object is verified."""
        reader = self._reader(path, parts)
        data = reader.pread(size, position)
        if len(data) < parts.sum.size_bytes or not data or crc32c(data) == parts.sum.crc32c:
            return data
        reader.drop_cached()  # damaged blocks in the cache must be read again
        data = reader.pread(size, position)
        if crc32c(data) != parts.sum.crc32c:
            reason = f"its checksum is {crc32c(data):08x}, expected {parts.sum.crc32c:08x}"
            raise CorruptFile(f"{reason}; run `tidelog tier --verify`", path=path)
        return data

    def clear_cache(self) -> None:
        """Drop the cached data of all objects, in memory and in the folder."""
        self._cache.clear()


class _TierFile(ReadOnlyFile):
    """An object, open for reading."""

    def __init__(self, tier_files: TierFiles, path: str, parts: TierPath) -> None:
        self._files, self._path, self._parts = tier_files, path, parts

    def pread(self, size: int, position: int) -> bytes:
        return self._files.read(self._path, self._parts, size, position)

    def size(self) -> int:
        return self._parts.sum.size_bytes

    def _refuse(self) -> NoReturn:
        raise PermissionError(errno.EACCES, "objects of a tier are read-only", self._path)


class VerifiedFile(ReadOnlyFile):
    """An object that is verified if it is read from its start to its end, in pieces of any size.

    The checksum of a batch does not cover the batch's leader epoch, but the object's checksum does.
    """

    def __init__(self, file: File, path: str, expected: FileSum) -> None:
        self._file, self._path, self._expected = file, path, expected
        self._end = self._crc = 0

    def pread(self, size: int, position: int) -> bytes:
        """Read bytes; raises CorruptFile if the whole object differs from its checksum."""
        data = self._file.pread(size, position)
        if position <= self._end < position + len(data):
            self._crc = crc32c(memoryview(data)[self._end - position :], self._crc)
            self._end = position + len(data)
            if self._end == self._expected.size_bytes and self._crc != self._expected.crc32c:
                expected = f"{self._expected.crc32c:08x}"
                reason = f"its checksum is {self._crc:08x}, expected {expected}"
                raise CorruptFile(f"{reason}; run `tidelog tier --verify`", path=self._path)
        return data

    def read_rest(self, piece_bytes: int) -> None:
        """Read the object from the position reached so far to its end, so that it is verified."""
        while self._end < self._expected.size_bytes:
            self.pread(piece_bytes, self._end)

    def size(self) -> int:
        """Return the size in bytes."""
        return self._file.size()


def verified(file: File, path: str) -> File:
    """Return a file that verifies complete reads of an object; other files are returned as is."""
    parts = parse_tier_path(path)
    return file if parts is None else VerifiedFile(file, path, parts.sum)


def _parsed(path: str) -> TierPath:
    if (location := parse_tier_path(path)) is None:
        raise FileNotFoundError(errno.ENOENT, "not in the tier's manifest", path)
    return location


_shared: Final[OrderedDict[tuple[object, ...], TierFiles]] = OrderedDict()
_shared_lock: Final = threading.Lock()
_SHARED_MAX: Final = 8


def tier_files_of(env: Env) -> TierFiles:
    """Return a file system that can also read tiers, configured by the options of an Env.

    For files of this machine, all directories that a process opens with the same options share one
    such file system and its cache of objects. So the cache is kept although every query opens its
    directory again.

    Raises:
        ConfigError: An option of the cache is invalid.
    """
    if isinstance(env.files, TierFiles):
        return env.files
    options = TierOptions.of(env.store_options)
    if type(env.files) is not OsFileSystem:  # a subclass may behave differently
        return TierFiles(env.files, options)
    # The key has the process id, because a forked child must not use files whose locks a thread of
    # its parent held.
    name = (os.getpid(), *sorted(env.store_options.items()))
    with _shared_lock:
        tier_files = _shared.get(name)
        if tier_files is None:
            tier_files = _shared[name] = TierFiles(env.files, options)
            while len(_shared) > _SHARED_MAX:
                _shared.popitem(last=False)
        return tier_files


def check_tier_url(url: str) -> str:
    """Return a URL in the form that tiers store, without a slash at its end.

    Raises:
        InvalidRequest: The text is no URL, or has characters that are ambiguous inside of a tier
            path.
    """
    if "#" in url or "://" not in url:
        raise InvalidRequest(f"{url!r} is not the URL of a store; write e.g. s3://bucket/logs")
    return url.rstrip("/")


class TierAccess(NamedTuple):
    """State shared by all partitions of a directory for reading their tiers.

    Attributes:
        files: Reads objects.
        pool: Open objects, which hold no resources.
        maps: Not used by remote segments, but every `SegmentContext` needs a cache of maps.
    """

    files: TierFiles
    pool: FilePool
    maps: MapCache

    @classmethod
    def over(cls, files: TierFiles) -> "TierAccess":
        """Create the shared state for these files."""
        return cls(files, FilePool(files, write=False), MapCache(files))
