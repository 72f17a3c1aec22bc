"""Idle clients are disconnected, except a client whose input the system has not reported yet."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.brokers.running import opened_node
from tests.worlds.clocks import BusyClock

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.broker import open_node
from tidelog.server.net.clients import (
    CLIENTS_PER_CLOCK_READ,
    IDLE_CHECK_MS,
    NO_BOUND,
    REST_MS,
    SENDING_MS,
    STALLED_MS,
    Clients,
    ConnectionMemory,
    MemoryBudget,
)

SLICES_MAX = 100
PAUSE_MS, PAUSE_LIMIT_MS = 5, 100
SETTINGS = {"queued.max.request.bytes": "100", "connections.max.idle.ms": "60000"}


class Slow:
    """A client in the middle of a request.

    With `wakes_late`, the operating system may hold received bytes that it has not reported to the
    broker yet.
    """

    def __init__(
        self, clock: ManualClock, *, wakes_late: bool, in_flight: MemoryBudget | None = None
    ) -> None:
        self.facts = ClientInfo(1, "127.0.0.1")
        self.memory = ConnectionMemory(
            in_flight or MemoryBudget(NO_BOUND), clock.monotonic_ms, lambda: None
        )
        self.memory.sending_since_ms = clock.monotonic_ms()
        self.last_active_ms = clock.monotonic_ms()
        self.is_busy = False
        self.shows_progress = True
        self.wakes_late = wakes_late
        self.is_closed = False
        self.has_rested = False
        self._clock = clock

    def attend(self) -> bool:
        was_late, self.wakes_late = self.wakes_late, False
        if was_late:
            self.last_active_ms = self._clock.monotonic_ms()
        return was_late

    def rest(self) -> None:
        self.has_rested = True

    def close(self) -> None:
        self.is_closed = True
        self.memory.drop()

    def stop(self) -> None:
        self.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock) -> Iterator[Node]:
    with opened_node(tmp_path, SETTINGS, env=Env(clock=clock)) as node:
        yield node


@pytest.fixture
def clients(node: Node) -> Clients:
    """Clients at the memory bound: one request is being read, another one waits for memory."""
    found = Clients(node)
    assert found.in_flight.read(100, lambda: None)
    assert not found.in_flight.read(1, lambda: None)
    return found


def let_pass(clients: Clients, clock: ManualClock, delta_ms: int) -> None:
    for _ in range(delta_ms // IDLE_CHECK_MS):
        clock.advance(IDLE_CHECK_MS)
        clients.watch_idle()


def test_a_client_with_unreported_input_is_read_before_it_is_disconnected(
    clients: Clients, clock: ManualClock
) -> None:
    quiet, late = Slow(clock, wakes_late=False), Slow(clock, wakes_late=True)
    clients.admit(quiet)
    clients.admit(late)
    clock.advance(STALLED_MS)  # still within the limit
    let_pass(clients, clock, IDLE_CHECK_MS)
    assert (quiet.is_closed, late.is_closed, late.wakes_late) == (True, False, False)
    let_pass(clients, clock, STALLED_MS)
    assert not late.is_closed
    let_pass(clients, clock, IDLE_CHECK_MS)  # now the client is silent
    assert late.is_closed


def test_a_client_that_keeps_sending_stays_until_its_time_is_over(
    clients: Clients, clock: ManualClock
) -> None:
    slow = Slow(clock, wakes_late=True)
    clients.admit(slow)
    for _ in range(SENDING_MS // IDLE_CHECK_MS):
        slow.last_active_ms = clock.monotonic_ms()
        let_pass(clients, clock, IDLE_CHECK_MS)
    assert not slow.is_closed
    slow.wakes_late = True  # the client has sent input, but its time for sending is over
    let_pass(clients, clock, IDLE_CHECK_MS)
    assert slow.is_closed


def test_an_idle_client_that_is_sending_is_listened_to_first(
    node: Node, clock: ManualClock
) -> None:
    clients, late = Clients(node), Slow(clock, wakes_late=True)
    clients.admit(late)
    let_pass(clients, clock, 120_000)
    assert not late.is_closed
    let_pass(clients, clock, IDLE_CHECK_MS * 2)
    assert late.is_closed


@pytest.fixture
def crowded(node: Node) -> Clients:
    """Clients whose responses alone use up the memory budget; no request waits for memory."""
    found = Clients(node)
    found.in_flight.add(100)
    return found


def taker(clients: Clients, clock: ManualClock, held_bytes: int = 10) -> Slow:
    """Return a silent client whose pending response takes `held_bytes` of the memory in use."""
    clients.in_flight.release(held_bytes)
    found = Slow(clock, wakes_late=False, in_flight=clients.in_flight)
    found.memory.sending_since_ms = None
    found.memory.hold(queued_bytes=held_bytes)
    found.memory.unread_since_ms = clock.monotonic_ms()
    clients.admit(found)
    return found


def test_a_client_that_receives_nothing_is_disconnected_at_the_bound(
    crowded: Clients, clock: ManualClock
) -> None:
    stuck, idle = taker(crowded, clock), taker(crowded, clock)
    idle.memory.unread_since_ms = None  # the client has received all responses
    let_pass(crowded, clock, STALLED_MS)
    assert not stuck.is_closed
    let_pass(crowded, clock, IDLE_CHECK_MS)
    assert (stuck.is_closed, idle.is_closed) == (True, False)


def test_a_client_that_receives_slowly_stays_for_a_limited_time(
    crowded: Clients, clock: ManualClock
) -> None:
    slow = taker(crowded, clock)
    for _ in range(SENDING_MS // IDLE_CHECK_MS):
        slow.last_active_ms = clock.monotonic_ms()
        let_pass(crowded, clock, IDLE_CHECK_MS)
    assert not slow.is_closed
    slow.last_active_ms = clock.monotonic_ms()
    let_pass(crowded, clock, IDLE_CHECK_MS)
    assert slow.is_closed


def test_below_the_bound_responses_may_wait(crowded: Clients, clock: ManualClock) -> None:
    slow = taker(crowded, clock)
    crowded.in_flight.release(1)
    let_pass(crowded, clock, SENDING_MS + IDLE_CHECK_MS)
    assert not slow.is_closed


def test_no_more_clients_than_needed_are_disconnected(crowded: Clients, clock: ManualClock) -> None:
    """The client that holds most bytes is disconnected first; a client without bytes is kept."""
    least, most, nothing = (taker(crowded, clock, held) for held in (10, 60, 0))
    let_pass(crowded, clock, SENDING_MS + IDLE_CHECK_MS)
    assert (least.is_closed, most.is_closed, nothing.is_closed) == (False, True, False)
    crowded.in_flight.add(60)
    let_pass(crowded, clock, IDLE_CHECK_MS)
    assert (least.is_closed, nothing.is_closed) == (True, False)


def test_a_client_whose_progress_is_hidden_has_more_time(
    crowded: Clients, clock: ManualClock
) -> None:
    """TLS buffers output, so the broker can't see progress, and gives the client more time."""
    gathered = taker(crowded, clock)
    gathered.shows_progress = False
    let_pass(crowded, clock, SENDING_MS)
    assert not gathered.is_closed
    let_pass(crowded, clock, IDLE_CHECK_MS)
    assert gathered.is_closed


