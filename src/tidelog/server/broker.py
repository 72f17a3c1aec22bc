"""The listening broker: start, connections and their limits, timers, stop."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.config.broker import BROKER_CONFIG_BY_NAME
from tidelog.config.listeners import Endpoint, ListenerPlan, plan_listeners
from tidelog.config.values import PASSWORD
from tidelog.env import Env, os_env
from tidelog.errors import ConfigError, TidelogError
from tidelog.server.api.handlers import import_coordinators
from tidelog.server.api.node import LOGGER, Address, Node
from tidelog.server.logs import LOGGED_ONCE
from tidelog.server.maintenance.log_manager import LogManager
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.net.listener import SEND_BUFFER, Listener, listening_sockets, naming, prepare
from tidelog.server.net.listener_authentication import ListenerAuthentication
from tidelog.server.runtime.loop import Slices
from tidelog.server.runtime.threads import ThreadDeferral, Work
from tidelog.storage.directory.broker_files import read_cluster, settings_of
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

if TYPE_CHECKING:
    from tidelog.server.maintenance.control import Control
    from tidelog.server.maintenance.log_cleaner import LogCleaner
    from tidelog.server.metrics.http import MetricsServer


BACKLOG: Final = 1024

# Time in ms without a request after which a thread imports the modules for groups. An import during
# requests would slow down the requests, and would itself take longer. Most clients make such a
# pause between their first requests.
FIRST_PAUSE_MS: Final = 5

# Time in ms after which the modules are imported even if clients do not pause.
FIRST_PAUSE_WAIT_MS: Final = 100


def open_node(path: str, config: BrokerConfig, *, env: Env | None = None) -> Node:
    """Lock a data directory and create a broker's state for it.

    Raises:
        DirectoryLocked: Another process has the lock.
        StorageFailure, InvalidRequest, ConfigError, CorruptFile, UnsupportedVersion: See
            `LogDir.open` and `Node`.
    """
    syncs = Work()
    options = LogDirOptions(
        create=True,
        topic_defaults=config.topic_defaults,
        deferrals=lambda: ThreadDeferral(syncs),
        producer_expiration_ms=config.producer_id_expiration_ms,
        leaves_set_aside=True,
        prepare=lambda state: _apply_stored(state, config),
    )
    clock = (env or os_env()).clock
    began_ms = clock.monotonic_ms()
    log_dir = LogDir.open(path, env=env, options=options)
    duration_s = (clock.monotonic_ms() - began_ms) / 1000
    count = len(log_dir.topics())
    text = "%s: opened in %.1f s, topics: %d%s"
    recovered = "" if log_dir.was_clean or not count else "; recovered after an unclean shutdown"
    LOGGER.info(text, path, duration_s, count, recovered, extra=LOGGED_ONCE)
    differing = ", ".join(_differing(config))
    LOGGER.info("settings that differ from defaults: %s", differing or "none", extra=LOGGED_ONCE)
    try:
        return Node(log_dir, config, syncs)
    except TidelogError:
        syncs.close()
        log_dir.close()
        raise


def _differing(config: BrokerConfig) -> Iterator[str]:
    """Yield `name=value` for settings that differ from Kafka's defaults. Passwords are hidden."""
    for name in sorted(config.explicit_names):
        key = BROKER_CONFIG_BY_NAME[name]
        value = config.text(name)
        if value != key.default:
            yield f"{name}={'[hidden]' if key.kind is PASSWORD else value}"
    for name, value in sorted(config.topic_defaults.items()):
        yield f"{name}={value} (topics)"


def _apply_stored(log_dir: LogDir, config: BrokerConfig) -> None:
    """Apply stored changes of settings before recovery, because recovery depends on settings."""
    # Errors of this read are ignored: `Node` later reads the same file again and reports its
    # errors.
    with suppress(TidelogError, OSError):
        stored = settings_of(read_cluster(log_dir.env.files, log_dir.path), config.node_id)
        if stored:
            from tidelog.config.broker import changed_config  # imported only for changed settings

            changed = changed_config(config, stored)
            log_dir.topic_admin.use_defaults(changed.topic_defaults)
            log_dir.open_partitions.producer_expiration_ms = changed.producer_id_expiration_ms


