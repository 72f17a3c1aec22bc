"""Where a cluster is, and how long it may take: checked before anybody is asked."""

from collections.abc import Mapping
from typing import Final

from tidelog.errors import ConfigError
from tidelog.types import PORT_MAX

TIMEOUT_MAX_S: Final = 3600.0  # the client library waits no longer for an admin's request
_TIMEOUT_MIN_S: Final = 0.001

# Settings that say nothing of how records are fetched: with these alone brokers are asked directly.
_NOT_OF_FETCHES: Final = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "client.id",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "message.max.bytes",
        "message.timeout.ms",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "request.required.acks",
        "security.protocol",
    }
)


def check_bootstrap(bootstrap: object) -> None:
    """Do nothing if it is `host:port[,host:port]`.

    The client library takes port 0 for one that is no number, cuts one that is too large to 16
    bits, and waits for brokers where there are none.

    Raises:
        ConfigError: It is not; names the server that is wrong.
    """
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        allowed = "write HOST:PORT, several with commas between"
        raise ConfigError("bootstrap", repr(bootstrap), allowed)
    for server in bootstrap.split(","):
        _check_server(server.strip())


def _check_server(server: str) -> None:
    host, _, port = server.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX
    if not host or not is_port:
        allowed = f"write HOST:PORT, with a port from 1 to {PORT_MAX}"
        raise ConfigError("bootstrap", repr(server), allowed)


def check_timeout(timeout_s: float) -> None:
    """Do nothing if it is a number of seconds that can be waited for.

    Raises:
        ConfigError: It is not.
    """
    if not _TIMEOUT_MIN_S <= timeout_s <= TIMEOUT_MAX_S:
        allowed = f"a request may take from a millisecond to {TIMEOUT_MAX_S:g} seconds"
        raise ConfigError("timeout", f"{timeout_s} s", allowed)


def is_direct(client: Mapping[str, str]) -> bool:
    """Whether batches can be fetched from leaders, without librdkafka: plain text alone.

    Args:
        client: Settings of librdkafka.
    """
    protocol = client.get("security.protocol", "PLAINTEXT")
    return protocol.upper() == "PLAINTEXT" and client.keys() <= _NOT_OF_FETCHES
