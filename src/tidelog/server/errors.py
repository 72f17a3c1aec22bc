"""Errors that only the broker raises."""

from typing import ClassVar

from tidelog.errors import TidelogError


class Unanswered(TidelogError):
    """A request without an answer (acks=0) was refused: its connection closes, as Kafka's does.

    Attributes:
        error_code: What an answer would have said.
    """

    code: ClassVar[int | None] = None

    def __init__(self, reason: str, error_code: int) -> None:
        self.error_code = error_code
        super().__init__(reason)
