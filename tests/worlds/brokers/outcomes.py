"""Returns a broker's response to a request's frame, without a connection."""

import asyncio
from typing import Final

from tests.worlds.waiting import Patience

from tidelog.server.api import dispatch
from tidelog.server.api.dispatch import Outcome, Pieces
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.runtime.reply import Reply

_LOOP: Final = asyncio.new_event_loop()


def outcome(node: Node, connection: ClientInfo, frame: bytes) -> Outcome:
    """Return the pieces of the response; cancel a response that waits for a timer or for records.

    If the response is ready at once, the event loop does not run. So tests can count the function
    calls for such a response.

    Raises:
        TidelogError: On this request, a broker would close the connection.
    """
    asyncio._set_running_loop(_LOOP)
    try:
        found = dispatch.answer(node, connection, memoryview(bytearray(frame)))
    finally:
        asyncio._set_running_loop(None)
    return _LOOP.run_until_complete(_settled(node, found)) if isinstance(found, Reply) else found


async def _settled(node: Node, reply: Reply[Pieces | None]) -> Outcome:
    patience = Patience()
    while not reply.is_done and node.timers.next_delay_ms() is None:
        patience.check()
        await asyncio.sleep(0)
    if reply.is_done:
        return reply.value
    reply.cancel()
    await asyncio.sleep(0)
    return reply