def planned(config: BrokerConfig, endpoint: Endpoint | None = None) -> tuple[ListenerPlan, ...]:
    """Return the listeners of the settings.

    Args:
        config: The settings.
        endpoint: Address of the only listener. It replaces the address in the settings.

    Raises:
        ConfigError: The settings have no valid listeners (`plan_listeners`), or `endpoint` is given
            and the settings have several listeners.
    """
    plans = plan_listeners(config)
    if endpoint is None:
        return plans
    if len(plans) > 1:
        text = (
            f"has {len(plans)} listeners, but only one address was given; leave out the address,"
            " or configure one listener"
        )
        raise ConfigError("listeners", config.listeners, text)
    return (plans[0]._replace(endpoint=endpoint),)


def advertised(plan: ListenerPlan, port: int) -> Address:
    """Return the address that clients connect to. `port` replaces a port of 0."""
    endpoint = plan.client_endpoint(port)
    return Address(endpoint.host, endpoint.port)


async def use_kernels(node: Node) -> None:
    """Let logs use kernels for checks and searches.

    Logs that are opened from now on use kernels at once. The logs that are already open are
    switched to kernels in slices, so that requests are served in between.
    """
    node.partitions.has_kernels = True
    slices = Slices(node.env.clock)
    for partition in node.partitions.opened():
        if partition.failure is None and not partition.is_deleted:
            partition.log.use_kernels()
        await slices.rest()


