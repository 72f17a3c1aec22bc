"""The only interface to the operating system's files, maps, locks, clocks and randomness.

Code that works on logs opens files, reads clocks and draws random numbers only through this
package. Tests can therefore move the clock, let the disk fail, and repeat a run exactly. `os_env()`
returns the implementation for the real system. `seam` defines the protocols and their rules,
`system` implements them, `layers` has base classes for file systems on top of other file systems.
"""

from collections.abc import Mapping
from dataclasses import field
from random import Random, SystemRandom

from tidelog.env.layers import LayeredFiles, ReadOnlyFile
from tidelog.env.seam import (
    Clock,
    DirEntry,
    File,
    FileStat,
    FileSystem,
    HeldHere,
    LocalFile,
    LockHandle,
    MappableFile,
    NotRegularFile,
    RemoteFiles,
    forget,
    is_remote,
    local_file,
    mappable_file,
    prefetch,
)
from tidelog.env.system import (
    MAX_BUFFERS_PER_WRITE,
    SMALL_MAP_BYTES,
    OsFileSystem,
    SystemClock,
    UnsyncedFiles,
)
from tidelog.lazy_dataclass import dataclass


class ManualClock:
    """A clock that its owner moves: for tests, replays and loading of old data.

    `advance` and `set` move wall time and monotonic time together, as if time had passed; `jump`
    moves only wall time, like a change of the machine's clock.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return wall time in ms since the epoch, as last set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the ms that have passed since the clock was created."""
        return self._monotonic_ms

    def monotonic_ns(self) -> int:
        """Return the ns that have passed since the clock was created."""
        return self._monotonic_ms * 1_000_000

    def advance(self, delta_ms: int) -> None:
        """Let `delta_ms` pass; a negative value moves only wall time back, not monotonic time."""
        self._now_ms += delta_ms
        self._monotonic_ms += max(delta_ms, 0)

    def set(self, now_ms: int) -> None:
        """Let time pass until `now_ms`; an earlier `now_ms` moves only wall time back."""
        self.advance(now_ms - self._now_ms)

    def jump(self, now_ms: int) -> None:
        """Set wall time to `now_ms`; monotonic time stays unchanged."""
        self._now_ms = now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """Files, clocks and randomness, passed as an argument from the outermost caller.

    Attributes:
        files: File system.
        clock: Wall time and monotonic time.
        random: Source of random numbers and ids.
        store_options: Settings of object stores, without the prefix `store.`.
    """

    files: FileSystem = field(default_factory=OsFileSystem)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


def os_env() -> Env:
    """Return the real file system, clocks and randomness."""
    return Env()
