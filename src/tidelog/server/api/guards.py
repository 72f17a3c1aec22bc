"""Rights of a request: what its client may do, and what a guard denies.

A guard is a function of the request. It returns the request that the handler may answer, and what
to add to the handler's response for the rest. Handlers know nothing of rights, except those of
Fetch, ShareFetch and ShareAcknowledge, whose partitions are remembered between requests. An API's
guard stands in its row of the table; an API without one is only for clients that may do everything
to the cluster.

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
    """What the client of one request may do."""

    __slots__ = ("_authorizer", "_client", "context")

    def __init__(self, context: RequestContext) -> None:
        authorizer = context.node.authorizer
        assert authorizer is not None
        self.context = context
        self._authorizer = authorizer
        self._client = Client(context.connection.principal, context.connection.host)

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do that to a resource."""
        return self._authorizer.may(self._client, operation, kind, name)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the client may do that to a topic."""
        return self._authorizer.may(self._client, operation, ResourceType.TOPIC, name)

    def may_describe(self, name: str | None) -> bool:
        """Whether there is a name, of a topic that the client may describe."""
        return name is not None and self.may_topic(Operation.DESCRIBE, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether the client may do that to a group."""
        return self._authorizer.may(self._client, operation, ResourceType.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the client may do that to the cluster."""
        return self._authorizer.may_cluster(self._client, operation)

    def may_transact(self, operation: Operation, name: str) -> bool:
        """Whether the client may do that to a transactional id."""
        return self._authorizer.may(self._client, operation, ResourceType.TRANSACTIONAL_ID, name)

    def may_write_somewhere(self) -> bool:
        """Whether there can be a topic that the client may write to."""
        return self._authorizer.may_any(self._client, Operation.WRITE, ResourceType.TOPIC)

    def bits(self, kind: ResourceType, name: str, possible: int) -> int:
        """Those of the possible operations that are allowed, as bits by their numbers."""
        return self._authorizer.operations_bits(self._client, kind, name, possible)

    def cluster_bits(self, possible: int) -> int:
        """Allowed operations on the cluster; 0 for a client that may not describe it."""
        if not self.may_cluster(Operation.DESCRIBE):
            return 0
        return self.bits(ResourceType.CLUSTER, CLUSTER_NAME, possible)

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with an id, None if there is no such topic."""
        info = self.context.node.topics.find_by_id(topic_id)
        return None if info is None else info.name

    def split(
        self, items: Iterable[Item], operation: Operation, name_of: Callable[[Item], str | None]
    ) -> tuple[list[Item], list[Item]]:
        """Split items into allowed and denied ones by their topics; without a name: allowed."""
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
    """What a guard answers in place of the handler, or changes in the handler's response."""

    __slots__ = ("add_to",)

    def __init__(self, add_to: "_AddTo") -> None:
        """`add_to` makes the response from that of the handler, which it may change in place.

        It gets None where the handler was not called or does not respond.
        """
        self.add_to = add_to

    @classmethod
    def whole(cls, response: "DataclassInstance") -> "Denied":
        """The response to a request of which the handler gets nothing."""
        return cls(lambda _none: response)

    @classmethod
    def changed(cls, change: Callable[[Response], None]) -> "Denied":
        """The handler's response after `change`."""

        def add_to(response: Response | None) -> Response:
            assert response is not None
            change(response)
            return response

        return cls(cast("_AddTo", add_to))

    @classmethod
    def rows(cls, name: str, refusals: "Iterable[DataclassInstance]") -> "Denied":
        """Refusals behind the list `name`, unless the response as a whole is an error."""

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
        """Leave items out of a list of the response; a long one is filtered in slices.

        Args:
            access: Rights of the client.
            name: Of the list.
            is_shown: Called once with each item, in order.
            change: What else to do to the response, afterwards.
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
            # In place: a `Long` lets go of the items of this very list.
            items[:] = compress(items, await in_slices(clock, map(is_shown, items)))
            change(response)
            return response

        return cls(cast("_AddTo", add_to))


_AddTo: TypeAlias = (
    "Callable[[DataclassInstance | None], DataclassInstance | Reply[DataclassInstance]]"
)


# The request that the handler answers, None for none, and what is denied, None for nothing.
Guarded: TypeAlias = tuple[Request | None, Denied | None]


Guard: TypeAlias = Callable[[Access, Request], Guarded[Request]]


AnyGuard: TypeAlias = "Guard[DataclassInstance]"


def needs_cluster(
    *operations: Operation, refuse: "Callable[[Request], DataclassInstance] | None" = None
) -> Guard[Request]:
    """A guard that asks for a right on the cluster.

    Args:
        operations: One of them is enough.
        refuse: Makes the response of a refused request; without it that is an error of the whole.
    """

    def guard(access: Access, request: Request) -> Guarded[Request]:
        if any(map(access.may_cluster, operations)):
            return request, None
        if refuse is not None:
            return None, Denied.whole(refuse(request))
        return None, _error(access, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    return guard


def needs_group(operation: Operation) -> "AnyGuard":
    """A guard that asks for a right on the group of a request."""
    return _needs(operation, ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, "group_id")


def needs_transactional_id(operation: Operation) -> "AnyGuard":
    """A guard that asks for a right on the transactional id of a request."""
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return _needs(operation, ResourceType.TRANSACTIONAL_ID, code, "transactional_id")


def _needs(operation: Operation, kind: ResourceType, code: ErrorCode, name: str) -> "AnyGuard":
    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        if access.may(operation, kind, getattr(request, name)):
            return request, None
        return None, _error(access, code)

    return guard


def needs_all(*guards: "AnyGuard") -> "AnyGuard":
    """A guard that passes a request if all guards do; otherwise the first refusal counts."""

    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        for each in guards:
            allowed, denied = each(access, request)
            if denied is not None:
                return allowed, denied
        return request, None

    return guard


def _error(access: Access, code: ErrorCode) -> Denied:
    """A response that is an error as a whole, with Kafka's text if it has room for one."""
    kind = access.context.api.response
    make = cast("Callable[..., DataclassInstance]", kind)
    if any(field.name == "error_message" for field in fields(kind)):
        return Denied.whole(make(error_code=code, error_message=DENIED_TEXT[code]))
    return Denied.whole(make(error_code=code))


def closed(access: Access, request: Request) -> Guarded[Request]:
    """The guard of an API that has none.

    Raises:
        NotLoggedIn: The client may not do everything to the cluster.
    """
    if access.may_cluster(Operation.ALL):
        return request, None
    raise NotLoggedIn(f"{access.context.api.name} is for those who may do all to the cluster")
