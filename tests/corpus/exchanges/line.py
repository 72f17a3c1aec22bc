"""One connection to a broker. Requests and responses are recorded as bytes and decoded fields."""

import select
import socket
import ssl
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tests.corpus.exchanges.batches import batch_lines
from tests.corpus.exchanges.codec import Reader, Writer, decode, encode, given_names
from tests.corpus.exchanges.schema import API_VERSIONS, api_key, api_name, known_names, message
from tests.corpus.exchanges.values import Tree, Value, at, lines
from tests.worlds.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.corpus.exchanges.session import Stage

_HEX_BYTES: Final = 32
# Correlation id of all unrecorded requests. Only recorded requests increase the correlation id.
_QUIET: Final = 0


class Stopped(Exception):
    """Raised instead of sending a script's first normal request, to stop the script.

    Attributes:
        tree: The request that was not sent.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree


class Line:
    """One connection. Its requests and responses are recorded, except those sent by `quiet`."""

    def __init__(
        self,
        stage: "Stage",
        name: str,
        port: int,
        *,
        listener: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.listener = listener
        self._stage = stage
        self._place = ("127.0.0.1", port)
        self._context = context
        self._socket: socket.socket | None = None
        self._correlation = 0
        self._waiting: list[tuple[str, int, int]] = []

    def _connected(self) -> socket.socket:
        if self._socket is None:
            made = socket.create_connection(self._place, PATIENCE_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                made = self._context.wrap_socket(made, server_hostname="127.0.0.1")
            self._socket = made
        return self._socket

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._waiting.clear()

    def move(self, port: int) -> None:
        """Connect to another port from now on."""
        self.close()
        self._place = ("127.0.0.1", port)

    # -- requests ------------------------------------------------------------------------------

    def normal(self, api: str, version: int, tree: Tree) -> Tree:
        """Send and record a request that succeeds; return its response."""
        return self._counted("normal", api, version, tree)

    def refused(self, api: str, version: int, tree: Tree) -> Tree:
        """Send and record a request that is refused; return its response."""
        return self._counted("refused", api, version, tree)

    def edge(self, api: str, version: int, tree: Tree) -> Tree:
        """Send and record a request at the limit of the allowed values.

        Return its response.
        """
        return self._counted("edge", api, version, tree)

    def _counted(self, kind: str, api: str, version: int, tree: Tree) -> Tree:
        if kind == "normal":
            if self._stage.stops:
                raise Stopped(tree)
            self._stage.asked.setdefault((api, version), (self.listener, tree))
        return self.ask(api, version, tree, kind)

    def ask(self, api: str, version: int, tree: Tree, words: str = "") -> Tree:
        """Send a request; record the request and the response; return the response, {} if none."""
        self.send(api, version, tree, words)
        return self.receive()

    def send(self, api: str, version: int, tree: Tree, words: str = "") -> None:
        """Send and record a request; `receive` returns its response."""
        sent = self._request(api, version, tree)
        masked = self._masked(api, tree)
        self._title(f"{api} v{version}", words)
        self._keep(">", self._frame(api, version, masked, self._correlation), masked)
        self._give(sent)

    def _masked(self, api: str, tree: Tree) -> Tree:
        masked = self._stage.masked(api, tree)
        assert isinstance(masked, dict)
        return masked

    def torn(self, api: str, version: int, tree: Tree) -> None:
        """Send a request without its last byte.

        Record the request and the response or disconnect.
        """
        self.close()
        torn = self._request(api, version, tree)[4:-1]
        shown_frame = self._frame(api, version, self._masked(api, tree), self._correlation)[4:-1]
        self._title(f"{api} v{version}", "torn: without its last byte")
        self._hexed(">", struct.pack(">i", len(shown_frame)) + shown_frame)
        self._give(struct.pack(">i", len(torn)) + torn)
        self._answer_of(api, version)
        self.close()

    def raw(self, given: bytes, words: str) -> None:
        """Open a connection, send bytes as `bare` does, and close the connection."""
        self.close()
        self.bare(given, words)
        self.close()

    def bare(self, given: bytes, words: str) -> None:
        """Send bytes in a frame without a request header; record the bytes and the response.

        Before KIP-152, SASL clients sent frames without a header.
        """
        self._title("bytes", words)
        frame = struct.pack(">i", len(given)) + given
        self._hexed(">", frame)
        self._give(frame)
        try:
            self._hexed("<", self._take_frame())
        except ConnectionError:
            self._closed()

    def quiet(self, api: str, version: int, tree: Tree) -> Tree:
        """Send an unrecorded request, which prepares or awaits something; return its response."""
        assert not self._waiting, self._waiting
        self._connected().sendall(self._frame(api, version, tree, _QUIET))
        return self._decoded(api, version, self._take_frame(), _QUIET)

    def until(self, api: str, version: int, tree: Tree, *path: str | int, to: Value) -> None:
        """Repeat an unrecorded request until the field at `path` of the response equals `to`."""
        self._stage.polled(api)
        found = until(lambda: at(self.quiet(api, version, tree), *path), lambda it: it == to)
        assert found == to, (api, path, found)

    def length(self, size: int) -> None:
        """Send the length of a frame, and only the frame's first four bytes.

        Record the length and the response or disconnect.
        """
        self._title("bytes", f"a frame of {size}")
        frame = struct.pack(">i", size)
        self._hexed(">", frame)
        self._give(frame + b"\0\3\0\0")
        self.note_closed()

    def note_closed(self) -> None:
        """Wait until the broker closes the connection or sends a frame; record which it did."""
        try:
            self._hexed("<", self._take_frame())
        except ConnectionError:
            self._closed()

    def no_answer(self, api: str, version: int, tree: Tree, words: str) -> None:
        """Send and record a request that never gets a response (acks=0)."""
        self.send(api, version, tree, words)
        self._waiting.pop()

    # -- bytes ---------------------------------------------------------------------------------

    def _frame(self, api: str, version: int, tree: Tree, correlation: int) -> bytes:
        odd = given_names(tree) - known_names(api_key(api))
        assert not odd, f"{api} has no {odd} in any version"
        found = message(api_key(api), version, "request")
        writer = Writer(flexible=False)
        writer.made += struct.pack(">hhi", api_key(api), version, correlation)
        name = self.name.encode()
        writer.made += struct.pack(">h", len(name)) + name
        if found.flexible:
            writer.made += b"\0"
        body = bytes(writer.made) + encode(found, tree)
        return struct.pack(">i", len(body)) + body

    def _request(self, api: str, version: int, tree: Tree) -> bytes:
        self._correlation += 1
        self._waiting.append((api, version, self._correlation))
        return self._frame(api, version, tree, self._correlation)

    def _give(self, frame: bytes) -> None:
        with suppress(
            ConnectionError
        ):  # if the broker has closed the connection, the next read fails
            self._connected().sendall(frame)

    def _take(self, size: int) -> bytes:
        made = bytearray()
        while len(made) < size:
            found = self._connected().recv(size - len(made))
            if not found:
                raise ConnectionError("the broker closed the connection")
            made += found
        return bytes(made)

    def _take_frame(self) -> bytes:
        head = self._take(4)
        return head + self._take(int.from_bytes(head, "big"))

    def note_silence(self) -> None:
        """Record whether a response has already arrived."""
        is_there = bool(select.select([self._connected()], [], [], 0)[0])
        self._stage.note("an answer is there" if is_there else "no answer yet")

    def receive(self) -> Tree:
        """Receive, record and return the next response; {} if the connection was closed."""
        api, version, _ = self._waiting[0]
        return self._answer_of(api, version)

    def _answer_of(self, api: str, version: int) -> Tree:
        try:
            frame = self._take_frame()
        except ConnectionError:
            self._closed()
            return {}
        _, _, correlation = self._waiting.pop(0)
        tree = self._decoded(api, version, frame, correlation)
        same = self._answer_frame(api, version, tree, correlation)
        assert same == frame, f"{api} v{version}: {frame.hex()} is read as {same.hex()}"
        masked = self._masked(api, tree)
        self._keep("<", self._answer_frame(api, version, masked, correlation), masked)
        return tree

    def _answer_version(self, api: str, version: int, frame: bytes) -> int:
        """Return the response's version; it is 0 for an unsupported ApiVersions (KIP-511)."""
        unknown = api == api_name(API_VERSIONS) and frame[8:10] == b"\0\x23"
        return 0 if unknown else version

    def _decoded(self, api: str, version: int, frame: bytes, correlation: int) -> Tree:
        version = self._answer_version(api, version, frame)
        found = message(api_key(api), version, "response")
        assert frame[4:8] == struct.pack(">i", correlation), frame[:8]
        body = frame[8:]
        if found.flexible and api_key(api) != API_VERSIONS:
            assert Reader(body, flexible=True).varint() == 0
            body = body[1:]
        return decode(found, body)

    def _answer_frame(self, api: str, version: int, tree: Tree, correlation: int) -> bytes:
        known = api != api_name(API_VERSIONS) or tree.get("error_code") != 35
        found = message(api_key(api), version if known else 0, "response")
        head = struct.pack(">i", correlation)
        if found.flexible and api_key(api) != API_VERSIONS:
            head += b"\0"
        body = head + encode(found, tree)
        return struct.pack(">i", len(body)) + body

    # -- recording --------------------------------------------------------------------------

    def _title(self, what: str, words: str) -> None:
        self._stage.said.append(f"== {self.name}: {what}" + (f" {words}" if words else ""))

    def _closed(self) -> None:
        self._stage.said.append("< the broker closed the connection")
        self.close()

    def _hexed(self, mark: str, given: bytes) -> None:
        for start in range(0, len(given), _HEX_BYTES):
            self._stage.said.append(f"{mark} {given[start : start + _HEX_BYTES].hex()}")

    def _keep(self, mark: str, frame: bytes, tree: Tree) -> None:
        self._hexed(mark, frame)
        self._stage.said += [f"{mark}   {each}" for each in lines(tree)]
        self._stage.said += [f"{mark}   {each}" for each in batch_lines(tree)]
