"""From a frame to its handler, and from what it says to the pieces of the answer.

Source: Kafka's protocol guide; KIP-511 (an unknown version of ApiVersions is answered in v0).
"""

from asyncio import Future
from collections.abc import Awaitable, Coroutine, Generator
from typing import Final, TypeAlias

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.connection import ReceivedRequest, read_request, write_response
from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.wire import Reader
from tidelog.server.handlers import BY_KEY, handler_of
from tidelog.server.node import ConnectionFacts, Node
from tidelog.server.requests import RequestContext, Response
from tidelog.types import Buffer

UNSUPPORTED_VERSION: Final = 35

Pieces: TypeAlias = list[Buffer]


class Later:
    """An answer on its way: awaited once, or closed where nobody waits for it any more."""

    def __init__(self, request: ReceivedRequest, said: "Awaitable[Response | None]") -> None:
        self._request = request
        self._said = said

    def __await__(self) -> "Generator[object, None, Pieces | None]":
        return self._written().__await__()

    async def _written(self) -> Pieces | None:
        response = await self._said
        return None if response is None else write_response(self._request, response)

    def close(self) -> None:
        """Give up what was never awaited; nothing where it is over."""
        if isinstance(self._said, Coroutine):
            self._said.close()
        elif isinstance(self._said, Future):
            self._said.cancel()


Outcome: TypeAlias = Pieces | Later | None


def answer(node: Node, connection: ConnectionFacts, frame: Buffer) -> Outcome:
    """What to send for a request: now, later, or (None) nothing.

    Raises:
        CorruptMessage: The frame breaks a rule; the connection is to be closed.
        UnsupportedVersion: An API or version that is not served, as Kafka closes the connection.
    """
    reader = Reader(frame)
    key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    row = BY_KEY.get(key)
    legacy = node.config.tidelog_legacy_clients
    if row is None or not row.first_for(legacy=legacy) <= version <= row.last:
        if key == API_VERSIONS.key:
            return _versions_in_v0(correlation_id, legacy=legacy)
        raise UnsupportedVersion(f"API {key} v{version} is not served")
    request = read_request(frame)
    context = RequestContext(node, request.api, version, request.client_id, connection)
    said = handler_of(key)(context, request.message)
    if said is None:
        return None
    if isinstance(said, Awaitable):
        return Later(request, said)
    return write_response(request, said)


def _versions_in_v0(correlation_id: int, *, legacy: bool) -> Pieces:
    from tidelog.protocol.messages.metadata import ApiVersionsRequest
    from tidelog.server.handlers.api_versions import answer as versions

    asked = ReceivedRequest(API_VERSIONS, 0, correlation_id, None, ApiVersionsRequest())
    return write_response(asked, versions(legacy=legacy, error_code=UNSUPPORTED_VERSION))


__all__ = ["CorruptMessage", "Later", "Outcome", "Pieces", "answer"]
