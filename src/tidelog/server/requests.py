"""A request on its way to its handler, and the forms that an answer can take."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.server.node import ConnectionFacts, Node

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Of the field before a frame.
LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks what, in which version.

    Attributes:
        node: The broker.
        api: What is asked.
        version: In which version.
        client_id: How the client calls itself.
        connection: Whose connection it is.
    """

    node: Node
    api: AnyApi
    version: int
    client_id: str | None
    connection: ConnectionFacts


class Asked(NamedTuple):
    """A request on its way, as far as metrics go.

    Attributes:
        key: Which API.
        size_bytes: Of its frame, the length field included.
        began_s: When it was looked at, by the loop's clock.
    """

    key: int
    size_bytes: int
    began_s: float


def api_name(key: int) -> str:
    """Kafka's name of an API, `unknown` for a number that has none."""
    found = BY_KEY.get(key)
    return "unknown" if found is None else found.name


Response: TypeAlias = "DataclassInstance"
# At once, later, or (None) never: a producer that wants no acknowledgement.
Answer: TypeAlias = "Response | Awaitable[Response | None] | None"
# Each handler takes its API's own request, which no type can say of all: `handler_of` casts.
Handler: TypeAlias = Callable[[RequestContext, "DataclassInstance"], Answer]
