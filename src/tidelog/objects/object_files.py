"""A read-only `FileSystem` over an object store, and the choice of store for a URL.

A path below the store's URL is an object. A path outside the store's URL is a local file, so that a
reader's caches can be on the local disk. A folder is listed once. The listing then provides sizes,
times and identities until `tidelog.env.forget` drops the listing. If all listings together have
more than 500,000 entries, the oldest listings are dropped. Logs and large objects are read by
blocks, and only in the version that was listed. If a log or a large object was replaced after the
listing, the object counts as missing, and the reader lists the folder again. Other objects are read
whole, from a cache or in their current version.
"""

import dataclasses
import errno
import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

from tidelog.env import (
    DirEntry,
    Env,
    File,
    FileStat,
    FileSystem,
    LayeredFiles,
    ReadOnlyFile,
    is_remote,
    os_env,
)
from tidelog.env.system import map_descriptor
from tidelog.lazy_dataclass import dataclass
from tidelog.objects.blocks import RUN_MAX, BlockCache, BlockReader, MemoryBlocks
from tidelog.objects.folder_store import open_folder
from tidelog.objects.fsspec_store import open_fsspec
from tidelog.objects.obstore_store import open_obstore
from tidelog.objects.store import PART_BYTES, ObjectInfo, ObjectStore, family_of, is_url, scheme_of
from tidelog.types import Buffer

OBJECTS_MAX: Final = 500_000


@dataclass(frozen=True, slots=True)
class Listing:
    """One folder: its objects by name (not by key), and the names of its subfolders."""

    objects: Mapping[str, ObjectInfo]
    folders: frozenset[str]

    def __len__(self) -> int:
        return len(self.objects) + len(self.folders)


class Listings:
    """Listings of one store, by folder. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._by_folder: OrderedDict[str, Listing] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, folder: str) -> Listing | None:
        """Return the cached listing of a folder; None if the folder's listing is not cached."""
        with self._lock:
            return self._by_folder.get(folder)

    def get(self, folder: str) -> Listing:
        """Return a folder's listing, from the cache or by a request; empty for a missing folder."""
        listing = self.cached(folder)
        if listing is None:
            objects, folders = self._store.list_dir(folder)
            by_name = {info.key.rpartition("/")[2]: info for info in objects}
            listing = Listing(by_name, frozenset(folders))
            with self._lock:
                self._by_folder[folder] = listing
                while len(self._by_folder) > 1 and self._count() > OBJECTS_MAX:
                    self._by_folder.popitem(last=False)
        return listing

    def _count(self) -> int:
        return sum(map(len, self._by_folder.values()))

    def forget(self, folder: str) -> None:
        """Drop the listings of the folder and of all folders below it."""
        with self._lock:
            for name in list(self._by_folder):
                if not folder or name == folder or name.startswith(f"{folder}/"):
                    del self._by_folder[name]


# Maximum size of a small object, which is read whole in one request.
SMALL_BYTES: Final = 256 << 10

# Size of a block of a large object.
BLOCK_BYTES: Final = 64 << 10
# Maximum bytes of cached blocks.
CACHE_BYTES: Final = 64 << 20

# Maximum number of bytes that `map` reads into memory. More bytes are copied into a file in the
# local temporary folder.
SPOOL_BYTES: Final = 16 << 20

_FETCHED_MAX: Final = 4_096
_FETCHED_BYTES_MAX: Final = 16 << 20
_THREADS: Final = 16


def identity_of(info: ObjectInfo) -> tuple[int, int]:
    """Return an object's `FileStat.identity`: a number derived from its etag, and its size."""
    digest = hashlib.sha256(info.etag.encode()).digest()
    return int.from_bytes(digest[:12], "big"), info.size


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "A directory in an object store is read only", path)


def _block_name(info: ObjectInfo) -> str:
    """Return the name of an object's content in the cache of blocks."""
    return f"{info.key}#{info.etag}"


class _ObjectReadOnly(ReadOnlyFile):
    def __init__(self, path: str) -> None:
        self._path = path

    def _refuse(self) -> NoReturn:
        _refuse(self._path)


