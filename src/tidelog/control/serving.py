"""Serving the control channel from a thread, beside a program that uses the directory.

A `LogDir` is for one thread. Here two use it in turns: requests are carried out under a lock that
every call of the program's own object takes too (`served`).
"""

import functools
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Final, Protocol, Self, TypeVar

from tidelog.control.server import ControlServer
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.log_dir import LogDir

_Item = TypeVar("_Item")


class TurnLock:
    """A lock that goes to who has waited for it, not to who has just let it go.

    A program that appends in a loop would else keep requests out for ever. The thread that has it
    may take it again.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()  # held by the one who is next
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> Self:
        if self._owner != threading.get_ident():
            with self._gate:
                self._lock.acquire()
            self._owner = threading.get_ident()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()


class ControlThread:
    """The thread that serves a directory's control channel.

    Attributes:
        lock: Held while a request is carried out, and by whoever else uses the directory.
    """

    def __init__(self, server: ControlServer) -> None:
        self.lock = TurnLock()
        self._server = server
        self._is_stopping = False
        # A program that ends without closing is not held up; its directory needs recovery then.
        self._thread = threading.Thread(target=self._run, name="tidelog-control", daemon=True)

    @classmethod
    def start(cls, log_dir: LogDir) -> Self:
        """Begin to serve.

        Args:
            log_dir: Open for writing.

        Raises:
            InvalidRequest: The directory's path is too long for a socket.
            StorageFailure: The socket can't be made.
        """
        try:
            thread = cls(ControlServer.open(log_dir))
        except OSError as error:
            raise as_storage_failure(error, log_dir.path, "serve the control channel") from error
        thread._thread.start()
        return thread

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                if self._server.wait(None) and not self._is_stopping:
                    with self.lock:
                        self._server.run_pending()
        finally:
            self._server.close()

    def stop(self) -> None:
        """Stop serving; a request that is being carried out is finished first."""
        if not self._is_stopping:
            self._is_stopping = True
            self._server.wake()
            self._thread.join()


class Closable(Protocol):
    """What uses a directory, and closes it."""

    def close(self) -> None:
        """Close it."""
        ...


_Kind = TypeVar("_Kind", bound=Closable)


def served(make: Callable[[LogDir], _Kind], kind: type[_Kind], log_dir: LogDir) -> _Kind:
    """An object of a kind whose calls take turns with requests of the control channel.

    Each public method runs under the lock; generators and record batch readers that it hands out
    take it for each step. `exclusive()` holds it over several calls, and over the use of
    whatever else a call has handed out.

    Args:
        make: Makes the object on the directory.
        kind: Its class.
        log_dir: Open for writing; closed where the channel can't be served.

    Raises:
        InvalidRequest, StorageFailure: As `ControlThread.start`.
    """
    try:
        thread = ControlThread.start(log_dir)
    except BaseException:
        log_dir.close()
        raise
    found = make(log_dir)
    found.__class__ = _locked(kind, thread)
    return found


def _locked(kind: type[_Kind], thread: ControlThread) -> type[_Kind]:
    methods: dict[str, object] = {
        name: _under(thread.lock, member)
        for base in reversed(kind.__mro__[:-1])
        for name, member in vars(base).items()
        if isinstance(member, FunctionType) and not name.startswith("_")
    }

    def close(self: _Kind) -> None:
        thread.stop()
        kind.close(self)

    def exclusive(_: _Kind) -> AbstractContextManager[object]:
        return thread.lock

    methods["close"] = close
    methods["exclusive"] = exclusive
    return type(kind.__name__, (kind,), methods)


def _under(lock: AbstractContextManager[object], method: FunctionType) -> Callable[..., object]:
    @functools.wraps(method)
    def call(*args: object, **keywords: object) -> object:
        with lock:
            found = method(*args, **keywords)
        if isinstance(found, Generator):
            return _steps(lock, found)
        arrow = sys.modules.get("pyarrow")
        if arrow is not None and isinstance(found, arrow.RecordBatchReader):
            return arrow.RecordBatchReader.from_batches(found.schema, _steps(lock, iter(found)))
        return found

    return call


_END: Final = object()


def _steps(lock: AbstractContextManager[object], items: Iterator[_Item]) -> Iterator[_Item]:
    while True:
        with lock:
            item = next(items, _END)
        if item is _END:
            return
        yield item  # type: ignore[misc] # not the end
