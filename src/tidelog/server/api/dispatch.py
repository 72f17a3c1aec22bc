"""Dispatch of a request: from its frame to its handler, and from the response to bytes.

Source: Kafka's protocol guide; KIP-511 (an unknown version of ApiVersions is answered in v0).
"""

from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptMessage, UnsupportedRequest
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
    Answer,
    Long,
    RequestContext,
    Response,
    TopicRows,
    Written,
    key_of,
    may_topic,
)
from tidelog.server.api.guards import Access, Denied
from tidelog.server.api.node import ConnectionFacts, Node
from tidelog.server.api.table import (
    guard_of,
    handler_of,
    items_at_once,
    row_functions_of,
    served_versions,
)
from tidelog.server.runtime.reply import Reply, start
from tidelog.server.security.operations import Operation
from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.server.api.charges import Charges

__all__ = ["CorruptMessage", "Outcome", "Pieces", "answer"]


Pieces: TypeAlias = list[Buffer]


def _write_long(request: ReceivedRequest, said: Long) -> Pieces:
    pieces = write_response(request, said.response)
    said.let_go()
    return pieces


Outcome: TypeAlias = "Pieces | Reply[Pieces | None] | None"


# How a connection gets from a frame to what is sent: `answer`, or one that asks first who it is.
Answering: TypeAlias = Callable[[Node, ConnectionFacts, Buffer], Outcome]


def answer(node: Node, connection: ConnectionFacts, frame: Buffer) -> Outcome:
    """What to send for a request: now, later, or (None) nothing.

    Raises:
        CorruptMessage: The frame breaks a rule; the connection is to be closed.
        UnsupportedVersion: An API or version that is not served, as Kafka closes the connection.
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
    said = _handle(context, request.message)
    charges = None if began_ns is None else _charges_of(context, len(frame), began_ns)
    if charges is not None:
        charges.worked(said)
    functions = row_functions_of(api.key)
    if functions is not None and type(said) is _response_of(api.key):
        if connection.templates is None:
            connection.templates = Templates()
        if functions.may_repeat(request.version, request.message):
            connection.templates.learn(frame, request, said, served_versions(legacy))
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
    return start(_written_later(node, head, said, charges))


def _answer_rows(
    node: Node, connection: ConnectionFacts, frame: Buffer, began_ns: int | None
) -> Outcome:
    """What to send for a request that fits a template; None where it goes the whole way.

    Rights are asked and quotas are charged for each request, as on the whole way.
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
    if not isinstance(answers, tuple):
        return None if answers is None else _write(context, template, answers, (frame, began_ns))
    facts, records, on_sent = answers
    pieces = template.encode(frame[CORRELATION_ID], topics, facts, records)
    if began_ns is not None and not _charge(context, template, pieces, (frame, began_ns)):
        return None
    if on_sent is not None:
        on_sent()
    return pieces


def _usable_topics(
    context: RequestContext,
    template: Template,
    topics: list[RequestTopic],
    operation: Operation,
) -> list[TopicRows] | None:
    """The topics by name; None where one is unknown, named twice or not the client's to use so."""
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


def _write(
    context: RequestContext, template: Template, said: Answer, asked: tuple[Buffer, int | None]
) -> Outcome:
    """The response to a request that fits a template, by the codec; it may have to wait."""
    frame, began_ns = asked
    head, number = template.request, int.from_bytes(frame[CORRELATION_ID], "big", signed=True)
    request = ReceivedRequest(head.api, head.version, number, head.client_id, head.message)
    charges = None if began_ns is None else _charges_of(context, len(frame), began_ns)
    if charges is not None:
        charges.worked(said)
    return _written(context.node, request, said, charges)


def _charge(
    context: RequestContext, template: Template, pieces: Pieces, asked: tuple[Buffer, int]
) -> bool:
    """Count a response, and report its throttle time; False for a consumer over its quota."""
    frame, began_ns = asked
    charges = _charges_of(context, len(frame), began_ns)
    if charges is None:
        return True
    if charges.fetched(sum(map(len, pieces)) - template.header_bytes):
        return False
    throttle_ms = charges.finish()
    if throttle_ms:
        template.set_throttle(pieces, throttle_ms)
    return True


def _written(
    node: Node, request: ReceivedRequest, response: Answer, charges: "Charges | None" = None
) -> Outcome:
    if response is None:
        return None
    if type(response) is _response_of(request.api.key):
        return write_response(request, response)
    if isinstance(response, Reply):
        return response.map(partial(_write_charged, request, charges))
    assert isinstance(response, Awaitable)
    return start(_written_later(node, request, response, charges))


def _write_charged(
    request: ReceivedRequest, charges: "Charges | None", response: Response
) -> Pieces:
    if charges is not None:
        charges.charge(response)
    return write_response(request, response)


async def _written_later(
    node: Node,
    request: ReceivedRequest,
    response: "Awaitable[Response | Long | Written | None]",
    charges: "Charges | None",
) -> Pieces | None:
    handled = await (response if charges is None else charges.timed(response))
    if charges is not None:
        charges.charge(handled.response if isinstance(handled, Long | Written) else handled)
    if isinstance(handled, Long):
        return await node.work.run(_write_long, request, handled)
    if isinstance(handled, Written):
        return write_response_around(request, handled.response, handled.name)
    return None if handled is None else write_response(request, handled)


@cache
def _response_of(key: int) -> type[Response]:
    """The declaration of an API's answer: an API looks for it each time that it is asked."""
    return BY_KEY[key].response


def _charges_of(context: RequestContext, size_bytes: int, began_ns: int) -> "Charges | None":
    from tidelog.server.api.charges import charges_of  # few have quotas

    return charges_of(context, size_bytes, began_ns)


def _versions_in_v0(correlation_id: int, *, legacy: bool) -> Pieces:
    from tidelog.protocol.messages.metadata import ApiVersionsRequest
    from tidelog.server.api.metadata import answer as versions

    asked = ReceivedRequest(API_VERSIONS, 0, correlation_id, None, ApiVersionsRequest())
    return write_response(asked, versions(legacy=legacy, error_code=ErrorCode.UNSUPPORTED_VERSION))
