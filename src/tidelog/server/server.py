"""The listening broker: start, connections and their limits, timers, stop."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.env import Env
from tidelog.errors import TidelogError
from tidelog.server.background import Background
from tidelog.server.clients import Clients
from tidelog.server.connection import Connection
from tidelog.server.deferring import Beside
from tidelog.server.kernels import load_beside
from tidelog.server.node import LOGGER, Address, Node
from tidelog.server.settings import parse_listener
from tidelog.server.work import Work
from tidelog.storage.log_dir import LogDir, LogDirOptions

if TYPE_CHECKING:
    from tidelog.server.control import Control
    from tidelog.server.metrics_http import MetricsServer

BACKLOG: Final = 1024


def open_node(path: str, config: BrokerConfig, *, env: Env | None = None) -> Node:
    """Take a directory's lock and make a broker of it.

    Raises:
        DirectoryLocked: Another process has it.
        StorageFailure, InvalidRequest: As `LogDir.open`.
    """
    syncs = Work()
    options = LogDirOptions(
        create=True,
        topic_defaults=config.topic_defaults,
        deferrals=lambda: Beside(syncs),
    )
    return Node(LogDir.open(path, env=env, options=options), config, syncs)


def advertised(config: BrokerConfig, host: str, port: int) -> Address:
    """Where clients are told to connect to; a port of 0 there is the one that is listened on.

    Raises:
        ConfigError: `advertised.listeners` can't be read.
    """
    if not config.advertised_listeners:
        return Address(host, port)
    found = parse_listener("advertised.listeners", config.advertised_listeners)
    return Address(found.host, found.port or port)


class Server:
    """One broker on one event loop. start -> ... -> stop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._listener: asyncio.Server | None = None
        self.clients = Clients(node)
        self._wake: asyncio.TimerHandle | None = None
        self._pages: MetricsServer | None = None
        self._control: Control | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which the system chooses where `port` is 0.

        Raises:
            OSError: The address, or that of the metrics, can't be had.
            ConfigError: `advertised.listeners` or `tidelog.metrics.listen` can't be read.
        """
        loop = asyncio.get_running_loop()
        self.node.timers.on_earlier = self._schedule
        self._listener = await loop.create_server(
            lambda: Connection(self.node, self.clients), host, port, backlog=BACKLOG
        )
        found: int = self._listener.sockets[0].getsockname()[1]
        self.node.address = advertised(self.node.config, host, found)
        if self.node.config.tidelog_metrics_listen:
            from tidelog.server.telemetry import start_pages

            self._pages = await start_pages(self.node, self._listener.is_serving)
        self.clients.watch_idle()
        # Groups are read from the log when clients can ask already.
        loop.call_soon(self.node.resume_groups)
        Background(self.node).start()
        await self._serve_control()
        load_beside(self.node.partitions.use_kernels)
        return found

    async def _serve_control(self) -> None:
        """Let other processes ask for changes; a broker works without that, too."""
        from tidelog.server.control import Control  # what it may be asked for is much

        control = Control(self.node)
        try:
            await control.start()
        except (TidelogError, OSError) as error:
            LOGGER.warning("no control channel: %s", error)
            return
        self._control = control

    async def stop(self) -> None:
        """Close all connections, then the directory: a clean stop.

        Raises:
            StorageFailure: A partition could not be closed.
        """
        if self._listener is not None:
            self._listener.close()
        self.clients.close()
        if self._pages is not None:
            await self._pages.stop()
        if self._control is not None:
            await self._control.stop()
        # What was cancelled ends before the directory is closed under it.
        await asyncio.sleep(0)
        if self._wake is not None:
            self._wake.cancel()
        if self._listener is not None:
            with suppress(asyncio.CancelledError):
                await self._listener.wait_closed()
        self.node.close()

    # -- timers ------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay_ms = self.node.timers.next_delay_ms()
        if delay_ms is None:
            self._wake = None
            return
        loop = asyncio.get_running_loop()
        self._wake = loop.call_later(delay_ms / 1000, self._run_due)

    def _run_due(self) -> None:
        self._wake = None
        self.node.timers.run_due()
        self._schedule()
