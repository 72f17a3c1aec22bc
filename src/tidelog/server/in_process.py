"""A broker in this process, its event loop in a thread: for tests, notebooks, small services.

with tidelog.broker() as broker:
producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from tidelog.closing import Closing
from tidelog.config import BrokerConfig
from tidelog.env import Env
from tidelog.errors import Closed
from tidelog.server import loops
from tidelog.server.node import Node
from tidelog.server.security.listeners import plan_listeners
from tidelog.server.server import Server, open_node, planned
from tidelog.server.settings import Endpoint

_Result = TypeVar("_Result")
LOOPBACK: Final = "127.0.0.1"


class Broker(Closing):
    """A running broker. Made by `broker(...)`; closed by `close` or at the end of its block."""

    def __init__(self, node: Node, port: int, folder: "TemporaryDirectory[str] | None") -> None:
        self._node = node
        self._folder = folder
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._port = port
        self._ports: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="tidelog-broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise what ended the thread, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self._thread.join()
            raise failure

    def _run(self) -> None:
        try:
            loops.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where `close` is called
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = Server(self._node)
        try:
            plans = plan_listeners(self._node.config)
            if len(plans) == 1:
                plans = planned(self._node.config, Endpoint(LOOPBACK, self._port))
            self._ports = await server.open_doors(plans)
            self._port = self._ports[plans[0].name]
            self._ready.set()
            await self._stopping.wait()
        finally:
            await server.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def ports(self) -> Mapping[str, int]:
        """The port of each listener, by name."""
        return self._ports

    @property
    def data(self) -> str:
        """The directory of topics; gone after `close` where it was not given."""
        return self._node.log_dir.path

    def call(self, function: Callable[[Node], _Result]) -> _Result:
        """Call a function with the broker's node on its loop; what it raises is raised here.

        Raises:
            Closed: The broker was closed.
        """
        if self._loop is None or not self._thread.is_alive():
            raise Closed(f"{self.data}: the broker is closed")

        async def run() -> _Result:
            return function(self._node)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def close(self) -> None:
        """Close connections and directory: a clean stop. Closing twice is fine.

        Raises:
            StorageFailure: A partition could not be closed.
        """
        if self._thread.is_alive() and self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()
        self._raise_failure()


def broker(
    data: str | None = None,
    *,
    port: int = 0,
    settings: Mapping[str, str] | None = None,
    env: Env | None = None,
) -> Broker:
    """Start a broker on the loopback interface; several may run in one process.

    Args:
        data: Its directory, made where it is missing; a temporary one where None.
        port: Where its only listener listens; the system chooses where 0. Several listeners are
            where the settings say.
        settings: Broker settings by Kafka's names, as in server.properties.
        env: Files, clock and randomness; the machine's where None.

    Raises:
        ConfigError: An unknown setting or a value outside its range.
        DirectoryLocked: Another process, or another broker here, has the directory.
        OSError: The port can't be had.
    """
    config = BrokerConfig.parse(settings or {})[0]
    folder = TemporaryDirectory(prefix="tidelog-") if data is None else None
    path = folder.name if folder is not None else str(data)
    try:
        return Broker(open_node(path, config, env=env), port, folder)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise
