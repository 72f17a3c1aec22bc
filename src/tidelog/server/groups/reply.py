"""An answer that may come later, without an event loop: the rules of groups make them."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reply(Generic[T]):
    """One value, now or later. Completed once; who asks for it is told at once or then."""

    __slots__ = ("_listeners", "_value")

    def __init__(self) -> None:
        self._value: tuple[T] | None = None
        self._listeners: list[Callable[[T], None]] = []

    @classmethod
    def of(cls, value: T) -> "Reply[T]":
        """An answer that is there."""
        made = cls()
        made.complete(value)
        return made

    @property
    def is_done(self) -> bool:
        """Whether the value is there."""
        return self._value is not None

    @property
    def value(self) -> T:
        """The value, which must be there."""
        assert self._value is not None, "not answered yet"
        return self._value[0]

    def complete(self, value: T) -> None:
        """Give the value, once."""
        assert self._value is None, "answered twice"
        self._value = (value,)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(value)

    def then(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the value as soon as it is there."""
        if self._value is None:
            self._listeners.append(listener)
        else:
            listener(self._value[0])
