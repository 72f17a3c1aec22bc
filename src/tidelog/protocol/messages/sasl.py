"""SaslHandshake and SaslAuthenticate: who a client is.

Source: Kafka's protocol guide, APIs 17 and 36; KIP-43, KIP-152, KIP-368 (sessions that end).
"""

from dataclasses import dataclass

from tidelog.protocol.schema import (
    BYTES,
    INT16,
    INT64,
    STRING,
    array,
    nullable_string,
    wire,
)
from tidelog.types import Buffer


@dataclass(slots=True, kw_only=True)
class SaslHandshakeRequest:
    """Which mechanism the client wants."""

    mechanism: str = wire(STRING)


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether it may have that, and which there are."""

    error_code: int = wire(INT16)
    mechanisms: list[str] = wire(array(STRING))


@dataclass(slots=True, kw_only=True, repr=False)
class SaslAuthenticateRequest:
    """The client's next word. It may be a password: nobody prints it."""

    auth_bytes: Buffer = wire(BYTES)


@dataclass(slots=True, kw_only=True, repr=False)
class SaslAuthenticateResponse:
    """The broker's."""

    error_code: int = wire(INT16)
    error_message: str | None = wire(nullable_string())
    auth_bytes: Buffer = wire(BYTES)
    session_lifetime_ms: int = wire(INT64, since=1)
