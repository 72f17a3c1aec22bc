"""Objects that a `with` block closes at its end."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closed at the end of its block, however that ends."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
