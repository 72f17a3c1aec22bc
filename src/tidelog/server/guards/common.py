"""What guards share: the question, the way on to the handler, and additions to its answer."""

from collections.abc import Awaitable, Callable, Iterable
from itertools import compress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.handlers import handler_of
from tidelog.server.requests import Answer, Long, RequestContext
from tidelog.server.security.authorizer import (
    CLUSTER_NAME,
    Client,
    Operation,
    ResourceType,
    operations_bits,
)
from tidelog.server.slices import in_slices
from tidelog.server.work import FEW

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DENIED_TEXT: Final[dict[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}

Guard: TypeAlias = "Callable[[Asker, DataclassInstance], Answer]"
Item = TypeVar("Item")
Said = TypeVar("Said", bound="DataclassInstance")
Kept = TypeVar("Kept")


class Asker:
    """Who asks, and what he may do. Lives as long as one request."""

    __slots__ = ("_authorizer", "_who", "context")

    def __init__(self, context: RequestContext) -> None:
        authorizer = context.node.authorizer
        assert authorizer is not None
        self.context = context
        self._authorizer = authorizer
        self._who = Client(context.connection.principal, context.connection.host)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether he may do that to a topic."""
        return self._authorizer.may(self._who, operation, ResourceType.TOPIC, name)

    def may_describe(self, name: str | None) -> bool:
        """Whether there is a name, of a topic that he may describe."""
        return name is not None and self.may_topic(Operation.DESCRIBE, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether he may do that to a group."""
        return self._authorizer.may(self._who, operation, ResourceType.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether he may do that to the cluster."""
        return self._authorizer.may_cluster(self._who, operation)

    def may_transact(self, operation: Operation, name: str) -> bool:
        """Whether he may do that to a transactional id."""
        kind = ResourceType.TRANSACTIONAL_ID
        return self._authorizer.may(self._who, operation, kind, name)

    def may_write_somewhere(self) -> bool:
        """Whether there can be a topic that he may write to."""
        return self._authorizer.may_any(self._who, Operation.WRITE, ResourceType.TOPIC)

    def bits(self, kind: ResourceType, name: str, possible: int) -> int:
        """What of that he may do, as bits by the operations' numbers."""
        return operations_bits(self._authorizer, self._who, kind, name, possible)

    def cluster_bits(self, possible: int) -> int:
        """The same of the cluster; nothing is said to who may not describe it."""
        if not self.may_cluster(Operation.DESCRIBE):
            return 0
        return self.bits(ResourceType.CLUSTER, CLUSTER_NAME, possible)

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with an id, None where it is nobody's."""
        info = self.context.node.topics.find_by_id(topic_id)
        return None if info is None else info.name

    def split(
        self, items: Iterable[Item], operation: Operation, name_of: Callable[[Item], str | None]
    ) -> tuple[list[Item], list[Item]]:
        """Items whose topics he may do that to (or that have no name), and the others."""
        allowed: list[Item] = []
        denied: list[Item] = []
        for item in items:
            name = name_of(item)
            is_allowed = name is None or self.may_topic(operation, name)
            (allowed if is_allowed else denied).append(item)
        return allowed, denied

    def split_groups(
        self, names: Iterable[str], operation: Operation
    ) -> tuple[list[str], list[str]]:
        """Groups that he may do that to, and the others."""
        allowed: list[str] = []
        denied: list[str] = []
        for name in names:
            (allowed if self.may_group(operation, name) else denied).append(name)
        return allowed, denied

    def go_on(self, request: "DataclassInstance") -> Answer:
        """What the handler says."""
        return handler_of(self.context.api.key)(self.context, request)


def then(said: Answer, change: Callable[[Said], None]) -> Answer:
    """The same answer, now or later, once `change` has changed it."""
    if said is None:
        return None
    if isinstance(said, Awaitable):
        return _later(said, change)
    change(cast("Said", said))
    return said


def then_keep(asker: Asker, said: Answer, name: str, passes: Callable[[Kept], bool]) -> Answer:
    """The same answer, with the items of its list `name` that pass; very many are judged in slices.

    Args:
        asker: Who asks.
        said: The answer, now or later.
        name: Of the list; it is changed in place.
        passes: Called once with each item, in order.
    """
    if said is None or isinstance(said, Awaitable):
        return _kept(asker, said, name, passes)
    items = cast("list[Kept]", getattr(said, name))
    if len(items) > FEW:
        return _kept(asker, said, name, passes)
    items[:] = filter(passes, items)
    return said


async def _kept(
    asker: Asker, said: Answer, name: str, passes: Callable[[Kept], bool]
) -> "DataclassInstance | Long | None":
    found = await said if isinstance(said, Awaitable) else said
    if found is not None:
        message = found.response if isinstance(found, Long) else found
        items = cast("list[Kept]", getattr(message, name))
        clock = asker.context.node.env.clock
        # In place: a `Long` lets go of the items of this very list.
        items[:] = compress(items, await in_slices(clock, map(passes, items)))
    return found


async def _later(
    said: "Awaitable[DataclassInstance | Long | None]", change: Callable[[Said], None]
) -> "DataclassInstance | Long | None":
    found = await said
    if isinstance(found, Long):
        change(cast("Said", found.response))
    elif found is not None:
        change(cast("Said", found))
    return found
