"""A request on its way to its handler, forms of a response, and topics that its client may see."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidelog.protocol.messages import BY_KEY, AnyApi
from tidelog.protocol.row_templates import AllFacts, AllRecords, Row
from tidelog.server.api.node import Address, ConnectionFacts, Node
from tidelog.server.security.operations import Client, Operation, ResourceType
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.server.runtime.reply import Reply


# Made for every request, and a frozen one takes three times as long to make.
@dataclass(slots=True)
class RequestContext:
    """Who asks what, in which version.

    Attributes:
        node: The broker.
        api: What is asked.
        version: In which version.
        client_id: How the client calls itself.
        connection: Whose connection it is.
    """

    node: Node
    api: AnyApi
    version: int
    client_id: str | None
    connection: ConnectionFacts

    @property
    def here(self) -> Address:
        """Where this client is told to connect to."""
        return self.connection.address or self.node.address


class Asked(NamedTuple):
    """A request on its way, as far as metrics go.

    Attributes:
        key: Which API.
        size_bytes: Of its frame, the length field included.
        began_ns: When it was looked at, by the monotonic clock.
    """

    key: int
    size_bytes: int
    began_ns: int


def key_of(frame: Buffer) -> int:
    """The API that a frame asks, as far as it says so."""
    return frame[0] << 8 | frame[1] if len(frame) > 1 else int.from_bytes(frame, "big")


def api_name(key: int) -> str:
    """Kafka's name of an API, `unknown` for a number that has none."""
    return _NAMES.get(key, "unknown")


_NAMES: Final = {key: api.name for key, api in BY_KEY.items()}


Response: TypeAlias = "DataclassInstance"


# Items of a response that are made into bytes where the response is made.
MANY: Final = 1000


class _Items(Protocol):
    """A list, whatever it holds."""

    def __len__(self) -> int: ...
    def pop(self) -> object:
        """Take the last one out."""
        ...


class Long:
    """A response of so many items that it is made into bytes beside the loop, and let go there."""

    __slots__ = ("_items", "response")

    def __init__(self, response: Response, items: _Items) -> None:
        """A response, and its list that is long; nobody else may use either."""
        self.response = response
        self._items = items

    def let_go(self) -> None:
        """Free the items one by one: all at once they would take long."""
        while len(self._items):
            self._items.pop()


_Made = TypeVar("_Made", bound="DataclassInstance")


def long_if_many(response: _Made, items: _Items) -> "_Made | Long":
    """Return the response, as a `Long` one if its list has more than `MANY` items."""
    return Long(response, items) if len(items) > MANY else response


class Written:
    """A response whose list `name` is bytes already (`WrittenItems`)."""

    __slots__ = ("name", "response")

    def __init__(self, response: Response, name: str) -> None:
        self.response = response
        self.name = name


# What there is to respond; None for a producer that wants no acknowledgement.
Ready: TypeAlias = "Response | Long | Written | None"


# What a handler gives: at once, or later as a coroutine or a reply.
Answer: TypeAlias = "Ready | Awaitable[Ready]"


# The same once it is started.
Started: TypeAlias = "Ready | Reply[Ready]"


# Each handler takes its API's own request, which no type can say of all: `handler_of` casts.
Handler: TypeAlias = Callable[[RequestContext, "DataclassInstance"], Answer]


def may_topic(node: Node, connection: ConnectionFacts, operation: Operation, topic: str) -> bool:
    """Whether the client of a connection may do that to a topic; asked anew for each request."""
    authorizer = node.authorizer
    if authorizer is None:
        return True
    client = Client(connection.principal, connection.host)
    return authorizer.may(client, operation, ResourceType.TOPIC, topic)


# A topic of a request that fits a template: its name, its id where the request names it by that,
# and its rows.
TopicRows: TypeAlias = tuple[str, UUID | None, Sequence[Row]]


# What a response says of the rows. And what is called before it is sent, with its size without the
# header where quotas may hold: False lets the request go the whole way instead.
RowAnswers: TypeAlias = tuple[AllFacts, AllRecords, Callable[[int], bool] | None]


class RowFunctions(NamedTuple):
    """How an API takes part in templates (`protocol/row_templates.py`).

    Attributes:
        operation: What its client must be allowed to do to each topic.
        may_repeat: Whether a message of a version may become a template.
        answer: Answers rows, by the context, the message without topics, and the topics, which the
            client may use so. None where they have to be handled as any other request: nothing was
            changed then. It may also return what the handler does.
    """

    operation: Operation
    may_repeat: Callable[..., bool]
    answer: "Callable[..., RowAnswers | Answer]"


def sees_topics(context: RequestContext) -> Callable[[str], bool]:
    """Whether a client may describe a topic; all where nobody is asked for rights."""
    return partial(may_topic, context.node, context.connection, Operation.DESCRIBE)
