"""From a frame to its handler, and from what it says to the pieces of the answer.

Source: Kafka's protocol guide; KIP-511 (an unknown version of ApiVersions is answered in v0).
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedRequest
from tidelog.protocol.messages import API_VERSIONS, BY_KEY, FETCH, LIST_OFFSETS, PRODUCE
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.protocol.requests import (
    LongRequest,
    ReceivedRequest,
    read_request,
    write_response,
    write_response_around,
)
from tidelog.server.api.context import Answer, Long, RequestContext, Response, Written, key_of
from tidelog.server.api.guards import Access, Denied
from tidelog.server.api.node import ConnectionFacts, Node
from tidelog.server.api.table import guard_of, handler_of, items_at_once, served_versions
from tidelog.server.runtime.reply import Promise
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.server.api.charges import Charges
    from tidelog.server.api.repeated_fetches import RepeatedFetches
    from tidelog.server.api.repeated_lookups import RepeatedLookups
    from tidelog.server.api.repeated_produces import RepeatedProduces

__all__ = ["CorruptMessage", "Later", "Outcome", "Pieces", "Promised", "answer"]


_PRODUCE: Final = PRODUCE.key


_FETCH: Final = FETCH.key


_LIST_OFFSETS: Final = LIST_OFFSETS.key


Pieces: TypeAlias = list[Buffer]


class Later:
    """An answer on its way: awaited once, or closed where nobody waits for it any more."""

    def __init__(
        self,
        node: Node,
        request: ReceivedRequest,
        said: "Awaitable[Response | Long | Written | None]",
        charges: "Charges | None" = None,
    ) -> None:
        self._node = node
        self._request = request
        self._said = said
        self._charges = charges

    def __await__(self) -> "Generator[object, None, Pieces | None]":
        return self._written().__await__()

    async def _written(self) -> Pieces | None:
        if self._charges is None:
            response = await self._said
        else:
            response = await self._charges.timed(self._said)
            self._charges.charge(
                response.response if isinstance(response, Long | Written) else response
            )
        if isinstance(response, Long):
            return await self._node.work.run(_write_long, self._request, response)
        if isinstance(response, Written):
            return write_response_around(self._request, response.response, response.name)
        return None if response is None else write_response(self._request, response)

    def close(self) -> None:
        """Give up what was never awaited; nothing where it is over."""
        if isinstance(self._said, Coroutine):
            self._said.close()
        elif isinstance(self._said, Future):
            self._said.cancel()


class Promised(Later):
    """An answer that rules give once somebody else has done his part: no task has to wait for it.

    It can be awaited as any other.
    """

    def __init__(self, node: Node, request: ReceivedRequest, said: "Promise[Response]") -> None:
        super().__init__(node, request, said)
        self._promise = said

    def when_there(self, tell: Callable[[Callable[[], Pieces]], None]) -> None:
        """Call `tell` with what makes the answer's pieces, in the midst of whatever brought it."""
        request = self._request
        self._promise.when_there(lambda response: tell(lambda: write_response(request, response())))


def _write_long(request: ReceivedRequest, said: Long) -> Pieces:
    pieces = write_response(request, said.response)
    said.let_go()
    return pieces


Outcome: TypeAlias = Pieces | Later | None


# How a connection gets from a frame to what is sent: `answer`, or one that asks first who it is.
Answering: TypeAlias = Callable[[Node, ConnectionFacts, Buffer], Outcome]


def answer(node: Node, connection: ConnectionFacts, frame: Buffer) -> Outcome:
    """What to send for a request: now, later, or (None) nothing.

    Raises:
        CorruptMessage: The frame breaks a rule; the connection is to be closed.
        UnsupportedVersion: An API or version that is not served, as Kafka closes the connection.
    """
    began_ns = None if node.throttles is None else node.env.clock.monotonic_ns()
    told = _repeated(node, connection, frame, began_ns)
    if told is not None:
        return told
    legacy = node.config.tidelog_legacy_clients
    try:
        request = read_request(frame, served_versions(legacy), items_at_once)
    except LongRequest as long:
        return _answer_long(node, connection, frame, long, began_ns)
    except UnsupportedRequest as error:
        if error.api_key == API_VERSIONS.key:
            return _versions_in_v0(error.correlation_id, legacy=legacy)
        raise
    api = request.api
    context = RequestContext(node, api, request.version, request.client_id, connection)
    said = _handle(context, request.message)
    charges = None if began_ns is None else _charges_of(context, len(frame), began_ns)
    if charges is not None:
        charges.worked(said)
    if type(said) is ProduceResponse:
        _learn_produce(node, connection, frame, request)
    elif type(said) is FetchResponse:
        _learn_fetch(node, connection, frame, request, said)
    return _written(node, request, said, charges)


