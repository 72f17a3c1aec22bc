"""What declarations share: the description of one API, and special values.

Source: Kafka's protocol guide.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request_co = TypeVar("Request_co", bound="DataclassInstance", covariant=True)
Response_co = TypeVar("Response_co", bound="DataclassInstance", covariant=True)

# Who asks, in the field `replica_id`: an ordinary consumer, which sees up to the high watermark.
CONSUMER_REPLICA_ID: Final = -1
NO_OPERATIONS: Final = -(2**31)

# Tagged fields from this number on are our own (docs/fetch.md): a broker or client that does
# not know them steps over them, and Kafka's own numbers are far below. Source: KIP-482.
OWN_TAGS_START: Final = 10_000

EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
# The first offset that lies on the broker itself, not in a remote tier. Source: KIP-405.
EARLIEST_LOCAL_TIMESTAMP: Final = -4


@dataclass(frozen=True, slots=True)
class Api(Generic[Request_co, Response_co]):
    """One kind of question and its answer.

    The declarations are imported when somebody first asks for them: there are many, and a broker
    has to be up quickly.

    Attributes:
        name: Kafka's name; the declarations are called NameRequest and NameResponse.
        key: Its number on the wire.
        first: Lowest version that Kafka 4.3 knows.
        last: Highest version that the declarations know, inclusive.
        flexible: First version with compact lengths and tagged fields.
        module: Where the declarations are, in this package.
        first_declared: Lowest version that the declarations know; below `first` are those of
            clients older than Kafka 0.11.
    """

    name: str
    key: int
    first: int
    last: int
    flexible: int
    module: str
    first_declared: int

    @property
    def request(self) -> type[Request_co]:
        """The question's declaration."""
        return cast("type[Request_co]", _declaration(self.module, f"{self.name}Request"))

    @property
    def response(self) -> type[Response_co]:
        """The answer's declaration."""
        return cast("type[Response_co]", _declaration(self.module, f"{self.name}Response"))

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return version >= self.flexible


@cache
def _declaration(module: str, name: str) -> object:
    return getattr(import_module(f"tidelog.protocol.messages.{module}"), name)
