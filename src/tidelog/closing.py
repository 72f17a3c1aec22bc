"""Base class of objects that close at the end of a `with` block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tidelog.errors import StorageFailure


class Closing(ABC):
    """Base class. `close` is called at the end of a `with` block, even after an exception.

    If the block and then `close` raise a StorageFailure, the failure of the block is kept, because
    it came first and its notes state what was changed. After any other exception of the block, the
    failure of `close` is raised, because written data may not be durable.
    """

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StorageFailure as failure:
            if not isinstance(error, StorageFailure):
                if f"{error or ''}":
                    failure.add_note(f"before this failure: {error}")
                raise
            if (error.path, error.operation) != (failure.path, failure.operation):
                error.add_note(f"closing failed as well: {failure}")
