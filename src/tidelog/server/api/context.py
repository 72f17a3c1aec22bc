"""Context of a request, kinds of responses, and the topics that a client may see."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.protocol.row_templates import AllFacts, AllRecords, Row
from tidelog.server.api.node import Address, ClientInfo, Node
from tidelog.server.security.operations import Client, Operation, ResourceType
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.server.runtime.reply import Reply


# This class is not frozen, because a context is created for every request, and creating a frozen
# dataclass takes three times as long.
@dataclass(slots=True, eq=False)
class RequestContext:
    """A request's API, version and client.

    Attributes:
        node: The broker.
        api: API of the request.
        version: Version of the request.
        client_id: Client id in the request's header; None if the header has no client id.
        connection: The client and its connection.
    """

    node: Node
    api: AnyApi
    version: int
    client_id: str | None
    connection: ClientInfo

    @property
    def address(self) -> Address:
        """Return the address that this client uses to reach the broker."""
        return self.connection.address or self.node.address


class ReceivedFrame(NamedTuple):
    """Data about a request in flight, for metrics.

    Attributes:
        key: Key of the API.
        size_bytes: Size of the frame, including its length field.
        began_ns: Monotonic time at which the processing of the request began.
    """

    key: int
    size_bytes: int
    began_ns: int


def key_of(frame: Buffer) -> int:
    """Return the API key of a frame.

    For a frame of one byte, return the value of this byte; for an empty frame, 0.
    """
    return frame[0] << 8 | frame[1] if len(frame) > 1 else int.from_bytes(frame, "big")


def api_name(key: int) -> str:
    """Return Kafka's name of an API; `unknown` for an unknown key."""
    return _NAMES.get(key, "unknown")


_NAMES: Final = {key: api.name for key, api in BY_KEY.items()}
Response: TypeAlias = "DataclassInstance"

# Maximum number of items of a response that is encoded on the event loop.
MANY: Final = 1000


class _Items(Protocol):
    """A list of any items."""

    def __len__(self) -> int: ...
    def pop(self) -> object:
        """Remove the last item and return it."""
        ...


class LargeResponse:
    """A response with so many items that a worker thread encodes and frees it."""

    __slots__ = ("_items", "response")

    def __init__(self, response: Response, items: _Items) -> None:
        """Wrap a response and its long list. No other code may use the list from now on."""
        self.response = response
        self._items = items

    def free(self) -> None:
        """Free the items one by one, because freeing all at once would hold the GIL for long."""
        while len(self._items):
            self._items.pop()


_ResponseT = TypeVar("_ResponseT", bound="DataclassInstance")


def large_if_many(
    response: _ResponseT, items: _Items, count: int | None = None
) -> "_ResponseT | LargeResponse":
    """Return the response, wrapped as a `LargeResponse` if its list has more than `MANY` items.

    If the items themselves contain lists, `count` is the number of elements in these inner lists,
    and is used instead of the number of items.
    """
    is_large = (len(items) if count is None else count) > MANY
    return LargeResponse(response, items) if is_large else response


class EncodedResponse:
    """A response whose list `name` is already encoded (`WrittenItems`).

    Attributes:
        response: The response.
        name: Name of the encoded list.
        task_ns: Time, in ns, that the event loop spent in tasks for parts of the request.
    """

    __slots__ = ("name", "response", "task_ns")

    def __init__(self, response: Response, name: str) -> None:
        self.response = response
        self.name = name
        self.task_ns = 0


# A finished response; None for a producer that requests no acknowledgement.
Ready: TypeAlias = "Response | LargeResponse | EncodedResponse | None"

# A handler's result: a response, or a coroutine or reply that gives the response later.
Answer: TypeAlias = "Ready | Awaitable[Ready]"

# A handler's result after `start`: a response, or a reply that gives the response later. If the
# handler returned a coroutine, `start` has started the coroutine.
Started: TypeAlias = "Ready | Reply[Ready]"

# Handler of one API. A handler takes the API's own request class, which this type can't express, so
# `handler_of` casts.
Handler: TypeAlias = Callable[[RequestContext, "DataclassInstance"], Answer]


def may_topic(node: Node, connection: ClientInfo, operation: Operation, topic: str) -> bool:
    """Whether a connection's client may perform an operation on a topic."""
    authorizer = node.authorizer
    if authorizer is None:
        return True
    client = Client(connection.principal, connection.host)
    return authorizer.may(client, operation, ResourceType.TOPIC, topic)


# A topic of a request that matches a template: its name, its id if the request names it by id, and
# its rows.
TopicRows: TypeAlias = tuple[str, UUID | None, Sequence[Row]]

# Results for a request that matches a template: the fixed-size values of the response's rows, the
# records of these rows, and a function or None. The function is called before the response is sent.
# Its argument is the response's size in bytes without its header, or 0 if the broker has no quotas.
# If the function returns False, the request is handled without the template.
RowAnswers: TypeAlias = tuple[AllFacts, AllRecords, Callable[[int], bool] | None]


class RowFunctions(NamedTuple):
    """An API's functions for repeated requests (`protocol/row_templates.py`).

    Attributes:
        operation: Operation that the client must be allowed on each topic.
        may_repeat: Returns whether a request may become a template. The arguments are the version
            and the message.
        answer: Processes rows and returns `RowAnswers` or a handler's result. Its arguments are the
            context, the message without topics, and the topics. The client may perform the
            operation on all of these topics. If the request must be handled without the template,
            `answer` changes nothing and returns None.
    """

    operation: Operation
    may_repeat: Callable[..., bool]
    answer: "Callable[..., RowAnswers | Answer]"


def sees_topics(context: RequestContext) -> Callable[[str], bool]:
    """Return a function that returns whether the client may describe a topic.

    Without an authorizer, the function returns True for every topic.
    """
    return partial(may_topic, context.node, context.connection, Operation.DESCRIBE)
