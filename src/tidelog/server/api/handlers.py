"""Handlers of the APIs in `table`, imported by an API's first request at the latest.

The modules of coordinators take long to import, so a thread imports them.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from tidelog.gc_pauses import collection_paused, take_modules_as_old
from tidelog.protocol import messages as api
from tidelog.server.api.context import Answer, Handler, Ready, RequestContext
from tidelog.server.api.state_loading import after_load
from tidelog.server.api.table import BY_KEY, GROUPS, TRANSACTIONS
from tidelog.server.runtime.reply import settled

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# APIs that members of a consumer group use, in the order in which a member uses them first.
_OF_MEMBERS: Final = (
    api.FIND_COORDINATOR,
    api.JOIN_GROUP,
    api.SYNC_GROUP,
    api.HEARTBEAT,
    api.OFFSET_FETCH,
    api.LIST_OFFSETS,
    api.FETCH,
    api.OFFSET_COMMIT,
    api.LEAVE_GROUP,
)

# Names of the imported modules of coordinators and handlers.
_imported: Final = set[str]()


@cache
def handler_of(key: int) -> Handler:
    """Return the handler of an API in the table."""
    return _importing(key) if BY_KEY[key].coordinators else _handler_of(key)


@cache
def _handler_of(key: int) -> Handler:
    row = BY_KEY[key]
    handler = cast("Handler", row.load(row.function))
    return handler if row.logs is None else after_load(handler, row.logs)


def _importing(key: int) -> Handler:
    """Return a handler whose modules are imported in a thread, at its first request."""
    coordinators, module = BY_KEY[key].coordinators, BY_KEY[key].module_path

    def handle(context: RequestContext, request: "DataclassInstance") -> Answer:
        names = coordinators(request) if callable(coordinators) else coordinators
        if module in _imported and _imported.issuperset(names):
            return _handler_of(key)(context, request)
        return later(names, context, request)

    async def later(
        names: Iterable[str], context: RequestContext, request: "DataclassInstance"
    ) -> Ready:
        await context.node.work.run(_import, (*names, module))
        return await settled(_handler_of(key)(context, request))

    return handle


def _import(names: Iterable[str]) -> None:
    """Import modules. Any thread may call this."""
    with collection_paused():
        for name in names:
            import_module(name)
        take_modules_as_old()
    _imported.update(names)


def import_coordinators(with_transactions: bool) -> None:
    """Import the modules for consumer groups, and for transactions if `with_transactions` is true.

    Any thread may call this.
    """
    for each in _OF_MEMBERS:
        _import((*GROUPS, BY_KEY[each.key].module_path))
    if with_transactions:
        _import((*TRANSACTIONS, BY_KEY[api.FIND_COORDINATOR.key].module_path))
