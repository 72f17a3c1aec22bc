"""Rights of a request: the client's permissions, and guards that enforce them.

A guard is a function that gets a request. It returns the request that the handler may answer, and
the refusals to add to the handler's response. Most handlers don't check rights. The handlers of
Fetch, ShareFetch and ShareAcknowledge check rights themselves, because these requests may use
partitions that only an earlier request named. The handlers of DescribeTopicPartitions and
ConsumerGroupHeartbeat check the right to describe topics that the request does not name. Such
topics are, for example, the matches of a regular expression. The table of APIs names each API's
guard. An API without a guard requires all rights on the cluster, unless the table marks the API as
open to all clients.

Invariants:
- A guard never changes its request, because a row template may be made from the request later.
- A refused resource gets the same error code and text as in Kafka.

Source: Kafka 4.3's KafkaApis, ControllerApis, AclApis, AuthHelper.
"""

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass, replace
from functools import cache
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.schema import Form, fields_of
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
Item = TypeVar("Item")
Element = TypeVar("Element", bound="DataclassInstance")
Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")


# -- elements of failed responses ----------------------------------------------------------------


# Fields that identify an element of a request. The matching element of the response has the same
# values in these fields.
_IDENTIFIERS: Final = frozenset(
    {
        "entity",
        "group_id",
        "index",
        "key",
        "name",
        "partition",
        "partition_id",
        "partition_index",
        "producer_id",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "topic_name",
        "transactional_id",
        "user",
    }
)


class _Shape(NamedTuple):
    """Rule by which an element of a response is made from an element of a request.

    Attributes:
        identifiers: Names of the fields to copy. If the request's element is a plain number or
            name, `identifiers` is the name of the field that gets this number or name.
        lists: For each list of results in the response's element: the list's name, the name of
            the matching list in the request, and the class of the results.
        errors: Names of the error fields in the response's element: `error_code`, `error_message`,
            both or none.
    """

    identifiers: tuple[str, ...]
    lists: tuple[tuple[str, str, "type[DataclassInstance]"], ...]
    errors: tuple[str, ...]


@cache
def _shape_of(
    kind: "type[DataclassInstance]", request_kind: "type[DataclassInstance] | None"
) -> _Shape:
    fields = {field.name: field.kind for field in fields_of(kind, 0)}
    errors = tuple(name for name in ("error_code", "error_message") if name in fields)
    names = [name for name in fields if name in _IDENTIFIERS]
    if request_kind is None:
        return _Shape(tuple(names[:1]), (), errors)
    requested = {field.name: field.kind for field in fields_of(request_kind, 0)}
    arrays = [name for name, its_kind in requested.items() if its_kind.form is Form.ARRAY]
    lists = tuple(
        (name, name if name in arrays else arrays[0], struct)
        for name, struct in _result_lists(kind)
        if arrays
    )
    return _Shape(tuple(name for name in names if name in requested), lists, errors)


@cache
def _result_lists(
    kind: "type[DataclassInstance]",
) -> "tuple[tuple[str, type[DataclassInstance]], ...]":
    """Return the name and element class of each list field whose elements have error codes.

    The error codes are fields of the elements themselves, or of elements of lists inside them.
    """
    return tuple(
        (field.name, struct)
        for field in fields_of(kind, 0)
        if field.kind.item is not None
        and (struct := field.kind.item.struct) is not None
        and (
            any(each.name == "error_code" for each in fields_of(struct, 0)) or _result_lists(struct)
        )
    )


def failed_item(kind: type[Element], item: object, code: int, text: str | None = None) -> Element:
    """Return the response's element for a failed element of the request.

    The returned element repeats the fields that identify the request's element. The returned
    element and all results inside it have the error.

    Args:
        kind: Class of the response's element.
        item: Element of the request: an object, a number or a name.
        code: Error code.
        text: Error text, for elements that have a field for it.
    """
    has_fields = is_dataclass(item)
    shape = _shape_of(kind, cast("type[DataclassInstance]", type(item)) if has_fields else None)
    values = {name: getattr(item, name) if has_fields else item for name in shape.identifiers}
    for name, request_list, struct in shape.lists:
        elements = getattr(item, request_list) or ()
        values[name] = [failed_item(struct, each, code, text) for each in elements]
    errors = {"error_code": code, "error_message": text}
    values |= {name: errors[name] for name in shape.errors}
    make: Callable[..., Element] = kind
    return make(**values)