def _handle(context: RequestContext, message: Response) -> Answer:
    """Call the handler with what the guard allows, and add what is denied to its response.

    Raises:
        NotLoggedIn: An API without a guard, called by a client without all rights on the cluster.
    """
    handler = handler_of(context.api.key)
    guard = None if context.node.authorizer is None else guard_of(context.api.key)
    if guard is None:
        return handler(context, message)
    allowed, denied = guard(Access(context), message)
    response = None if allowed is None else handler(context, allowed)
    if denied is None:
        return response
    if isinstance(response, Awaitable):
        return _add_denied(response, denied)
    return denied.add_to(response)


async def _add_denied(
    response: "Awaitable[Response | Long | None]", denied: Denied
) -> "Response | Long | None":
    handled = await response
    added = denied.add_to(handled.response if isinstance(handled, Long) else handled)
    whole = await added if isinstance(added, Awaitable) else added
    return handled if isinstance(handled, Long) else whole


def _answer_long(
    node: Node, connection: ConnectionFacts, frame: Buffer, long: LongRequest, began_ns: int | None
) -> Outcome:
    """Answer a request with long lists part by part."""
    context = RequestContext(node, long.api, long.version, long.client_id, connection)
    charges = None if began_ns is None else _charges_of(context, len(frame), began_ns)
    from tidelog.server.api.long_requests import answer_long  # few clients send any

    said = answer_long(context, long, _handle)
    head = ReceivedRequest(
        long.api, long.version, long.correlation_id, long.client_id, long.api.request()
    )
    return Later(node, head, said, charges)


def _repeated(
    node: Node, connection: ConnectionFacts, frame: Buffer, began_ns: int | None
) -> Outcome:
    """What to send for a request as it came before; None where it is of another kind."""
    key = key_of(frame)
    if key == _LIST_OFFSETS:
        lookups = node.repeated_lookups or _begin_lookups(node)
        return cast("RepeatedLookups", lookups).answer(connection, frame, began_ns)
    if key == _PRODUCE and connection.repeated_produces is not None:
        produces = cast("RepeatedProduces", connection.repeated_produces)
        told = produces.answer(frame, began_ns)
        return told if told is None or isinstance(told, list) else _written(node, *told)
    if key == _FETCH and connection.repeated_fetches is not None:
        return cast("RepeatedFetches", connection.repeated_fetches).answer(frame, began_ns)
    return None


def _written(
    node: Node, request: ReceivedRequest, said: Answer, charges: "Charges | None" = None
) -> Outcome:
    if said is None:
        return None
    if type(said) is _response_of(request.api.key):
        return write_response(request, said)
    if charges is None and isinstance(said, Promise):
        return Promised(node, request, said)
    assert isinstance(said, Awaitable)
    return Later(node, request, said, charges)


@cache
def _response_of(key: int) -> type[Response]:
    """The declaration of an API's answer: an API looks for it each time that it is asked."""
    return BY_KEY[key].response


def _learn_produce(
    node: Node, connection: ConnectionFacts, frame: Buffer, request: ReceivedRequest
) -> None:
    """Remember what a Produce means: its sender will go on like this."""
    if connection.repeated_produces is None:
        from tidelog.server.api.repeated_produces import RepeatedProduces  # most clients only read

        connection.repeated_produces = RepeatedProduces(node, connection)
    served = served_versions(node.config.tidelog_legacy_clients)
    cast("RepeatedProduces", connection.repeated_produces).learn(frame, request, served)


def _learn_fetch(
    node: Node,
    connection: ConnectionFacts,
    frame: Buffer,
    request: ReceivedRequest,
    said: FetchResponse,
) -> None:
    """Remember what a Fetch means: a consumer goes on like this."""
    if connection.repeated_fetches is None:
        from tidelog.server.api.repeated_fetches import RepeatedFetches  # many clients only write

        connection.repeated_fetches = RepeatedFetches(node, connection)
    cast("RepeatedFetches", connection.repeated_fetches).learn(frame, request, said)


def _charges_of(context: RequestContext, size_bytes: int, began_ns: int) -> "Charges | None":
    from tidelog.server.api.charges import charges_of  # few have quotas

    return charges_of(context, size_bytes, began_ns)


def _begin_lookups(node: Node) -> "RepeatedLookups":
    from tidelog.server.api.repeated_lookups import RepeatedLookups  # most clients ask for none

    found = RepeatedLookups(node, served_versions(node.config.tidelog_legacy_clients))
    node.repeated_lookups = found
    return found


def _versions_in_v0(correlation_id: int, *, legacy: bool) -> Pieces:
    from tidelog.protocol.messages.metadata import ApiVersionsRequest
    from tidelog.server.api.metadata import answer as versions

    asked = ReceivedRequest(API_VERSIONS, 0, correlation_id, None, ApiVersionsRequest())
    return write_response(asked, versions(legacy=legacy, error_code=ErrorCode.UNSUPPORTED_VERSION))
