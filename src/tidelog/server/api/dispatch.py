"""Dispatch of a request: from its frame to its handler, and from the response to bytes.

Source: Kafka's protocol guide; KIP-511 (a request for an unknown version of ApiVersions is answered
in v0).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias, cast

from tidelog.error_codes import ErrorCode
from tidelog.errors import UnsupportedRequest
from tidelog.protocol.messages import API_VERSIONS, BY_KEY
from tidelog.protocol.requests import (
    LongRequest,
    ReceivedRequest,
    read_request,
    write_response,
    write_response_around,
)
from tidelog.protocol.row_templates import (
    CORRELATION_ID,
    RequestTopic,
    Template,
    Templates,
)
from tidelog.server.api.context import (
    EncodedResponse,
    LargeResponse,
    Ready,
    RequestContext,
    Response,
    Started,
    TopicRows,
    key_of,
    may_topic,
)
from tidelog.server.api.guards import Access, Denied
from tidelog.server.api.handlers import handler_of
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.table import (
    guard_of,
    items_at_once,
    row_functions_of,
    served_versions,
)
from tidelog.server.runtime.reply import Reply, start
from tidelog.server.security.operations import Operation
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.server.api.charges import Charges


Pieces: TypeAlias = list[Buffer]


def _write_long(request: ReceivedRequest, long: LargeResponse) -> Pieces:
    pieces = write_response(request, long.response)
    long.free()
    return pieces


Outcome: TypeAlias = "Pieces | Reply[Pieces | None] | None"

# Function that processes a frame of a connection and returns the response: `answer`, or a function
# that authenticates the client first.
Answering: TypeAlias = Callable[[Node, ClientInfo, Buffer], Outcome]


def answer(node: Node, connection: ClientInfo, frame: Buffer) -> Outcome:
    """Answer a request.

    Returns:
        The response's pieces, a reply that gives them later, or None for no response.

    Raises:
        CorruptMessage: The frame breaks a rule of the protocol. The connection is to be closed.
        UnsupportedVersion: The API or version isn't served. The connection is to be closed, as in
            Kafka.
        NotLoggedIn: The API has no guard of its own, and the client doesn't have all rights on the
            cluster.
    """
    began_ns = None if node.throttles is None else node.env.clock.monotonic_ns()
    repeated = _answer_rows(node, connection, frame, began_ns)
    if repeated is not None:
        return repeated
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
    response = _handle(context, request.message)
    functions = row_functions_of(api.key)
    if functions is not None and type(response) is _response_of(api.key):
        if connection.templates is None:
            connection.templates = Templates()
        if functions.may_repeat(request.version, request.message):
            connection.templates.learn(frame, request, response, served_versions(legacy))
    return _written(context, request, response, (frame, began_ns))


def _handle(context: RequestContext, message: Response) -> Started:
    """Call the handler with the allowed part of a request; add the refusals to the response.

    Raises:
        NotLoggedIn: The API has no guard of its own, and the client doesn't have all rights on the
            cluster.
    """
    handler = handler_of(context.api.key)
    guard = None if context.node.authorizer is None else guard_of(context.api.key)
    if guard is None:
        return start(handler(context, message))
    allowed, denied = guard(Access(context), message)
    handled: Started = None if allowed is None else start(handler(context, allowed))
    if denied is None:
        return handled
    add = partial(_add_denied, denied)
    return handled.map(add) if isinstance(handled, Reply) else add(handled)


def _add_denied(denied: Denied, handled: Ready) -> Started:
    if not isinstance(handled, LargeResponse):
        return cast("Started", denied.add_to(cast("Response | None", handled)))
    added = denied.add_to(handled.response)
    return added.map(lambda _: handled) if isinstance(added, Reply) else handled


def _answer_long(
    node: Node, connection: ClientInfo, frame: Buffer, long: LongRequest, began_ns: int | None
) -> Outcome:
    """Answer a request that has long lists, part by part."""
    context = RequestContext(node, long.api, long.version, long.client_id, connection)
    from tidelog.server.api.long_requests import answer_long  # imported only for long requests

    response: Started = start(answer_long(context, long, _handle))
    head = ReceivedRequest(
        long.api, long.version, long.correlation_id, long.client_id, long.api.request()
    )
    return _written(context, head, response, (frame, began_ns))


def _answer_rows(
    node: Node, connection: ClientInfo, frame: Buffer, began_ns: int | None
) -> Outcome:
    """Answer a request that matches a template.

    Return None if the request must be handled without the template. Rights are checked and quotas
    are charged as for a request without a template.
    """
    templates = connection.templates
    template = None if templates is None else templates.find(key_of(frame))
    topics = None if template is None else template.rows(frame)
    if template is None or topics is None:
        return None
    head = template.request
    functions = row_functions_of(head.api.key)
    assert functions is not None
    context = RequestContext(node, head.api, head.version, head.client_id, connection)
    named = _usable_topics(context, template, topics, functions.operation)
    answers = None if named is None else functions.answer(context, head.message, named)
    if answers is None:
        return None
    if not isinstance(answers, tuple):
        number = int.from_bytes(frame[CORRELATION_ID], "big", signed=True)
        request = ReceivedRequest(head.api, head.version, number, head.client_id, head.message)
        return _written(context, request, start(answers), (frame, began_ns))
    facts, records, accept = answers
    pieces = template.encode(frame[CORRELATION_ID], topics, facts, records)
    if accept is not None:
        size_bytes = 0 if began_ns is None else sum(map(len, pieces)) - template.header_bytes
        if not accept(size_bytes):
            return None
    charges = None if began_ns is None else _charges_of(context, len(frame), began_ns)
    throttle_ms = 0 if charges is None else charges.finish()
    if throttle_ms:
        template.set_throttle(pieces, throttle_ms)
    return pieces


def _usable_topics(
    context: RequestContext,
    template: Template,
    topics: list[RequestTopic],
    operation: Operation,
) -> list[TopicRows] | None:
    """Return the topics of a request, with their names.

    Return None if a topic id is unknown, a topic is named twice, or the client is not
    authorized to perform `operation` on one of the topics.
    """
    node, named = context.node, []
    if len(topics) > 1 and len({key for key, _ in topics}) < len(topics):
        return None
    for key, rows in topics:
        reference = template.references.get(key) or template.reference(key)
        if isinstance(reference, str):
            topic: TopicRows = reference, None, rows
        else:
            info = node.topics.find_by_id(reference)
            if info is None:
                return None
            topic = info.name, reference, rows
        if node.authorizer is not None and not may_topic(
            node, context.connection, operation, topic[0]
        ):
            return None
        named.append(topic)
    return named


def _written(
    context: RequestContext,
    request: ReceivedRequest,
    response: Started,
    arrival: tuple[Buffer, int | None],
) -> Outcome:
    """Encode a response as soon as it is complete, and charge the request to the client's quotas.

    Args:
        context: Context of the request.
        request: The request.
        response: Its response.
        arrival: The request's frame, and the monotonic time in ns at which its processing began.
            The time is None if the broker has no quotas.
    """
    frame, began_ns = arrival
    charges = None if began_ns is None else _charges_of(context, len(frame), began_ns)
    if charges is not None:
        charges.worked(response)
    write = partial(_write, context.node, request, charges)
    return response.map(write) if isinstance(response, Reply) else write(response)


def _write(
    node: Node, request: ReceivedRequest, charges: "Charges | None", handled: Ready
) -> Outcome:
    response = handled.response if isinstance(handled, LargeResponse | EncodedResponse) else handled
    if charges is not None:
        if isinstance(handled, EncodedResponse):
            charges.add(handled.task_ns)
        charges.charge(response)
    if isinstance(handled, LargeResponse):
        return start(node.work.run(_write_long, request, handled))
    if isinstance(handled, EncodedResponse):
        return write_response_around(request, handled.response, handled.name)
    return None if response is None else write_response(request, response)


@cache
def _response_of(key: int) -> type[Response]:
    """Return the class of an API's response. Results are cached, as each request needs one."""
    return BY_KEY[key].response


def _charges_of(context: RequestContext, size_bytes: int, began_ns: int) -> "Charges | None":
    from tidelog.server.api.charges import charges_of  # imported only if quotas exist

    return charges_of(context, size_bytes, began_ns)


def _versions_in_v0(correlation_id: int, *, legacy: bool) -> Pieces:
    from tidelog.protocol.messages.metadata import ApiVersionsRequest
    from tidelog.server.api.metadata import answer as versions

    request = ReceivedRequest(API_VERSIONS, 0, correlation_id, None, ApiVersionsRequest())
    return write_response(
        request, versions(legacy=legacy, error_code=ErrorCode.UNSUPPORTED_VERSION)
    )
