"""The queue of fetches of a share partition: one test per rule, then random orders of events."""

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from tests.worlds.waiting import Patience

from tidelog.server.shares.open_partition import FetchQueue
from tidelog.server.shares.state_topic import ShareKey
from tidelog.types import IsolationLevel

KEY = ShareKey("workers", UUID(int=1), 0)
ALL, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED


class Shelf(FetchQueue):
    """A queue and its record count; the first `stable` records are in no open transaction."""

    def __init__(self) -> None:
        super().__init__(KEY)
        self.records = self.stable = 0

    def may_acquire(self, isolation: IsolationLevel) -> bool:
        return self.seen_by(isolation) > 0

    def seen_by(self, isolation: IsolationLevel) -> int:
        return self.stable if isolation is COMMITTED else self.records

    def put(self, count: int = 1) -> None:
        """Add records without a transaction; all earlier transactions end."""
        self.records += count
        self.stable = self.records
        self.notify()


@dataclass(eq=False)
class Fetch:
    """A fetch; it waits while fewer than `least` records are available."""

    shelf: Shelf
    least: int = 1
    most: int = 1000
    isolation: IsolationLevel = ALL
    is_busy: bool = False
    is_woken: bool = False
    woken_count: int = field(default=0)

    def wake(self, key: ShareKey) -> None:
        assert key == KEY
        self.is_woken = True
        self.woken_count += 1

    def look(self) -> bool:
        """Return whether the fetch begins to read."""
        self.is_woken = False
        return self.shelf.begin_reading(self)

    def end(self) -> bool:
        """End the read; return whether the fetch took records and left the queue."""
        found = self.shelf.seen_by(self.isolation)
        taken = min(found, self.most) if found >= self.least else 0
        self.shelf.records -= taken
        self.shelf.stable = max(self.shelf.stable - taken, 0)
        self.shelf.end_reading()
        if taken:
            self.shelf.leave(self)
        return bool(taken)


def waiting(shelf: Shelf, count: int = 2, least: int = 1, most: int = 1000) -> list[Fetch]:
    made = [Fetch(shelf, least, most) for _ in range(count)]
    for each in made:
        shelf.join(each)
        assert not each.look()
    return made


def woken(*fetches: Fetch) -> list[bool]:
    return [each.is_woken for each in fetches]


def test_one_record_wakes_one_of_many() -> None:
    shelf = Shelf()
    fetches = waiting(shelf, 8)
    shelf.put()
    assert fetches[0].look()
    assert fetches[0].end()
    assert [each.woken_count for each in fetches] == [1] + [0] * 7


def test_no_fetch_is_woken_without_new_records() -> None:
    shelf = Shelf()
    fetches = waiting(shelf)
    shelf.notify()
    assert woken(*fetches) == [False, False]


def test_fetches_are_woken_in_order_of_arrival() -> None:
    shelf = Shelf()
    one, two, three = waiting(shelf, 3)
    for first in (one, two, three):
        shelf.put()
        assert woken(one, two, three) == [each is first for each in (one, two, three)]
        assert first.look()
        assert first.end()


def test_records_left_by_the_first_fetch_wake_the_next() -> None:
    shelf = Shelf()
    one, two = waiting(shelf, most=1)
    shelf.put(2)
    assert woken(one, two) == [True, False]
    assert one.look()
    assert one.end()
    assert two.is_woken


def test_a_woken_fetch_that_leaves_wakes_the_next() -> None:
    shelf = Shelf()
    one, two = waiting(shelf)
    shelf.put()
    shelf.leave(one)
    assert two.is_woken


def test_a_fetch_below_its_minimum_wakes_the_next() -> None:
    shelf = Shelf()
    (one,), (two,) = waiting(shelf, 1, least=2), waiting(shelf, 1)
    shelf.put()
    assert one.look()
    assert not two.is_woken
    assert not one.end()
    assert two.is_woken


def test_a_busy_fetch_and_the_next_one_are_woken() -> None:
    shelf = Shelf()
    one, two = waiting(shelf)
    one.is_busy = True
    shelf.put()
    assert woken(one, two) == [True, True]


def test_a_fetch_of_committed_records_is_skipped_for_an_open_transaction() -> None:
    shelf = Shelf()
    one, two = waiting(shelf)
    one.isolation = COMMITTED
    shelf.records = 1
    shelf.notify()
    assert woken(one, two) == [False, True]


