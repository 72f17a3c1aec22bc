"""Logs that a request waits for: the state of groups, transactions and share partitions.

At the start of a broker, these logs are loaded in the background. A request that needs one of them
waits for a limited time. Without the wait, the client would get COORDINATOR_LOAD_IN_PROGRESS, and
would pause before it retries. For example, librdkafka pauses for three seconds after this error.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tidelog.server.api.context import Answer, Handler, Ready, RequestContext
from tidelog.server.runtime.reply import settled

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.server.api.node import Node

# Maximum time in seconds for which a request waits for one log to be loaded. After this time the
# request is handled even if the log is not loaded yet, and gets an error in most cases. Clients
# wait longer for a response than this time.
LOAD_WAIT_S: Final = 2.0

# Key types of FindCoordinator.
_GROUP, _TRANSACTION = 0, 1


class _StateLog(Protocol):
    """The log with the state of groups, of transactions or of share partitions."""

    @property
    def is_loading(self) -> bool: ...
    async def loaded(self, key: str | None, /, *, wait_s: float) -> None: ...


# Logs that a request needs, each with a group or transactional id. If a log comes with an id, the
# request waits only for the partition of the log that stores this id. If the id is None, because
# the request names no id or several ids, the request waits for the whole log.
_Logs: TypeAlias = "list[tuple[_StateLog, str | None]]"
LogsOf: TypeAlias = "Callable[[Node, object], _Logs]"


def group_log(node: "Node", request: object) -> _Logs:
    """Return the log of groups, for a request about a group or several groups."""
    return [(node.groups.topic, getattr(request, "group_id", None) or None)]


def committed_group_log(node: "Node", request: object) -> _Logs:
    """Return the log of groups, for a commit of offsets.

    A commit without topics, for example because all were denied, does not wait.
    """
    return group_log(node, request) if getattr(request, "topics", ()) else []


def share_logs(node: "Node", request: object) -> _Logs:
    """Return the logs of groups and of all share partitions, for a request about share offsets.

    ShareFetch and ShareAcknowledge use `group_log` instead: ShareFetch itself waits for the state
    of the partitions that it reads, and ShareAcknowledge names only records that an earlier
    ShareFetch has acquired.
    """
    return [*group_log(node, request), (node.shares.states.topic, None)]


def transaction_log(node: "Node", request: object) -> _Logs:
    """Return the log of transactions, for a request with a transactional id.

    A request without a transactional id, for example from an idempotent producer, does not wait. A
    request with several transactional ids does not wait either.
    """
    of_old_versions = getattr(request, "v3_and_below_transactional_id", None)
    name = getattr(request, "transactional_id", of_old_versions)
    return [(node.transactions.topic, name)] if name else []


def coordinator_log(node: "Node", request: object) -> _Logs:
    """Return the log of the coordinator that a FindCoordinator request looks for."""
    kind = getattr(request, "key_type", _GROUP)
    name = getattr(request, "key", None) or None
    if kind == _TRANSACTION:
        return [(node.transactions.topic, name)]
    return [(node.groups.topic, name)] if kind == _GROUP else []


def after_load(handler: Handler, logs_of: LogsOf) -> Handler:
    """Wrap a handler so that it waits, up to `LOAD_WAIT_S`, for the logs that a request needs."""

    def handle(context: RequestContext, request: "DataclassInstance") -> Answer:
        logs = logs_of(context.node, request)
        if any(log.is_loading for log, _ in logs):
            return later(logs, context, request)
        return handler(context, request)

    async def later(
        logs: Iterable[tuple[_StateLog, str | None]],
        context: RequestContext,
        request: "DataclassInstance",
    ) -> Ready:
        for log, name in logs:
            if log.is_loading:
                await log.loaded(name, wait_s=LOAD_WAIT_S)
        return await settled(handler(context, request))

    return handle
