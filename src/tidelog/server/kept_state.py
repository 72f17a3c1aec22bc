"""What a small file of the directory keeps for the broker: read at the start, changed in order.

Changes are durable before they are answered, and come one after the other; readers see the old
state or the new one, whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, TypeAlias, TypeVar

from tidelog.server.work import Work
from tidelog.storage.handles import as_storage_failure

State = TypeVar("State")
# Carries a change out to its end, whoever goes away meanwhile.
Begin: TypeAlias = Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"]


class KeptState(Generic[State]):
    """One such state. Belongs to the loop's thread; any thread may read what is kept.

    Attributes:
        state: What is kept.
        apply: Lets a state hold; awaited before it is kept, and again with the one before where it
            can't be kept.
        on_kept: Called with the state before and the one that is kept now.
    """

    def __init__(
        self,
        path: str,
        what: str,
        *,
        read: Callable[[], State],
        write: Callable[[State], None],
        work: Work,
        begin: Begin,
    ) -> None:
        """Read what there is.

        Args:
            path: The file's, for errors.
            what: What it keeps, for errors.
            read: Reads the file; raises OSError.
            write: Replaces the file durably, in a thread; raises OSError.
            work: Threads for writing.
            begin: Carries a change out to its end; nobody closes the directory before that.

        Raises:
            StorageFailure: It can't be read. What else `read` raises is raised, too.
        """
        self._path = path
        self._what = what
        self._write = write
        self._work = work
        self._begin = begin
        self._changing = asyncio.Lock()
        # Whether the file surely has the state: a write that failed may have come down to the disk.
        self._is_certain = True
        self.apply: Callable[[State], Awaitable[None]] | None = None
        self.on_kept: Callable[[State, State], None] | None = None
        try:
            self.state = read()
        except OSError as error:
            raise as_storage_failure(error, path, f"read {what}") from error

    async def change(self, changed: Callable[[State], State]) -> None:
        """Keep what `changed` makes of the state; what that or `apply` raises is raised here.

        Raises:
            StorageFailure: It could not be kept; the state is the one before. The file may have
                either until the next change, which is written even where it changes nothing.
        """
        # What the disk has, memory has: also where the client that asked has gone meanwhile.
        await asyncio.shield(self._begin(self._carry_out(changed)))

    async def _carry_out(self, changed: Callable[[State], State]) -> None:
        async with self._changing:
            state = changed(self.state)
            if state == self.state and self._is_certain:
                return
            if self.apply is not None:
                await self.apply(state)
            self._is_certain = False
            try:
                await self._work.run(self._write, state)
            except OSError as error:
                if self.apply is not None:
                    await self.apply(self.state)
                raise as_storage_failure(error, self._path, f"keep {self._what}") from error
            self._is_certain = True
            before, self.state = self.state, state
            if self.on_kept is not None:
                self.on_kept(before, state)
