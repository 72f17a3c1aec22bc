"""Histories of real clients on a broker that is killed: nothing is found that must not be."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path
from random import Random

import pytest
from tests.histories.checker import check
from tests.histories.history import History, Outcome, Place
from tests.histories.processes import Names
from tests.histories.readers import committed_in, fetch_request
from tests.histories.real_clients import (
    PATIENCE_S,
    Aiokafka,
    RealCopier,
    RealReader,
    RealWriter,
)
from tests.peers.broker import free_port
from tests.peers.conftest import quick_path
from tests.server.kill.victims import Nursery, Victim
from tests.server.raw import RawClient

from tidelog.protocol.messages import CREATE_TOPICS, FETCH
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

__all__ = ["quick_path"]

# Histories that share a broker and its kills.
TOGETHER = 5
KILLS = 3
TRANSACTIONS = 5
SWEEP = 400
OPTIONS = (
    *("--set", "offsets.topic.num.partitions=2"),
    *("--set", "transaction.state.log.num.partitions=2"),
    *("--set", "auto.create.topics.enable=false"),
)


class Ends:
    """Counts transactions that have come to an end; the broker is killed by that count."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._count = 0

    def tell(self) -> None:
        """One more."""
        with self._more:
            self._count += 1
            self._more.notify_all()

    def wait(self, more: int, is_over: Callable[[], bool]) -> None:
        """Until so many more have ended, or there are no more."""
        with self._more:
            wanted = self._count + more
            is_enough = self._more.wait_for(lambda: self._count >= wanted or is_over(), PATIENCE_S)
            assert is_enough, self._count


class Story:
    """One history, and who takes part in it."""

    def __init__(self, bootstrap: str, seed: int, ended: Callable[[], None]) -> None:
        self.names, self.history = Names(seed), History()
        self._bootstrap = bootstrap
        random = Random(seed)
        values = count(1)

        def parts(name: str) -> tuple[str, Names, History, Random, str, Callable[[], None]]:
            own = Random(random.random())
            return bootstrap, self.names, self.history, own, name, ended

        self._values = lambda: next(values)
        self._writers = [
            RealWriter(*parts("confluent")),
            RealWriter(*parts("aiokafka"), kind=Aiokafka),
        ]
        self._reader = RealReader(*parts("reader"))
        self._copier = RealCopier(*parts("copier"))

    def begin(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """All of them, each in a thread."""
        work = [pool.submit(writer.run, TRANSACTIONS, self._values) for writer in self._writers]

        def is_over() -> bool:
            return all(each.done() for each in work)

        return [
            *work,
            pool.submit(self._reader.run, is_over),
            pool.submit(self._copy, is_over),
        ]

    def _copy(self, is_over: Callable[[], bool]) -> None:
        offset = self._copier.run_copies(is_over)
        self.history.copied[self.names.places[0]] = ((self.names.copy, 0), offset)

    def finish(self) -> History:
        """Read everything."""
        with RawClient(self._bootstrap) as client:
            for place in (*self.names.places, (self.names.copy, 0)):
                self.history.final[place] = read_all(client, place)
        return self.history


def read_all(client: RawClient, place: Place) -> list[tuple[int, int]]:
    """What was committed, where no transaction is open."""
    found: list[tuple[int, int]] = []
    at, end = 0, 1
    while at < end:
        data = client.ask(FETCH, 12, fetch_request(place, at)).responses[0].partitions[0]
        assert not data.error_code, data
        end = data.high_watermark
        more, at = committed_in(data, at)
        found += more
    return found


def create_topics(bootstrap: str, stories: list[Story]) -> None:
    wanted = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        for story in stories
        for name, partitions in ((story.names.topic, 2), (story.names.copy, 1))
    ]
    with RawClient(bootstrap) as client:
        answer = client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=wanted, timeout_ms=60_000))
    assert not any(each.error_code for each in answer.topics), answer


def histories(folder: Path, first: int, together: int) -> list[History]:
    """Histories by their seeds, on a broker of their own that is killed."""
    random, ends = Random(first), Ends()
    port = free_port()
    stories = [Story(f"127.0.0.1:{port}", first + number, ends.tell) for number in range(together)]
    with (
        Nursery(folder / "log") as nursery,
        ThreadPoolExecutor(together * 4) as pool,
    ):
        victim = Victim(nursery, folder / "data", *OPTIONS)
        try:
            victim.start_at(port)
            create_topics(victim.bootstrap, stories)
            work = [each for story in stories for each in story.begin(pool)]
            for each in work:
                each.add_done_callback(lambda _: ends.tell())
            for _ in range(KILLS):
                some = random.randrange(1, 2 * TRANSACTIONS * together // KILLS)
                ends.wait(some, lambda: all(each.done() for each in work))
                victim.kill()
                victim.start_at(port)
            wait(work)  # while there is a broker, even where one of them has failed
            for each in work:
                each.result()
            return [story.finish() for story in stories]
        finally:
            victim.stop()


def _assert_sound(folder: Path, number: int) -> None:
    first = number * TOGETHER
    found = histories(folder, first, TOGETHER)
    for own, history in enumerate(found):
        assert check(history) == [], f"seed {first + own} of {TOGETHER} from {first}"
    outcomes = {each.outcome for history in found for each in history.transactions}
    assert {Outcome.COMMITTED, Outcome.ABORTED} <= outcomes
    assert any(poll.records for history in found for poll in history.polls)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SWEEP))
def test_histories_of_real_clients_are_sound(quick_path: Path, number: int) -> None:
    _assert_sound(quick_path, number)
