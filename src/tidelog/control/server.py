"""Server of a directory's control channel, in the process that has the directory open.

The server runs in the process's event loop or in a thread of the process.

The server owns the socket and the connections, not the directory. `wait` reads requests and sends
responses; `run_pending` executes requests in the thread that may change the directory. If the
server has a thread of its own, a lock prevents it from executing a request while the program calls
a method of `LogDir` (`served`).

Call `open`, then `wait` and `run_pending` in any order, then `close`. Only `wake` may be called
from another thread.
"""

import functools
import selectors
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from types import FunctionType
from typing import Final, Protocol, Self, TypeVar

from tidelog.control import channel, verbs
from tidelog.control.channel import CONNECTIONS_MAX, FrameReader, Message, encode_frame
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.open_files import as_storage_failure

_READ_BYTES: Final = 1 << 16
_RETIRE_S: Final = 5.0
_RETIRE_STEPS: Final = 50


class _Connection:
    """Connection of a client: received bytes, queued requests, bytes to send."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.reader = FrameReader()
        self.requests: deque[Message] = deque()
        self.outgoing = bytearray()
        self.is_broken = False

    @property
    def is_idle(self) -> bool:
        return not self.requests and not self.outgoing

    def receive(self) -> None:
        """Read available bytes.

        The connection is marked as broken if the client has closed it, if a call of the socket
        fails, or if the received bytes are invalid.
        """
        try:
            data = self.link.recv(_READ_BYTES)
            self.requests += self.reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, CorruptMessage):
            self.is_broken = True
            return
        self.is_broken = not data

    def send(self) -> None:
        """Send as many of the pending bytes as the socket accepts."""
        try:
            sent = self.link.send(self.outgoing)
        except BlockingIOError:
            return
        except OSError:
            self.is_broken = True
            return
        del self.outgoing[:sent]


class ControlServer:
    """Server of the control channel of a directory that is open for writing."""

    def __init__(
        self, log_dir: LogDir, listener: socket.socket, supported: verbs.Verbs = verbs.VERBS
    ) -> None:
        self._log_dir = log_dir
        self._verbs = supported
        self._is_listening = True
        self._listener = listener
        # Connections by file descriptor, the least recently active connection first.
        self._connections: dict[int, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waker, self._sleeper = socket.socketpair()
        self._sleeper.setblocking(False)
        self._selector.register(self._sleeper, selectors.EVENT_READ)

    @classmethod
    def open(cls, log_dir: LogDir, supported: verbs.Verbs = verbs.VERBS) -> Self:
        """Start to listen. The socket file of an earlier holder that died is replaced.

        Args:
            log_dir: Directory. It must be open for writing, because only the holder of the
                directory's lock may serve it.
            supported: Supported verbs.

        Raises:
            InvalidRequest: The directory's path is too long for a socket.
            OSError: The socket can't be created.
        """
        assert log_dir.is_writable
        listener = channel.listen(log_dir.path)
        try:
            return cls(log_dir, listener, supported)
        except BaseException:
            listener.close()
            raise

    def pending(self) -> int:
        """Return the number of connections with requests for `run_pending`."""
        return sum(bool(connection.requests) for connection in self._connections.values())

    def wait(self, timeout_s: float | None = 0.0) -> int:
        """Read requests and send responses; return the number of connections with requests.

        Args:
            timeout_s: Maximum time to wait for an event, in seconds; None for no limit.
        """
        if self.pending():
            timeout_s = 0.0
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._sleeper:
                with suppress(BlockingIOError):
                    self._sleeper.recv(_READ_BYTES)
            else:
                self._serve(key.fd, events)
        return self.pending()

    def wake(self) -> None:
        """End a call of `wait` that is in progress in another thread."""
        self._waker.send(b"\0")

    def run_pending(self) -> int:
        """Execute one request of each connection that has no unsent response.

        Returns the number of executed requests. If a request raises a `TidelogError`, the error is
        its response. Other errors are raised.
        """
        pending = [c for c in self._connections.values() if c.requests and not c.outgoing]
        for connection in pending:
            connection.outgoing += self._response(connection.requests.popleft())
            connection.send()
            self._settle(connection)
        return len(pending)

    def _response(self, message: Message) -> bytes:
        try:
            verb, arguments = channel.read_request(message)
            return encode_frame(
                channel.response(verbs.run(self._log_dir, verb, arguments, self._verbs))
            )
        except TidelogError as error:
            return encode_frame(channel.refusal(error))

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            # The client has disconnected, or no file descriptor is free. The next `wait` tries to
            # accept again.
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            self._drop_silent()
        link.setblocking(False)
        self._connections[link.fileno()] = _Connection(link)
        self._selector.register(link, selectors.EVENT_READ)

    def _drop_silent(self) -> None:
        silent = [c for c in self._connections.values() if c.is_idle]
        self._drop(silent[0] if silent else next(iter(self._connections.values())))

    def _serve(self, descriptor: int, events: int) -> None:
        connection = self._connections.pop(descriptor, None)
        if connection is None:
            return  # just closed, to make room for a new connection
        self._connections[descriptor] = connection  # now the most recently active connection
        if events & selectors.EVENT_READ:
            connection.receive()
        if events & selectors.EVENT_WRITE:
            connection.send()
        self._settle(connection)

    def _settle(self, connection: _Connection) -> None:
        """Select the events to wait for on a connection, or close it if it is broken."""
        if connection.is_broken:
            self._drop(connection)
            return
        events = selectors.EVENT_WRITE if connection.outgoing else 0
        # To bound memory, no requests are read from a client that has not read its responses.
        events |= 0 if connection.requests or connection.outgoing else selectors.EVENT_READ
        registered = self._selector.get_map().get(connection.link.fileno())
        if registered is not None:
            self._selector.unregister(connection.link)
        if events:
            self._selector.register(connection.link, events)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.link.fileno()]
        with suppress(KeyError):
            self._selector.unregister(connection.link)
        connection.link.close()

    def retire(self, timeout_s: float = _RETIRE_S) -> None:
        """Remove the socket, accept no more requests, and send pending responses.

        Call this method before the directory's lock is released. Connections stay open until
        `close`. When its connection ends, a client knows that the directory has been released.

        Args:
            timeout_s: Approximate maximum time for clients to read their responses, in seconds.
        """
        if self._is_listening:
            self._is_listening = False
            channel.remove_socket(self._log_dir.path)
            self._selector.unregister(self._listener)
            self._listener.close()
        for _ in range(_RETIRE_STEPS):
            if not any(connection.outgoing for connection in self._connections.values()):
                return
            for key, events in self._selector.select(timeout_s / _RETIRE_STEPS):
                if key.fileobj is not self._sleeper and events & selectors.EVENT_WRITE:
                    self._serve(key.fd, selectors.EVENT_WRITE)

    def close(self) -> None:
        """Stop listening and remove the socket. Pending requests are not executed."""
        if self._is_listening:
            channel.remove_socket(self._log_dir.path)
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        for link in (self._listener, self._waker, self._sleeper):
            link.close()


_Item = TypeVar("_Item")


class TurnLock:
    """Fair lock: a thread that waits for the lock precedes the thread that has just released it.

    Without this order, a program that appends in a loop could block requests forever. The lock is
    reentrant: the thread that holds it may acquire it again.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()  # held by the thread that acquires the lock next
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
    """Thread that serves a directory's control channel.

    Attributes:
        lock: Held while a request is executed. Other users of the directory must hold this lock
            while they use the directory.
    """

    def __init__(self, server: ControlServer) -> None:
        self.lock = TurnLock()
        self._server = server
        self._is_stopping = False
        # The thread is a daemon thread, so that a program can exit without closing the directory. A
        # directory that was not closed needs recovery.
        self._thread = threading.Thread(target=self._run, name="tidelog-control", daemon=True)

    @classmethod
    def start(cls, log_dir: LogDir) -> Self:
        """Start to serve.

        Args:
            log_dir: Directory, open for writing.

        Raises:
            InvalidRequest: The directory's path is too long for a socket.
            StorageFailure: The socket can't be created.
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
        """Stop serving, after the request in progress has finished."""
        if not self._is_stopping:
            self._is_stopping = True
            with suppress(OSError):  # the thread has already ended and closed the sockets
                self._server.wake()
            self._thread.join()


class Closable(Protocol):
    """An object that uses a directory and closes it."""

    def close(self) -> None:
        """Close the directory."""
        ...


_Kind = TypeVar("_Kind", bound=Closable)


def served(make: Callable[[LogDir], _Kind], kind: type[_Kind], log_dir: LogDir) -> _Kind:
    """Create an object whose calls never run at the same time as requests of the control channel.

    The channel's thread has a lock, under which it executes requests. Each public method of the
    object runs under this lock, except `close`, which stops the channel first. Returned generators
    and record batch readers acquire the lock for each step. To hold the lock over several calls, or
    while the program uses other returned objects, call the object's method `exclusive`.

    Args:
        make: Creates the object for the directory.
        kind: Class of the object.
        log_dir: Directory, open for writing. It is closed if the channel can't be served.

    Raises:
        InvalidRequest, StorageFailure: The control channel can't be served.
    """
    try:
        thread = ControlThread.start(log_dir)
    except BaseException:
        log_dir.close()
        raise
    closable = make(log_dir)
    closable.__class__ = _locked(kind, thread)
    return closable


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
            result = method(*args, **keywords)
        if isinstance(result, Generator):
            return _steps(lock, result)
        arrow = sys.modules.get("pyarrow")
        if arrow is not None and isinstance(result, arrow.RecordBatchReader):
            return arrow.RecordBatchReader.from_batches(result.schema, _steps(lock, iter(result)))
        return result

    return call


def _steps(lock: AbstractContextManager[object], items: Iterator[_Item]) -> Iterator[_Item]:
    while True:
        with lock:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
