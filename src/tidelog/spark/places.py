"""Places that jobs read from and write to: clusters of brokers, and local or remote directories.

A place is written as `kafka://host:port[,host:port]`, a path, or the URL of an object store.
`Place.options` returns the options with which `format("tidelog")` reads from or writes to a place.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from os import PathLike, fspath
from typing import Final, Self

from tidelog.arguments import reads_arguments
from tidelog.errors import InvalidRequest
from tidelog.lazy_dataclass import dataclass
from tidelog.types import PORT_MAX

BROKER_SCHEME: Final = "kafka://"
SERVER: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:,/\[\]]+):[0-9]{1,5}")


@reads_arguments()
@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of brokers or a directory.

    Attributes:
        address: `host:port[,host:port]` of brokers; path or URL of a directory.
        is_broker: Whether the place is a cluster; otherwise it is a directory.
        client: Settings of the client under Kafka's names, such as security; for brokers only.
        store: Settings of the object store, without the prefix `store.`; for directories only.
    """

    address: str
    is_broker: bool = False
    # `client` and `store` may contain passwords, so the repr omits them.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        client: Mapping[str, str] | None = None,
        store: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the place that a text describes.

        Args:
            text: `kafka://host:port[,host:port]`, a path, or a URL such as `s3://bucket/logs`.
            client: Settings of the client, for brokers.
            store: Settings of the object store, for directories.

        Raises:
            InvalidRequest: The text describes no place; or settings of a client are given for a
                directory; or settings of a store are given for brokers.
        """
        if text.startswith(BROKER_SCHEME):
            if store:
                raise InvalidRequest(f"{text}: settings of an object store do not apply to brokers")
            servers = text.removeprefix(BROKER_SCHEME).rstrip("/")
            _check_servers(text, servers)
            return cls(servers, is_broker=True, client=dict(client or {}))
        if not text.strip():
            raise InvalidRequest("empty place: give kafka://HOST:PORT, a path, or a URL")
        if client:
            raise InvalidRequest(
                f"{text}: client settings apply only to brokers, {BROKER_SCHEME}HOST:PORT"
            )
        return cls(text, store=dict(store or {}))

    def options(self) -> dict[str, str]:
        """Return the options of `format("tidelog")` to read from or write to this place."""
        if self.is_broker:
            settings = {f"kafka.{name}": value for name, value in self.client.items()}
            return settings | {"kafka.bootstrap.servers": self.address}
        settings = {f"store.{name}": value for name, value in self.store.items()}
        return settings | {"path": self.address}

    def __str__(self) -> str:
        return f"{BROKER_SCHEME}{self.address}" if self.is_broker else self.address


def _check_servers(text: str, servers: str) -> None:
    for server in servers.split(","):
        if not SERVER.fullmatch(server) or int(server.rpartition(":")[2]) > PORT_MAX:
            raise InvalidRequest(
                f"{text}: {server!r} is not HOST:PORT with a port up to {PORT_MAX};"
                f" give {BROKER_SCHEME}HOST:PORT[,HOST:PORT]"
            )


def as_place(value: "Place | str | PathLike[str]") -> Place:
    """Return a place; text and paths are parsed. Raises InvalidRequest if `value` is no place."""
    if isinstance(value, Place):
        return value
    if isinstance(value, str | PathLike):
        return Place.parse(fspath(value))
    raise InvalidRequest(
        f"invalid place {value!r:.60}; give kafka://HOST:PORT, a path, a URL or a Place"
    )
