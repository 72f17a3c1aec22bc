"""HTTP pages of the broker: /metrics, /healthz, /readyz.

Serves GET and HEAD, one request per connection, which is enough for Prometheus and probes. Sizes,
durations and the number of connections are limited. If a client connects at the limit of
connections, the server closes the oldest connection that has sent no whole request yet. If there is
no such connection, the server closes the oldest connection whose client has not read its response
yet. So idle clients can't keep a probe from connecting.

Runs on the broker's event loop. Scrapes are generated one at a time in chunks and compressed in a
thread.

Source: RFC 9110, RFC 9112.
"""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from tidelog.config.listeners import metrics_endpoint
from tidelog.server.api.node import LOGGER, Address
from tidelog.server.metrics.exposition import CONTENT_TYPE, Exposition, GroupFacts, process_figures
from tidelog.server.metrics.latency_counts import LatencyCounts
from tidelog.server.net.listener import naming
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.threads import Work
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.env import Clock
    from tidelog.server.api.node import Node
    from tidelog.server.runtime.counters import Counters


# Maximum size of a request's head, in bytes.
REQUEST_BYTES_MAX: Final = 8192
# Maximum duration of a connection, in seconds.
TIMEOUT_S: Final = 10.0
CONNECTIONS_MAX: Final = 16

# Maximum number of scrapes, running or waiting. It is less than `CONNECTIONS_MAX`, so that probes
# can connect while scrapes run.
SCRAPES_MAX: Final = 8

GZIP_BYTES_MIN: Final = 1024
_METHODS: Final = ("GET", "HEAD")
_PLAIN: Final = "text/plain; charset=utf-8"

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class _Phase(Enum):
    """Phase of a connection, which shows what the connection waits for."""

    REQUEST = "waiting for the request"
    PAGE = "generating the page"
    RESPONSE = "waiting for the client to read the response"


class MetricsServer:
    """HTTP server of the pages, from `start` to `stop`. Used only in the event loop's thread."""

    def __init__(
        self,
        exposition: Exposition,
        work: Work,
        is_ready: Callable[[], bool],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            exposition: Text of /metrics.
            work: Threads for work such as compression.
            is_ready: Returns whether clients are served, which is the result of /readyz.
            before: Called before /metrics is written, to update counts that are computed only for
                /metrics.
        """
        self._exposition = exposition
        self._work = work
        self._is_ready = is_ready
        self._before = before
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Phases of open connections, oldest first.
        self._phases: dict[asyncio.Task[None], _Phase] = {}
        self._scraping = asyncio.Lock()
        self._scrapes = 0  # scrapes that run or wait

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses if `port` is 0.

        Raises:
            OSError: The address can't be bound.
        """
        self._listener = await asyncio.start_server(
            self._serve, host, port, limit=REQUEST_BYTES_MAX
        )
        chosen_port: int = self._listener.sockets[0].getsockname()[1]
        return chosen_port

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._listener is not None:
            self._listener.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._admit(task):
                async with asyncio.timeout(TIMEOUT_S):
                    await self._respond(task, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has disconnected, is too slow, or has sent too much
        except asyncio.CancelledError:
            pass  # closed on purpose, so asyncio should log nothing
        finally:
            self._tasks.discard(task)
            self._phases.pop(task, None)
            # `close` would keep the connection open until the client has read all bytes, so abort
            # it.
            is_unsent = task.cancelling() or writer.transport.get_write_buffer_size()
            writer.transport.abort() if is_unsent else writer.close()

    def _admit(self, task: "asyncio.Task[None]") -> bool:
        """Admit a connection; at the limit, close another connection first.

        Return False if no connection can be closed.
        """
        if len(self._phases) >= CONNECTIONS_MAX:
            silent = self._oldest(_Phase.REQUEST) or self._oldest(_Phase.RESPONSE)
            if silent is None:
                return False
            del self._phases[silent]
            silent.cancel()
        self._phases[task] = _Phase.REQUEST
        return True

    def _oldest(self, phase: _Phase) -> "asyncio.Task[None] | None":
        return next((task for task, each in self._phases.items() if each is phase), None)

    async def _respond(
        self, task: "asyncio.Task[None]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self._phases[task] = _Phase.PAGE
        method, path, headers = read_head(head)
        status, kind, body = await self._page(method, path)
        encoding = ""
        if len(body) >= GZIP_BYTES_MIN and takes_gzip(headers.get("accept-encoding", "")):
            body = await self._work.run(gzip.compress, body, 1)
            encoding = "Content-Encoding: gzip\r\n"
        allow = f"Allow: {', '.join(_METHODS)}\r\n" if status == 405 else ""
        self._phases[task] = _Phase.RESPONSE
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n{encoding}{allow}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        )
        if method != "HEAD":
            writer.write(body)
        await writer.drain()
        with suppress(OSError):
            writer.write_eof()
            while await reader.read(REQUEST_BYTES_MAX):
                pass  # wait until the client has read the response and closes

    async def _page(self, method: str, path: str) -> tuple[int, str, bytes]:
        if not method:
            return 400, _PLAIN, b"not HTTP\n"
        if method not in _METHODS:
            return 405, _PLAIN, b"only GET and HEAD are allowed\n"
        if path == "/metrics":
            return await self._scrape()
        if path == "/healthz":
            return 200, _PLAIN, b"alive\n"
        if path == "/readyz":
            is_ready = self._is_ready()
            return (200, _PLAIN, b"ready\n") if is_ready else (503, _PLAIN, b"not ready\n")
        return 404, _PLAIN, b"unknown path; try /metrics, /healthz or /readyz\n"

    async def _scrape(self) -> tuple[int, str, bytes]:
        """Return the metrics page, or 503 for too many scrapes. Scrapes run one at a time."""
        if self._scrapes >= SCRAPES_MAX:
            return 503, _PLAIN, b"too many scrapes are running or waiting\n"
        self._scrapes += 1
        try:
            async with self._scraping:
                if self._before is not None:
                    await self._before()
                text = [piece async for piece in self._exposition.pieces()]
                text.append(await self._work.run(process_figures))
                body = await self._work.run("".join(text).encode, "utf-8", "replace")
            return 200, CONTENT_TYPE, body
        finally:
            self._scrapes -= 1


def read_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return method, path without its query, and headers with names and values in lower case.

    The method is "" if the head is not HTTP.
    """
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return "", "", {}
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip().lower()
    return parts[0], _path_of(parts[1]), headers


def _path_of(target: str) -> str:
    """Return a path without its query, and without scheme and host, which a proxy request has."""
    scheme, mark, rest = target.partition("?")[0].partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return target.partition("?")[0]
    return f"/{rest.partition('/')[2]}"


def takes_gzip(accepted: str) -> bool:
    """Whether an `Accept-Encoding`, in lower case, allows gzip with a weight above 0."""
    weights = {}
    for item in accepted.split(","):
        coding, _, parameter = item.partition(";")
        weights[coding.strip()] = _weight(parameter)
    named = (weights[name] for name in ("gzip", "x-gzip", "*") if name in weights)
    return next(named, 0.0) > 0


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


class NodeMetrics:
    """Sources of the metrics of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.counters: Counters = node.metrics
        self.clock: Clock = node.env.clock

    def partitions(self) -> Iterable[Partition]:
        """Return the open partitions."""
        return self._node.partitions.opened()

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return an open partition, or None if it is not open."""
        return self._node.partitions.find_open(TopicPartition(topic, number))

    def groups(self) -> Iterable[GroupFacts]:
        """Return all loaded groups; none if no client has used groups since the start."""
        return self._node.groups.facts() if self._node.has_groups else ()


async def start_pages(node: "Node", is_ready: Callable[[], bool]) -> MetricsServer:
    """Serve a node's pages at the address in `tidelog.metrics.listen`.

    Raises:
        ConfigError: `tidelog.metrics.listen` can't be parsed.
        OSError: The address can't be bound.
    """
    endpoint = metrics_endpoint(node.config)
    assert endpoint is not None
    facts = NodeMetrics(node)
    latencies = LatencyCounts(facts, node.work)
    server = MetricsServer(Exposition(facts), node.work, is_ready, latencies.count)
    with naming(endpoint):
        port = await server.start(endpoint.host, endpoint.port)
    node.metrics_address = Address(endpoint.host, port)
    address = str(node.metrics_address)
    LOGGER.info("metrics on http://%s/metrics", address, extra={"address": address})
    return server
