"""What goes wrong at the door."""

from typing import ClassVar, Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError

FOR_ANOTHER: Final = "a client that wants to act for another user"
FOR_ANOTHER_TOLD: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class LoginFailed(TidelogError):
    """Somebody is not who he says he is, or can't be asked.

    The reason is for our log: it holds no secret and nothing a client sent. What the client is told
    does not say what was wrong.

    Attributes:
        told: What the client is told; None for the mechanism's usual sentence.
    """

    code: ClassVar[int | None] = ErrorCode.SASL_AUTHENTICATION_FAILED

    def __init__(self, reason: str, *, told: str | None = None) -> None:
        self.told = told
        super().__init__(reason)


class NotLoggedIn(TidelogError):
    """A request that nobody may send before, or without, logging in; its connection closes."""

    code: ClassVar[int | None] = ErrorCode.ILLEGAL_SASL_STATE
