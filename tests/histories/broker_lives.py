"""A broker without sockets that is killed and restarted while clients send it requests.

Everything runs on one event loop, even work that a real broker does in threads. The broker's clock
advances by a millisecond with each call of `turn`. The broker is killed at any of its calls that
change a file: between two markers of a transaction, during a write, while it starts.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tests.histories.mortal_files import MortalFiles
from tests.histories.turns import AtOnce, Turns

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.errors import TidelogError
from tidelog.protocol.messages import END_TXN
from tidelog.server.api.context import RequestContext
from tidelog.server.api.handlers import handler_of
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.broker import open_node

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.schema import Api

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

START_MS = 1_700_000_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "20",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    "group.consumer.min.session.timeout.ms": "1",
    "group.consumer.session.timeout.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "1",
    "group.consumer.heartbeat.interval.ms": "20",
    "group.consumer.assignment.interval.ms": "0",
    "auto.create.topics.enable": "false",
}
# The number of file-changing calls before a kill is drawn from one of these ranges: for a kill at
# any time, while a transaction ends, or while the broker starts.
CALLS, CALLS_OF_AN_END, CALLS_OF_A_START = range(40), range(24), range(60)
SHORT_LIVES: Final = 0.2
NUMBERS: Final = re.compile("(-[0-9]+)+$")


class Died(Exception):
    """The broker was killed before it responded."""


@dataclass(eq=False)
class Life:
    """One run of the broker."""

    node: Node
    files: MortalFiles
    work: tuple[Turns, Turns]
    asked: set["asyncio.Future[object]"] = field(default_factory=set)


class Lives:
    """A broker's runs, one after the other, on one directory.

    Attributes:
        kills: How often the broker was killed.
        asked: How many requests were sent.
        ends: Number of kills by topic: the topic of the file that the interrupted call would have
            changed. The numbers in topic names are left out. The name is empty if no call was
            interrupted, and the data directory's name if the file belongs to no topic.
    """

    def __init__(self, folder: Path, seed: int, **settings: str) -> None:
        self.random = Random(seed)
        self.kills = 0
        self.asked = 0
        self.ends = Counter[str]()
        self._folder = folder
        self._clock = ManualClock(START_MS)
        named = {name.replace("_", "."): text for name, text in settings.items()}
        self._config = BrokerConfig.parse(SETTINGS | named)[0]
        self._dies_at_an_end = False
        self._life = self._open(MortalFiles(self.random))

    @property
    def node(self) -> Node:
        """The running node."""
        return self._life.node

    @property
    def is_dead(self) -> bool:
        """Whether the broker was killed and is not restarted yet."""
        return self._life.files.is_dead

    def _begin(self) -> Life:
        while True:
            is_short = self.random.random() < SHORT_LIVES
            left = self.random.choice(CALLS_OF_A_START) if is_short else None
            files = MortalFiles(self.random, left)
            try:
                return self._open(files)
            except (TidelogError, OSError):
                if not files.is_dead:
                    raise
                self._count(files)

    def _open(self, files: MortalFiles) -> Life:
        env = Env(clock=self._clock, files=files, random=self.random)
        node = open_node(str(self._folder), self._config, env=env)
        work = Turns(self.random), Turns(self.random)
        node.work._pool, node.reads._pool = work
        assert node._syncs is not None
        node._syncs._pool = AtOnce()
        node.resume_groups()
        node.resume_transactions()
        return Life(node, files, work)

    def doom(self, calls: int | None = None) -> None:
        """Let the broker be killed at one of its next calls, or while the next transaction ends.

        Args:
            calls: Number of changing calls before the kill. If None, the seed decides between a
                random number of calls and the next end of a transaction.
        """
        if calls is not None:
            self._life.files.left = calls
        elif self.random.random() < 0.5:
            self._life.files.left = self.random.choice(CALLS)
        else:
            self._dies_at_an_end = True

    def kill(self) -> None:
        """End the broker like kill -9 (earlier writes remain), then restart it."""
        life = self._life
        life.files.is_dead = True
        for asked in life.asked:
            asked.cancel()
        for closer in reversed(life.node.closers):
            with suppress(TidelogError, OSError):
                closer()
        life.node.work.close()
        life.node.reads.close()
        life.node.log_dir.abandon()
        self._count(life.files)
        self._life = self._begin()

    def _count(self, files: MortalFiles) -> None:
        self.kills += 1
        # The name of a partition's directory, without the numbers of topic and partition.
        self.ends[NUMBERS.sub("", PurePath(files.last_words).parent.name)] += 1

    def close(self) -> None:
        """Stop cleanly."""
        if self.is_dead:
            self.kill()
        self._life.files.left = None
        self._life.node.close()

    async def turn(self) -> None:
        """Let a millisecond pass."""
        self._clock.advance(1)
        self._life.node.timers.run_due()
        for work in self._life.work:
            work.turn()
        await asyncio.sleep(0)

    async def ask(self, api: "Api[Request, Response]", version: int, message: Request) -> Response:
        """Return the response to a request.

        Raises:
            Died: The broker was killed before or during the request, whose result is unknown.
        """
        life = self._life
        self.asked += 1
        await asyncio.sleep(0)
        self._check(life)
        if self._dies_at_an_end and api is END_TXN:
            self._dies_at_an_end = False
            life.files.left = self.random.choice(CALLS_OF_AN_END)
        context = RequestContext(life.node, api, version, "history", ClientInfo(1, "here"))
        try:
            said: object = handler_of(api.key)(context, message)
            if isinstance(said, Awaitable):
                said = await self._wait(life, said)
        except Exception:
            self._check(life)  # errors of a killed broker reach no client
            raise
        self._check(life)
        return cast("Response", said)

    def _check(self, life: Life) -> None:
        if life is not self._life or life.files.is_dead:
            raise Died

    @staticmethod
    async def _wait(life: Life, said: Awaitable[object]) -> object:
        asked = asyncio.ensure_future(said)
        life.asked.add(asked)
        try:
            return await asked
        except asyncio.CancelledError:
            if not life.files.is_dead:
                raise
            raise Died from None
        finally:
            life.asked.discard(asked)
