"""A broker in this process, with its event loop in a thread, for tests and small services.

with tidelog.broker() as broker:
producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from tidelog.arguments import reads_arguments
from tidelog.closing import Closing
from tidelog.config import BrokerConfig, plain_settings
from tidelog.config.files import setting_texts
from tidelog.config.listeners import (
    LOOPBACK,
    Endpoint,
    ListenerPlan,
    data_directory,
    ensure_private,
    plan_listeners,
)
from tidelog.env import Env, UnsyncedFiles
from tidelog.errors import Closed, ConfigError
from tidelog.server.api.node import Node
from tidelog.server.broker import Server, open_node, planned
from tidelog.server.runtime import loop
from tidelog.types import PORT_MAX

_Result = TypeVar("_Result")

# Default of embedded brokers that differs from Kafka's default. With Kafka's default, the first
# consumer of a group waits three seconds for other members, so most tests would take three seconds
# longer.
_EAGER: Final = {"group.initial.rebalance.delay.ms": "0"}

# Settings for a temporary directory. With the defaults, each of the three state topics would have
# fifty partitions, whose creation takes a tenth of a second.
_FEW: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}

_DIRECTORIES: Final = frozenset({"log.dirs", "log.dir"})

# Delay in seconds before the kernels are loaded. Without the delay, the loading would slow down the
# first client of a process. This client connects at once, and is often the only client.
_KERNELS_AFTER_S: Final = 1.0

# Maps an IP version to the address that local clients connect to if a listener is bound to all
# addresses.
_LOOPBACKS: Final = {4: LOOPBACK, 6: "::1"}


class Broker(Closing):
    """A running broker, created by `broker(...)`. `close` or the end of `with` stops it."""

    def __init__(
        self,
        node: Node,
        plans: Sequence[ListenerPlan],
        folder: "TemporaryDirectory[str] | None",
    ) -> None:
        self._node = node
        self._plans = plans
        self._folder = folder
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ports: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="tidelog-broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error that ended the thread, if any. Later calls do nothing."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self._thread.join()
            raise failure

    def _run(self) -> None:
        try:
            loop.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by `__init__` or `close`
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = Server(self._node, kernels_after_s=_KERNELS_AFTER_S)
        try:
            self._ports = await server.open_listeners(self._plans)
            self._ready.set()
            await self._stopping.wait()
        finally:
            await server.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the first listener, for clients on this machine."""
        first = self._plans[0]
        host = first.endpoint.host
        if first.endpoint.is_wildcard:
            host = _LOOPBACKS[ip_address(host).version]
        return str(Endpoint(host, self._ports[first.name]))

    @property
    def ports(self) -> Mapping[str, int]:
        """The port of each listener, by name."""
        return self._ports

    @property
    def metrics_address(self) -> str | None:
        """`host:port` of /metrics, /healthz and /readyz; None if they aren't served."""
        address = self._node.metrics_address
        return None if address is None else str(address)

    @property
    def data(self) -> str:
        """The data directory. `close` removes a temporary directory."""
        return self._node.log_dir.path

    def call(self, function: Callable[[Node], _Result]) -> _Result:
        """Call a function with the broker's node, on the broker's event loop.

        Return its result or raise its error.

        Raises:
            Closed: The broker was closed.
        """
        if self._loop is None or not self._thread.is_alive():
            raise Closed(f"{self.data}: the broker is closed")

        async def run() -> _Result:
            return function(self._node)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def run_due(self) -> int:
        """Run every timer that is due by the broker's clock, and return their number.

        Tests that move the broker's clock (`ManualClock`) call this method. Without the call, the
        broker would notice the moved clock only at its next check of timers, which it makes in real
        time.

        Raises:
            Closed: The broker was closed.
        """
        return self.call(lambda node: node.timers.run_due())

    def close(self) -> None:
        """Close the connections and the directory. This is a clean shutdown.

        Closing twice is allowed.

        Raises:
            StorageFailure: A partition could not be closed.
        """
        if self._thread.is_alive() and self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()
        self._raise_failure()


@reads_arguments()
def broker(
    data: str | None = None,
    *,
    port: int | None = None,
    settings: Mapping[str, object] | None = None,
    env: Env | None = None,
    insecure: bool = False,
) -> Broker:
    """Start a broker in this process, by default on the loopback interface.

    Several brokers may run in one process.

    Args:
        data: Data directory of the broker, created if missing. If None, the broker uses the
            directory in the setting `log.dirs` or, without this setting, a temporary directory. The
            files of a temporary directory are not synced if `env` is None.
        port: Port of the broker's only listener, on the loopback interface. If 0, the system
            chooses a port. If None, the setting `listeners` is used; without this setting, the
            system chooses a port.
        settings: Broker settings by Kafka's names, as in server.properties. Values are texts or
            TOML types: numbers, booleans, lists. By default `group.initial.rebalance.delay.ms` is
            0. With a temporary directory the topics of groups, transactions and share groups have
            one partition by default.
        env: Files, clock and randomness; None to use the machine's own.
        insecure: Allows other machines to reach the metrics, and to reach listeners that lack TLS
            or authentication.

    Raises:
        ConfigError: A setting is unknown, a value is out of range, the port is invalid, or the
            settings name several directories. A `port` is given, and the settings have several
            listeners. Other machines could reach the metrics, or a listener without TLS or
            authentication, and `insecure` is False.
        DirectoryLocked: Another process, or another broker in this process, has locked the
            directory.
        OSError: The address of a listener or of the metrics can't be bound.
    """
    texts = plain_settings(setting_texts(settings or {}))
    is_temporary = data is None and not texts.keys() & _DIRECTORIES
    config = BrokerConfig.parse({**_EAGER, **(_FEW if is_temporary else {}), **texts})[0]
    plans = _planned(config, port)
    if not insecure:
        ensure_private(config, plans, "insecure=True")
    directory = data_directory(config) or None if data is None else str(data)
    folder = TemporaryDirectory(prefix="tidelog-") if directory is None else None
    path = folder.name if directory is None and folder is not None else str(directory)
    if folder is not None and env is None:
        env = Env(files=UnsyncedFiles())  # unsynced, because `close` removes the files
    try:
        return Broker(open_node(path, config, env=env), plans, folder)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise


def _planned(config: BrokerConfig, port: int | None) -> tuple[ListenerPlan, ...]:
    if port is None and "listeners" in config.explicit_names:
        return plan_listeners(config)
    return planned(config, Endpoint(LOOPBACK, _checked_port(port or 0)))


def _checked_port(port: object) -> int:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= PORT_MAX:
        raise ConfigError("port", str(port), f"must be a whole number from 0 to {PORT_MAX}")
    return port
