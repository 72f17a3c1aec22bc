"""FindCoordinator: the broker that coordinates a group, a transactional id or a share partition.

This broker coordinates all of them.

Source: Kafka's protocol guide, API 10; KIP-699 (many keys at once), KIP-932 (share partitions).
"""

import re
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.classic_groups import (
    GROUP_KEY_TYPE,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.server.api.context import RequestContext
from tidelog.server.api.guards import (
    DENIED_TEXT,
    Access,
    Denied,
    Guarded,
    denied_whole,
    failed_item,
)
from tidelog.server.security.operations import Operation
from tidelog.types import INT32_MAX, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

TRANSACTION_KEY_TYPE: Final = 1


SHARE_KEY_TYPE: Final = 2


SHARE_FIRST_VERSION: Final = 6


BATCHED_FIRST_VERSION: Final = 4


NO_NODE: Final = -1


# Keys of one request whose partitions are opened; for further keys the first write opens them.
OPENED_KEYS_MAX: Final = 100


# GROUP:TOPIC_ID:PARTITION as Kafka's classes parse it: a group that isn't blank, 16 bytes in
# base64, a number that Java parses as an int. Trailing colons are ignored.
_SHARE_KEY: Final = re.compile(
    r"(?P<group>.*):[A-Za-z0-9_-]{22}(?:==)?:(?P<number>[+-]?\d{1,99}):*", re.DOTALL
)


class _Keeper(Protocol):
    """The log of groups or of transactions."""

    @property
    def has_topic(self) -> bool: ...
    def number_of(self, key: str, /) -> int: ...
    def error_for(self, key: str, /) -> ErrorCode: ...
    async def ensure_topic(self) -> ErrorCode: ...


def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Return this broker. The first request creates the topic of offsets or of transactions."""
    node = context.node
    if request.key_type == GROUP_KEY_TYPE:
        return _answer_for(context, request, node.groups.shards, OFFSETS_TOPIC)
    if request.key_type == TRANSACTION_KEY_TYPE:
        return _answer_for(context, request, node.transactions.log, TRANSACTIONS_TOPIC)
    if request.key_type == SHARE_KEY_TYPE and context.version >= SHARE_FIRST_VERSION:
        return _of_share_partitions(context, request)
    return _answer(context, request, ErrorCode.INVALID_REQUEST)


async def _of_share_partitions(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    sound = {key for key in request.coordinator_keys if _names_share_partition(key)}
    code = await context.node.shares.states.topic.ensure_topic() if sound else ErrorCode.NONE
    return FindCoordinatorResponse(
        coordinators=[
            _coordinator(context, key, code if key in sound else ErrorCode.INVALID_REQUEST)
            for key in request.coordinator_keys
        ]
    )


def _names_share_partition(key: str) -> bool:
    match = _SHARE_KEY.fullmatch(key)
    return (
        match is not None
        and any(letter > " " for letter in match["group"])
        and -INT32_MAX - 1 <= int(match["number"]) <= INT32_MAX
    )


def _answer_for(
    context: RequestContext, request: FindCoordinatorRequest, keeper: _Keeper, topic: str
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if not keeper.has_topic:
        return _create_first(context, request, keeper, topic)
    if missing := _unopened(context, request, keeper, topic):
        return _when_open(context, request, missing)
    return _answer(context, request, ErrorCode.NONE)


def _unopened(
    context: RequestContext, request: FindCoordinatorRequest, keeper: _Keeper, topic: str
) -> list[TopicPartition]:
    """Return the unopened partitions that hold these keys.

    If they aren't opened before, the first write opens them on the event loop.
    """
    is_batch = context.version >= BATCHED_FIRST_VERSION
    keys = request.coordinator_keys[:OPENED_KEYS_MAX] if is_batch else [request.key]
    numbers = {keeper.number_of(key) for key in keys if keeper.error_for(key) == ErrorCode.NONE}
    return context.node.partitions.unopened((topic, number) for number in numbers)


async def _when_open(
    context: RequestContext, request: FindCoordinatorRequest, missing: Iterable[TopicPartition]
) -> FindCoordinatorResponse:
    await context.node.partitions.open_beside(missing, context.node.work, to_write=True)
    return _answer(context, request, ErrorCode.NONE)


async def _create_first(
    context: RequestContext, request: FindCoordinatorRequest, keeper: _Keeper, topic: str
) -> FindCoordinatorResponse:
    code = await keeper.ensure_topic()
    if code is not ErrorCode.NONE:
        return _answer(context, request, code)
    return await _when_open(context, request, _unopened(context, request, keeper, topic))


def _answer(
    context: RequestContext, request: FindCoordinatorRequest, code: ErrorCode
) -> FindCoordinatorResponse:
    if context.version >= BATCHED_FIRST_VERSION:
        return FindCoordinatorResponse(
            coordinators=[_coordinator(context, key, code) for key in request.coordinator_keys]
        )
    coordinator = _coordinator(context, request.key, code)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=_MESSAGES[code],
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _coordinator(context: RequestContext, key: str, code: ErrorCode) -> Coordinator:
    if code is not ErrorCode.NONE:
        return failed_item(Coordinator, key, code, "")
    node_id, here = context.node.node_id, context.here
    return Coordinator(key=key, node_id=node_id, host=here.host, port=here.port, error_message="")


_MESSAGES: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "Only groups and transactional ids have a coordinator here.",
}


BATCHED_KEYS_FIRST_VERSION: Final = 4


# -- FindCoordinator -----------------------------------------------------------------------------


def guard_find_coordinator(
    access: Access, request: FindCoordinatorRequest
) -> Guarded[FindCoordinatorRequest]:
    """Require DESCRIBE on each group or transactional id, CLUSTER_ACTION for share partitions."""
    if access.context.version < BATCHED_KEYS_FIRST_VERSION:
        code = _key_code(access, request.key_type, request.key)
        if not code:
            return request, None
        return None, denied_whole(access, code)
    keys = request.coordinator_keys
    codes = {key: _key_code(access, request.key_type, key) for key in keys}
    refusals = [
        failed_item(Coordinator, key, codes[key], DENIED_TEXT[codes[key]])
        for key in keys
        if codes[key]
    ]
    if not refusals:
        return request, None
    allowed = [key for key in keys if not codes[key]]
    if not allowed:
        return None, Denied.whole(FindCoordinatorResponse(coordinators=refusals))
    return replace(request, coordinator_keys=allowed), Denied.rows("coordinators", refusals)


def _key_code(access: Access, kind: int, key: str) -> int:
    if kind == GROUP_KEY_TYPE and not access.may_group(Operation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if kind == TRANSACTION_KEY_TYPE and not access.may_transact(Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_share = kind == SHARE_KEY_TYPE and access.context.version >= SHARE_FIRST_VERSION
    if is_share and not access.may_cluster(Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return 0
