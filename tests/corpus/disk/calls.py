"""The calls that change a file system, in order, one call per line.

The calls come from one of two sources. For the library, the source is the journal of the in-memory
file system of `tests.faults`. For brokers and commands, the source is `watched`, which wraps
Python's system calls. Both give lines of the same form. Reads are not recorded: their number is not
part of the behavior.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.corpus import still
from tests.faults.journal import Entry as Change
from tests.faults.journal import Link, Rename, SetMtime, SyncDir, Truncate, Write

_WATCHED: Final = (
    *("open", "close", "pwrite", "pwritev", "write", "ftruncate", "fdatasync", "fsync"),
    *("mkdir", "unlink", "remove", "rmdir", "replace", "rename", "utime"),
)
_MODIFYING: Final = ("pwrite", "pwritev", "write", "ftruncate")


class Call(NamedTuple):
    """One call; a write also has its position and size."""

    path: str
    words: str
    position: int = 0
    size: int = 0


def lines(calls: Iterable[Call]) -> list[str]:
    """Return the calls as lines; a write that continues the previous write is joined to it."""
    found: list[tuple[Call, int]] = []
    for call in calls:
        last, count = found[-1] if found else (None, 0)
        if last is not None and _goes_on(last, call):
            found[-1] = (last._replace(size=last.size + call.size), count + 1)
        else:
            found.append((call, 1))
    return [_line(call, count) for call, count in found]


def grouped(calls: Iterable[Call]) -> list[str]:
    """Return the calls, grouped by file or subfolder, because threads interleave them randomly."""
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(_group(call.path), []).append(call)
    return [line for _, group in sorted(groups.items()) for line in lines(group)]


def _group(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else path.removesuffix(".tmp")


def _goes_on(last: Call, call: Call) -> bool:
    is_write = last.words == call.words == "write"
    return is_write and last.path == call.path and last.position + last.size == call.position


def _line(call: Call, count: int) -> str:
    if call.words != "write":
        return f"{call.path}: {call.words}"
    times = "" if count == 1 else f" in {count} calls"
    return f"{call.path}: write {call.size} bytes at {call.position}{times}"


def of_journal(journal: Iterable[Change], root: str) -> Iterator[Call]:
    """Yield the calls of a journal, with paths below a root."""
    for entry in journal:
        path = _below(entry.path, root) or "(outside)"
        match entry.change:
            case Write(position=position, data=data):
                yield Call(path, "write", position, len(data))
            case Truncate(size=size):
                yield Call(path, f"truncate to {size}")
            case Link(is_dir=is_dir):
                yield Call(path, "make directory" if is_dir else "create")
            case Rename(name=name):
                yield Call(path, f"rename to {name}")
            case SetMtime(now_ms=now_ms):
                yield Call(path, f"set mtime {now_ms}")
            case SyncDir():
                yield Call(path, "sync directory")
            case other:
                yield Call(path, f"{other}")


def _below(path: str, root: str) -> str | None:
    if path == root:
        return "."
    return path.removeprefix(f"{root}/") if path.startswith(f"{root}/") else None


class _Watch:
    """Records system calls on paths below a root."""

    def __init__(self, root: str) -> None:
        self.calls: list[Call] = []
        self._root = root
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self._real: dict[str, Callable[..., object]] = {
            name: getattr(os, name) for name in _WATCHED
        }

    def wrapped(self, name: str) -> Callable[..., object]:
        """Return the function of `os`, wrapped to record its calls."""
        real = self._real[name]
        note: Callable[..., object] = getattr(self, f"_{name}")

        def call(*given: object, **named: object) -> object:
            with self._lock:
                is_new = name == "open" and self._makes(*given)
                if name == "close":
                    note(*given)
                found = real(*given, **named)
                if name == "open":
                    note(found, given[0], is_new=is_new)
                elif name != "close":
                    note(found, *given)
                if is_new or name in _MODIFYING:
                    self._set_time(found if is_new else given[0])
                return found

        return call

    def _add(self, path: str | None, words: str, position: int = 0, size: int = 0) -> None:
        if path is not None:
            self.calls.append(Call(path, words, position, size))

    def _set_time(self, fd: object) -> None:
        """Set the file's modification time, which tidelog may read, to the time of `still`."""
        if fd in self._paths:
            now_ns = still.now_ms() * 1_000_000
            self._real["utime"](fd, ns=(now_ns, now_ns))

    def _named(self, path: object) -> str | None:
        if not isinstance(path, str | Path):
            return None
        return _below(os.path.abspath(path), self._root)  # noqa: PTH100 - links stay

    def _makes(self, path: object, flags: object, *_: object) -> bool:
        is_asked = isinstance(flags, int) and flags & os.O_CREAT
        return bool(is_asked) and not Path(str(path)).exists()

    def _open(self, fd: int, path: object, *, is_new: bool) -> None:
        name = self._named(path)
        if name is not None:
            self._paths[fd] = name
            if is_new:
                self._add(name, "create")

    def _close(self, fd: int) -> None:
        self._paths.pop(fd, None)

    def _pwrite(self, count: int, fd: int, _data: object, position: int, *_: object) -> None:
        self._add(self._paths.get(fd), "write", position, count)

    _pwritev = _pwrite

    def _write(self, count: int, fd: int, _data: object) -> None:
        self._add(self._paths.get(fd), "write", -1, count)

    def _ftruncate(self, _: None, fd: int, size: int) -> None:
        self._add(self._paths.get(fd), f"truncate to {size}")

    def _fdatasync(self, _: None, fd: int) -> None:
        self._add(self._paths.get(fd), "sync")

    def _fsync(self, _: None, fd: int) -> None:
        path = self._paths.get(fd)
        is_dir = path is not None and Path(self._root, path).is_dir()
        self._add(path, "sync directory" if is_dir else "sync")

    def _mkdir(self, _: None, path: object, *_more: object) -> None:
        self._add(self._named(path), "make directory")

    def _unlink(self, _: None, path: object) -> None:
        self._add(self._named(path), "remove")

    _remove = _rmdir = _unlink

    def _replace(self, _: None, source: object, target: object) -> None:
        self._add(self._named(source), f"rename to {Path(str(target)).name}")

    _rename = _replace

    def _utime(self, _: None, path: object, *_more: object) -> None:
        self._add(self._named(path), "set mtime")


@contextmanager
def watched(root: Path) -> Iterator[list[Call]]:
    """Yield a list to which this process's calls below a directory are added."""
    watch = _Watch(str(root))
    real = {name: getattr(os, name) for name in _WATCHED}
    for name in _WATCHED:
        setattr(os, name, watch.wrapped(name))
    try:
        yield watch.calls
    finally:
        for name, function in real.items():
            setattr(os, name, function)
