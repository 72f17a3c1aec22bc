"""Errors that only the broker raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError

# Maximum number of characters of a message. A character has up to four bytes, and a string of the
# protocol has at most 32,767 bytes.
_MESSAGE_MAX: Final = 8_000

# Texts of UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID, as in Kafka.
NOT_HOSTED: Final = "This server does not host this topic-partition."
ID_NOT_HOSTED: Final = "This server does not host this topic ID."

# Errors of a coordinator that has not loaded the state of a key. Clients retry.
NOT_SERVED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class UnansweredRequest(TidelogError):
    """The broker refused a request for which the client expects no response (acks=0).

    Instead of an error, the client sees that the broker closes its connection, as in Kafka.

    Attributes:
        error_code: Error code for a response, if the client expected one.
    """

    code: ClassVar[int | None] = None

    def __init__(self, reason: str, error_code: int) -> None:
        self.error_code = error_code
        super().__init__(reason)


class NotLoggedIn(TidelogError):
    """The client is not authenticated, or lacks the right to use an API.

    The broker closes the client's connection.
    """

    code: ClassVar[int | None] = ErrorCode.ILLEGAL_SASL_STATE


class Refusal(TidelogError):
    """One item of a request is refused. The item's result in the response has the error.

    Attributes:
        error_code: Kafka's error code.
        message: Text that tools print; None for no text. It may contain long names that the client
            chose. If the text is too long for a string of the protocol, it is truncated.
    """

    code: ClassVar[int | None] = None

    def __init__(self, error_code: int, message: str | None = None) -> None:
        self.error_code = error_code
        if message is not None and len(message) > _MESSAGE_MAX:
            message = f"{message[:_MESSAGE_MAX]}... ({len(message)} characters)"
        self.message = message
        super().__init__(message or f"error {error_code}")


def code_of(error: TidelogError | OSError) -> ErrorCode:
    """Return the error code for a client.

    An OSError gets KAFKA_STORAGE_ERROR. An error without a code of its own gets
    UNKNOWN_SERVER_ERROR.
    """
    if not isinstance(error, TidelogError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else ErrorCode(error.code)


def refusal_of(error: TidelogError) -> Refusal:
    """Convert an error of a lower layer to a `Refusal` of one item of a request."""
    return error if isinstance(error, Refusal) else Refusal(code_of(error), str(error))


class ItemResult(Protocol):
    """Result of one item of a request."""

    error_code: int
    error_message: str | None


def set_error(result: ItemResult, error: TidelogError) -> None:
    """Set an item's result to an error."""
    refusal = refusal_of(error)
    result.error_code, result.error_message = refusal.error_code, refusal.message


@contextmanager
def errors_in(result: ItemResult) -> Iterator[None]:
    """Set an item's result to the TidelogError that the `with` block raises, and suppress it."""
    try:
        yield
    except TidelogError as error:
        set_error(result, error)
