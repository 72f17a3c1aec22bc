"""Serving a directory's control channel, in whatever loop its holder has.

The server owns the socket and the connections, never the directory: `wait` takes bytes in and
hands answers out, `run_pending` carries requests out, in the thread that may change the directory.

Life cycle: open -> (wait | run_pending)* -> close. One thread, but for `wake`.
"""

import os
import selectors
import socket
from collections import deque
from contextlib import suppress
from typing import Final, Self

from tidelog.control import messages, place, verbs
from tidelog.control.frames import FrameReader, Message, encode_frame
from tidelog.control.place import CONNECTIONS_MAX
from tidelog.errors import CorruptMessage, TidelogError
from tidelog.storage.log_dir import LogDir

_READ_BYTES: Final = 1 << 16
_RETIRE_S: Final = 5.0
_RETIRE_LOOKS: Final = 50


class _Connection:
    """One asker: bytes in, one request at a time, bytes out."""

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
        """Take what has come; a connection whose bytes make no sense is given up."""
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
        """Hand out what waits, as much as is taken."""
        try:
            sent = self.link.send(self.outgoing)
        except BlockingIOError:
            return
        except OSError:
            self.is_broken = True
            return
        del self.outgoing[:sent]


class ControlServer:
    """Serves the control channel of a directory that is open for writing."""

    def __init__(
        self, log_dir: LogDir, listener: socket.socket, known: verbs.Verbs = verbs.VERBS
    ) -> None:
        self._log_dir = log_dir
        self._verbs = known
        self._is_listening = True
        self._listener = listener
        # In order of their last word.
        self._connections: dict[int, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waker, self._sleeper = socket.socketpair()
        self._sleeper.setblocking(False)
        self._selector.register(self._sleeper, selectors.EVENT_READ)

    @classmethod
    def open(cls, log_dir: LogDir, known: verbs.Verbs = verbs.VERBS) -> Self:
        """Begin to listen. A socket that is there was left by a holder that died.

        Args:
            log_dir: Open for writing: only the lock's holder serves.
            known: What may be asked for.

        Raises:
            InvalidRequest: The directory's path is too long for a socket.
            OSError: The socket can't be made.
        """
        assert log_dir.is_writable
        listener = place.listen(log_dir.path)
        try:
            return cls(log_dir, listener, known)
        except BaseException:
            listener.close()
            raise

    def pending(self) -> int:
        """How many requests wait for `run_pending`."""
        return sum(bool(connection.requests) for connection in self._connections.values())

    def wait(self, timeout_s: float | None = 0.0) -> int:
        """Take in and hand out what there is; how many requests wait then.

        Args:
            timeout_s: How long to wait for something to happen; for ever where None.
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
        """Let a `wait` in another thread return."""
        self._waker.send(b"\0")

    def run_pending(self) -> int:
        """Carry out one request of each connection; how many there were.

        What a request raises is its answer. Only what is no `TidelogError` is raised here.
        """
        asking = [c for c in self._connections.values() if c.requests and not c.outgoing]
        for connection in asking:
            connection.outgoing += self._answer(connection.requests.popleft())
            connection.send()
            self._settle(connection)
        return len(asking)

    def _answer(self, message: Message) -> bytes:
        try:
            verb, arguments = messages.read_request(message)
            return encode_frame(
                messages.answer(verbs.run(self._log_dir, verb, arguments, self._verbs))
            )
        except TidelogError as error:
            return encode_frame(messages.refusal(error))

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return  # it has gone already, or there are no descriptors left: it will try again
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
            return  # dropped a moment ago, for somebody who came at the same time
        self._connections[descriptor] = connection  # the last one that said something
        if events & selectors.EVENT_READ:
            connection.receive()
        if events & selectors.EVENT_WRITE:
            connection.send()
        self._settle(connection)

    def _settle(self, connection: _Connection) -> None:
        """Listen to a connection for what may come of it now; drop it where nothing can."""
        if connection.is_broken:
            self._drop(connection)
            return
        wants = selectors.EVENT_WRITE if connection.outgoing else 0
        # Who does not take answers asks no more: what waits is bounded.
        wants |= 0 if connection.requests or connection.outgoing else selectors.EVENT_READ
        registered = self._selector.get_map().get(connection.link.fileno())
        if registered is not None:
            self._selector.unregister(connection.link)
        if wants:
            self._selector.register(connection.link, wants)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.link.fileno()]
        with suppress(KeyError):
            self._selector.unregister(connection.link)
        connection.link.close()

    def retire(self, timeout_s: float = _RETIRE_S) -> None:
        """Take no more requests and remove the socket; hand out what waits, and leave askers be.

        To be called before the directory's lock goes; an asker learns by the end of its connection,
        at `close`, that it has gone.

        Args:
            timeout_s: How long, about, an asker may take to accept what it was answered.
        """
        if self._is_listening:
            self._is_listening = False
            with suppress(OSError):
                os.unlink(f"{self._log_dir.path}/{place.SOCKET_FILE}")  # noqa: PTH108 - paths are str here
            self._selector.unregister(self._listener)
            self._listener.close()
        for _ in range(_RETIRE_LOOKS):
            if not any(connection.outgoing for connection in self._connections.values()):
                return
            for key, events in self._selector.select(timeout_s / _RETIRE_LOOKS):
                if key.fileobj is not self._sleeper and events & selectors.EVENT_WRITE:
                    self._serve(key.fd, selectors.EVENT_WRITE)

    def close(self) -> None:
        """Stop listening and remove the socket; requests that wait are not carried out."""
        if self._is_listening:
            with suppress(OSError):
                os.unlink(f"{self._log_dir.path}/{place.SOCKET_FILE}")  # noqa: PTH108 - paths are str here
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        for link in (self._listener, self._waker, self._sleeper):
            link.close()


__all__ = ["CONNECTIONS_MAX", "ControlServer"]
