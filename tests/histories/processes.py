"""One process of a history: its requests and retries."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.histories.broker_lives import Lives
from tests.histories.history import History, Partition
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import FIND_COORDINATOR
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest

# Error codes after which a step is repeated: leader not available, not leader, request timed out,
# coordinator loading, coordinator not available, not coordinator, not enough replicas, concurrent
# transactions, unstable offset commit.
RETRIED: Final = frozenset({5, 6, 7, 14, 15, 16, 19, 51, 88})
FETCH_BYTES: Final = 4096
# Maximum number of rounds in which a client copies. Without this limit, a client would copy forever
# if a faulty broker forgets committed offsets.
COPIES_MAX: Final = 300
GROUP_KEY, TRANSACTION_KEY = 0, 1
LONG_MS, SHORT_MS = 60_000, 30
# Number of iterations of the event loop, of one millisecond each, that a client waits before a
# retry.
AGAIN: Final = range(1, 10)


class GaveUp(Exception):
    """A step was refused, so the client ends its transaction."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


@dataclass
class Names:
    """The topics and partitions of one history."""

    seed: int

    @property
    def topic(self) -> str:
        return f"in-{self.seed}"

    @property
    def copy(self) -> str:
        return f"out-{self.seed}"

    @property
    def group(self) -> str:
        return f"group-{self.seed}"

    @property
    def partitions(self) -> list[Partition]:
        return [(self.topic, 0), (self.topic, 1)]

    @property
    def copies(self) -> dict[Partition, Partition]:
        """Target partition of the copies, by source partition."""
        return {partition: (self.copy, partition[1]) for partition in self.partitions}


@dataclass
class Client:
    """One process of a history."""

    lives: Lives
    names: Names
    history: History
    random: Random
    name: str

    async def pause(self) -> None:
        """Let some time pass before a retry."""
        for _ in range(self.random.choice(AGAIN)):
            await asyncio.sleep(0)

    async def patient(self, step: Callable[[], Coroutine[object, object, int]]) -> None:
        """Repeat a step until its code is not a retriable error.

        Raises:
            GaveUp: The step was refused.
            Died: The broker was killed; whether the step was done is unknown.
        """
        patience = Patience()
        while True:
            patience.check(self.name)
            code = await step()
            if code not in RETRIED:
                if code:
                    raise GaveUp(code)
                return
            await self.pause()

    async def find(self, key: str, kind: int) -> None:
        """Wait for a coordinator."""
        asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])

        async def step() -> int:
            found = await self.lives.ask(FIND_COORDINATOR, 4, asked)
            return found.coordinators[0].error_code

        await self.patient(step)
