"""Storms: most members of a group join, leave and become silent at once, again and again.

Each request gets a response, the group settles, another group is not affected, and no state piles
up.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from tests.worlds.brokers.groups import GROUP, REBALANCE_MS, SESSION_MS, World

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import GroupState
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import (
    CommitRequest,
    HeartbeatRequest,
    HeartbeatResult,
    JoinRequest,
    JoinResult,
    MemberRef,
    Owned,
    SyncRequest,
    SyncResult,
)
from tidelog.server.runtime.reply import Reply

SEEDS: Final = range(4)
MEMBERS: Final = 120
GUSTS: Final = 8
STEPS_IN_A_GUST: Final = 6
STEP_MS: Final = 100
SETTLING_STEPS: Final = 200
CALM: Final = "calm"
RETRIABLE: Final = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.MEMBER_ID_REQUIRED,
}


@dataclass(eq=False)
class Classic:
    """A member of the classic protocol that behaves as a client library does.

    Attributes:
        joined: Result of the member's join; None if the member has to join.
        waits: Whether the member waits for a response to JoinGroup or SyncGroup.
    """

    member_id: str = ""
    joined: JoinResult | None = None
    assignment: bytes | None = None
    waits: bool = False
    is_gone: bool = False


@dataclass
class ClassicStorm:
    """A group of the classic protocol; responses reach clients in a random order.

    Attributes:
        replies: All replies for which a client waits or has waited.
    """

    world: World
    random: Random
    members: list[Classic] = field(default_factory=list)
    inbox: list[tuple[Classic, JoinResult | SyncResult]] = field(default_factory=list)
    replies: list[Reply[JoinResult] | Reply[SyncResult]] = field(default_factory=list)

    def come(self) -> None:
        self.members.append(Classic())

    def leave(self, member: Classic) -> None:
        self.fall_silent(member)
        if member.member_id:
            self.world.members.leave(GROUP, [MemberRef(member.member_id)])

    def fall_silent(self, member: Classic) -> None:
        self.members.remove(member)
        member.is_gone = True

    def step(self) -> None:
        """Deliver all pending responses, and let each member act."""
        self.random.shuffle(self.inbox)
        heard, self.inbox = self.inbox, []
        for member, said in heard:
            if not member.is_gone:
                self._hear(member, said)
        for member in self.random.sample(self.members, len(self.members)):
            if not member.waits:
                self._act(member)
        self.world.wait(STEP_MS)

    def _hear(self, member: Classic, said: JoinResult | SyncResult) -> None:
        member.waits = False
        if said.code is not ErrorCode.NONE:
            assert said.code in RETRIABLE, said
            self._begin_anew(member, said.code)
            if isinstance(said, JoinResult) and said.code is ErrorCode.MEMBER_ID_REQUIRED:
                member.member_id = said.member_id
        elif isinstance(said, JoinResult):
            member.member_id, member.joined = said.member_id, said
        else:
            member.assignment = said.assignment

    @staticmethod
    def _begin_anew(member: Classic, code: ErrorCode) -> None:
        member.joined = member.assignment = None
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id = ""

    def _act(self, member: Classic) -> None:
        if member.joined is None:
            self._await(member, self._join(member))
        elif member.assignment is None:
            self._await(member, self._sync(member, member.joined))
        else:
            ref = MemberRef(member.member_id)
            code = self.world.members.heartbeat(GROUP, ref, member.joined.generation)
            if code is not ErrorCode.NONE:
                assert code in RETRIABLE
                self._begin_anew(member, code)

    def _await(self, member: Classic, reply: Reply[JoinResult] | Reply[SyncResult]) -> None:
        member.waits = True
        self.replies.append(reply)

        def arrive(said: JoinResult | SyncResult) -> None:
            self.inbox.append((member, said))

        reply.then(arrive)

    def _join(self, member: Classic) -> Reply[JoinResult]:
        asked = JoinRequest(
            group_id=GROUP,
            member_id=member.member_id,
            client_id="us",
            protocols=(("range", b"what it reads"),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            needs_member_id=True,
        )
        return self.world.members.join(asked)

    def _sync(self, member: Classic, joined: JoinResult) -> Reply[SyncResult]:
        given = [(each.member_id, each.member_id.encode()) for each in joined.members]
        asked = SyncRequest(
            group_id=GROUP,
            member_id=member.member_id,
            generation=joined.generation,
            assignments=given,
        )
        return self.world.members.sync(asked)

    @property
    def is_settled(self) -> bool:
        generations = {each.joined.generation for each in self.members if each.joined}
        return len(generations) == 1 and all(
            each.assignment == each.member_id.encode() and not each.waits for each in self.members
        )


class Calm:
    """Another group with three members, which the storm must not affect."""

    def __init__(self, world: World) -> None:
        self._world = world
        asked = JoinRequest(
            group_id=CALM,
            protocols=(("range", b""),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        joins = [world.members.join(asked) for _ in range(3)]
        world.wait(0)
        self._joined = [join.value for join in joins]
        given = [(each.member_id, b"") for each in self._joined]
        for each in self._joined:
            asked_sync = SyncRequest(
                group_id=CALM,
                member_id=each.member_id,
                generation=each.generation,
                assignments=given if each.leader == each.member_id else (),
            )
            world.members.sync(asked_sync)

    def check(self) -> None:
        """Check that the members can send heartbeats and commit."""
        for each in self._joined:
            ref = MemberRef(each.member_id)
            assert self._world.members.heartbeat(CALM, ref, each.generation) is ErrorCode.NONE
            asked = CommitRequest(
                group_id=CALM, member_id=each.member_id, generation=each.generation
            )
            commit = Commit("flights", 0, 1)
            assert self._world.commits.commit(asked, [commit]).value == [ErrorCode.NONE]


def gust(storm: ClassicStorm, calm: Calm) -> None:
    """Replace half of the members at once, while others wait for responses; run some steps."""
    for member in storm.random.sample(storm.members, len(storm.members) // 2):
        storm.random.choice([storm.leave, storm.fall_silent])(member)
    while len(storm.members) < MEMBERS:
        storm.come()
    for _ in range(storm.random.randint(1, STEPS_IN_A_GUST)):
        storm.step()
        calm.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_classic_group_settles_after_storms(seed: int) -> None:
    world = World(seed)
    calm, storm = Calm(world), ClassicStorm(world, Random(seed))
    for _ in range(GUSTS):
        gust(storm, calm)
    for _ in range(SETTLING_STEPS):
        if storm.is_settled:
            break
        storm.step()
        calm.check()
    assert storm.is_settled
    group = world.group
    assert group.state is GroupState.STABLE
    assert set(group.members) == {each.member_id for each in storm.members}
    # All requests were answered, also those of members that left.
    assert all(reply.is_done for reply in storm.replies)
    for _ in range(2 * SESSION_MS // STEP_MS):
        storm.step()
        calm.check()
    assert storm.is_settled
    assert not group.pending
    assert not group.pending_sync
    # Each session has a timer, and some cancelled timers are possibly not removed yet.
    assert len(world.timers._heap) <= 4 * (MEMBERS + 3) + 128


@dataclass
class ConsumerStorm:
    """A group of the consumer protocol, in which no partition may have two members."""

    world: World
    random: Random
    epochs: dict[str, int] = field(default_factory=dict)
    owned: dict[str, Owned] = field(default_factory=dict)
    count: int = 0

    def come(self) -> None:
        self.count += 1
        name = f"member {self.count}"
        self.epochs[name], self.owned[name] = 0, {}

    def leave(self, name: str) -> None:
        if self.fall_silent(name):
            self.world.heartbeats.heartbeat(
                HeartbeatRequest(group_id=GROUP, member_id=name, epoch=-1)
            )

    def fall_silent(self, name: str) -> int:
        """Stop a member's heartbeats; return its epoch."""
        del self.owned[name]
        return self.epochs.pop(name)

    def step(self) -> None:
        for name in self.random.sample(list(self.epochs), len(self.epochs)):
            self._beat(name)
        self.world.wait(STEP_MS)

    def _beat(self, name: str) -> None:
        joins = not self.epochs[name]
        asked = HeartbeatRequest(
            group_id=GROUP,
            member_id=name,
            epoch=self.epochs[name],
            owned=self.owned[name],
            topics=frozenset({"routes"}) if joins else None,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
        )
        reply: Reply[HeartbeatResult] = self.world.heartbeats.heartbeat(asked)
        assert reply.is_done, "a member is left without an answer"
        beat = reply.value
        if beat.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
            self.epochs[name], self.owned[name] = 0, {}
            return
        assert beat.code is ErrorCode.NONE, beat
        self.epochs[name] = beat.epoch
        if beat.assignment is not None:
            self.owned[name] = beat.assignment

    def readers(self) -> Counter[int]:
        """Return the number of members that own each partition."""
        return Counter(
            number
            for owned in self.owned.values()
            for numbers in owned.values()
            for number in numbers
        )

    @property
    def is_settled(self) -> bool:
        group = self.world.consumers
        return (
            set(group.members) == set(self.epochs)
            and set(self.epochs.values()) == {group.epoch}
            and len(self.readers()) == MEMBERS
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_consumer_group_settles_after_storms(seed: int) -> None:
    random = Random(seed)
    world = World(
        seed,
        group_consumer_session_timeout_ms="5000",
        group_consumer_min_session_timeout_ms="1000",
        group_consumer_heartbeat_interval_ms="1000",
        group_consumer_min_heartbeat_interval_ms="1000",
    )
    world.clock.advance(1)
    world.make_topics(routes=MEMBERS)
    calm, storm = Calm(world), ConsumerStorm(world, random)
    for _ in range(GUSTS):
        for name in random.sample(list(storm.epochs), len(storm.epochs) // 2):
            random.choice([storm.leave, storm.fall_silent])(name)
        while len(storm.epochs) < MEMBERS:
            storm.come()
        for _ in range(random.randint(1, STEPS_IN_A_GUST)):
            storm.step()
            calm.check()
            assert max(storm.readers().values(), default=1) == 1
    for _ in range(SETTLING_STEPS):
        if storm.is_settled:
            break
        storm.step()
        calm.check()
        assert max(storm.readers().values(), default=1) == 1
    assert storm.is_settled
    group = world.consumers
    assert set(group.targets) == set(storm.epochs)
    # Each member has only a session timer, because no member has to give up partitions.
    assert len(group.waits) == MEMBERS
    assert len(world.timers._heap) <= 4 * (MEMBERS + 3) + 128
