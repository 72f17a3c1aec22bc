"""An object store in memory with injected failures, torn uploads and lost objects."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tidelog.env import Clock, FileSystem, ManualClock
from tidelog.errors import StorageFailure
from tidelog.objects.store import InfoList, NameList, ObjectInfo

URL = "s3://bucket/logs"


@dataclass
class FakeStore:
    """Objects by key; calls are counted and may fail.

    Attributes:
        fail_at: Number of the call that fails, counted from 1; None if no call fails.
        fails_after: Whether the failing call does its work first, so that only the response is
            lost.
        tear: Called with each key and its new content; returns the content to store.
        before_swap: Called before each compare-and-swap; it may change the object, as a concurrent
            writer does.
        hidden: Keys that listings omit, as a stale listing does.
        ghosts: Removed keys that listings still contain.
        on_change: Called after each change.
    """

    url: str = URL
    clock: Clock = field(default_factory=ManualClock)
    objects: dict[str, tuple[bytes, str, int]] = field(default_factory=dict)
    calls: int = 0
    log: list[str] = field(default_factory=list)
    fail_at: int | None = None
    fails_after: bool = False
    tear: Callable[[str, bytes], bytes] | None = None
    before_swap: Callable[[], None] | None = None
    hidden: set[str] = field(default_factory=set)
    ghosts: list[ObjectInfo] = field(default_factory=list)
    on_change: Callable[[], None] | None = None
    _etag: int = 0

    def _call(self, operation: str, key: str) -> bool:
        """Count a call; raise if it fails at once; return whether it fails after its work."""
        self.calls += 1
        self.log.append(f"{operation} {key}")
        if self.calls != self.fail_at:
            return False
        if self.fails_after:
            return True
        raise self._failure(operation, key)

    def _failure(self, operation: str, key: str) -> StorageFailure:
        return StorageFailure(f"{self.url}/{key}", operation, "the test says so")

    def _info(self, key: str) -> ObjectInfo:
        data, etag, modified_ms = self.objects[key]
        return ObjectInfo(key, len(data), etag, modified_ms)

    def head(self, key: str) -> ObjectInfo | None:
        if self._call("head", key):
            raise self._failure("head", key)
        return self._info(key) if key in self.objects else None

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        if self._call("read", key):
            raise self._failure("read", key)
        if key not in self.objects:
            raise FileNotFoundError(key)
        data = self.objects[key][0]
        return data[start:] if size is None else data[start : start + size]

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self.read(key), self._info(key)

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[bytes, ObjectInfo]:
        found = self.read(key, start, size)
        if etag not in (None, self.objects[key][1]):
            raise FileNotFoundError(key)
        return found, self._info(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if self._call("list", prefix):
            raise self._failure("list", prefix)
        for key in sorted(self.objects):
            if key.startswith(f"{prefix}/" if prefix else "") and key not in self.hidden:
                yield self._info(key)
        yield from self.ghosts

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        found = [info for info in self.list(prefix) if "/" not in info.key[len(prefix) + 1 :]]
        rest = (info.key[len(prefix) + 1 :] for info in self.list(prefix))
        return found, sorted({name.partition("/")[0] for name in rest if "/" in name})

    def put(self, key: str, data: bytes) -> ObjectInfo:
        fails = self._call("put", key)
        self._store(key, data)
        if fails:
            raise self._failure("put", key)
        return self._info(key)

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        file = fs.open(path)
        try:
            return self.put(key, file.pread(file.size(), 0))
        finally:
            file.close()

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        hook, self.before_swap = self.before_swap, None
        if hook is not None:
            hook()
        fails = self._call("put_if", key)
        if (self.objects[key][1] if key in self.objects else None) != etag:
            return None
        self._store(key, data, may_tear=False)
        if fails:
            raise self._failure("put_if", key)
        return self._info(key)

    def delete(self, key: str) -> None:
        fails = self._call("delete", key)
        self.objects.pop(key, None)
        self._changed()
        if fails:
            raise self._failure("delete", key)

    def _store(self, key: str, data: bytes, *, may_tear: bool = True) -> None:
        if self.tear is not None and may_tear:
            data = self.tear(key, data)
        self._etag += 1
        self.objects[key] = bytes(data), f"e{self._etag}", self.clock.now_ms()
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def open(self, _url: str, _options: Mapping[str, str]) -> "FakeStore":
        """Implements `TierOptions.open_store`."""
        return self
