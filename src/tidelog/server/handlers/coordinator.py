"""FindCoordinator: who looks after a group. One broker looks after all.

Source: Kafka's protocol guide, API 10; KIP-699 (many keys at once).
"""

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
) -> FindCoordinatorResponse:
    """This broker, for groups; the topic of offsets is created at the first question."""
    node, code = context.node, _code(context.node, request.key_type)
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


def _code(node: Node, key_type: int) -> Code:
    if key_type == GROUP_KEY_TYPE:
        return node.groups.shards.ensure_topic()
    if key_type == TRANSACTION_KEY_TYPE:
        return Code.COORDINATOR_NOT_AVAILABLE
    return Code.INVALID_REQUEST


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