class _ObjectFile(_ObjectReadOnly):
    """A log or a large object, read by blocks."""

    def __init__(self, path: str, reader: BlockReader) -> None:
        super().__init__(path)
        self._reader = reader

    def pread(self, size: int, position: int) -> bytes:
        return self._reader.pread(size, position)

    def size(self) -> int:
        return self._reader.size_bytes


class _SmallFile(_ObjectReadOnly):
    """A small object, read whole."""

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(path)
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def size(self) -> int:
        return len(self._data)


class ObjectFiles(LayeredFiles):
    """File system over an object store; the module's docstring describes it. Thread-safe.

    Attributes:
        store: Store of the objects. Paths outside the store's URL belong to the local file system
            `below`.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        local: FileSystem,
        block_bytes: int = BLOCK_BYTES,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(local)
        self.store = store
        self._block_bytes = block_bytes
        # One request fetches at most half of the cache's size, so that no block is evicted before
        # its use.
        self._run_max = max(1, min(RUN_MAX, cache_bytes // block_bytes // 2))
        self._blocks = BlockCache(MemoryBlocks(cache_bytes))
        self._listings = Listings(store)
        self._fetched: OrderedDict[str, bytes | None] = OrderedDict()
        self._lock = threading.Lock()

    # -- paths -------------------------------------------------------------------------------

    def is_remote(self, path: str) -> bool:
        """Return whether the path is in the store."""
        return path == self.store.url or path.startswith(f"{self.store.url}/")

    def key_of(self, path: str) -> str:
        """Return the key of a path in the store."""
        assert self.is_remote(path)
        return path[len(self.store.url) :].strip("/")

    def forget(self, path: str) -> None:
        """Drop the cached listings and small files of a folder and of all folders below it."""
        if not self.is_remote(path):
            return
        key = self.key_of(path)
        self._listings.forget(key)
        with self._lock:
            for name in list(self._fetched):
                if not key or name.startswith(f"{key}/"):
                    del self._fetched[name]

    def prefetch(self, paths: Iterable[str]) -> None:
        """Read small files in parallel, and cache their contents or their absence for `open`."""
        keys = [self.key_of(path) for path in paths if self.is_remote(path)][:_FETCHED_MAX]
        with self._lock:
            keys = [key for key in keys if key not in self._fetched]
        keys = [key for key in keys if not self._is_large(key)]
        if len(keys) < 2:
            return
        with ThreadPoolExecutor(min(_THREADS, len(keys))) as pool:
            for key, data in zip(keys, pool.map(self._read_small, keys), strict=True):
                self._keep(key, data)

    def _is_large(self, key: str) -> bool:
        """Return whether a cached listing shows that an object is large or missing."""
        folder, _, name = key.rpartition("/")
        listing = self._listings.cached(folder)
        if listing is None:
            return False
        info = listing.objects.get(name)
        return info is None or info.size > SMALL_BYTES

    def _read_small(self, key: str) -> bytes | None:
        try:
            # more than SMALL_BYTES bytes in the result mean that the object is large
            return self.store.read(key, 0, SMALL_BYTES + 1)
        except FileNotFoundError:
            return None

    def _keep(self, key: str, data: bytes | None) -> None:
        if data is not None and len(data) > SMALL_BYTES:
            return
        with self._lock:
            self._fetched[key] = data
            cached_bytes = sum(len(data) for data in self._fetched.values() if data is not None)
            while cached_bytes > _FETCHED_BYTES_MAX or len(self._fetched) > _FETCHED_MAX:
                cached_bytes -= len(self._fetched.popitem(last=False)[1] or b"")

    # -- status and listings -----------------------------------------------------------------

    def _info(self, key: str) -> ObjectInfo | None:
        """Return an object's status, from its folder's listing or by a request."""
        folder, _, name = key.rpartition("/")
        listing = self._listings.cached(folder)
        return self.store.head(key) if listing is None else listing.objects.get(name)

    def _is_folder(self, key: str) -> bool:
        folder, _, name = key.rpartition("/")
        listing = self._listings.cached(folder) if key else None
        if listing is not None:
            return name in listing.folders
        return len(self._listings.get(key)) > 0

    def stat(self, path: str) -> FileStat:
        """Return the status of an object or folder, from a cached listing or by a request.

        Raises:
            FileNotFoundError: The path is neither an object nor a folder.
        """
        if not self.is_remote(path):
            return self.below.stat(path)
        key = self.key_of(path)
        info = self._info(key) if key else None
        if info is not None:
            return FileStat(info.size, info.modified_ms, False, identity_of(info))
        if self._is_folder(key):
            return FileStat(0, 0, True, (0, 0))
        raise FileNotFoundError(errno.ENOENT, "No such object", path)

    def exists(self, path: str) -> bool:
        """Return whether an object or folder exists, by a cached listing or by a request."""
        if not self.is_remote(path):
            return self.below.exists(path)
        key = self.key_of(path)
        return bool(key and self._info(key) is not None) or self._is_folder(key)

    def list_dir(self, path: str) -> list[DirEntry]:
        """Return a folder's entries, sorted by name.

        Raises:
            FileNotFoundError: The folder is empty or missing, which stores don't distinguish.
        """
        if not self.is_remote(path):
            return self.below.list_dir(path)
        listing = self._listings.get(self.key_of(path))
        if not listing:
            raise FileNotFoundError(errno.ENOENT, "No such folder", path)
        entries = [DirEntry(name, is_dir=False) for name in listing.objects]
        entries += [DirEntry(name, is_dir=True) for name in listing.folders]
        return sorted(entries)

    # -- reading -----------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open an object for reading."""
        if not self.is_remote(path):
            return self.below.open(path, write=write, create=create)
        if write or create:
            _refuse(path)
        key = self.key_of(path)
        with self._lock:
            is_fetched, data = key in self._fetched, self._fetched.get(key)
        if is_fetched:
            if data is None:
                raise FileNotFoundError(errno.ENOENT, "No such object", path)
            return _SmallFile(path, data)
        return self._open(path, key)

    def _open(self, path: str, key: str) -> File:
        info = self._info(key)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, "No such object", path)
        if info.size > SMALL_BYTES or key.endswith(".log"):
            return _ObjectFile(path, self._reader(info))
        fits = info.size <= self._block_bytes
        if fits and (cached := self._blocks.get(_block_name(info))) is not None:
            return _SmallFile(path, cached)
        data, current = self.store.read_with_info(key)
        if current.size <= self._block_bytes:
            self._blocks.put(_block_name(current), data)
        return _SmallFile(path, data)

    def _reader(self, info: ObjectInfo) -> BlockReader:
        """Return a reader of the listed version of an object."""

        def fetch(position: int, size: int) -> bytes:
            data, _ = self.store.read_range(info.key, position, size, etag=info.etag)
            if len(data) < size:
                path = f"{self.store.url}/{info.key}"
                raise FileNotFoundError(
                    errno.ENOENT, "The object is shorter than when it was listed", path
                )
            return bytes(data)

        return BlockReader(
            self._blocks,
            _block_name(info),
            info.size,
            fetch,
            block_bytes=self._block_bytes,
            run_max=self._run_max,
            reads_ahead=True,
        )

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Return the first `size` bytes, in memory or, over `SPOOL_BYTES`, in a mapped local copy.

        The local copy is a temporary file. A file outside the store is mapped directly.
        """
        if not self.is_remote(path):
            return self.below.map(path, size)
        file = self.open(path)
        size_bytes = file.size() if size is None else min(size, file.size())
        if isinstance(file, _SmallFile):
            return memoryview(file.pread(size_bytes, 0))
        info = self._info(self.key_of(path))
        assert info is not None
        if size_bytes > SPOOL_BYTES:
            return self._spool(info, size_bytes)
        parts = [self._part(info, start, size_bytes) for start in range(0, size_bytes, PART_BYTES)]
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts)).toreadonly()

    def _part(self, info: ObjectInfo, start: int, end: int) -> Buffer:
        size = min(PART_BYTES, end - start)
        return self.store.read_range(info.key, start, size, etag=info.etag)[0]

    def _spool(self, info: ObjectInfo, size: int) -> memoryview:
        with tempfile.TemporaryFile(prefix="tidelog-", buffering=0) as file:
            for start in range(0, size, PART_BYTES):
                part = memoryview(self._part(info, start, size)).cast("B")
                while part:
                    part = part[os.write(file.fileno(), part) :]
            return map_descriptor(file.fileno(), size)

    # -- changes -----------------------------------------------------------------------------

    def _below(self, *paths: str) -> FileSystem:
        """Return the local file system; raises OSError for a path in the read-only store."""
        if any(map(self.is_remote, paths)):
            _refuse(paths[-1])
        return self.below


OBSTORE_FAMILIES: Final = frozenset({"s3", "gs", "az", "memory"})


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Create the store at a URL, without a request.

    Args:
        url: `s3://bucket/prefix`, `gs://`, `az://container/prefix`, `memory://name` (of this
            process), `file:///path`, or any URL that fsspec knows.
        options: Settings by name, without the prefix `store.` (docs/objects.md). Missing settings
            come from the environment.

    Raises:
        InvalidRequest: The text is not a URL, has credentials, or is a `file://` URL of another
            machine.
        ConfigError: An option is unknown to the store or invalid, or fsspec refuses the URL.
        MissingDependency: obstore, fsspec, fsspec's package for that scheme or, for an AWS profile,
            boto3 is not installed.
        StorageFailure: obstore or fsspec could not create the store.
    """
    scheme = scheme_of(url)
    if scheme == "file":
        return open_folder(url, options or {})
    if family_of(scheme) in OBSTORE_FAMILIES:
        return open_obstore(url.rstrip("/"), family_of(scheme), options or {})
    return open_fsspec(url.rstrip("/"), options or {})


