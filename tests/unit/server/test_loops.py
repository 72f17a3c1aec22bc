"""What an event loop leaves in its thread: nothing, once it has ended."""

import asyncio
from functools import partial

from tidelog.server import loops
from tidelog.storage.lookup import is_on_loop, search_on_loop


def test_a_thread_searches_as_any_other_once_its_loop_has_ended() -> None:
    async def main() -> bool:
        search_on_loop(partial(loops.is_inside, asyncio.get_running_loop()))
        return is_on_loop()

    assert loops.run(main())
    assert not is_on_loop()
