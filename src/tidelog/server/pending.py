"""The answer that a connection waits for, by a task or without one."""

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.errors import Closed
from tidelog.protocol.messages import FETCH, SHARE_FETCH
from tidelog.server.arrivals import Arrivals
from tidelog.server.dispatch import Later, Pieces, Promised
from tidelog.server.requests import Asked

# Asked for nobody but who has asked, and perhaps for long. All else ends soon, and what changes
# something has to be carried out, as Kafka does: its client may know no better than that it is.
_FOR_THE_CLIENT: Final = frozenset({FETCH.key, SHARE_FETCH.key})


class Pending:
    """At most one answer of one connection. Belongs to the loop's thread.

    Attributes:
        is_waiting: Whether one is on its way.
    """

    __slots__ = (
        "_arrivals",
        "_is_for_client",
        "_promised",
        "_task",
        "_tell_failure",
        "_tell_pieces",
        "is_waiting",
    )

    def __init__(
        self,
        arrivals: Arrivals,
        tell_pieces: Callable[[Pieces | None, Asked], None],
        tell_failure: Callable[[Exception], None],
    ) -> None:
        """None yet.

        Args:
            arrivals: What sends answers behind the request that has brought them.
            tell_pieces: Called with an answer's pieces once they are there.
            tell_failure: Called with why there are none.
        """
        self._arrivals = arrivals
        self._tell_pieces = tell_pieces
        self._tell_failure = tell_failure
        self._task: asyncio.Future[None] | None = None
        self._promised: Promised | None = None  # what is waited for without a task
        self._is_for_client = False
        self.is_waiting = False

    def wait(self, said: Later, asked: Asked) -> None:
        """Tell of this answer when it is there."""
        assert not self.is_waiting
        self.is_waiting = True
        if isinstance(said, Promised):
            self._await_promised(said, asked)
            return
        self._is_for_client = asked.key in _FOR_THE_CLIENT
        self._task = asyncio.ensure_future(self._finish(said, asked))
        # Cancelled before its first step it never gets to what it should wait for.
        self._task.add_done_callback(lambda _: said.close())

    def _await_promised(self, said: Promised, asked: Asked) -> None:
        """Tell behind what brings the answer, which is in the midst of something."""
        self._promised, add = said, self._arrivals.add
        said.when_there(lambda make: add(lambda: self._keep(said, asked, make)))

    def _keep(self, said: Promised, asked: Asked, make: Callable[[], Pieces]) -> None:
        """Answer as was promised, unless the client has gone."""
        if self._promised is not said:
            return
        try:
            self._end(make(), asked)
        except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
            self._fail(error)

    async def _finish(self, said: Later, asked: Asked) -> None:
        try:
            pieces = await said
        except asyncio.CancelledError:
            if self._task is not None:  # not by us: what it waited for was given up
                self._fail(Closed("the work on a request was given up"))
            return
        except Exception as error:  # noqa: BLE001 - one connection's trouble is not the others'
            self._fail(error)
            return
        self._end(pieces, asked)

    def _end(self, pieces: Pieces | None, asked: Asked) -> None:
        self._task = self._promised = None
        self.is_waiting = False
        self._tell_pieces(pieces, asked)

    def _fail(self, error: Exception) -> None:
        self._task = self._promised = None
        self.is_waiting = False
        self._tell_failure(error)

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing has to be carried out: the answer is all that is waited for."""
        return self.is_waiting and (self._task is None or self._is_for_client)

    def lose_client(self) -> None:
        """Nobody takes the answer any more: only what has to be carried out is waited for."""
        if self.waits_for_client:
            self._drop()

    def give_up(self) -> None:
        """Nobody waits any more; it lets go of whom it would have told, which is a circle."""
        self._tell_pieces = self._tell_failure = _tell_nobody
        self._drop()

    def _drop(self) -> None:
        self._promised = None
        self.is_waiting = False
        if self._task is not None:
            self._task.cancel()
            self._task = None


def _tell_nobody(*_: object) -> None:
    """The connection has gone."""