TIER_PREFIX: Final = "tier_"
_STORES_MAX: Final = 16
_OWN_VARIABLES: Final = ("AWS_", "GOOGLE_", "AZURE_")
_stores: Final[OrderedDict[tuple[object, ...], ObjectStore]] = OrderedDict()
_lock: Final = threading.Lock()


def shared_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Return the store at a URL; calls with equal URL, options and environment get the same store.

    These calls also share the store's connections. Environments count as equal if their variables
    for S3, Google and Azure are equal. Arguments and errors are those of `open_store`.
    """
    settings = tuple(sorted((options or {}).items()))
    variables = tuple(
        sorted(item for item in os.environ.items() if item[0].startswith(_OWN_VARIABLES))
    )
    name = (os.getpid(), url.rstrip("/"), settings, variables)
    with _lock:
        store = _stores.get(name)
    if store is None:
        store = open_store(url, options)
        with _lock:
            _stores[name] = store
            while len(_stores) > _STORES_MAX:
                _stores.popitem(last=False)
    return store


def env_for(path: str, env: Env | None = None, options: Mapping[str, str] | None = None) -> Env:
    """Return an Env that can read the path.

    Args:
        path: A local path, or the URL of a directory in a store.
        env: Source of clocks and local files; the local machine if None.
        options: Settings of the store; see `open_store`.

    Returns:
        `env` itself if it can read the path and there are no options. Otherwise a copy of `env`
            that has the options and a file system that can read the path. The options also apply to
            tiers of the directory.

    Raises:
        InvalidRequest, ConfigError, MissingDependency, StorageFailure: `open_store` can't create
            the store.
    """
    result = env or os_env()
    if options:
        result = dataclasses.replace(result, store_options=dict(options))
        # `options` may contain options of the tiers' cache (docs/tiers.md). They are removed,
        # because a store has no such options.
        options = {name: text for name, text in options.items() if not name.startswith(TIER_PREFIX)}
    if not is_url(path) or is_remote(result.files, path.rstrip("/")):
        return result
    files = ObjectFiles(shared_store(path, options), local=result.files)
    return dataclasses.replace(result, files=files)
