"""Members of the consumer protocol join, leave, crash, lose responses and rejoin in any order.

No partition ever has two readers. At the end, after some heartbeats, each partition has a reader
among the members that subscribe to its topic, and a new process continues with the same group.
"""

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core import examples
from tests.worlds.brokers.groups import GROUP, World, topic_id

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.requests import HeartbeatRequest, HeartbeatResult, Owned

if TYPE_CHECKING:
    from uuid import UUID

NAMES = st.sampled_from(["A", "B", "C", "D"])
TOPICS = st.sets(st.sampled_from(["routes", "stops"]), min_size=1)
SESSION_MS = 45_000
FENCED = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}


class Consumers(RuleBasedStateMachine):
    """The clients' view of a group, next to the coordinator that manages it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(group_consumer_assignment_interval_ms="0")
        self.world.clock.advance(1)
        self.counts = {"routes": 4, "stops": 3}
        self.world.make_topics(**self.counts)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, Owned] = {}
        self.topics: dict[str, frozenset[str]] = {}
        self.unanswered: set[str] = set()

    def _take(self, name: str, beat: HeartbeatResult) -> None:
        if beat.code in FENCED:
            self._forget(name)
            return
        assert beat.code is ErrorCode.NONE, beat
        self.epochs[name] = beat.epoch
        if beat.assignment is not None:
            self.owned[name] = beat.assignment

    def _forget(self, name: str) -> None:
        for known in (self.epochs, self.owned, self.topics):
            known.pop(name, None)
        self.unanswered.discard(name)

    def _beat(self, name: str) -> HeartbeatResult:
        """Send a heartbeat.

        After a lost response, the next heartbeat sets all fields, so that it gets a full response.
        """
        repeats = name in self.unanswered
        asked = HeartbeatRequest(
            group_id=GROUP,
            member_id=name,
            epoch=self.epochs[name],
            owned=self.owned[name],
            topics=self.topics[name] if repeats else None,
            rebalance_timeout_ms=60_000 if repeats else -1,
        )
        self.unanswered.discard(name)
        return self.world.heartbeats.heartbeat(asked).value

    @rule(name=NAMES, topics=TOPICS, assignor=st.sampled_from([None, "range", "uniform"]))
    def join(self, name: str, topics: set[str], assignor: str | None) -> None:
        """Join the group, or rejoin without partitions."""
        self._forget(name)
        self.epochs[name], self.owned[name] = 0, {}
        self.topics[name] = frozenset(topics)
        asked = HeartbeatRequest(
            group_id=GROUP,
            member_id=name,
            rebalance_timeout_ms=60_000,
            topics=self.topics[name],
            assignor=assignor,
            owned={},
        )
        self._take(name, self.world.heartbeats.heartbeat(asked).value)

    @rule(name=NAMES)
    def beat(self, name: str) -> None:
        if name in self.epochs:
            self._take(name, self._beat(name))

    @rule(name=NAMES)
    def lose_an_answer(self, name: str) -> None:
        """The coordinator processes a heartbeat, but the member gets no response and repeats it."""
        if name not in self.epochs:
            return
        if self._beat(name).code in FENCED:
            self._forget(name)
        else:
            self.unanswered.add(name)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if name in self.epochs:
            self.world.heartbeats.heartbeat(
                HeartbeatRequest(group_id=GROUP, member_id=name, epoch=-1)
            )
            self._forget(name)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(name=NAMES)
    def crash_for_good(self, name: str) -> None:
        """Send no heartbeat of a member until its session has ended; other members continue."""
        self._forget(name)
        for _ in range(2):
            self.world.wait(SESSION_MS // 2 + 1)
            for other in list(self.epochs):
                self._take(other, self._beat(other))

    @rule(topic=st.sampled_from(["routes", "stops"]), count=st.integers(1, 3))
    def grow(self, topic: str, count: int) -> None:
        self.counts[topic] += count
        self.world.make_topics(**self.counts)

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        readers = Counter(
            (topic, number)
            for owned in self.owned.values()
            for topic, numbers in owned.items()
            for number in numbers
        )
        assert all(count == 1 for count in readers.values()), readers

    def teardown(self) -> None:
        """Assert that after some heartbeats each subscribed partition is assigned to a member."""
        for _ in range(12):
            for name in list(self.epochs):
                self._take(name, self._beat(name))
        gone = SESSION_MS // 2 + 1
        for _ in range(2):
            self.world.wait(gone)
            for _ in range(6):
                for name in list(self.epochs):
                    self._take(name, self._beat(name))
        wanted: set[tuple[UUID, int]] = {
            (topic_id(topic), number)
            for topics in self.topics.values()
            for topic in topics
            for number in range(self.counts[topic])
        }
        has = {
            (topic, number)
            for owned in self.owned.values()
            for topic, numbers in owned.items()
            for number in numbers
        }
        assert has == wanted
        super().teardown()


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(examples(40), stateful_step_count=25)
