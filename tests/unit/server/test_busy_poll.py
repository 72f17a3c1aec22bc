"""The loop polls actively only for a client that sends small requests in a row."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.socketless import FakeTransport

from tidelog.env import ManualClock
from tidelog.server.api.node import Node
from tidelog.server.net.clients import Clients
from tidelog.server.net.connection import Connection
from tidelog.server.net.scheduling import CROWDED_NS, CROWDED_ROW, ROW, SMALL_BYTES, BusyPoll

WINDOW_US = 200
WINDOW_NS = WINDOW_US * 1000
BETWEEN_NS = 1000
# An ApiVersions request of version 0, without a client id.
REQUEST = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"

node = node_fixture(clock=ManualClock)


class Play:
    """A busy poll with a manual clock, and the requests that it sees."""

    def __init__(self, window_us: int = WINDOW_US) -> None:
        self.now_ns = 0
        self.poll = BusyPoll(window_us, lambda: self.now_ns)

    def looks(self) -> bool:
        """Return whether the loop polls actively."""
        return self.poll.is_polling

    def ask(self, count: int = 1, *, asker: int = 1, size: int = 200, after: int = 0) -> None:
        """Handle `count` requests; each arrives `after` ns after the previous response."""
        for _ in range(count):
            self.now_ns += after
            came_ns = self.now_ns
            self.now_ns += BETWEEN_NS
            self.poll.note_request(asker, came_ns, self.now_ns, size)

    async def turn(self, passing_ns: int = 0) -> None:
        """Advance the clock by `passing_ns`, and run one iteration of the loop."""
        self.now_ns += passing_ns
        await asyncio.sleep(0)

    async def row(self) -> None:
        """Handle enough requests to start polling."""
        self.ask(ROW + 1)
        assert self.looks()
        await self.turn()


def played(story: Callable[[Play], object], window_us: int = WINDOW_US) -> Play:
    """Run a scenario on an event loop, and return its busy poll."""
    play = Play(window_us)

    async def run() -> None:
        told = story(play)
        if asyncio.iscoroutine(told):
            await told

    asyncio.run(run())
    return play


def test_a_row_of_small_requests_keeps_the_loop_awake() -> None:
    async def story(play: Play) -> None:
        play.ask(ROW)
        assert not play.looks()
        play.ask()
        for _ in range(5):
            await play.turn(WINDOW_NS // 10)
            assert play.looks()
            play.ask()

    played(story)


def test_polling_stops_without_requests_and_needs_a_new_row() -> None:
    async def story(play: Play) -> None:
        await play.row()
        await play.turn(WINDOW_NS)
        assert play.looks()
        await play.turn(BETWEEN_NS)
        assert not play.looks()
        play.ask(ROW)
        assert not play.looks()
        play.ask(2)
        assert play.looks()

    played(story)


def test_a_stopped_clock_does_not_keep_the_loop_polling() -> None:
    async def story(play: Play) -> None:
        await play.row()
        for _ in range(WINDOW_US):
            await play.turn()
        assert not play.looks()

    played(story)


def test_each_response_restarts_the_count_of_polls() -> None:
    async def story(play: Play) -> None:
        await play.row()
        for _ in range(2):
            for _ in range(WINDOW_US - 1):
                await play.turn()
            assert play.looks()
            play.ask()

    played(story)


@pytest.mark.parametrize(
    "others",
    [
        {"size": SMALL_BYTES + 1},
        {"after": WINDOW_NS + 1},
    ],
)
def test_large_ones_and_late_ones_are_not_waited_for(others: dict[str, int]) -> None:
    play = played(lambda play: play.ask(10 * ROW, **others))
    assert not play.looks()


def test_several_active_clients_start_no_polling() -> None:
    def story(play: Play) -> None:
        for number in range(10 * ROW):
            play.ask(asker=number % 2)

    assert not played(story).looks()


def test_a_request_of_another_client_ends_polling() -> None:
    async def story(play: Play) -> None:
        await play.row()
        play.ask(asker=2)
        await play.turn()
        assert not play.looks()

    played(story)


def test_on_a_busy_machine_it_gives_up_for_a_while() -> None:
    async def story(play: Play) -> None:
        await play.row()
        await play.turn(CROWDED_NS + 1)
        assert not play.looks()
        play.ask()  # too late for the old series, so a new series begins
        play.ask(CROWDED_ROW + ROW - 1)
        assert not play.looks()
        play.ask()
        assert play.looks()

    played(story)


def test_polling_can_be_switched_off() -> None:
    assert not played(lambda play: play.ask(10 * ROW), window_us=0).looks()


def test_a_connection_reports_its_requests(node: Node) -> None:
    async def run() -> None:
        clients = Clients(node)
        connection = Connection(node, clients)
        connection.connection_made(cast("asyncio.Transport", FakeTransport()))
        for _ in range(ROW + 1):
            assert not clients.busy_poll.is_polling
            room = connection.get_buffer(-1)
            room[: len(REQUEST)] = REQUEST
            room.release()
            connection.buffer_updated(len(REQUEST))
        assert clients.busy_poll.is_polling
        connection.connection_lost(None)

    asyncio.run(run())