def test_a_fetch_that_finds_another_read_in_progress_is_woken_after_it() -> None:
    shelf = Shelf()
    (one,) = waiting(shelf, 1, least=2)
    shelf.put()
    assert one.look()
    two = Fetch(shelf)
    shelf.join(two)
    assert not two.look()
    assert not two.is_woken
    assert not one.end()
    assert woken(one, two) == [False, True]


def test_records_that_arrive_during_a_read_wake_the_reader_again() -> None:
    shelf = Shelf()
    (one,) = waiting(shelf, 1, least=3)
    shelf.put()
    assert one.look()
    shelf.put()
    assert not one.is_woken
    assert not one.end()
    assert one.is_woken


def test_wake_all_wakes_all_fetches() -> None:
    shelf = Shelf()
    fetches = waiting(shelf)
    shelf.wake_all()
    assert woken(*fetches) == [True, True]


class AnyOrder:
    """Random events: fetches arrive, read, wait and leave; records arrive, transactions end."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.shelf = Shelf()
        self.fetches: list[Fetch] = []
        self.reader: Fetch | None = None

    def run(self, steps: int) -> None:
        some = (self.come, self.put, self.write, self.end_transactions, self.hold_up, self.go)
        for _ in range(steps):
            step = self.draw.choice((*some, self.look, self.look, self.end_look, self.end_look))
            step()
            self.check()
        self.settle()

    def come(self) -> None:
        least = self.draw.choice((1, 1, 1, 2, 3))
        most = max(self.draw.choice((1, 2, 1000)), least)
        made = Fetch(self.shelf, least, most, self.draw.choice((ALL, COMMITTED)))
        self.fetches.append(made)
        self.shelf.join(made)
        self._look(made)

    def _look(self, fetch: Fetch) -> None:
        if fetch.look():
            assert self.reader is None
            self.reader = fetch

    def put(self) -> None:
        self.shelf.put(self.draw.randint(1, 3))

    def write(self) -> None:
        """Add a record of an open transaction."""
        self.shelf.records += 1
        self.shelf.notify()

    def end_transactions(self) -> None:
        self.shelf.stable = self.shelf.records
        self.shelf.notify()

    def look(self) -> None:
        ready = [each for each in self.fetches if each.is_woken and not each.is_busy]
        ready = [each for each in ready if each is not self.reader]
        if ready:
            self._look(self.draw.choice(ready))

    def end_look(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None and reader.end():
            self.fetches.remove(reader)

    def go(self) -> None:
        if not self.fetches:
            return
        fetch = self.draw.choice(self.fetches)
        if fetch is self.reader:
            self.reader = None
            self.shelf.end_reading()
        self.fetches.remove(fetch)
        self.shelf.leave(fetch)

    def hold_up(self) -> None:
        """Let one fetch that was not woken begin or end other work.

        Each woken fetch with other work ends this work with a probability of one half.
        """
        free = [each for each in self.fetches if not each.is_woken and each is not self.reader]
        for each in free[:1]:
            each.is_busy = not each.is_busy
        for each in self.fetches:
            each.is_busy &= not each.is_woken or self.draw.random() < 0.5

    def settle(self) -> None:
        """Let all woken fetches read; assert that no fetch waits for records that it could take."""
        for each in self.fetches:
            each.is_busy = False
        patience = Patience()
        while self.reader is not None or any(each.is_woken for each in self.fetches):
            patience.check("no fetch is woken")
            self.end_look()
            self.look()
        for each in self.fetches:
            assert self.shelf.seen_by(each.isolation) < each.least, each

    def check(self) -> None:
        """Check that a fetch was woken if a free fetch could take records and no fetch reads."""
        assert self.shelf.waiting_count == len(self.fetches)
        could = [each for each in self.fetches if each.least == 1 and not each.is_busy]
        if self.reader is None and any(self.shelf.may_acquire(each.isolation) for each in could):
            assert any(each.is_woken and not each.is_busy for each in self.fetches)


@pytest.mark.parametrize("seed", range(30))
def test_no_fetch_is_forgotten_in_any_order_of_events(seed: int) -> None:
    AnyOrder(seed).run(400)
