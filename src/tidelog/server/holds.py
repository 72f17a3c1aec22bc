"""Topics that somebody is rebuilding beside the loop: what would change them waits.

Segments that are attached or exchanged are made ready in a thread; the place where they are to go
must be the same when they are shown. Reading goes on all the while. A run of the tier holds its
topic more lightly: retention leaves it alone, clients do as they like. So does a compaction while
it swaps segments in, but then a topic's deletion waits, too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager


class Hold:
    """Topics held by one change."""

    def __init__(self, *, stops_appends: bool, stops_deletion: bool) -> None:
        self.stops_appends = stops_appends
        self.stops_deletion = stops_deletion
        self.ended = asyncio.Event()


class Holds:
    """Which topics are held now. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._held: dict[str, Hold] = {}

    def __bool__(self) -> bool:
        """Whether any topic is held."""
        return bool(self._held)

    def is_held(self, topic: str) -> bool:
        """Whether a topic's segments must stay as they are."""
        return topic in self._held

    def stops_appends(self, topics: Iterable[str]) -> bool:
        """Whether appends to one of these have to wait."""
        held = (self._held.get(topic) for topic in topics)
        return any(hold is not None and hold.stops_appends for hold in held)

    async def wait(self, topics: Iterable[str]) -> None:
        """Return when none of these is held by what stops appends."""
        await self._wait(topics, lambda hold: hold.stops_appends)

    def stops_deletion(self, topic: str) -> bool:
        """Whether the topic can't be deleted now."""
        hold = self._held.get(topic)
        return hold is not None and hold.stops_deletion

    async def wait_for_deletion(self, topics: Iterable[str]) -> None:
        """Return when none of these is held by what stops its deletion."""
        await self._wait(topics, lambda hold: hold.stops_deletion)

    async def _wait(self, topics: Iterable[str], counts: Callable[[Hold], bool]) -> None:
        names = list(topics)
        held = self._held
        while found := [held[name] for name in names if name in held and counts(held[name])]:
            await found[0].ended.wait()

    @asynccontextmanager
    async def hold(
        self, topics: Iterable[str], *, stops_appends: bool, stops_deletion: bool | None = None
    ) -> AsyncIterator[None]:
        """Hold topics for a block, once nobody else holds one of them.

        Args:
            topics: Their names.
            stops_appends: Appends wait.
            stops_deletion: Their deletion waits; as appends where None.
        """
        names = set(topics)
        await self._wait(names, lambda _: True)
        stops = stops_appends if stops_deletion is None else stops_deletion
        hold = Hold(stops_appends=stops_appends, stops_deletion=stops)
        self._held |= dict.fromkeys(names, hold)
        try:
            yield
        finally:
            for name in names:
                del self._held[name]
            hold.ended.set()
