"""What declarations share: the description of one API, and special values.

Source: Kafka's protocol guide.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Request_co = TypeVar("Request_co", bound="DataclassInstance", covariant=True)
Response_co = TypeVar("Response_co", bound="DataclassInstance", covariant=True)

# Who asks, in the field `replica_id`: an ordinary consumer, which sees up to the high watermark.
CONSUMER_REPLICA_ID: Final = -1
NO_OPERATIONS: Final = -(2**31)

EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
# The first offset that lies on the broker itself, not in a remote tier. Source: KIP-405.
EARLIEST_LOCAL_TIMESTAMP: Final = -4


@dataclass(frozen=True, slots=True)
class Api(Generic[Request_co, Response_co]):
    """One kind of question and its answer.

    Attributes:
        name: Kafka's name.
        key: Its number on the wire.
        first: Lowest version that the declarations know.
        last: Highest version that the declarations know, inclusive.
        flexible: First version with compact lengths and tagged fields.
        request: The question's declaration.
        response: The answer's declaration.
    """

    name: str
    key: int
    first: int
    last: int
    flexible: int
    request: type[Request_co]
    response: type[Response_co]

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return version >= self.flexible
