"""Fate of a file's unsynced changes when the power fails (rules 1, 5, 6 of the package)."""

import random
from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from tests.faults.journal import FileChange, SetMtime, Truncate, Write

SECTOR_SIZE = 512

Note: TypeAlias = Callable[[str], None]


class Fate(Enum):
    """Fate of one unsynced change."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"


class RestingFile:
    """A file on the disk: durable bytes, and later changes, which may survive a crash.

    The first `doubtful` changes may be lost for good: their sync failed, and no later sync makes
    them durable.
    """

    __slots__ = ("certain", "changes", "doubtful", "durable", "mtime_ms", "node")

    def __init__(self, node: int, durable: bytes, mtime_ms: int) -> None:
        self.node = node
        self.durable = durable
        self.mtime_ms = mtime_ms
        self.changes: list[FileChange] = []
        # Number of changes that follow the doubtful ones and that a later sync made durable.
        self.certain = 0
        self.doubtful = 0

    def sync(self, *, failed: bool) -> None:
        """Make all changes so far durable, or put them in doubt forever if the sync failed."""
        if failed:
            self.doubtful, self.certain = len(self.changes), 0
        elif self.doubtful:
            self.certain = len(self.changes) - self.doubtful
        elif self.changes:
            self.mtime_ms = self.latest_mtime()
            self.durable = self.everything()
            self.changes = []

    def everything(self) -> bytes:
        """Return the bytes that exist if every change is kept."""
        if not self.changes:
            return self.durable
        data = bytearray(self.durable)
        for change in self.changes:
            keep(data, change)
        return bytes(data)

    def synced(self) -> bytes:
        """Return the bytes that remain if every unsynced or doubtful change is lost."""
        data = bytearray(self.durable)
        for change in self.changes[self.doubtful : self.doubtful + self.certain]:
            keep(data, change)
        return bytes(data)

    def latest_mtime(self) -> int:
        """Return the modification time that the running program saw."""
        return self.changes[-1].now_ms if self.changes else self.mtime_ms

    def draw(self, draw: random.Random, note: Note | None) -> tuple[bytes, int]:
        """Return bytes and modification time after a crash; `draw` decides what is kept."""
        if not self.changes:
            return self.durable, self.mtime_ms
        data = bytearray(self.durable)
        fates = draw_fates(len(self.changes), draw)
        for slot in range(self.doubtful, self.doubtful + self.certain):
            fates[slot] = Fate.KEPT
        for change, fate in zip(self.changes, fates, strict=True):
            suffer(data, change, fate, draw)
            if note is not None:
                note(f"{change}: {fate.value}")
        mtime_ms = self.latest_mtime() if draw.random() < 0.5 else self.mtime_ms
        return bytes(data), mtime_ms


def draw_fates(count: int, draw: random.Random) -> list[Fate]:
    """Draw which of a file's changes are kept: none, all, those before or after one, or any."""
    mood = draw.random()
    if mood < 0.12:
        return [Fate.LOST] * count
    if mood < 0.24:
        return [Fate.KEPT] * count
    if mood < 0.55:
        cut = int(draw.random() * count)
        first, second = (Fate.KEPT, Fate.LOST) if mood < 0.48 else (Fate.LOST, Fate.KEPT)
        middle = (Fate.KEPT, Fate.LOST, Fate.TORN)[int(draw.random() * 3)]
        return [first] * cut + [middle] + [second] * (count - cut - 1)
    kept = (0.1, 0.5, 0.9)[int(draw.random() * 3)]
    return [_draw_fate(kept, draw.random()) for _ in range(count)]


def _draw_fate(kept: float, dice: float) -> Fate:
    if dice < kept:
        return Fate.KEPT
    return Fate.LOST if dice < (1 + kept) / 2 else Fate.TORN


def keep(data: bytearray, change: FileChange) -> None:
    """Apply a change as the running program saw it."""
    match change:
        case Write(position=position, data=new):
            _extend(data, position + len(new))
            data[position : position + len(new)] = new
        case Truncate(size=size):
            del data[size:]
            _extend(data, size)
        case SetMtime():
            pass


def suffer(data: bytearray, change: FileChange, fate: Fate, draw: random.Random) -> None:
    """Apply what is left of a change after the crash: all, nothing, or parts of a write."""
    if fate is Fate.KEPT:
        keep(data, change)
    elif isinstance(change, Write):
        if draw.random() < 0.5:  # the new size may reach the disk without the bytes
            _extend(data, change.position + len(change.data))
        if fate is Fate.TORN:
            _tear(data, change, draw)


def _tear(data: bytearray, change: Write, draw: random.Random) -> None:
    """Keep a slice of a write, or some of its sectors; a gap before a piece becomes zeros."""
    if draw.random() < 0.5:
        first = 0 if draw.random() < 0.7 else int(draw.random() * len(change.data))
        end = first + int(draw.random() * (len(change.data) - first))
        _put(data, change, first, end)
        return
    end = len(change.data)
    at = 0
    while at < end:
        upto = min(end, at + SECTOR_SIZE - (change.position + at) % SECTOR_SIZE)
        if draw.random() < 0.5:
            _put(data, change, at, upto)
        at = upto


def _put(data: bytearray, change: Write, first: int, end: int) -> None:
    if first < end:
        _extend(data, change.position + end)
        data[change.position + first : change.position + end] = change.data[first:end]


def _extend(data: bytearray, size: int) -> None:
    if size > len(data):
        data.extend(bytes(size - len(data)))
