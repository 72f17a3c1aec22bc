"""What an event loop leaves in its thread: nothing, once it has ended."""

import asyncio
from functools import partial

from tidelog.server.runtime import loop
from tidelog.storage.segment.time_search import is_on_loop, search_on_loop


def test_a_thread_searches_as_any_other_once_its_loop_has_ended() -> None:
    async def main() -> bool:
        search_on_loop(partial(loop.is_inside, asyncio.get_running_loop()))
        return is_on_loop()

    assert loop.run(main())
    assert not is_on_loop()