# Fields that name a topic. In each version of a message, a topic has either a name or an id.
_TOPIC_FIELDS: Final = frozenset({"name", "topic", "topic_name", "topic_id"})


@cache
def _topic_field(kind: "type[DataclassInstance]", version: int) -> str:
    fields = fields_of(kind, version)
    return next(field.name for field in fields if field.is_there and field.name in _TOPIC_FIELDS)


# -- rights --------------------------------------------------------------------------------------


class Access:
    """Rights of the client that sent a request."""

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
        """Whether the client may write to at least one topic, which need not exist."""
        return self._authorizer.may_any(self._client, Operation.WRITE, ResourceType.TOPIC)

    def bits(self, kind: ResourceType, name: str, possible: int) -> int:
        """Return which of the `possible` operations the client may perform on a resource.

        The argument and the result are bit sets, in which bit N stands for the operation with code
        N.
        """
        return self._authorizer.operations_bits(self._client, kind, name, possible)

    def cluster_bits(self, possible: int) -> int:
        """Return which of the `possible` operations the client may perform on the cluster.

        The argument and the result are bit sets as in `bits`. The result is 0 if the client is not
        authorized to describe the cluster.
        """
        if not self.may_cluster(Operation.DESCRIBE):
            return 0
        return self.bits(ResourceType.CLUSTER, CLUSTER_NAME, possible)

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with an id, or None for an unknown id."""
        info = self.context.node.topics.find_by_id(topic_id)
        return None if info is None else info.name

    def split_topics(
        self, topics: "Iterable[Element]", operation: Operation
    ) -> tuple[list[Element], list[Element]]:
        """Split a request's topics into allowed and denied topics. Unknown ids count as allowed."""
        version = self.context.version

        def name_of(topic: Element) -> str | None:
            name = getattr(topic, _topic_field(type(topic), version))
            return self.name_of(name) if isinstance(name, UUID) else name

        return self.split(topics, operation, name_of)

    def split(
        self, items: Iterable[Item], operation: Operation, name_of: Callable[[Item], str | None]
    ) -> tuple[list[Item], list[Item]]:
        """Split items into allowed and denied items, by the client's right to their topics.

        An item without a topic name is allowed.
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
        """Split group ids into allowed and denied group ids."""
        allowed: list[str] = []
        denied: list[str] = []
        for name in names:
            (allowed if self.may_group(operation, name) else denied).append(name)
        return allowed, denied


class Denied:
    """Effect of denied rights: a replacement for the handler's response, or a change of it."""

    __slots__ = ("add_to",)

    def __init__(self, add_to: "_AddTo") -> None:
        """Create a denial. `add_to` returns the client's response, given the handler's response.

        `add_to` may change the handler's response in place. `add_to` gets None if the handler was
        not called or does not respond.
        """
        self.add_to = add_to

    @classmethod
    def whole(cls, response: "DataclassInstance") -> "Denied":
        """Return a denial of the whole request, for which the handler isn't called."""
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
    def items(cls, access: Access, items: Iterable[object], code: int) -> "Denied":
        """Return a denial that appends an error for each of `items` to the response's first list.

        Nothing is appended to a response that has an error for the whole request.
        """
        name, kind = _result_lists(access.context.api.response)[0]
        return cls.rows(name, [failed_item(kind, each, code, DENIED_TEXT[code]) for each in items])

    @classmethod
    def rows(cls, name: str, refusals: "Iterable[DataclassInstance]") -> "Denied":
        """Return a denial that appends refusals to list `name` if the response has no error."""

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
            name: Name of the response's list.
            is_shown: Returns whether an item stays in the list; called once with each item, in
                order.
            change: Further change of the response, made after items are removed.
        """

        def add_to(response: Response | None) -> Response | Reply[Response]:
            assert response is not None
            items: list[Item] = getattr(response, name)
            if len(items) > FEW:
                return start(in_steps(response, items))
            items[:] = filter(is_shown, items)
            change(response)
            return response

        async def in_steps(response: Response, items: list[Item]) -> Response:
            clock = access.context.node.env.clock
            # The list is changed in place, because a `LargeResponse` frees the items of this same
            # list.
            items[:] = compress(items, await in_slices(clock, map(is_shown, items)))
            change(response)
            return response

        return cls(cast("_AddTo", add_to))


_AddTo: TypeAlias = (
    "Callable[[DataclassInstance | None], DataclassInstance | Reply[DataclassInstance]]"
)

# Result of a guard: the request for the handler, and the denial. The request is None if the handler
# is not called. The denial is None if nothing is denied.
Guarded: TypeAlias = tuple[Request | None, Denied | None]

Guard: TypeAlias = Callable[[Access, Request], Guarded[Request]]
AnyGuard: TypeAlias = "Guard[DataclassInstance]"


def denied_whole(access: Access, code: int, items: Iterable[object] = ()) -> Denied:
    """Return a denial of the whole request. Its response has a row for each of `items`."""
    kind, text = access.context.api.response, DENIED_TEXT[code]
    errors: dict[str, object] = {"error_code": code, "error_message": text}
    values = {name: errors[name] for name in _shape_of(kind, None).errors}
    for name, struct in _result_lists(kind)[:1]:
        values[name] = [failed_item(struct, each, code, text) for each in items]
    make: Callable[..., DataclassInstance] = kind
    return Denied.whole(make(**values))


def needs_cluster(*operations: Operation, rows: str = "") -> "AnyGuard":
    """Return a guard that requires a right on the cluster.

    Args:
        operations: Operations on the cluster. A client with the right to any one of these
            operations passes.
        rows: Name of a list in the request. The response to a denied request has a row for each
            element of this list.
    """

    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        if any(map(access.may_cluster, operations)):
            return request, None
        items = getattr(request, rows) or () if rows else ()
        return None, denied_whole(access, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, items)

    return guard


def needs_group(operation: Operation, rows: str = "") -> "AnyGuard":
    """Return a guard that requires a right on the request's group.

    `rows` is the name of a list in the request. The response to a denied request has a row for each
    element of this list.
    """
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    return _needs(operation, ResourceType.GROUP, code, "group_id", rows)


def needs_transactional_id(operation: Operation, rows: str = "") -> "AnyGuard":
    """Return a guard that requires a right on the request's transactional id.

    `rows` is the name of a list in the request. The response to a denied request has a row for each
    element of this list.
    """
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return _needs(operation, ResourceType.TRANSACTIONAL_ID, code, "transactional_id", rows)


def _needs(
    operation: Operation, kind: ResourceType, code: ErrorCode, name: str, rows: str
) -> "AnyGuard":
    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        if access.may(operation, kind, getattr(request, name)):
            return request, None
        return None, denied_whole(access, code, getattr(request, rows) if rows else ())

    return guard


class _WithTopics(Protocol):
    topics: "list[DataclassInstance]"


def needs_topics(operation: Operation, cluster: Operation | None = None) -> "AnyGuard":
    """Return a guard that requires a right on each of the request's `topics`.

    Args:
        operation: The operation on a topic.
        cluster: Operation on the cluster that replaces the rights on topics: a client that may
            perform it needs no right on topics. None if the rights on topics are always required.
    """

    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        if cluster is not None and access.may_cluster(cluster):
            return request, None
        allowed, denied = access.split_topics(cast("_WithTopics", request).topics, operation)
        if not denied:
            return request, None
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return replace(request, topics=allowed), Denied.items(access, denied, code)

    return guard


def needs_all(*guards: "AnyGuard") -> "AnyGuard":
    """Return a guard that passes a request if all `guards` pass it.

    If a guard denies the request or a part of it, the result of this guard is returned, and the
    guards after it are not called.
    """

    def guard(access: Access, request: "DataclassInstance") -> "Guarded[DataclassInstance]":
        for each in guards:
            allowed, denied = each(access, request)
            if denied is not None:
                return allowed, denied
        return request, None

    return guard


def closed(access: Access, request: Request) -> Guarded[Request]:
    """Require all rights on the cluster, for an API that has no guard of its own.

    Raises:
        NotLoggedIn: The client doesn't have all rights on the cluster.
    """
    if access.may_cluster(Operation.ALL):
        return request, None
    raise NotLoggedIn(f"{access.context.api.name} requires the operation ALL on the cluster")
