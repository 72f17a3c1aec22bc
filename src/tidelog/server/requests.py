"""A request on its way to its handler, and the forms that an answer can take."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tidelog.protocol.messages import AnyApi
from tidelog.server.node import ConnectionFacts, Node

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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


Response: TypeAlias = "DataclassInstance"
# At once, later, or (None) never: a producer that wants no acknowledgement.
Answer: TypeAlias = "Response | Awaitable[Response | None] | None"
# Each handler takes its API's own request, which no type can say of all: `handler_of` casts.
Handler: TypeAlias = Callable[[RequestContext, "DataclassInstance"], Answer]
