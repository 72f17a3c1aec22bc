"""Requests about groups, transactional ids and share partitions wait while these are loaded.

A client that gets COORDINATOR_LOAD_IN_PROGRESS pauses before it tries again, librdkafka for three
seconds. So a request waits a while for the load before it gets that error.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.server.api.context import Answer, Handler, Long, RequestContext
    from tidelog.server.api.node import Node

# No client gives up on a request so soon; who still finds nothing loaded then is told so.
LOAD_WAIT_S: Final = 2.0


_FIND_COORDINATOR: Final = 10


_GROUP, _TRANSACTION = 0, 1


_OF_TRANSACTIONS: Final = frozenset({22, 24, 25, 26})


# About what is kept of share partitions; ShareFetch and ShareAcknowledge wait for those they name.
_OF_SHARE_STATES: Final = frozenset({90, 91, 92})


class _Keeper(Protocol):
    """The log of groups, or of transactions."""

    @property
    def is_loading(self) -> bool: ...
    async def loaded(self, key: str | None, /, *, wait_s: float) -> None: ...


def after_load(api_key: int, handler: "Handler") -> "Handler":
    """Return a handler that waits where what a request is about is being loaded.

    Args:
        api_key: The API's number.
        handler: Answers once it is loaded, or was not within the bound.
    """

    def answer(context: "RequestContext", request: "DataclassInstance") -> "Answer":
        keeper, key = _keeper_of(api_key, context.node, request)
        if keeper is not None and keeper.is_loading:
            return _later(keeper, key, lambda: answer_states(context, request))
        return answer_states(context, request)

    def answer_states(context: "RequestContext", request: "DataclassInstance") -> "Answer":
        if api_key in _OF_SHARE_STATES and context.node.shares.states.topic.is_loading:
            return _later(context.node.shares.states.topic, None, lambda: handler(context, request))
        return handler(context, request)

    return answer


async def _later(
    keeper: _Keeper, key: str | None, ask: "Callable[[], Answer]"
) -> "DataclassInstance | Long | None":
    await keeper.loaded(key, wait_s=LOAD_WAIT_S)
    said = ask()
    return await said if isinstance(said, Awaitable) else said


def _keeper_of(api_key: int, node: "Node", request: object) -> tuple[_Keeper | None, str | None]:
    """What keeps what a request is about, and the group or transactional id; None for many."""
    if api_key in _OF_TRANSACTIONS:
        # A producer without an id, or a version that names several, is answered at once.
        key = getattr(request, "transactional_id", None)
        return (node.transactions.log if key else None), key
    if api_key == _FIND_COORDINATOR:
        kind = getattr(request, "key_type", _GROUP)
        key = getattr(request, "key", None) or None
        if kind == _TRANSACTION:
            return node.transactions.log, key
        return (node.groups.shards if kind == _GROUP else None), key
    return node.groups.shards, getattr(request, "group_id", None) or None
