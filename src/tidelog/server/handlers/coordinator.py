"""FindCoordinator: who looks after a group. One broker looks after all.

Source: Kafka's protocol guide, API 10; KIP-699 (many keys at once).
"""

from collections.abc import Awaitable
from typing import Final

from tidelog.protocol.messages.groups import (
    GROUP_KEY_TYPE,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.server.groups.codes import Code
from tidelog.server.node import Node
from tidelog.server.requests import RequestContext

TRANSACTION_KEY_TYPE: Final = 1
BATCHED_FIRST_VERSION: Final = 4
NO_NODE: Final = -1


def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """This broker, for groups; the topic of offsets is created at the first question."""
    if request.key_type == GROUP_KEY_TYPE:
        if not context.node.groups.shards.has_topic:
            return _create_first(context, request)
        return _answer(context, request, Code.NONE)
    if request.key_type == TRANSACTION_KEY_TYPE:
        return _answer(context, request, Code.COORDINATOR_NOT_AVAILABLE)
    return _answer(context, request, Code.INVALID_REQUEST)


async def _create_first(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    return _answer(context, request, await context.node.groups.shards.ensure_topic())


def _answer(
    context: RequestContext, request: FindCoordinatorRequest, code: Code
) -> FindCoordinatorResponse:
    node = context.node
    if context.version >= BATCHED_FIRST_VERSION:
        return FindCoordinatorResponse(
            coordinators=[_coordinator(node, key, code) for key in request.coordinator_keys]
        )
    found = _coordinator(node, request.key, code)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=_MESSAGES[code],
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(node: Node, key: str, code: Code) -> Coordinator:
    if code is not Code.NONE:
        return Coordinator(
            key=key, node_id=NO_NODE, port=NO_NODE, error_code=code, error_message=""
        )
    host, port = node.address.host, node.address.port
    return Coordinator(key=key, node_id=node.node_id, host=host, port=port, error_message="")


_MESSAGES: Final = {
    Code.NONE: "NONE",
    Code.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    Code.INVALID_REQUEST: "Only groups have a coordinator here.",
}