def test_an_idle_client_has_no_buffer(node: Node, clock: ManualClock) -> None:
    clients, silent, active = Clients(node), *(Slow(clock, wakes_late=False) for _ in range(2))
    clients.admit(silent)
    clients.admit(active)
    clock.advance(REST_MS)
    active.last_active_ms = clock.monotonic_ms()
    let_pass(clients, clock, IDLE_CHECK_MS)
    assert (silent.has_rested, active.has_rested) == (True, False)
    assert not silent.is_closed


def test_thousands_of_clients_are_checked_in_slices(tmp_path: Path) -> None:
    clock = BusyClock(1_700_000_000_000)
    node = open_node(str(tmp_path), BrokerConfig.parse(SETTINGS)[0], env=Env(clock=clock))
    clients = Clients(node)
    crowd = [Slow(clock, wakes_late=False) for _ in range(20 * CLIENTS_PER_CLOCK_READ)]
    for each in crowd:
        clients.admit(each)
    clock.advance(70_000)
    clients.watch_idle()
    closed = [sum(each.is_closed for each in crowd)]
    clients.dismiss(crowd[-1])  # the client leaves meanwhile
    while closed[-1] < len(crowd) - 1:
        assert len(closed) < SLICES_MAX
        clock.advance(1)
        node.timers.run_due()
        closed.append(sum(each.is_closed for each in crowd))
    assert len(closed) > 3
    assert not crowd[-1].is_closed
    node.close()


def pause_ms(
    clients: Clients,
    clock: ManualClock,
    patch: pytest.MonkeyPatch,
    each: Callable[[int], None] = lambda _: None,
) -> int:
    """Return the time until the first pause; call `each` with the index of each check."""
    begun_ms, looks = clock.monotonic_ms(), iter(range(PAUSE_LIMIT_MS))

    async def sleep(delay_s: float) -> None:
        clock.advance(round(delay_s * 1000))
        each(next(looks))

    patch.setattr(asyncio, "sleep", sleep)
    asyncio.run(clients.first_pause(PAUSE_MS, limit_ms=PAUSE_LIMIT_MS))
    return clock.monotonic_ms() - begun_ms


def test_without_a_client_the_first_pause_is_waited_for_up_to_the_limit(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pause_ms(Clients(node), clock, monkeypatch) == PAUSE_LIMIT_MS


def test_the_first_pause_begins_after_the_last_response(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, client, other = Clients(node), *(Slow(clock, wakes_late=False) for _ in range(2))

    def look(number: int) -> None:
        if number == 0:
            clients.admit(client)
            clients.admit(other)
        if number < 3:
            client.last_active_ms = clock.monotonic_ms()
        other.is_busy = number < 6

    assert pause_ms(clients, clock, monkeypatch, look) == PAUSE_MS * 7


def test_clients_that_never_pause_are_waited_for_up_to_the_limit(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, client = Clients(node), Slow(clock, wakes_late=False)
    clients.admit(client)

    def ask(_: int) -> None:
        client.last_active_ms = clock.monotonic_ms()

    assert pause_ms(clients, clock, monkeypatch, ask) == PAUSE_LIMIT_MS


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "/127.0.0.1"),
        ("local", "/local"),
        ("::1", "/0:0:0:0:0:0:0:1"),
        ("2001:db8::5", "/2001:db8:0:0:0:0:0:5"),
        ("1:0:0:2::3", "/1:0:0:2:0:0:0:3"),
        ("fe80::1%eth0", "/fe80:0:0:0:0:0:0:1%eth0"),
        ("::ffff:10.0.0.1", "/10.0.0.1"),
    ],
)
def test_addresses_are_shown_in_groups_as_java_prints_them(host: str, shown: str) -> None:
    assert ClientInfo(1, host).java_host == shown
