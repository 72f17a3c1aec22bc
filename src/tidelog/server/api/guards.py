"""Rights of a request: the client's permissions, and guards that enforce them.

A guard is a function of the request. It returns the request that the handler may answer, and the
refusals to add to the handler's response. Handlers don't check rights, except those of Fetch,
ShareFetch and ShareAcknowledge, whose partitions are remembered between requests. The table of APIs
names each API's guard. An API without a guard requires all rights on the cluster.

Invariants:
- A guard never changes the request that it gets: a request may be remembered and answered again.
- A refused resource gets the error code and text of Kafka.

Source: Kafka 4.3's KafkaApis, ControllerApis, AclApis, AuthHelper.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import compress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.api.context import RequestContext
from tidelog.server.runtime.errors import NotLoggedIn
from tidelog.server.runtime.loop import in_slices
from tidelog.server.runtime.reply import Reply, start
from tidelog.server.runtime.threads import FEW
from tidelog.server.security.operations import CLUSTER_NAME, Client, Operation, ResourceType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


DENIED_TEXT: Final[dict[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


TOPIC_DENIED_TEXT: Final = DENIED_TEXT[ErrorCode.TOPIC_AUTHORIZATION_FAILED]


CLUSTER_DENIED_TEXT: Final = DENIED_TEXT[ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


Item = TypeVar("Item")


Request = TypeVar("Request", bound="DataclassInstance")


Response = TypeVar("Response", bound="DataclassInstance")


class Access:
    """Rights of the client of one request."""

    __slots__ = ("_authorizer", "_client", "context")

    def __init__(self, context: RequestContext) -> None:
        authorizer = context.node.authorizer
        assert authorizer is not None
        self.context = context
        self._authorizer = authorizer
        self._client = Client(context.connection.principal, context.connection.host)

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may perform an operation on a resource."""
        return self._authorizer.may(self._client, operation, kind, name)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the client may perform an operation on a topic."""
        return self._authorizer.may(self._client, operation, ResourceType.TOPIC, name)

    def may_describe(self, name: str | None) -> bool:
        """Whether the client may describe a topic; false for None."""
        return name is not None and self.may_topic(Operation.DESCRIBE, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether the client may perform an operation on a group."""
        return self._authorizer.may(self._client, operation, ResourceType.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the client may perform an operation on the cluster."""
        return self._authorizer.may_cluster(self._client, operation)

    def may_transact(self, operation: Operation, name: str) -> bool:
        """Whether the client may perform an operation on a transactional id."""
        return self._authorizer.may(self._client, operation, ResourceType.TRANSACTIONAL_ID, name)

    def may_write_somewhere(self) -> bool:
        """Whether the client may write to any topic, existing or not."""
        return self._authorizer.may_any(self._client, Operation.WRITE, ResourceType.TOPIC)

    def bits(self, kind: ResourceType, name: str, possible: int) -> int:
        """Return the allowed ones of the possible operations, as bits by their codes."""
        return self._authorizer.operations_bits(self._client, kind, name, possible)

    def cluster_bits(self, possible: int) -> int:
        """Return the allowed operations on the cluster as bits.

        0 without the right to describe it.
        """
        if not self.may_cluster(Operation.DESCRIBE):
            return 0
        return self.bits(ResourceType.CLUSTER, CLUSTER_NAME, possible)

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with an id, or None for an unknown id."""
        info = self.context.node.topics.find_by_id(topic_id)
        return None if info is None else info.name

    def split(
        self, items: Iterable[Item], operation: Operation, name_of: Callable[[Item], str | None]
    ) -> tuple[list[Item], list[Item]]:
        """Split items into allowed and denied ones by their topics.

        An item without a name is allowed.
        """
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
        """Split group ids into allowed and denied ones."""
        allowed: list[str] = []
        denied: list[str] = []
        for name in names:
            (allowed if self.may_group(operation, name) else denied).append(name)
        return allowed, denied


class Denied:
    """A guard's response in place of the handler's, or its change of the handler's response."""

    __slots__ = ("add_to",)

    def __init__(self, add_to: "_AddTo") -> None:
        """Create it; `add_to` makes the response from the handler's, which it may change in place.

        It gets None if the handler was not called or does not respond.
        """
        self.add_to = add_to

    @classmethod
    def whole(cls, response: "DataclassInstance") -> "Denied":
        """Return a denial of the whole request: the handler isn't called."""
        return cls(lambda _none: response)

    @classmethod
    def changed(cls, change: Callable[[Response], None]) -> "Denied":
        """Return a denial that applies `change` to the handler's response."""

        def add_to(response: Response | None) -> Response:
            assert response is not None
            change(response)
            return response

        return cls(cast("_AddTo", add_to))

    @classmethod
    def rows(cls, name: str, refusals: "Iterable[DataclassInstance]") -> "Denied":
        """Return a denial that appends refusals to list `name`, unless the response is an error."""

        def add(response: "DataclassInstance") -> None:
            if not getattr(response, "error_code", ErrorCode.NONE):
                getattr(response, name).extend(refusals)

        return cls.changed(add)

    @classmethod
    def hidden(
        cls,
        access: Access,
        name: str,
        is_shown: Callable[[Item], bool],
        change: Callable[[Response], None] = lambda _response: None,
    ) -> "Denied":
        """Return a denial that removes items from a list of the response.

        A long list is filtered in slices.

        Args:
            access: Rights of the client.
            name: Name of the list.
            is_shown: Whether an item stays; called once with each item, in order.
            change: Further change of the response, made afterwards.
        """

        def add_to(response: Response | None) -> Response | Reply[Response]:
            assert response is not None
            items = cast("list[Item]", getattr(response, name))
            if len(items) > FEW:
                return start(in_steps(response, items))
            items[:] = filter(is_shown, items)
            change(response)
            return response

        async def in_steps(response: Response, items: list[Item]) -> Response:
            clock = access.context.node.env.clock
            # In place: a `Long` response frees the items of this same list.
            items[:] = compress(items, await in_slices(clock, map(is_shown, items)))
            change(response)
            return response

        return cls(cast("_AddTo", add_to))


_AddTo: TypeAlias = (
    "Callable[[DataclassInstance | None], DataclassInstance | Reply[DataclassInstance]]"
)


# The request for the handler, None if there is none, and the denial, None if nothing is denied.
Guarded: TypeAlias = tuple[Request | None, Denied | None]


Guard: TypeAlias = Callable[[Access, Request], Guarded[Request]]


AnyGuard: TypeAlias = "Guard[DataclassInstance]"


def needs_cluster(
    *operations: Operation, refuse: "Callable[[Request], DataclassInstance] | None" = None
) -> Guard[Request]:
    """Return a guard that requires a right on the cluster.

    Args:
        operations: Any one of them is enough.
        refuse: Makes the response to a refused request; by default an error for the whole request.
    """

    def guard(access: Access, request: Request) -> Guarded[Request]:
        if any(map(access.may_cluster, operations)):
            return request, None
        if refuse is not None:
            return None, Denied.whole(refuse(request))
        return None, _error(access, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    return guard


def needs_group(operation: Operation) -> "AnyGuard":
    """Return a guard that requires a right on the group of a request."""
    return _needs(operation, ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, "group_id")


def needs_transactional_id(operation: Operation) -> "AnyGuard":
    """Return a guard that requires a right on the transactional id of a request."""
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return _needs(operation, ResourceType.TRANSACTIONAL_ID, code, "transactional_id")


def _needs(operation: Operation, kind: ResourceType, code: ErrorCode, name: str) -> "AnyGuard":
    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        if access.may(operation, kind, getattr(request, name)):
            return request, None
        return None, _error(access, code)

    return guard


def needs_all(*guards: "AnyGuard") -> "AnyGuard":
    """Return a guard that passes a request if all `guards` do.

    Otherwise the first refusal counts.
    """

    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        for each in guards:
            allowed, denied = each(access, request)
            if denied is not None:
                return allowed, denied
        return request, None

    return guard


def _error(access: Access, code: ErrorCode) -> Denied:
    """Return a denial of the whole request, with Kafka's text if the response has a field."""
    kind = access.context.api.response
    make = cast("Callable[..., DataclassInstance]", kind)
    if any(field.name == "error_message" for field in fields(kind)):
        return Denied.whole(make(error_code=code, error_message=DENIED_TEXT[code]))
    return Denied.whole(make(error_code=code))


def closed(access: Access, request: Request) -> Guarded[Request]:
    """Guard an API that has no guard of its own.

    Raises:
        NotLoggedIn: The client doesn't have all rights on the cluster.
    """
    if access.may_cluster(Operation.ALL):
        return request, None
    raise NotLoggedIn(f"{access.context.api.name} is for those who may do all to the cluster")
