"""FindCoordinator: who looks after a group, a transactional id, or the state of a share partition.

One broker looks after all.

Source: Kafka's protocol guide, API 10; KIP-699 (many keys at once), KIP-932 (share partitions).
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.protocol.messages.groups import (
    GROUP_KEY_TYPE,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.server.groups.codes import Code
from tidelog.server.requests import RequestContext
from tidelog.types import INT32_MAX

TRANSACTION_KEY_TYPE: Final = 1
SHARE_KEY_TYPE: Final = 2
SHARE_FIRST_VERSION: Final = 6
BATCHED_FIRST_VERSION: Final = 4
NO_NODE: Final = -1
# GROUP:TOPIC_ID:PARTITION as Kafka's classes read it: a group of more than blanks, 16 bytes in
# base64, what Java takes for an int; colons behind it don't count.
_SHARE_KEY: Final = re.compile(
    r"(?P<group>.*):[A-Za-z0-9_-]{22}(?:==)?:(?P<number>[+-]?\d{1,99}):*", re.DOTALL
)


def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """This broker; the topic of offsets or transactions is created at the first question."""
    node = context.node
    if request.key_type == GROUP_KEY_TYPE:
        shards = node.groups.shards
        return _answer_with(
            context, request, has_topic=shards.has_topic, ensure=shards.ensure_topic
        )
    if request.key_type == TRANSACTION_KEY_TYPE:
        log = node.transactions.log
        return _answer_with(context, request, has_topic=log.has_topic, ensure=log.ensure_topic)
    if request.key_type == SHARE_KEY_TYPE and context.version >= SHARE_FIRST_VERSION:
        return _of_share_partitions(context, request)
    return _answer(context, request, Code.INVALID_REQUEST)


async def _of_share_partitions(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    sound = {key for key in request.coordinator_keys if _names_share_partition(key)}
    code = await context.node.shares.states.ensure_topic() if sound else Code.NONE
    return FindCoordinatorResponse(
        coordinators=[
            _coordinator(context, key, code if key in sound else Code.INVALID_REQUEST)
            for key in request.coordinator_keys
        ]
    )


def _names_share_partition(key: str) -> bool:
    found = _SHARE_KEY.fullmatch(key)
    return (
        found is not None
        and any(letter > " " for letter in found["group"])
        and -INT32_MAX - 1 <= int(found["number"]) <= INT32_MAX
    )


def _answer_with(
    context: RequestContext,
    request: FindCoordinatorRequest,
    *,
    has_topic: bool,
    ensure: Callable[[], Awaitable[int]],
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if has_topic:
        return _answer(context, request, Code.NONE)
    return _create_first(context, request, ensure)


async def _create_first(
    context: RequestContext, request: FindCoordinatorRequest, ensure: Callable[[], Awaitable[int]]
) -> FindCoordinatorResponse:
    return _answer(context, request, Code(await ensure()))


def _answer(
    context: RequestContext, request: FindCoordinatorRequest, code: Code
) -> FindCoordinatorResponse:
    if context.version >= BATCHED_FIRST_VERSION:
        return FindCoordinatorResponse(
            coordinators=[_coordinator(context, key, code) for key in request.coordinator_keys]
        )
    found = _coordinator(context, request.key, code)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=_MESSAGES[code],
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(context: RequestContext, key: str, code: Code) -> Coordinator:
    if code is not Code.NONE:
        return Coordinator(
            key=key, node_id=NO_NODE, port=NO_NODE, error_code=code, error_message=""
        )
    node_id, here = context.node.node_id, context.here
    return Coordinator(key=key, node_id=node_id, host=here.host, port=here.port, error_message="")


_MESSAGES: Final = {
    Code.NONE: "NONE",
    Code.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    Code.INVALID_REQUEST: "Only groups and transactional ids have a coordinator here.",
}
