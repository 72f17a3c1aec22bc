"""A broker without sockets that is killed and started again while clients ask it things.

All runs on one event loop; its clock moves by a millisecond with each turn.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar, cast

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock, OsFileSystem
from tidelog.server.handlers import handler_of
from tidelog.server.node import ConnectionFacts, Node
from tidelog.server.requests import RequestContext
from tidelog.server.server import open_node

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.messages import Api

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

START_MS = 1_700_000_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "20",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}


class Died(Exception):
    """The broker was killed before it has answered."""


@dataclass(eq=False)
class Life:
    """One run of the broker."""

    node: Node
    asked: set["asyncio.Future[object]"] = field(default_factory=set)


class Lives:
    """A broker's runs, one after the other, on one directory.

    Attributes:
        kills: How often it was killed.
        asked: How much it was asked.
    """

    def __init__(self, folder: Path, seed: int, **settings: str) -> None:
        self.random = Random(seed)
        self.kills = 0
        self.asked = 0
        self._folder = folder
        self._clock = ManualClock(START_MS)
        named = {name.replace("_", "."): text for name, text in settings.items()}
        self._config = BrokerConfig.parse(SETTINGS | named)[0]
        self._life = self._begin()

    @property
    def node(self) -> Node:
        """The one that lives."""
        return self._life.node

    def _begin(self) -> Life:
        env = Env(clock=self._clock, files=OsFileSystem(), random=self.random)
        node = open_node(str(self._folder), self._config, env=env)
        node.resume_groups()
        node.resume_transactions()
        return Life(node)

    def kill(self) -> None:
        """End it as kill -9 does: nothing more is written; what was is there."""
        life = self._life
        for asked in life.asked:
            asked.cancel()
        for closer in reversed(life.node.closers):
            closer()
        life.node.work.close()
        life.node.reads.close()
        life.node.log_dir.abandon()
        self.kills += 1
        self._life = self._begin()

    def close(self) -> None:
        """A clean stop."""
        self._life.node.close()

    async def turn(self) -> None:
        """Let a millisecond pass."""
        self._clock.advance(1)
        self._life.node.timers.run_due()
        await asyncio.sleep(0)

    async def ask(self, api: "Api[Request, Response]", version: int, message: Request) -> Response:
        """The answer to a question.

        Raises:
            Died: The broker was killed meanwhile: what has become of it is not known.
        """
        life = self._life
        self.asked += 1
        await asyncio.sleep(0)
        if life is not self._life:
            raise Died
        context = RequestContext(life.node, api, version, "history", ConnectionFacts(1, "here"))
        said = handler_of(api.key)(context, message)
        if isinstance(said, Awaitable):
            asked = asyncio.ensure_future(cast("Awaitable[object]", said))
            life.asked.add(asked)
            try:
                said = cast("Response", await asked)
            except asyncio.CancelledError:
                if life is self._life:
                    raise
                raise Died from None
            finally:
                life.asked.discard(asked)
        if life is not self._life:
            raise Died
        return cast("Response", said)