class Server:
    """One broker on one event loop, from `start` or `open_listeners` to `stop`."""

    def __init__(self, node: Node, *, kernels_after_s: float = 0.0) -> None:
        """Create a broker that does not listen yet.

        Args:
            node: The broker's state.
            kernels_after_s: Delay, in s, until the cleaner starts and a thread loads the kernels.
                Without the delay, the loading would slow down the first clients. Until the kernels
                are loaded, logs work without them.
        """
        self.node = node
        self._kernels_after_s = kernels_after_s
        self._listeners: list[Listener] = []
        self.clients = Clients(node)
        self._wake: asyncio.TimerHandle | None = None
        self._pages: MetricsServer | None = None
        self._control: Control | None = None
        self._compaction: LogCleaner | None = None
        self._background = LogManager(self.node)
        self._rest: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Open the only listener of the settings at this address; return the listener's port.

        Raises:
            OSError, TidelogError: See `open_listeners`. ConfigError is also raised if the settings
                have several listeners.
        """
        plans = planned(self.node.config, Endpoint(host, port))
        return (await self.open_listeners(plans))[plans[0].name]

    async def open_listeners(self, plans: Sequence[ListenerPlan]) -> dict[str, int]:
        """Open all listeners; return each listener's port, by the listener's name.

        If a listener's port is 0, the system chooses one.

        Raises:
            OSError: The address of a listener or of the metrics can't be bound.
            ConfigError: A certificate, a users file or the keys of tokens are invalid, a needed
                setting or package is missing, or `tidelog.metrics.listen` can't be parsed.
            CorruptFile, StorageFailure: The users or ACLs can't be read.
        """
        self.node.timers.on_earlier = self._schedule
        authentications = [ListenerAuthentication(self.node, plan) for plan in plans]
        ports: dict[str, int] = {}
        for authentication in authentications:
            with naming(authentication.plan.endpoint):
                ports[authentication.plan.name] = await self._listen(authentication)
            address = self.node.listeners[authentication.plan.name]
            endpoint = Endpoint(authentication.plan.endpoint.host, ports[authentication.plan.name])
            LOGGER.info(
                "listener %s (%s) on %s, advertised as %s",
                authentication.plan.name,
                authentication.plan.protocol.name,
                endpoint,
                address,
                extra=LOGGED_ONCE,
            )
        self.node.address = self.node.listeners[plans[0].name]
        if self.node.config.tidelog_metrics_listen:
            from tidelog.server.metrics.http import start_pages

            self._pages = await start_pages(self.node, self._is_serving)
        self.clients.watch_idle()
        self._background.start()
        self.node.removals.add(self.node.log_dir.topic_admin.set_aside)
        await self._serve_control()
        self._rest = asyncio.get_running_loop().create_task(self._start_rest())
        return ports

    async def _start_rest(self) -> None:
        """Start the components that aren't needed to listen, while clients are already served.

        A thread imports the components' modules, beginning with the modules that the first group
        needs. If the data directory has groups or transactions, the import begins at once, and
        these groups and transactions are resumed after the import. If the directory has neither,
        the import begins when the clients pause (`FIRST_PAUSE_MS`), at the latest after
        `FIRST_PAUSE_WAIT_MS`.
        """
        node = self.node
        if not (node.has_stored_groups or node.has_stored_transactions):
            await self.clients.first_pause(FIRST_PAUSE_MS, limit_ms=FIRST_PAUSE_WAIT_MS)
        await node.work.run(import_coordinators, node.has_stored_transactions)
        node.resume_groups()
        node.resume_transactions()
        if self._kernels_after_s:
            await asyncio.sleep(self._kernels_after_s)
        await node.work.run(import_module, "tidelog.server.maintenance.log_cleaner")
        self._started_compaction()
        await node.work.run(import_module, "tidelog.server.kernels")
        from tidelog.server.kernels import load_beside  # a thread has imported it above

        load_beside(self._use_kernels)

    async def _listen(self, authentication: ListenerAuthentication) -> int:
        """Open one listener; return its port."""
        endpoint = authentication.plan.endpoint
        sockets = await listening_sockets(endpoint.host, endpoint.port, BACKLOG, self._prepare)
        port: int = sockets[0].getsockname()[1]
        self._listeners.append(self._listener(authentication, sockets))
        self.node.bound_addresses[authentication.plan.name] = str(Endpoint(endpoint.host, port))
        authentication.address = self.node.listeners[authentication.plan.name] = advertised(
            authentication.plan, port
        )
        return port

    def _prepare(self, bound: socket.socket) -> None:
        config = self.node.config
        is_configured = SEND_BUFFER in config.explicit_names
        prepare(bound, config.socket_send_buffer_bytes, is_configured=is_configured)

    def _listener(
        self, authentication: ListenerAuthentication, sockets: Sequence[socket.socket]
    ) -> Listener:
        """Return the listener, plain or TLS."""

        def make() -> Connection:
            return Connection(self.node, self.clients, authentication)

        if authentication.context is None:
            return Listener(sockets, self.node, make)
        from tidelog.server.net.listener import TlsListener

        return TlsListener(sockets, self.node, make, authentication.context)

    def _is_serving(self) -> bool:
        return all(listener.is_serving() for listener in self._listeners)

    def _use_kernels(self) -> None:
        self.node.topics.begin(use_kernels(self.node))

    def _started_compaction(self) -> "LogCleaner":
        """Return the log cleaner, which the first call starts."""
        if self._compaction is None:
            from tidelog.server.maintenance.log_cleaner import LogCleaner

            self._compaction = LogCleaner(self.node)
            self._compaction.start()
        return self._compaction

    async def _serve_control(self) -> None:
        """Open the control channel. A failure is logged, and the broker works without it."""
        from tidelog.server.maintenance.control import Control  # imported late, as it is large

        control = Control(self.node, self._started_compaction)
        try:
            await control.start()
        except (TidelogError, OSError) as error:
            LOGGER.warning(
                "can't open the control channel for commands; the broker runs without it: %s", error
            )
            return
        self._control = control

    async def stop(self) -> None:
        """Shut down cleanly: close all connections, then the data directory.

        Raises:
            StorageFailure: A partition could not be closed.
        """
        if self._listeners:  # empty after a failed start
            LOGGER.info("stopping: syncing and closing the partitions", extra=LOGGED_ONCE)
        began_ms = self.node.log_dir.env.clock.monotonic_ms()
        for listener in self._listeners:
            listener.close()
        if self._rest is not None:
            self._rest.cancel()
        self.clients.close()
        if self._pages is not None:
            await self._pages.stop()
        if self._control is not None:
            await self._control.stop()
        if self._compaction is not None:
            await self._compaction.stop()
        await self._background.stop()
        await self.node.removals.stop()  # before `settle`: deletions may wait for removals
        await self.node.topics.settle()
        # Cancelled tasks must end before the directory is closed.
        await asyncio.sleep(0)
        if self._wake is not None:
            self._wake.cancel()
        for listener in self._listeners:
            with suppress(asyncio.CancelledError):
                await listener.wait_closed()
        self.node.close()
        duration_s = (self.node.log_dir.env.clock.monotonic_ms() - began_ms) / 1000
        if self._listeners:
            LOGGER.info("stopped after %.1f s", duration_s, extra=LOGGED_ONCE)

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
