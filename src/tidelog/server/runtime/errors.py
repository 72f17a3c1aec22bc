"""Errors that only the broker raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError

# Maximum number of characters of a message, each of up to four bytes; a string of the protocol has
# at most 32,767 bytes.
_MESSAGE_MAX: Final = 8_000


class UnansweredRequest(TidelogError):
    """A request without a response (acks=0) was refused; its connection closes, as in Kafka.

    Attributes:
        error_code: The code that a response would have had.
    """

    code: ClassVar[int | None] = None

    def __init__(self, reason: str, error_code: int) -> None:
        self.error_code = error_code
        super().__init__(reason)


class NotLoggedIn(TidelogError):
    """A request requires authentication, or rights that its client lacks; its connection closes."""

    code: ClassVar[int | None] = ErrorCode.ILLEGAL_SASL_STATE


class Refusal(TidelogError):
    """One item of a request is refused; the response has the error in the item's place.

    Attributes:
        error_code: Kafka's error code.
        message: Text that tools print; None for no text. It may contain long text from the client,
            so it is truncated to fit into a string of the protocol.
    """

    code: ClassVar[int | None] = None

    def __init__(self, error_code: int, message: str | None = None) -> None:
        self.error_code = error_code
        if message is not None and len(message) > _MESSAGE_MAX:
            message = f"{message[:_MESSAGE_MAX]}... ({len(message)} characters)"
        self.message = message
        super().__init__(message or f"error {error_code}")


def refusal_of(error: TidelogError) -> Refusal:
    """Return an error of lower layers as the refusal of an item."""
    if isinstance(error, Refusal):
        return error
    return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code, str(error))


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
    """Set an item's result to the error that the block raises; other items continue."""
    try:
        yield
    except TidelogError as error:
        set_error(result, error)
